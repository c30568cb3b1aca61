"""Evaluations, read from this server's own state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsched.model.errors import NotFound
from fedsched.rpc.method import Method
from fedsched.rpc.methods import evaluation as methods
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.desk import Desk
from fedsched.server.paging import page_of
from fedsched.server.waits import EVALUATIONS, Look, Looked, look_at_evaluations, look_at_row
from fedsched.state.waits import whole_table


class EvaluationEndpoint:
    """Answers `Eval.*`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {methods.EVAL_LIST: self.list, methods.EVAL_GET: self.get}

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {methods.EVAL_LIST: self._look_at_list, methods.EVAL_GET: self._look_at_one}

    async def list(self, request: methods.EvaluationListRequest, context: CallContext) -> methods.EvaluationListReply:
        namespace = context.meta.namespace or "default"
        rows = (
            row
            for row in self._desk.machine.store.evaluations.rows.scan()
            if (namespace == "*" or row.namespace == namespace)
            and (not request.job_id or row.job_id == request.job_id)
            and (not request.status or row.status == request.status)
        )
        page, next_token = page_of(rows, request, id_of=lambda row: row.id, token_of=lambda row: row.id)
        return methods.EvaluationListReply(evaluations=tuple(row.evaluation() for row in page), next_token=next_token)

    async def get(self, request: methods.EvaluationRequest, context: CallContext) -> methods.EvaluationGetReply:
        row = self._desk.machine.store.evaluations.row(request.eval_id)
        if row is None:
            raise NotFound(f"evaluation {request.eval_id!r} not found", hint="`fedsched eval list` shows them")
        return methods.EvaluationGetReply(evaluation=row.evaluation())

    def _look_at_list(self, request: methods.EvaluationListRequest, context: CallContext) -> Looked:
        state, namespace = self._desk.machine.store, context.meta.namespace or "default"
        if request.job_id and namespace != "*":
            return look_at_evaluations(state, namespace, request.job_id)
        return Looked(state.table_index(EVALUATIONS), (whole_table(EVALUATIONS),))

    def _look_at_one(self, request: methods.EvaluationRequest, context: CallContext) -> Looked:
        return look_at_row(self._desk.machine.store, EVALUATIONS, request.eval_id)
