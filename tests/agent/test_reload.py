"""Settings read anew: what is taken over at once, what waits for a restart, and a file that is wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from fedsched.agent.agent import Agent
from fedsched.agent.config import AgentConfig
from fedsched.agent.config_client import HostVolumeSection
from fedsched.agent.main import run_until_signal
from fedsched.agent.reload import RELOADABLE, Reload, reload
from fedsched.agent.settings import BadSetting, all_settings
from fedsched.env.real import RealEnv
from fedsched.telemetry.log import HUB, Hub
from tests.agent.agents import run_agents
from tests.agent.test_client_agent import a_client_config, until


def with_client(config: AgentConfig, **changes: Any) -> AgentConfig:
    return replace(config, client=replace(config.client, **changes))


def test_only_what_may_change_under_a_running_agent_does() -> None:
    before = AgentConfig(name="c1", log_level="info")
    after = with_client(replace(before, log_level="debug", region="us"), meta={"rack": "r2"}, gc_max_allocs=7)

    done = reload(before, after)

    assert done.changed == ("log_level", "client.meta")
    assert done.waiting == ("region", "client.gc_max_allocs")
    assert (done.config.log_level, done.config.region) == ("debug", "global")
    assert (done.config.client.meta, done.config.client.gc_max_allocs) == ({"rack": "r2"}, 50)


def test_reading_the_same_settings_again_changes_nothing() -> None:
    config = with_client(AgentConfig(name="c1"), meta={"rack": "r1"})

    assert reload(config, config) == Reload(config, (), ())


def test_every_reloadable_setting_is_one_that_exists() -> None:
    known = {".".join(path) for path in all_settings(AgentConfig)} | {"client.host_volume"}

    assert known >= RELOADABLE


def test_a_running_client_takes_over_its_labels_and_volumes(tmp_path: Path) -> None:
    config = a_client_config(tmp_path, "127.0.0.1:1", meta={"rack": "r1"})
    agent = Agent(config, env=RealEnv(), log=Hub().logger("agent"))

    async def scenario() -> None:
        client = agent.client
        assert client is not None
        await client.apply_meta({"tier": "fast"})
        volumes = {"data": HostVolumeSection(path=str(tmp_path))}

        agent.reload(with_client(config, meta={"rack": "r2"}, host_volume=volumes))

        async def is_offered() -> bool:
            return "data" in client.node().host_volumes

        await until("the volume is offered", is_offered)
        assert client.node().meta == {"rack": "r2", "tier": "fast"}
        agent.reload(config)

        async def is_gone() -> bool:
            return not client.node().host_volumes

        await until("it is not any more", is_gone)
        assert client.node().meta == {"rack": "r1", "tier": "fast"}

    run_agents(agent, scenario=scenario)


class Stub:
    """Stands in for an agent, and notes what it is told."""

    def __init__(self) -> None:
        self.config = AgentConfig()
        self.reloaded: list[AgentConfig] = []
        self.on_reload: Callable[[], None] = lambda: None
        self._stopped = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await self._stopped.wait()

    def reload(self, config: AgentConfig) -> None:
        self.reloaded.append(config)
        self.on_reload()

    async def stop(self, *, leave: bool) -> None:
        self._stopped.set()

    async def wait_stopped(self) -> None:
        await self._stopped.wait()


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_sighup_reads_the_settings_again_and_wrong_ones_leave_all_as_it_is() -> None:
    stub = Stub()
    reads = 0
    level = HUB._level

    def load() -> AgentConfig:
        nonlocal reads
        reads += 1
        if reads == 1:
            send(signal.SIGHUP)  # the next one, after this has failed
            raise BadSetting("log_level = 'loud' is none of them")
        return AgentConfig(log_level="off")

    stub.on_reload = lambda: send(signal.SIGTERM)
    made: Any = lambda: [stub]  # noqa: E731 (an annotated function would need the real type)
    hub = Hub()
    told = hub.subscribe("info")
    try:
        code = run_until_signal(made, hub.logger("agent"), lambda _: send(signal.SIGHUP), load=load)
    finally:
        HUB._level = level

    assert code == 0
    assert reads == 2
    assert [config.log_level for config in stub.reloaded] == ["off"]
    assert "settings_not_reloaded" in [event.name for event in told.take()]
