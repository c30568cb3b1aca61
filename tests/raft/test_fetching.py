"""A fetch that stalls is given up after an idle time and taken up where it stopped; on a virtual clock.

What is fetched, snapshots by a follower and images for a restore, lies on a real disk; the other server is a script
of chunks and pauses.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from fedsched.env.fixed import FixedEnv
from fedsched.model.errors import Unavailable
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import ServerInfo
from fedsched.raft.messages import SnapshotMeta, SnapshotOffer
from fedsched.raft.restoring import FETCH_IDLE_S, Restoring
from fedsched.raft.restoring import RETRY_S as ASK_AGAIN_S
from fedsched.raft.snapshots import SnapshotStore
from fedsched.raft.snapshotter import FETCH_IDLE_S as SNAPSHOT_IDLE_S
from fedsched.raft.snapshotter import Snapshotter
from fedsched.raft.wire import meta_to_bytes
from fedsched.telemetry.log import Hub
from tests.raft.region import a_config
from tests.raft.test_snapshots import a_snapshot, a_store, raw

NEVER = float("inf")
PIECE = 1000


@dataclass
class Sender:
    """The other end: gives one piece after each of these pauses; `NEVER` is a peer that is there and says nothing."""

    data: bytes
    plans: list[tuple[float, ...]]
    """One per attempt."""
    opens_after_s: float = 0.0
    asked: list[tuple[str, int, float]] = field(default_factory=list)
    """Who was asked, from which offset on, and when."""
    closed: int = 0

    @asynccontextmanager
    async def open(self, who: str, offset: int) -> AsyncIterator[AsyncIterator[bytes]]:
        self.asked.append((who, offset, trio.current_time()))
        try:
            await trio.sleep(self.opens_after_s)
            yield self._pieces(offset, self.plans.pop(0))
        finally:
            self.closed += 1

    async def _pieces(self, offset: int, pauses: tuple[float, ...]) -> AsyncIterator[bytes]:
        for pause in pauses:
            await trio.sleep(pause)
            piece = self.data[offset : offset + PIECE]
            offset += len(piece)
            yield piece


@dataclass
class Told:
    """What the core was told of a fetch."""

    news: list[tuple[str, float]] = field(default_factory=list)
    config: Any = None
    server_id: str = "3"

    def snapshot_received(self, meta: SnapshotMeta) -> None:
        self.news.append(("received", trio.current_time()))

    def snapshot_failed(self, meta: SnapshotMeta) -> None:
        self.news.append(("failed", trio.current_time()))


async def at_once(fn: Callable[..., Any], /, *args: Any, **_: Any) -> Any:
    """In place of a worker thread, which a virtual clock does not wait for."""
    await trio.lowlevel.checkpoint()
    return fn(*args)


def on_virtual_time(scenario: Callable[[trio.Nursery], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await scenario(nursery)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture
def saved(tmp_path: Path) -> tuple[SnapshotMeta, bytes]:
    """A snapshot of six pieces, the last one short."""
    store = a_store(tmp_path / "sender")
    meta = a_snapshot(store, 50, b"items", random.Random(5).randbytes(5 * PIECE))
    return meta, raw(store, meta.id)


class Follower:
    """A snapshotter whose core and fetches are the test's."""

    def __init__(self, directory: Path, sender: Sender) -> None:
        self.store: SnapshotStore = a_store(directory)
        self.core = Told()
        self.hub = Hub()
        self.events = self.hub.subscribe("debug", capacity=100)
        nothing: Any = None
        self.snapshotter = Snapshotter(
            self.core,  # type: ignore[arg-type]
            machine=nothing,
            snapshots=self.store,
            store=nothing,
            applier=SimpleNamespace(applied=0, bytes_since_snapshot=0),  # type: ignore[arg-type]
            settings=nothing,
            fetch=lambda offer, offset: sender.open(offer.sender, offset),
            flush=lambda: None,
            env=FixedEnv(1),
            log=self.hub.logger("test"),
            in_thread=at_once,
        )
        self.snapshotter._is_due = lambda: False  # type: ignore[method-assign]

    async def hear(self, count: int) -> None:
        """Wait until the core was told this many things."""
        while len(self.core.news) < count:
            await trio.sleep(1)


