from __future__ import annotations

from fedsched.sim.clock import Clock
from fedsched.sim.options import TICK_US
from fedsched.sim.streams import stream
from fedsched.sim.world import World
from tests.sim.fakes import FakeOwner


def drain(world: World, until_us: int = 10_000_000) -> None:
    while world.step(until_us):
        pass


def test_equal_names_give_equal_draws_and_other_names_others() -> None:
    assert stream(1, "disk").random() == stream(1, "disk").random()
    assert stream(1, "disk").random() != stream(1, "net").random()
    assert stream(1, "disk").random() != stream(2, "disk").random()


def test_events_happen_in_time_order() -> None:
    world, seen = World(1), []
    for delay in (30, 10, 20):
        world.after(delay, None, "note", seen.append, delay)

    drain(world)

    assert seen == [10, 20, 30]


def test_the_order_within_one_moment_is_drawn_and_repeats_with_the_seed() -> None:
    def order(seed: int) -> list[int]:
        world, seen = World(seed), []
        for number in range(12):
            world.after(5, None, "note", seen.append, number)
        drain(world)
        return seen

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(5)}) == 5


def test_the_trace_hash_covers_every_detail() -> None:
    def trace(detail: str) -> str:
        world = World(1)
        world.after(5, None, "note", lambda: None, detail=detail)
        drain(world)
        return world.trace.hash()

    assert trace("x") == trace("x")
    assert trace("x") != trace("y")


def test_an_event_dies_with_the_process_it_was_meant_for() -> None:
    world, owner = World(1), FakeOwner()
    world.after(5, owner, "tick", owner.tick)
    world.after(5, owner, "tick", owner.tick, outlives=True)

    owner.incarnation += 1
    drain(world)

    assert owner.ticks == 1


def test_an_event_that_was_called_off_does_not_happen() -> None:
    world, owner = World(1), FakeOwner()
    event = world.after(5, owner, "tick", owner.tick)

    event.is_off = True
    drain(world)

    assert owner.ticks == 0
    assert world.due() == []


def test_nothing_beyond_the_asked_time_happens_but_time_passes() -> None:
    world, owner = World(1), FakeOwner()
    world.after(500, owner, "tick", owner.tick)

    assert not world.step(400)
    assert world.now == 400
    assert world.step(500)
    assert owner.ticks == 1


def test_only_what_could_happen_now_is_due() -> None:
    world, gone, paused, well = World(1), FakeOwner("a"), FakeOwner("b"), FakeOwner("c")
    for owner in (gone, paused, well):
        world.after(5, owner, "tick", owner.tick)

    gone.incarnation += 1
    paused.is_paused = True

    assert [event.owner for event in world.due()] == [well]


def test_a_clock_ticks_at_its_rate() -> None:
    world, owner = World(1), FakeOwner()
    clock = Clock(world, owner)
    clock.rate = 2.0
    clock.start(phase=0.0)

    while world.step(10 * TICK_US):
        pass

    assert owner.ticks == 20


def test_a_paused_process_gets_one_tick_and_then_what_waited_in_its_old_order() -> None:
    world, owner, seen = World(1), FakeOwner(), []
    clock = Clock(world, owner)
    clock.start(phase=0.0)
    clock.pause(for_us=20 * TICK_US)
    clock.pause(for_us=1)  # it is paused already
    for number in range(3):
        world.after(TICK_US * (number + 2), owner, "message", seen.append, number)

    while world.step(19 * TICK_US):
        pass
    assert (owner.ticks, seen) == (0, [])
    while world.step(20 * TICK_US + 10):
        pass

    assert (owner.ticks, seen) == (1, [0, 1, 2])
    clock.resume()  # nothing to wake
    while world.step(22 * TICK_US + 10):
        pass
    assert owner.ticks == 3


def test_the_last_events_of_some_servers_can_be_read() -> None:
    lines: list[str] = []
    world, one, other = World(1, echo=lines.append), FakeOwner("one"), FakeOwner("other")
    world.after(1, one, "tick", one.tick)
    world.after(2, other, "tick", other.tick, detail="hello")
    drain(world)
    world.trace.remark(world.now, "other", "is well")

    assert len(lines) == 3
    assert [line.split()[3] for line in world.trace.last(frozenset({"other"}))] == ["tick", "*"]
    assert len(world.trace.last(frozenset())) == 3
