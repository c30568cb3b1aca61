"""A region of one server with nodes and allocations on it, for tests of what is asked around scheduling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from fedsched.codec import dumps
from fedsched.env.real import RealEnv
from fedsched.model.alloc import ClientStatus
from fedsched.model.deployment import DeploymentState
from fedsched.model.group import TaskGroup
from fedsched.model.node import Node, NodeStatus
from fedsched.rpc.methods import node as nodes
from fedsched.server.proposals import Proposals
from fedsched.state.fields import Command, pack
from fedsched.state.tables.alloc_columns import CLIENT_CODES, Flag
from fedsched.state.tables.deployments import deployment_write
from fedsched.state.tables.plans import PlanApply
from tests.builders import a_deployment, a_group, a_job, a_node, an_id
from tests.server.region import Member, Region, run_region
from tests.state.worlds import ids, placed_group

SECRET = "open-sesame"
RUNNING = CLIENT_CODES[ClientStatus.RUNNING]
FAILED = CLIENT_CODES[ClientStatus.FAILED]
COMPLETE = CLIENT_CODES[ClientStatus.COMPLETE]

Story = Callable[[Member], Awaitable[None]]


def with_server(directory: Path, story: Story) -> None:
    """Run a story against a region of one server whose scheduler is kept out of the way."""

    async def scenario(region: Region) -> None:
        await story(await region.form(1))

    run_region(directory, scenario, num_schedulers=0)


async def propose(member: Member, command: Command) -> Any:
    """Change the state as the leader's services do."""
    return await Proposals(member.server.raft, RealEnv()).propose(command)


def a_host(number: int = 1, **fields: Any) -> Node:
    return a_node(number, status=NodeStatus.INITIALIZING, secret_id=SECRET, **fields)


async def join(member: Member, number: int = 1, **fields: Any) -> Node:
    """A client registers its node and says that it is ready."""
    node = a_host(number, **fields)
    await member.call(nodes.NODE_REGISTER, nodes.NodeRegisterRequest(node=node))
    await member.call(nodes.NODE_UPDATE_STATUS, nodes.NodeStatusRequest(node_id=node.id, secret_id=SECRET))
    return node


async def place(member: Member, numbers: list[int], *, job_id: str = "web", **fields: Any) -> None:
    """Put allocations on the first node, as the plan applier would."""
    store = member.server.machine.store
    row = store.jobs.row("default", job_id)
    assert row is not None
    deployment = fields.pop("deployments", ())
    group = fields.pop("group", "group")
    plan = PlanApply(
        namespace="default",
        job_id=job_id,
        job_create_index=row.create_index,
        job_version=row.version,
        evaluation_id=an_id(0xE),
        snapshot_index=store.index,
        deployment_id=fields.pop("deployment_id", ""),
        deployments=deployment,
        placed=(placed_group(numbers, [0] * len(numbers), group=group, **fields),),
    )
    await propose(member, plan)


async def report(member: Member, numbers: list[int], status: int, *, health: int = 0, number: int = 1) -> None:
    client, sizes = pack([dumps({"ClientDescription": "Tasks are running"})] * len(numbers))
    await member.call(
        nodes.NODE_UPDATE_ALLOCS,
        nodes.NodeReportRequest(
            node_id=an_id(number),
            secret_id=SECRET,
            ids=ids(numbers),
            statuses=bytes([status]) * len(numbers),
            healths=bytes([health]) * len(numbers),
            client=client,
            client_sizes=sizes,
        ),
    )


def a_system_group() -> TaskGroup:
    return a_group(update=None, migrate=None, reschedule_policy=None)


async def node_of(member: Member, number: int = 1) -> Node:
    found: Node = (await member.call(nodes.NODE_GET, nodes.NodeRequest(node_id=an_id(number)))).node
    return found


async def deployed(member: Member, *, canaries: int = 0) -> str:
    """A job with a running deployment of two allocations, both running."""
    job = a_job("web", region="", groups=[a_group(count=2)])
    await member.register(job)
    state = DeploymentState(desired_total=2, desired_canaries=canaries, progress_deadline_s=600.0)
    row = member.server.machine.store.jobs.row("default", "web")
    assert row is not None
    deployment = a_deployment(7, job=job, task_groups={"group": state}, job_create_index=row.create_index)
    flags = int(Flag.CANARY) if canaries else 0
    await place(
        member,
        [1, 2],
        deployment_id=an_id(7),
        deployments=(deployment_write(deployment),),
        flags=flags,
    )
    return an_id(7)
