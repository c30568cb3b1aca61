"""Agents that run tasks: beside a server in one process, and alone with a port that passes calls on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.agent.agent import Agent
from fedsched.agent.client_half import client_settings
from fedsched.agent.config import AgentConfig, Ports
from fedsched.agent.config_client import ClientSection
from fedsched.agent.config_load import load_config
from fedsched.env.real import RealEnv
from fedsched.model.alloc import ClientStatus
from fedsched.model.errors import FedschedError, Unavailable
from fedsched.model.node import NodeStatus
from fedsched.rpc.caller import Caller
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.agent import AGENT_HEALTH, AGENT_METRICS, AGENT_SELF, AgentMetricsRequest
from fedsched.rpc.methods.job import (
    JOB_DEREGISTER,
    JOB_REGISTER,
    JobDeregisterRequest,
    JobRegisterRequest,
)
from fedsched.rpc.methods.job_extras import JOB_ALLOCS, JobAllocsRequest
from fedsched.rpc.methods.node import NODE_LIST, NODE_REPORTS, NodeListRequest, NodeReportsRequest
from fedsched.telemetry.log import Hub
from tests.agent.agents import a_config, an_agent, connected, run_agents
from tests.builders import a_group, a_job, a_task

MOCK = {"mock_driver": {"enabled": True}}


def a_server(directory: Path) -> Agent:
    config = a_config(directory, "s1")
    return an_agent(replace(config, server=replace(config.server, num_schedulers=1)))


def a_client_config(directory: Path, *servers: str, **changes: Any) -> AgentConfig:
    client = ClientSection(enabled=True, servers=servers, plugin=MOCK, network_interface="lo", **changes)
    return AgentConfig(name="c1", region="eu", data_dir=str(directory / "c1"), ports=Ports(0, 0, 0), client=client)


async def until(what: str, holds: Callable[[], Any], limit_s: float = 20.0) -> None:
    with trio.move_on_after(limit_s):
        while not await holds():
            await trio.sleep(0.05)
        return
    raise AssertionError(f"not within {limit_s} s: {what}")


async def nodes(caller: Caller) -> list[Any]:
    reply, _ = await caller.call(NODE_LIST, NodeListRequest())
    return [node for node in reply.nodes if node.status is NodeStatus.READY]


async def statuses(caller: Caller, job_id: str = "web") -> set[ClientStatus]:
    reply, _ = await caller.call(JOB_ALLOCS, JobAllocsRequest(job_id=job_id))
    return {alloc.client_status for alloc in reply.allocs}


async def nothing_is_left(agent: Agent) -> bool:
    """Remove what is finished and acknowledged, directories and mounts with it."""
    assert agent.client is not None
    await agent.client.collect_garbage()
    return not agent.client.runners


def a_mock_job() -> Any:
    task = a_task("main", driver="mock_driver", config={"run_for": "1h"}, cpu=50, memory_mb=16)
    return a_job(groups=[a_group(count=2, tasks=[task])])


async def runs_and_stops_a_job(caller: Caller) -> None:
    async def is_ready() -> bool:
        return len(await nodes(caller)) == 1

    async def are(status: ClientStatus) -> bool:
        return await statuses(caller) == {status}

    await until("a node is ready", is_ready)
    await caller.call(JOB_REGISTER, JobRegisterRequest(job=a_mock_job()))
    await until("it runs", lambda: are(ClientStatus.RUNNING))
    await caller.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web"))
    await until("it is over", lambda: are(ClientStatus.COMPLETE))


def test_commands_work_against_an_agent_that_is_only_a_client(tmp_path: Path) -> None:
    server = a_server(tmp_path)

    async def scenario() -> None:
        config = a_client_config(tmp_path, server.server.me.address)
        agent = Agent(config, env=RealEnv(), log=Hub().logger("agent"))
        async with trio.open_nursery() as nursery:
            await nursery.start(agent.run)
            async with connected(agent.http_address) as caller:
                await runs_and_stops_a_job(caller)

                itself, _ = await caller.call(AGENT_SELF, Empty())
                assert itself.name == "c1"
                assert itself.stats["client"]["server"] == server.server.me.address
                assert itself.stats["client"]["num_allocations"] == "2"
                health, _ = await caller.call(AGENT_HEALTH, Empty())
                assert (health.ok, health.client_ok, health.server_ok) == (True, True, None)
                figures, _ = await caller.call(AGENT_METRICS, AgentMetricsRequest(format="prometheus"))
                assert b"fedsched_client_heartbeat" in figures.body
                with pytest.raises(FedschedError, match="for servers only"):
                    await caller.call(NODE_REPORTS, NodeReportsRequest())
            assert agent.client is not None
            await until("all can go", lambda: nothing_is_left(agent))
            await agent.stop()

    run_agents(server, scenario=scenario)


def test_a_client_without_servers_says_so_and_is_not_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsched.agent.client_half.PATIENCE_S", 0.1)
    agent = Agent(a_client_config(tmp_path, "127.0.0.1:1"), env=RealEnv(), log=Hub().logger("agent"))

    async def scenario() -> None:
        async with connected(agent.http_address) as caller:
            health, _ = await caller.call(AGENT_HEALTH, Empty())
            assert (health.ok, health.client_ok) == (False, False)
            with pytest.raises(Unavailable, match=r"no link to a server \(it knows 127\.0\.0\.1:1\)"):
                await caller.call(NODE_LIST, NodeListRequest())

    run_agents(agent, scenario=scenario)


def test_a_development_agent_is_server_and_client_in_one(tmp_path: Path) -> None:
    config = a_config(tmp_path, "dev")
    config = replace(
        config, server=replace(config.server, num_schedulers=1), client=ClientSection(enabled=True, plugin=MOCK)
    )
    agent = Agent(config, env=RealEnv(), log=Hub().logger("agent"), is_dev=True)

    async def scenario() -> None:
        async with connected(agent.http_address) as caller:
            await runs_and_stops_a_job(caller)
            itself, _ = await caller.call(AGENT_SELF, Empty())
            assert itself.stats["client"]["node_id"]
            assert itself.stats["fedsched"]["server"] == "true"

    run_agents(agent, scenario=scenario)


CLIENT_TOML = """
name = "c1"
datacenter = "dc2"
data_dir = "DATA"
[client]
enabled = true
servers = ["10.0.0.1"]
node_class = "big"
meta = { rack = "r1" }
gc_max_allocs = 7
gc_interval = "2m"
[client.server_join]
retry_join = ["10.0.0.2:4647", "10.0.0.1"]
[client.reserved]
cpu = 500
cores = "0"
memory = 256
[client.host_volume.certs]
path = "/etc/certs"
read_only = true
[client.host_network.inner]
cidr = "10.0.0.0/8"
[client.artifact]
http_max_size = "1GiB"
[client.drain_on_shutdown]
enabled = true
deadline = "5m"
[client.driver]
denylist = ["docker"]
[client.plugin.raw_exec]
enabled = true
denied_envvars = ["AWS_*"]
"""


def test_a_file_says_all_there_is_to_say_to_a_client(tmp_path: Path) -> None:
    file = tmp_path / "client.toml"
    file.write_text(CLIENT_TOML.replace("DATA", str(tmp_path)))
    settings = client_settings(load_config(paths=[str(file)]).config, http_address="127.0.0.1:4646")

    assert (settings.name, settings.datacenter, settings.node_class) == ("c1", "dc2", "big")
    assert (settings.state_dir, settings.alloc_dir) == (tmp_path / "client", tmp_path / "alloc")
    assert settings.servers == ("10.0.0.1", "10.0.0.2:4647")
    assert settings.meta == {"rack": "r1"}
    assert (settings.gc_max_allocs, settings.gc_interval_s) == (7, 120.0)
    assert (settings.reserved.cpu, settings.reserved.cores, settings.reserved.memory_mb) == (500, "0", 256)
    assert settings.host_volumes["certs"].read_only
    assert settings.host_networks["inner"].cidr == "10.0.0.0/8"
    assert settings.artifact.http_max_bytes == 1 << 30
    assert settings.drain_on_shutdown is not None
    assert settings.drain_on_shutdown.deadline_s == 300.0
    assert settings.driver_denylist == ("docker",)
    assert settings.driver_settings("raw_exec") == {"enabled": True, "denied_envvars": ["AWS_*"]}
    assert settings.driver_settings("exec") == {}
    assert settings.http_address == "127.0.0.1:4646"
    assert not settings.is_dev
