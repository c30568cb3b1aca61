"""Applying, and what may replace the state meanwhile: an installed snapshot, a restore."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from fedsched.raft.applier import AT_ONCE_BYTES, AT_ONCE_ENTRIES, Applier, ApplyFailed
from fedsched.raft.core import RaftCore
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.messages import HardState, Restored
from fedsched.raft.settings import CoreSettings
from tests.raft.mini import ListMachine
from tests.raft.region import a_log

RESTORE = Entry(3, 1, EntryKind.RESTORE, b"an image")


class Bench:
    """An applier over a log of two commands and a restore, all committed."""

    def __init__(
        self,
        restore: Callable[[Entry], Awaitable[None]],
        machine: ListMachine | None = None,
        entries: tuple[Entry, ...] = (*a_log([1, 1]), RESTORE),
    ) -> None:
        core = RaftCore("1", Restored(HardState(1, None, len(entries)), entries), CoreSettings(), lambda n: 0)
        core.take_effects()
        self.machine = machine or ListMachine()
        self.told: list[int] = []
        self.applier = Applier(
            core, self.machine, on_applied=self._on_applied, restore=restore, digest_every=100, clock=trio.current_time
        )

    def _on_applied(self, first: int, results: Sequence[tuple[int, object]]) -> None:
        self.told.append(first + len(results) - 1)


def tell(story: Callable[[Bench], Awaitable[None]], restore: Callable[[Entry], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench(restore)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bench.applier.run)
                bench.applier.commit_to(3)
                await story(bench)
                nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def nothing(*_: object) -> None:
    await trio.lowlevel.checkpoint()


async def for_ever(*_: object) -> None:
    await trio.sleep_forever()


def test_entries_before_a_restore_are_applied_first() -> None:
    async def story(bench: Bench) -> None:
        await wait_all_tasks_blocked()
        assert (bench.told, bench.applier.applied) == ([2, 3], 3)

    tell(story, nothing)


def test_a_restore_whose_image_nobody_has_gives_way_to_a_snapshot() -> None:
    async def story(bench: Bench) -> None:
        await wait_all_tasks_blocked()
        assert bench.applier.applied == 2

        bench.applier.hold()
        await bench.applier.replace_state(3, nothing)

        assert (bench.told, bench.applier.applied) == ([2, 3], 3)

    tell(story, for_ever)


def test_whoever_waits_for_the_state_to_settle_waits_for_every_new_one() -> None:
    async def story(bench: Bench) -> None:
        settled: list[int] = []

        async def wait() -> None:
            await bench.applier.wait_released()
            settled.append(bench.applier.applied)

        bench.applier.hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            bench.applier.hold()
            await bench.applier.replace_state(2, nothing)
            await wait_all_tasks_blocked()
            assert settled == []
            await bench.applier.replace_state(3, nothing)
        assert settled == [3]
        await bench.applier.wait_released()

    tell(story, for_ever)


def test_an_entry_that_cannot_be_applied_ends_the_applier_and_not_whoever_told_it_of_the_commit() -> None:
    class Stubborn(ListMachine):
        def apply(self, entry: Entry) -> int:
            raise ValueError("no such table")

    async def main() -> None:
        bench = Bench(nothing, Stubborn())
        bench.applier.commit_to(1)
        bench.applier.commit_to(2)

        with pytest.raises(ApplyFailed, match=r"entry 1 \(term 1\).*no such table"):
            await bench.applier.run()
        assert (bench.told, bench.applier.applied) == ([], 0)

    trio.run(main)


@pytest.mark.parametrize(("bytes_each", "at_once"), [(100, 2), (AT_ONCE_BYTES, 0)])
def test_small_entries_are_applied_at_once_and_large_ones_get_a_turn_of_their_own(
    bytes_each: int, at_once: int
) -> None:
    async def main() -> None:
        entries = tuple(Entry(index, 1, EntryKind.COMMAND, bytes(bytes_each)) for index in (1, 2))
        bench = Bench(nothing, entries=entries)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.applier.run)
            bench.applier.commit_to(2)
            assert bench.applier.applied == at_once
            await wait_all_tasks_blocked()
            assert bench.applier.applied == 2
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_long_backlog_is_not_even_looked_at_before_its_turn() -> None:
    async def main() -> None:
        count = AT_ONCE_ENTRIES + 1
        bench = Bench(nothing, entries=tuple(a_log([1] * count)))
        bench.applier.commit_to(count)
        assert bench.applier.applied == 0

    trio.run(main)
