"""Whether a task that ended is started again on the spot, when, and why.

The order of the questions is the policy. Each end (or failed start) is counted against the task's `restart` block only
from the fourth on: a kill and a restart that somebody asked for cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fedsched.client.journal_records import RestartState
from fedsched.drivers.driver import ExitResult
from fedsched.model.policies import RestartMode, RestartPolicy
from fedsched.model.resources import TaskLifecycle
from fedsched.model.units import format_duration

NS_PER_S = 1_000_000_000
JITTER = 0.25
"""At most so much of the delay on top: tasks that fell together must not rise together."""

NO_RESTARTS_ALLOWED = "Policy allows no restarts"
UNRECOVERABLE = "Error was unrecoverable"
WITHIN_POLICY = "Restart within policy"
ASKED = "User requested restart"
DONE = "Restart unnecessary as task terminated successfully"


class Verdict(Enum):
    KILLED = "killed"
    """It was ended on purpose."""
    TERMINATED = "terminated"
    """It did what it was for."""
    NOT_RESTARTING = "not restarting"
    """It failed for good."""
    RESTART = "restart"


@dataclass(frozen=True, slots=True)
class Ending:
    """What just happened to a task."""

    exit: ExitResult | None = None
    """How it ended; None if it could not be started."""
    is_killed: bool = False
    is_restart_asked: bool = False
    """Somebody asked for a restart that is no failure."""
    is_failure_asked: bool = False
    """A failing check (or the like) asked for a restart: it counts."""
    is_recoverable: bool = True
    """Of a start error: whether trying again may help."""

    @property
    def is_success(self) -> bool:
        return self.exit is not None and self.exit.is_success and not self.is_failure_asked


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    state: RestartState
    reason: str = ""
    delay_s: float = 0.0

    @property
    def is_failure(self) -> bool:
        return self.verdict is Verdict.NOT_RESTARTING


def decide(
    policy: RestartPolicy, used: RestartState, ending: Ending, *, on_success: bool, now_ns: int, chance: float
) -> Decision:
    """Say what follows on an ending. `chance` is a number in [0, 1)."""
    if ending.is_killed:
        return Decision(Verdict.KILLED, used)
    if ending.is_restart_asked:
        return Decision(Verdict.RESTART, used, ASKED)
    is_done = ending.is_success and not on_success
    if policy.attempts == 0:
        if is_done:
            return Decision(Verdict.TERMINATED, used, DONE)
        return Decision(Verdict.NOT_RESTARTING, used, NO_RESTARTS_ALLOWED)
    used = _counted(policy, used, now_ns)
    if ending.exit is None and not ending.is_recoverable:
        return Decision(Verdict.NOT_RESTARTING, used, UNRECOVERABLE)
    if is_done:
        return Decision(Verdict.TERMINATED, used, DONE)
    if used.count > policy.attempts:
        return _exceeded(policy, used, now_ns)
    return Decision(Verdict.RESTART, used, WITHIN_POLICY, policy.delay_s * (1 + JITTER * chance))


def restarts_on_success(job_type: str, lifecycle: TaskLifecycle | None) -> bool:
    """Whether an end without an error is still an end too early: for services and for sidecars."""
    if lifecycle is None or not lifecycle.hook:
        return job_type in ("service", "system")
    return lifecycle.sidecar


def _counted(policy: RestartPolicy, used: RestartState, now_ns: int) -> RestartState:
    interval_ns = round(policy.interval_s * NS_PER_S)
    is_new = not used.interval_start_ns or now_ns > used.interval_start_ns + interval_ns
    if is_new:
        return RestartState(count=1, interval_start_ns=now_ns)
    return RestartState(count=used.count + 1, interval_start_ns=used.interval_start_ns)


def _exceeded(policy: RestartPolicy, used: RestartState, now_ns: int) -> Decision:
    reason = (
        f"Exceeded allowed attempts {policy.attempts} in interval {format_duration(policy.interval_s)}"
        f' and mode is "{policy.mode}"'
    )
    if policy.mode != RestartMode.DELAY:
        return Decision(Verdict.NOT_RESTARTING, used, reason)
    left_s = (used.interval_start_ns - now_ns) / NS_PER_S + policy.interval_s
    # A wall clock that was set back must not make the wait longer than the interval it belongs to.
    return Decision(Verdict.RESTART, used, reason, min(max(left_s, 0.0), policy.interval_s))
