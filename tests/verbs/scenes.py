"""A region with one job, one node, one allocation and one deployment, as fake agents answer for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedsched.model.alloc import AllocListStub
from fedsched.model.deployment import Deployment, DeploymentState, DeploymentStatus
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.node import Node, NodeEvent
from fedsched.model.summary import job_stub
from fedsched.rpc.methods import deployment as deployments
from fedsched.rpc.methods import evaluation as evaluations
from fedsched.rpc.methods import job as jobs
from fedsched.rpc.methods import node as nodes
from tests.builders import a_node
from tests.verbs.commands import NOW_NS, Seen, fedsched

EVAL = "8f0b2a77-0000-4000-8000-000000000000"
NODE = "6e01b7c2-0000-4000-8000-000000000000"
ALLOC = "a3d1f1b9-0000-4000-8000-000000000000"
DEPLOYMENT = "51c9e0d4-0000-4000-8000-000000000000"
MINUTE = 60 * 10**9


def a_job(job_id: str = "web", **fields: Any) -> Job:
    fields.setdefault("task_groups", (TaskGroup(name="front", count=2),))
    fields.setdefault("priority", 50)
    return Job(id=job_id, name=job_id, namespace="default", **fields)


def a_stub(**fields: Any) -> AllocListStub:
    fields.setdefault("create_time_ns", NOW_NS - 2 * MINUTE)
    fields.setdefault("modify_time_ns", NOW_NS - MINUTE)
    return AllocListStub(id=ALLOC, node_id=NODE, task_group="front", namespace="default", job_id="web", **fields)


def a_deployment(status: DeploymentStatus = DeploymentStatus.RUNNING, **fields: Any) -> Deployment:
    fields.setdefault("task_groups", {"front": DeploymentState(desired_total=2, placed_allocs=2, healthy_allocs=1)})
    return Deployment(
        id=DEPLOYMENT, job_id="web", namespace="default", status=status, status_description="so it goes", **fields
    )


def the_node(**fields: Any) -> Node:
    return a_node(
        id=NODE,
        name="host-1",
        drivers=(),
        events=(NodeEvent(message="Node registered", subsystem="Cluster", timestamp_ns=NOW_NS),),
        **fields,
    )


def complete(**fields: Any) -> Any:
    done = Evaluation(id=EVAL, job_id="web", status=EvaluationStatus.COMPLETE, type="batch", **fields)
    return lambda _: evaluations.EvaluationGetReply(evaluation=done)


def in_sequence(*replies: Any) -> Any:
    left = list(replies)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


WRITTEN = jobs.JobWriteReply(eval_id=EVAL, index=9)
HAS_JOB: Mapping[Any, Any] = {
    jobs.JOB_LIST: lambda request: jobs.JobListReply(
        jobs=(job_stub(a_job(), None),) if "web".startswith(request.prefix) else ()
    ),
    evaluations.EVAL_GET: complete(),
}
HAS_NODE: Mapping[Any, Any] = {
    nodes.NODE_LIST: lambda request: nodes.NodeListReply(nodes=(the_node().stub(os=request.os),)),
    nodes.NODE_GET: lambda _: nodes.NodeGetReply(node=the_node()),
    nodes.NODE_ALLOCS: lambda _: nodes.NodeAllocsReply(),
}
HAS_DEPLOYMENT: Mapping[Any, Any] = {
    deployments.DEPLOYMENT_LIST: lambda _: deployments.DeploymentListReply(deployments=(a_deployment(),)),
    deployments.DEPLOYMENT_GET: lambda _: deployments.DeploymentGetReply(deployment=a_deployment()),
    evaluations.EVAL_GET: complete(),
}
CHANGED = deployments.DeploymentWriteReply(eval_id=EVAL, index=9)


def run(line: str, *answers: Mapping[Any, Any], **options: Any) -> Seen:
    whole: dict[Any, Any] = {}
    for some in answers:
        whole |= some
    return fedsched(line, whole, **options)
