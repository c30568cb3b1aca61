"""One task's state machine, told by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.client import task_events as events
from fedsched.client.journal_records import RestartState, StoredNetwork, TaskLocal
from fedsched.client.task_core import TaskCore
from fedsched.client.task_phases import STOP_RETRIES_S, Phase
from fedsched.client.task_signals import (
    AwaitExit,
    CancelWork,
    Clear,
    Cleared,
    ClearFailed,
    ContactMade,
    Emitted,
    Exited,
    ExitedHooksDone,
    FinishAsked,
    GateChanged,
    KillAsked,
    Now,
    PrekillDone,
    PrestartDone,
    PrestartFailed,
    Recover,
    Recovered,
    RecoverFailed,
    RestartAsked,
    ReviveAsked,
    RulesChanged,
    RunExited,
    RunPoststart,
    RunPrekill,
    RunPrestart,
    RunStopHooks,
    SetupFailed,
    Start,
    StartFailed,
    Stop,
    StopFailed,
    StopHooksDone,
    Stopped,
    TaskEffect,
    TaskInput,
    TaskRules,
    Warn,
    WasStarted,
    Woken,
)
from fedsched.drivers.driver import ExitResult, TaskHandle
from fedsched.model.policies import RestartPolicy
from fedsched.model.task_state import MAX_TASK_EVENTS, TaskState, TaskStatus

NS = 1_000_000_000
T0 = 1_700_000_000 * NS
RULES = TaskRules(
    policy=RestartPolicy(attempts=2, interval_s=100.0, delay_s=10.0), on_success=False, kill_signal="SIGINT"
)
OK = ExitResult(finished_at_ns=T0 + 5 * NS)
BAD = ExitResult(exit_code=3, finished_at_ns=T0 + 5 * NS)


class Machine:
    """A core with a clock that moves one second per input."""

    def __init__(self, rules: TaskRules = RULES, **stored: Any) -> None:
        self.core = TaskCore("alloc/web", "mock_driver", rules, **stored)
        self.time = 0.0
        self.starts = 0
        self.effects = self.core.begin(self.now)

    @property
    def now(self) -> Now:
        return Now(self.time, T0 + round(self.time * NS), 0.0, f"{self.starts:08x}")

    def tell(self, *given: TaskInput) -> list[TaskEffect]:
        for one in given:
            self.time += 1
            self.starts += isinstance(one, PrestartDone)
            self.effects = self.core.handle(one, self.now)
        return self.effects

    def wake(self) -> list[TaskEffect]:
        assert self.core.wake_at < math.inf
        self.time = max(self.time, self.core.wake_at)
        self.effects = self.core.handle(Woken(), self.now)
        return self.effects

    def start(self) -> Machine:
        self.tell(GateChanged(True), PrestartDone())
        [start] = self.effects
        assert isinstance(start, Start)
        self.tell(WasStarted(handle(start.task_id)))
        return self

    def exit(self, result: ExitResult = BAD) -> list[TaskEffect]:
        self.tell(Exited(result))
        return self.tell(ExitedHooksDone())

    @property
    def story(self) -> list[str]:
        return [event.type for event in self.core.state.events]


def handle(task_id: str) -> TaskHandle:
    return TaskHandle(driver="mock_driver", task_id=task_id, state=b"x")


def test_a_task_waits_for_its_gate() -> None:
    task = Machine()

    assert task.effects == []
    assert task.story == ["Received"]
    assert task.tell(GateChanged(False)) == []
    assert task.tell(GateChanged(True)) == [RunPrestart()]


def test_a_start_is_intended_before_it_is_asked_for() -> None:
    task = Machine()
    task.tell(GateChanged(True))
    [start] = task.tell(PrestartDone({"dirs": {"a": "b"}}, ("dirs",)))

    assert start == Start("alloc/web/00000001")
    assert task.core.local.intended_id == "alloc/web/00000001"
    assert task.core.local.hooks == {"dirs": {"a": "b"}}
    assert task.core.local.hooks_done == ("dirs",)
    assert task.core.state.state is TaskStatus.PENDING


def test_a_started_task_is_waited_for() -> None:
    task = Machine()
    task.tell(GateChanged(True), PrestartDone())
    network = StoredNetwork(ip="10.0.0.1")
    effects = task.tell(WasStarted(handle("alloc/web/00000001"), network))

    assert effects == [AwaitExit(handle("alloc/web/00000001")), RunPoststart()]
    assert task.core.local.intended_id == ""
    assert task.core.local.network == network
    assert task.core.task_id == "alloc/web/00000001"
    assert (task.core.state.state, task.core.state.started_at_ns) == (TaskStatus.RUNNING, task.now.wall_ns)
    assert task.story == ["Received", "Task Setup", "Started"]


def test_a_success_ends_a_batch_task() -> None:
    task = Machine().start()
    assert task.tell(Exited(OK)) == [CancelWork(), RunExited(OK)]
    [clear] = task.tell(ExitedHooksDone())

    assert clear == Clear(handle("alloc/web/00000001"), is_dead=True)
    assert task.core.state.is_successful
    assert task.core.state.finished_at_ns == OK.finished_at_ns
    assert task.core.local.is_complete
    assert not task.core.is_settled
    task.tell(Cleared())
    assert task.core.is_settled
    assert task.tell(FinishAsked()) == [RunStopHooks()]
    task.tell(StopHooksDone())
    assert task.core.is_over
    assert task.tell(FinishAsked()) == []


def test_a_failure_is_restarted_after_its_delay() -> None:
    task = Machine().start()
    [clear] = task.exit()
    assert isinstance(clear, Clear)
    assert task.core.phase is Phase.DELAY
    assert task.core.state.state is TaskStatus.PENDING
    assert task.core.state.restarts == 1
    assert task.core.local.restart_at_ns == task.now.wall_ns + 10 * NS
    task.tell(Cleared())

    assert task.wake() == [RunPrestart()]
    assert task.core.local.restart_at_ns == 0
    assert task.story[-3:] == ["Terminated", "Restarting", "Task Setup"]


def test_nothing_is_started_before_the_last_start_is_cleared_away() -> None:
    task = Machine().start()
    task.exit()

    assert task.wake() == []
    assert task.tell(Cleared()) == [RunPrestart()]


def test_a_task_that_fails_too_often_is_given_up() -> None:
    task = Machine().start()
    for _ in range(2):
        task.exit()
        task.tell(Cleared())
        task.wake()
        [start] = task.tell(PrestartDone())
        assert isinstance(start, Start)
        task.tell(WasStarted(handle(start.task_id)))
    task.exit()

    assert task.core.state.failed
    assert task.core.state.state is TaskStatus.DEAD
    assert task.story[-1] == "Not Restarting"
    assert len(task.core.state.events) == MAX_TASK_EVENTS
    assert "Received" not in task.story


def test_a_prestart_that_cannot_work_fails_the_task() -> None:
    task = Machine()
    task.tell(GateChanged(True), PrestartFailed(events.hook_failed("Failed Validation", "no such user")))

    assert task.core.state.failed
    assert task.story[-2:] == ["Failed Validation", "Not Restarting"]


def test_a_prestart_that_may_work_later_is_tried_again() -> None:
    task = Machine()
    task.tell(GateChanged(True), PrestartFailed(events.hook_failed("", "no answer"), is_recoverable=True))

    assert task.core.phase is Phase.DELAY
    assert task.wake() == [RunPrestart()]


@pytest.mark.parametrize("is_recoverable", [True, False])
def test_a_failed_start_is_cleared_away_and_decided_on(is_recoverable: bool) -> None:
    task = Machine()
    task.tell(GateChanged(True), PrestartDone())
    effects = task.tell(StartFailed("no image", is_recoverable))

    assert effects == [Clear(TaskHandle(driver="mock_driver", task_id="alloc/web/00000001"), is_dead=False)]
    assert task.core.phase is (Phase.DELAY if is_recoverable else Phase.DEAD)
    assert "Driver Failure" in task.story


def test_a_start_that_was_never_asked_for_leaves_nothing() -> None:
    task = Machine()
    task.tell(GateChanged(True), PrestartDone())

    assert task.tell(StartFailed("disk full", is_recoverable=True, was_asked=False)) == []
    assert task.core.local.leftover is None


# -- kill


@pytest.mark.parametrize("reach", ["waiting", "delay", "contact"])
def test_a_kill_before_a_start_ends_it_without_one(reach: str) -> None:
    task = Machine()
    if reach == "delay":
        task.start().exit()
        task.tell(Cleared())
    if reach == "contact":
        task = Machine(local=TaskLocal(handle=handle("a")), state=TaskState(state=TaskStatus.RUNNING, started_at_ns=1))
        task.tell(RecoverFailed("gone", is_unknown=True), Cleared())
        assert task.core.phase is Phase.CONTACT
    task.tell(KillAsked())

    assert task.core.phase is Phase.DEAD
    assert not task.core.state.failed
    assert task.tell(GateChanged(True)) == []
    assert ("Killed" in task.story) is (reach != "waiting")


def test_a_main_task_whose_prestart_sibling_failed_has_its_three_events() -> None:
    task = Machine()
    task.tell(KillAsked(cause=events.sibling_failed("init")))

    assert task.story == ["Received", "Sibling Task Failed", "Killing"]
    assert (task.core.state.state, task.core.state.failed) == (TaskStatus.DEAD, False)


def test_a_kill_during_prestart_calls_the_hooks_off() -> None:
    task = Machine()
    task.tell(GateChanged(True))

    assert task.tell(KillAsked()) == [CancelWork()]
    assert task.core.phase is Phase.DEAD
    assert task.tell(PrestartDone()) == []


def test_a_kill_during_the_start_waits_for_what_comes_of_it() -> None:
    task = Machine()
    task.tell(GateChanged(True), PrestartDone())
    assert task.tell(KillAsked()) == [CancelWork()]
    assert task.core.phase is Phase.STARTING
    assert task.tell(KillAsked()) == []

    effects = task.tell(WasStarted(handle("x")))
    assert effects == [AwaitExit(handle("x")), RunPrekill()]


def test_a_kill_during_a_start_that_was_called_off() -> None:
    task = Machine()
    task.tell(GateChanged(True), PrestartDone(), KillAsked())
    [clear] = task.tell(StartFailed("called off"))

    assert isinstance(clear, Clear)
    assert not clear.is_dead
    assert task.core.phase is Phase.DEAD
    assert not task.core.state.failed
    assert "Driver Failure" not in task.story


def test_a_running_task_is_killed_step_by_step() -> None:
    rules = TaskRules(shutdown_delay_s=7.0, kill_timeout_s=20.0, kill_signal="SIGTERM")
    task = Machine(rules).start()
    assert task.tell(KillAsked(reason="stopped")) == [RunPrekill()]
    assert task.core.local.is_killed
    assert task.tell(PrekillDone()) == []
    assert task.core.wake_at == task.time + 7
    assert task.wake() == [Stop("alloc/web/00000001", 20.0, "SIGTERM")]
    task.tell(Stopped("alloc/web/00000001"))
    task.exit(ExitResult(exit_code=143, signal=15))

    assert task.core.phase is Phase.DEAD
    assert not task.core.state.failed
    assert task.story[-4:] == ["Killing", "Waiting for shutdown delay", "Terminated", "Killed"]
    killing = task.core.state.events[3]
    assert (killing.kill_reason, killing.kill_timeout_s) == ("stopped", 20.0)
    assert killing.display_message == "stopped. Sent interrupt. Waiting 20s before force killing"


def test_the_shutdown_delay_can_be_skipped() -> None:
    rules = TaskRules(shutdown_delay_s=7.0)
    task = Machine(rules).start()
    task.tell(KillAsked(skips_delay=True))

    [stop] = task.tell(PrekillDone())
    assert isinstance(stop, Stop)
    assert task.story[-1] == "Skipping shutdown delay"


def test_a_second_kill_changes_nothing_unless_it_says_so() -> None:
    task = Machine(TaskRules(shutdown_delay_s=70.0)).start()
    task.tell(KillAsked(), PrekillDone())
    due = task.core.wake_at
    assert task.tell(KillAsked()) == []
    assert task.core.wake_at == due

    [stop] = task.tell(KillAsked(skips_delay=True))
    assert isinstance(stop, Stop)
    assert task.tell(KillAsked(skips_delay=True)) == []
    assert task.story.count("Killing") == 1


def test_an_exit_during_the_shutdown_delay_is_heeded() -> None:
    task = Machine(TaskRules(shutdown_delay_s=70.0)).start()
    task.tell(KillAsked(), PrekillDone())
    task.exit(OK)

    assert task.core.phase is Phase.DEAD
    assert task.core.wake_at == math.inf
    assert task.tell(PrekillDone()) == []


def test_a_stop_that_fails_is_tried_again_and_then_given_up() -> None:
    task = Machine().start()
    task.tell(KillAsked(), PrekillDone())
    waits = []
    for _ in STOP_RETRIES_S:
        [warning] = task.tell(StopFailed("alloc/web/00000001", "stuck"))
        assert isinstance(warning, Warn)
        waits.append(task.core.wake_at - task.time)
        [stop] = task.wake()
        assert isinstance(stop, Stop)
    effects = task.tell(StopFailed("alloc/web/00000001", "stuck"))

    assert waits == [5, 20, 80, 120, 120]
    assert effects[0] == Warn("task_leaked", "stuck; gave up after 6 tries, the task may still be running")
    assert task.core.state.state is TaskStatus.DEAD
    assert task.core.state.events[-1].kill_error.startswith("stuck")
    assert task.core.local.leftover is not None


def test_stops_of_an_earlier_start_do_not_count() -> None:
    task = Machine().start()
    task.tell(KillAsked(), PrekillDone())

    assert task.tell(StopFailed("somebody else", "stuck"), Stopped("somebody else")) == []
    assert task.core.wake_at == math.inf


def test_an_exit_that_is_never_told_is_made_up_after_a_while() -> None:
    task = Machine().start()
    task.tell(KillAsked(), PrekillDone(), Stopped("alloc/web/00000001"))
    effects = task.wake()

    assert effects[0] == CancelWork()
    task.tell(ExitedHooksDone())
    assert task.core.phase is Phase.DEAD
    assert "not told" in task.core.state.events[-2].display_message


def test_a_kill_that_is_a_failure_fails_the_task() -> None:
    task = Machine().start()
    task.tell(KillAsked(reason="template", is_failure=True), PrekillDone())
    task.exit(OK)

    assert task.core.state.failed


def test_a_kill_while_it_is_being_restarted_wins() -> None:
    task = Machine().start()
    task.tell(RestartAsked("user"), KillAsked(), PrekillDone())
    task.exit()

    assert task.core.phase is Phase.DEAD


def test_a_kill_while_exited_hooks_run_is_heeded() -> None:
    task = Machine().start()
    task.tell(Exited(BAD), KillAsked(), ExitedHooksDone())

    assert task.core.phase is Phase.DEAD
    assert not task.core.state.failed
    assert task.tell(KillAsked()) == []


# -- restart


def test_a_restart_that_was_asked_for_is_at_once() -> None:
    task = Machine(TaskRules(policy=RestartPolicy(attempts=0), shutdown_delay_s=50)).start()
    assert task.tell(RestartAsked("please")) == [RunPrekill()]
    [stop] = task.tell(PrekillDone())
    assert isinstance(stop, Stop)
    task.exit(ExitResult(exit_code=130, signal=2))
    task.tell(Cleared())

    assert task.wake() == [RunPrestart()]
    assert task.core.local.restarts == RestartState()
    assert task.core.state.restarts == 1
    assert "Restart Signaled" in task.story


def test_a_restart_for_a_failure_counts() -> None:
    task = Machine(TaskRules(policy=RestartPolicy(attempts=1, delay_s=10.0))).start()
    task.tell(RestartAsked("check", is_failure=True), PrekillDone())
    task.exit(OK)

    assert task.core.local.restarts.count == 1
    assert task.core.wake_at == task.time + 10


def test_a_restart_asked_for_during_the_start_follows_it() -> None:
    task = Machine()
    task.tell(GateChanged(True), PrestartDone())
    assert task.tell(RestartAsked("template")) == []
    assert task.tell(WasStarted(handle("x"))) == [AwaitExit(handle("x")), RunPrekill()]
    assert task.tell(RestartAsked("again")) == []


def test_only_a_task_that_runs_can_be_restarted() -> None:
    task = Machine()

    assert task.tell(RestartAsked("please")) == []
    assert task.story == ["Received"]


def test_a_failed_stop_of_a_restart_never_starts_it_beside_itself() -> None:
    task = Machine().start()
    task.tell(RestartAsked("please"), PrekillDone())
    for _ in STOP_RETRIES_S:
        task.tell(StopFailed("alloc/web/00000001", "stuck"))
        task.wake()
    task.tell(StopFailed("alloc/web/00000001", "stuck"))

    assert task.core.phase is Phase.DEAD
    assert task.core.state.failed


# -- begin anew


def test_a_dead_task_begins_anew() -> None:
    task = Machine().start()
    task.exit(OK)
    task.tell(Cleared(), GateChanged(False), ReviveAsked("all"))

    assert task.core.state.state is TaskStatus.PENDING
    assert (task.core.state.restarts, task.core.local.is_complete) == (1, False)
    assert task.tell(GateChanged(True)) == [RunPrestart()]


def test_a_killed_task_begins_anew_and_is_not_killed_any_more() -> None:
    task = Machine()
    task.tell(KillAsked(), ReviveAsked("all"), GateChanged(True))

    assert task.effects == [RunPrestart()]
    assert not task.core.local.is_killed


def test_a_running_task_is_stopped_and_waits_for_its_gate() -> None:
    task = Machine().start()
    task.tell(GateChanged(False))
    assert task.tell(ReviveAsked("all")) == [RunPrekill()]
    task.tell(PrekillDone())
    task.exit()
    task.tell(Cleared())

    assert task.core.phase is Phase.WAITING
    assert task.core.state.state is TaskStatus.PENDING
    assert task.tell(GateChanged(True)) == [RunPrestart()]


@pytest.mark.parametrize("reach", ["prestart", "starting", "started late", "delay", "exited"])
def test_a_task_begins_anew_from_anywhere(reach: str) -> None:
    task = Machine()
    if reach in ("delay", "exited"):
        task.start()
        task.tell(Exited(BAD))
        if reach == "delay":
            task.tell(ExitedHooksDone(), Cleared())
    else:
        task.tell(GateChanged(True))
        if reach != "prestart":
            task.tell(PrestartDone())
    task.tell(GateChanged(False), ReviveAsked("all"))
    if reach == "starting":
        task.tell(StartFailed("called off"), Cleared())
    if reach == "started late":
        task.tell(WasStarted(handle("x")), PrekillDone())
        task.exit()
        task.tell(Cleared())
    if reach == "exited":
        task.tell(ExitedHooksDone(), Cleared())

    assert task.core.phase is Phase.WAITING
    assert task.tell(GateChanged(True)) == [RunPrestart()]


def test_a_task_whose_hooks_let_go_does_not_begin_anew() -> None:
    task = Machine().start()
    task.exit(OK)
    task.tell(Cleared(), FinishAsked(), StopHooksDone(), ReviveAsked("all"), GateChanged(True))

    assert task.core.phase is Phase.DEAD


# -- after an agent's start

RUNNING = TaskState(state=TaskStatus.RUNNING, started_at_ns=T0 - NS, events=(events.received(), events.started()))


def restored(**fields: Any) -> Machine:
    state = fields.pop("state", RUNNING)
    rules = fields.pop("rules", RULES)
    return Machine(rules, local=TaskLocal(**fields), state=state)


def test_a_running_task_is_looked_for_and_goes_on() -> None:
    task = restored(handle=handle("x"))
    assert task.effects == [Recover(handle("x"))]

    assert task.tell(Recovered(handle("x"), T0 - NS)) == [AwaitExit(handle("x")), RunPrestart(is_recovered=True)]
    assert task.tell(PrestartDone()) == [RunPoststart()]
    assert task.core.state is RUNNING
    task.exit(OK)
    assert task.core.state.finished_at_ns == OK.finished_at_ns


def test_trouble_of_hooks_around_a_recovered_task_does_not_end_it() -> None:
    task = restored(handle=handle("x"))
    task.tell(Recovered(handle("x")), PrestartFailed(events.hook_failed("", "no server")))

    assert task.core.phase is Phase.RUNNING
    assert task.story[-1] == "Task hook failed"


def test_an_intended_start_is_looked_for_by_its_id() -> None:
    task = restored(intended_id="alloc/web/1", state=TaskState(events=(events.received(),)))
    assert task.effects == [Recover(TaskHandle(driver="mock_driver", task_id="alloc/web/1"))]

    task.tell(Recovered(TaskHandle(driver="mock_driver", task_id="alloc/web/1"), T0 - 5))
    assert task.core.local.intended_id == ""
    assert (task.core.state.state, task.core.state.started_at_ns) == (TaskStatus.RUNNING, T0 - 5)
    assert task.story == ["Received", "Started"]


def test_an_intended_start_that_never_was_is_made_now() -> None:
    task = restored(intended_id="alloc/web/1", state=TaskState(events=(events.received(),)))
    task.tell(GateChanged(True))
    assert task.tell(RecoverFailed("nothing", is_unknown=True)) == [RunPrestart()]
    assert "Failed Restoring Task" not in task.story


def test_an_intended_start_that_nobody_knows_of_is_cleared_away_first() -> None:
    task = restored(intended_id="alloc/web/1", state=TaskState(events=(events.received(),)))
    task.tell(GateChanged(True), ContactMade())
    [clear] = task.tell(RecoverFailed("driver down"))

    assert isinstance(clear, Clear)
    assert not clear.is_dead
    assert task.tell(Cleared()) == [RunPrestart()]


def test_a_lost_task_waits_for_a_server() -> None:
    task = restored(handle=handle("x"))
    task.tell(GateChanged(True))
    [clear] = task.tell(RecoverFailed("gone", is_unknown=True))
    assert isinstance(clear, Clear)
    assert task.story[-1] == "Failed Restoring Task"
    assert task.core.state.state is TaskStatus.PENDING
    assert task.tell(Cleared()) == []

    assert task.tell(ContactMade()) == [RunPrestart()]


def test_a_lost_task_of_a_system_job_starts_at_once() -> None:
    task = restored(handle=handle("x"), rules=TaskRules(is_system=True))
    task.tell(GateChanged(True), RecoverFailed("gone", is_unknown=True))

    assert task.tell(Cleared()) == [RunPrestart()]


def test_a_task_that_was_being_killed_is_killed_on() -> None:
    task = restored(handle=handle("x"), is_killed=True)

    assert task.tell(Recovered(handle("x"))) == [AwaitExit(handle("x")), RunPrekill()]


def test_a_killed_task_that_is_gone_is_dead() -> None:
    task = restored(handle=handle("x"), is_killed=True, kill_fails=True)
    task.tell(RecoverFailed("gone", is_unknown=True))

    assert task.core.phase is Phase.DEAD
    assert task.core.state.failed
    assert task.story[-1] == "Killed"


def test_a_killed_task_that_was_never_started_is_dead() -> None:
    task = restored(is_killed=True, state=TaskState(events=(events.received(),)))

    assert task.core.phase is Phase.DEAD
    assert task.story == ["Received"]


@pytest.mark.parametrize(("left_s", "expected"), [(4.0, 4.0), (-10.0, 0.0), (9999.0, 100.0)])
def test_a_restart_delay_goes_on(left_s: float, expected: float) -> None:
    task = restored(restart_at_ns=T0 + round(left_s * NS), state=TaskState(events=(events.received(),)))

    assert task.core.phase is Phase.DELAY
    assert task.core.wake_at == expected


def test_the_dead_stay_dead_and_what_was_left_undone_is_done() -> None:
    dead = TaskState(state=TaskStatus.DEAD, events=(events.received(),))
    task = restored(is_complete=True, leftover=handle("x"), state=dead)
    assert task.effects == [Clear(handle("x"), is_dead=False)]

    assert task.tell(GateChanged(True), ContactMade()) == []
    task.tell(Cleared())
    assert task.tell(FinishAsked()) == [RunStopHooks()]
    task.tell(StopHooksDone())
    assert task.core.is_over


def test_what_cannot_be_cleared_away_may_still_run_so_nothing_is_started() -> None:
    task = restored(handle=handle("x"))
    task.tell(GateChanged(True), ContactMade(), RecoverFailed("driver down"))
    for _ in STOP_RETRIES_S:
        task.tell(ClearFailed("driver down"))
        [clear] = task.wake()
        assert isinstance(clear, Clear)
    task.tell(ClearFailed("driver down"))

    assert task.core.phase is Phase.DEAD
    assert task.core.state.failed
    assert "may still be running" in task.core.state.events[-1].message


def test_a_task_that_leaked_is_never_started_again() -> None:
    task = Machine().start()
    task.tell(KillAsked(), PrekillDone())
    for _ in STOP_RETRIES_S:
        task.tell(StopFailed("alloc/web/00000001", "stuck"))
        task.wake()
    task.tell(StopFailed("alloc/web/00000001", "stuck"))
    for _ in STOP_RETRIES_S:
        task.tell(ClearFailed("stuck"))
        task.wake()
    task.tell(ClearFailed("stuck"))
    assert task.core.is_settled

    assert task.tell(ReviveAsked("all"), GateChanged(True)) == []
    assert task.core.phase is Phase.DEAD


def test_remains_of_a_task_that_ended_hold_nothing_up_for_ever() -> None:
    task = Machine().start()
    task.exit()
    for _ in STOP_RETRIES_S:
        task.tell(ClearFailed("busy"))
        task.wake()
    assert task.core.phase is Phase.DELAY

    assert task.tell(ClearFailed("busy")) == [Warn("task_leaked", "busy"), RunPrestart()]


# -- the rest


def test_an_allocation_that_cannot_be_set_up_fails_its_tasks() -> None:
    task = Machine()
    task.tell(SetupFailed("no network"))

    assert task.core.state.failed
    assert task.core.state.events[-1].setup_error == "no network"
    assert Machine().start().tell(SetupFailed("late")) == []


def test_new_rules_apply_from_the_next_decision_on() -> None:
    task = Machine().start()
    task.tell(RulesChanged(TaskRules(policy=RestartPolicy(attempts=0))))
    task.exit()

    assert task.core.state.failed


def test_only_the_last_ten_events_are_kept() -> None:
    task = Machine()
    for number in range(15):
        task.tell(Emitted(events.plain("Driver", str(number))))

    assert [event.message for event in task.core.state.events] == [str(number) for number in range(5, 15)]
    assert all(event.time_ns for event in task.core.state.events)


def inputs(task: Machine) -> st.SearchStrategy[TaskInput]:
    task_id = task.core.task_id or task.core.local.intended_id or "x"
    return st.sampled_from(
        [
            GateChanged(True),
            GateChanged(False),
            ContactMade(),
            PrestartDone(),
            PrestartFailed(events.hook_failed("", "x"), True),
            PrestartFailed(events.hook_failed("", "x"), False),
            ExitedHooksDone(),
            KillAsked(),
            KillAsked(skips_delay=True, is_failure=True),
            RestartAsked("x"),
            RestartAsked("x", is_failure=True),
            ReviveAsked(),
            PrekillDone(),
            Stopped(task_id),
            StopFailed(task_id, "x"),
            Cleared(),
            ClearFailed("x"),
            SetupFailed("x"),
            RulesChanged(RULES),
            FinishAsked(),
            Woken(),
        ]
    )


@settings(max_examples=200)
@given(st.data())
def test_no_order_of_inputs_starts_a_task_beside_itself(data: Any) -> None:
    """A driver that answers whenever it likes: at most one start is ever open."""
    task = Machine(TaskRules(policy=RestartPolicy(attempts=2, delay_s=1.0, mode="delay"), shutdown_delay_s=3.0))
    asked: set[str] = set()
    alive: set[str] = set()
    for _ in range(data.draw(st.integers(5, 40))):
        answers: list[TaskInput] = [WasStarted(handle(one)) for one in sorted(asked)]
        answers += [StartFailed("x", is_recoverable=True) for _ in sorted(asked)]
        answers += [Exited(BAD) for _ in sorted(alive)]
        given_ = data.draw(st.sampled_from(answers) | inputs(task)) if answers else data.draw(inputs(task))
        if isinstance(given_, Woken):
            task.time += data.draw(st.integers(0, 200))
        if isinstance(given_, Cleared | ClearFailed) and task.core.local.leftover is None:
            continue
        if isinstance(given_, Exited):
            alive.clear()
        if isinstance(given_, WasStarted):
            alive |= asked
        if isinstance(given_, WasStarted | StartFailed):
            asked.clear()
        if isinstance(given_, PrestartDone) and task.core.phase not in (Phase.PRESTART, Phase.RUNNING):
            continue
        for effect in task.tell(given_):
            if isinstance(effect, Start):
                assert not asked, "two starts at once"
                assert not alive, "a start beside a live task"
                assert task.core.local.leftover is None
                assert task.core.local.intended_id == effect.task_id
                assert not task.core.local.is_complete
                asked.add(effect.task_id)
        if task.core.phase is Phase.DEAD:
            assert task.core.state.state is TaskStatus.DEAD
            assert task.core.local.is_complete
        if task.core.phase is Phase.RUNNING:
            assert task.core.state.state is TaskStatus.RUNNING
