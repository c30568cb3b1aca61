"""A scheduler of somebody's own on real servers: the example package of the guide, built and installed as a wheel."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hatchling.build import build_wheel

from fedsched.model.evaluation import EvaluationStatus
from fedsched.model.job import Job
from fedsched.model.node import Node, NodeStatus
from fedsched.model.problem import InvalidJob
from fedsched.rpc.methods.agent import AGENT_SCHEDULERS, AgentSchedulersRequest, ServerSchedulers
from fedsched.rpc.methods.job_extras import JOB_PLAN, JobPlanRequest
from fedsched.rpc.methods.node import NODE_UPDATE_STATUS, NodeStatusRequest
from fedsched.rpc.methods.why import JOB_WHY, JobWhyRequest
from fedsched.scheduler.registry import UnknownScheduler
from fedsched.server.served_types import BuiltInServed, lacking
from tests.builders import a_group, a_job, a_task, an_id
from tests.scheduler.places import a_network, a_place, dynamic
from tests.server.region import Member, Region, run_region, until
from tests.server.test_whole_walk import a_host, ended, join

EXAMPLE = Path(__file__).parents[2] / "fixtures" / "own-scheduler"
WITH_IT = ("service", "batch", "round-robin")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example, as a wheel on the path: what an installer would unpack, without one and without a network."""
    monkeypatch.chdir(EXAMPLE)
    (tmp_path / "wheels").mkdir()
    wheel = build_wheel(str(tmp_path / "wheels"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "wheels" / wheel))
    yield
    sys.modules.pop("fedsched_round_robin", None)


def in_turn(count: int, **fields: Any) -> Job:
    group = a_group(count=count, tasks=[a_task(cpu=500, memory_mb=256)], **fields)
    return a_job("turns", region="", type="round-robin", groups=[group])


def a_host_with_ports(number: int, **fields: Any) -> Node:
    return a_place(id=an_id(number), secret_id=f"99999999-0000-4000-8000-{number:012x}", **fields)


def places(member: Member) -> dict[int, str]:
    """The node's name of each allocation that is to run, by its number."""
    allocations = member.server.machine.store.allocations
    found = [allocations.get(one.id) for one in allocations.records(allocations.slots_of_job("default", "turns"))]
    running = [one for one in found if one is not None and not one.is_server_terminal]
    return {int(one.name.partition("[")[2][:-1]): one.node_name for one in running}


def test_a_job_of_its_type_is_placed_by_it_and_replaced_when_a_node_is_lost(tmp_path: Path, installed: None) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        hosts = [a_host(number, name=name) for number, name in enumerate(("ada", "bob", "cid"), 1)]
        for host in hosts:
            await join(leader, host)

        await ended(leader, (await leader.register(in_turn(5))).eval_id)
        assert places(leader) == {0: "ada", 1: "bob", 2: "cid", 3: "ada", 4: "bob"}

        lost = NodeStatusRequest(node_id=hosts[2].id, secret_id=hosts[2].secret_id, status=NodeStatus.DOWN)
        await leader.call(NODE_UPDATE_STATUS, lost)
        await until("number 2 has another node", lambda: places(leader).get(2) == "ada")

    run_region(tmp_path, scenario, bootstrap_expect=1, enabled_schedulers=WITH_IT)


def test_what_finds_no_room_waits_and_is_explained_as_for_any_job(tmp_path: Path, installed: None) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await join(leader, a_host_with_ports(1, name="ada", cpu=1000))
        await join(leader, a_host_with_ports(2, name="bob", cpu=600))
        job = in_turn(4, networks=(a_network(dynamic()),))

        plan = await leader.call(JOB_PLAN, JobPlanRequest(job=job))
        done = await ended(leader, (await leader.register(job)).eval_id)
        why = (await leader.call(JOB_WHY, JobWhyRequest(job_id="turns"))).why

        assert plan.failed_tg_allocs["group"].coalesced_failures == 0
        assert plan.warnings == ()
        assert done.status is EvaluationStatus.COMPLETE
        assert places(leader) == {0: "ada", 1: "bob", 2: "ada"}
        assert why.words[0] == 'Group "group": 1 allocation without a place.'

        await join(leader, a_host_with_ports(3, name="cid"))
        await until("the last one has a place", lambda: places(leader).get(3) == "cid")

    run_region(tmp_path, scenario, bootstrap_expect=1, enabled_schedulers=WITH_IT)


