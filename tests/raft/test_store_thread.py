"""Group commit: in order, nothing after a failure, and never more in memory than promised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import trio

from fedsched.raft.entry import Entry
from fedsched.raft.messages import HardState, SnapshotMeta
from fedsched.raft.storage import EntryHeader, LogStore, Store, StoreFailed, StoreWrite
from fedsched.raft.store_thread import SYNC_BUCKETS_S, StoreThread

from .storage_kit import a_mark, a_write, an_entry, entries

PATIENCE_S = 30


class SlowStore:
    """A store whose every sync waits to be let through, so that a test decides what gathers meanwhile."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.tidied: list[bool] = []
        self.fails_with: BaseException | None = None
        self._gate = threading.Semaphore(0)
        self._entered = threading.Semaphore(0)

    def write(self, batch: Sequence[StoreWrite]) -> None:
        self._entered.release()
        assert self._gate.acquire(timeout=PATIENCE_S)
        if self.fails_with is not None:
            raise self.fails_with
        self.groups.append([write.number for write in batch])

    def tidy(self, *, is_idle: bool) -> None:
        self.tidied.append(is_idle)

    def truncate_prefix(self, index: int, snapshot: SnapshotMeta | None = None) -> bool:
        return False

    def read(self, first: int, max_bytes: int) -> tuple[Entry, ...]:
        return ()

    def headers(self, first: int, last: int) -> list[EntryHeader]:
        return []

    def wait_until_syncing(self) -> None:
        assert self._entered.acquire(timeout=PATIENCE_S)

    def let_through(self, groups: int = 1) -> None:
        self._gate.release(groups)


class Bench:
    """A store thread and everything it reported, in order."""

    def __init__(self, store: Store, group_bytes_max: int = 1000, queue_bytes_max: int = 100_000) -> None:
        self.reports: list[object] = []
        self._changed = threading.Condition()
        self.thread = StoreThread(
            store,
            self._report,
            self._report,
            post=self._post,
            group_bytes_max=group_bytes_max,
            queue_bytes_max=queue_bytes_max,
        )
        self.thread.start()

    def _post(self, call: Callable[[], None]) -> None:
        call()

    def _report(self, what: object) -> None:
        with self._changed:
            self.reports.append(what)
            self._changed.notify_all()

    def wait_for_reports(self, count: int) -> list[object]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.reports) >= count, PATIENCE_S)
            return list(self.reports)


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def bench(store: SlowStore) -> Iterator[Bench]:
    bench = Bench(store)
    yield bench
    store.let_through(1000)
    bench.thread.close()


def write(number: int, size: int = 10) -> StoreWrite:
    return a_write(an_entry(number, payload=b"x" * size), number=number)


def test_a_lone_write_is_synced_at_once(store: SlowStore, bench: Bench) -> None:
    bench.thread.submit(write(1))
    store.let_through()

    assert bench.wait_for_reports(1) == [1]
    assert store.groups == [[1]]


def test_what_gathers_during_a_sync_becomes_the_next_group(store: SlowStore, bench: Bench) -> None:
    bench.thread.submit(write(1))
    store.wait_until_syncing()
    for number in (2, 3, 4):
        bench.thread.submit(write(number))
    store.let_through(2)

    assert bench.wait_for_reports(2) == [1, 4]
    assert store.groups == [[1], [2, 3, 4]]


def test_a_group_stays_under_its_limit_but_takes_one_large_write(store: SlowStore, bench: Bench) -> None:
    bench.thread.submit(write(1))
    store.wait_until_syncing()
    for number, size in ((2, 400), (3, 400), (4, 400), (5, 5000), (6, 10)):
        bench.thread.submit(write(number, size))
    store.let_through(10)

    assert bench.wait_for_reports(5) == [1, 3, 4, 5, 6]
    assert store.groups == [[1], [2, 3], [4], [5], [6]]


def test_completions_come_in_the_order_of_submission_from_many_groups(store: SlowStore, bench: Bench) -> None:
    store.let_through(10_000)
    for number in range(1, 2001):
        bench.thread.submit(write(number))
    while bench.reports[-1:] != [2000]:
        bench.wait_for_reports(len(bench.reports) + 1)

    assert bench.reports == sorted(bench.reports)  # type: ignore[type-var]
    assert [number for group in store.groups for number in group] == list(range(1, 2001))


def test_a_failure_is_reported_once_and_nothing_completes_after_it(store: SlowStore, bench: Bench) -> None:
    bench.thread.submit(write(1))
    store.wait_until_syncing()
    bench.thread.submit(write(2))
    bench.thread.submit(write(3))
    store.fails_with = error = StoreFailed("the disk is gone")
    store.let_through(10)

    assert bench.wait_for_reports(1) == [error]
    assert bench.thread.close()
    assert bench.reports == [error]
    assert store.groups == []
    with pytest.raises(StoreFailed, match="the disk is gone"):
        bench.thread.submit(write(4))
    with pytest.raises(StoreFailed, match="the disk is gone"):
        bench.thread.run_exclusive(lambda store: None)


def test_an_error_in_a_job_is_a_failure_of_the_store(store: SlowStore, bench: Bench) -> None:
    bench.thread.run_exclusive(lambda store: 1 / 0)

    (report,) = bench.wait_for_reports(1)
    assert isinstance(report, ZeroDivisionError)
    with pytest.raises(StoreFailed, match="closed: it takes no more writes"):
        bench.thread.submit(write(1))


