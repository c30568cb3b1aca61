"""Finding the job, node, allocation or deployment that a person means by the beginning of its id, and lists of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fedsched.model.alloc import AllocListStub
from fedsched.model.deployment import Deployment
from fedsched.model.errors import NotFound
from fedsched.model.node import NodeListStub
from fedsched.model.summary import JobListStub
from fedsched.rpc.methods.job import JOB_LIST, JobListRequest
from fedsched.verbs.flags import Flag
from fedsched.verbs.lookup import PAGE, check_prefix, one_of, pages
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.view import ago, columns, moment, short

ANY_NAMESPACE: Final = "*"
ALLOC_HEAD: Final = ("ID", "Node ID", "Task Group", "Version", "Desired", "Status", "Created", "Modified")
NODE_HEAD: Final = ("ID", "Node Pool", "DC", "Name", "Class", "Drain", "Eligibility", "Status")
SELF: Final = Flag("self", "the node of the agent that is asked", bool)
DEPLOYMENT_HEAD: Final = ("ID", "Job ID", "Job Version", "Status", "Description")


def all_jobs(terminal: Terminal, prefix: str) -> list[JobListStub]:
    def fetch(token: str) -> tuple[Sequence[JobListStub], str]:
        request = JobListRequest(prefix=prefix, next_token=token, per_page=PAGE)
        reply = terminal.client.call(JOB_LIST, request)
        return reply.jobs, reply.next_token

    return list(pages(fetch))


def find_job(terminal: Terminal, typed: str) -> JobListStub:
    return one_of(all_jobs(terminal, typed), typed, "job", lambda found: job_table(found, with_namespace=True))


def job_table(found: Sequence[JobListStub], *, with_namespace: bool) -> str:
    head = ["ID", "Namespace", "Type", "Priority", "Status", "Submit Date"]
    rows = [
        [
            one.id,
            one.namespace,
            job_type(one),
            one.priority,
            job_status(one.status.value, one.stop),
            moment(one.submit_time_ns),
        ]
        for one in found
    ]
    if not with_namespace:
        head, rows = head[:1] + head[2:], [row[:1] + row[2:] for row in rows]
    return columns(head, rows)


def job_type(stub: JobListStub) -> str:
    if stub.periodic:
        return f"{stub.type}/periodic"
    return f"{stub.type}/parameterized" if stub.parameterized_job else stub.type


def job_status(status: str, is_stopped: bool) -> str:
    return f"{status} (stopped)" if is_stopped and status == "dead" else status


def all_nodes(terminal: Terminal, prefix: str = "", *, os: bool = False) -> list[NodeListStub]:
    from fedsched.rpc.methods.node import NODE_LIST, NodeListRequest

    def fetch(token: str) -> tuple[Sequence[NodeListStub], str]:
        request = NodeListRequest(prefix=prefix, next_token=token, per_page=PAGE, os=os)
        reply = terminal.client.call(NODE_LIST, request)
        return reply.nodes, reply.next_token

    return list(pages(fetch))


def find_node(terminal: Terminal, typed: str) -> NodeListStub:
    check_prefix(typed)
    return one_of(all_nodes(terminal, typed), typed, "node", lambda found: node_table(found, verbose=True))


def own_node_id(terminal: Terminal) -> str:
    """The node whose agent one is talking to; refuses if that agent runs no tasks."""
    from fedsched.rpc.method import Empty
    from fedsched.rpc.methods.agent import AGENT_SELF

    node_id = terminal.client.call(AGENT_SELF, Empty()).stats.get("client", {}).get("node_id", "")
    if not node_id:
        raise NotFound("the agent at this address is no client", hint="name a node, or ask the agent on it (-address)")
    return node_id


def node_table(found: Sequence[NodeListStub], *, verbose: bool) -> str:
    rows = [
        (
            short(one.id, verbose=verbose),
            one.node_pool,
            one.datacenter,
            one.name,
            one.node_class,
            one.drain,
            one.scheduling_eligibility.value,
            one.status.value,
        )
        for one in found
    ]
    return columns(NODE_HEAD, rows)


def all_allocs(terminal: Terminal, prefix: str = "", *, job_id: str = "") -> list[AllocListStub]:
    from fedsched.rpc.methods.alloc import ALLOC_LIST, AllocListRequest

    def fetch(token: str) -> tuple[Sequence[AllocListStub], str]:
        request = AllocListRequest(prefix=prefix, next_token=token, per_page=PAGE, job_id=job_id, task_states=False)
        reply = terminal.client.call(ALLOC_LIST, request)
        return reply.allocs, reply.next_token

    return list(pages(fetch))


def find_alloc(terminal: Terminal, typed: str) -> AllocListStub:
    check_prefix(typed)
    found = all_allocs(terminal, typed)
    return one_of(found, typed, "allocation", lambda several: alloc_table(terminal, several, verbose=True))


def alloc_table(terminal: Terminal, found: Sequence[AllocListStub], *, verbose: bool) -> str:
    newest = sorted(found, key=lambda one: -one.create_index)
    return columns(ALLOC_HEAD, [_alloc_row(one, terminal.now_ns(), verbose=verbose) for one in newest])


def _alloc_row(one: AllocListStub, now_ns: int, *, verbose: bool) -> tuple[Any, ...]:
    return (
        short(one.id, verbose=verbose),
        short(one.node_id, verbose=verbose),
        one.task_group,
        one.job_version,
        one.desired_status.value,
        one.client_status.value,
        ago(one.create_time_ns, now_ns),
        ago(one.modify_time_ns, now_ns),
    )


def all_deployments(terminal: Terminal, prefix: str = "") -> list[Deployment]:
    from fedsched.rpc.methods.deployment import DEPLOYMENT_LIST, DeploymentListRequest

    def fetch(token: str) -> tuple[Sequence[Deployment], str]:
        request = DeploymentListRequest(prefix=prefix, next_token=token, per_page=PAGE)
        reply = terminal.client.call(DEPLOYMENT_LIST, request)
        return reply.deployments, reply.next_token

    return list(pages(fetch))


def find_deployment(terminal: Terminal, typed: str) -> Deployment:
    check_prefix(typed)
    found = all_deployments(terminal, typed)
    return one_of(found, typed, "deployment", lambda several: deployment_table(several, verbose=True))


def deployment_table(found: Sequence[Deployment], *, verbose: bool) -> str:
    rows = [
        (short(one.id, verbose=verbose), one.job_id, one.job_version, one.status.value, _described(one))
        for one in found
    ]
    return columns(DEPLOYMENT_HEAD, rows)


def _described(one: Deployment) -> str:
    """In words; one that is a part of something larger says so."""
    return f"{one.status_description} [part of a rollout]".strip() if one.is_multiregion else one.status_description
