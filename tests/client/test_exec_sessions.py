"""Commands inside tasks, with real processes, pipes and terminals."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from fedsched.client import exec_sessions
from fedsched.client.exec_sessions import ExecRefused
from fedsched.drivers.driver import Capabilities
from fedsched.model.errors import BadRequest, Busy, NotFound, Unavailable
from fedsched.rpc.caller import CallStream, LocalCaller
from fedsched.rpc.methods.alloc_access import ALLOC_EXEC, AllocExecReply, AllocExecRequest, ExecFrame
from tests.builders import an_id
from tests.client.access_kit import FakeClient, with_client

ALLOC = an_id(1)


@asynccontextmanager
async def running(caller: LocalCaller, *command: str, **fields: Any) -> AsyncIterator[CallStream[AllocExecReply]]:
    request = AllocExecRequest(alloc_id=ALLOC, task="web", command=command, **fields)
    async with caller.open_stream(ALLOC_EXEC, request) as stream:
        yield stream


async def output(stream: CallStream[AllocExecReply]) -> tuple[bytes, bytes, list[str]]:
    """What came out of both, and in which order they were closed."""
    out, err, closed = b"", b"", []
    async for frame in stream:
        out, err = out + frame.stdout, err + frame.stderr
        closed += ["stdout"] * frame.stdout_close + ["stderr"] * frame.stderr_close
    return out, err, closed


async def until(stream: CallStream[AllocExecReply], text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        seen += (await stream.receive()).stdout
    return seen


def test_input_output_and_exit_code_go_through_pipes(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        script = "echo to-stderr >&2; cat; echo $NOMAD_TASK_NAME; exit 3"
        async with running(caller, "sh", "-c", script, user="anna") as stream:
            await stream.send(ExecFrame(stdin=b"typed "))
            await stream.send(ExecFrame(stdin=b"text\n", stdin_close=True))
            out, err, closed = await output(stream)
            reply, _ = await stream.wait_reply()

        assert (out, err) == (b"typed text\nweb\n", b"to-stderr\n")
        assert closed == ["stderr", "stdout"]
        assert reply == AllocExecReply(exit_code=3)
        events = {one.name: dict(one.fields) for one in client.events.take()}
        assert events["exec_started"]["command"] == f"sh -c {script}"
        assert events["exec_started"]["user"] == "anna"
        assert events["exec_ended"]["outcome"] == "exit code 3"

    with_client(tmp_path, story)


def test_a_terminal_knows_its_size_and_changes_of_it(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        script = 'trap "stty size; exit 7" WINCH; test -t 0 && echo ready; while :; do sleep 0.05; done'
        async with running(caller, "bash", "-c", script, tty=True) as stream:
            assert b"ready" in await until(stream, b"ready")
            await stream.send(ExecFrame(height=33, width=132))
            assert b"33 132" in await until(stream, b"33 132")
            await output(stream)
            reply, _ = await stream.wait_reply()

        assert reply.exit_code == 7

    with_client(tmp_path, story)


def test_ctrl_c_reaches_the_command_through_its_terminal(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        async with running(caller, "sh", "-c", "echo ready; exec sleep 60", tty=True) as stream:
            await until(stream, b"ready")
            await stream.send(ExecFrame(stdin=b"\x03"))
            await output(stream)
            reply, _ = await stream.wait_reply()

        assert reply == AllocExecReply(exit_code=130, signal=2)

    with_client(tmp_path, story)


def test_a_caller_that_goes_ends_the_command(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        async with running(caller, "sh", "-c", "echo $$; exec sleep 60") as stream:
            pid = int(await until(stream, b"\n"))
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert [one["outcome"] for one in client.said("exec_ended")] == ["cut off"]

    with_client(tmp_path, story)


def test_a_caller_without_signs_of_life_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_sessions, "SILENCE_S", 0.2)

    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        async with running(caller, "sleep", "60") as stream:
            await stream.send(ExecFrame())
            with pytest.raises(Unavailable, match=r"silent for 0\.2 s"):
                await output(stream)

    with_client(tmp_path, story)


def test_a_session_ends_with_its_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_sessions, "TASK_GONE_S", 0.05)

    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        async with running(caller, "sh", "-c", "echo ready; exec sleep 60") as stream:
            await until(stream, b"ready")
            client.driver.task_ended.set()
            with pytest.raises(Unavailable, match="its task ended"):
                await output(stream)

    with_client(tmp_path, story)


def test_a_command_that_does_not_read_its_input_is_nobodys_trouble(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        async with running(caller, "sh", "-c", "exec 0<&-; echo closed; sleep 0.3; echo done") as stream:
            await until(stream, b"closed")
            for _ in range(20):
                await stream.send(ExecFrame(stdin=b"x" * 60_000))
            out, _, _ = await output(stream)
            reply, _ = await stream.wait_reply()

        assert out == b"done\n"
        assert reply.exit_code == 0

    with_client(tmp_path, story)


def test_much_output_comes_through_in_pieces(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        async with running(caller, "head", "-c", "3000000", "/dev/zero") as stream:
            stream.end_items()
            out, _, _ = await output(stream)

        assert len(out) == 3_000_000

    with_client(tmp_path, story)


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"command": ()}, BadRequest, "command is not present"),
        ({"command": ("",)}, BadRequest, "command is not present"),
        ({"command": ("x",) * 2000}, BadRequest, "too long"),
        ({"command": ("echo", "x" * 200_000)}, BadRequest, "too long"),
        ({"command": ("echo", "a\0b")}, BadRequest, "NUL"),
        ({"task": "db"}, NotFound, "no task 'db'"),
        ({"alloc_id": an_id(7)}, NotFound, "unknown allocation"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(
    tmp_path: Path, fields: dict[str, Any], kind: type[Exception], words: str
) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        request = AllocExecRequest(**{"alloc_id": ALLOC, "task": "web", "command": ("true",), **fields})
        with pytest.raises(kind, match=words):
            async with caller.open_stream(ALLOC_EXEC, request) as stream:
                await output(stream)

    with_client(tmp_path, story)


async def refusal(caller: LocalCaller) -> None:
    async with running(caller, "true") as stream:
        await output(stream)


def test_an_operator_can_forbid_it(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        with pytest.raises(ExecRefused, match="disable_remote_exec"):
            await refusal(caller)

    with_client(tmp_path, story, disable_remote_exec=True)


def test_a_task_that_does_not_run_and_a_driver_that_cannot_are_refused(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add(is_running=False)
        with pytest.raises(BadRequest, match="not running"):
            await refusal(caller)
        client.driver.capabilities = Capabilities(exec=False)
        with pytest.raises(BadRequest, match="driver fake runs no commands"):
            await refusal(caller)

    with_client(tmp_path, story)


def test_there_are_only_so_many_sessions_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_sessions, "SESSIONS_MAX", 1)

    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        async with running(caller, "sh", "-c", "echo ready; exec sleep 60") as stream:
            await until(stream, b"ready")
            with pytest.raises(Busy):
                await refusal(caller)
        await refusal(caller)

    with_client(tmp_path, story)
