"""What a group asks for, flattened; and what its allocation is given."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.group import TaskGroup
from fedsched.model.network import NetworkResource
from fedsched.model.node import HostVolumeInfo
from fedsched.model.policies import EphemeralDisk
from fedsched.model.resources import RequestedDevice, Resources
from fedsched.model.task import Task, TaskLifecycle
from fedsched.model.volume import VolumeRequest
from fedsched.scheduler.ask import Ask, Offer, allocated_resources
from fedsched.scheduler.fit import Exhausted, NodeRoom, Sums, sums_of
from fedsched.scheduler.special import Special
from tests.builders import a_group, a_job, a_node, a_task
from tests.scheduler.places import a_device, a_network, a_place, a_special_group, dynamic, static

INIT = TaskLifecycle(hook="prestart")
SIDECAR = TaskLifecycle(hook="prestart", sidecar=True)
POSTSTART = TaskLifecycle(hook="poststart")
POSTSTOP = TaskLifecycle(hook="poststop")


def tasks(count: int, lifecycle: TaskLifecycle | None, size: int) -> list[Task]:
    prefix = "main" if lifecycle is None else f"{lifecycle.hook}{lifecycle.sidecar}"
    return [a_task(f"{prefix}{n}", cpu=size, memory_mb=size, lifecycle=lifecycle) for n in range(count)]


def ask_of(*parts: list[Task], **fields: Any) -> Ask:
    group = a_group(tasks=[task for part in parts for task in part], **fields)
    return Ask.of(a_job(groups=[group]), group)


def asked(resources: Resources, *, oversubscription: bool = False) -> Ask:
    group = a_group(tasks=[a_task(resources=resources)])
    return Ask.of(a_job(groups=[group]), group, oversubscription=oversubscription)


@pytest.mark.parametrize(
    ("main", "init", "sidecars", "size", "total"),
    [(1, 1, 1, 500, 1000), (1, 1, 1, 700, 1400), (3, 5, 5, 100, 1000), (10, 10, 10, 100, 2000)],
)
def test_a_group_asks_for_the_largest_of_its_phases(main: int, init: int, sidecars: int, size: int, total: int) -> None:
    ask = ask_of(tasks(main, None, size), tasks(init, INIT, size), tasks(sidecars, SIDECAR, size))

    assert (ask.cpu, ask.memory_mb) == (total, total)
    fits = NodeRoom(a_node(cpu=1200)).why_not(ask) is None
    assert fits is (total <= 1200)


def test_sidecars_run_beside_the_main_tasks_and_other_prestart_tasks_do_not() -> None:
    assert ask_of(tasks(1, None, 500), tasks(1, SIDECAR, 100)).cpu == 600
    assert ask_of(tasks(1, None, 500), tasks(1, INIT, 100)).cpu == 500


def test_a_task_with_whole_cores_asks_for_their_speed_and_not_for_a_number() -> None:
    assert asked(Resources(cpu=500, cores=2, memory_mb=1)).cpu == 0


def test_poststart_runs_beside_the_main_tasks_and_poststop_after_them() -> None:
    ask = ask_of(tasks(1, None, 300), tasks(1, POSTSTART, 100), tasks(1, POSTSTOP, 350))
    late = ask_of(tasks(1, None, 300), tasks(1, POSTSTOP, 500))

    assert (ask.cpu, late.cpu) == (400, 500)


def test_each_dimension_takes_its_own_largest_phase() -> None:
    group = a_group(
        tasks=[a_task("main", cpu=100, memory_mb=900), a_task("init", cpu=800, memory_mb=100, lifecycle=INIT)]
    )

    ask = Ask.of(a_job(groups=[group]), group)

    assert (ask.cpu, ask.memory_mb) == (800, 900)


def test_tasks_with_whole_cores_add_them_outside_the_phases() -> None:
    group = a_group(
        tasks=[
            a_task("main", cpu=100),
            a_task("init", resources=Resources(cpu=0, cores=2, memory_mb=100), lifecycle=INIT),
            a_task("end", resources=Resources(cpu=0, cores=1, memory_mb=100), lifecycle=POSTSTOP),
        ]
    )
    ask = Ask.of(a_job(groups=[group]), group)

    given = NodeRoom(a_node(cpu=4000)).offer(ask)

    assert (ask.cpu, ask.cores, ask.memory_mb) == (100, 3, 300)
    assert isinstance(given, Offer)
    assert sums_of(ask, given) == Sums(100 + 3000, 300, 300, 1)


def test_memory_asked_is_memory_and_secrets_and_never_the_maximum() -> None:
    ask = asked(Resources(memory_mb=300, memory_max_mb=9000, secrets_mb=20), oversubscription=True)

    assert ask.memory_mb == 320
    assert ask.tasks[0].memory_max_mb == 9020


@pytest.mark.parametrize(
    ("wanted", "oversubscription", "given"), [(500, True, 520), (0, True, 0), (-1, True, -1), (500, False, 0)]
)
def test_memory_max_is_only_given_with_oversubscription(wanted: int, oversubscription: bool, given: int) -> None:
    ask = asked(Resources(memory_mb=300, memory_max_mb=wanted, secrets_mb=20), oversubscription=oversubscription)

    record = allocated_resources(ask)

    assert record.tasks["web"].memory.memory_max_mb == given
    assert record.tasks["web"].memory.memory_mb == 320


def test_disk_is_the_groups_ephemeral_disk_and_legacy_disk_has_no_effect() -> None:
    group = a_group(tasks=[a_task(resources=Resources(disk_mb=77, iops=5))], ephemeral_disk=EphemeralDisk(size_mb=1234))

    assert Ask.of(a_job(groups=[group]), group).disk_mb == 1234


@pytest.mark.parametrize(
    ("group", "needs"),
    [
        (a_group(), False),
        (a_group(networks=(a_network(mode="bridge"),)), False),
        (a_special_group(static()), True),
        (a_special_group(dynamic()), True),
        (a_special_group(cores=1), True),
        (a_special_group(devices=(RequestedDevice(name="gpu"),)), True),
        (a_group(volumes={"v": VolumeRequest(name="v", type="host", source="data")}), True),
        (a_group(volumes={"v": VolumeRequest(name="v", type="csi", source="data")}), False),
        (a_group(tasks=[a_task(resources=Resources(networks=(a_network(dynamic()),)))]), True),
    ],
)
def test_only_what_is_more_than_numbers_needs_a_look_at_the_node(group: TaskGroup, needs: bool) -> None:
    assert Ask.of(a_job(groups=[group]), group).needs_special is needs


def test_only_the_first_network_of_a_group_is_placed() -> None:
    group = a_group(networks=(a_network(static("a", 1000)), a_network(static("b", 2000))))

    ask = Ask.of(a_job(groups=[group]), group)

    assert ask.network is not None
    assert [port.label for port in ask.network.reserved_ports] == ["a"]


def test_the_stored_record_says_what_each_task_and_the_group_got() -> None:
    legacy = Resources(cpu=0, cores=1, memory_mb=50, networks=(a_network(dynamic("old")),))
    gpu = Resources(cpu=200, memory_mb=60, devices=(RequestedDevice(name="gpu"),))
    group = a_group(
        tasks=[a_task("core", resources=legacy), a_task("gpu", resources=gpu, lifecycle=SIDECAR)],
        networks=(a_network(static("http", 8080), dynamic("rpc", to=-1), mode="host"),),
        volumes={"v": VolumeRequest(name="v", type="host", source="data", access_mode="single-node-single-writer")},
    )
    ask = Ask.of(a_job(groups=[group]), group)
    node = a_place(devices=(a_device(),), host_volumes={"data": HostVolumeInfo(name="data")})
    offer = NodeRoom(node).offer(ask, seed=3)
    assert not isinstance(offer, Exhausted)

    record = allocated_resources(ask, offer)

    assert record.tasks["core"].cpu.reserved_cores == (0,)
    assert record.tasks["core"].cpu.cpu_shares == 1000
    assert record.tasks["core"].networks[0].ip == "10.0.0.1"
    assert record.tasks["core"].networks[0].dynamic_ports[0].value >= 20000
    assert record.tasks["gpu"].cpu.cpu_shares == 200
    assert record.tasks["gpu"].devices[0].device_ids == ("a",)
    assert record.task_lifecycles == {"core": None, "gpu": SIDECAR}
    assert record.shared.disk_mb == 300
    assert [mapping.label for mapping in record.shared.ports] == ["http", "rpc"]
    assert record.shared.ports[1].to == record.shared.ports[1].value
    assert record.shared.networks[0].reserved_ports[0].host_network == "default"
    assert Special.of(record, group.volumes) == offer.special()


def test_a_plain_group_stores_no_ports_and_holds_nothing_special() -> None:
    group = a_group(networks=(NetworkResource(mode="bridge"),))
    ask = Ask.of(a_job(groups=[group]), group)

    record = allocated_resources(ask)

    assert record.shared.networks == (NetworkResource(mode="bridge"),)
    assert record.shared.ports == ()
    assert Special.of(record, group.volumes) is None
    assert Offer().special() is None
