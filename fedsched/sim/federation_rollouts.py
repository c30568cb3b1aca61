"""People of a simulated federation who have jobs in several regions; and what must have become of those in the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import trio

from fedsched.model.errors import FedschedError
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, Multiregion, MultiregionRegion, MultiregionStrategy
from fedsched.model.policies import ReschedulePolicy, UpdateStrategy
from fedsched.model.resources import Resources
from fedsched.model.rollout import Rollout
from fedsched.model.task import Task
from fedsched.rpc.context import CallMeta, RequestID
from fedsched.rpc.method import Method
from fedsched.rpc.methods.job import JOB_DEREGISTER, JOB_REGISTER, JobDeregisterRequest, JobRegisterRequest
from fedsched.rpc.methods.rollout import (
    ROLLOUT_ADOPT,
    ROLLOUT_FAIL,
    ROLLOUT_UNBLOCK,
    RolloutAdoptRequest,
    RolloutFailRequest,
    RolloutUnblockRequest,
)
from fedsched.sim.federation_plan import Wish
from fedsched.sim.federation_steps import ENDED, OVER
from fedsched.sim.fleet_jobs import PROGRESS_S
from fedsched.sim.streams import stream
from fedsched.sim.verdict import Broken

if TYPE_CHECKING:
    from fedsched.sim.federation_region import FederationRegion
    from fedsched.sim.federation_world import Federation

PATIENCE_S: Final = 15.0
SILENCE_S: Final = 15.0
"""How long a region may be silent in its turn."""
PAUSE_MAX_S: Final = 5.0
MISSED_S: Final = 12.0
"""After which people have another region drive what a lost one drove."""
ENDS_S: Final = 60.0
"""Three regions, each of which takes until its deadline."""
HEARS_S: Final = 20.0
"""What a region that was away may take to hear of the end, and to bring its own part to one."""
ENDS: Final = "R-65 rollouts end"


def spread_job(wish: Wish, key: str) -> Job:
    """A new version of a job of several regions."""
    update = UpdateStrategy(
        max_parallel=2,
        min_healthy_time_s=0.5,
        healthy_deadline_s=PROGRESS_S - 2,
        progress_deadline_s=PROGRESS_S,
        auto_revert=wish.reverts,
    )
    task = Task(
        name="main",
        driver="mock_driver",
        config={"run_for": "1h"},
        env={"KEY": key},
        resources=Resources(cpu=20, memory_mb=16),
    )
    group = TaskGroup(
        name="g",
        count=wish.count,
        tasks=(task,),
        update=update,
        reschedule_policy=ReschedulePolicy(attempts=0, unlimited=False),
    )
    strategy = MultiregionStrategy(
        max_parallel=wish.max_parallel,
        on_failure=wish.on_failure,
        on_unreachable=wish.on_unreachable,
        region_deadline_s=SILENCE_S,
    )
    return Job(
        id=wish.job_id,
        name=wish.job_id,
        type="service",
        datacenters=("*",),
        meta={"unwell": " ".join(wish.unwell), "key": key},
        multiregion=Multiregion(
            strategy=strategy, regions=tuple(MultiregionRegion(name=name) for name in wish.regions)
        ),
        task_groups=(group,),
    )


class Owners:
    """Those whose jobs span regions: they have new versions, and opinions about the old ones."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._chance = stream(federation.seed, "owners")
        self.accepted: dict[str, bool] = {}
        """By key: whether a new version was taken in, or refused; one that is not here got no answer."""
        self.stopped: dict[tuple[str, str], int] = {}
        """By region and job: at which index of the region's log it was stopped in all regions."""

    async def live(self, nursery: trio.Nursery, since_s: float) -> None:
        """Everything that was wished for, at its time; each goes on until it is answered."""
        for trouble in self._federation.plan.troubles:
            if trouble.kind == "lost":
                nursery.start_soon(self._miss, trouble.region, since_s + trouble.at_s + MISSED_S)
        for number, wish in enumerate(self._federation.plan.wishes):
            await trio.sleep_until(since_s + wish.at_s)
            nursery.start_soon(self._have, wish, f"wish-{number}")

    async def _miss(self, name: str, at_s: float) -> None:
        """Have others drive what a region drove that is lost for good."""
        await trio.sleep_until(at_s)
        lost = self._federation.regions[name]
        if not lost.is_lost:
            return  # it has a trouble of another kind to get over first
        for record in sorted(self._federation.steps.records.values(), key=lambda one: one.id):
            heirs = [region for region in self._federation.alive if record.region(region.region) is not None]
            if record.owner == lost.region and record.status.value not in OVER and heirs:
                request = RolloutAdoptRequest(rollout_id=record.id)
                self._federation.nursery.start_soon(
                    self._until_answered, heirs[0], ROLLOUT_ADOPT, request, f"adopt-{record.id}"
                )

    async def _have(self, wish: Wish, key: str) -> None:
        region, federation = self._federation.regions[wish.through], self._federation
        federation.counts[f"wish: {wish.kind}"] += 1
        if wish.kind == "submit":
            reply = await self._until_answered(
                region, JOB_REGISTER, JobRegisterRequest(job=spread_job(wish, key)), key, is_new=True
            )
            federation.counts["wish: taken in"] += reply is not None
            return
        if wish.kind == "stop":
            request = JobDeregisterRequest(job_id=wish.job_id, global_=True)
            reply = await self._until_answered(region, JOB_DEREGISTER, request, key)
            for one in reply.regions if reply is not None else ():
                if not one.error:
                    self.stopped[one.region, wish.job_id] = one.index
            return
        record = self._newest(wish.job_id)
        if record is not None:
            names = tuple(name for name in wish.regions if record.region(name) is not None)
            await self._decide(region, wish.kind, record, names, key, reverts=wish.reverts)

    async def _decide(
        self,
        region: FederationRegion,
        kind: str,
        record: Rollout,
        names: tuple[str, ...],
        key: str,
        *,
        reverts: bool = False,
    ) -> None:
        self._federation.steps.by_hand.add(record.id)
        request: Any = RolloutUnblockRequest(rollout_id=record.id, regions=names)
        if kind == "fail":
            request = RolloutFailRequest(rollout_id=record.id, regions=names, reverts=reverts)
        method = ROLLOUT_FAIL if kind == "fail" else ROLLOUT_UNBLOCK
        await self._until_answered(region, method, request, key)

    def _newest(self, job_id: str) -> Rollout | None:
        records = [one for one in self._federation.steps.records.values() if one.job_id == job_id]
        return max(records, key=lambda one: one.job_version, default=None)

    async def _until_answered(
        self, region: FederationRegion, method: Method[Any, Any], request: Any, key: str, *, is_new: bool = False
    ) -> Any:
        """What was said to it in the end; None if it was refused, or there is nobody left to ask."""
        pause_s = 0.3
        while not region.is_lost:
            names = sorted(region.servers)
            server = region.server(self._chance.choice(names)) if names else None
            if server is not None:
                meta = CallMeta(
                    region=region.region, namespace="default", request_id=RequestID(session=f"owner-{key}", seq=1)
                )
                try:
                    with trio.fail_after(PATIENCE_S):
                        reply, _ = await server.local.call(method, request, meta)
                    if is_new:
                        self.accepted[key] = True
                    self._note(region, f"{method.name} {key} done")
                    return reply
                except FedschedError as error:
                    self._note(region, f"{method.name} {key} {type(error).__name__}: {error}")
                    if 400 <= error.http_status < 500 and error.http_status != 429:
                        self.accepted[key] = self.accepted.get(key, False)
                        return None
                except trio.TooSlowError:
                    self._note(region, f"{method.name} {key} no answer")
            await trio.sleep(pause_s * self._chance.uniform(1.0, 2.0))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        return None

    def _note(self, region: FederationRegion, what: str) -> None:
        self._federation.trace.note(round(trio.current_time() * 1e6), region.region, "asks", what)

    # ------------------------------------------------------------------ in the end

    async def settle(self) -> None:
        """Decide what waits for a person, in one way or the other."""
        for record in self._resting():
            owner = self._federation.regions[record.owner]
            kind = "fail" if record.status.value == "preparing" else self._chance.choice(("unblock", "fail"))
            await self._decide(owner, kind, record, (), f"settle-{record.id}")

    def _resting(self) -> list[Rollout]:
        """Rollouts that rightly wait for a person."""
        found = []
        for record in self._driven():
            waits_for_lost = record.status.value == "preparing" and record.strategy.on_unreachable == "wait"
            if record.status.value == "blocked" or waits_for_lost:
                found.append(record)
        return found

    def _driven(self) -> list[Rollout]:
        """The newest record of each rollout whose owner is there."""
        records = sorted(self._federation.steps.records.values(), key=lambda one: one.id)
        return [one for one in records if not self._federation.regions[one.owner].is_lost]

    async def until_resting(self) -> None:
        """R-65: soon everything is over, or waits for a person."""

        def unsettled() -> list[Rollout]:
            resting = {one.id for one in self._resting()}
            return [one for one in self._driven() if one.status.value not in OVER and one.id not in resting]

        await _until_none(unsettled)

    async def until_over(self) -> None:
        """R-65: soon everything is over, and every region has heard how."""
        await _until_none(lambda: [one for one in self._driven() if one.status.value not in OVER])
        stop_at = trio.current_time() + HEARS_S
        while True:
            try:
                return self._check_over()
            except Broken:
                if trio.current_time() > stop_at:
                    raise
            await trio.sleep(1.0)

    def _check_over(self) -> None:
        steps = self._federation.steps
        for key, count in sorted(steps.began.items()):
            if count > 1:
                raise Broken("R-67 once", f"{key} began {count} rollouts")
        for key, is_accepted in sorted(self.accepted.items()):
            if is_accepted and not steps.began[key]:
                raise Broken("R-67 not lost", f"{key} was acknowledged, and no rollout began")
        for record in self._driven():
            if record.status.value != "adopted":
                self._check_parts(record)

    def _check_parts(self, record: Rollout) -> None:
        newest = self._newest(record.job_id)
        for region in self._federation.alive:
            assert region.leader is not None
            state = region.leader.store
            share = state.rollouts.share_row("default", record.job_id)
            mine = record.region(region.region)
            if share is not None and share.rollout_id == record.id and record.status.value != "cancelled" and mine:
                deployment = state.deployments.rows.get(share.deployment_id)
                if deployment is not None and deployment.status != share.status:
                    what = f"{record.id}: its part is {share.status}, its deployment {deployment.status}"
                    raise Broken(ENDS, what, region.region)
                wanted = {"unblock": ("successful", "failed", "cancelled"), "withdraw": ("cancelled", "failed")}
                if share.status not in wanted.get(mine.step.value, ENDED):
                    what = f"{record.id} is {record.status.value} with {mine.step.value}, its part is {share.status}"
                    raise Broken(ENDS, what, region.region)
            runs = record.status.value == "successful" and newest is record
            if runs and region.region in record.leaves:
                row = state.jobs.row("default", record.job_id)
                if row is not None and not row.stop and row.version < record.job_version:
                    raise Broken("R-65 regions are left", f"{record.job_id} still runs", region.region)


async def _until_none(found: Callable[[], list[Rollout]]) -> None:
    stop_at = trio.current_time() + ENDS_S
    while left := found():
        if trio.current_time() > stop_at:
            what = f"{left[0].id} is {left[0].status.value}: {_standing(left[0])}"
            raise Broken(ENDS, what, left[0].owner)
        await trio.sleep(1.0)


def _standing(record: Rollout) -> str:
    return ", ".join(f"{one.name} {one.step.value}/{one.status.value}" for one in record.regions)