def an_offer(meta: SnapshotMeta) -> SnapshotOffer:
    return SnapshotOffer(sender="1", to="3", term=2, meta=meta)


def test_a_snapshot_that_comes_slowly_is_waited_for_as_long_as_something_comes(
    tmp_path: Path, saved: tuple[SnapshotMeta, bytes]
) -> None:
    meta, data = saved
    sender = Sender(data, [(SNAPSHOT_IDLE_S - 1,) * 6])

    async def scenario(nursery: trio.Nursery) -> None:
        follower = Follower(tmp_path / "follower", sender)
        nursery.start_soon(follower.snapshotter.run)
        began = trio.current_time()

        follower.snapshotter.start_fetch(an_offer(meta))
        await follower.hear(1)

        assert [what for what, _ in follower.core.news] == ["received"]
        assert follower.core.news[0][1] - began >= 6 * (SNAPSHOT_IDLE_S - 1)  # far longer than the limit itself
        assert follower.store.list() == [meta]

    on_virtual_time(scenario)


def test_a_stalled_snapshot_is_given_up_when_idle_for_too_long_and_resumed_when_it_is_offered_again(
    tmp_path: Path, saved: tuple[SnapshotMeta, bytes]
) -> None:
    meta, data = saved
    sender = Sender(data, [(1.0, 1.0, NEVER), (0.0,) * 4])

    async def scenario(nursery: trio.Nursery) -> None:
        follower = Follower(tmp_path / "follower", sender)
        nursery.start_soon(follower.snapshotter.run)
        began = trio.current_time()

        follower.snapshotter.start_fetch(an_offer(meta))
        await trio.sleep(2.5)
        follower.snapshotter.start_fetch(an_offer(meta))  # the leader repeats itself; the fetch goes on
        await follower.hear(1)

        ((what, at),) = follower.core.news
        assert what == "failed"
        assert at - began == pytest.approx(2.0 + SNAPSHOT_IDLE_S)
        assert (len(sender.asked), sender.closed) == (1, 1)
        assert follower.store.list() == []
        (event,) = [one for one in follower.events.take() if one.name == "snapshot_fetch_failed"]
        assert dict(event.fields)["why"] == "nothing came for 30 s"

        follower.snapshotter.start_fetch(an_offer(meta))
        await follower.hear(2)

        assert [what for what, _ in follower.core.news] == ["failed", "received"]
        assert [offset for _, offset, _ in sender.asked] == [0, 2 * PIECE]
        assert raw(follower.store, meta.id) == data

    on_virtual_time(scenario)


def test_a_sender_that_does_not_even_begin_is_given_up_too(tmp_path: Path, saved: tuple[SnapshotMeta, bytes]) -> None:
    meta, data = saved
    sender = Sender(data, [(0.0,) * 6], opens_after_s=NEVER)

    async def scenario(nursery: trio.Nursery) -> None:
        follower = Follower(tmp_path / "follower", sender)
        nursery.start_soon(follower.snapshotter.run)
        began = trio.current_time()

        follower.snapshotter.start_fetch(an_offer(meta))
        await follower.hear(1)

        ((what, at),) = follower.core.news
        assert what == "failed"
        assert at - began == pytest.approx(SNAPSHOT_IDLE_S)

    on_virtual_time(scenario)


