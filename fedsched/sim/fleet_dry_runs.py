"""R-29 in a region at rest: a dry run writes nothing, and says what registering the same job then does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio

from fedsched.model.errors import FedschedError
from fedsched.model.evaluation import Evaluation
from fedsched.model.job import Job
from fedsched.model.plan import DesiredUpdates
from fedsched.rpc.methods import job as job_methods
from fedsched.rpc.methods import job_extras as extra_methods
from fedsched.sim.fleet_checks import EVICT
from fedsched.sim.verdict import Broken
from fedsched.state.tables.plans import PlanApply

if TYPE_CHECKING:
    from fedsched.sim.fleet_people import People
    from fedsched.sim.fleet_server import FleetServer
    from fedsched.sim.fleet_world import FleetWorld

TRIES: Final = 3
STEP_S: Final = 0.1
PATIENCE_S: Final = 10.0


class DryRunCheck:
    """Compares dry runs with the runs that follow."""

    def __init__(self, world: FleetWorld, people: People) -> None:
        self._world = world
        self._people = people

    async def run(self) -> None:
        for _ in range(TRIES):
            leader = self._world.leader
            assert leader is not None
            number = self._people.jobs.some()
            await self._compare(leader, self._people.jobs.draw(number))

    async def _compare(self, leader: FleetServer, job: Job) -> None:
        said = await self._ask(leader, job)
        if said is None or job.is_periodic or job.is_parameterized:
            return
        index = leader.store.index
        request = job_methods.JobRegisterRequest(job=job)
        try:
            reply = await leader.jobs.register(request, leader.context())
        except FedschedError as refusal:
            raise Broken("R-29 dry run equals run", f"{job.id} could be planned, but not run: {refusal}") from refusal
        did = await self._end_of(leader, reply.eval_id)
        plans = self._world.checks.plans_of[reply.eval_id]
        made_at = {plan.snapshot_index for plan in plans} | ({did.snapshot_index} if did is not None else set())
        if did is None or reply.index != index + 1 or made_at != {reply.index}:
            self._world.counts["dry runs overtaken"] += 1
            return
        self._world.counts["dry runs compared"] += 1
        self._same_failures(job, did, said)
        self._same_counts(job, did, plans, said)

    async def _ask(self, leader: FleetServer, job: Job) -> extra_methods.JobPlanReply | None:
        before, entries = leader.machine.digest(), len(self._world.log.entries)
        request = extra_methods.JobPlanRequest(job=job)
        try:
            said = await leader.extras.plan(request, leader.context())
        except FedschedError:
            self._world.counts["dry runs refused"] += 1
            return None
        if len(self._world.log.entries) == entries and leader.machine.digest() != before:
            raise Broken("R-29 a dry run writes nothing", f"the state changed while {job.id} was planned", leader.name)
        return said

    async def _end_of(self, leader: FleetServer, evaluation_id: str) -> Evaluation | None:
        """The evaluation when it has ended; None if it does not in time."""
        for _ in range(round(PATIENCE_S / STEP_S)):
            row = leader.store.evaluations.row(evaluation_id)
            if row is not None and row.status != "pending":
                evaluation: Evaluation = row.evaluation()
                return evaluation
            await trio.sleep(STEP_S)
        return None

    def _same_failures(self, job: Job, did: Evaluation, said: extra_methods.JobPlanReply) -> None:
        planned, failed = (
            {name: (one.coalesced_failures, one.nodes_evaluated, one.nodes_filtered) for name, one in groups.items()}
            for groups in (said.failed_tg_allocs, did.failed_tg_allocs)
        )
        if planned != failed:
            raise Broken("R-29 dry run equals run", f"{job.id}: planned to fail {planned}, failed {failed}")

    def _same_counts(self, job: Job, did: Evaluation, plans: list[PlanApply], said: extra_methods.JobPlanReply) -> None:
        updates = said.annotations.desired_tg_updates if said.annotations is not None else {}
        wanted = updates.get("g", DesiredUpdates())
        placed = sum(len(part.ids) // 16 for plan in plans for part in plan.placed)
        evicted = sum(len(batch.ids) // 16 for plan in plans for batch in plan.stopped if _evicts(batch))
        asked = wanted.place + wanted.canary + wanted.destructive_update + wanted.migrate
        in_place = sum(len(part.ids) // 16 for plan in plans for part in plan.updated)
        told = said.annotations.preempted_allocs if said.annotations is not None else ()
        facts = (
            ("placed", asked - sum(did.queued_allocations.values()), placed),
            ("updated in place", wanted.in_place_update, in_place),
            ("evicted", len(told), evicted),
        )
        wrong = [f"{what}: planned {planned}, done {done}" for what, planned, done in facts if planned != done]
        if wrong:
            raise Broken("R-29 dry run equals run", f"{job.id}: {'; '.join(wrong)}")


def _evicts(batch: Any) -> bool:
    return bool(batch.desired == EVICT and not batch.client_status)
