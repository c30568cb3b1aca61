"""Evaluations: notes that a job's wanted and actual state may differ."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.alloc import AllocListStub
from fedsched.model.declare import Record
from fedsched.model.evaluation import Evaluation
from fedsched.rpc.method import Method, RunsAt, declare
from fedsched.rpc.methods.forms import reads, writes
from fedsched.rpc.methods.paging import ListReply, ListRequest


class EvaluationListRequest(ListRequest):
    job_id: str = ""
    status: str = ""


class EvaluationListReply(ListReply):
    evaluations: tuple[Evaluation, ...] = ()


class EvaluationRequest(Record):
    eval_id: str
    related: Annotated[bool, "Also those it came from and those that came from it."] = False


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


class EvaluationAllocsReply(Record):
    allocs: tuple[AllocListStub, ...] = ()


class EvaluationCountReply(Record):
    count: int = 0


class EvaluationDeleteRequest(Record):
    eval_ids: tuple[str, ...] = ()


class EvaluationDeleteReply(Record):
    count: int = 0
    index: int = 0


EVAL_ALLOCS = reads(
    "Eval.Allocations", EvaluationRequest, EvaluationAllocsReply, "read-job", "What an evaluation placed."
)
EVAL_COUNT = reads(
    "Eval.Count", EvaluationListRequest, EvaluationCountReply, "read-job", "How many evaluations a list would have."
)
EVAL_DELETE = writes(
    "Eval.Delete", EvaluationDeleteRequest, EvaluationDeleteReply, "operator:write", "Forget evaluations that are done."
)
