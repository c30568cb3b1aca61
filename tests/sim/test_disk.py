from __future__ import annotations

import random
from hashlib import blake2b

import pytest

from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import Config
from fedsched.raft.messages import HardState, SnapshotMeta
from fedsched.sim.disk import Damaged, Disk, SnapshotFile, Transaction
from fedsched.sim.world import World
from tests.sim.fakes import FakeOwner


def an_entry(index: int, term: int = 1, payload: bytes = b"x") -> Entry:
    return Entry(index, term, EntryKind.COMMAND, payload)


def entries(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(an_entry(index, term) for index in range(first, last + 1))


def a_meta(index: int, data: bytes = b"state", term: int = 1) -> SnapshotMeta:
    digest = blake2b(data, digest_size=16).digest()
    return SnapshotMeta(id=f"s{index}", index=index, term=term, config=Config(), config_index=1, digest=digest)


class Bench:
    """One disk in a world of its own."""

    def __init__(self, keep_unsynced: float = 0.5, seed: int = 1) -> None:
        self.world = World(seed)
        self.owner = FakeOwner()
        self.disk = Disk(self.world, self.owner, random.Random(seed), 1_000, keep_unsynced)
        self.durable: list[int] = []
        self.problems: list[str] = []
        self.disk.on_durable = lambda finished: self.durable.append(len(finished))
        self.disk.on_failure = self.problems.append

    def run(self) -> None:
        until_us = self.world.now + 60_000_000
        while self.world.step(until_us):
            pass

    def whole_snapshot(self, index: int, data: bytes = b"state") -> SnapshotFile:
        file = self.disk.create(a_meta(index, data), data)
        for step in self.disk.steps(file):
            step()
        return file


def test_what_gathers_during_a_sync_shares_the_next_one() -> None:
    bench = Bench()
    for index in range(1, 6):
        bench.disk.submit(Transaction(append=(an_entry(index),)))

    bench.run()

    assert bench.durable == [1, 4]
    assert bench.disk.durable.last_index == 5


def test_a_crash_keeps_a_prefix_of_whole_transactions() -> None:
    kept = set()
    for seed in range(60):
        bench = Bench(keep_unsynced=0.5, seed=seed)
        for index in (1, 3, 5, 7):
            bench.disk.submit(Transaction(append=entries(index, index + 1)))
        bench.disk.crash()
        bench.owner.incarnation += 1
        bench.run()
        kept.add(bench.disk.durable.last_index)
        assert bench.durable == []
        assert bench.disk.ahead.last_index == bench.disk.durable.last_index

    assert kept == {0, 2, 4, 6, 8}


def test_a_write_cuts_off_what_follows_its_first_entry() -> None:
    bench = Bench()
    bench.disk.submit(Transaction(append=entries(1, 5)))
    bench.disk.submit(Transaction(append=entries(3, 4, term=2), hard_state=HardState(2, "a")))
    bench.run()

    assert [(entry.index, entry.term) for entry in bench.disk.durable.entries] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert bench.disk.durable.hard_state == HardState(2, "a")


def test_a_write_that_leaves_a_gap_is_refused() -> None:
    with pytest.raises(Damaged, match="gap"):
        Bench().disk.submit(Transaction(append=entries(3, 4)))


def test_compaction_needs_the_log_to_reach_that_far() -> None:
    with pytest.raises(Damaged, match="beyond"):
        Bench().disk.submit(Transaction(compact_to=3))


def test_a_failed_sync_is_reported_once_and_nothing_of_it_is_durable() -> None:
    bench = Bench()
    bench.disk.fails_next_sync = True
    bench.disk.submit(Transaction(append=entries(1, 2)))

    bench.run()

    assert bench.problems == ["a sync failed"]
    assert (bench.durable, bench.disk.durable.last_index) == ([], 0)


def test_a_full_disk_takes_no_entries_but_may_forget_some() -> None:
    bench = Bench()
    bench.disk.submit(Transaction(append=entries(1, 3)))
    bench.run()
    bench.disk.is_full = True

    bench.disk.submit(Transaction(append=entries(4, 4)))
    bench.disk.submit(Transaction(compact_to=2))
    bench.run()

    assert bench.problems == ["no space left on the disk"]
    assert (bench.disk.durable.prev_index, bench.disk.durable.last_index) == (2, 3)


def test_healing_ends_a_slow_sync() -> None:
    bench = Bench()
    bench.disk.slow_us = 50_000_000
    bench.disk.submit(Transaction(append=entries(1, 1)))

    bench.disk.heal()
    while bench.world.step(100_000):
        pass

    assert bench.durable == [1]


def test_it_is_known_whether_a_write_under_way_takes_an_entry_away() -> None:
    bench = Bench()
    bench.disk.submit(Transaction(append=entries(1, 5)))
    bench.run()
    assert bench.disk.will_keep(5, 1)

    bench.disk.submit(Transaction(append=entries(4, 4, term=2), hard_state=HardState(2)))

    assert bench.disk.will_keep(3, 1)
    assert not bench.disk.will_keep(5, 1)
    assert not bench.disk.will_keep(4, 1)
    assert bench.disk.will_keep(5, 1, through_term=1)  # a newer leader may

    bench.disk.submit(Transaction(reset=a_meta(3)))
    assert not bench.disk.will_keep(4, 2)


@pytest.mark.parametrize("bit", range(0, 8 * 26, 5))
def test_a_flipped_bit_is_found_before_anything_is_read_as_good(bit: int) -> None:
    bench = Bench()
    bench.disk.submit(Transaction(append=entries(1, 4)))
    bench.run()
    bench.disk.flips.append((2, bit))

    with pytest.raises(Damaged):
        bench.disk.recover()


def test_a_snapshot_survives_a_crash_only_when_its_directory_entry_was_synced() -> None:
    survived = set()
    for seed in range(20):
        bench = Bench(seed=seed)
        file = bench.disk.create(a_meta(4), b"state")
        sync, rename, _ = bench.disk.steps(file)
        sync()
        rename()
        bench.disk.crash()
        survived.add(bench.disk.snapshot("s4") is not None)
    assert survived == {True, False}

    bench = Bench()
    bench.whole_snapshot(4)
    bench.disk.crash()
    assert bench.disk.snapshot("s4") is not None


def test_a_snapshot_that_was_renamed_but_never_synced_is_torn() -> None:
    for seed in range(20):
        bench = Bench(seed=seed)
        file = bench.disk.create(a_meta(2), b"state")
        file.is_renamed = True
        bench.disk.submit(Transaction(append=entries(1, 2)))
        bench.disk.submit(Transaction(compact_to=2, mark=file.meta))
        bench.run()
        bench.disk.crash()

        with pytest.raises(Damaged, match="not whole"):
            bench.disk.recover()


def test_a_log_without_its_beginning_and_without_a_snapshot_is_refused() -> None:
    bench = Bench()
    bench.disk.submit(Transaction(append=entries(1, 3)))
    bench.disk.submit(Transaction(compact_to=2))
    bench.run()

    with pytest.raises(Damaged, match="starts after 2"):
        bench.disk.recover()


def test_starting_finds_log_mark_and_snapshot() -> None:
    bench = Bench()
    file = bench.whole_snapshot(2)
    bench.disk.submit(Transaction(append=entries(1, 3), hard_state=HardState(1, "a", 2)))
    bench.disk.submit(Transaction(compact_to=2, mark=file.meta))
    bench.run()

    restored, snapshot = bench.disk.recover()

    assert snapshot is file
    assert (restored.prev_index, [entry.index for entry in restored.entries]) == (2, [3])
    assert (restored.snapshot, restored.hard_state) == (file.meta, HardState(1, "a", 2))


def test_a_snapshot_fetched_just_before_a_crash_may_be_started_from() -> None:
    found = set()
    for seed in range(20):
        bench = Bench(seed=seed)
        bench.whole_snapshot(9)
        restored, _ = bench.disk.recover()
        found.add(restored.snapshot.index if restored.snapshot else 0)

    assert found == {0, 9}


def test_tidying_keeps_the_newest_snapshots_and_the_one_the_log_starts_from() -> None:
    bench = Bench()
    first = bench.whole_snapshot(1)
    bench.disk.submit(Transaction(append=entries(1, 1)))
    bench.disk.submit(Transaction(mark=first.meta))
    for index in (2, 3, 4, 5):
        bench.whole_snapshot(index)

    bench.disk.tidy()

    assert sorted(bench.disk.files) == ["s1", "s4", "s5"]


def test_a_clone_holds_what_is_durable_and_lives_apart() -> None:
    bench, twin = Bench(), Bench()
    bench.whole_snapshot(1)
    bench.disk.create(a_meta(2), b"unfinished")
    bench.disk.submit(Transaction(append=entries(1, 2)))
    bench.run()

    bench.disk.clone(twin.disk)
    bench.disk.submit(Transaction(append=entries(3, 3)))
    bench.run()

    assert twin.disk.durable.last_index == 2
    assert sorted(twin.disk.files) == ["s1"]
