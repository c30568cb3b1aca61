"""Calls to nodes: through any server, over whichever holds the link, with everything that streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.client.exec_sessions import ExecRefused
from fedsched.client.files import FileRefused
from fedsched.model.errors import BadRequest, FedschedError, NotFound
from fedsched.model.node import NodeStatus
from fedsched.rpc.methods.alloc_access import (
    ALLOC_EXEC,
    ALLOC_LOGS,
    FS_CAT,
    FS_LIST,
    AllocExecRequest,
    AllocLogsRequest,
    ExecFrame,
    FsReadRequest,
    FsRequest,
)
from fedsched.rpc.methods.node import NodeRequest
from fedsched.rpc.methods.node_calls import (
    ALLOC_RESTART,
    ALLOC_SIGNAL,
    NODE_HAS_LINK,
    NODE_STATS,
    AllocRestartRequest,
    AllocSignalRequest,
)
from fedsched.server import node_calls
from fedsched.server.node_calls import NodeLinkLost, NoNodeLink
from fedsched.state.tables.node_updates import NodeStatusUpdate, NodeStatusWrite
from tests.builders import an_id
from tests.server.around import propose
from tests.server.node_kit import LinkedClient, a_node
from tests.server.region import Member, Region, run_region

ALLOC = an_id(1)


def logs_of(node: LinkedClient) -> Path:
    return node.client.runners[ALLOC].context.root / "alloc" / "logs"


async def read_log(member: Member, **fields: Any) -> bytes:
    data = b""
    async with member.caller.open_stream(ALLOC_LOGS, AllocLogsRequest(alloc_id=ALLOC, **fields)) as stream:
        async for frame in stream:
            data += frame.data
        await stream.wait_reply()
    return data


async def run_command(member: Member, *command: str, stdin: bytes = b"", **fields: Any) -> tuple[bytes, int]:
    out = b""
    request = AllocExecRequest(alloc_id=ALLOC, task="web", command=command, **fields)
    async with member.caller.open_stream(ALLOC_EXEC, request) as stream:
        for at in range(0, len(stdin), 1000):
            await stream.send(ExecFrame(stdin=stdin[at : at + 1000]))
        stream.end_items()
        async for frame in stream:
            out += frame.stdout
        reply, _ = await stream.wait_reply()
    return out, reply.exit_code


async def _drain(stream: Any) -> None:
    async for _ in stream:
        pass


def test_every_server_reaches_the_node_whoever_holds_its_link(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        async with a_node(region) as node:
            (logs_of(node) / "web.stdout.0").write_bytes(b"hello " * 100_000)
            for member in region.running():
                assert await read_log(member) == b"hello " * 100_000
                assert await run_command(member, "cat", stdin=b"typed" * 1000) == (b"typed" * 1000, 0)
                assert await run_command(member, "sh", "-c", "exit 4") == (b"", 4)
                files = (await member.call(FS_LIST, FsRequest(alloc_id=ALLOC))).files
                assert [one.name for one in files] == ["alloc", "web"]
                stats = (await member.call(NODE_STATS, NodeRequest(node_id=node.host.id))).stats
                assert stats.memory.total > 0
                assert len(stats.cpu) > 0
                await member.call(ALLOC_RESTART, AllocRestartRequest(alloc_id=ALLOC, task="web"))
                await member.call(ALLOC_SIGNAL, AllocSignalRequest(alloc_id=ALLOC, signal="hup"))
            runner = node.client.runners[ALLOC]
            assert runner.restarts == [("web", False)] * 3
            assert runner.signals == [("web", "SIGHUP")] * 3
            users = {one["user"] for one in node.client.said("exec_started")}
            assert users == {"this process"}

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_clients_refusals_come_back_as_they_were_raised(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        async with a_node(region) as node:
            (node.client.runners[ALLOC].context.root / "web" / "secrets" / "token").write_text("hush")
            for member in region.running():
                request = FsReadRequest(alloc_id=ALLOC, path="web/SECRETS/token")
                with pytest.raises(FileRefused):
                    async with member.caller.open_stream(FS_CAT, request) as stream:
                        await stream.receive()
                with pytest.raises(BadRequest, match="unknown signal 'SIGNOPE'"):
                    await member.call(ALLOC_SIGNAL, AllocSignalRequest(alloc_id=ALLOC, signal="SIGNOPE"))
                with pytest.raises(BadRequest, match="command is not present"):
                    await run_command(member)
            del node.client.runners[ALLOC]
            with pytest.raises(NotFound, match="unknown allocation"):
                await read_log(member)

    run_region(tmp_path, scenario, num_schedulers=0)


def test_what_nobody_knows_is_not_found_and_what_names_nothing_is_refused(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        for alloc_id in (an_id(9), "no-uuid", "x" * 100):
            with pytest.raises(NotFound, match="alloc not found"):
                await leader.call(FS_LIST, FsRequest(alloc_id=alloc_id))
        with pytest.raises(NotFound, match="node not found"):
            await leader.call(NODE_STATS, NodeRequest(node_id=an_id(9)), stale=True)
        with pytest.raises(BadRequest, match="neither a node nor an allocation"):
            await leader.call(NODE_STATS, NodeRequest(node_id=""))

    run_region(tmp_path, scenario, num_schedulers=0)


def test_the_callers_token_stays_with_the_servers(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        async with a_node(region) as node:
            seen = []
            handlers = dict(node.access.handlers())

            async def list_files(request: FsRequest, context: Any) -> Any:
                seen.append(context.meta)
                return await handlers[FS_LIST](request, context)

            node.access.calls._handlers[FS_LIST] = list_files
            for member in region.running():
                await member.call(FS_LIST, FsRequest(alloc_id=ALLOC), token="s3cret", namespace="elsewhere")

            assert [(meta.token, meta.namespace) for meta in seen] == [("", "default")] * 3
            assert {len(meta.hops) for meta in seen} == {1, 2}

    run_region(tmp_path, scenario, num_schedulers=0)


def test_only_servers_ask_who_holds_a_link(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        async with a_node(region, holder="s2") as node:
            request = NodeRequest(node_id=node.host.id)
            held = {name: await one.call(NODE_HAS_LINK, request) for name, one in region.members.items()}
            assert [name for name, reply in held.items() if reply.has_link] == ["s2"]
            assert held["s2"].silent_s < 15

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_client_that_moves_to_another_server_is_found_there(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        async with a_node(region, holder="s1") as node:
            (logs_of(node) / "web.stdout.0").write_bytes(b"hello")
            members = region.members
            for holder in ("s2", "s3", "s1"):
                for member in members.values():
                    assert await read_log(member) == b"hello"
                node.cut()
                await node.link_to(members[holder])
                for member in members.values():
                    assert await run_command(member, "cat", stdin=b"typed") == (b"typed", 0)

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_client_that_changes_servers_is_waited_for(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        async with a_node(region, holder="s1") as node:
            (logs_of(node) / "web.stdout.0").write_bytes(b"hello")
            node.cut()

            async def come_back() -> None:
                await trio.sleep(0.3)
                await node.link_to(region.members["s2"])

            async with trio.open_nursery() as nursery:
                nursery.start_soon(come_back)
                assert await read_log(region.members["s3"]) == b"hello"

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_node_that_is_not_reached_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_calls, "PATIENCE_S", 0.3)

    async def scenario(region: Region) -> None:
        async with a_node(region) as node:
            node.cut()
            await node.wait_link(region.members["s1"], is_there=False)
            for member in region.running():
                with pytest.raises(NoNodeLink, match="has no link to any server just now"):
                    await read_log(member)
            leader = await region.leader()
            started = trio.current_time()
            with pytest.raises(NoNodeLink):
                await leader.call(NODE_STATS, NodeRequest(node_id=node.host.id))
            assert trio.current_time() - started < node_calls.PATIENCE_S
            down = NodeStatusWrite(id=node.host.id, status=NodeStatus.DOWN.value)
            await propose(leader, NodeStatusUpdate(updates=(down,)))
            with pytest.raises(NoNodeLink, match=r"is down, its client cannot be asked.*start its agent"):
                await read_log(leader)

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_link_that_is_lost_ends_the_call_with_a_clear_error(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        async with a_node(region) as node:
            (logs_of(node) / "web.stdout.0").write_bytes(b"hello")
            for member in (region.members["s1"], region.members["s2"]):
                request = AllocLogsRequest(alloc_id=ALLOC, follow=True)
                async with member.caller.open_stream(ALLOC_LOGS, request) as stream:
                    assert (await stream.receive()).data == b"hello"
                    node.cut()
                    with pytest.raises(NodeLinkLost, match="the link to node node-1 was lost"):
                        await _drain(stream)
                await node.link_to(region.members["s1"])

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_reader_that_does_not_read_fills_nobodys_memory(tmp_path: Path) -> None:
    """What is under way to it is bounded by the credit of the links, however much there is to read."""

    async def scenario(region: Region) -> None:
        async with a_node(region, holder="s1") as node:
            (logs_of(node) / "web.stdout.0").write_bytes(b"x" * (40 << 20))
            other = region.members["s2"]
            async with other.caller.open_stream(ALLOC_LOGS, AllocLogsRequest(alloc_id=ALLOC, follow=True)) as stream:
                await stream.receive()
                await trio.sleep(0.5)
                assert node.link is not None
                outbox = node.link.statistics().outbox_bytes
                assert outbox < 1 << 20
                # The rest of the node's link is as quick as ever.
                with trio.fail_after(2):
                    await other.call(FS_LIST, FsRequest(alloc_id=ALLOC))

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_node_that_forbids_commands_says_so_through_every_server(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        async with a_node(region) as node:
            node.access._sessions._is_disabled = True
            for member in region.running():
                with pytest.raises(ExecRefused):
                    await run_command(member, "true")

    run_region(tmp_path, scenario, num_schedulers=0)


def test_errors_have_codes_of_their_own() -> None:
    codes = {kind.code for kind in (NoNodeLink, NodeLinkLost, ExecRefused, FileRefused)}

    assert len(codes) == 4
    assert all(issubclass(kind, FedschedError) for kind in (NoNodeLink, ExecRefused))
