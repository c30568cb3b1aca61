"""Which finished allocations go when room is short, in which order, and how many at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from fedsched.client.gc import GarbageCollector, use_of
from fedsched.client.gc_core import BATCH_MAX, GcCore, HostUse
from fedsched.telemetry.log import Hub
from fedsched.telemetry.metrics import Registry
from tests.client.client_kit import some_settings

FINE = HostUse(disk=10, inodes=10)


def a_core(**limits: Any) -> GcCore:
    return GcCore(some_settings(Path("/nowhere"), **limits))


def test_nothing_goes_while_there_is_room() -> None:
    assert a_core().decide(FINE, 50, {"a": 1}).remove == ()
    assert a_core().decide(HostUse(disk=80, inodes=70), 50, {"a": 1}).why == ""


@pytest.mark.parametrize(
    ("use", "reason"),
    [(HostUse(disk=80.1), "80 % of the disk is in use"), (HostUse(inodes=71), "71 % of the inodes are in use")],
)
def test_a_full_disk_takes_the_one_that_ended_first_and_measures_again(use: HostUse, reason: str) -> None:
    verdict = a_core().decide(use, 3, {"b": 20, "a": 30, "c": 10})

    assert verdict.remove == ("c",)
    assert reason in verdict.why


def test_too_many_allocations_go_down_to_the_limit_the_oldest_first() -> None:
    core = a_core(gc_max_allocs=5, gc_parallel_destroys=2)
    finished = {"a": 3, "b": 2, "c": 1, "d": 4}

    assert core.decide(FINE, 8, finished).remove == ("c", "b", "a")
    assert core.decide(FINE, 8, finished, ["c"]).remove == ("b", "a")
    assert core.decide(FINE, 8, finished, ["c", "b", "a"]).remove == ()
    assert core.decide(FINE, 6, finished).remove == ("c",)


def test_one_look_chooses_a_bounded_number() -> None:
    core = a_core(gc_max_allocs=5)
    finished = {f"a{number:04}": number for number in range(1000)}

    first = core.decide(FINE, 1000, finished).remove

    assert first == tuple(f"a{number:04}" for number in range(BATCH_MAX))
    assert core.decide(FINE, 1000, finished, first).remove == ()


def test_what_runs_is_never_touched_and_somebody_hears_of_it_only_when_it_is_bad() -> None:
    core = a_core(gc_max_allocs=5)

    few = core.decide(FINE, 6, {})
    assert (few.remove, few.is_stuck, few.is_warning) == ((), True, False)
    many = core.decide(FINE, 11, {})
    assert (many.is_stuck, many.is_warning) == (True, True)
    full = core.decide(HostUse(disk=95), 1, {})
    assert (full.is_stuck, full.is_warning) == (True, True)
    waiting = core.decide(HostUse(disk=95), 2, {"a": 1}, ["a"])
    assert (waiting.is_stuck, waiting.remove) == (False, ())


class Room:
    """A host with allocations in it."""

    def __init__(self, finished: int, live: int = 0, **limits: Any) -> None:
        self.finished = {f"f{number:02}": number for number in range(finished)}
        self.live = live
        self.use = FINE
        self.gone: list[str] = []
        self.at_once = self.most_at_once = 0
        self.fails: set[str] = set()
        self.collector = GarbageCollector(
            some_settings(Path("/nowhere"), **limits),
            count=lambda: len(self.finished) + self.live,
            finished=lambda: self.finished,
            destroy=self.destroy,
            log=Hub().logger("test"),
            metrics=Registry(),
            measure=self.measure,
        )

    async def measure(self, path: Path) -> HostUse:
        return self.use

    async def destroy(self, alloc_id: str) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await trio.sleep(1)
        self.at_once -= 1
        if alloc_id in self.fails:
            raise OSError("busy")
        del self.finished[alloc_id]
        self.gone.append(alloc_id)


def in_room(room: Room, story: Callable[[Room], Awaitable[None]]) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(room.collector.run)
            await story(room)
            nursery.cancel_scope.cancel("done")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_host_with_too_many_gets_rid_of_the_oldest_two_at_a_time() -> None:
    async def story(room: Room) -> None:
        await trio.sleep(30)
        assert sorted(room.gone) == ["f00", "f01", "f02", "f03"]
        assert room.most_at_once == 2

    in_room(Room(finished=8, live=1, gc_max_allocs=5), story)


def test_new_work_makes_it_look_at_once() -> None:
    async def story(room: Room) -> None:
        await trio.sleep(5)
        assert room.gone == []
        room.live += 2
        room.collector.poke()
        await trio.sleep(5)
        assert sorted(room.gone) == ["f00", "f01"]

    in_room(Room(finished=5, gc_max_allocs=5, gc_interval_s=3600.0), story)


def test_one_that_cannot_be_removed_is_tried_again_at_the_next_look_and_stops_nobody() -> None:
    async def story(room: Room) -> None:
        room.fails = {"f00"}
        await trio.sleep(10)
        assert "f00" not in room.gone
        assert room.gone
        room.fails = set()
        await trio.sleep(120)
        assert "f00" in room.gone

    in_room(Room(finished=7, gc_max_allocs=5), story)


def test_a_host_that_is_busy_tidies_up_later_but_not_much_later() -> None:
    async def story(room: Room) -> None:
        await trio.sleep(1)
        room.live += 3
        for _ in range(80):  # eight seconds in which something comes or ends all the time
            room.collector.poke()
            await trio.sleep(0.1)
        assert room.gone == []
        for _ in range(60):
            room.collector.poke()
            await trio.sleep(0.1)
        assert sorted(room.gone) == ["f00", "f01", "f02"]

    in_room(Room(finished=5, gc_max_allocs=5, gc_interval_s=3600.0), story)


def test_a_host_that_is_quiet_again_tidies_up_at_once() -> None:
    async def story(room: Room) -> None:
        await trio.sleep(1)
        room.live += 1
        room.collector.poke()
        await trio.sleep(0.5)
        assert room.at_once == 0
        await trio.sleep(1.0)
        assert room.at_once == 1

    in_room(Room(finished=5, gc_max_allocs=5, gc_interval_s=3600.0), story)


def test_a_full_disk_waits_for_nobody() -> None:
    assert a_core().decide(HostUse(disk=81), 3, {"a": 1}, may_wait=True).remove == ("a",)
    assert a_core(gc_max_allocs=1).decide(FINE, 3, {"a": 1}, may_wait=True).remove == ()


def test_people_can_ask_for_one_or_for_all() -> None:
    async def story(room: Room) -> None:
        assert await room.collector.collect("f03") == 1
        assert room.gone == ["f03"]
        assert await room.collector.collect("unknown") == 0
        assert await room.collector.collect() == 3
        assert room.finished == {}

    in_room(Room(finished=4), story)


def test_two_who_want_the_same_one_gone_wait_for_the_same_removal() -> None:
    async def story(room: Room) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(room.collector.remove, "f00")
            nursery.start_soon(room.collector.remove, "f00")
        assert room.gone == ["f00"]

    in_room(Room(finished=1), story)


def test_a_real_file_system_says_how_full_it_is(tmp_path: Path) -> None:
    use = use_of(tmp_path)

    assert 0 <= use.disk <= 100
    assert 0 <= use.inodes <= 100