def test_only_the_servers_that_have_it_take_its_jobs_and_any_server_lets_them_in(
    tmp_path: Path, installed: None
) -> None:
    async def scenario(region: Region) -> None:
        await region.add("s1", enabled_schedulers=WITH_IT)
        await region.add("s2")
        await region.add("s3", num_schedulers=0)
        leader = await region.leader()
        for number in (1, 2):
            await join(leader, a_host(number))

        for name, member in region.members.items():
            done = await ended(member, (await member.register(in_turn(1))).eval_id)
            assert done.status is EvaluationStatus.COMPLETE, name
        answer = await region.members["s2"].call(AGENT_SCHEDULERS, AgentSchedulersRequest(everywhere=True))

        built_in = ("batch", "service", "sysbatch", "system")
        said = {one.name: (one.workers, one.enabled, one.idle) for one in answer.servers}
        assert said == {
            "s1": (8, tuple(sorted(WITH_IT)), ()),
            "s2": (8, built_in, ("round-robin",)),
            "s3": (0, (), (*built_in[:1], "round-robin", *built_in[1:])),
        }

    run_region(tmp_path, scenario, bootstrap_expect=3)


def test_a_type_that_no_server_takes_is_refused_with_what_to_enable(tmp_path: Path, installed: None) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)

        with pytest.raises(InvalidJob, match='Invalid job type: "round-robin"') as caught:
            await leader.register(in_turn(1))
        assert caught.value.hint == "there is a scheduler for it on s1: add 'round-robin' to enabled_schedulers there"
        with pytest.raises(InvalidJob, match='Invalid job type: "servce"') as caught:
            await leader.call(JOB_PLAN, JobPlanRequest(job=a_job("web", region="", type="servce")))
        assert caught.value.hint.startswith('did you mean "service"?')

    run_region(tmp_path, scenario, bootstrap_expect=1)


def test_a_server_that_cannot_be_asked_is_named(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(3)
        gone = (await region.followers())[0]
        await region.stop(gone)

        with pytest.raises(InvalidJob) as caught:
            await leader.register(in_turn(1))

        assert caught.value.hint.endswith(f"; {gone.name} did not answer")
        assert leader.said("schedulers_not_told")[0]["server"] == gone.name

    run_region(tmp_path, scenario, bootstrap_expect=3)


def test_a_job_whose_type_is_no_longer_taken_says_so(tmp_path: Path, installed: None) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await join(leader, a_host(1))
        await ended(leader, (await leader.register(in_turn(1))).eval_id)
        await region.stop(leader)
        again = await region.restart(leader, enabled_schedulers=("batch",))
        await region.leader()

        evaluation = (await again.register(a_job("web", region=""))).eval_id
        own = (await again.call(JOB_WHY, JobWhyRequest(job_id="turns"))).why
        built_in = (await again.call(JOB_WHY, JobWhyRequest(job_id="web"))).why

        assert own.verdict == "waiting"
        assert own.words[:2] == (
            'No server takes jobs of type "round-robin", so nothing of it is placed or changed.',
            "To have it looked at: there is a scheduler for it on s1: add 'round-robin' to enabled_schedulers there.",
        )
        assert own.words[-1] == "1 allocation placed, and yet to start on the client."
        assert built_in.words[:2] == (
            'No server takes jobs of type "service", so nothing of it is placed or changed.',
            "To have it looked at: add 'service' to enabled_schedulers of a server.",
        )
        row = again.server.machine.store.evaluations.row(evaluation)
        assert row is not None
        assert row.status == EvaluationStatus.PENDING.value

    run_region(tmp_path, scenario, bootstrap_expect=1, enabled_schedulers=WITH_IT)


def test_a_server_that_is_told_to_run_what_is_not_installed_does_not_start(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(1)

    with pytest.raises(UnknownScheduler, match="'round-robin'"):
        run_region(tmp_path, scenario, bootstrap_expect=1, enabled_schedulers=WITH_IT)


def test_what_is_lacking_is_said_of_all_servers_that_answered() -> None:
    idle = ServerSchedulers(id="1", name="s1", workers=8, enabled=("service",), idle=("turns",))
    resting = ServerSchedulers(id="2", name="s2", workers=0, idle=("service", "turns"))
    silent = ServerSchedulers(id="3", name="s3", answered=False)

    assert lacking([idle], "service") == ""
    assert "on s1: add 'turns'" in lacking([idle, resting], "turns")
    assert lacking([resting, silent], "turns") == (
        "s2 could take them, but num_schedulers is 0 there; s3 did not answer"
    )
    assert lacking([silent], "batch") == "add 'batch' to enabled_schedulers of a server; s3 did not answer"
    assert lacking([idle], "truns").startswith('did you mean "turns"?, or a package')


def test_without_other_servers_to_ask_only_what_is_built_in_is_known() -> None:
    import trio

    assert trio.run(BuiltInServed().lacking, "batch") == ""
    assert trio.run(BuiltInServed().lacking, "btch") == 'did you mean "batch"?'
