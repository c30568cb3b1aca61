"""A job of three regions, one after the other, on real processes: the owner region's leader is killed in between.

What has been decided is in the owner region's log, so whoever leads next goes on; and every region carries every
decision out once, so each has one deployment of the version, no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedsched.model.deployment import DeploymentStatus
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, Multiregion, MultiregionRegion, MultiregionStrategy
from fedsched.model.policies import UpdateStrategy
from fedsched.model.resources import Resources
from fedsched.model.rollout import Rollout, RolloutStatus
from fedsched.model.task import Task
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.deployment import DEPLOYMENT_LIST, DeploymentListRequest
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest
from fedsched.rpc.methods.rollout import ROLLOUT_GET, RolloutGetRequest
from fedsched.rpc.methods.server import REGION_LIST
from tests.e2e.calls import look
from tests.e2e.hosts import Asker, HostAgent, running_host, until
from tests.e2e.region import HOST, Region, running_region
from tests.e2e.view import wait_leader

pytestmark = pytest.mark.processes

JOB = "everywhere"
OWNER, SECOND, THIRD = NAMES = ("one", "two", "three")
READY_S = 60.0
STEP_S = 60.0
OVER_S = 120.0
"""An election, and what the owner's link to each region takes to be there again, on a crowded machine."""


@dataclass
class Federation:
    """Three regions, each with a host."""

    regions: dict[str, Region]
    hosts: list[HostAgent]

    def ask(self, method: Any, request: Any, region: str = OWNER) -> Any:
        return Asker(self.regions[region]).ask(method, request)

    def rollout(self, rollout_id: str) -> Rollout:
        return self.ask(ROLLOUT_GET, RolloutGetRequest(rollout_id=rollout_id)).rollout

    def status(self, rollout_id: str, region: str) -> DeploymentStatus:
        """As the owner region has it."""
        found = self.rollout(rollout_id).region(region)
        assert found is not None
        return found.status

    def deployments(self, region: str) -> list[tuple[int, DeploymentStatus]]:
        """Versions and statuses, as the region itself has them."""
        listed = self.ask(DEPLOYMENT_LIST, DeploymentListRequest(), region).deployments
        return [(one.job_version, one.status) for one in listed if one.job_id == JOB]

    def until(self, what: str, is_true: Any, within_s: float) -> None:
        until(what, is_true, within_s, *self.hosts, poll_s=0.1)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    with ExitStack() as stack:
        regions = {
            name: stack.enter_context(
                running_region(tmp_path / name, 3 if name == OWNER else 1, name=name, start=False)
            )
            for name in NAMES
        }
        servers = [server for region in regions.values() for server in region.servers.values()]
        wan = [f"{HOST}:{region.servers['s1'].serf_port}" for region in regions.values()]
        for server in servers:
            server.wan = wan
            server.start()
        for server in servers:
            server.wait_listening()
        hosts = [
            stack.enter_context(running_host(region, tmp_path / name, f"{name}-host"))
            for name, region in regions.items()
        ]
        federation = Federation(regions, hosts)
        for name, region in regions.items():
            wait_leader(region, look, needed=len(region.servers) // 2 + 1)
            federation.until(f"{name} has its host", Asker(region).ready_nodes, READY_S)
        federation.until(
            "the regions know each other",
            lambda: len(federation.ask(REGION_LIST, Empty()).regions) == len(NAMES),
            READY_S,
        )
        yield federation


def a_job_of_all() -> Job:
    task = Task(
        name="task",
        driver="mock_driver",
        config={"run_for": "1h"},
        resources=Resources(cpu=10, memory_mb=16),
    )
    group = TaskGroup(
        name="group",
        count=0,
        tasks=(task,),
        update=UpdateStrategy(max_parallel=1, health_check="task_states", min_healthy_time_s=1.0),
    )
    multiregion = Multiregion(
        strategy=MultiregionStrategy(max_parallel=1, on_failure="fail_all"),
        regions=tuple(MultiregionRegion(name=name, count=1) for name in NAMES),
    )
    return Job(id=JOB, name=JOB, type="service", task_groups=(group,), multiregion=multiregion)


def test_a_rollout_outlives_the_leader_of_the_region_that_drives_it(federation: Federation) -> None:
    leader = wait_leader(federation.regions[OWNER], look)
    reply = federation.ask(JOB_REGISTER, JobRegisterRequest(job=a_job_of_all()))
    federation.until(
        "the first region is done",
        lambda: federation.status(reply.rollout_id, OWNER) is DeploymentStatus.BLOCKED,
        STEP_S,
    )

    federation.regions[OWNER].servers[leader].kill()

    [(version, status)] = federation.deployments(THIRD)
    assert status is DeploymentStatus.PENDING, "the last region's turn is yet to come"
    federation.until("the rollout is over", lambda: federation.rollout(reply.rollout_id).status.is_over, OVER_S)
    rollout = federation.rollout(reply.rollout_id)
    assert rollout.status is RolloutStatus.SUCCESSFUL, rollout.status_description
    assert rollout.job_version == version
    for name in NAMES:
        assert federation.status(reply.rollout_id, name) is DeploymentStatus.SUCCESSFUL
        assert federation.deployments(name) == [(version, DeploymentStatus.SUCCESSFUL)]
        [alloc] = Asker(federation.regions[name]).allocs(JOB)
        assert alloc.client_status.value == "running"
