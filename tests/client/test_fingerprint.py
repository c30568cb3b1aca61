"""What a host is and has: read from its files, put together, and told to servers only when it really changed."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from fedsched.client.fingerprint.cpu import Arch, Cpu
from fedsched.client.fingerprint.found import Fingerprinter, Found, Host, numbers_in
from fedsched.client.fingerprint.host import (
    AgentFacts,
    Cgroups,
    HostVolumes,
    Landlock,
    Memory,
    Signals,
    Storage,
    System,
)
from fedsched.client.fingerprint.network import HostAddress, Network, host_addresses
from fedsched.client.fingerprint.picture import BATCH_S, FIRST_S, Picture
from fedsched.client.fingerprint.runner import FIND_S, FingerprintRunner, chosen
from fedsched.client.identity import NodeIdentity
from fedsched.client.settings import ClientSettings, HostNetwork, HostVolume, Reserved
from fedsched.drivers.driver import DriverFingerprint, Health
from fedsched.drivers.registry import Drivers
from fedsched.model.node import Node
from fedsched.model.node_resources import NodeMemory
from fedsched.scheduler.computed_class import computed_class
from fedsched.telemetry.log import Hub
from tests.client.client_kit import some_settings
from tests.client.virtual import VirtualEnv

ME = NodeIdentity("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222")
LOG = Hub().logger("test")


def a_host(root: Path, files: dict[str, str] | None = None, **settings: Any) -> Host:
    for name, text in (files or {}).items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(some_settings(root, **settings), root=root, version="1.2.3")


CPU_FILES = {
    "/sys/devices/system/cpu/online": "0-3\n",
    "/sys/devices/system/node/online": "0-1\n",
    "/sys/devices/system/node/node0/cpulist": "0-1\n",
    "/sys/devices/system/node/node1/cpulist": "2-3\n",
    "/proc/cpuinfo": "".join(f"processor\t: {n}\nmodel name\t: Fast 9000\ncpu MHz\t\t: 2500.4\n\n" for n in range(4)),
}


def test_processors_are_counted_and_their_speed_is_what_they_run_at_for_sure(tmp_path: Path) -> None:
    files = CPU_FILES | {f"/sys/devices/system/cpu/cpu{n}/cpufreq/base_frequency": "2000000" for n in range(2)}
    found = Cpu().find(a_host(tmp_path, files))

    assert found.cpu is not None
    assert (found.cpu.cpu_shares, found.cpu.total_cpu_cores) == (2000 + 2000 + 2500 + 2500, 4)
    assert found.attributes["cpu.modelname"] == "Fast 9000"
    assert found.attributes["cpu.frequency"] == "2500"
    assert found.attributes["numa.node.count"] == "2"
    assert found.attributes["numa.node1.cores"] == "2-3"
    assert found.processors is not None
    assert found.processors.topology is not None
    assert [core.node_id for core in found.processors.topology.cores] == [0, 0, 1, 1]


def test_reserved_cores_and_mhz_are_taken_out_of_what_is_usable(tmp_path: Path) -> None:
    host = a_host(tmp_path, CPU_FILES, reserved=Reserved(cpu=100, cores="0,9"), cpu_total_compute=8000)
    found = Cpu().find(host)

    assert found.cpu is not None
    assert found.cpu.reservable_cpu_cores == (1, 2, 3)
    assert found.attributes["cpu.totalcompute"] == "8000"
    assert found.attributes["cpu.usablecompute"] == "5900"
    assert found.attributes["cpu.reservablecores"] == "3"


def test_a_processor_with_two_kinds_of_cores_tells_both(tmp_path: Path) -> None:
    host = a_host(tmp_path, CPU_FILES | {"/sys/devices/cpu_atom/cpus": "2-3"})
    attributes = Cpu().find(host).attributes

    assert attributes["cpu.numcores.performance"] == attributes["cpu.numcores.efficiency"] == "2"
    assert "cpu.frequency" not in attributes


def test_a_processor_that_does_not_say_how_fast_it_is_counts_as_a_slow_one(tmp_path: Path) -> None:
    found = Cpu().find(a_host(tmp_path, {"/sys/devices/system/cpu/online": "0\n"}))

    assert found.cpu is not None
    assert found.cpu.cpu_shares == 1000


def test_memory_and_disk_are_as_found_or_as_the_operator_says(tmp_path: Path) -> None:
    meminfo = {"/proc/meminfo": "MemTotal:       4194304 kB\nMemFree: 1 kB\n"}
    found = Memory().find(a_host(tmp_path, meminfo))
    told = Memory().find(a_host(tmp_path, meminfo, memory_total_mb=512))
    disk = Storage().find(a_host(tmp_path, disk_total_mb=1000))
    real = Storage().find(a_host(tmp_path))

    assert found.memory == NodeMemory(memory_mb=4096)
    assert found.attributes["memory.totalbytes"] == str(4 << 30)
    assert told.memory == NodeMemory(memory_mb=512)
    assert disk.disk is not None
    assert disk.disk.disk_mb == 1000
    assert real.disk is not None
    assert real.disk.disk_mb > 0


def test_the_system_is_named_as_its_release_file_says(tmp_path: Path) -> None:
    files = {"/etc/os-release": 'ID=debian\nVERSION_ID="12"\nNAME=x', "/etc/machine-id": "abc\n"}
    attributes = System().find(a_host(tmp_path, files)).attributes

    assert (attributes["os.name"], attributes["os.version"], attributes["unique.host_id"]) == ("debian", "12", "abc")
    assert attributes["kernel.name"] == "linux"


def test_signals_come_sorted_so_that_two_hosts_do_not_fall_into_two_classes() -> None:
    names = Signals().find(Host(some_settings(Path("/x")))).attributes["os.signals"].split(",")

    assert names == sorted(names)
    assert {"SIGINT", "SIGKILL", "SIGHUP"} <= set(names)


def test_a_hybrid_of_cgroup_versions_counts_as_the_first(tmp_path: Path) -> None:
    nothing = Cgroups().find(a_host(tmp_path / "none")).attributes
    (tmp_path / "v1/sys/fs/cgroup/memory").mkdir(parents=True)
    (tmp_path / "v1/sys/fs/cgroup/unified").mkdir()
    second = a_host(tmp_path / "v2", {"/sys/fs/cgroup/cgroup.controllers": "cpu memory"})

    assert nothing == {}
    assert Cgroups().find(a_host(tmp_path / "v1")).attributes == {"os.cgroups.version": "1"}
    assert Cgroups().find(second).attributes == {"os.cgroups.version": "2"}


def test_this_very_kernel_and_agent_can_be_looked_at(tmp_path: Path) -> None:
    host = Host(some_settings(tmp_path, http_address="127.0.0.1:4646"), version="1.2.3")

    assert all(value.startswith("v") for value in Landlock().find(host).attributes.values())
    assert Arch().find(host).attributes["cpu.arch"]
    assert Cpu().find(host).attributes["cpu.numcores"] != "0"
    attributes = AgentFacts().find(host).attributes
    assert attributes["fedsched.version"] == "1.2.3"
    assert attributes["unique.advertise.address"] == "127.0.0.1:4646"
    assert any(one.address == "127.0.0.1" and one.interface == "lo" for one in host_addresses())


def test_host_volumes_are_offered_while_their_path_exists(tmp_path: Path) -> None:
    there = tmp_path / "certs"
    there.mkdir()
    volumes = {"certs": HostVolume(str(there), read_only=True), "gone": HostVolume(str(tmp_path / "gone"))}
    found = HostVolumes().find(a_host(tmp_path, host_volumes=volumes)).host_volumes

    assert found is not None
    assert list(found) == ["certs"]
    assert found["certs"].read_only


ADDRESSES = [
    HostAddress("lo", "127.0.0.1"),
    HostAddress("eth0", "192.0.2.7"),
    HostAddress("eth0", "fe80::1"),
    HostAddress("eth1", "10.1.2.3"),
    HostAddress("weird0", "169.254.1.1"),
]
ROUTE = {
    "/proc/net/route": "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU\n"
    "eth1 0002000A 00000000 0001 0 0 0 00FFFFFF 0\neth0 00000000 010200C0 0003 0 0 0 00000000 0\n",
    "/sys/class/net/eth0/speed": "10000\n",
    "/sys/class/net/eth0/address": "02:00:00:00:00:01\n",
}


def network_of(host: Host) -> Found:
    return Network(lambda: ADDRESSES).find(host)


def test_the_network_is_the_one_that_the_default_route_leaves_by(tmp_path: Path) -> None:
    found = network_of(a_host(tmp_path, ROUTE))

    assert found.networks is not None
    (network,) = found.networks
    assert (network.device, network.speed, network.mac_address) == ("eth0", 10_000, "02:00:00:00:00:01")
    assert [(one.alias, one.address) for one in network.addresses] == [("default", "192.0.2.7")]
    assert found.attributes == {"unique.network.ip-address": "192.0.2.7"}


def test_an_interface_can_be_asked_for_and_one_that_does_not_say_its_speed_has_a_usual_one(tmp_path: Path) -> None:
    found = network_of(a_host(tmp_path, ROUTE, network_interface="eth1"))

    assert found.networks is not None
    assert (found.networks[0].device, found.networks[0].speed) == ("eth1", 1000)
    assert network_of(a_host(tmp_path, ROUTE, network_interface="none0")).networks == ()


def test_link_local_addresses_are_a_last_resort_that_can_be_forbidden(tmp_path: Path) -> None:
    found = network_of(a_host(tmp_path, network_interface="weird0"))
    no = {"fingerprint.network.disallow_link_local": "true"}

    assert found.networks is not None
    assert found.networks[0].addresses[0].address == "169.254.1.1"
    assert network_of(a_host(tmp_path, network_interface="weird0", options=no)).networks == ()


def test_named_networks_are_beside_the_default_one(tmp_path: Path) -> None:
    named = {"inner": HostNetwork(cidr="10.0.0.0/8", reserved_ports="22"), "by-card": HostNetwork(interface="lo")}
    found = network_of(a_host(tmp_path, ROUTE, host_networks=named))

    assert found.networks is not None
    assert [(one.alias, one.address) for one in found.networks[0].addresses] == [
        ("default", "192.0.2.7"),
        ("by-card", "127.0.0.1"),
        ("inner", "10.1.2.3"),
    ]
    assert found.host_networks is not None
    assert found.host_networks["inner"].reserved_ports == "22"


def test_a_development_agent_stays_on_the_loopback(tmp_path: Path) -> None:
    found = network_of(a_host(tmp_path, ROUTE, is_dev=True))

    assert found.attributes == {"unique.network.ip-address": "127.0.0.1"}


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-2,7", (0, 1, 2, 7)), ("", ()), ("3", (3,)), ("x,5-,1-99999999", ()), (" 1, 2", (1, 2))]
)
def test_lists_of_numbers_are_read_as_far_as_they_are_some(text: str, numbers: tuple[int, ...]) -> None:
    assert numbers_in(text) == numbers


# ---- the picture ----------------------------------------------------------------------------------------------------


def a_picture(**settings: Any) -> Picture:
    known = some_settings(Path("/x"), **settings)
    return Picture(known, ME, sources=["a", "b"], drivers=["mock_driver"], now=0.0)


def healthy(**attributes: str) -> DriverFingerprint:
    return DriverFingerprint(Health.HEALTHY, "fine", attributes)


def test_the_first_record_waits_until_everything_has_answered() -> None:
    picture = a_picture()
    picture.found("a", Found(attributes={"x": "1"}), 1.0)
    picture.driver("mock_driver", healthy(), 1.0, 7)
    assert picture.take(1.0) is None

    picture.found("b", None, 2.0)  # it failed, which is an answer, too
    node = picture.take(2.0)

    assert node is not None
    assert node.attributes == {"x": "1", "driver.mock_driver": "1"}
    assert node.drivers["mock_driver"].healthy


def test_the_first_record_does_not_wait_for_ever() -> None:
    picture = a_picture()
    assert picture.wake_at() == FIRST_S

    assert picture.take(FIRST_S - 0.1) is None
    assert picture.take(FIRST_S) is not None


def test_later_changes_gather_and_only_a_real_difference_counts() -> None:
    picture = a_picture()
    for name in "ab":
        picture.found(name, Found(attributes={name: "1"}), 0.0)
    picture.driver("mock_driver", healthy(), 0.0, 1)
    assert picture.take(0.0) is not None

    picture.found("a", Found(attributes={"a": "1"}), 10.0)
    picture.driver("mock_driver", healthy(), 11.0, 99)  # only the time is another one
    assert picture.take(12.0) is None
    assert picture.take(10.0 + BATCH_S) is None
    assert picture.wake_at() == math.inf

    picture.driver("mock_driver", DriverFingerprint(Health.UNHEALTHY, "its socket is gone"), 20.0, 100)
    picture.found("a", Found(attributes={"a": "2"}), 22.0)
    assert picture.take(24.9) is None
    changed = picture.take(25.0)

    assert changed is not None
    assert changed.attributes["a"] == "2"
    assert changed.drivers["mock_driver"].health_description == "its socket is gone"
    assert changed.drivers["mock_driver"].update_time_ns == 100


def test_what_is_kept_for_the_host_is_in_the_record(tmp_path: Path) -> None:
    kept = Reserved(cpu=500, cores="0", memory_mb=256, disk_mb=1000, reserved_ports="22")
    settings = some_settings(tmp_path, reserved=kept, meta={"rack": "r1"}, node_class="big", node_pool="gpu")
    picture = Picture(settings, ME, sources=["cpu"], drivers=[], now=0.0)
    picture.found("cpu", Cpu().find(a_host(tmp_path, CPU_FILES, reserved=kept)), 0.0)
    node = picture.take(0.0)

    assert node is not None
    assert node.reserved_resources.cpu.cpu_shares == 500 + 2500
    assert node.reserved_resources.memory.memory_mb == 256
    assert node.reserved_resources.networks.reserved_host_ports == "22"
    assert (node.meta, node.node_class, node.node_pool) == ({"rack": "r1"}, "big", "gpu")
    assert (node.id, node.secret_id) == (ME.node_id, ME.secret_id)


def test_two_hosts_that_differ_only_in_what_is_their_own_are_of_one_class(tmp_path: Path) -> None:
    def node(name: str, host_id: str) -> Node:
        settings = some_settings(tmp_path)
        identity = NodeIdentity(host_id, ME.secret_id)
        picture = Picture(settings, identity, sources=["host"], drivers=[], now=0.0)
        picture.found("host", Found(attributes={"unique.hostname": name, "kernel.name": "linux"}), 0.0)
        found = picture.take(0.0)
        assert found is not None
        return found

    one, other = node("a", ME.node_id), node("b", ME.secret_id)

    assert one != other
    assert computed_class(one) == computed_class(other)


# ---- the runner -----------------------------------------------------------------------------------------------------


class Fails(Fingerprinter):
    name = "fails"

    def find(self, host: Host) -> Found:
        raise OSError("no such device")


class Counts(Fingerprinter):
    name = "counts"
    period_s = 30.0

    def __init__(self) -> None:
        self.looks = 0

    def find(self, host: Host) -> Found:
        self.looks += 1
        return Found(attributes={"looks": str(self.looks // 3)})


class Flapping:
    """A driver that falls ill after a minute, and whose stream then breaks."""

    name = "flapping"

    async def fingerprint(self) -> AsyncIterator[DriverFingerprint]:
        yield healthy()
        await trio.sleep(60)
        yield DriverFingerprint(Health.UNHEALTHY, "ill")
        await trio.sleep(60)
        raise RuntimeError("its plugin died")


async def at_once(find: Callable[[Host], Found], host: Host) -> Found:
    return find(host)


def with_runner(
    looks: list[Fingerprinter], drivers: Drivers, story: Any, settings: ClientSettings | None = None
) -> None:
    told: list[Node] = []

    async def main() -> None:
        runner = FingerprintRunner(
            Host(settings or some_settings(Path("/x"))),
            ME,
            drivers,
            env=VirtualEnv(),
            log=LOG,
            on_change=told.append,
            looks=looks,
            in_thread=at_once,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(runner.run)
            await story(runner, told)
            nursery.cancel_scope.cancel("done")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_look_that_fails_stops_nobody_and_drivers_are_heard_as_they_change() -> None:
    async def story(runner: FingerprintRunner, told: list[Node]) -> None:
        await runner.has_looked.wait()
        await trio.sleep(1)
        assert len(told) == 1
        assert told[0].drivers["flapping"].healthy
        assert told[0].drivers["gone"].health_description == "not built"
        await trio.sleep(70)
        assert told[-1].drivers["flapping"].health_description == "ill"
        await trio.sleep(70)
        assert "its plugin died" in told[-1].drivers["flapping"].health_description

    drivers = Drivers({"flapping": Flapping()}, {"gone": "not built"})  # type: ignore[dict-item]
    with_runner([Fails(), Counts()], drivers, story)


def test_what_changes_is_looked_at_again_and_told_only_when_it_did() -> None:
    async def story(runner: FingerprintRunner, told: list[Node]) -> None:
        await trio.sleep(45)
        assert [node.attributes["looks"] for node in told] == ["0"]
        await trio.sleep(40)
        assert [node.attributes["looks"] for node in told] == ["0", "1"]

    with_runner([Counts()], Drivers({}, {}), story)


def test_looks_can_be_chosen_by_name() -> None:
    names = {one.name for one in chosen(some_settings(Path("/x")))}
    some = chosen(some_settings(Path("/x"), fingerprint_allowlist=("cpu", "memory"), fingerprint_denylist=("memory",)))

    assert {"arch", "cpu", "memory", "host", "network", "storage", "cgroup", "landlock"} <= names
    assert [one.name for one in some] == ["cpu"]
    assert FIND_S < FIRST_S


def test_a_change_that_somebody_waits_for_is_told_at_once_unless_one_was_told_just_before() -> None:
    picture = a_picture(meta={"rack": "r1"})
    for name in "ab":
        picture.found(name, Found(), 0.0)
    picture.driver("mock_driver", healthy(), 0.0, 1)
    assert picture.take(0.0) is not None

    picture.set_meta({"rack": "r2"}, 100.0)
    first = picture.take(100.0)
    picture.set_meta({"rack": None}, 101.0)
    assert picture.take(101.0) is None
    second = picture.take(100.0 + BATCH_S)

    assert first is not None
    assert first.meta == {"rack": "r2"}
    assert second is not None
    assert second.meta == {}
