"""Collections of garbage are short: what has survived two of them is set aside, and looked at again in hours."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from fedsched.agent import collecting
from fedsched.agent.collecting import NEVER, TURN_S, TURNS, WHOLE_S, YOUNG, collect_wholly, pause_briefly
from fedsched.telemetry.log import Hub


class Thing:
    """In a circle with itself, so that counting references does not free it."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def quick_agents() -> Iterator[None]:
    """The collector is everybody's: left as it was found."""
    thresholds, callbacks, turn_s = gc.get_threshold(), list(gc.callbacks), sys.getswitchinterval()
    yield
    gc.callbacks[:] = callbacks
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(turn_s)
    gc.unfreeze()
    gc.collect()


def things() -> int:
    return sum(isinstance(one, Thing) for one in gc.get_objects())


def test_collections_look_at_the_young_only_and_asking_twice_changes_nothing() -> None:
    pause_briefly()
    pause_briefly()
    assert gc.get_threshold() == (YOUNG, TURNS, NEVER)
    assert sys.getswitchinterval() == pytest.approx(TURN_S)
    assert gc.callbacks.count(collecting._set_aside) == 1


def test_what_survives_is_set_aside_and_young_circles_are_not() -> None:
    pause_briefly()
    kept = Thing()
    gc.collect(0)
    assert things() == 1
    gc.collect(1)
    assert things() == 0  # no longer among those that are looked at
    assert gc.get_freeze_count() > 0
    Thing()
    gc.collect(0)
    assert things() == 0
    assert kept.me is kept


def test_everything_is_looked_at_once_in_a_long_while() -> None:
    hub = Hub()
    events = hub.subscribe("info", capacity=10)
    pause_briefly()
    old = Thing()
    gc.collect(1)
    assert things() == 0

    async def story() -> None:
        nonlocal old
        with trio.move_on_after(WHOLE_S - 1):
            await collect_wholly(hub.logger("test"))
        assert events.take() == []
        del old
        with trio.move_on_after(WHOLE_S + 1):
            await collect_wholly(hub.logger("test"))

    trio.run(story, clock=MockClock(autojump_threshold=0))
    (event,) = events.take()
    assert event.name == "collected_everything"
    assert event.fields["garbage"] >= 1
    gc.unfreeze()
    assert things() == 0
