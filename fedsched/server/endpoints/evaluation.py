"""Evaluations, read from this server's own state."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final

import numpy as np
from msgspec import structs

from fedsched.model.errors import BadRequest, NotFound
from fedsched.model.evaluation import Evaluation, EvaluationStatus, EvaluationStub
from fedsched.rpc.method import Method
from fedsched.rpc.methods import evaluation as methods
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.alloc_stubs import alloc_stubs
from fedsched.server.desk import Desk
from fedsched.server.paging import Walk, by_id, by_index, of_few, only, page_of
from fedsched.server.waits import EVALUATIONS, Look, Looked, look_at_evaluations, look_at_row
from fedsched.state.tables.alloc_updates import REMOVE_MAX, Reap
from fedsched.state.tables.evaluations import EvaluationRow
from fedsched.state.waits import whole_table

ANY_NAMESPACE: Final = "*"
OPEN: Final = (EvaluationStatus.PENDING.value, EvaluationStatus.BLOCKED.value)
"""Statuses that are filed: few evaluations have them."""


class EvaluationEndpoint:
    """Answers `Eval.*`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.EVAL_LIST: self.list,
            methods.EVAL_GET: self.get,
            methods.EVAL_ALLOCS: self.allocations,
            methods.EVAL_COUNT: self.count,
            methods.EVAL_DELETE: self.delete,
        }

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {methods.EVAL_LIST: self._look_at_list, methods.EVAL_GET: self._look_at_one}

    async def list(self, request: methods.EvaluationListRequest, context: CallContext) -> methods.EvaluationListReply:
        page, next_token = page_of(self._wanted(request, context), request, id_of=_id_of)
        return methods.EvaluationListReply(evaluations=tuple(row.evaluation() for row in page), next_token=next_token)

    async def get(self, request: methods.EvaluationRequest, context: CallContext) -> methods.EvaluationGetReply:
        row = self._known(request.eval_id)
        found = row.evaluation()
        if not request.related:
            return methods.EvaluationGetReply(evaluation=found)
        return methods.EvaluationGetReply(evaluation=structs.replace(found, related_evals=self._related(found)))

    async def allocations(
        self, request: methods.EvaluationRequest, context: CallContext
    ) -> methods.EvaluationAllocsReply:
        row = self._known(request.eval_id)
        allocations = self._desk.machine.store.allocations
        slots = allocations.slots_of_job(row.namespace, row.job_id)
        origins = allocations.columns.read(slots)["origin"]
        mine = [
            ref
            for ref in np.unique(origins).tolist()
            if (origin := allocations.origins.get(ref)) and origin.evaluation_id == row.id
        ]
        return methods.EvaluationAllocsReply(
            allocs=alloc_stubs(self._desk.machine.store, slots[np.isin(origins, mine)])
        )

    async def count(self, request: methods.EvaluationListRequest, context: CallContext) -> methods.EvaluationCountReply:
        found = self._wanted(request, context)(request.prefix, back=False)
        return methods.EvaluationCountReply(
            count=sum(1 for _ in takewhile(lambda row: row.id.startswith(request.prefix), found))
        )

    async def delete(
        self, request: methods.EvaluationDeleteRequest, context: CallContext
    ) -> methods.EvaluationDeleteReply:
        """Only what is done: an evaluation that waits would be lost, and with it what its job asked for."""
        if not request.eval_ids or len(request.eval_ids) > REMOVE_MAX:
            raise BadRequest(
                f"{len(request.eval_ids)} evaluations are named", hint=f"1 to {REMOVE_MAX} can be deleted at a time"
            )
        for eval_id in request.eval_ids:
            row = self._known(eval_id)
            if row.is_open:
                raise BadRequest(
                    f"evaluation {eval_id!r} is {row.status} and cannot be deleted", hint="stop its job instead"
                )
        command = Reap(evaluations=request.eval_ids)
        result = await self._desk.proposals.propose(command, request=context.meta.request_id)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        return methods.EvaluationDeleteReply(count=result.value["evaluations"], index=result.index)

    def _wanted(self, request: methods.EvaluationListRequest, context: CallContext) -> Walk[EvaluationRow]:
        """By what finds the fewest: the job's own, those that are open, or all of a namespace."""
        evaluations = self._desk.machine.store.evaluations
        namespace = context.meta.namespace or "default"
        if request.job_id and namespace != ANY_NAMESPACE:
            walk = of_few(evaluations.of_job(namespace, request.job_id), id_of=_id_of)
        elif request.status in OPEN:
            walk = of_few(evaluations.with_status(request.status), id_of=_id_of)
        elif namespace != ANY_NAMESPACE:
            walk = by_index(evaluations.rows, "namespace", namespace)
        else:
            walk = by_id(evaluations.rows)

        return only(
            walk,
            lambda row: (
                namespace in (ANY_NAMESPACE, row.namespace)
                and request.job_id in ("", row.job_id)
                and request.status in ("", row.status)
            ),
        )

    def _related(self, one: Evaluation) -> tuple[EvaluationStub, ...]:
        """Those it came from and those that came from it."""
        evaluations = self._desk.machine.store.evaluations
        ids = {one.next_eval, one.previous_eval, one.blocked_eval}
        rows = [evaluations.row(eval_id) for eval_id in sorted(ids - {""})]
        rows += [row for row in evaluations.of_job(one.namespace, one.job_id) if one.id in _names(row.evaluation())]
        found = {row.id: row.evaluation() for row in rows if row is not None and row.id != one.id}
        return tuple(_stub(found[eval_id]) for eval_id in sorted(found))

    def _known(self, eval_id: str) -> EvaluationRow:
        row = self._desk.machine.store.evaluations.row(eval_id)
        if row is None:
            raise NotFound(f"evaluation {eval_id!r} not found", hint="`fedsched eval list` shows them")
        return row

    def _look_at_list(self, request: methods.EvaluationListRequest, context: CallContext) -> Looked:
        state, namespace = self._desk.machine.store, context.meta.namespace or "default"
        if request.job_id and namespace != "*":
            return look_at_evaluations(state, namespace, request.job_id)
        return Looked(state.table_index(EVALUATIONS), (whole_table(EVALUATIONS),))

    def _look_at_one(self, request: methods.EvaluationRequest, context: CallContext) -> Looked:
        return look_at_row(self._desk.machine.store, EVALUATIONS, request.eval_id)


def _id_of(row: EvaluationRow) -> str:
    return row.id


def _names(one: Evaluation) -> tuple[str, ...]:
    return (one.next_eval, one.previous_eval, one.blocked_eval)


def _stub(one: Evaluation) -> EvaluationStub:
    same = [name for name in EvaluationStub.__struct_fields__ if name != "status"]
    return EvaluationStub(status=one.status.value, **{name: getattr(one, name) for name in same})
