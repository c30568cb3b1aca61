"""What a client does about what servers say; and that whatever happens on the way, it ends up where a pull would."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.client.desired import FORGOTTEN_MAX, DesiredCore, Step, What
from fedsched.model.alloc import Allocation, ClientStatus, DesiredStatus
from tests.builders import an_id

RUN, STOP = DesiredStatus.RUN, DesiredStatus.STOP


def an_alloc(
    number: int, index: int = 1, *, desired: DesiredStatus = RUN, status: ClientStatus = ClientStatus.PENDING
) -> Allocation:
    return Allocation(id=an_id(number), alloc_modify_index=index, desired_status=desired, client_status=status)


def what(steps: list[Step]) -> list[tuple[What, str]]:
    return [(step.what, step.alloc_id) for step in steps]


def test_an_unknown_allocation_starts_a_changed_one_is_updated_and_an_equal_one_is_left_alone() -> None:
    core = DesiredCore()

    assert what(core.take(1, [an_alloc(1)], is_whole=True)) == [(What.START, an_id(1))]
    assert core.take(2, [an_alloc(1)]) == []
    assert what(core.take(3, [an_alloc(1, 3)])) == [(What.UPDATE, an_id(1))]
    assert what(core.take(4, [an_alloc(1, 4, desired=STOP)])) == [(What.STOP, an_id(1))]
    assert core.take(5, [an_alloc(1, 5)]) == []  # what is ending does not come back


def test_what_servers_no_longer_name_is_removed() -> None:
    core = DesiredCore()
    core.take(1, [an_alloc(1), an_alloc(2)], is_whole=True)

    assert what(core.take(2, [an_alloc(2)], is_whole=True)) == [(What.REMOVE, an_id(1))]
    assert what(core.take(3, [], [an_id(2), an_id(9)])) == [(What.REMOVE, an_id(2))]


def test_a_whole_picture_in_parts_removes_nothing_before_its_last_part() -> None:
    core = DesiredCore()
    core.take(1, [an_alloc(1), an_alloc(2), an_alloc(3)], is_whole=True)
    assert core.has_whole

    assert core.take(5, [an_alloc(1)], is_whole=True, has_more=True) == []
    assert what(core.take(5, [an_alloc(3)])) == [(What.REMOVE, an_id(2))]


def test_there_is_contact_only_after_the_whole_picture() -> None:
    core = DesiredCore()
    core.take(1, [an_alloc(1)], is_whole=True, has_more=True)
    assert not core.has_whole
    core.take(1, [])
    assert core.has_whole


def test_an_allocation_that_is_stopped_before_it_came_here_is_dismissed_and_a_finished_one_ignored() -> None:
    core = DesiredCore()
    finished = an_alloc(2, status=ClientStatus.COMPLETE)

    steps = core.take(1, [an_alloc(1, desired=STOP), finished], is_whole=True)

    assert what(steps) == [(What.DISMISS, an_id(1))]


def test_what_an_earlier_run_had_is_updated_only_if_servers_changed_it_since() -> None:
    core = DesiredCore()
    core.restored(an_alloc(1, 5))
    core.restored(an_alloc(2, 5))
    core.restored(an_alloc(3, 5))

    steps = core.take(9, [an_alloc(1, 5), an_alloc(2, 8)], is_whole=True)

    assert what(steps) == [(What.UPDATE, an_id(2)), (What.REMOVE, an_id(3))]


def test_what_was_refused_or_collected_is_not_tried_again() -> None:
    core = DesiredCore()
    core.refused(an_id(1), 5)
    core.take(6, [an_alloc(1, 5), an_alloc(2)], is_whole=True)
    core.gone(an_id(2))

    assert core.take(9, [an_alloc(1, 8), an_alloc(2, 8)]) == []


def test_an_old_message_changes_nothing() -> None:
    core = DesiredCore()
    core.take(5, [an_alloc(1, 5)], is_whole=True)
    core.take(7, [], [an_id(1)])

    assert core.take(5, [an_alloc(1, 5)]) == []  # under way when it was forgotten
    assert core.take(3, [an_alloc(2, 2)], is_whole=True) == []  # an old picture


def test_what_is_remembered_as_forgotten_is_bounded() -> None:
    core = DesiredCore()
    core.take(1, [], [an_id(number) for number in range(FORGOTTEN_MAX + 100)])

    assert len(core._forgotten) == FORGOTTEN_MAX


# ---- the push protocol against the pull protocol ---------------------------------------------------------------------


@dataclass
class Servers:
    """The servers' truth, and the messages they would send about it."""

    index: int = 0
    allocs: dict[str, Allocation] = field(default_factory=dict)
    next_number: int = 0

    def change(self, chance: random.Random) -> tuple[int, list[Allocation], list[str]]:
        """One change of the state, and the message that tells of it."""
        self.index += 1
        live = sorted(self.allocs)
        match chance.randrange(4 if live else 1):
            case 0:
                self.next_number += 1
                alloc = an_alloc(self.next_number, self.index)
            case 1:
                alloc = an_alloc(int(chance.choice(live)[-12:], 16), self.index)
            case 2:
                alloc = an_alloc(int(chance.choice(live)[-12:], 16), self.index, desired=STOP)
            case _:
                gone = chance.choice(live)
                del self.allocs[gone]
                return self.index, [], [gone]
        before = self.allocs.get(alloc.id)
        if before is not None and before.is_server_terminal:
            alloc = an_alloc(int(alloc.id[-12:], 16), self.index, desired=STOP)  # nothing comes back from a stop
        self.allocs[alloc.id] = alloc
        return self.index, [alloc], []


