"""The whole walk on real servers: a job is registered, evaluated, planned, committed; nodes come and go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fedsched.model.evaluation import EvaluationStatus
from fedsched.model.node import Node
from fedsched.model.policies import UpdateStrategy
from fedsched.rpc.methods.job import JOB_DEREGISTER, JobDeregisterRequest
from fedsched.rpc.methods.job_extras import JOB_EVALUATE, JobEvaluateRequest
from fedsched.rpc.methods.node import (
    NODE_REGISTER,
    NODE_UPDATE_STATUS,
    NodeRegisterRequest,
    NodeStatusRequest,
)
from tests.builders import a_group, a_job, a_node, a_task
from tests.server.region import Member, Region, run_region, until

AT_ONCE = UpdateStrategy(max_parallel=0)


def a_host(number: int, **fields: Any) -> Node:
    fields.setdefault("secret_id", f"99999999-0000-4000-8000-{number:012x}")
    return a_node(number, **fields)


async def join(member: Member, node: Node) -> None:
    await member.call(NODE_REGISTER, NodeRegisterRequest(node=node))
    await member.call(NODE_UPDATE_STATUS, NodeStatusRequest(node_id=node.id, secret_id=node.secret_id))


def a_service(count: int, **fields: Any) -> Any:
    group = a_group(count=count, update=AT_ONCE, tasks=[a_task(cpu=500, memory_mb=256)])
    return a_job("web", region="", groups=[group], **fields)


def live(member: Member, job_id: str = "web") -> int:
    allocations = member.server.machine.store.allocations
    slots = allocations.slots_of_job("default", job_id)
    return sum(not one.is_terminal for one in allocations.records(slots))


async def ended(member: Member, evaluation_id: str) -> Any:
    store = member.server.machine.store
    await until("the evaluation ends", lambda: (row := store.evaluations.row(evaluation_id)) and not row.is_open)
    return store.evaluations.get(evaluation_id)


def test_a_registered_job_becomes_allocations_on_every_server(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        follower = (await region.followers())[0]
        for number in range(1, 4):
            await join(follower, a_host(number))

        reply = await follower.register(a_service(6))
        done = await ended(follower, reply.eval_id)

        assert done.status is EvaluationStatus.COMPLETE
        for member in region.members.values():
            await until("every server has them", lambda member=member: live(member) == 6)

    run_region(tmp_path, scenario)


def test_what_does_not_fit_runs_as_soon_as_a_node_joins(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader = await region.leader()
        await join(leader, a_host(1, cpu=1000))
        reply = await leader.register(a_service(4))
        await ended(leader, reply.eval_id)
        assert live(leader) == 2

        await join(leader, a_host(2))

        await until("the rest is placed", lambda: live(leader) == 4)

    run_region(tmp_path, scenario)


def test_a_stopped_job_gives_everything_up(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(1)
        leader = await region.leader()
        await join(leader, a_host(1))
        await ended(leader, (await leader.register(a_service(3))).eval_id)
        assert live(leader) == 3

        await leader.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web"))

        await until("nothing is left", lambda: live(leader) == 0)

    run_region(tmp_path, scenario, bootstrap_expect=1)


def test_a_new_leader_goes_on_with_what_was_blocked(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader = await region.leader()
        await ended(leader, (await leader.register(a_service(2))).eval_id)
        await region.stop(leader)
        other = await region.leader()

        await join(other, a_host(1))

        await until("it is placed", lambda: live(other) == 2)

    run_region(tmp_path, scenario)


def test_room_that_appears_just_before_its_leader_is_lost_is_used(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader = await region.leader()
        await ended(leader, (await leader.register(a_service(2))).eval_id)
        follower = (await region.followers())[0]

        await join(follower, a_host(1))
        await region.stop(leader)
        other = await region.leader()

        await until("it is placed", lambda: live(other) == 2)

    run_region(tmp_path, scenario)


def test_eleven_evaluations_of_one_job_end_as_two_complete_and_nine_cancelled(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(1)
        leader = await region.leader()
        await join(leader, a_host(1))
        await leader.register(a_service(3))
        for _ in range(10):
            await leader.call(JOB_EVALUATE, JobEvaluateRequest(job_id="web"))
        assert statuses(leader) == {"pending": 11}

        await region.stop(leader)
        leader = await region.restart(leader, num_schedulers=4)

        await until("all have ended", lambda: statuses(leader).total() == 11 and "pending" not in statuses(leader))
        assert statuses(leader) == {"complete": 2, "canceled": 9}
        assert live(leader) == 3

    run_region(tmp_path, scenario, bootstrap_expect=1, num_schedulers=0)


def statuses(member: Member) -> Counter[str]:
    return Counter(row.status for row in member.server.machine.store.evaluations.rows.scan())


def test_a_changed_job_is_rolled_over(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(1)
        leader = await region.leader()
        await join(leader, a_host(1))
        job = a_service(2)
        await ended(leader, (await leader.register(job)).eval_id)
        before = set(leader.server.machine.store.allocations.slots_of_job("default", "web").tolist())
        group = replace(job.task_groups[0], tasks=(a_task(cpu=500, memory_mb=256, env={"NEW": "1"}),))

        await ended(leader, (await leader.register(replace(job, task_groups=(group,)))).eval_id)

        after = set(leader.server.machine.store.allocations.slots_of_job("default", "web").tolist())
        assert (live(leader), len(after - before)) == (2, 2)

    run_region(tmp_path, scenario, bootstrap_expect=1)
