"""Why things are as they are: a job, an allocation, a node that a job is not on."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record
from fedsched.model.why import AllocWhy, JobWhy, NodeWhyNot
from fedsched.rpc.methods.forms import reads


class JobWhyRequest(Record):
    job_id: str
    group: Annotated[str, "Only this group; empty for all."] = ""


class JobWhyReply(Record):
    why: JobWhy


class AllocWhyRequest(Record):
    alloc_id: str


class AllocWhyReply(Record):
    why: AllocWhy


class NodeWhyNotRequest(Record):
    node_id: str
    job_id: str
    group: Annotated[str, "Only this group; empty for all."] = ""


class NodeWhyNotReply(Record):
    why: NodeWhyNot


JOB_WHY = reads("Job.Why", JobWhyRequest, JobWhyReply, "read-job", "Why a job is as it is, and what would help.")
ALLOC_WHY = reads("Alloc.Why", AllocWhyRequest, AllocWhyReply, "read-job", "Why an allocation is as it is.")
NODE_WHY_NOT = reads(
    "Node.WhyNot", NodeWhyNotRequest, NodeWhyNotReply, "read-job", "What keeps a job off a node, if anything does."
)
