"""The front: which scheduler serves which type of job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fedsched.model.errors import BadRequest
from fedsched.model.evaluation import Evaluation
from fedsched.model.job import JobType
from fedsched.scheduler.decision import Scheduling
from fedsched.scheduler.generic import GenericScheduling
from fedsched.scheduler.system import SystemScheduling

NewId = Callable[[], str]
MakeScheduling = Callable[[Evaluation, NewId], Scheduling]
"""Makes what works on one evaluation. A package of one's own offers such a thing under `fedsched.schedulers`."""

BUILT_IN: Final[Mapping[str, MakeScheduling]] = {
    JobType.SERVICE.value: GenericScheduling,
    JobType.BATCH.value: GenericScheduling,
    JobType.SYSTEM.value: SystemScheduling,
    JobType.SYSBATCH.value: SystemScheduling,
}


def scheduler_for(job_type: str) -> MakeScheduling:
    """The built-in scheduler of a job type."""
    made = BUILT_IN.get(job_type)
    if made is None:
        raise BadRequest(
            f"no scheduler for jobs of type {job_type!r}", hint=f"there are: {', '.join(sorted(BUILT_IN))}"
        )
    return made
