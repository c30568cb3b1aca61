"""Networks of groups for real: namespaces, a bridge and forwarded ports, in a network that only the test sees."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import trio
from msgspec import structs

from fedsched.client.alloc_runner import AllocRunner
from fedsched.client.journal import Journal
from fedsched.client.network import on_host, plan
from fedsched.client.network.networks import Networks
from fedsched.client.network.tools import find_tool, run_tool
from fedsched.drivers.driver import ExecCommand
from fedsched.drivers.exec import ExecDriver
from fedsched.drivers.process_driver import ProcessDriver
from fedsched.drivers.raw_exec import RawExecDriver
from fedsched.drivers.registry import DriverHost
from fedsched.env.real import RealEnv
from fedsched.model.alloc import Allocation
from fedsched.model.network import DNSConfig, NetworkResource, PortMapping
from fedsched.model.policies import RestartPolicy
from fedsched.model.resources import AllocatedResources, AllocatedSharedResources
from fedsched.model.task_state import TaskStatus
from fedsched.telemetry.log import get_logger
from tests.builders import a_group, a_job, a_task, an_id
from tests.client.alloc_world import World, an_allocation
from tests.client.own_network import CGROUP, in_own_network, left_over, skip_without_bridges
from tests.drivers.supervised import retire

ANSWERS = """
import json, os, socket, threading
said = json.dumps({k: v for k, v in os.environ.items() if k.startswith("NOMAD_")} | {
    "links": sorted(name for _, name in socket.if_nameindex())}).encode()
tcp = socket.create_server(("0.0.0.0", 8000))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind(("0.0.0.0", 8000))
def echo():
    while True:
        udp.sendto(said, udp.recvfrom(100)[1])
threading.Thread(target=echo, daemon=True).start()
while True:
    with tcp.accept()[0] as one:
        one.sendall(said)
"""
"""A task that tells everybody who asks, by TCP or UDP, what it knows about itself."""
ASK = "import socket,sys;print(socket.create_connection((sys.argv[1],int(sys.argv[2])),5).makefile().read())"


class Agent:
    """A client's part that matters here. Whatever it began is there for the next one."""

    def __init__(self, place: Path, driver: ProcessDriver, networks: Networks, journal: Journal) -> None:
        parts = World(place).parts(driver, has_contact=True)
        self.parts = structs_of(parts) | {"env": RealEnv(), "networks": networks}
        self.kind = type(parts)
        self.driver = driver
        self.networks = networks
        self.journal = journal
        self.nursery: trio.Nursery

    def take_up(self, alloc: Allocation) -> AllocRunner:
        stored = next((one for one in self.journal.load() if one.alloc.id == alloc.id), None)
        runner = AllocRunner(self.kind(**self.parts), alloc, self.journal, stored=stored, on_change=lambda _: None)
        self.nursery.start_soon(runner.run)
        return runner

    async def end(self, *runners: AllocRunner) -> None:
        for runner in runners:
            runner.stop()
        for runner in runners:
            await runner.destroy()


def structs_of(parts: Any) -> dict[str, Any]:
    return {name: getattr(parts, name) for name in parts.__slots__}


@asynccontextmanager
async def an_agent(place: Path, kind: type[ProcessDriver] = RawExecDriver) -> AsyncIterator[Agent]:
    """An agent; gone without a word at the end of the block."""
    log = get_logger("client")
    driver = kind(DriverHost(state_dir=place / "driver", denied_users=(), cgroup_parent=CGROUP))
    settings = World(place, settings={"bridge_network_hairpin_mode": True}).parts(driver, has_contact=True).settings
    networks = Networks(settings, an_id(1), log)
    await trio.to_thread.run_sync(skip_without_bridges, networks.offer)
    settings.state_dir.mkdir(exist_ok=True)
    journal = Journal(settings.state_dir, log).open()
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(driver.run)
            await networks.start(journal.load())
            agent = Agent(place, driver, networks, journal)
            agent.nursery = nursery
            yield agent
            nursery.cancel_scope.cancel()
    finally:
        networks.close_claim()
        journal.close()


def a_networked(
    mode: str, argv: list[str], *ports: PortMapping, number: int = 7, driver: str = "raw_exec", **said: Any
) -> Allocation:
    network = NetworkResource(mode=mode, **said)
    task = a_task(
        driver=driver, config={"command": argv[0], "args": argv[1:]}, restart_policy=RestartPolicy(attempts=0)
    )
    shared = AllocatedSharedResources(networks=(network,), ports=ports)
    group = a_group(tasks=[task], networks=(network,))
    alloc = an_allocation(job=a_job(groups=[group]), number=number)
    return structs.replace(alloc, allocated_resources=AllocatedResources(shared=shared))


