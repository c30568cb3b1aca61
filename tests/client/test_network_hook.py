"""How an allocation gets its group's network, and what happens where it cannot."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from fedsched.client.fingerprint.found import Found, Host
from fedsched.client.fingerprint.group_networks import REASON, GroupNetworks
from fedsched.client.fingerprint.picture import Picture
from fedsched.client.hooks.network import NetworkHook
from fedsched.client.identity import NodeIdentity
from fedsched.client.network.networks import Networks
from fedsched.client.network.offer import Claim, Offer
from fedsched.client.network.plan import Bridge, GroupNetwork, Opened, Wish
from fedsched.client.network.tools import ToolFailed, run_tool
from fedsched.client.settings import ClientSettings
from fedsched.drivers.driver import Started, TaskConfig
from fedsched.drivers.mock import MockDriver
from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.network import AllocNetworkStatus, DNSConfig, NetworkResource
from fedsched.model.node_resources import NodeNetwork
from tests.builders import a_group, a_task
from tests.client.alloc_world import Agent, World, an_allocation

STATUS = AllocNetworkStatus(interface_name="eth0", address="172.26.64.2")
NETWORK = GroupNetwork(Path("/var/run/netns/x"), "web")


class PretendedNetworks:
    """Opens and closes nothing, and notes it."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.story: list[str] = []

    async def open(self, alloc: Allocation, wish: Wish) -> Opened:
        had = alloc.network_status.address if alloc.network_status else ""
        self.story.append(f"open {wish.mode} {wish.hostname} {had}".strip())
        if self.fault is not None:
            raise self.fault
        return Opened(NETWORK, STATUS)

    async def close(self, alloc_id: str) -> None:
        self.story.append("close")


def an_alloc(mode: str, **said: Any) -> Allocation:
    return an_allocation(
        a_group(tasks=[a_task(config={"run_for": 1.0})], networks=(NetworkResource(mode=mode, **said),))
    )


