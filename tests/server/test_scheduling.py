"""Scheduling in a region of real servers: workers on every one of them, one leader, and leaders that come and go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.model.evaluation import Evaluation
from fedsched.rpc.caller import LocalCaller
from fedsched.rpc.methods.scheduling import (
    EVAL_ACK,
    EVAL_DEQUEUE,
    EVAL_EXTEND,
    EVAL_NACK,
    EvaluationDequeueRequest,
    EvaluationTokenRequest,
)
from fedsched.server import server as server_module
from fedsched.server.identity import STRANGER, NotAllowed
from fedsched.server.leader.broker_core import NotOutstanding
from fedsched.state.tables.nodes import node_upsert
from tests.builders import a_group, a_job, a_node, an_id
from tests.overcommit import overcommitted
from tests.server.leader.first_fit import FirstFit
from tests.server.region import Member, Region, run_region, until

SCHEDULERS = {"service": FirstFit}


@pytest.fixture
def schedulers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every server of the test schedules by first fit."""
    init = server_module.Server.__init__
    monkeypatch.setattr(
        server_module.Server,
        "__init__",
        lambda self, *args, **fields: init(self, *args, **{"schedulers": SCHEDULERS, **fields}),
    )


async def put_nodes(member: Member, *nodes: Any) -> None:
    for node in nodes:
        await member.server.work._desk.proposals.propose(node_upsert(node))


def placed(member: Member, job_id: str) -> int:
    return len(member.server.machine.store.allocations.slots_of_job("default", job_id))


def open_evaluations(member: Member) -> list[Evaluation]:
    return [row.evaluation() for row in member.server.machine.store.evaluations.rows.scan() if row.is_open]


def worked(member: Member) -> float:
    """How many evaluations the workers of a server brought to their end."""
    for family in member.metrics.families():
        if family.spec.name == "worker.evaluations":
            return sum(one.value for labels, one in family.series.items() if labels[1] == "ended")
    return 0.0


@pytest.mark.usefixtures("schedulers")
def test_jobs_registered_anywhere_are_scheduled_by_workers_of_all_servers(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(3)
        await put_nodes(leader, *(a_node(number, cpu=20_000, memory_mb=60_000) for number in range(1, 5)))
        for number in range(30):
            member = region.running()[number % 3]
            await member.register(a_job(f"job{number}", region="", groups=[a_group(count=4)]))

        await until("all evaluations have ended", lambda: not open_evaluations(leader))
        assert [placed(leader, f"job{number}") for number in range(30)] == [4] * 30
        for member in region.running():
            store = member.server.machine.store
            await until("it is known here too", lambda store=store: store.index >= leader.server.machine.store.index)
            assert [placed(member, f"job{number}") for number in range(30)] == [4] * 30
            assert overcommitted(store) == []
        assert any(worked(member) > 0 for member in await region.followers())

    run_region(tmp_path, scenario)


@pytest.mark.usefixtures("schedulers")
def test_no_evaluation_is_lost_with_the_leader(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(3)
        await put_nodes(leader, a_node(1, cpu=1_000_000, memory_mb=1_000_000))
        others = await region.followers()

        async def register() -> None:
            for number in range(60):
                await others[number % 2].register(f"job{number}", seq=number + 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(register)
            await until("some are under way", lambda: placed(leader, "job10"))
            await region.stop(leader)
        survivor = await region.leader()

        await until("all evaluations have ended", lambda: not open_evaluations(survivor), within_s=20)
        counts = Counter(placed(survivor, f"job{number}") for number in range(60))
        assert counts == {1: 60}
        assert overcommitted(survivor.server.machine.store) == []

    run_region(tmp_path, scenario)


@pytest.mark.usefixtures("schedulers")
def test_a_blocked_job_runs_within_a_second_of_room_appearing_also_after_a_change_of_leader(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(3)
        await leader.register(a_job("web", region="", groups=[a_group(count=3)]))
        await until("it is blocked", lambda: leader.server.work.broker.blocked.statistics().blocked == 1)

        await region.stop(leader)
        survivor = await region.leader()
        await put_nodes(survivor, a_node(1))

        await until("it runs", lambda: placed(survivor, "web") == 3, within_s=1.0)

    run_region(tmp_path, scenario)


def test_workers_of_other_servers_are_handed_evaluations_over_the_wire(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        follower = (await region.followers())[0]
        written = await follower.register("web")
        request = EvaluationDequeueRequest(types=("service",), wait_s=5.0)

        handed = (await follower.call(EVAL_DEQUEUE, request)).evaluations[0]

        assert (handed.eval_id, handed.type) == (written.eval_id, "service")
        assert handed.wait_index >= written.eval_create_index
        token = EvaluationTokenRequest(eval_id=handed.eval_id, token=handed.token)
        await follower.call(EVAL_EXTEND, token)
        await follower.call(EVAL_NACK, token)
        with pytest.raises(NotOutstanding):
            await follower.call(EVAL_ACK, token)
        assert (await follower.call(EVAL_DEQUEUE, EvaluationDequeueRequest(types=("batch",)))).evaluations == ()
        again = (await follower.call(EVAL_DEQUEUE, request)).evaluations[0]
        await follower.call(EVAL_ACK, EvaluationTokenRequest(eval_id=again.eval_id, token=again.token))

    run_region(tmp_path, scenario, num_schedulers=0)


def test_only_servers_may_ask_for_evaluations(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        stranger = LocalCaller(leader.server.calls, identity=STRANGER)

        with pytest.raises(NotAllowed):
            await stranger.call(EVAL_ACK, EvaluationTokenRequest(eval_id=an_id(1), token="t"))

    run_region(tmp_path, scenario)