def a_port(value: int, host_ip: str = "127.0.0.1") -> PortMapping:
    return PortMapping(label="http", value=value, to=8000, host_ip=host_ip)


async def running(runner: AllocRunner) -> AllocRunner:
    while (state := runner.task_states["web"]).state is not TaskStatus.RUNNING:
        assert state.state is not TaskStatus.DEAD, state.events
        await trio.sleep(0.01)
    return runner


async def asked(port: int, host: str = "127.0.0.1") -> dict[str, Any]:
    """What the task behind a port says of itself; it may still be on its way up."""
    while True:
        try:
            stream = await trio.open_tcp_stream(host, port)
            async with stream:
                said = b""
                while piece := await stream.receive_some():
                    said += piece
            if said:
                return dict(json.loads(said))
        except OSError:
            pass
        await trio.sleep(0.02)


async def asked_by_udp(port: int) -> dict[str, Any]:
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        await link.connect(("127.0.0.1", port))
        while True:
            try:
                await link.send(b"?")
                with trio.move_on_after(1.0):
                    return dict(json.loads(await link.recv(65_536)))
            except ConnectionRefusedError:
                await trio.sleep(0.02)


async def inside(agent: Agent, runner: AllocRunner, *argv: str) -> str:
    done = await agent.driver.exec_task(runner.tasks["web"].task_id, ExecCommand(argv), 10.0)
    assert done.exit_code == 0, done.output
    return done.output.decode()


async def two_behind_one_bridge(place: Path) -> None:
    server = [sys.executable, "-c", ANSWERS]
    first, second = (
        a_networked("bridge", server, a_port(20_001 + n, ip), number=n) for n, ip in ((7, "127.0.0.1"), (8, ""))
    )
    async with an_agent(place) as agent:
        runners = [await running(agent.take_up(alloc)) for alloc in (first, second)]
        addresses = [runner.report().network_status.address for runner in runners]  # type: ignore[union-attr]
        assert addresses == ["172.26.64.2", "172.26.64.3"]
        for alloc, port, address in zip((first, second), (20_008, 20_009), addresses, strict=True):
            said = await asked(port)
            assert said["NOMAD_ALLOC_ID"] == alloc.id == (await asked_by_udp(port))["NOMAD_ALLOC_ID"]
            assert said["links"] == ["eth0", "lo"]
            assert (said["NOMAD_PORT_http"], said["NOMAD_HOST_PORT_http"]) == ("8000", str(port))
            assert said["NOMAD_ALLOC_ADDR_http"] == f"{address}:8000"
            assert (await asked(8000, address))["NOMAD_ALLOC_ID"] == alloc.id
        for asker in runners:  # through a port of the host, also the one that leads back to the asker
            told = await inside(agent, asker, sys.executable, "-c", ASK, agent.networks.bridge.gateway, "20009")
            assert json.loads(told)["NOMAD_ALLOC_ID"] == second.id
        kept = await trio.open_tcp_stream("127.0.0.1", 20_008)
        ids = [runner.tasks["web"].task_id for runner in runners]
    async with an_agent(place) as agent:
        assert (await asked(20_008))["NOMAD_ALLOC_ID"] == first.id
        runners = [await running(agent.take_up(alloc)) for alloc in (first, second)]
        assert [runner.tasks["web"].task_id for runner in runners] == ids
        assert [runner.report().network_status.address for runner in runners] == addresses  # type: ignore[union-attr]
        assert await kept.receive_some()
        third = await running(agent.take_up(a_networked("bridge", server, a_port(20_010), number=9)))
        assert third.report().network_status.address == "172.26.64.4"  # type: ignore[union-attr]
        await agent.end(runners[0])
        assert (await asked(20_009))["NOMAD_ALLOC_ID"] == second.id
        assert plan.link_name(first.id) not in on_host.links_of(agent.networks.bridge)
        await agent.end(runners[1], third)
        assert left_over() == []
        assert not list((place / "state" / "networks").iterdir())
    retire(place / "driver")


def test_allocations_with_one_inner_port_are_reached_by_their_ports_and_keep_them(tmp_path: Path) -> None:
    in_own_network(two_behind_one_bridge, tmp_path)


async def nothing_but_the_loopback(place: Path) -> None:
    alloc = a_networked("none", ["/bin/sleep", "60"])
    async with an_agent(place) as agent:
        runner = await running(agent.take_up(alloc))
        seen = await inside(agent, runner, "/bin/cat", "/proc/net/dev")
        assert [line.split(":")[0].strip() for line in seen.splitlines()[2:]] == ["lo"]
        assert "UP" in await inside(agent, runner, "ip", "link", "show", "lo")
        assert runner.report().network_status is None
        assert left_over() == [plan.namespace_name(an_id(1), alloc.id)]
    async with an_agent(place) as agent:
        runner = await running(agent.take_up(alloc))
        await agent.end(runner)
    assert left_over() == []
    retire(place / "driver")


