"""Allocations, read from this server's own state; stopping one is a wish that its job's scheduler sees to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from msgspec import structs

from fedsched.model.alloc import Allocation
from fedsched.model.errors import NotFound
from fedsched.model.evaluation import Evaluation, Trigger
from fedsched.model.ids import is_uuid, uuid_bytes, uuid_prefix
from fedsched.model.job import JobType
from fedsched.rpc.method import Method
from fedsched.rpc.methods import alloc as methods
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.alloc_stubs import alloc_stubs, whole_allocation
from fedsched.server.desk import Desk
from fedsched.server.paging import limit_of
from fedsched.server.waits import Look, Looked
from fedsched.state.changes import ALLOCATIONS
from fedsched.state.columns import Slots
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import Flag, id_of
from fedsched.state.tables.alloc_updates import AllocTransition
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.waits import allocs_of_job, one_alloc, whole_table

ANY_NAMESPACE: Final = "*"
STEP: Final = 1000


class AllocEndpoint:
    """Answers `Alloc.*`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {methods.ALLOC_LIST: self.list, methods.ALLOC_GET: self.get, methods.ALLOC_STOP: self.stop}

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {methods.ALLOC_LIST: self._look_at_list, methods.ALLOC_GET: self._look_at_one}

    async def list(self, request: methods.AllocListRequest, context: CallContext) -> methods.AllocListReply:
        """A page of allocations, oldest first; the token is the create index and id of the one it begins with."""
        namespace = context.meta.namespace or "default"
        limit = limit_of(request)
        found: list[int] = []
        next_token = ""
        for slot in self._slots(request, namespace):
            if not self._is_wanted(slot, request, namespace):
                continue
            if len(found) == limit:
                row = self._state.allocations.columns.one(slot)
                next_token = f"{int(row['create_index'])}.{self._id(slot)}"
                break
            found.append(slot)
        stubs = alloc_stubs(
            self._state, np.array(found, dtype=np.int64), resources=request.resources, task_states=request.task_states
        )
        return methods.AllocListReply(allocs=stubs, next_token=next_token)

    async def get(self, request: methods.AllocRequest, context: CallContext) -> methods.AllocGetReply:
        return methods.AllocGetReply(alloc=self._whole(request.alloc_id))

    async def stop(self, request: methods.AllocStopRequest, context: CallContext) -> methods.AllocStopReply:
        alloc = self._whole(request.alloc_id)
        job = self._state.jobs.row(alloc.namespace, alloc.job_id)
        is_batch = job is not None and job.type in (JobType.BATCH.value, JobType.SYSBATCH.value)
        flags = Flag.MIGRATE
        if request.no_shutdown_delay:
            flags |= Flag.NO_SHUTDOWN_DELAY
        if request.reschedule or is_batch:
            flags |= Flag.RESCHEDULE
        now_ns = self._desk.proposals.now_ns()
        evaluation = Evaluation(
            id=self._desk.env.new_id(),
            namespace=alloc.namespace,
            priority=job.priority if job else 50,
            type=job.type if job else JobType.SERVICE.value,
            triggered_by=Trigger.ALLOC_STOP,
            job_id=alloc.job_id,
            job_modify_index=job.job_modify_index if job else 0,
            create_time_ns=now_ns,
            modify_time_ns=now_ns,
        )
        command = AllocTransition(
            ids=uuid_bytes(alloc.id), flags=int(flags), evaluations=(evaluation_write(evaluation),)
        )
        result = await self._desk.proposals.propose(command, request=context.meta.request_id)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        return methods.AllocStopReply(eval_id=evaluation.id, index=result.index)

    @property
    def _state(self) -> State:
        return self._desk.machine.store

    def _whole(self, alloc_id: str) -> Allocation:
        alloc = whole_allocation(self._state, alloc_id) if is_uuid(alloc_id) else None
        if alloc is None:
            raise NotFound(f"alloc not found: {alloc_id!r}", hint="`fedsched alloc list` shows them")
        return alloc

    def _slots(self, request: methods.AllocListRequest, namespace: str) -> Iterator[int]:
        """From where the page begins; of one job or prefix only those that it has, else all."""
        allocations = self._state.allocations
        if request.prefix:
            prefix = uuid_prefix(request.prefix, round_down=False) if len(request.prefix) % 2 == 0 else request.prefix
            found = np.array(list(allocations.with_prefix(prefix.lower())), dtype=np.int64)
            return self._few(found, request)
        if request.job_id and namespace != ANY_NAMESPACE:
            return self._few(allocations.slots_of_job(namespace, request.job_id), request)
        return self._all(request)

    def _all(self, request: methods.AllocListRequest) -> Iterator[int]:
        allocations, back = self._state.allocations, request.reverse
        after = _after(request.next_token)
        if after is not None and allocations.slot_of(after[1]) >= 0:
            yield allocations.slot_of(after[1])
        step = min(limit_of(request) + 1, STEP)
        while slots := allocations.page(step, after=after, back=back):
            yield from slots
            row = allocations.columns.one(slots[-1])
            after = (int(row["create_index"]), self._id(slots[-1]))

    def _few(self, slots: Slots, request: methods.AllocListRequest) -> Iterator[int]:
        """These in order of age and id."""
        rows = self._state.allocations.columns.read(slots)
        keys = [(int(row["create_index"]), id_of(row), slot) for row, slot in zip(rows, slots.tolist(), strict=True)]
        start = _after(request.next_token)
        for index, alloc_id, slot in sorted(keys, reverse=request.reverse):
            here = (index, alloc_id)
            if start is None or (here <= start if request.reverse else here >= start):
                yield slot

    def _is_wanted(self, slot: int, request: methods.AllocListRequest, namespace: str) -> bool:
        origin = self._state.allocations.origin_of(slot)
        if request.job_id and origin.job_id != request.job_id:
            return False
        return namespace in (ANY_NAMESPACE, origin.namespace)

    def _id(self, slot: int) -> str:
        return self._state.allocations.records(np.array([slot], dtype=np.int64))[0].id

    def _look_at_list(self, request: methods.AllocListRequest, context: CallContext) -> Looked:
        namespace = context.meta.namespace or "default"
        topic = whole_table(ALLOCATIONS)
        if request.job_id and namespace != ANY_NAMESPACE:
            topic = allocs_of_job(namespace, request.job_id)
        return Looked(self._state.table_index(ALLOCATIONS), (topic,))

    def _look_at_one(self, request: methods.AllocRequest, context: CallContext) -> Looked:
        slot = self._state.allocations.slot_of(request.alloc_id) if is_uuid(request.alloc_id) else -1
        if slot < 0:
            return Looked(0, (whole_table(ALLOCATIONS),), absent_from=ALLOCATIONS)
        index = int(self._state.allocations.columns.one(slot)["modify_index"])
        return Looked(index, (one_alloc(request.alloc_id),))


def _after(token: str) -> tuple[int, str] | None:
    index, dot, alloc_id = token.partition(".")
    return (int(index), alloc_id) if dot and index.isdecimal() and is_uuid(alloc_id) else None
