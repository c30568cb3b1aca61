"""When a check is due, what a run of it means, and when it costs the task a restart. No clock, no sockets.

A check first runs after half an interval and then every interval, counted from the start of the run before: a slow
answer does not shift the ones after it, and one that takes longer than an interval is followed at once by the next.

A status changes only after as many results in a row as the check asks for. A failure counts towards a restart from the
moment the task has been up for the grace period; the restart that follows begins a new grace.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from msgspec import structs

from fedsched.model.check import CheckMode, CheckResult, CheckStatus

NS: Final = 1_000_000_000
OUTPUT_BYTES: Final = 3 * 1024
INITIAL: Final = {
    "passing": CheckStatus.SUCCESS,
    "warning": CheckStatus.WARNING,
    "critical": CheckStatus.FAILURE,
}


class CheckKind(StrEnum):
    HTTP = "http"
    TCP = "tcp"
    SCRIPT = "script"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class RestartRule:
    """When failures restart the task."""

    limit: int
    grace_s: float = 1.0
    ignore_warnings: bool = False


@dataclass(frozen=True, slots=True)
class CheckRules:
    """One check, as far as its schedule and its verdicts are concerned."""

    id: str
    name: str
    service: str
    task: str
    group: str
    interval_s: float
    on_update: str = "require_healthy"
    initial_status: str = ""
    success_before_passing: int = 0
    failures_before_critical: int = 0
    restart: RestartRule | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run found."""

    status: CheckStatus
    output: str = ""
    code: int = 0


@dataclass(frozen=True, slots=True)
class TaskUp:
    """Whether the task that a restart would hit runs, and since when (wall clock)."""

    is_running: bool
    since_ns: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """What becomes of a run."""

    result: CheckResult
    restart_reason: str = ""


class CheckCore:
    """The life of one check."""

    def __init__(self, rules: CheckRules, now: float) -> None:
        self.rules = rules
        self.due_at = now + rules.interval_s / 2
        self._row = 0
        """Results of the same kind in a row."""
        self._last: CheckStatus | None = None
        self._failures = 0
        self._counted_since_ns = 0
        """The start of the task that `_failures` are of."""
        self.result = CheckResult(
            id=rules.id,
            check=rules.name,
            service=rules.service,
            task=rules.task,
            group=rules.group,
            mode=CheckMode.READINESS if rules.on_update == "ignore" else CheckMode.HEALTHINESS,
            status=INITIAL.get(rules.initial_status, CheckStatus.PENDING),
            on_update=rules.on_update,
        )

    def begin(self, now: float) -> None:
        """A run starts; from now on the next one is due an interval later."""
        self.due_at = max(now, self.due_at + self.rules.interval_s)

    def took(self, outcome: Outcome, up: TaskUp, now_ns: int) -> Judged:
        """A run is over."""
        self._row = self._row + 1 if outcome.status is self._last else 1
        self._last = outcome.status
        status = self.result.status
        if self._row >= self._needed(outcome.status):
            status = outcome.status
        self.result = structs.replace(
            self.result,
            status=status,
            status_code=outcome.code,
            output=shortened(outcome.output),
            timestamp_ns=now_ns,
        )
        return Judged(self.result, self._restart(outcome, up, now_ns))

    def _needed(self, status: CheckStatus) -> int:
        wanted = self.rules.success_before_passing
        if status is CheckStatus.FAILURE:
            wanted = self.rules.failures_before_critical
        return max(1, wanted)

    def _restart(self, outcome: Outcome, up: TaskUp, now_ns: int) -> str:
        rule = self.rules.restart
        if rule is None or rule.limit <= 0 or not up.is_running:
            self._failures = 0
            return ""
        if up.since_ns != self._counted_since_ns:
            self._counted_since_ns, self._failures = up.since_ns, 0
        is_good = outcome.status is CheckStatus.SUCCESS
        if is_good or (rule.ignore_warnings and outcome.status is CheckStatus.WARNING):
            self._failures = 0
            return ""
        if now_ns < up.since_ns + round(rule.grace_s * NS):
            return ""
        self._failures += 1
        if self._failures < rule.limit:
            return ""
        self._failures = 0
        return f"check {self.rules.name!r} of service {self.rules.service!r} failed {rule.limit} times in a row"


def shortened(output: str) -> str:
    """As much of an output as is kept."""
    return output.encode(errors="replace")[:OUTPUT_BYTES].decode(errors="ignore")
