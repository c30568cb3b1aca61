"""Real members on loopback: they find each other, notice who goes, and take no harm from anybody's bytes."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsched.codec import cbor
from fedsched.env.real import RealEnv
from fedsched.gossip.durable_file import write_durably
from fedsched.gossip.keyring import Keyring
from fedsched.gossip.messages import State, UserEvent
from fedsched.gossip.profiles import LOCAL
from fedsched.gossip.runner import FILE, GossipRunner, GossipSettings
from fedsched.gossip.snapshot import decode_snapshot
from fedsched.model.errors import FedschedError
from fedsched.telemetry.log import Hub
from fedsched.telemetry.metrics import Registry
from tests.server.region import until

KEYS = (bytes(range(32)),)


class Pool:
    """Members in one trio run."""

    def __init__(self, directory: Path, nursery: trio.Nursery, **changes: Any) -> None:
        self._directory = directory
        self._nursery = nursery
        self._changes = changes
        self.scopes: dict[str, trio.CancelScope] = {}
        self.ended: dict[str, trio.Event] = {}
        self.heard: dict[str, list[UserEvent]] = {}

    async def add(self, name: str, *join: GossipRunner, **changes: Any) -> GossipRunner:
        directory = self._directory / name
        directory.mkdir(exist_ok=True)
        settings = GossipSettings(
            name,
            {"id": f"id-{name}", "region": "eu", "role": "fedsched"},
            directory,
            join=tuple(f"{one.address[0]}:{one.address[1]}" for one in join),
            profile=LOCAL,
        )
        heard = self.heard.setdefault(name, [])
        member = GossipRunner(
            replace(settings, **(self._changes | changes)),
            env=RealEnv(),
            log=Hub().logger("test"),
            metrics=Registry(),
            on_event=heard.append,
        )
        scope, ended = self.scopes[name], self.ended[name] = trio.CancelScope(), trio.Event()

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with scope:
                await member.run(task_status=task_status)
            ended.set()

        await self._nursery.start(run)
        return member


def states(member: GossipRunner) -> dict[str, State]:
    return {one.name: one.state for one in member.members}


def in_pool(directory: Path, story: Callable[[Pool], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await story(Pool(directory, nursery, **changes))
                nursery.cancel_scope.cancel("the story is over")

    trio.run(main)


def all_up(*members: GossipRunner) -> bool:
    names = {one.settings.name for one in members}
    return all({name for name, state in states(one).items() if state is State.ALIVE} == names for one in members)


def test_members_find_each_other_and_notice_a_death_and_a_farewell(tmp_path: Path) -> None:
    async def story(pool: Pool) -> None:
        a = await pool.add("a")
        b = await pool.add("b", a)
        c = await pool.add("c", b)
        await until("all know all", lambda: all_up(a, b, c))
        assert {tuple(sorted(one.tags.items())) for one in a.members if one.name == "c"} == {
            (("id", "id-c"), ("region", "eu"), ("role", "fedsched"))
        }

        await c.leave()
        await until("c has left", lambda: states(a)["c"] is states(b)["c"] is State.LEFT)
        pool.scopes["b"].cancel("killed")
        await until("b is dead", lambda: states(a)["b"] is State.DEAD, within_s=20)

    in_pool(tmp_path, story)


def test_an_announcement_is_heard_once_by_everybody(tmp_path: Path) -> None:
    async def story(pool: Pool) -> None:
        a = await pool.add("a")
        b = await pool.add("b", a)
        await until("both are there", lambda: all_up(a, b))

        await a.publish("leader", b"us 7")

        await until("both heard", lambda: pool.heard["a"] and pool.heard["b"])
        assert [(one.name, one.payload) for one in pool.heard["b"]] == [("leader", b"us 7")]

    in_pool(tmp_path, story)


def test_a_sealed_pool_lets_nobody_in_who_has_no_key(tmp_path: Path) -> None:
    async def story(pool: Pool) -> None:
        a = await pool.add("a")
        b = await pool.add("b", a)
        stranger = await pool.add("stranger", a, keys=())
        await until("both are there", lambda: all_up(a, b))
        await until("the stranger was refused", lambda: a._refused.value > 0)

        assert set(states(a)) == {"a", "b"}
        assert set(states(stranger)) == {"stranger"}

    in_pool(tmp_path, story, keys=KEYS, label=b"prod")


def test_one_that_returns_speaks_with_a_higher_number_and_finds_the_pool_by_itself(tmp_path: Path) -> None:
    async def story(pool: Pool) -> None:
        a = await pool.add("a")
        b = await pool.add("b", a)
        await until("both are there", lambda: all_up(a, b))
        before = next(one.inc for one in a.members if one.name == "b")
        pool.scopes["b"].cancel("stopped")
        await pool.ended["b"].wait()

        again = await pool.add("b")

        await until("it is back", lambda: all_up(a, again), within_s=20)
        assert next(one.inc for one in a.members if one.name == "b") > before
        assert decode_snapshot((tmp_path / "b" / FILE).read_bytes()).inc >= before

    in_pool(tmp_path, story)


def test_a_damaged_file_makes_it_a_new_member(tmp_path: Path) -> None:
    async def story(pool: Pool) -> None:
        a = await pool.add("a")
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / FILE).write_bytes(b"torn")

        b = await pool.add("b", a)

        await until("it joined", lambda: all_up(a, b))

    in_pool(tmp_path, story)


NUMBERS = st.integers(-(2**63), 2**63 - 1)
JUNK = st.one_of(
    st.binary(max_size=1500),
    st.binary(max_size=200).map(lambda tail: cbor.dumps([[0, 1, "a", "b"], tail])),
    st.lists(st.recursive(st.none() | NUMBERS | st.text(), lambda inner: st.lists(inner, max_size=4))).map(cbor.dumps),
    st.tuples(st.integers(0, 14), st.lists(NUMBERS | st.text() | st.binary(max_size=40), max_size=8)).map(
        lambda message: cbor.dumps([[message[0], *message[1]]])
    ),
)
"""Noise, and what looks like gossip for a while: arrays, known messages, values of wrong kinds and out of range."""


def sealed_junk(pieces: list[bytes]) -> list[bytes]:
    """The same from somebody who has the key, and so gets further in."""
    ring = Keyring(KEYS)
    return pieces + [ring.seal(piece, os.urandom(12)) for piece in pieces]


@pytest.mark.parametrize("keys", [(), KEYS], ids=["open", "sealed"])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(packets=st.lists(JUNK, min_size=10, max_size=40), streams=st.lists(JUNK, min_size=2, max_size=6))
def test_no_bytes_on_either_port_harm_anybody(
    tmp_path: Path, keys: tuple[bytes, ...], packets: list[bytes], streams: list[bytes]
) -> None:
    async def send_stream(to: GossipRunner, junk: bytes, has_head: bool) -> None:
        async with await trio.open_tcp_stream(*to.address) as stream:
            try:
                await stream.send_all(len(junk).to_bytes(4, "big") + junk if has_head else junk)
                await stream.send_eof()
                while await stream.receive_some(65_536):
                    pass
            except trio.BrokenResourceError:
                pass  # hung up on, which is an answer as well

    async def story(pool: Pool) -> None:
        a = await pool.add("a")
        b = await pool.add("b", a)
        await until("both are there", lambda: all_up(a, b))
        async with trio.open_nursery() as nursery:
            for at, junk in enumerate(sealed_junk(streams)):
                nursery.start_soon(send_stream, a, junk, at % 3 > 0)
            with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as udp:
                for junk in sealed_junk(packets):
                    await udp.sendto(junk, a.address)
        await a.publish("still", b"here")
        await until("they still hear each other", lambda: any(one.name == "still" for one in pool.heard["b"]))
        assert states(a)["b"] is not State.DEAD
        assert states(b)["a"] is not State.DEAD

    directory = tmp_path / uuid4().hex
    directory.mkdir()
    in_pool(directory, story, keys=keys)


def test_a_disk_that_takes_nothing_keeps_nobody_from_being_a_member(tmp_path: Path) -> None:
    async def story(pool: Pool) -> None:
        a = await pool.add("a")
        b = await pool.add("b", a, directory=tmp_path / "nowhere")

        await until("both are there", lambda: all_up(a, b))
        pool.scopes["b"].cancel("stopped")
        await pool.ended["b"].wait()
        assert not (tmp_path / "nowhere").exists()

    in_pool(tmp_path, story)


def test_a_namesake_is_told_who_has_the_name_and_ends_if_it_never_got_in(tmp_path: Path) -> None:
    async def story(pool: Pool) -> None:
        a = await pool.add("a")
        b = await pool.add("b", a)
        await until("both are there", lambda: all_up(a, b))
        (tmp_path / "other").mkdir()
        other = GossipRunner(
            replace(
                b.settings,
                tags={"id": "id-other"},
                directory=tmp_path / "other",
                join=(f"{a.address[0]}:{a.address[1]}",),
                profile=replace(LOCAL, reclaim_s=0.3),
            ),
            env=RealEnv(),
            log=Hub().logger("test"),
            metrics=Registry(),
        )

        with pytest.raises(ExceptionGroup) as ended:
            await other.run()

        (why,) = ended.value.exceptions
        assert isinstance(why, FedschedError)
        assert why.message == f"gossip: the name b is taken by {b.address[0]}:{b.address[1]}, id id-b"
        assert all_up(a, b)
        assert {one.addr for one in a.members if one.name == "b"} == {b.address}

    in_pool(tmp_path, story)


def test_a_start_that_is_cancelled_leaves_no_socket_behind(tmp_path: Path) -> None:
    async def story(pool: Pool) -> None:
        a = await pool.add("a")
        member = GossipRunner(
            replace(a.settings, name="b", directory=tmp_path / "a"),
            env=RealEnv(),
            log=Hub().logger("test"),
            metrics=Registry(),
        )
        with trio.CancelScope() as scope:
            scope.cancel("before the port is even bound")
            await member.run()
        real_read = GossipRunner._read_kept

        def read_while_told_to_stop(runner: GossipRunner) -> None:
            trio.from_thread.run_sync(scope.cancel)
            real_read(runner)

        member._read_kept = lambda: read_while_told_to_stop(member)  # type: ignore[assignment, return-value, func-returns-value]
        with trio.CancelScope() as scope:
            await member.run()
        host, port = member.address
        again = GossipRunner(
            replace(member.settings, port=port), env=RealEnv(), log=Hub().logger("test"), metrics=Registry()
        )
        await pool._nursery.start(again.run)  # the port is free for both kinds
        assert again.address == (host, port)

    in_pool(tmp_path, story)


def test_all_addresses_of_a_name_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(pool: Pool) -> None:
        a = await pool.add("a")
        host, port = a.address
        real = trio.socket.getaddrinfo

        async def lookup(name: Any, *rest: Any, **more: Any) -> Any:
            if name != "servers.test":
                return await real(name, *rest, **more)
            return [(2, 2, 17, "", (one, port)) for one in ("127.9.9.9", "127.9.9.8", host)]

        monkeypatch.setattr(trio.socket, "getaddrinfo", lookup)
        b = await pool.add("b", join=(f"servers.test:{port}",))
        await until("both are there", lambda: all_up(a, b))

    in_pool(tmp_path, story)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_members_may_speak_ipv6(tmp_path: Path) -> None:
    async def story(pool: Pool) -> None:
        a = await pool.add("a", host="::1")
        b = await pool.add("b", host="::1", join=(f"[::1]:{a.address[1]}",))
        await until("both are there", lambda: all_up(a, b))
        assert a.address[0] == "::1"

    in_pool(tmp_path, story)


def test_how_far_others_are_is_measured(tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []

    async def story(pool: Pool) -> None:
        a = await pool.add("a")
        b = await pool.add("b", a)
        b._on_round_trip = lambda member, round_trip_s: seen.append((member.name, round_trip_s))
        await until("an answer came", lambda: seen)
        assert {name for name, _ in seen} == {"a"}
        assert all(0 < round_trip_s < 0.2 for _, round_trip_s in seen)

    in_pool(tmp_path, story)


@pytest.mark.parametrize("at_once", [1, 7, 1_000_000])
def test_a_file_is_written_whole_even_if_the_disk_takes_it_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:at_once]))
    write_durably(tmp_path / "file", b"what must not be cut short")
    assert (tmp_path / "file").read_bytes() == b"what must not be cut short"
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600
