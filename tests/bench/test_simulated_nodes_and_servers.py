"""Simulated nodes against real servers: jobs run, end, fail and move; nodes fail and return; deployments succeed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs

from fedsched.bench.simulated_node import COMPLETE
from fedsched.bench.simulated_nodes import Shape, SimulatedFleet, make_nodes
from fedsched.model.alloc import Allocation
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.job import Job
from fedsched.model.node import DrainStrategy, NodeStatus
from fedsched.model.policies import DisconnectStrategy, ReschedulePolicy
from fedsched.rpc.methods import node as node_methods
from fedsched.rpc.methods.job import JOB_DEREGISTER, JobDeregisterRequest
from fedsched.server.identity import SERVER
from fedsched.wire.frames import Hello
from fedsched.wire.link import Link, open_link
from fedsched.wire.memory import memory_pair
from tests.bench.simulated_kit import NEVER_AGAIN, QUICK, a_batch, a_service
from tests.builders import a_group, a_job, a_task
from tests.server.region import Member, Region, run_region, until

pytestmark = pytest.mark.usefixtures("impatience")


class Site:
    """A region and a fleet that is linked to all of its servers."""

    def __init__(self, region: Region, count: int) -> None:
        self.region = region
        members = region.running()
        self.fleet = SimulatedFleet(
            make_nodes(Shape(count=count)),
            [member.name for member in members],
            batch_s=0.05,
            nodes_per_link=2,
            dial=self._dial,
        )

    @asynccontextmanager
    async def _dial(self, name: str) -> AsyncIterator[Link]:
        member = self.region.members[name]
        if not member.is_running:
            raise OSError(f"nobody answers for {name}")
        left, right = memory_pair()

        async def known(_: Hello) -> Any:
            return SERVER

        async with trio.open_nursery() as nursery:
            served = Link(right, is_opener=False, handler=member.server.calls, authenticate=known)
            nursery.start_soon(served.run)
            nursery.start_soon(_close_with, member, served)
            async with open_link(left, is_opener=True) as link:
                await link.wait_ready()
                yield link
            nursery.cancel_scope.cancel("the link is over")

    @property
    def leader(self) -> Member:
        (leader,) = [member for member in self.region.running() if member.is_leader]
        return leader

    def allocs(self, job_id: str) -> list[Allocation]:
        store = self.leader.server.machine.store
        return store.allocations.records(store.allocations.slots_of_job("default", job_id))

    def statuses(self, job_id: str) -> Counter[str]:
        return Counter(one.client_status.value for one in self.allocs(job_id))

    def node_status(self, at: int) -> str:
        row = self.leader.server.machine.store.nodes.get(self.fleet.nodes[at].node.id)
        assert row is not None
        return row.status

    async def register(self, job: Job) -> None:
        await self.leader.register(job)


async def _close_with(member: Member, link: Link) -> None:
    await member.ended.wait()
    link.close()


def with_site(directory: Path, story: Any, *, servers: int = 1, nodes: int = 3) -> None:
    async def scenario(region: Region) -> None:
        await region.form(servers)
        site = Site(region, nodes)
        async with trio.open_nursery() as nursery:
            await nursery.start(site.fleet.run)
            await site.fleet.all_registered.wait()
            await story(site)
            nursery.cancel_scope.cancel("the story is over")

    run_region(directory, scenario)


def test_jobs_run_and_end_as_their_tasks_say(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.register(a_batch("short", 4, run_for="50ms"))
        await site.register(a_batch("long", 3, run_for="1h"))
        await site.register(a_batch("bad", 2, run_for="30ms", exit_code=1))
        await until("short ones end", lambda: site.statuses("short") == {"complete": 4})
        await until("long ones run", lambda: site.statuses("long") == {"running": 3})
        await until("bad ones fail", lambda: site.statuses("bad") == {"failed": 2})
        tally = site.fleet.tally
        await until("that is known here", lambda: (tally.complete, tally.failed) == (4, 2))
        assert (tally.registered, tally.received, tally.errors) == (3, 9, 0)
        job = await site.leader.job("short")
        assert job.status.value == "dead"

    with_site(tmp_path, story)


def test_what_fails_is_placed_anew(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        policy = ReschedulePolicy(
            attempts=2, unlimited=False, interval_s=3600.0, delay_s=0.05, delay_function="constant"
        )
        await site.register(a_batch("bad", run_for="20ms", exit_code=1, reschedule=policy))
        await until("all attempts are used up", lambda: site.statuses("bad") == {"failed": 3})
        last = [one for one in site.allocs("bad") if not one.next_allocation]
        assert [len(one.reschedule_tracker.events) for one in last if one.reschedule_tracker] == [2]

    with_site(tmp_path, story)


def test_a_stopped_job_ends_on_its_nodes(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.register(a_service(count=3))
        await until("it runs", lambda: site.statuses("web") == {"running": 3})
        await site.leader.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web"))
        await until("it has ended", lambda: site.statuses("web") == {"complete": 3})
        assert site.fleet.tally.stopped == 3

    with_site(tmp_path, story)


def test_a_deployment_succeeds_and_so_does_the_next_one(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        def ended() -> list[DeploymentStatus]:
            rows = site.leader.server.machine.store.deployments.rows.scan()
            return [row.deployment().status for row in rows]

        await site.register(a_service(count=4))
        await until("the first version is well", lambda: ended() == [DeploymentStatus.SUCCESSFUL])
        await site.register(a_service(count=4, env="2"))
        await until("the second one, too", lambda: ended() == [DeploymentStatus.SUCCESSFUL] * 2)
        assert site.statuses("web") == {"running": 4, "complete": 4}
        await site.register(a_service(count=6, env="2"))
        await until("and those that go on prove it again", lambda: ended() == [DeploymentStatus.SUCCESSFUL] * 3)
        assert site.statuses("web") == {"running": 6, "complete": 4}

    with_site(tmp_path, story)


def test_an_allocation_that_fails_young_is_unhealthy(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        task = a_task(config={"run_for": "10ms", "exit_code": 1}, restart_policy=NEVER_AGAIN)
        update = structs.replace(QUICK, min_healthy_time_s=5.0)
        none = ReschedulePolicy(attempts=0, unlimited=False)
        group = a_group(tasks=[task], update=update, restart_policy=NEVER_AGAIN, reschedule_policy=none)
        await site.register(a_job("web", region="", groups=[group]))
        await until("it failed", lambda: site.statuses("web")["failed"] == 1)
        (alloc,) = site.allocs("web")
        assert alloc.deployment_status is not None
        assert alloc.deployment_status.healthy is False

    with_site(tmp_path, story)


def test_a_drain_moves_a_service_as_its_replacements_become_healthy(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.register(a_service(count=4))
        await until("it runs", lambda: site.statuses("web") == {"running": 4})
        at = next(at for at, node in enumerate(site.fleet.nodes) if node.node.id == site.allocs("web")[0].node_id)
        await until("it is healthy", lambda: all(one.deployment_status for one in site.allocs("web")))
        node_id = site.fleet.nodes[at].node.id
        strategy = DrainStrategy(deadline_s=60.0)
        await site.leader.call(
            node_methods.NODE_DRAIN, node_methods.NodeDrainRequest(node_id=node_id, drain_strategy=strategy)
        )

        def moved() -> bool:
            running = [one for one in site.allocs("web") if one.client_status.value == "running"]
            return len(running) == 4 and all(one.node_id != node_id for one in running)

        await until("all run elsewhere", moved)

    with_site(tmp_path, story)


def test_a_node_that_fails_is_missed_and_its_work_moves_until_it_returns(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.register(a_service(count=3))
        await until("it runs", lambda: site.statuses("web") == {"running": 3})
        home = site.allocs("web")[0].node_id
        at = next(at for at, node in enumerate(site.fleet.nodes) if node.node.id == home)
        there = sum(one.node_id == home for one in site.allocs("web"))
        site.fleet.obey(json.dumps({"fail": [at]}))
        assert site.fleet.tally.down == 1
        await until("the node is down", lambda: site.node_status(at) == NodeStatus.DOWN.value)
        await until("others took over", lambda: site.statuses("web") == {"running": 3, "lost": there})

        site.fleet.obey('{"return": "all"}')
        await until("the node is ready again", lambda: site.node_status(at) == NodeStatus.READY.value)
        await until("it stopped what was lost", lambda: site.statuses("web") == {"running": 3, "complete": there})
        assert (site.fleet.tally.down, site.fleet.tally.registered) == (0, 3)

    with_site(tmp_path, story)


def test_a_node_that_was_only_cut_off_tells_that_its_work_still_runs(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        patient = DisconnectStrategy(lost_after_s=60.0, replace=False)
        await site.register(a_service(count=2, disconnect=patient))
        await until("it runs", lambda: site.statuses("web") == {"running": 2})
        homes = {one.node_id for one in site.allocs("web")}
        away = [at for at, node in enumerate(site.fleet.nodes) if node.node.id in homes]
        await until("its nodes know that servers know", lambda: site.fleet.tally.running == 2)
        site.fleet.fail(away)
        await until("nobody knows what became of it", lambda: site.statuses("web") == {"unknown": 2})
        site.fleet.bring_back(away)
        await until("it still runs", lambda: site.statuses("web") == {"running": 2})
        await until("its nodes are ready", lambda: {site.node_status(at) for at in away} == {"ready"})
        assert (site.fleet.tally.received, site.fleet.tally.running) == (2, 2)

    with_site(tmp_path, story)


def test_work_that_ended_while_its_node_was_away_is_told_when_it_returns(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.register(a_batch("short", 1, run_for="1s"))
        await until("it runs", lambda: site.statuses("short") == {"running": 1})
        home = site.allocs("short")[0].node_id
        at = next(at for at, node in enumerate(site.fleet.nodes) if node.node.id == home)
        site.fleet.fail([at])
        await until("it ended there", lambda: COMPLETE in site.fleet.nodes[at]._states.values())
        assert site.statuses("short")["complete"] == 0
        site.fleet.bring_back([at])
        await until("the end is known", lambda: site.statuses("short")["complete"] >= 1)

    with_site(tmp_path, story)


def test_reports_reach_the_next_leader(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.register(a_batch("long", 6, run_for="1s"))
        await until("it runs", lambda: site.statuses("long") == {"running": 6})
        old = site.leader
        await site.region.stop(old)
        await site.region.leader()
        await until("the next leader hears of their end", lambda: site.statuses("long")["complete"] >= 4)

    with_site(tmp_path, story, servers=3, nodes=6)
