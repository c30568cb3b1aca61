"""A client and a server over a real link: registration, push, reports, restarts of either, and the end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs

from fedsched.client.client import Client
from fedsched.client.settings import DrainOnShutdown
from fedsched.client.uplink import Uplink
from fedsched.model.alloc import Allocation, ClientStatus, DesiredStatus
from fedsched.model.node import DriverInfo, NodeStatus
from fedsched.rpc.caller import LocalCaller
from fedsched.rpc.methods.alloc import ALLOC_GET, AllocRequest
from fedsched.rpc.methods.job import JOB_DEREGISTER, JOB_REGISTER, JobDeregisterRequest, JobRegisterRequest
from fedsched.rpc.methods.node import (
    NODE_DEREGISTER,
    NODE_GET,
    NODE_LIST,
    NODE_REGISTER,
    NodeListRequest,
    NodeRegisterRequest,
    NodeRequest,
    NodesRequest,
)
from fedsched.server.identity import SERVER
from tests.agent.agents import a_config, an_agent, run_agents
from tests.builders import a_group, a_job, a_node
from tests.client.client_kit import PretendedRunner, a_client, running, some_settings, until


class Site:
    """A region of one server, and what one asks of it."""

    def __init__(self, directory: Path) -> None:
        config = a_config(directory)
        self.agent = an_agent(replace(config, server=replace(config.server, num_schedulers=1)))
        self.directory = directory

    @property
    def caller(self) -> LocalCaller:
        return LocalCaller(self.agent.server.calls, identity=SERVER)

    @property
    def address(self) -> str:
        return self.agent.server.me.address

    def client(self, **changes: Any) -> Client:
        return a_client(some_settings(self.directory / "host", self.address, is_dev=True, **changes))

    async def node(self, client: Client) -> Any:
        reply, _ = await self.caller.call(NODE_GET, NodeRequest(node_id=client.identity.node_id))
        return reply.node

    async def submit(self, job_id: str = "web", count: int = 1, **fields: Any) -> None:
        shape = {"update": None, "migrate": None} if fields.get("type") == "batch" else {}
        job = a_job(job_id, groups=[a_group(count=count, **shape)], **fields)
        await self.caller.call(JOB_REGISTER, JobRegisterRequest(job=job))

    async def stop_job(self, job_id: str = "web", *, purge: bool = False) -> None:
        await self.caller.call(JOB_DEREGISTER, JobDeregisterRequest(job_id=job_id, purge=purge))

    async def alloc(self, alloc_id: str) -> Allocation:
        reply, _ = await self.caller.call(ALLOC_GET, AllocRequest(alloc_id=alloc_id))
        return reply.alloc

    def known(self, status: ClientStatus) -> list[str]:
        """Allocations that the server takes for this."""
        allocations = self.agent.server.machine.store.allocations
        slots = allocations.columns.in_use(0, 10_000)
        return [one.id for one in allocations.records(slots) if one.client_status is status]


def with_site(directory: Path, scenario: Callable[[Site], Awaitable[None]]) -> None:
    site = Site(directory)

    async def main() -> None:
        await scenario(site)

    run_agents(site.agent, scenario=main)


def test_a_client_registers_runs_what_it_is_given_and_reports_it(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with running(site.client()) as client:
            await client.wait_registered()
            node = await site.node(client)
            assert node.status is NodeStatus.READY
            assert node.secret_id == ""
            assert node.drivers["mock_driver"].healthy
            await site.submit(count=3)
            await until("all run", lambda: len(site.known(ClientStatus.RUNNING)) == 3)

            first, *others = client.runners
            client.runners[first].end(1)  # type: ignore[attr-defined]
            await until("one failed", lambda: site.known(ClientStatus.FAILED) == [first])
            told = await site.alloc(first)

            assert told.task_states["main"].failed
            assert [event.type for event in told.task_states["main"].events] == ["Started"]
            assert len(others) >= 2

    with_site(tmp_path, scenario)


def test_a_job_that_is_stopped_stops_here_and_is_reported_complete(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with running(site.client()) as client:
            await client.wait_registered()
            await site.submit(count=2)
            await until("all run", lambda: len(site.known(ClientStatus.RUNNING)) == 2)

            await site.stop_job()

            await until("all are over", lambda: len(site.known(ClientStatus.COMPLETE)) == 2)
            stopped: list[PretendedRunner] = list(client.runners.values())  # type: ignore[arg-type]
            assert all(one.is_stopping for one in stopped)
            assert all(one.context.alloc.desired_status is DesiredStatus.STOP for one in stopped)

    with_site(tmp_path, scenario)


def test_what_cannot_be_constructed_is_reported_failed_once_and_remembered(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        settings = {"type": "batch"}
        async with running(site.client()) as client:
            await client.wait_registered()
            await site.submit("impossible", **settings)
            await until("it failed", lambda: len(site.known(ClientStatus.FAILED)) >= 1)
            (first, *_) = site.known(ClientStatus.FAILED)
            told = await site.alloc(first)
            assert "driver 'none' is not on this node" in told.client_description
            await until("it is remembered", lambda: client._journal.refused[first].is_acked)

        async with running(site.client()) as again:
            await again.wait_registered()
            await until("all was told", lambda: again.parts.has_contact.is_set())
            assert first not in again.runners
            assert again.uplink._reports._due.get(first) is None

    with_site(tmp_path, scenario)


def test_a_runner_that_breaks_fails_its_allocation_and_no_other(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with running(site.client()) as client:
            await client.wait_registered()
            await site.submit("web")
            await site.submit("broken", type="batch")
            await until("it failed", lambda: len(site.known(ClientStatus.FAILED)) >= 1)
            await until("the other runs", lambda: len(site.known(ClientStatus.RUNNING)) == 1)

    with_site(tmp_path, scenario)


def test_the_next_agent_takes_up_what_the_last_one_ran_and_says_nothing_twice(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with running(site.client()) as client:
            await client.wait_registered()
            await site.submit(count=2)
            await until("all run", lambda: len(site.known(ClientStatus.RUNNING)) == 2)
            ids = set(client.runners)
            node_id = client.identity.node_id
            await until("acknowledged", lambda: client.uplink.unsaid == 0)
            await until("and written down", lambda: len(client._runners._acked) == 2)
            await client._journal.put_node("turn", b"")  # whatever was handed over before is on disk after this

        async with running(site.client()) as again:
            assert set(again.runners) == ids
            assert all(one.was_restored for one in again.runners.values())  # type: ignore[attr-defined]
            assert again.identity.node_id == node_id
            await again.wait_registered()
            await until("all was told", lambda: again.parts.has_contact.is_set())
            await until("nothing is left to say", lambda: again.uplink.unsaid == 0)
            assert not any(one.updates for one in again.runners.values())  # type: ignore[attr-defined]

    with_site(tmp_path, scenario)


def test_an_allocation_that_servers_have_forgotten_is_removed(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with running(site.client()) as client:
            await client.wait_registered()
            await site.submit()
            await until("it runs", lambda: len(site.known(ClientStatus.RUNNING)) == 1)
            (runner,) = client.runners.values()

            await site.caller.call(NODE_DEREGISTER, NodesRequest(node_ids=(client.identity.node_id,)))

            await until("it is registered again", lambda: len(site.agent.server.machine.store.nodes.rows) == 1)
            reply, _ = await site.caller.call(NODE_LIST, NodeListRequest())
            assert [node.id for node in reply.nodes] == [client.identity.node_id]
            assert runner is not None

    with_site(tmp_path, scenario)


def test_a_client_that_leaves_drains_first(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with running(site.client(drain_on_shutdown=DrainOnShutdown(deadline_s=1.0))) as client:
            await client.wait_registered()
            await site.submit()
            await until("it runs", lambda: len(site.known(ClientStatus.RUNNING)) == 1)

            with trio.fail_after(15):
                await client.stop(leave=True)

            node = await site.node(client)
            assert not any(not one.is_terminal for one in client.runners.values())
            assert node.scheduling_eligibility.value == "ineligible"

    with_site(tmp_path, scenario)


def test_a_client_that_leaves_does_not_wait_for_servers_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(site: Site) -> None:
        async with running(site.client(drain_on_shutdown=DrainOnShutdown(deadline_s=0.0))) as client:
            await client.wait_registered()
            monkeypatch.setattr(Uplink, "unsaid", property(lambda uplink: 1))  # and nobody who would hear it
            monkeypatch.setattr(Uplink, "is_connected", property(lambda uplink: False))

            with trio.fail_after(15):
                await client.stop(leave=True)

            assert (await site.node(client)).scheduling_eligibility.value == "ineligible"

    with_site(tmp_path, scenario)


def test_a_development_agent_ends_its_tasks_when_it_stops(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        async with running(site.client()) as client:
            await client.wait_registered()
            await site.submit(count=2)
            await until("all run", lambda: len(site.known(ClientStatus.RUNNING)) == 2)
            runners: list[PretendedRunner] = list(client.runners.values())  # type: ignore[arg-type]

            await client.stop()

            assert all(one.is_destroyed for one in runners)
            assert not client.runners
            assert len(client._journal.load()) == 0

    with_site(tmp_path, scenario)


def test_a_driver_that_falls_ill_is_told_of_with_an_event_of_its_node(tmp_path: Path) -> None:
    async def scenario(site: Site) -> None:
        well = a_node(7, secret_id="secret", drivers=["exec"])
        ill = structs.replace(
            well, drivers={"exec": DriverInfo(detected=True, healthy=False, health_description="no cgroups")}
        )
        for node in (well, ill, well):
            await site.caller.call(NODE_REGISTER, NodeRegisterRequest(node=node))
        reply, _ = await site.caller.call(NODE_GET, NodeRequest(node_id=well.id))

        told = [event.message for event in reply.node.events if event.subsystem == "Driver"]
        assert told == ["Driver health changed: exec: no cgroups", "Driver health changed: exec is healthy"]

    with_site(tmp_path, scenario)
