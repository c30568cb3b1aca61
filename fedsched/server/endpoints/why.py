"""Answers why things are as they are, from this server's own state and fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fedsched.model.errors import NotFound
from fedsched.model.job import Job
from fedsched.rpc.method import Method
from fedsched.rpc.methods import why as methods
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.scheduler.explain import alloc_why, job_why_in_pieces, node_why_not
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.schedule import BUILT_IN, MakeScheduling
from fedsched.server.desk import Desk
from fedsched.server.pieces import in_turns
from fedsched.server.served_types import BuiltInServed, Served
from fedsched.server.waits import Look
from fedsched.state.store import State


class WhyEndpoint:
    """Answers `Job.Why`, `Alloc.Why` and `Node.WhyNot`."""

    def __init__(
        self,
        desk: Desk,
        fleet: Callable[[], Fleet],
        *,
        served: Served | None = None,
        schedulers: Mapping[str, MakeScheduling] = BUILT_IN,
    ) -> None:
        self._desk = desk
        self._fleet = fleet
        self._served = served or BuiltInServed()
        self._schedulers = schedulers

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.JOB_WHY: self.job,
            methods.ALLOC_WHY: self.alloc,
            methods.NODE_WHY_NOT: self.node,
        }

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        """None: an answer hangs on the whole region and on the time, so there is nothing to wait for."""
        return {}

    async def job(self, request: methods.JobWhyRequest, context: CallContext) -> methods.JobWhyReply:
        job = self._job(request.job_id, request.group, context)
        lacking = "" if job.stop else await self._served.lacking(job.type)
        work = job_why_in_pieces(
            self._desk.machine.store,
            self._fleet(),
            job,
            self._desk.proposals.now_ns(),
            request.group,
            schedulers=self._schedulers,
            lacking=lacking,
        )
        why = await in_turns(work)
        return methods.JobWhyReply(why=why)

    async def alloc(self, request: methods.AllocWhyRequest, context: CallContext) -> methods.AllocWhyReply:
        alloc = self._state.allocations.get(request.alloc_id)
        if alloc is None:
            raise NotFound(f"allocation {request.alloc_id!r} not found", hint="`fedsched alloc list` shows them")
        return methods.AllocWhyReply(why=alloc_why(self._state, alloc, self._desk.proposals.now_ns()))

    async def node(self, request: methods.NodeWhyNotRequest, context: CallContext) -> methods.NodeWhyNotReply:
        job = self._job(request.job_id, request.group, context)
        fleet = self._fleet()
        slot = fleet.slot_of(request.node_id)
        if slot is None:
            raise NotFound(f"node {request.node_id!r} not found", hint="`fedsched node status` lists them")
        return methods.NodeWhyNotReply(why=node_why_not(self._state, fleet, slot, job, request.group))

    @property
    def _state(self) -> State:
        return self._desk.machine.store

    def _job(self, job_id: str, group: str, context: CallContext) -> Job:
        namespace = context.meta.namespace or "default"
        job = self._state.jobs.get(namespace, job_id)
        if job is None:
            raise NotFound(
                f"job {job_id!r} not found in namespace {namespace!r}", hint="`fedsched job status` lists them"
            )
        if group and job.group(group) is None:
            names = ", ".join(one.name for one in job.task_groups)
            raise NotFound(f"job {job_id!r} has no group {group!r}", hint=f"it has {names}")
        return job