@dataclass
class Host:
    """What a client would be running."""

    core: DesiredCore = field(default_factory=DesiredCore)
    state: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """By id: the version that runs, and whether it was told to stop."""

    def take(self, index: int, allocs: list[Allocation], removed: list[str], *, is_whole: bool = False) -> None:
        for step in self.core.take(index, allocs, removed, is_whole=is_whole):
            match step.what:
                case What.REMOVE:
                    self.state.pop(step.alloc_id, None)
                case _:
                    assert step.alloc is not None
                    is_stopped = step.what in (What.STOP, What.DISMISS)
                    self.state[step.alloc_id] = (step.alloc.alloc_modify_index, is_stopped)


def pulled(servers: Servers) -> dict[str, tuple[int, bool]]:
    """What one look at the servers' state would have told."""
    return {one.id: (one.alloc_modify_index, one.is_server_terminal) for one in servers.allocs.values()}


@given(seed=st.integers(0, 1 << 32), changes=st.integers(1, 60))
@settings(max_examples=200)
@pytest.mark.parametrize("weather", ["fair", "doubled", "reordered", "cut", "all"])
def test_whatever_the_weather_a_client_ends_up_where_a_pull_would(weather: str, seed: int, changes: int) -> None:
    chance = random.Random(seed)
    servers, host = Servers(), Host()
    under_way: list[tuple[int, list[Allocation], list[str], bool]] = []

    def connect() -> None:
        """A new stream: what was under way is lost, and everything is said anew."""
        under_way.clear()
        under_way.append((servers.index, sorted(servers.allocs.values(), key=lambda one: one.id), [], True))

    def deliver(at: int = 0, *, keep: bool = False) -> None:
        index, allocs, removed, is_whole = under_way[at] if keep else under_way.pop(at)
        host.take(index, allocs, removed, is_whole=is_whole)

    connect()
    deliver()
    for _ in range(changes):
        under_way.append((*servers.change(chance), False))
        roll = chance.random()
        if weather in ("doubled", "all") and roll < 0.3:
            deliver(chance.randrange(len(under_way)) if weather == "all" else 0, keep=True)
        elif weather in ("cut", "all") and roll < 0.5:
            connect()
        elif weather in ("reordered", "all") and roll < 0.8:
            deliver(chance.randrange(len(under_way)))
        elif roll < 0.9 and weather in ("fair", "doubled", "cut"):
            deliver()
    connect()  # streams do not stay broken
    while under_way:
        deliver(chance.randrange(len(under_way)))

    assert host.state == pulled(servers)
