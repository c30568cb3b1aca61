"""Takes over a rollout whose owner region is lost for good.

A region that is listed in the rollout asks all listed regions to listen to it from now on, with a ballot above the
former owner's. A majority must agree; each tells with its agreement what it has done and what it last heard of the
owner's record. The newest of those copies, corrected by what the regions themselves say, is the record that goes on.

Why a majority: whoever agreed ignores the former owner, so should that one be alive after all, it hears of its
successor from the first of them that it talks to. Regions that have not been heard may have come further than the
copies say. They are unsure in the new record: each keeps a place among the `max_parallel` until it is heard or its
deadline has passed.

With two regions there is no majority without the lost one: then a person's word is enough, and nothing else is.

Nothing here is stored until the end. A leader that finds its own region's share to name itself as the owner, and no
record of that ballot, begins the adoption anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from fedsched.federation import rollout_rules as rules
from fedsched.federation.rollout_core import NS, Effect, Heard, RolloutSettings, Send, Store, Unheard
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.rollout import Rollout, RolloutCommand, RolloutRegion, RolloutReport, RolloutStatus, RolloutStep

GATHER_S: Final = 5.0
"""How long slow regions are waited for once enough have agreed: what they say makes the record better."""


@dataclass(frozen=True, slots=True)
class Outbid:
    """Another region asked with a higher ballot: this adoption is over."""

    owner: str
    epoch: int


AdoptionEffect = Effect | Outbid


def next_epoch(known: Rollout) -> int:
    """The epoch to adopt with."""
    return known.epoch + 1


def agreement_needed(regions: int, *, by_hand: bool) -> int:
    """How many listed regions must agree, the adopting one among them."""
    return 1 if by_hand and regions == 2 else regions // 2 + 1


class AdoptionCore:
    """One attempt of one region."""

    def __init__(
        self, known: Rollout, me: str, *, epoch: int, by_hand: bool, settings: RolloutSettings | None = None
    ) -> None:
        self._settings = settings or RolloutSettings()
        self._asking = replace(known, owner=me, epoch=epoch)
        self._needed = agreement_needed(len(known.regions), by_hand=by_hand)
        self._known = known
        self._agreed: dict[str, RolloutReport] = {}
        self._due_ns: dict[str, int] = {one.name: 0 for one in known.regions}
        self._failures: dict[str, int] = {}
        self._gather_until_ns: int | None = None
        self._is_over = False

    def begin(self, now_ns: int) -> list[AdoptionEffect]:
        """Ask our own region, and then everybody: a ballot that others know must be found again after a crash."""
        return self.wake(now_ns)

    def handle(self, given: Heard | Unheard, now_ns: int) -> list[AdoptionEffect]:
        """Take one answer."""
        match given:
            case Heard(report) if report.rollout_id != self._known.id or report.region not in self._due_ns:
                return []
            case Heard(report) if report.ballot > self._asking.ballot and not self._is_over:
                self._is_over = True
                return [Outbid(report.owner, report.epoch)]
            case Heard(report) if report.ballot == self._asking.ballot and report.step is not None:
                before = self._agreed.get(report.region)
                if before is None or report.seen is not None:
                    self._agreed[report.region] = report
            case Heard(report):
                self._rest(report.region, now_ns)
            case Unheard(region):
                self._rest(region, now_ns)
        return self.wake(now_ns)

    def wake(self, now_ns: int) -> list[AdoptionEffect]:
        """Ask again who has not answered; write the record once enough have agreed."""
        if self._is_over:
            return []
        if len(self._agreed) >= self._needed and self._gather_until_ns is None:
            self._gather_until_ns = now_ns + round(GATHER_S * NS)
        is_complete = len(self._agreed) == len(self._due_ns)
        if self._gather_until_ns is not None and (is_complete or self._gather_until_ns <= now_ns):
            self._is_over = True
            return [Store(adopted(self._known, self._agreed, self._asking, now_ns))]
        effects: list[AdoptionEffect] = []
        me = self._asking.owner
        asked = self._due_ns if me in self._agreed else (me,)
        for name in [one for one in asked if self._due_ns[one] <= now_ns and one not in self._agreed]:
            self._due_ns[name] = now_ns + round(self._settings.call_s * NS)
            effects.append(Send(name, self._command(name), self._settings.call_s))
        return effects

    def wake_at_ns(self) -> float:
        """When `wake` is due even if nothing is heard; infinity if never."""
        if self._is_over:
            return math.inf
        asked = self._due_ns if self._asking.owner in self._agreed else (self._asking.owner,)
        times: list[float] = [self._due_ns[name] for name in asked if name not in self._agreed]
        if self._gather_until_ns is not None:
            times.append(self._gather_until_ns)
        return min(times, default=math.inf)

    def _command(self, name: str) -> RolloutCommand:
        key = f"{self._known.id}/{name}/adopt/{self._asking.epoch}/{self._asking.owner}"
        return RolloutCommand(key=key, region=name, rollout=replace(self._asking, job=None), adopts=True)

    def _rest(self, name: str, now_ns: int) -> None:
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        rest_s = min(self._settings.retry_min_s * 2 ** min(failures - 1, 30), self._settings.retry_max_s)
        self._due_ns[name] = now_ns + round(rest_s * NS)


def adopted(known: Rollout, agreed: dict[str, RolloutReport], asking: Rollout, now_ns: int) -> Rollout:
    """The record that goes on: the newest copy, corrected by those who were heard."""
    copies = [known, *(report.seen for report in agreed.values() if report.seen is not None)]
    newest = max(copies, key=lambda one: (one.ballot, one.revision))
    regions = tuple(_corrected(one, agreed.get(one.name), now_ns) for one in newest.regions)
    status = newest.status
    if status is RolloutStatus.PREPARING and any(one.step is not RolloutStep.PREPARE for one in regions):
        status = RolloutStatus.RUNNING
    return replace(
        newest,
        job=next((copy.job for copy in copies if copy.job is not None), None),
        owner=asking.owner,
        epoch=asking.epoch,
        revision=newest.revision + 1,
        regions=regions,
        status=status,
        status_description=f"adopted by {asking.owner} in epoch {asking.epoch}",
        modify_time_ns=now_ns,
    )


def _corrected(region: RolloutRegion, report: RolloutReport | None, now_ns: int) -> RolloutRegion:
    """A region as the new owner has it; its bake time begins anew, since nobody compares the clocks of two owners."""
    if report is None or report.step is None:
        knows_enough = rules.is_settled(region) or region.status in rules.HEALTHY
        return replace(region, is_unsure=not knows_enough, decided_time_ns=now_ns, healthy_time_ns=0)
    step = report.step if report.step.rank >= region.step.rank else region.step
    is_news = rules.furtherance(report.status) >= rules.furtherance(region.status)
    status: DeploymentStatus = report.status if is_news else region.status
    error = report.error if is_news else region.error
    return replace(
        region, step=step, status=status, error=error, is_unsure=False, decided_time_ns=now_ns, healthy_time_ns=0
    )
