"""The computed class: what makes two nodes alike, and what does not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from fedsched.model.node import Eligibility, Node, NodeStatus
from fedsched.model.node_resources import NodeDevice, NodeDeviceGroup, NodeResources
from fedsched.scheduler.computed_class import computed_class
from tests.builders import a_node


def with_devices(*devices: NodeDeviceGroup) -> Node:
    return a_node(node_resources=NodeResources(devices=devices))


@pytest.mark.parametrize(
    "change",
    [
        {"datacenter": "dc2"},
        {"node_class": "large"},
        {"node_pool": "gpu"},
        {"attributes": {"kernel.name": "darwin"}},
        {"attributes": {"kernel.name": "linux", "more": ""}},
        {"meta": {"rack": "r1"}},
    ],
)
def test_what_placement_can_see_is_in_the_class(change: dict[str, Any]) -> None:
    assert computed_class(structs.replace(a_node(), **change)) != computed_class(a_node())


@pytest.mark.parametrize(
    "change",
    [
        {"id": "another"},
        {"name": "another"},
        {"links": {"consul": "x"}},
        {"status": NodeStatus.DOWN},
        {"scheduling_eligibility": Eligibility.INELIGIBLE},
        {"drivers": {}},
        {"attributes": {"kernel.name": "linux", "unique.hostname": "h"}},
        {"meta": {"unique.seat": "4"}},
    ],
)
def test_what_is_the_nodes_alone_is_not(change: dict[str, Any]) -> None:
    assert computed_class(structs.replace(a_node(), **change)) == computed_class(a_node())


def test_resources_do_not_count_but_kinds_of_devices_do() -> None:
    gpu = NodeDeviceGroup(vendor="nvidia", type="gpu", name="1080ti", attributes={"memory": {"Int": 11, "Unit": "GiB"}})
    two = structs.replace(gpu, instances=(NodeDevice(id="a"), NodeDevice(id="b", healthy=True)))
    more = structs.replace(gpu, attributes={"memory": {"Unit": "GiB", "Int": 12}})
    hidden = structs.replace(gpu, attributes={**gpu.attributes, "unique.bus": "1"})

    assert computed_class(a_node(cpu=1)) == computed_class(a_node(cpu=2, memory_mb=1))
    assert (
        computed_class(with_devices(gpu)) == computed_class(with_devices(two)) == computed_class(with_devices(hidden))
    )
    assert computed_class(with_devices(gpu)) != computed_class(with_devices(more))
    assert computed_class(with_devices(gpu)) != computed_class(with_devices())
    assert computed_class(with_devices(gpu, more)) == computed_class(with_devices(more, gpu))


def test_the_order_inside_a_list_or_a_map_does_not_split_a_class() -> None:
    one = a_node(attributes={"os.signals": "SIGHUP, SIGINT", "driver.docker.runtimes": "runc,kata", "z": "1"})
    other = a_node(attributes={"z": "1", "driver.docker.runtimes": "kata,runc", "os.signals": "SIGINT,SIGHUP"})

    assert computed_class(one) == computed_class(other)


def test_the_order_of_an_ordinary_text_does_count() -> None:
    assert computed_class(a_node(meta={"path": "a,b"})) != computed_class(a_node(meta={"path": "b,a"}))


def test_keys_and_values_never_run_together() -> None:
    assert computed_class(a_node(meta={"ab": "c"})) != computed_class(a_node(meta={"a": "bc"}))
    assert computed_class(a_node(meta={"a": "1"}, node_class="")) != computed_class(a_node(attributes={"a": "1"}))


def test_the_digest_is_the_same_on_every_server() -> None:
    lists = NodeDeviceGroup(vendor="v", type="t", name="n", attributes={"modes": ["b", "a"], "on": True, "half": 0.5})
    node = a_node(attributes={"cpu.numcores": "4"}, meta={"rack": "r1"}, node_resources=NodeResources(devices=(lists,)))

    assert computed_class(node) == "v1:5635eac3fa80e5380569ab4cf4f70ceb"