def test_a_job_runs_after_what_was_submitted_before_it_and_before_what_came_later(
    store: SlowStore, bench: Bench
) -> None:
    seen: list[list[list[int]]] = []
    bench.thread.submit(write(1))
    store.wait_until_syncing()
    bench.thread.submit(write(2))
    bench.thread.run_exclusive(lambda _: seen.append([*store.groups]))
    bench.thread.submit(write(3))
    store.let_through(10)

    assert bench.wait_for_reports(3) == [1, 2, 3]
    assert seen == [[[1], [2]]]


def test_shortening_goes_slice_by_slice_with_groups_between(store: SlowStore, bench: Bench) -> None:
    order: list[str] = []

    def one_slice(index: int, snapshot: SnapshotMeta | None = None) -> bool:
        order.append("slice")
        return len(order) < 4

    store.truncate_prefix = one_slice  # type: ignore[method-assign]
    bench.thread.submit(write(1))
    store.wait_until_syncing()
    bench.thread.truncate_prefix(7, a_mark(7))
    bench.thread.submit(write(2))
    bench.thread.run_exclusive(lambda _: order.append("other"))
    store.let_through(10)
    bench.wait_for_reports(2)
    assert bench.thread.close()

    assert order[:3] == ["slice", "other", "slice"]


def test_what_does_not_fit_in_the_queue_is_a_failure_not_a_leak(store: SlowStore) -> None:
    bench = Bench(store, queue_bytes_max=1000)
    bench.thread.submit(write(1))
    store.wait_until_syncing()
    bench.thread.submit(write(2, 800))

    with pytest.raises(StoreFailed, match="wait for the disk"):
        bench.thread.submit(write(3, 800))

    store.let_through(10)
    assert bench.thread.close()
    assert bench.reports == [1, 2]


def test_closing_finishes_what_was_submitted(store: SlowStore, bench: Bench) -> None:
    store.let_through(10)
    for number in (1, 2, 3):
        bench.thread.submit(write(number))

    assert bench.thread.close()
    assert bench.reports[-1] == 3


def test_closing_does_not_wait_for_ever(store: SlowStore, bench: Bench) -> None:
    bench.thread.submit(write(1))
    store.wait_until_syncing()

    assert bench.thread.close(wait_s=0.01) is False


def test_a_thread_that_was_never_started_can_be_closed(store: SlowStore) -> None:
    thread = StoreThread(store, lambda _: None, lambda _: None, post=lambda call: call())

    assert thread.close()


def test_an_idle_moment_is_used_to_tidy_up_once(store: SlowStore, bench: Bench) -> None:
    tidied = threading.Event()
    tidy = store.tidy

    def watch(*, is_idle: bool) -> None:
        tidy(is_idle=is_idle)
        if is_idle:
            tidied.set()

    store.tidy = watch  # type: ignore[method-assign]
    store.let_through()
    bench.thread.submit(write(1))

    assert tidied.wait(PATIENCE_S)
    assert bench.thread.close()
    assert store.tidied == [False, True]


def test_statistics_tell_how_long_syncs_took_and_what_waits(store: SlowStore) -> None:
    now = 0.0
    reports: list[int] = []
    thread = StoreThread(store, reports.append, lambda _: None, post=lambda call: call(), clock=lambda: now)
    thread.start()
    thread.submit(write(1))
    store.wait_until_syncing()
    thread.submit(write(2, 100))
    now = 0.003

    waiting = thread.statistics()
    store.let_through(2)
    assert thread.close()
    after = thread.statistics()

    assert (waiting.waiting, waiting.waiting_bytes, waiting.busy_s) == (1, 125, 0.003)
    assert (after.groups, after.writes, after.waiting, after.busy_s) == (2, 2, 0, 0.0)
    assert after.sync_max_s == after.sync_total_s == 0.003
    assert sum(after.sync_counts) == 2
    assert after.sync_counts[SYNC_BUCKETS_S.index(0.005)] == 1


def test_an_event_loop_that_has_ended_is_no_failure(store: SlowStore) -> None:
    def gone(_: Callable[[], None]) -> None:
        raise trio.RunFinishedError

    thread = StoreThread(store, lambda _: None, lambda _: None, post=gone)
    thread.start()
    store.let_through(2)
    thread.submit(write(1))
    thread.submit(write(2))

    assert thread.close()
    assert [number for group in store.groups for number in group] == [1, 2]


def test_completions_arrive_on_the_event_loop_of_trio(tmp_path: Path) -> None:
    async def main() -> list[tuple[int, bool]]:
        done: list[tuple[int, bool]] = []
        arrived = trio.Event()
        loop_thread = threading.get_ident()

        def on_done(number: int) -> None:
            done.append((number, threading.get_ident() == loop_thread))
            if number == 50:
                arrived.set()

        store = LogStore(tmp_path / "log.db")
        store.recover()
        post = trio.lowlevel.current_trio_token().run_sync_soon
        thread = StoreThread(store, on_done, lambda error: pytest.fail(str(error)), post=post)
        thread.start()
        for number in range(1, 51):
            thread.submit(a_write(an_entry(number), number=number, hard_state=HardState(number)))
        with trio.fail_after(PATIENCE_S):
            await arrived.wait()
        thread.truncate_prefix(40, a_mark(45))
        assert await trio.to_thread.run_sync(thread.close)
        store.close()
        return done

    done = trio.run(main)

    assert all(on_loop for _, on_loop in done)
    assert [number for number, _ in done] == sorted(number for number, _ in done)
    store = LogStore(tmp_path / "log.db")
    found = store.recover()
    store.close()
    assert (found.hard_state, found.entries, found.snapshot) == (HardState(50), entries(41, 50), a_mark(45))
