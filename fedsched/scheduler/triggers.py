"""Which reasons for an evaluation a scheduler can do something about.

One that it cannot is a mistake of whoever wrote the evaluation. Trying again would not help, so it ends as failed and
says so, instead of going round until its deliveries are used up.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.job import JobType

GENERIC: Final = frozenset(Trigger) - {Trigger.SCHEDULED}
SYSTEM: Final = frozenset(
    {
        Trigger.JOB_REGISTER,
        Trigger.JOB_DEREGISTER,
        Trigger.JOB_SCALING,
        Trigger.NODE_UPDATE,
        Trigger.NODE_DRAIN,
        Trigger.ALLOC_STOP,
        Trigger.DEPLOYMENT_WATCHER,
        Trigger.FAILED_FOLLOW_UP,
        Trigger.QUEUED_ALLOCS,
        Trigger.PREEMPTION,
        Trigger.RECONNECT,
        Trigger.ROLLING_UPDATE,
        Trigger.MAX_PLAN_ATTEMPTS,
        Trigger.MAX_DISCONNECT_TIMEOUT,
    }
)
"""The last two are our own: a system job that lost every race tries again, and its unknown allocations expire."""
SYSBATCH: Final = SYSTEM | {Trigger.PERIODIC_JOB}


def refused(evaluation: Evaluation) -> Evaluation | None:
    """How an evaluation ends whose reason its scheduler knows nothing to do about; None if it does."""
    known = {JobType.SYSTEM.value: SYSTEM, JobType.SYSBATCH.value: SYSBATCH}.get(evaluation.type, GENERIC)
    if evaluation.triggered_by in known:
        return None
    words = f"the scheduler of {evaluation.type} jobs knows nothing to do for the reason {evaluation.triggered_by!r}"
    return replace(evaluation, status=EvaluationStatus.FAILED, status_description=words)