def test_a_group_with_mode_none_sees_only_its_loopback(tmp_path: Path) -> None:
    in_own_network(nothing_but_the_loopback, tmp_path)


async def isolated_and_named(place: Path) -> None:
    said = {"hostname": "web-1", "dns": DNSConfig(servers=("10.9.9.9",), searches=("a.test",), options=("ndots:2",))}
    show = "hostname; cat /etc/hosts /etc/resolv.conf; exec sleep 60"
    async with an_agent(place, ExecDriver) as agent:
        obstacle = await agent.driver.obstacle()  # type: ignore[attr-defined]
        if obstacle:
            print(obstacle)
            raise SystemExit(77)
        runner = await running(agent.take_up(a_networked("bridge", ["/bin/sh", "-c", show], driver="exec", **said)))
        log = place / "allocs" / runner.alloc_id / "alloc" / "logs" / "web.stdout.0"
        while "ndots" not in log.read_text():
            await trio.sleep(0.01)
        assert log.read_text().splitlines() == [
            "web-1",
            "127.0.0.1 localhost",
            "::1 localhost ip6-localhost ip6-loopback",
            "172.26.64.2 web-1",
            "nameserver 10.9.9.9",
            "search a.test",
            "options ndots:2",
        ]
        assert "172.26.64.2/20" in await inside(agent, runner, "ip", "address", "show", "eth0")
        await agent.end(runner)
    assert left_over() == []
    retire(place / "driver")


def test_isolated_tasks_have_the_groups_name_and_resolver(tmp_path: Path) -> None:
    in_own_network(isolated_and_named, tmp_path)


@contextmanager
def somebody_in(namespace: str) -> Iterator[None]:
    """A process that keeps a namespace alive, whether or not it has a name."""
    argv = [find_tool("ip"), "netns", "exec", namespace, "/bin/sh", "-c", "echo in; exec sleep 100"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"in\n"
        try:
            yield
        finally:
            process.kill()


async def begun_by_a_killed_agent(place: Path) -> None:
    async with an_agent(place) as agent:
        bridge, name, link = agent.networks.bridge, plan.namespace_name(an_id(1), an_id(7)), plan.link_name(an_id(7))
        on_host.settle(bridge, [plan.Attached(an_id(7), "172.26.64.5")])

        def check(*, is_kept: bool = False) -> int:
            on_host.attach(bridge, an_id(7), name, "172.26.64.5", is_kept=is_kept)
            shown = json.loads(run_tool("ip", "-n", name, "-json", "address", "show", "eth0"))[0]
            addresses = [one["local"] for one in shown["addr_info"] if one["family"] == "inet"]
            assert addresses == ["172.26.64.5"]
            assert "via 172.26.64.1" in run_tool("ip", "-n", name, "route", "show", "default")
            assert on_host.links_of(bridge) == [link]
            return socket.if_nametoindex(link)

        (on_host.NAMESPACES).mkdir(parents=True, exist_ok=True)
        (on_host.NAMESPACES / name).touch()
        first = check()
        assert check(is_kept=True) == first
        on_host.remove_link(link)
        check(is_kept=True)
        run_tool("ip", "-n", name, "address", "add", "172.26.64.77/20", "dev", "eth0")
        check()
        with somebody_in(name):
            run_tool("ip", "netns", "delete", name)
            check()
        await agent.networks.close(an_id(7))
        assert name not in on_host.namespaces()
        assert not on_host.has_link(link)


def test_what_a_killed_agent_began_is_finished(tmp_path: Path) -> None:
    in_own_network(begun_by_a_killed_agent, tmp_path)


async def leftovers_of_nobody(place: Path) -> None:
    bridge = Networks(
        World(place).parts(RawExecDriver(DriverHost(place)), has_contact=True).settings, "", get_logger("x")
    ).bridge
    ours, other = plan.namespace_name(an_id(1), an_id(5)), plan.namespace_name(an_id(2), an_id(5))
    other = other.replace(an_id(2)[:8], "ffffffff")
    on_host.settle(bridge, [plan.Attached(an_id(5), "172.26.64.9", (plan.Forward("", 999, 1),))])
    on_host.attach(bridge, an_id(5), ours, "172.26.64.9", is_kept=False)
    on_host.make_namespace(other)
    (on_host.NAMESPACES / plan.namespace_name(an_id(1), an_id(6))).touch()  # killed before it became one
    on_host.make_namespace("fedsched-trial-999999999-0")

    async with an_agent(place):
        assert left_over() == [other]
    on_host.remove_namespace(other)


def test_what_belongs_to_no_allocation_goes_when_an_agent_starts(tmp_path: Path) -> None:
    in_own_network(leftovers_of_nobody, tmp_path)
