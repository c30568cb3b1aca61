"""What becomes of one task, from the moment its allocation is received until nothing of it is left.

States: it waits for its stage's gate (or for contact with a server), its hooks prepare it, the driver starts it, it
runs, is stopped, has exited, waits for a restart, or is dead; after an agent's start it is first looked for. The core
holds the two records that are kept on disk, `local` and `state`. Whoever runs it stores them after each input, before
anything else is done, and shows `state` to nobody before it is stored.

What it promises, whatever happens in which order:

- A start is asked for only with its id on disk (`intended_id`), and only when no earlier start can still be alive.
- An end is known by its exit, or by the driver's word that there is no such task; never by silence.
- After `is_complete` nothing is started, unless the whole allocation is begun anew.
"""

from __future__ import annotations

import math

from msgspec import structs

from fedsched.client import task_events as events
from fedsched.client.journal_records import TaskLocal
from fedsched.client.restarts import NS_PER_S, Decision, Ending, Verdict, decide
from fedsched.client.task_phases import EXIT_PATIENCE_S, STOP_RETRIES_S, Phase, Purpose, Step
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
from fedsched.model.task_state import TaskEvent, TaskState, TaskStatus


class TaskCore:
    """One task. `handle` takes an input and gives effects; `wake_at` says when time itself is an input."""

    def __init__(
        self,
        prefix: str,
        driver: str,
        rules: TaskRules,
        *,
        local: TaskLocal | None = None,
        state: TaskState | None = None,
    ) -> None:
        self._prefix = prefix
        """`<alloc id>/<task>`."""
        self._driver = driver
        self.rules = rules
        self.local = local or TaskLocal()
        self.state = state or TaskState()
        self.phase = Phase.WAITING
        self._is_open = False
        self._purpose: Purpose | None = None
        """Why it is being stopped, or will be as soon as it is started."""
        self._step = Step.PREKILL
        self._tries = 0
        self._kill = KillAsked()
        self._restart_fails = False
        self._exit: ExitResult | None = None
        self._wake_at = math.inf
        self._clear_at = math.inf
        self._clear_tries = 0
        self._leftover_is_dead = True
        self._is_leaked = False
        """Something of it may run that can be neither found nor ended: it is never started again."""
        self._has_contact = False

    @property
    def wake_at(self) -> float:
        return min(self._wake_at, self._clear_at)

    @property
    def is_over(self) -> bool:
        """It is dead, nothing is left with the driver, and its hooks have given up what they kept."""
        return self.is_settled and self.local.is_stopped

    @property
    def is_settled(self) -> bool:
        return self.phase is Phase.DEAD and self.local.leftover is None

    @property
    def task_id(self) -> str:
        return self.local.handle.task_id if self.local.handle else ""

    def begin(self, now: Now) -> list[TaskEffect]:
        """Take up a task that is new, or one that an earlier agent left behind."""
        local = self.local
        effects: list[TaskEffect] = []
        if not self.state.events and self.state.state is TaskStatus.PENDING:
            self._emit(events.received(), now)
        if local.leftover is not None:
            self._leftover_is_dead = False
            effects.append(Clear(local.leftover, is_dead=False))
        if local.is_complete or self.state.state is TaskStatus.DEAD:
            self.phase = Phase.DEAD
            self._local(is_complete=True)
        elif local.handle is not None:
            self.phase = Phase.RECOVERING
            effects.append(Recover(local.handle))
        elif local.intended_id:
            self.phase = Phase.RECOVERING
            effects.append(Recover(TaskHandle(driver=self._driver, task_id=local.intended_id)))
        elif local.is_killed:
            effects += self._die_killed(now)
        elif local.restart_at_ns:
            self._sleep_until_restart((local.restart_at_ns - now.wall_ns) / NS_PER_S, now)
        elif self.state.state is not TaskStatus.PENDING:
            self._state(state=TaskStatus.PENDING)
        return effects

    def handle(self, given: TaskInput, now: Now) -> list[TaskEffect]:
        match given:
            case GateChanged(is_open):
                self._is_open = is_open
                return self._start_if_allowed(now)
            case ContactMade():
                self._has_contact = True
                if self.phase is Phase.CONTACT:
                    self.phase = Phase.WAITING
                return self._start_if_allowed(now)
            case PrestartDone():
                return self._prestart_done(given, now)
            case PrestartFailed():
                return self._prestart_failed(given, now)
            case WasStarted():
                return self._was_started(given, now)
            case StartFailed():
                return self._start_failed(given, now)
            case Recovered():
                return self._recovered(given, now)
            case RecoverFailed():
                return self._recover_failed(given, now)
            case Exited(result):
                return self._exited(result)
            case ExitedHooksDone():
                return self._after_exit(now)
            case _:
                return self._handle_demand(given, now)

    def _handle_demand(self, given: TaskInput, now: Now) -> list[TaskEffect]:
        """What others ask of the task, and how a stop goes."""
        match given:
            case KillAsked():
                return self._kill_asked(given, now)
            case RestartAsked():
                return self._restart_asked(given, now)
            case ReviveAsked():
                return self._revive_asked(given, now)
            case PrekillDone():
                return self._prekill_done(now)
            case Stopped(task_id) if task_id == self.task_id:
                self._stopped(now)
            case StopFailed(task_id, reason) if task_id == self.task_id:
                return self._stop_failed(reason, now)
            case Cleared():
                return self._cleared(now)
            case ClearFailed(reason):
                return self._clear_failed(reason, now)
            case SetupFailed(reason):
                return self._setup_failed(reason, now)
            case Emitted(event):
                self._emit(event, now)
            case RulesChanged(rules):
                self.rules = rules
            case FinishAsked():
                return [] if self.local.is_stopped else [RunStopHooks()]
            case StopHooksDone():
                self._local(is_stopped=True)
            case Woken():
                return self._woken(now)
        return []

    # -- towards a start

    def _start_if_allowed(self, now: Now) -> list[TaskEffect]:
        if self.phase is not Phase.WAITING or not self._is_open or self.local.leftover is not None:
            return []
        self.phase = Phase.PRESTART
        self._purpose = None
        self._emit(events.setup(), now)
        return [RunPrestart()]

    def _prestart_done(self, given: PrestartDone, now: Now) -> list[TaskEffect]:
        self._local(
            hooks={**self.local.hooks, **{name: dict(state) for name, state in given.hooks.items()}},
            hooks_done=tuple(dict.fromkeys((*self.local.hooks_done, *given.done))),
            results={**self.local.results, **given.results},
        )
        if self.phase is Phase.RUNNING:
            return [RunPoststart()]
        if self.phase is not Phase.PRESTART:
            return []
        self.phase = Phase.STARTING
        task_id = f"{self._prefix}/{now.token}"
        self._local(intended_id=task_id)
        return [Start(task_id)]

    def _prestart_failed(self, given: PrestartFailed, now: Now) -> list[TaskEffect]:
        self._emit(given.event, now)
        if self.phase is not Phase.PRESTART:
            # Around a task that runs: its hooks' trouble is told, and the task is left alone.
            return []
        return self._decide(Ending(is_recoverable=given.is_recoverable), now)

    def _was_started(self, given: WasStarted, now: Now) -> list[TaskEffect]:
        self._local(handle=given.handle, network=given.network, intended_id="")
        self._running(now.wall_ns, now)
        effects: list[TaskEffect] = [AwaitExit(given.handle)]
        if self._purpose is None:
            return [*effects, RunPoststart()]
        return effects + self._begin_stop(self._purpose)

    def _running(self, started_at_ns: int, now: Now) -> None:
        self.phase = Phase.RUNNING
        self._state(state=TaskStatus.RUNNING, started_at_ns=started_at_ns, finished_at_ns=0, failed=False)
        self._emit(events.started(), now)

    def _start_failed(self, given: StartFailed, now: Now) -> list[TaskEffect]:
        intended = self.local.intended_id
        self._local(intended_id="")
        effects: list[TaskEffect] = []
        if given.was_asked:
            effects += self._leave(TaskHandle(driver=self._driver, task_id=intended), is_dead=False)
        if not self.local.is_killed and self._purpose is not Purpose.REVIVE:
            self._emit(events.driver_failure(given.reason), now)
        if self._purpose is Purpose.REVIVE and not self.local.is_killed:
            return effects + self._begin_anew(now)
        return effects + self._decide(Ending(is_recoverable=given.is_recoverable, is_killed=self.local.is_killed), now)

    # -- after an agent's start

    def _recovered(self, given: Recovered, now: Now) -> list[TaskEffect]:
        if self.state.state is not TaskStatus.RUNNING:
            self._running(given.started_at_ns or now.wall_ns, now)
        self.phase = Phase.RUNNING
        self._local(handle=given.handle, intended_id="")
        effects: list[TaskEffect] = [AwaitExit(given.handle)]
        if self.local.is_killed:
            return effects + self._begin_stop(Purpose.KILL)
        if self._purpose is not None:
            return effects + self._begin_stop(self._purpose)
        return [*effects, RunPrestart(is_recovered=True)]

    def _recover_failed(self, given: RecoverFailed, now: Now) -> list[TaskEffect]:
        was_running = self.local.handle is not None
        handle = self.local.handle or TaskHandle(driver=self._driver, task_id=self.local.intended_id)
        effects = self._leave(handle, is_dead=False) if was_running or not given.is_unknown else []
        self._local(intended_id="", network=None, handle=None)
        if self.local.is_killed:
            return effects + self._die_killed(now)
        self._state(state=TaskStatus.PENDING)
        if self._purpose is Purpose.REVIVE:
            return effects + self._begin_anew(now)
        self.phase = Phase.WAITING
        if was_running or not given.is_unknown:
            waits = not (self.rules.is_system or self._has_contact)
            self._emit(events.restore_failed(given.reason, waits=waits), now)
            self.phase = Phase.CONTACT if waits else Phase.WAITING
        return effects + self._start_if_allowed(now)

    # -- an end, and what follows

    def _exited(self, result: ExitResult) -> list[TaskEffect]:
        if self.phase not in (Phase.RUNNING, Phase.STOPPING):
            return []
        self.phase = Phase.EXITED
        self._wake_at = math.inf
        self._exit = result
        return [CancelWork(), RunExited(result)]

    def _after_exit(self, now: Now) -> list[TaskEffect]:
        if self.phase is not Phase.EXITED:
            return []
        assert self.local.handle is not None
        assert self._exit is not None
        # Told together with what follows from it: an agent that dies in between finds the exit again, to tell it once.
        self._emit(events.terminated(self._exit), now)
        effects = self._leave(self.local.handle, is_dead=True)
        self._local(handle=None, network=None)
        if self._purpose is Purpose.REVIVE and not self.local.is_killed:
            return effects + self._begin_anew(now)
        is_asked = self._purpose is Purpose.RESTART
        ending = Ending(
            exit=self._exit,
            is_killed=self.local.is_killed,
            is_restart_asked=is_asked and not self._restart_fails,
            is_failure_asked=is_asked and self._restart_fails,
        )
        return effects + self._decide(ending, now)

    def _decide(self, ending: Ending, now: Now) -> list[TaskEffect]:
        rules = self.rules
        decision = decide(
            rules.policy,
            self.local.restarts,
            ending,
            on_success=rules.on_success,
            now_ns=now.wall_ns,
            chance=now.chance,
        )
        self._purpose = None
        self._local(restarts=decision.state)
        match decision.verdict:
            case Verdict.KILLED:
                return self._die_killed(now)
            case Verdict.RESTART:
                self._restart(decision, now)
                return []
            case Verdict.NOT_RESTARTING:
                self._emit(events.not_restarting(decision.reason), now)
        return self._die(now, failed=decision.is_failure)

    def _restart(self, decision: Decision, now: Now) -> None:
        self._emit(events.restarting(decision.reason, decision.delay_s), now)
        self._state(state=TaskStatus.PENDING, restarts=self.state.restarts + 1, last_restart_ns=now.wall_ns)
        self._local(restart_at_ns=now.wall_ns + round(decision.delay_s * NS_PER_S))
        self._sleep_until_restart(decision.delay_s, now)

    def _sleep_until_restart(self, delay_s: float, now: Now) -> None:
        self.phase = Phase.DELAY
        # Never longer than the policy can have meant, should the wall clock have been set back meanwhile.
        longest_s = max(self.rules.policy.delay_s * 1.25, self.rules.policy.interval_s)
        self._wake_at = now.mono + min(max(delay_s, 0.0), longest_s)

    def _die(self, now: Now, *, failed: bool) -> list[TaskEffect]:
        self.phase = Phase.DEAD
        self._wake_at = math.inf
        ended_ns = self._exit.finished_at_ns if self._exit else 0
        self._state(state=TaskStatus.DEAD, failed=failed, finished_at_ns=ended_ns or now.wall_ns)
        self._local(is_complete=True, restart_at_ns=0)
        self._exit = None
        return []

    def _die_killed(self, now: Now) -> list[TaskEffect]:
        if self.state.started_at_ns:
            self._emit(events.killed(), now)
        return self._die(now, failed=self.local.kill_fails)

    def _setup_failed(self, reason: str, now: Now) -> list[TaskEffect]:
        if self.phase not in (Phase.WAITING, Phase.CONTACT, Phase.DELAY):
            return []
        self._emit(events.setup_failure(reason), now)
        return self._die(now, failed=True)

    # -- demands

    def _kill_asked(self, given: KillAsked, now: Now) -> list[TaskEffect]:
        if self.phase is Phase.DEAD:
            return []
        if self.local.is_killed and self._purpose is Purpose.KILL:
            return self._skip_delay(now) if given.skips_delay else []
        is_new = not self.local.is_killed
        self._kill = given
        self._local(is_killed=True, kill_fails=self.local.kill_fails or given.is_failure)
        if is_new:
            if given.cause is not None:
                self._emit(given.cause, now)
            self._emit(events.killing(self.rules.kill_timeout_s, given.reason), now)
        match self.phase:
            case Phase.WAITING | Phase.CONTACT | Phase.DELAY:
                return self._die_killed(now)
            case Phase.PRESTART:
                return [CancelWork(), *self._die_killed(now)]
            case Phase.STARTING:
                self._purpose = Purpose.KILL
                return [CancelWork()]
            case Phase.RUNNING:
                return self._begin_stop(Purpose.KILL)
        self._purpose = Purpose.KILL
        return []

    def _restart_asked(self, given: RestartAsked, now: Now) -> list[TaskEffect]:
        if self.phase not in (Phase.RUNNING, Phase.STARTING) or self._purpose is not None:
            return []
        self._emit(events.restart_signaled(given.reason), now)
        self._restart_fails = given.is_failure
        if self.phase is Phase.RUNNING:
            return self._begin_stop(Purpose.RESTART)
        self._purpose = Purpose.RESTART
        return []

    def _revive_asked(self, given: ReviveAsked, now: Now) -> list[TaskEffect]:
        if self._is_leaked or self.local.is_stopped or (self.local.is_killed and self.phase is not Phase.DEAD):
            return []
        self._emit(events.restart_signaled(given.reason), now)
        match self.phase:
            case Phase.RUNNING:
                return self._begin_stop(Purpose.REVIVE)
            case Phase.STOPPING | Phase.EXITED | Phase.RECOVERING:
                self._purpose = Purpose.REVIVE
                return []
            case Phase.STARTING:
                self._purpose = Purpose.REVIVE
                return [CancelWork()]
            case Phase.PRESTART:
                return [CancelWork(), *self._begin_anew(now)]
        return self._begin_anew(now)

    def _begin_anew(self, now: Now) -> list[TaskEffect]:
        has_run = bool(self.state.started_at_ns)
        self.phase = Phase.WAITING
        self._wake_at = math.inf
        self._purpose = None
        self._kill = KillAsked()
        self._exit = None
        self._state(
            state=TaskStatus.PENDING,
            failed=False,
            finished_at_ns=0,
            restarts=self.state.restarts + has_run,
            last_restart_ns=now.wall_ns if has_run else self.state.last_restart_ns,
        )
        self._local(is_complete=False, is_killed=False, kill_fails=False, restart_at_ns=0, hooks_done=(), results={})
        return self._start_if_allowed(now)

    # -- a stop, step by step

    def _begin_stop(self, purpose: Purpose) -> list[TaskEffect]:
        self.phase = Phase.STOPPING
        self._purpose = purpose
        self._step = Step.PREKILL
        self._tries = 0
        return [RunPrekill()]

    def _prekill_done(self, now: Now) -> list[TaskEffect]:
        if self.phase is not Phase.STOPPING or self._step is not Step.PREKILL:
            return []
        delay_s = self.rules.shutdown_delay_s if self._purpose is Purpose.KILL else 0.0
        if delay_s <= 0:
            return self._ask_driver()
        if self._kill.skips_delay:
            self._emit(events.skipping_shutdown_delay(delay_s), now)
            return self._ask_driver()
        self._emit(events.waiting_for_shutdown_delay(delay_s), now)
        self._step = Step.DELAY
        self._wake_at = now.mono + delay_s
        return []

    def _skip_delay(self, now: Now) -> list[TaskEffect]:
        self._kill = _without_delay(self._kill)
        if self.phase is not Phase.STOPPING or self._step is not Step.DELAY:
            return []
        self._emit(events.skipping_shutdown_delay(self.rules.shutdown_delay_s), now)
        return self._ask_driver()

    def _ask_driver(self) -> list[TaskEffect]:
        self._step = Step.DRIVER
        self._wake_at = math.inf
        return [Stop(self.task_id, self.rules.kill_timeout_s, self.rules.kill_signal)]

    def _stopped(self, now: Now) -> None:
        if self.phase is Phase.STOPPING and self._step is Step.DRIVER:
            self._step = Step.SETTLING
            self._wake_at = now.mono + EXIT_PATIENCE_S

    def _stop_failed(self, reason: str, now: Now) -> list[TaskEffect]:
        if self.phase is not Phase.STOPPING or self._step is not Step.DRIVER:
            return []
        if self._tries < len(STOP_RETRIES_S):
            self._step = Step.RETRY
            self._wake_at = now.mono + STOP_RETRIES_S[self._tries]
            self._tries += 1
            return [Warn("task_stop_failed", reason)]
        assert self.local.handle is not None
        told = f"{reason}; gave up after {self._tries + 1} tries, the task may still be running"
        effects = [Warn("task_leaked", told), CancelWork(), *self._leave(self.local.handle, is_dead=False)]
        self._local(handle=None, network=None)
        self._emit(events.killed(told), now)
        # Something may live on: whatever the reason for the stop was, nothing is started beside it.
        return effects + self._die(now, failed=self.local.kill_fails or self._purpose is not Purpose.KILL)

    # -- what is left of an earlier start

    def _leave(self, handle: TaskHandle, *, is_dead: bool) -> list[TaskEffect]:
        self._local(leftover=handle)
        self._leftover_is_dead = is_dead
        self._clear_tries = 0
        return [Clear(handle, is_dead)]

    def _cleared(self, now: Now) -> list[TaskEffect]:
        self._local(leftover=None)
        self._clear_at = math.inf
        if self.phase is Phase.DELAY and self._wake_at == math.inf:
            return self._delay_over(now)
        return self._start_if_allowed(now)

    def _clear_failed(self, reason: str, now: Now) -> list[TaskEffect]:
        if self._clear_tries < len(STOP_RETRIES_S):
            self._clear_at = now.mono + STOP_RETRIES_S[self._clear_tries]
            self._clear_tries += 1
            return [Warn("task_remains", reason)]
        effects: list[TaskEffect] = [Warn("task_leaked", reason)]
        self._is_leaked = not self._leftover_is_dead
        if self._is_leaked and self.phase is not Phase.DEAD:
            # Nobody knows whether it runs, so it must not be started beside itself.
            self._emit(events.driver_failure(f"{reason}; the task may still be running"), now)
            effects += [CancelWork(), *self._die(now, failed=True)]
        return effects + self._cleared(now)

    # -- time

    def _woken(self, now: Now) -> list[TaskEffect]:
        effects: list[TaskEffect] = []
        if now.mono >= self._clear_at:
            self._clear_at = math.inf
            if self.local.leftover is not None:
                effects.append(Clear(self.local.leftover, self._leftover_is_dead))
        if now.mono < self._wake_at:
            return effects
        self._wake_at = math.inf
        if self.phase is Phase.DELAY:
            return effects + self._delay_over(now)
        if self.phase is not Phase.STOPPING:
            return effects
        if self._step is Step.SETTLING:
            lost = ExitResult(error="it was stopped, but how it ended was not told", finished_at_ns=now.wall_ns)
            return effects + self._exited(lost)
        return effects + self._ask_driver()

    def _delay_over(self, now: Now) -> list[TaskEffect]:
        if self.local.leftover is not None:
            return []  # `_cleared` comes back here
        self.phase = Phase.WAITING
        self._local(restart_at_ns=0)
        return self._start_if_allowed(now)

    # -- the records

    def _emit(self, event: TaskEvent, now: Now) -> None:
        self.state = events.with_event(self.state, event, now.wall_ns)

    def _state(self, **fields: object) -> None:
        self.state = structs.replace(self.state, **fields)

    def _local(self, **fields: object) -> None:
        self.local = structs.replace(self.local, **fields)


def _without_delay(kill: KillAsked) -> KillAsked:
    return KillAsked(kill.cause, kill.reason, kill.is_failure, skips_delay=True)
