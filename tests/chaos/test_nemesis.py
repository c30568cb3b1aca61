"""The nemesis against a region made of notes: what it does, in which order, and what it complains about."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fedsched.sim.linear import PUT, Operation
from tests.chaos import nemesis as module
from tests.chaos import plan as faults
from tests.chaos.links import Way
from tests.chaos.nemesis import Monitor, Nemesis
from tests.chaos.plan import ALL, FOLLOWER, LEADER, Plan, Step
from tests.chaos.workload import Record
from tests.e2e.region import Region, Server
from tests.e2e.view import View, agreed_leader, digests_differ

NAMES = ["s1", "s2", "s3"]


class Notes(list[Any]):
    """Links that only write down what they are told."""

    def cut(self, ways: Iterable[Way], kind: str = "drop") -> None:
        self.append(("cut", kind, sorted(ways)))

    def slow(self, ways: Iterable[Way], delay_s: float) -> None:
        self.append(("slow", delay_s, sorted(ways)))

    def break_after(self, ways: Iterable[Way], n_bytes: int) -> None:
        self.append(("break", n_bytes, sorted(ways)))

    def heal(self) -> None:
        self.append("heal")

    def route(self, src: Server, dst: Server) -> str:
        return ""

    def statistics(self) -> dict[str, int]:
        return {}

    def logs(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


class FakeServer(Server):
    """A process that is only spoken of."""

    notes: Notes
    up: bool = True

    @property
    def is_alive(self) -> bool:
        return self.up

    def kill(self) -> None:
        self.notes.append(("kill", self.name))
        self.up = False

    def start(self) -> None:
        self.notes.append(("start", self.name))
        self.up = True

    def pause(self) -> None:
        self.notes.append(("pause", self.name))
        self.is_paused = True

    def resume(self) -> None:
        self.notes.append(("resume", self.name))
        self.is_paused = False

    def wait_listening(self, within_s: float = 0) -> None:
        assert self.up


def a_view(name: str, *, leader: str = "s1", term: int = 3, applied: int = 9, digest: str = "d") -> View:
    role = "leader" if name == leader else "follower"
    return View(
        name=name,
        role=role,
        leader=leader,
        term=term,
        applied=applied,
        last=applied,
        state_index=applied,
        digest=digest,
    )


class Clock:
    """Time that passes only when somebody sleeps."""

    now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def a_nemesis(clock: Clock, *steps: Step, writes_at: float | None = 100.2) -> tuple[Nemesis, Notes]:
    notes = Notes()
    region = Region(Path("nowhere"))
    for name in NAMES:
        server = FakeServer(name, Path(name), 1, 2, 3)
        server.notes = notes
        region.servers[name] = server
    monitor = Monitor(region, lambda server: a_view(server.name))
    monitor.latest = {name: a_view(name) for name in NAMES}
    record = Record()
    if writes_at is not None:
        record.add(Operation(client="c", op=PUT, key="k", argument="v", result=1, call=writes_at, ret=writes_at + 0.3))
    plan = Plan(seed=1, minutes=1, steps=list(steps))
    return Nemesis(region, notes, monitor, record, plan, lambda _: None, clock.sleep), notes


def a_step(kind: str, target: str = LEADER, **more: Any) -> Step:
    return Step(kind=kind, target=target, hold_s=1.0, **more)


def test_a_killed_leader_is_started_again_when_the_step_ends(clock: Clock) -> None:
    nemesis, notes = a_nemesis(clock, a_step(faults.KILL))
    nemesis.run(give_up_at=1000)

    assert notes[:3] == [("kill", "s1"), "heal", ("start", "s1")]
    [outcome] = nemesis.outcomes
    assert (outcome.victims, outcome.resumed_s, outcome.has_quorum) == (["s1"], 0.5, True)
    assert nemesis.problems == []


def test_a_paused_leader_is_resumed(clock: Clock) -> None:
    nemesis, notes = a_nemesis(clock, a_step(faults.PAUSE))
    nemesis.run(give_up_at=1000)

    assert notes[:3] == [("pause", "s1"), "heal", ("resume", "s1")]


def test_killing_all_counts_the_time_from_when_they_are_back(clock: Clock) -> None:
    nemesis, notes = a_nemesis(clock, a_step(faults.KILL, ALL), writes_at=101.5)
    nemesis.run(give_up_at=1000)

    assert [note for note in notes if note[0] == "kill"] == [("kill", name) for name in NAMES]
    [outcome] = nemesis.outcomes
    assert (outcome.resumed_s, outcome.has_quorum) == (0.8, False)


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        (faults.ISOLATE, LEADER, ("cut", "drop", [("s1", "s2"), ("s1", "s3"), ("s2", "s1"), ("s3", "s1")])),
        (faults.DEAF, LEADER, ("cut", "drop", [("s2", "s1"), ("s3", "s1")])),
        (faults.MUTE, LEADER, ("cut", "drop", [("s1", "s2"), ("s1", "s3")])),
        (faults.BRIDGE, FOLLOWER, ("cut", "drop", [("s1", "s3"), ("s3", "s1")])),
        (faults.STALL, LEADER, ("cut", "stall", [("s1", "s2"), ("s1", "s3"), ("s2", "s1"), ("s3", "s1")])),
        (faults.SLOW, FOLLOWER, ("slow", 0.2, [("s1", "s3"), ("s2", "s3"), ("s3", "s1"), ("s3", "s2")])),
        (faults.BREAK, FOLLOWER, ("break", 0, [("s1", "s3"), ("s2", "s3"), ("s3", "s1"), ("s3", "s2")])),
    ],
)
def test_each_cut_touches_exactly_its_ways_and_is_healed(clock: Clock, kind: str, target: str, expected: Any) -> None:
    nemesis, notes = a_nemesis(clock, a_step(kind, target, pick=1, number=0.2))
    nemesis.run(give_up_at=1000)

    assert notes[0] == expected
    assert notes[-1] == "heal"


def test_flapping_cuts_and_heals_as_often_as_planned_in_different_ways(clock: Clock) -> None:
    nemesis, notes = a_nemesis(clock, a_step(faults.FLAP, number=3))
    nemesis.run(give_up_at=1000)

    assert [note[1] for note in notes if note[0] == "cut"] == ["drop", "stall", "refuse"]
    assert notes[1] == notes[3] == notes[5] == "heal"


def test_a_region_in_which_no_write_goes_through_is_told(clock: Clock) -> None:
    nemesis, _ = a_nemesis(clock, a_step(faults.KILL), writes_at=None)
    nemesis.run(give_up_at=1000)

    assert nemesis.problems == ["no write went through within 20 s of the end of: kill leader for 1 s"]
    assert nemesis.outcomes[0].resumed_s is None


def test_a_region_without_an_agreed_leader_is_told_and_the_step_left_out(clock: Clock) -> None:
    nemesis, notes = a_nemesis(clock, a_step(faults.KILL))
    nemesis.monitor.latest = {name: a_view(name, leader="s9") for name in NAMES}
    nemesis.run(give_up_at=1000)

    assert "did not agree on a leader" in nemesis.problems[0]
    assert ("kill", "s1") not in notes


def test_elections_count_towards_the_fault_before_them(clock: Clock) -> None:
    nemesis, _ = a_nemesis(clock, a_step(faults.KILL), a_step(faults.PAUSE))
    nemesis.monitor.elected = [(99.0, 1), (100.5, 2), (103.6, 3), (104.0, 4)]
    nemesis.run(give_up_at=1000)

    assert [outcome.leader_changes for outcome in nemesis.outcomes] == [3, 2]


def test_a_server_that_ends_by_itself_is_told_and_started_again(clock: Clock) -> None:
    nemesis, notes = a_nemesis(clock, a_step(faults.ISOLATE))
    nemesis.region.servers["s2"].up = False  # type: ignore[attr-defined]
    nemesis.run(give_up_at=1000)

    assert nemesis.problems[0].startswith("s2 ended by itself")
    assert ("start", "s2") in notes


def test_no_step_begins_after_the_time_is_up(clock: Clock) -> None:
    nemesis, notes = a_nemesis(clock, a_step(faults.KILL), a_step(faults.KILL))
    nemesis.run(give_up_at=101)

    assert notes.count(("kill", "s1")) == 1


def test_an_unknown_fault_is_refused_rather_than_counted(clock: Clock) -> None:
    nemesis, _ = a_nemesis(clock, a_step("earthquake"))

    with pytest.raises(ValueError, match="earthquake"):
        nemesis.run(give_up_at=1000)


def test_the_monitor_counts_elections_and_tells_two_leaders_of_one_term_once() -> None:
    monitor = Monitor(Region(Path("nowhere")), lambda _: None)
    for _ in range(2):
        monitor.take({"s1": a_view("s1"), "s2": a_view("s2", leader="s2")}, now=5.0)
    monitor.take({"s2": a_view("s2", leader="s2", term=4)}, now=8.0)

    assert monitor.problems == ["two leaders in term 3: s1 and s2"]
    assert monitor.changes_since(4.0) == 2
    assert monitor.changes_since(6.0) == 1


def test_the_monitor_tells_states_that_differ_at_one_index() -> None:
    monitor = Monitor(Region(Path("nowhere")), lambda _: None)
    monitor.take({"s1": a_view("s1"), "s2": a_view("s2", digest="other")}, now=5.0)

    assert monitor.problems == ["state differs at index 9: s1 have d; s2 have other"]
    assert digests_differ([a_view("s1"), a_view("s2", applied=8, digest="other")]) == ""


def test_a_leader_is_agreed_on_only_within_one_term() -> None:
    seen = {"s1": a_view("s1"), "s2": a_view("s2", term=2), "s3": a_view("s3")}

    assert agreed_leader(seen, 2) == "s1"
    assert agreed_leader(seen, 3) is None
