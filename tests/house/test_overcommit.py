"""The eye on committed plans sees what it is there to see: each kind of promise that a node cannot keep is planted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec import structs

from fedsched.model.network import PortMapping
from fedsched.model.node import HostVolumeInfo, Node
from fedsched.model.resources import (
    AllocatedDevice,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from fedsched.model.volume import VolumeRequest
from fedsched.state.commands import COMMANDS
from fedsched.state.tables.plans import OfficeBegin
from tests.builders import a_group, a_job
from tests.overcommit import PlanWatch, overcommitted, taken_too_early
from tests.scheduler.places import a_device, a_place, an_address
from tests.server.leader.site import RUNNING, Site, given_fields, placing, stopping

pytestmark = pytest.mark.plans_by_hand

GPU = "nvidia/gpu/1080ti"


def a_host(**fields: Any) -> Node:
    fields.setdefault("addresses", (an_address(), an_address("10.0.0.2"), an_address("10.1.0.1", "private")))
    fields.setdefault("devices", (a_device(GPU, ids=("a", "b")),))
    return a_place(**fields)


def with_port(value: int, address: str = "10.0.0.1", **fields: Any) -> bytes:
    ports = (PortMapping(label="http", value=value, host_ip=address, **fields),)
    return given_fields(AllocatedResources(shared=AllocatedSharedResources(ports=ports)))


def with_devices(*instances: str) -> dict[str, Any]:
    return {"devices": (AllocatedDevice(vendor="nvidia", type="gpu", name="1080ti", device_ids=instances),)}


def watched(node: Node, *groups: Any, **job: Any) -> list[str]:
    """Commit groups of placements on one node, whatever they are; what the watch notes."""
    site = Site(node, job=a_job(**job) if job else None)
    with watching() as watch:
        assert site.do(site.a_plan(placed=groups)).result.is_done
    assert watch.seen == 1
    return [problem.partition("node-1: ")[2] for problem in watch.problems]


@contextmanager
def watching() -> Iterator[PlanWatch]:
    kind = COMMANDS["plan-apply"]
    watch = PlanWatch(kind)
    COMMANDS["plan-apply"] = watch.watched()
    try:
        yield watch
    finally:
        COMMANDS["plan-apply"] = kind


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"cpu": 2001}, "cpu: 4002 of 4000"),
        ({"memory_mb": 4097}, "memory: 8194 of 8192"),
        ({"disk_mb": 50_001}, "disk: 100002 of 100000"),
        ({"cores": (1,)}, "core 1 is given to 2"),
        (with_devices("a"), "device ('nvidia/gpu/1080ti', 'a') is given to 2"),
    ],
)
def test_what_two_placements_take_together_is_too_much(given: dict[str, Any], problem: str) -> None:
    assert watched(a_host(), placing([1, 2], [0, 0], **given)) == [problem]
    assert watched(a_host(), placing([1], [0], **given)) == []


def test_what_a_node_keeps_for_itself_is_not_counted_as_its_own() -> None:
    kept = a_host(reserved_cpu=100, reserved_memory_mb=256)

    assert watched(kept, placing([1], [0], cpu=3901)) == ["cpu: 3901 of 3900"]
    assert watched(kept, placing([1], [0], memory_mb=7937)) == ["memory: 7937 of 7936"]


def test_too_many_allocations_are_seen() -> None:
    assert watched(a_host(node_max_allocs=1), placing([1, 2], [0, 0])) == ["allocations: 2 of 1"]


@pytest.mark.parametrize(
    ("first", "second", "is_shared"),
    [
        (with_port(80), with_port(80), True),
        (with_port(80), with_port(80, "10.0.0.2"), True),
        (with_port(80), with_port(81), False),
        (with_port(80), with_port(80, ignore_collision=True), False),
    ],
)
def test_a_port_that_two_have_on_one_host_network_is_seen(first: bytes, second: bytes, is_shared: bool) -> None:
    found = watched(a_host(), placing([1], [0], shared=first), placing([2], [0], shared=second))

    assert found == (["port 80 is given to two on ['10.0.0.1', '10.0.0.2']"] if is_shared else [])


def test_what_the_node_keeps_or_never_had_is_seen() -> None:
    kept = a_host(reserved_ports="22,8000-8100", reserved_cores=(0,), devices=(a_device(GPU, ("a", "b"), ill=("b",)),))

    assert watched(kept, placing([1], [0], shared=with_port(8050))) == ["port 8050 is kept by the node"]
    assert watched(kept, placing([1], [0], cores=(0,))) == ["core 0 is not to be had"]
    assert watched(kept, placing([1], [0], cores=(7,))) == ["core 7 is not to be had"]
    assert watched(kept, placing([1], [0], **with_devices("b"))) == [f"device ('{GPU}', 'b') is not to be had"]


def test_memory_beyond_what_was_asked_for_is_seen() -> None:
    most = AllocatedTaskResources(memory=AllocatedMemory(memory_mb=256, memory_max_mb=512))

    found = watched(a_host(), placing([1], [0], shared=given_fields(AllocatedResources(tasks={"web": most}))))

    assert found == ["web.group[0] may use 512 MB of memory, asked for 300"]


@pytest.mark.parametrize(("volume_id", "problems"), [("v1", ["volume data has 2 writers"]), ("", [])])
def test_two_writers_where_one_wants_to_be_alone_are_seen(volume_id: str, problems: list[str]) -> None:
    alone = VolumeRequest(name="v", type="host", source="data", access_mode="single-node-single-writer")
    node = a_host(host_volumes={"data": HostVolumeInfo(name="data", id=volume_id)})

    assert watched(node, placing([1, 2], [0, 0]), groups=[a_group(volumes={"v": alone})]) == problems


def test_a_place_that_was_given_away_before_its_holder_ended_is_seen() -> None:
    site = Site(a_host())
    site.do(site.a_plan(placed=(placing([1], [0], cpu=3000),)))
    site.report([1], RUNNING)
    site.do(site.a_plan(stopped=(stopping([1]),)))
    early = site.a_plan(placed=(placing([2], [0], cpu=3000),))
    site.do(early)

    assert overcommitted(site.store) == []
    assert taken_too_early(site.store, early) == ["node-1: cpu: 6000 of 4000"]
    assert taken_too_early(site.store, structs.replace(early, stopped=(stopping([1]),))) == []


def test_plans_that_were_refused_are_not_looked_at() -> None:
    site = Site(a_host())
    site.do(OfficeBegin(term=2))

    with watching() as watch:
        assert not site.do(site.a_plan(placed=(placing([1], [0], cpu=9_999),), term=1)).result.is_done

    assert (watch.seen, watch.problems) == (0, [])
