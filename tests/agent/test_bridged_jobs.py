"""Jobs whose groups have a network of their own, from the job to the packet, in a network that only the test sees."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import trio

from fedsched.agent.agent import Agent
from fedsched.agent.config_client import ClientSection, DriverLists
from fedsched.env.real import RealEnv
from fedsched.model.alloc import ClientStatus
from fedsched.model.check import CheckStatus
from fedsched.model.job import Job
from fedsched.model.network import NetworkResource, Port
from fedsched.model.service import Service, ServiceCheck
from fedsched.rpc.caller import Caller
from fedsched.rpc.methods.alloc import ALLOC_GET, AllocRequest
from fedsched.rpc.methods.job import JOB_DEREGISTER, JOB_REGISTER, JobDeregisterRequest, JobRegisterRequest
from fedsched.rpc.methods.job_extras import JOB_ALLOCS, JobAllocsRequest
from fedsched.rpc.methods.node_calls import ALLOC_CHECKS, AllocChecksRequest
from fedsched.rpc.methods.service import SERVICE_GET, ServiceGetRequest
from fedsched.rpc.methods.why import JOB_WHY, JobWhyRequest
from fedsched.telemetry.log import Hub
from tests.agent.agents import a_config, connected
from tests.agent.test_client_agent import nodes, statuses, until
from tests.builders import a_group, a_job, a_task
from tests.client.own_network import CGROUP, NotHere, in_own_network, left_over
from tests.client.test_group_networks import ANSWERS, asked


def a_dev_agent(place: Path) -> Agent:
    config = a_config(place, "dev")
    client = ClientSection(
        enabled=True,
        plugin={"raw_exec": {"enabled": True}},
        cgroup_parent=CGROUP,
        driver=DriverLists(allowlist=("raw_exec",)),
    )
    config = replace(config, server=replace(config.server, num_schedulers=1), client=client)
    return Agent(config, env=RealEnv(), log=Hub().logger("agent"), is_dev=True)


def a_networked_job(name: str, mode: str) -> Job:
    network = NetworkResource(mode=mode, dynamic_ports=(Port(label="http", to=8000),))
    check = ServiceCheck(name="up", type="tcp", interval_s=1.0, timeout_s=1.0)
    services = tuple(
        Service(name=mode, provider="nomad", port_label="http", address_mode=mode, checks=(check,))
        for mode in ("alloc", "host", "auto")
    )
    task = a_task(driver="raw_exec", config={"command": sys.executable, "args": ["-c", ANSWERS]}, cpu=50, memory_mb=64)
    return a_job(name, groups=[a_group(tasks=[task], networks=(network,), services=services)])


async def is_ready(caller: Caller) -> bool:
    return len(await nodes(caller)) == 1


async def from_job_to_packet(place: Path) -> None:
    agent = a_dev_agent(place)
    async with trio.open_nursery() as nursery:
        await nursery.start(agent.run)
        async with connected(agent.http_address) as caller:
            await until("a node is ready", lambda: is_ready(caller))
            assert agent.client is not None
            offered = agent.client.node()
            if "bridge" not in {network.mode for network in offered.node_resources.node_networks}:
                why = offered.attributes.get("unique.network.bridge.reason", "no reason is given")
                raise NotHere(f"no mode bridge here: {why}")
            assert offered.attributes["nomad.bridge.hairpin_mode"] == "false"
            await caller.call(JOB_REGISTER, JobRegisterRequest(job=a_networked_job("web", "bridge")))
            await caller.call(JOB_REGISTER, JobRegisterRequest(job=a_networked_job("odd", "cni/mine")))

            async def runs() -> bool:
                return await statuses(caller) == {ClientStatus.RUNNING}

            await until("it runs", runs)
            listed, _ = await caller.call(JOB_ALLOCS, JobAllocsRequest(job_id="web"))
            alloc_id = listed.allocs[0].id
            alloc = (await caller.call(ALLOC_GET, AllocRequest(alloc_id=alloc_id)))[0].alloc
            assert alloc.network_status is not None
            assert (alloc.network_status.interface_name, alloc.network_status.address) == ("eth0", "172.26.64.2")
            port = alloc.allocated_resources.shared.ports[0]
            said = await asked(port.value, port.host_ip)
            assert said["NOMAD_ALLOC_ADDR_http"] == "172.26.64.2:8000"
            assert said["NOMAD_ADDR_http"] == f"{port.host_ip}:{port.value}"

            async def places() -> list[tuple[str, int]]:
                found = []
                for mode in ("alloc", "host", "auto"):
                    reply, _ = await caller.call(SERVICE_GET, ServiceGetRequest(name=mode))
                    found += [(one.address, one.port) for one in reply.services]
                return found

            host = (port.host_ip, port.value)
            wanted = [("172.26.64.2", 8000), host, host]

            async def all_offered() -> bool:
                return await places() == wanted

            async def all_well() -> bool:
                reply, _ = await caller.call(ALLOC_CHECKS, AllocChecksRequest(alloc_id=alloc_id))
                found = [one.status for one in reply.checks.values()]
                return len(found) == 3 and set(found) == {CheckStatus.SUCCESS}

            async def says_why() -> bool:
                reply, _ = await caller.call(JOB_WHY, JobWhyRequest(job_id="odd"))
                return 'a network of mode "cni/mine"' in str(reply.why)

            await until("it says what no node has", says_why)
            await until("services are where their modes say", all_offered)
            await until("checks reach all of them", all_well)
            await caller.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web"))

            async def is_over() -> bool:
                return await statuses(caller) == {ClientStatus.COMPLETE}

            await until("it is over", is_over)
        await agent.stop()
    assert left_over() == []


def test_a_bridged_job_is_placed_reached_registered_and_checked(tmp_path: Path) -> None:
    in_own_network(from_job_to_packet, tmp_path)
