"""Rollouts of multi-region jobs: what the owner says to regions, and what people ask and decide."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record
from fedsched.model.job import Job, JobSubmission
from fedsched.model.rollout import Rollout, RolloutCommand, RolloutReport, RolloutShare, RolloutStanding
from fedsched.rpc.method import Method, RunsAt, declare
from fedsched.rpc.methods.forms import reads, writes
from fedsched.rpc.methods.paging import ListReply, ListRequest


class RolloutBeginRequest(Record):
    """A job with a `multiregion` block, brought to the region that drives its rollout."""

    job: Job
    enforce_index: Annotated[bool, "Only if this region's job is still as `job_modify_index` says."] = False
    job_modify_index: Annotated[int, "What the caller last saw; 0: the job must not exist."] = 0
    submission: Annotated[JobSubmission | None, "The text it came from, to be kept with it."] = None


class RolloutBeginReply(Record):
    rollout_id: str = ""
    job_version: Annotated[int, "The same in every region."] = 0
    owner: Annotated[str, "The region that drives it."] = ""
    warnings: tuple[str, ...] = ()
    index: int = 0


class RolloutView(Record):
    """What one region knows of a rollout."""

    rollout: Annotated[Rollout, "The owner's record, or the region's copy as of the last command; without the job."]
    is_owner: Annotated[bool, "Whether the region that answers drives it: only then the record is the present one."] = (
        False
    )
    share: Annotated[RolloutShare | None, "The part of the region that answers, without the copy of the record."] = None


class RolloutListRequest(ListRequest):
    job_id: Annotated[str, "Only rollouts of this job."] = ""
    active: Annotated[bool, "Only those that are not over."] = False


class RolloutListReply(ListReply):
    rollouts: tuple[RolloutView, ...] = ()


class RolloutGetRequest(Record):
    """Names a rollout, or a job whose newest one is meant; the namespace goes beside it."""

    rollout_id: Annotated[str, "The whole id, or the beginning of it if only one begins so."] = ""
    job_id: str = ""


class RolloutUnblockRequest(Record):
    rollout_id: str
    regions: Annotated[tuple[str, ...], "None: all that are blocked."] = ()


class RolloutFailRequest(Record):
    rollout_id: str
    regions: Annotated[tuple[str, ...], "None: all of them."] = ()
    reverts: Annotated[bool, "Bring the last stable version back, whatever the job's `auto_revert` says."] = False
    reason: str = ""


class RolloutAdoptRequest(Record):
    """Have the region that is asked drive a rollout whose owner is lost."""

    rollout_id: str
    force: Annotated[bool, "Although the owner answers."] = False


class RolloutStatusRequest(Record):
    rollout_id: str


class RolloutWriteReply(Record):
    rollout: Annotated[Rollout | None, "The record as it is now, without the job."] = None
    index: int = 0


ROLLOUT_COMMAND = declare(
    Method(
        "Rollout.Command",
        RolloutCommand,
        RolloutReport,
        RunsAt.LEADER,
        needs="pool",
        writes=True,
        doc="The owner of a rollout tells a region what is decided for it, or waits for news of it.",
    )
)
ROLLOUT_STATUS = declare(
    Method(
        "Rollout.Status",
        RolloutStatusRequest,
        RolloutStanding,
        RunsAt.LEADER,
        needs="pool",
        doc="A region that has not heard the owner of a rollout asks whether it is there, and who else has heard it.",
    )
)
ROLLOUT_BEGIN = writes(
    "Rollout.Begin",
    RolloutBeginRequest,
    RolloutBeginReply,
    "submit-job",
    "Begin the rollout of a multi-region job, in the region that drives it.",
)
ROLLOUT_LIST = reads(
    "Rollout.List", RolloutListRequest, RolloutListReply, "read-job", "Rollouts that this region takes part in, by id."
)
ROLLOUT_GET = reads("Rollout.Get", RolloutGetRequest, RolloutView, "read-job", "One rollout, or the newest of a job.")
ROLLOUT_UNBLOCK = writes(
    "Rollout.Unblock",
    RolloutUnblockRequest,
    RolloutWriteReply,
    "submit-job",
    "Let healthy regions of a rollout keep the version, although others failed.",
)
ROLLOUT_FAIL = writes(
    "Rollout.Fail", RolloutFailRequest, RolloutWriteReply, "submit-job", "End a rollout in some regions, or in all."
)
ROLLOUT_ADOPT = writes(
    "Rollout.Adopt",
    RolloutAdoptRequest,
    RolloutWriteReply,
    "operator:write",
    "Have this region drive a rollout whose owner region is lost.",
)