def run(scenario: Any, tmp_path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(1000):
            await scenario(World(tmp_path, alloc_hooks=[NetworkHook]))

    trio.run(main, clock=MockClock(autojump_threshold=0))


def with_networks(agent: Agent, networks: object) -> list[TaskConfig]:
    """Lets an agent build these; its tasks' configs are noted."""
    agent.parts = type(agent.parts)(
        **{name: getattr(agent.parts, name) for name in agent.parts.__slots__} | {"networks": cast(Networks, networks)}
    )
    configs: list[TaskConfig] = []
    driver = agent.driver

    async def start_task(config: TaskConfig) -> Started:
        configs.append(config)
        return await MockDriver.start_task(driver, config)

    driver.start_task = start_task  # type: ignore[method-assign]
    return configs


def test_tasks_start_in_the_network_and_the_next_agent_is_given_its_address(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        networks = PretendedNetworks()
        async with world.agent() as agent:
            configs = with_networks(agent, networks)
            runner = agent.take_up(an_alloc("bridge", hostname="web-${NOMAD_ALLOC_INDEX}"))
            await trio.sleep(0.5)
            assert [(one.network_namespace, one.hostname) for one in configs] == [(NETWORK.namespace, "web")]
            assert runner.report().network_status == STATUS
            assert world.journal.load()[0].local.network_status == STATUS
        async with world.agent() as agent:
            with_networks(agent, networks)
            agent.take_up()
            await agent.is_over.wait()
        assert [line.partition(" web")[0] for line in networks.story] == ["open bridge", "open bridge", "close"]
        assert networks.story[1].endswith(STATUS.address)

    run(scenario, tmp_path)


@pytest.mark.parametrize(
    ("mode", "fault", "says"),
    [
        ("cni/mine", None, "network: network mode 'cni/mine' is not built here"),
        ("bridge", ToolFailed("ip netns add: no such luck"), "network: ip netns add: no such luck"),
    ],
)
def test_a_network_that_cannot_be_had_fails_the_allocation(
    tmp_path: Path, mode: str, fault: Exception | None, says: str
) -> None:
    async def scenario(world: World) -> None:
        async with world.agent() as agent:
            configs = with_networks(agent, PretendedNetworks(fault))
            runner = agent.take_up(an_alloc(mode))
            await agent.is_over.wait()
            assert runner.report().client_status is ClientStatus.FAILED
            said = [event.message for event in runner.task_states["web"].events if event.type == "Setup Failure"]
            assert says in said[0]
            assert configs == []

    run(scenario, tmp_path)


def test_a_task_is_not_restarted_in_the_hosts_network_when_its_own_is_lost(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        alloc = an_alloc("bridge")
        async with world.agent() as agent:
            with_networks(agent, PretendedNetworks())
            agent.take_up(alloc)
            await trio.sleep(0.5)
        async with world.agent() as agent:
            configs = with_networks(agent, PretendedNetworks(ToolFailed("no more")))
            runner = agent.take_up()
            await trio.sleep(30)
            assert configs == []
            assert any("network is not there" in event.message for event in runner.task_states["web"].events)

    run(scenario, tmp_path)


def test_the_hosts_network_needs_nobody(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        async with world.agent() as agent:
            configs = with_networks(agent, None)
            agent.take_up(an_alloc("host"))
            await agent.is_over.wait()
            assert {one.network_namespace for one in configs} == {None}

    run(scenario, tmp_path)


def test_a_resolver_of_its_own_is_for_groups_on_the_hosts_network_too(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        networks = PretendedNetworks()
        async with world.agent() as agent:
            with_networks(agent, networks)
            agent.take_up(an_alloc("", dns=DNSConfig(servers=("10.0.0.53",))))
            await agent.is_over.wait()
        assert networks.story == ["open", "close"]

    run(scenario, tmp_path)


# -- what a node offers


def found_by(offer: Offer, tmp_path: Path, **settings: Any) -> Found:
    host = Host(ClientSettings(state_dir=tmp_path, alloc_dir=tmp_path, **settings))
    return GroupNetworks(lambda: offer).find(host)


def test_modes_that_work_are_offered_beside_the_hosts(tmp_path: Path) -> None:
    found = found_by(Offer(("none", "bridge")), tmp_path, bridge_network_hairpin_mode=True)

    assert found.attributes == {"nomad.bridge.hairpin_mode": "true"}
    settings = ClientSettings(state_dir=tmp_path, alloc_dir=tmp_path)
    picture = Picture(settings, NodeIdentity("n", "s"), sources=["network", "bridge"], drivers=[], now=0.0)
    picture.found("network", Found(networks=(NodeNetwork(mode="host", device="eth0"),)), 0.0)
    picture.found("bridge", found, 0.0)
    networks = picture.latest().node_resources.node_networks
    assert [(one.mode, one.device) for one in networks] == [("host", "eth0"), ("none", ""), ("bridge", "fedsched")]


def test_a_mode_that_does_not_work_has_its_reason(tmp_path: Path) -> None:
    found = found_by(Offer(("none",), "no veth"), tmp_path)

    assert found.attributes == {REASON: "no veth"}
    assert [one.mode for one in found.group_networks or ()] == ["none"]


def test_a_bridge_belongs_to_one_agent(tmp_path: Path) -> None:
    bridge = Bridge("fedsched", ipaddress.IPv4Network("172.26.64.0/20"))
    mine, other = Claim(bridge, tmp_path), Claim(bridge, tmp_path)

    assert mine.take()
    assert mine.take()
    assert not other.take()
    mine.drop()
    assert other.take()
    other.drop()


def test_a_program_that_fails_or_hangs_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match=r"ls /nowhere: .*No such file"):
        run_tool("ls", "/nowhere")
    with pytest.raises(ToolFailed, match=r"not done within 0\.05 s"):
        run_tool("sleep", "9", limit_s=0.05)
    with pytest.raises(ToolFailed, match="there is no `fedsched-nothing`"):
        run_tool("fedsched-nothing")
