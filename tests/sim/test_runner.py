from __future__ import annotations

from typing import Any

import pytest

from fedsched.raft import rare
from fedsched.raft.core import RaftCore
from fedsched.raft.leading import Leading
from fedsched.sim import runner
from fedsched.sim.invariants import StateMachineSafety
from fedsched.sim.machine import Outcome, RegisterMachine
from fedsched.sim.options import JOB_STORE, STANDING, Options, changed, draw_options
from fedsched.sim.runner import Run, run_seed
from fedsched.sim.schedule import Action


def quiet(**changes: Any) -> Options:
    """A world without faults."""
    return changed(Options(chaos_us=2_000_000, operation_every_us=60_000), **changes)


def test_a_quiet_world_elects_once_and_answers_everybody() -> None:
    run = Run(1, quiet(features=("reads", "cas")))

    result = run.go()

    assert result.failure is None
    assert result.operations > 10
    assert result.undecided == 0
    assert run.users.is_idle()


def test_the_same_seed_is_the_same_run() -> None:
    assert run_seed(11).trace == run_seed(11).trace != run_seed(12).trace


def test_a_run_can_stop_at_an_event() -> None:
    result = Run(11).go(until_event=150)

    assert result.events == 150


def test_marks_are_counted_and_the_hook_is_put_back() -> None:
    before = rare.sometimes

    result = run_seed(11)

    assert rare.sometimes is before
    assert set(result.marks) <= rare.NAMES


@pytest.mark.parametrize("kind", STANDING)
def test_the_others_go_on_while_one_server_is_held_back(kind: str) -> None:
    result = run_seed(5, quiet(standing=kind))

    assert result.failure is None, result.failure


def test_a_region_too_small_to_lose_a_server_is_not_made_to() -> None:
    assert run_seed(5, quiet(servers=2, standing="down")).failure is None


def test_the_real_store_carries_the_same_workload() -> None:
    options = quiet(features=("reads", "cas", "snapshot", "burst", "crash", JOB_STORE), snapshot_every_us=200_000)

    result = run_seed(4, options)

    assert result.failure is None, result.failure
    assert result.operations > 10


def test_a_state_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RegisterMachine, "digest", lambda self: str(id(self)).encode())

    failure = run_seed(1, quiet()).failure

    assert failure is not None
    assert failure.invariant == "state_machine_safety"


def test_the_cores_themselves_stop_the_one_server_whose_state_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StateMachineSafety, "_compare", lambda self, server, index: None)
    run = Run(1, quiet(servers=3, burst_every_us=100_000, features=("burst",)))

    def rot() -> None:
        machine = run.region.servers["c"].machine
        assert isinstance(machine, RegisterMachine)
        machine._digest = b"rotten"

    run.world.after(1_000_000, None, "rot", rot)
    result = run.go()

    assert result.failure is not None
    assert result.failure.invariant == "core_alarm"
    assert "what a majority has computed" in result.failure.what
    assert result.failure.servers == ("c",)
    assert "digest_minority" in result.marks


def test_a_core_that_stops_itself_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Leading, "_become_leader", lambda self: self._stop("no wish to lead"))

    failure = run_seed(1, quiet()).failure

    assert failure is not None
    assert (failure.invariant, failure.servers != ()) == ("core_alarm", True)
    assert failure.last_events


def test_an_error_in_the_core_is_a_failure_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(self: RaftCore) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(RaftCore, "tick", stumble)

    failure = run_seed(1, quiet()).failure

    assert failure is not None
    assert failure.invariant == "error"
    assert "stumble" in failure.what
    assert "by nothing" in failure.what


def test_a_region_without_a_leader_is_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftCore, "tick", lambda self: None)

    failure = run_seed(1, quiet()).failure

    assert failure is not None
    assert failure.invariant == "liveness"
    assert "no leader" in failure.what


def test_requests_without_an_answer_are_not_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftCore, "read_index", lambda self, ctx: None)

    failure = run_seed(1, quiet()).failure

    assert failure is not None
    assert "a request has no answer" in failure.what


def test_a_run_that_goes_round_in_circles_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "EVENTS_MAX", 100)

    failure = run_seed(1, quiet()).failure

    assert failure is not None
    assert "without an end" in failure.what


def test_a_lying_state_machine_is_found_by_its_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal lies on all servers break no invariant of Raft: only the users can tell."""
    true_apply = RegisterMachine.apply

    def apply(self: RegisterMachine, index: int, payload: bytes) -> Outcome:
        outcome = true_apply(self, index, payload)
        if index % 5 == 0:
            self.registers.clear()
        return outcome

    monkeypatch.setattr(RegisterMachine, "apply", apply)

    failure = run_seed(1, quiet(features=("reads",), keys=1)).failure

    assert failure is not None
    assert failure.invariant == "linearizability"


def test_an_unknown_action_is_an_error_not_silence() -> None:
    failure = run_seed(1, quiet(), [Action(1, "no such thing", {})]).failure

    assert failure is not None
    assert "no such thing" in failure.what


def test_histories_too_tangled_to_judge_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SEARCH_STEPS_MAX", 1)

    result = run_seed(1, quiet(keys=1))

    assert (result.failure, result.undecided) == (None, 1)


def test_damage_on_disk_and_its_repair_are_part_of_some_runs() -> None:
    """A server whose disk is damaged refuses to start, and another takes its seat."""
    options = quiet(servers=3, chaos_us=3_000_000)
    flip = Action(1_200_000, "bit_flip", {"slot": 1, "entry": 0, "bit": 77})
    run = Run(2, options, [flip])

    result = run.go()

    assert result.failure is None, result.failure
    assert run.region.servers["b"].is_damaged
    assert run.region.lost == {"b"}
    leader = run.region.leader()
    assert leader is not None
    assert leader.core is not None
    assert leader.core.config.voters == {"a", "b2", "c"}


def test_seeds_with_every_theme_hold() -> None:
    seen = set()
    seed = 1_000
    while len(seen) < 6:
        theme = draw_options(seed).theme
        if theme not in seen:
            seen.add(theme)
            assert run_seed(seed).failure is None
        seed += 1