def test_a_newer_offer_does_not_wait_for_the_stalled_fetch_of_an_older_one(
    tmp_path: Path, saved: tuple[SnapshotMeta, bytes]
) -> None:
    meta, data = saved
    older = a_snapshot(a_store(tmp_path / "sender"), 40)
    sender = Sender(data, [(NEVER,), (0.0,) * 6])

    async def scenario(nursery: trio.Nursery) -> None:
        follower = Follower(tmp_path / "follower", sender)
        nursery.start_soon(follower.snapshotter.run)
        follower.snapshotter.start_fetch(an_offer(older))
        await trio.sleep(5)
        began = trio.current_time()

        follower.snapshotter.start_fetch(an_offer(meta))
        await follower.hear(1)

        ((what, at),) = follower.core.news
        assert (what, at) == ("received", began)
        assert sender.closed == 2

    on_virtual_time(scenario)


class Loaded:
    """A machine that keeps the chunks it was restored from."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def load_restore(self, index: int) -> Loaded:
        return self

    def feed(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    def finish(self) -> None:
        self.chunks.append(b"finished")


def a_restoring(directory: Path, sender: Sender) -> tuple[Restoring, Loaded, Hub]:
    def fetch(server: ServerInfo, meta: SnapshotMeta, offset: int) -> Any:
        return sender.open(server.id, offset)

    machine, hub = Loaded(), Hub()
    core: Any = Told(config=a_config("123"))
    restoring = Restoring(
        core,
        images=a_store(directory),
        machine=machine,  # type: ignore[arg-type]
        fetch=fetch,
        log=hub.logger("test"),
        in_thread=at_once,
    )
    return restoring, machine, hub


def test_a_stalled_image_is_given_up_in_words_and_keeps_what_it_has(
    tmp_path: Path, saved: tuple[SnapshotMeta, bytes]
) -> None:
    meta, data = saved
    sender = Sender(data, [(FETCH_IDLE_S - 1, FETCH_IDLE_S - 1, NEVER), (FETCH_IDLE_S - 1,) * 4])
    server = ServerInfo("1", "server-1", "127.0.0.1:1")

    async def scenario(nursery: trio.Nursery) -> None:
        restoring, _, _ = a_restoring(tmp_path / "images", sender)
        began = trio.current_time()

        with pytest.raises(Unavailable, match=f"server-1 sent nothing of image {meta.id} for 30 s"):
            await restoring.fetch_from(server, meta)
        assert trio.current_time() - began == pytest.approx(3 * FETCH_IDLE_S - 2)
        assert restoring.images.list() == []

        await restoring.fetch_from(server, meta)
        assert [offset for _, offset, _ in sender.asked] == [0, 2 * PIECE]
        assert raw(restoring.images, meta.id) == data

    on_virtual_time(scenario)


def test_a_restore_whose_image_stalls_goes_on_with_the_next_server_where_the_last_one_stopped(
    tmp_path: Path, saved: tuple[SnapshotMeta, bytes]
) -> None:
    meta, data = saved
    sender = Sender(data, [(0.0, NEVER), (NEVER,), (0.0, 0.0), (0.0,) * 3])

    async def scenario(nursery: trio.Nursery) -> None:
        restoring, machine, hub = a_restoring(tmp_path / "images", sender)
        events = hub.subscribe("debug", capacity=100)
        began = trio.current_time()

        await restoring.apply(Entry(60, 2, EntryKind.RESTORE, meta_to_bytes(meta)))

        second_round = 2 * FETCH_IDLE_S + ASK_AGAIN_S
        assert [(who, offset) for who, offset, _ in sender.asked] == [
            ("1", 0),
            ("2", PIECE),
            ("1", PIECE),  # nobody had all of it: a pause, and from the start of the list
            ("2", 3 * PIECE),
        ]
        asked_at = [at - began for _, _, at in sender.asked]
        assert asked_at == pytest.approx([0, FETCH_IDLE_S, second_round, second_round])
        assert machine.chunks[-1] == b"finished"
        assert restoring.restored == 1
        failed = [dict(one.fields) for one in events.take() if one.name == "image_not_fetched"]
        assert [one["server"] for one in failed] == ["server-1", "server-2", "server-1"]
        assert "sent nothing of image" in failed[1]["why"]
        assert f"ends after {3 * PIECE} of {meta.size} bytes" in failed[2]["why"]

    on_virtual_time(scenario)
