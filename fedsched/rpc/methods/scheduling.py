"""What the workers of all servers ask of the leader: evaluations to work on, and what becomes of them."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record
from fedsched.model.evaluation import Evaluation
from fedsched.rpc.method import Empty, Method, RunsAt, declare


class EvaluationDequeueRequest(Record):
    types: Annotated[tuple[str, ...], "Job types that the caller has schedulers for."] = ()
    limit: Annotated[int, "At most so many at once."] = 1
    wait_s: Annotated[float, "How long to wait for the first."] = 0.0


class EvaluationHandedOut(Record):
    """An evaluation in the hands of a worker. What it says, the worker reads from its own state."""

    eval_id: str
    token: Annotated[str, "To be shown with everything that is done about it."]
    type: str = ""
    wait_index: Annotated[int, "How much of the state the worker must have seen before it starts."] = 0


class EvaluationDequeueReply(Record):
    evaluations: tuple[EvaluationHandedOut, ...] = ()


class EvaluationTokenRequest(Record):
    eval_id: str
    token: str


class EvaluationUpdateRequest(Record):
    """Evaluations to store on behalf of one that the caller holds: its end, new ones, or itself blocked again."""

    eval_id: str
    token: str
    evaluations: tuple[Evaluation, ...] = ()
    ack: Annotated[bool, "The caller is done with the one it holds."] = False


class EvaluationUpdateReply(Record):
    index: int = 0


class PlanSubmitRequest(Record):
    eval_id: str
    token: str
    plan: Annotated[bytes, "The encoded command."]
    priority: int = 50
    all_at_once: Annotated[bool, "All of it or nothing."] = False


class PlanSubmitReply(Record):
    is_whole: Annotated[bool, "Nothing was refused."] = False
    is_progress: Annotated[bool, "Something was committed."] = False
    refresh_index: Annotated[int, "Look again from here, because something was refused."] = 0
    index: Annotated[int, "Of the log entry; 0 if there is none."] = 0
    is_acked: Annotated[bool, "The evaluation ended with the plan."] = False
    rejected_nodes: tuple[str, ...] = ()


EVAL_DEQUEUE = declare(
    Method(
        "Eval.Dequeue",
        EvaluationDequeueRequest,
        EvaluationDequeueReply,
        RunsAt.LEADER,
        needs="server",
        doc="Take evaluations to work on; waits until there is one.",
    )
)
EVAL_ACK = declare(
    Method(
        "Eval.Ack",
        EvaluationTokenRequest,
        Empty,
        RunsAt.LEADER,
        needs="server",
        doc="The evaluation has been dealt with.",
    )
)
EVAL_NACK = declare(
    Method(
        "Eval.Nack",
        EvaluationTokenRequest,
        Empty,
        RunsAt.LEADER,
        needs="server",
        doc="The evaluation could not be dealt with: hand it out again later.",
    )
)
EVAL_EXTEND = declare(
    Method(
        "Eval.Extend",
        EvaluationTokenRequest,
        Empty,
        RunsAt.LEADER,
        needs="server",
        doc="The worker is still at it: give it the whole time again.",
    )
)
EVAL_UPDATE = declare(
    Method(
        "Eval.Update",
        EvaluationUpdateRequest,
        EvaluationUpdateReply,
        RunsAt.LEADER,
        needs="server",
        doc="Store what a worker made of its evaluation: its end, follow-ups, or itself blocked again.",
    )
)
PLAN_SUBMIT = declare(
    Method(
        "Plan.Submit",
        PlanSubmitRequest,
        PlanSubmitReply,
        RunsAt.LEADER,
        needs="server",
        doc="Have the leader commit what still holds of a plan.",
    )
)
