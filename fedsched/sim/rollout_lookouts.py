"""Leaders that look after the owner of a rollout, in the simulation: the runner's part, with late and lost answers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fedsched.federation.adoption_watch import AdoptionWatch, Answered, Ask, Begin, Input, Unanswered
from fedsched.federation.rollout_core import NS
from fedsched.model.rollout import RolloutStanding, RolloutStatus
from fedsched.sim.rollout_promises import check_may_adopt
from fedsched.sim.rollout_truth import ASK_S, END_S, Region

if TYPE_CHECKING:
    from fedsched.sim.rollout_world import World


class Lookouts:
    """Those of one world."""

    def __init__(self, world: World) -> None:
        self._world = world

    def tell(self, region: Region, given: Input | None) -> None:
        """Tell a region's leader something, or that time has passed."""
        if region.watch is None or not self._world.is_up(region):
            return
        now_ns = round(self._world.now * NS)
        for effect in region.watch.wake(now_ns) if given is None else region.watch.handle(given, now_ns):
            match effect:
                case Ask(rollout_id, name):
                    self._ask(region, region.watch, rollout_id, self._world.regions[name])
                case Begin(_, epoch):
                    self._begin_alone(region, epoch)
        due = max(region.watch.wake_at_ns() / NS, self._world.now) + 0.001
        if due < min(region.watch_wakes_at, END_S):
            region.watch_wakes_at = due
            self._world.at(due, partial(self._wake_watch, region, due))

    def _wake_watch(self, region: Region, due: float) -> None:
        if region.watch_wakes_at == due:
            region.watch_wakes_at = float("inf")
            self.tell(region, None)

    def _ask(self, region: Region, watch: AdoptionWatch, rollout_id: str, other: Region) -> None:
        there, back = self._world.delay(), self._world.delay()
        given_up_at = self._world.now + ASK_S
        is_in_time = there + back < ASK_S and not (self._world.is_lost() or self._world.is_lost())

        def answer() -> None:
            is_heard = is_in_time and self._world.can_reach(region, other)
            standing = self._standing(other, rollout_id) if is_heard else None
            if standing is None:
                self._world.at(max(given_up_at, self._world.now), lambda: hear(Unanswered(rollout_id, other.name)))
            else:
                self._world.at(self._world.now + back, lambda: hear(Answered(standing)))

        def hear(given: Answered | Unanswered) -> None:
            if region.watch is not watch:
                return
            if isinstance(given, Answered):
                region.heard_at[other.name] = self._world.now
                if given.standing.drives:
                    region.heard_at[given.standing.owner] = self._world.now
            self.tell(region, given)

        self._world.at(self._world.now + there, answer)

    def _standing(self, region: Region, rollout_id: str) -> RolloutStanding | None:
        """What a region's leader says, as the servers' endpoint has it."""
        if region.watch is None or not self._world.is_up(region):
            return None
        record, share = region.record, region.share
        agreed = share.ballot if share is not None else (0, "")
        driven = record.ballot if record is not None and record.status is not RolloutStatus.ADOPTED else (0, "")
        promised = (share.epoch, share.owner) if share is not None and share.owner == region.name else (0, "")
        adopts = bool(promised[1]) and (record is None or record.ballot < promised)
        epoch, owner = max(agreed, driven)
        return RolloutStanding(
            region=region.name,
            rollout_id=rollout_id,
            is_known=record is not None or share is not None,
            drives=owner == region.name and (driven == (epoch, owner) or adopts),
            epoch=epoch,
            owner=owner,
            heard_ago_s=region.watch.heard_ago_s(rollout_id, round(self._world.now * NS)),
        )

    def _begin_alone(self, region: Region, epoch: int) -> None:
        check_may_adopt(self._world, region, epoch)
        self._world.adoptions_alone += 1
        if not self._world.is_adopting(region):
            self._world.bid(region, epoch)
