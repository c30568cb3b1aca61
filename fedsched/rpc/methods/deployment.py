"""Deployments: supervised changes from one job version to the next."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.alloc import AllocListStub
from fedsched.model.declare import Record
from fedsched.model.deployment import Deployment
from fedsched.rpc.methods.forms import reads, writes
from fedsched.rpc.methods.paging import ListReply, ListRequest


class DeploymentListRequest(ListRequest):
    job_id: str = ""


class DeploymentListReply(ListReply):
    deployments: tuple[Deployment, ...] = ()


class DeploymentRequest(Record):
    deployment_id: str


class DeploymentGetReply(Record):
    deployment: Deployment


class DeploymentAllocsReply(Record):
    allocs: tuple[AllocListStub, ...] = ()


class DeploymentPauseRequest(Record):
    deployment_id: str
    pause: Annotated[bool, "False resumes it."] = True


class DeploymentPromoteRequest(Record):
    deployment_id: str
    all: Annotated[bool, "The canaries of every group."] = False
    groups: Annotated[tuple[str, ...], "Only those of these groups."] = ()


class DeploymentHealthRequest(Record):
    deployment_id: str
    healthy_allocation_ids: tuple[str, ...] = ()
    unhealthy_allocation_ids: Annotated[tuple[str, ...], "Any of these fails the deployment."] = ()


class DeploymentWriteReply(Record):
    eval_id: str = ""
    eval_create_index: int = 0
    deployment_modify_index: int = 0
    reverted_job_version: Annotated[int | None, "The version that failing it went back to."] = None
    index: int = 0


DEPLOYMENT_LIST = reads(
    "Deployment.List", DeploymentListRequest, DeploymentListReply, "read-job", "Deployments, by id."
)
DEPLOYMENT_GET = reads("Deployment.Get", DeploymentRequest, DeploymentGetReply, "read-job", "One deployment.")
DEPLOYMENT_ALLOCS = reads(
    "Deployment.Allocations", DeploymentRequest, DeploymentAllocsReply, "read-job", "The allocations of a deployment."
)
DEPLOYMENT_PAUSE = writes(
    "Deployment.Pause",
    DeploymentPauseRequest,
    DeploymentWriteReply,
    "submit-job",
    "Hold a deployment, or resume it.",
)
DEPLOYMENT_PROMOTE = writes(
    "Deployment.Promote", DeploymentPromoteRequest, DeploymentWriteReply, "submit-job", "Let canaries become ordinary."
)
DEPLOYMENT_FAIL = writes(
    "Deployment.Fail", DeploymentRequest, DeploymentWriteReply, "submit-job", "End a deployment as failed."
)
DEPLOYMENT_UNBLOCK = writes(
    "Deployment.Unblock", DeploymentRequest, DeploymentWriteReply, "submit-job", "Let a deployment that waits go on."
)
DEPLOYMENT_HEALTH = writes(
    "Deployment.SetAllocHealth",
    DeploymentHealthRequest,
    DeploymentWriteReply,
    "submit-job",
    "Say which allocations of a deployment are well and which are not.",
)
