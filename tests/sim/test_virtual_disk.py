"""The store that stands in for the thread keeps the thread's contract; a power cut loses what was not synced."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
import trio

from fedsched.model.errors import Conflict, NotFound
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import Config
from fedsched.raft.messages import HardState, SnapshotMeta
from fedsched.raft.snapshot_file import DamagedSnapshot
from fedsched.raft.snapshots import SnapshotStore
from fedsched.raft.storage import StoreFailed
from fedsched.raft.store_group import StoreWrite
from fedsched.raft.store_thread import StoreThread
from fedsched.sim import trio_seed
from fedsched.sim.virtual_disk import VirtualDisk, VirtualStore
from fedsched.sim.virtual_snapshots import MemorySnapshots


class Bench:
    """A store, its disk, and what it reported."""

    def __init__(self, nursery: trio.Nursery, keep_unsynced: float = 0.0) -> None:
        self.done: list[int] = []
        self.failed: list[BaseException] = []
        self.disk = VirtualDisk("s1", random.Random(1), sync_s=0.01, keep_unsynced=keep_unsynced)
        self.store = VirtualStore(self.disk, nursery, self.done.append, self.failed.append, lambda kind, detail: None)
        self.store.start()

    def write(self, number: int) -> None:
        entry = Entry(number, 1, EntryKind.COMMAND, b"%d" % number)
        self.store.submit(StoreWrite(number, HardState(1, "s1"), None, (entry,)))


def tell(story: Callable[[Bench], Awaitable[None]], keep_unsynced: float = 0.0) -> None:
    async def main() -> None:
        with trio.fail_after(100):
            async with trio.open_nursery() as nursery:
                bench = Bench(nursery, keep_unsynced)
                await story(bench)
                bench.store.close(0.0)

    trio_seed.run(1, main)


def test_writes_complete_in_order_and_share_syncs() -> None:
    async def story(bench: Bench) -> None:
        bench.write(1)
        await trio.sleep(0.001)
        bench.write(2)
        bench.write(3)
        await trio.sleep(1)
        assert bench.done == [1, 3]
        assert bench.disk.log.last_index == 3
        assert bench.store.statistics().groups == 2

    tell(story)


def test_a_slow_disk_shows_in_its_figures() -> None:
    async def story(bench: Bench) -> None:
        bench.disk.slow_s = 5.0
        bench.write(1)
        await trio.sleep(2)
        assert bench.store.statistics().busy_s == pytest.approx(2)
        await trio.sleep(8)
        assert bench.store.statistics().sync_last_s > 5

    tell(story)


def test_a_power_cut_loses_what_was_not_synced() -> None:
    async def story(bench: Bench) -> None:
        bench.write(1)
        await trio.sleep(1)
        bench.write(2)
        bench.store.power_cut()
        bench.write(3)
        await trio.sleep(1)
        assert (bench.done, bench.disk.log.last_index) == ([1], 1)
        assert bench.disk.counts["unsynced writes lost"] == 1

    tell(story)


def test_a_power_cut_may_leave_what_was_not_synced() -> None:
    async def story(bench: Bench) -> None:
        bench.write(1)
        bench.write(2)
        bench.store.power_cut()
        assert bench.disk.log.last_index == 2

    tell(story, keep_unsynced=1.0)


def test_the_first_failure_is_reported_once_and_nothing_completes_after_it() -> None:
    async def story(bench: Bench) -> None:
        bench.disk.fails_next_sync = True
        bench.write(1)
        await trio.sleep(1)
        with pytest.raises(StoreFailed, match="planned"):
            bench.write(2)
        assert (bench.done, len(bench.failed), bench.disk.log.last_index) == ([], 1, 0)

    tell(story)


def test_closing_finishes_what_was_submitted_and_takes_no_more() -> None:
    async def story(bench: Bench) -> None:
        bench.write(1)
        bench.store.close(0.0)
        with pytest.raises(StoreFailed, match="closed"):
            bench.write(2)
        await bench.store.has_ended.wait()
        assert bench.done == [1]

    tell(story)


def test_a_restart_finds_log_and_snapshot() -> None:
    async def story(bench: Bench) -> None:
        for number in range(1, 5):
            bench.write(number)
        meta = a_snapshot(bench.disk.files["snapshots"], 3)
        bench.store.truncate_prefix(2, meta)
        await trio.sleep(1)
        restored = bench.disk.opened().restored
        assert (restored.prev_index, [entry.index for entry in restored.entries]) == (2, [3, 4])
        assert restored.snapshot == meta

    tell(story)


def test_a_disk_belongs_to_one_cluster() -> None:
    disk = VirtualDisk("s1", random.Random(1), sync_s=0.01, keep_unsynced=0.0)
    disk.join_cluster("one")
    disk.join_cluster("one")

    with pytest.raises(Conflict, match="belongs to cluster one"):
        disk.join_cluster("other")


# --- snapshots --------------------------------------------------------------------------------------------------------


def a_snapshot(store: MemorySnapshots, index: int, chunk: bytes = b"state") -> SnapshotMeta:
    writer = store.create(index, 1, Config(), 0)
    writer.write(chunk)
    return writer.finish()


def fetched(source: MemorySnapshots, target: MemorySnapshots, meta: SnapshotMeta, upto: int | None = None) -> None:
    receiver = target.receive(meta)
    with source.open(meta.id) as reader:
        receiver.write(reader.read(receiver.offset, upto or meta.size))
    receiver.close()
    receiver.finish()


def test_a_snapshot_is_there_when_its_writer_has_finished_and_the_oldest_goes() -> None:
    store = MemorySnapshots()
    store.create(9, 1, Config(), 0).abort()
    metas = [a_snapshot(store, index) for index in (3, 1, 2)]

    assert [meta.index for meta in store.list()] == [3, 2]
    assert store.latest() == metas[0]
    assert list(store.open(metas[0].id).chunks()) == [b"state"]
    with pytest.raises(NotFound):
        store.open(metas[1].id)


def test_images_go_by_their_arrival() -> None:
    store = MemorySnapshots(keep=2, by_arrival=True)
    first, second, third = (a_snapshot(store, index) for index in (30, 20, 10))

    assert store.open(third.id).meta == third
    assert store.open(second.id).meta == second
    with pytest.raises(NotFound):
        store.open(first.id)


def test_a_fetch_goes_on_where_it_ended() -> None:
    source, target = MemorySnapshots(), MemorySnapshots()
    meta = a_snapshot(source, 3, b"x" * 50)

    with pytest.raises(DamagedSnapshot, match="ends after 20"):
        fetched(source, target, meta, upto=20)
    fetched(source, target, meta)

    assert target.latest() == meta


def test_a_fetch_of_something_else_is_thrown_away() -> None:
    source, target = MemorySnapshots(), MemorySnapshots()
    meta, other = a_snapshot(source, 3, b"x" * 50), a_snapshot(source, 4, b"y" * 50)
    receiver = target.receive(meta)
    receiver.write(source.open(other.id).read(0, meta.size))

    with pytest.raises(DamagedSnapshot, match="not what was offered"):
        receiver.finish()

    assert target.receive(meta).offset == 0


def test_a_power_cut_leaves_a_prefix_of_a_half_fetched_file() -> None:
    source, target = MemorySnapshots(), MemorySnapshots()
    meta = a_snapshot(source, 3, b"x" * 50)
    target.receive(meta).write(b"z" * 30)

    target.power_cut(random.Random(1))

    assert target.receive(meta).offset <= 30


def test_a_log_that_no_snapshot_reaches_is_refused() -> None:
    store = MemorySnapshots()
    a_snapshot(store, 3)

    assert store.usable(3) is not None
    with pytest.raises(DamagedSnapshot, match="begins after 4"):
        store.usable(4)


@pytest.mark.parametrize(
    ("real", "stand_in", "unused"),
    [
        (StoreThread, VirtualStore, {"run_exclusive"}),
        (SnapshotStore, MemorySnapshots, set()),
    ],
)
def test_a_stand_in_has_the_public_face_of_the_real_one(real: type, stand_in: type, unused: set[str]) -> None:
    public = {name for name in vars(real) if not name.startswith("_")}

    assert public - unused <= {name for name in vars(stand_in) if not name.startswith("_")}
