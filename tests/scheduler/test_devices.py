"""Devices: matching, counting across requests, and handing instances out."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.constraint import Affinity, Constraint
from fedsched.model.node import Node
from fedsched.model.resources import RequestedDevice
from fedsched.scheduler.devices import (
    NO_MATCH,
    NONE_AVAILABLE,
    DeviceOffer,
    asks_for_ids,
    device_matches,
    enough_devices,
    free_instances,
    name_matches,
    offer_devices,
    oversubscribed,
)
from fedsched.scheduler.special import HeldDevices
from tests.scheduler.places import a_device, a_place

GPU = "nvidia/gpu/1080ti"


def wants(name: str = "gpu", count: int = 1, **fields: Any) -> RequestedDevice:
    return RequestedDevice(name=name, count=count, **fields)


def where(l_target: str, operand: str, r_target: str) -> tuple[Constraint, ...]:
    return (Constraint(l_target=l_target, operand=operand, r_target=r_target),)


def offered(node: Node, *requests: RequestedDevice, held: tuple[HeldDevices, ...] = ()) -> DeviceOffer:
    given = offer_devices(node, requests, free_instances(node, held))
    assert isinstance(given, DeviceOffer), given
    return given


def names(given: DeviceOffer) -> list[tuple[str, tuple[str, ...]]]:
    return [(part.device.name, part.device.device_ids) for part in given.given]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpu", True),
        ("fpga", False),
        ("nvidia/gpu", True),
        ("amd/gpu", False),
        ("nvidia/gpu/1080ti", True),
        ("nvidia/gpu/2080ti", False),
        ("nvidia/gpu/1080ti/rev2", False),
    ],
)
def test_a_request_names_type_vendor_and_model(name: str, expected: bool) -> None:
    assert name_matches(a_device(GPU), name) is expected


@pytest.mark.parametrize(
    ("left", "operand", "right", "expected"),
    [
        ("${device.model}", "=", "1080ti", True),
        ("${device.vendor}", "=", "nvidia", True),
        ("${device.type}", "!=", "gpu", False),
        ("${device.ids}", "set_contains", "b", True),
        ("${device.ids}", "set_contains", "z", False),
        ("${device.attr.memory}", ">=", "10 GiB", True),
        ("${device.attr.memory}", ">=", "12 GiB", False),
        ("${device.attr.memory}", ">=", "1 GHz", False),
        ("${device.attr.cuda}", "version", ">= 11.0", True),
        ("${device.attr.none}", "is_not_set", "", True),
        ("${device.attr.none}", "=", "x", False),
        ("${device.unknown}", "is_set", "", False),
        ("${attr.kernel.name}", "is_set", "", False),
    ],
)
def test_constraints_look_at_the_device(left: str, operand: str, right: str, expected: bool) -> None:
    device = a_device(GPU, memory={"Int": 11, "Unit": "GiB"}, cuda={"String": "11.2"})

    assert device_matches(device, wants(constraints=where(left, operand, right))) is expected


def test_only_healthy_instances_count() -> None:
    node = a_place(devices=(a_device(ids=("a", "b"), ill=("b",)),))

    assert enough_devices(node, [wants(count=1)])
    assert not enough_devices(node, [wants(count=2)])


def test_instances_are_counted_across_all_requests() -> None:
    node = a_place(devices=(a_device(ids=("a", "b", "c")),))

    assert enough_devices(node, [wants(count=2), wants("nvidia/gpu", 1)])
    assert not enough_devices(node, [wants(count=2), wants("nvidia/gpu", 2)])
    assert not enough_devices(a_place(), [wants()])
    assert enough_devices(a_place(), [])


def test_a_general_request_leaves_the_special_device_to_the_request_that_needs_it() -> None:
    node = a_place(devices=(a_device("nvidia/gpu/a", ("1", "2")), a_device("nvidia/gpu/b", ("3", "4"))))

    assert enough_devices(node, [wants("gpu", 2), wants("nvidia/gpu/a", 2)])
    assert enough_devices(node, [wants("gpu", 3), wants("nvidia/gpu/a", 1)])
    assert not enough_devices(node, [wants("gpu", 3), wants("nvidia/gpu/a", 2)])
    assert names(offered(node, wants("gpu", 2), wants("nvidia/gpu/a", 2))) == [("b", ("3", "4")), ("a", ("1", "2"))]


def test_a_chain_of_requests_can_make_way_for_the_last() -> None:
    node = a_place(devices=(a_device("v/t/a", ("1",)), a_device("v/t/b", ("2",)), a_device("v/t/c", ("3",))))
    not_c = wants("t", constraints=where("${device.model}", "!=", "c"))

    assert enough_devices(node, [wants("t"), not_c, wants("v/t/a")])
    assert names(offered(node, wants("t"), not_c, wants("v/t/a"))) == [("c", ("3",)), ("b", ("2",)), ("a", ("1",))]


def test_all_instances_for_one_request_come_from_one_device() -> None:
    node = a_place(devices=(a_device("nvidia/gpu/a", ("1",)), a_device("nvidia/gpu/b", ("2",))))

    assert enough_devices(node, [wants("gpu", 2)])
    assert offer_devices(node, [wants("gpu", 2)], free_instances(node, ())) == NO_MATCH


def test_held_and_ill_instances_are_not_given_again() -> None:
    node = a_place(devices=(a_device(ids=("a", "b", "c"), ill=("a",)),))

    assert names(offered(node, wants(), held=(HeldDevices(GPU, ("b",)),))) == [("1080ti", ("c",))]
    assert offer_devices(node, [wants(count=2)], free_instances(node, [HeldDevices(GPU, ("b",))])) == NO_MATCH


def test_a_node_without_devices_and_a_request_for_none_are_said_so() -> None:
    assert offer_devices(a_place(), [wants()], {}) == NONE_AVAILABLE
    node = a_place(devices=(a_device(),))
    assert offer_devices(node, [wants(count=0)], free_instances(node, ())) == NO_MATCH


def test_constraints_on_ids_choose_the_instance() -> None:
    node = a_place(devices=(a_device(ids=("a", "b", "c")),))
    only = wants(constraints=where("${device.ids}", "set_contains_any", "c,x"))
    turned = wants(constraints=where("b,c", "set_contains_any", "${device.ids}"))

    assert names(offered(node, only)) == [("1080ti", ("c",))]
    assert names(offered(node, turned)) == [("1080ti", ("b",))]
    assert asks_for_ids(only)
    assert asks_for_ids(turned)
    assert not asks_for_ids(wants())


def test_the_device_with_the_best_affinity_is_taken_and_scored() -> None:
    node = a_place(
        devices=(
            a_device("nvidia/gpu/small", ("1",), memory={"Int": 4, "Unit": "GiB"}),
            a_device("nvidia/gpu/large", ("2",), memory={"Int": 16, "Unit": "GiB"}),
        )
    )
    likes = (
        Affinity(l_target="${device.attr.memory}", operand=">=", r_target="8 GiB", weight=75),
        Affinity(l_target="${device.model}", operand="=", r_target="small", weight=25),
    )

    given = offered(node, wants(affinities=likes))

    assert names(given) == [("large", ("2",))]
    assert given.affinity == pytest.approx(0.75)


def test_a_disliked_device_is_taken_last_and_scores_below_zero() -> None:
    node = a_place(devices=(a_device("v/gpu/a", ("1",)), a_device("v/gpu/b", ("2",))))
    dislikes = (Affinity(l_target="${device.model}", operand="=", r_target="a", weight=-50),)

    first, second = offered(node, wants(affinities=dislikes)), offered(node, wants("v/gpu/a", affinities=dislikes))

    assert names(first) == [("b", ("2",))]
    assert first.affinity == 0
    assert second.affinity == -1


def test_affinities_of_several_requests_are_one_score_and_none_is_no_score() -> None:
    node = a_place(devices=(a_device("v/gpu/a", ("1", "2")),))
    likes = (Affinity(l_target="${device.model}", operand="=", r_target="a", weight=30),)
    misses = (Affinity(l_target="${device.model}", operand="=", r_target="b", weight=10),)

    assert offered(node, wants(affinities=likes), wants(affinities=misses)).affinity == pytest.approx(0.75)
    assert offered(node, wants(), wants()).affinity is None


def test_an_instance_held_twice_or_unknown_is_oversubscribed() -> None:
    node = a_place(devices=(a_device(ids=("a", "b"), ill=("b",)),))

    assert not oversubscribed(node, [HeldDevices(GPU, ("a",))])
    assert oversubscribed(node, [HeldDevices(GPU, ("a",)), HeldDevices(GPU, ("a",))])
    assert oversubscribed(node, [HeldDevices(GPU, ("b",))])
    assert oversubscribed(node, [HeldDevices("nvidia/gpu/other", ("a",))])
    assert oversubscribed(node, [HeldDevices(GPU, ("a",))], [HeldDevices(GPU, ("a",))])
    assert not oversubscribed(node, [HeldDevices(GPU, ("a",))], [HeldDevices(GPU, ("b",))])


def test_a_hopeless_puzzle_of_requests_is_given_up_in_bounded_time() -> None:
    node = a_place(devices=tuple(a_device(f"v/gpu/m{n}", (f"i{n}",)) for n in range(12)))
    requests = [wants("gpu") for _ in range(13)]

    assert offer_devices(node, requests, free_instances(node, ())) == NO_MATCH
