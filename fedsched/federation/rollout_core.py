"""Drives one rollout from its record: what is written, what is said to which region, and when it is said again.

Theory. The record is all there is. An input is laid over the record, the rules decide what follows, and if anything
does, the new record is written first (`Store`); only what lies in a written record is said to regions (`Send`). So a
server that crashes between the two loses nothing: whoever leads the owner region next makes a core from the record and
says everything again that no region has confirmed. Regions carry out a key once, so saying it again is harmless. A
record is written only on top of the one before (`revision`), so of two servers that both believe to lead, one decides.

One write at a time; reports that come meanwhile wait, the newest of each region. One call per region at a time: a new
step takes the place of a question that the region still holds. How long a region has been silent is not in the record:
a new leader gives every region its full patience again, as it does with nodes, rather than fail a region for what
happened to the owner.

When the rollout is over its last steps are still delivered, ever more rarely: a region that was away for days is told
when it is back, for as long as the record is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from fedsched.federation import rollout_rules as rules
from fedsched.federation.rollout_share import key_of
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.rollout import Rollout, RolloutCommand, RolloutRegion, RolloutReport, RolloutStatus, RolloutStep

NS: Final = rules.NS


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How patient an owner is."""

    prepare_s: float = 30.0
    """How long a region may be unreachable at the start: longer than an election, shorter than a person waits."""
    call_s: float = 15.0
    """After which a step that was said counts as unheard, if whoever says it has not told us so before."""
    watch_s: float = 60.0
    """How long a region may hold a question for its status until there is news."""
    retry_min_s: float = 1.0
    retry_max_s: float = 30.0
    afterwards_max_s: float = 300.0
    """Between two attempts to tell a region of a rollout that is over."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The region's log has this record now: ours, or what stood there instead."""

    rollout: Rollout


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The record could not be written, or nobody knows whether it was; `current` is what the log has."""

    current: Rollout


@dataclass(frozen=True, slots=True)
class Heard:
    """A region answered."""

    report: RolloutReport
    call: int | None = None
    """Which `Send` this answers: one that was replaced is listened to, but the present one is still awaited."""


@dataclass(frozen=True, slots=True)
class Unheard:
    """A region could not be asked, or did not answer."""

    region: str
    error: str = ""
    call: int | None = None


@dataclass(frozen=True, slots=True)
class UnblockAsked:
    """A person lets blocked regions keep what they have."""

    regions: tuple[str, ...] = ()
    """None: all that are blocked."""


@dataclass(frozen=True, slots=True)
class FailAsked:
    """A person ends the rollout in some regions, or in all."""

    regions: tuple[str, ...] = ()
    reverts: bool = False
    reason: str = "failed by hand"


@dataclass(frozen=True, slots=True)
class CancelAsked:
    """A newer version of the job was submitted."""

    reason: str


Input = Stored | StoreFailed | Heard | Unheard | UnblockAsked | FailAsked | CancelAsked


@dataclass(frozen=True, slots=True)
class Store:
    """Write this record, unless the log has another than that of the revision before; then say `Stored`."""

    rollout: Rollout


@dataclass(frozen=True, slots=True)
class Send:
    """Say this to a region; its answer comes back as `Heard`, anything else as `Unheard`.

    It takes the place of whatever is under way to that region.
    """

    region: str
    command: RolloutCommand
    patience_s: float
    call: int = 0
    """Counts the calls to this region; `Heard` and `Unheard` name it."""


Effect = Store | Send


@dataclass(slots=True)
class _Line:
    """What is known of the talk with one region, and forgotten with the core."""

    heard_ns: int
    confirmed: RolloutStep | None = None
    needs_preparing: bool = False
    failures: int = 0
    busy_until_ns: int | None = None
    """A call is under way."""
    busy_with: RolloutStep | None = None
    """The step it says; None if it asks for the status."""
    rest_until_ns: int = 0
    call: int = 0

    def is_present(self, call: int | None) -> bool:
        return call is None or call == self.call

    def is_busy_with(self, step: RolloutStep | None) -> bool:
        """Whether this is under way already. A new step does not wait for the end of a held question."""
        return self.busy_until_ns is not None and self.busy_with == step


@dataclass(slots=True)
class _Waiting:
    """What came while a record was being written."""

    reports: dict[str, RolloutReport] = field(default_factory=dict)
    asked: list[UnblockAsked | FailAsked | CancelAsked] = field(default_factory=list)


class RolloutCore:
    """One rollout in the hands of the owner region's leader."""

    def __init__(self, rollout: Rollout, now_ns: int, settings: RolloutSettings | None = None) -> None:
        self.rollout = rollout
        """As the log has it."""
        self._settings = settings or RolloutSettings()
        self._lines = {one.name: _Line(heard_ns=now_ns) for one in rollout.regions}
        self._storing: Rollout | None = None
        self._waiting = _Waiting()
        self._decided_ns = now_ns

    @property
    def is_writing(self) -> bool:
        """Whether a record is on its way into the log."""
        return self._storing is not None

    def begin(self, now_ns: int) -> list[Effect]:
        """Take the rollout up: new, or as a former leader left it."""
        return self._go_on(self.rollout, now_ns)

    def handle(self, given: Input, now_ns: int) -> list[Effect]:
        """Take one input."""
        match given:
            case Stored(rollout) | StoreFailed(rollout):
                self.rollout, self._storing = rollout, None
                return self._catch_up(now_ns)
            case Heard(report, call):
                self._note(report, call, now_ns)
                if self._storing is not None:
                    self._waiting.reports[report.region] = self._newest(report)
                    return []
                return self._go_on(self._laid_over(self.rollout, given, now_ns), now_ns)
            case Unheard(region, _, call):
                if region in self._lines and self._lines[region].is_present(call):
                    self._note_silence(region, now_ns)
                return self.wake(now_ns)
            case UnblockAsked() | FailAsked() | CancelAsked():
                if self._storing is not None:
                    self._waiting.asked.append(given)
                    return []
                return self._go_on(self._laid_over(self.rollout, given, now_ns), now_ns)

    def wake(self, now_ns: int) -> list[Effect]:
        """Say again what is due, and decide what follows from silence."""
        for name, line in self._lines.items():
            if line.busy_until_ns is not None and line.busy_until_ns <= now_ns:
                self._note_silence(name, now_ns)
        return self._sends(now_ns) if self._storing is not None else self._go_on(self.rollout, now_ns)

    def wake_at_ns(self) -> float:
        """When `wake` next has something to do even if nothing is heard; infinity if never."""
        times: list[float] = [math.inf]
        for region in self.rollout.regions:
            line = self._lines[region.name]
            if self._command(region) is not None:
                times.append(line.rest_until_ns if line.busy_until_ns is None else line.busy_until_ns)
            patience_s = self._patience_s(region)
            if patience_s is not None and self._storing is None:
                due_ns = self._silent_since_ns(region) + round(patience_s * NS)
                times += [due_ns] if due_ns > self._decided_ns else []  # a silence that changed nothing is no reason
        if self._storing is None:
            times.append(rules.next_start_ns(self.rollout, self._decided_ns))
        return min(times)

    def is_done(self) -> bool:
        """Whether the rollout is over and every region has been told."""
        return self.rollout.status.is_over and all(self._command(one) is None for one in self.rollout.regions)

    def _catch_up(self, now_ns: int) -> list[Effect]:
        """Lay over what came during a write."""
        waiting, self._waiting = self._waiting, _Waiting()
        draft = self.rollout
        for report in waiting.reports.values():
            draft = self._laid_over(draft, Heard(report), now_ns)
        for asked in waiting.asked:
            draft = self._laid_over(draft, asked, now_ns)
        return self._go_on(draft, now_ns)

    def _laid_over(self, rollout: Rollout, given: Input, now_ns: int) -> Rollout:
        match given:
            case Heard(report) if report.ballot > rollout.ballot and report.rollout_id == rollout.id:
                return rules.adopted_by(rollout, report.owner, report.epoch)
            case Heard(report):
                return rules.observed(rollout, report)
            case UnblockAsked(regions):
                return rules.unblocked(rollout, regions, now_ns)
            case FailAsked(regions, reverts, reason):
                return rules.failed(rollout, regions, now_ns, reverts=reverts, reason=reason)
            case CancelAsked(reason):
                return rules.cancelled(rollout, reason)
            case _:
                return rollout

    def _go_on(self, draft: Rollout, now_ns: int) -> list[Effect]:
        """Decide; write what is new; say what is written and due."""
        self._decided_ns = now_ns
        draft = rules.decided(draft, now_ns, self._silent(draft.regions, now_ns))
        effects: list[Effect] = []
        if draft != self.rollout:
            self._storing = replace(draft, revision=self.rollout.revision + 1, modify_time_ns=now_ns)
            effects.append(Store(self._storing))
        return [*effects, *self._sends(now_ns)]

    def _sends(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for region in self.rollout.regions:
            line = self._lines[region.name]
            command = self._command(region)
            if command is None or line.rest_until_ns > now_ns or line.is_busy_with(command.step):
                continue
            patience_s = self._settings.call_s + (self._settings.watch_s if command.step is None else 0)
            line.busy_until_ns, line.busy_with = now_ns + round(patience_s * NS), command.step
            line.call += 1
            effects.append(Send(region.name, command, patience_s, line.call))
        return effects

    def _command(self, region: RolloutRegion) -> RolloutCommand | None:
        """What the region is to be told or asked now; None if nothing."""
        status = self.rollout.status
        if status in (RolloutStatus.CANCELLED, RolloutStatus.ADOPTED):
            return None
        line = self._lines[region.name]
        if line.needs_preparing:
            return self._saying(region, RolloutStep.PREPARE)
        if region.is_unsure:
            return self._saying(region, None)
        if region.status in rules.FINAL:
            return None
        if line.confirmed is None or line.confirmed.rank < region.step.rank:
            return self._saying(region, region.step)
        return None if status.is_over and region.step is not RolloutStep.UNBLOCK else self._saying(region, None)

    def _saying(self, region: RolloutRegion, step: RolloutStep | None) -> RolloutCommand:
        rollout = self.rollout if step is RolloutStep.PREPARE else replace(self.rollout, job=None)
        key = key_of(rollout.id, region.name, step) if step is not None else ""
        return RolloutCommand(key=key, region=region.name, rollout=rollout, step=step, seen=region.status)

    def _note(self, report: RolloutReport, call: int | None, now_ns: int) -> None:
        """The region lives; what it has carried out need not be said again."""
        line = self._lines.get(report.region)
        if line is None or report.rollout_id != self.rollout.id:
            return
        line.heard_ns, line.failures, line.rest_until_ns = now_ns, 0, 0
        if line.is_present(call):
            line.busy_until_ns = None
        region = self.rollout.region(report.region)
        if report.step is None:
            is_needed = region is not None and region.step in (RolloutStep.RUN, RolloutStep.UNBLOCK)
            line.needs_preparing = is_needed and region is not None and region.status not in rules.FINAL
            line.confirmed = None
            line.rest_until_ns = now_ns + round(self._settings.retry_min_s * NS)
        elif line.confirmed is None or report.step.rank >= line.confirmed.rank:
            line.confirmed, line.needs_preparing = report.step, False

    def _note_silence(self, name: str, now_ns: int) -> None:
        line = self._lines[name]
        most_s = self._settings.afterwards_max_s if self.rollout.status.is_over else self._settings.retry_max_s
        rest_s = min(self._settings.retry_min_s * 2 ** min(line.failures, 30), most_s)
        line.failures += 1
        line.busy_until_ns, line.rest_until_ns = None, now_ns + round(rest_s * NS)

    def _newest(self, report: RolloutReport) -> RolloutReport:
        """Of two reports that wait for the same write, the one that says more."""
        before = self._waiting.reports.get(report.region)
        if before is None or before.ballot < report.ballot:
            return report
        return report if rules.is_further(report, before) else before

    def _patience_s(self, region: RolloutRegion) -> float | None:
        """How long the region may be silent before that decides something; None if it decides nothing."""
        status = self.rollout.status
        if status is RolloutStatus.PREPARING:
            is_waited_for = region.status is DeploymentStatus.INITIALIZING and not region.is_skipped
            may_wait = self.rollout.strategy.on_unreachable == "wait"
            return self._settings.prepare_s if is_waited_for and not may_wait else None
        if status is RolloutStatus.UNBLOCKING:
            is_waited_for = region.step is RolloutStep.UNBLOCK and region.status not in rules.FINAL
        else:
            is_waited_for = not status.is_over and rules.is_in_turn(region)
        return self.rollout.strategy.region_deadline_s if is_waited_for else None

    def _silent_since_ns(self, region: RolloutRegion) -> int:
        return max(region.decided_time_ns, self._lines[region.name].heard_ns)

    def _silent(self, regions: Iterable[RolloutRegion], now_ns: int) -> frozenset[str]:
        overdue = set()
        for region in regions:
            patience_s = self._patience_s(region)
            if patience_s is not None and self._silent_since_ns(region) + round(patience_s * NS) <= now_ns:
                overdue.add(region.name)
        return frozenset(overdue)
