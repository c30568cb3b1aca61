"""Nodes that look alike to feasibility are decided on once."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.node import DriverInfo, HostNetworkInfo, HostVolumeInfo, Node
from fedsched.model.node_resources import (
    NodeDevice,
    NodeDeviceGroup,
    NodeNetwork,
    NodeNetworkAddress,
    NodeResources,
)
from fedsched.scheduler.fleet_kinds import MASKS_MAX, Kinds, kind_key
from tests.builders import a_node


def with_gpu(healthy: bool = True, **attributes: Any) -> NodeResources:
    gpu = NodeDeviceGroup(
        vendor="nvidia", type="gpu", name="t4", instances=(NodeDevice(id="1", healthy=healthy),), attributes=attributes
    )
    return NodeResources(devices=(gpu,))


class TestKindKey:
    @pytest.mark.parametrize(
        "fields",
        [
            {"number": 2},
            {"name": "other"},
            {"attributes": {"unique.hostname": "x"}},
            {"meta": {"unique.serial": "x"}},
            {"status_description": "fine"},
            {"http_addr": "10.0.0.1:4646"},
            {"cpu": 9000},
            {"memory_mb": 123},
            {"links": {"consul": "x"}},
        ],
    )
    def test_what_belongs_to_one_node_alone_is_left_out(self, fields: dict[str, Any]) -> None:
        assert kind_key(a_node(**fields)) == kind_key(a_node())

    @pytest.mark.parametrize(
        "fields",
        [
            {"datacenter": "dc2"},
            {"node_pool": "gpu"},
            {"node_class": "large"},
            {"computed_class": "v1:7"},
            {"attributes": {"rack": "r1"}},
            {"meta": {"team": "a"}},
            {"drivers": ("mock_driver",)},
            {"host_networks": {"public": HostNetworkInfo(name="public")}},
            {"host_volumes": {"data": HostVolumeInfo(name="data")}},
            {"host_volumes": {"data": HostVolumeInfo(name="data", read_only=True)}},
            {"csi_node_plugins": {"ebs": {"Healthy": True, "Nodes": [1, 2]}}},
            {"node_resources": with_gpu()},
            {"node_resources": with_gpu(memory={"Int": 16, "Unit": "GiB"})},
            {"node_resources": with_gpu(healthy=False)},
            {"node_resources": NodeResources(node_networks=(NodeNetwork(mode="bridge"),))},
            {
                "node_resources": NodeResources(
                    node_networks=(NodeNetwork(mode="host", addresses=(NodeNetworkAddress(alias="public"),)),)
                )
            },
        ],
    )
    def test_what_a_check_may_look_at_makes_a_difference(self, fields: dict[str, Any]) -> None:
        other = kind_key(a_node(**fields))
        assert other != kind_key(a_node())
        assert other == kind_key(a_node(**fields, number=7) if "number" not in fields else a_node(**fields))

    def test_an_unhealthy_driver_is_another_kind(self) -> None:
        sick = Node(id="x", drivers={"exec": DriverInfo(detected=True, healthy=False)})
        well = Node(id="x", drivers={"exec": DriverInfo(detected=True, healthy=True)})
        assert kind_key(sick) != kind_key(well)

    def test_the_order_of_maps_does_not_matter(self) -> None:
        one = Node(id="x", meta={"a": "1", "b": "2"}, csi_node_plugins={"p": {"A": 1, "B": 2.5}, "q": None})
        two = Node(id="y", meta={"b": "2", "a": "1"}, csi_node_plugins={"q": None, "p": {"B": 2.5, "A": 1}})
        assert kind_key(one) == kind_key(two)


def some_kinds(*nodes: Node) -> Kinds:
    kinds = Kinds()
    kinds.grow(8)
    for slot, node in enumerate(nodes):
        kinds.put(slot, node)
    return kinds


class TestKinds:
    def test_alike_nodes_share_a_kind_and_one_stands_for_all(self) -> None:
        kinds = some_kinds(a_node(1), a_node(2), a_node(3, node_class="x"))
        assert len(kinds) == 2
        assert kinds.of_slot[0] == kinds.of_slot[1] != kinds.of_slot[2]
        assert kinds.count_of(int(kinds.of_slot[0])) == 2
        assert [node.node_class for _, node in kinds.representatives()] == ["", "x"]
        found = kinds.node(int(kinds.of_slot[2]))
        assert found is not None
        assert found.node_class == "x"

    def test_a_check_runs_once_per_kind_and_only_for_new_ones_later(self) -> None:
        kinds = some_kinds(a_node(1), a_node(2), a_node(3, node_class="x"))
        asked: list[str] = []

        def decide(node: Node) -> bool:
            asked.append(node.node_class)
            return node.node_class != "x"

        assert kinds.mask("key", decide).tolist() == [True, True, False] + [False] * 5
        kinds.mask("key", decide)
        assert asked == ["", "x"]
        kinds.put(4, a_node(4, node_class="y"))
        assert kinds.mask("key", decide).tolist() == [True, True, False, False, True, False, False, False]
        assert asked == ["", "x", "y"]

    def test_a_node_that_changes_its_kind_changes_the_mask(self) -> None:
        kinds = some_kinds(a_node(1), a_node(2))
        assert kinds.mask("k", lambda node: node.node_class == "").sum() == 2
        kinds.put(0, a_node(1, node_class="x"))
        assert kinds.mask("k", lambda node: node.node_class == "").tolist()[:2] == [False, True]
        version = kinds.version
        kinds.put(0, a_node(1, node_class="x", name="renamed"))
        assert kinds.version == version

    def test_the_number_of_a_kind_that_died_out_is_decided_on_anew(self) -> None:
        kinds = some_kinds(a_node(1, node_class="x"))
        number = int(kinds.of_slot[0])
        assert kinds.mask("k", lambda node: node.node_class == "x").tolist()[0]
        kinds.drop(0)
        kinds.drop(0)
        assert kinds.node(number) is None
        assert not kinds.mask("k", lambda node: node.node_class == "x").any()
        kinds.put(1, a_node(2, node_class="y"))
        assert int(kinds.of_slot[1]) == number
        assert not kinds.mask("k", lambda node: node.node_class == "x").any()

    def test_answers_are_bounded(self) -> None:
        kinds = some_kinds(a_node(1))
        for number in range(MASKS_MAX + 10):
            kinds.mask(number, lambda node: True)
        assert len(kinds._answers) == MASKS_MAX

    def test_a_slot_without_a_node_has_no_kind(self) -> None:
        kinds = some_kinds(a_node(1))
        assert kinds.key_of(5) == b""
        assert not kinds.mask("k", lambda node: True)[5]
