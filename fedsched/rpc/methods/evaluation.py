"""Evaluations: notes that a job's wanted and actual state may differ."""

from __future__ import annotations

from fedsched.model.declare import Record
from fedsched.model.evaluation import Evaluation
from fedsched.rpc.method import Method, RunsAt, declare
from fedsched.rpc.methods.paging import ListReply, ListRequest


class EvaluationListRequest(ListRequest):
    job_id: str = ""
    status: str = ""


class EvaluationListReply(ListReply):
    evaluations: tuple[Evaluation, ...] = ()


class EvaluationRequest(Record):
    eval_id: str


class EvaluationGetReply(Record):
    evaluation: Evaluation


EVAL_LIST = declare(
    Method(
        "Eval.List",
        EvaluationListRequest,
        EvaluationListReply,
        RunsAt.ANY_SERVER,
        needs="read-job",
        doc="Evaluations, by id.",
    )
)
EVAL_GET = declare(
    Method(
        "Eval.Get",
        EvaluationRequest,
        EvaluationGetReply,
        RunsAt.ANY_SERVER,
        needs="read-job",
        doc="One evaluation.",
    )
)
