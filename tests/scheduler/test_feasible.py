"""Feasibility: every check, its reason, its order, and what a blocked evaluation learns from it."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.constraint import Constraint
from fedsched.model.group import TaskGroup
from fedsched.model.network import NetworkResource
from fedsched.model.node import DriverInfo, HostVolumeInfo, Node
from fedsched.model.node_resources import NodeResources
from fedsched.model.resources import RequestedDevice, Resources
from fedsched.model.task import Secret
from fedsched.model.volume import VolumeRequest
from fedsched.scheduler.distinct import PropertyLimit, Scope
from fedsched.scheduler.feasible import (
    ClassEligibility,
    GroupNeeds,
    Reason,
    check_kind,
    check_node,
    glob_matches,
    in_datacenters,
    in_pool,
)
from tests.builders import a_group, a_job, a_node, a_task
from tests.scheduler.places import a_device, a_network, a_place, an_address, dynamic, static


def where(l_target: str, r_target: str, operand: str = "=") -> Constraint:
    return Constraint(l_target=l_target, r_target=r_target, operand=operand)


def needs_of(group: TaskGroup | None = None, *job_constraints: Constraint) -> GroupNeeds:
    group = a_group() if group is None else group
    return GroupNeeds.of(a_job(groups=[group], constraints=job_constraints), group)


def why(needs: GroupNeeds, node: Node, **more: Any) -> str | None:
    reason = check_kind(needs, node) or check_node(needs, node, **more)
    return reason.text if reason is not None else None


def test_a_plain_group_fits_a_plain_node_and_needs_no_look_at_the_single_node() -> None:
    needs = needs_of()

    assert why(needs, a_node()) is None
    assert needs.is_by_kind
    assert not needs.escapes


def test_constraints_fail_with_their_own_text() -> None:
    needs = needs_of(None, where("${attr.kernel.name}", "linux"))

    assert why(needs, a_node()) is None
    assert why(needs, a_node(attributes={"kernel.name": "darwin"})) == "${attr.kernel.name} = linux"


def test_the_order_is_job_then_drivers_then_group_and_tasks_then_devices_network_secrets_volumes() -> None:
    task = a_task(
        driver="docker",
        constraints=(where("${meta.t}", "1"),),
        resources=Resources(devices=(RequestedDevice(name="gpu"),)),
        secrets=(Secret(name="s", provider="vault"),),
    )
    group = a_group(
        tasks=[task],
        constraints=(where("${meta.g}", "1"),),
        networks=(NetworkResource(mode="bridge"),),
        volumes={"v": VolumeRequest(name="v", type="host", source="data")},
    )
    needs = needs_of(group, where("${meta.j}", "1"))
    fields: dict[str, Any] = {"drivers": ()}
    reasons = []
    for more in (
        {"meta": {"j": "1"}},
        {"drivers": ("docker",)},
        {"meta": {"j": "1", "g": "1"}},
        {"meta": {"j": "1", "g": "1", "t": "1"}},
        {"node_resources": NodeResources(devices=(a_device(),))},
        {"node_resources": a_place(devices=(a_device(),), modes=("host", "bridge")).node_resources},
        {"attributes": {"plugins.secrets.vault.version": "1.0"}},
        {"host_volumes": {"data": HostVolumeInfo(name="data")}},
    ):
        reasons.append(why(needs, a_node(**fields)))
        fields |= more

    assert reasons == [
        "${meta.j} = 1",
        "missing drivers",
        "${meta.g} = 1",
        "${meta.t} = 1",
        "missing devices",
        "missing network",
        "missing secrets provider",
        "missing compatible host volumes",
    ]
    assert why(needs, a_node(**fields)) is None
    assert [constraint.l_target for constraint in needs.constraints] == ["${meta.j}", "${meta.g}", "${meta.t}"]
    assert needs.drivers == ("docker",)


@pytest.mark.parametrize(
    ("drivers", "attributes", "is_missing"),
    [
        ({"docker": DriverInfo(detected=True, healthy=True)}, {}, False),
        ({"docker": DriverInfo(detected=True, healthy=False)}, {"driver.docker": "1"}, True),
        ({"docker": DriverInfo(detected=False, healthy=True)}, {"driver.docker": "1"}, True),
        ({}, {"driver.docker": "1"}, False),
        ({}, {"driver.docker": "true"}, False),
        ({}, {"driver.docker": "false"}, True),
        ({}, {"driver.docker": "nonsense"}, True),
        ({}, {}, True),
    ],
)
def test_a_driver_must_be_detected_and_healthy_or_at_least_an_attribute(
    drivers: dict[str, DriverInfo], attributes: dict[str, str], is_missing: bool
) -> None:
    needs = needs_of(a_group(tasks=[a_task(driver="docker")]))
    node = Node(id="n", drivers=drivers, attributes=attributes)

    assert why(needs, node) == ("missing drivers" if is_missing else None)


def test_every_driver_of_the_group_is_needed() -> None:
    needs = needs_of(a_group(tasks=[a_task("a", driver="docker"), a_task("b", driver="exec")]))

    assert why(needs, a_node(drivers=("docker",))) == "missing drivers"
    assert why(needs, a_node(drivers=("docker", "exec"))) is None


@pytest.mark.parametrize(
    ("mode", "offered", "reason"),
    [
        ("none", (), None),
        ("", ("host",), None),
        ("", ("",), None),
        ("host", ("bridge",), "missing network"),
        ("bridge", ("host", "bridge"), None),
        ("bridge", ("host",), "missing network"),
        ("cni/calico", ("host", "cni/calico"), None),
        ("cni/calico", ("host", "cni/other"), "missing network"),
        ("host", (), "missing network"),
    ],
)
def test_a_node_must_offer_the_network_mode(mode: str, offered: tuple[str, ...], reason: str | None) -> None:
    needs = needs_of(a_group(networks=(NetworkResource(mode=mode),)))

    assert why(needs, a_place(modes=offered)) == reason
    legacy = NodeResources(networks=tuple(NetworkResource(mode=one) for one in offered))
    assert why(needs, a_node(node_resources=legacy)) == reason


def test_only_the_first_network_counts() -> None:
    needs = needs_of(a_group(networks=(NetworkResource(mode="host"), NetworkResource(mode="bridge"))))

    assert why(needs, a_place()) is None


def test_every_ports_host_network_must_be_an_alias_of_the_node() -> None:
    node = a_place(addresses=(an_address(), an_address("10.1.0.1", "public")), meta={"net": "public", "bad": "dmz"})

    def with_alias(alias: str) -> str | None:
        return why(needs_of(a_group(networks=(a_network(static(), dynamic(host_network=alias)),))), node)

    assert with_alias("") is None
    assert with_alias("public") is None
    assert with_alias("dmz") == 'missing host network "dmz" for port "rpc"'
    assert with_alias("${meta.net}") is None
    assert with_alias("${meta.bad}") == 'missing host network "dmz" for port "rpc"'
    assert with_alias("${meta.none}") == 'invalid host network "${meta.none}" template for port "rpc"'
    alone = a_group(networks=(a_network(dynamic()),))
    assert why(needs_of(alone), a_place(addresses=())) == 'missing host network "default" for port "rpc"'


def test_devices_are_counted_healthy_and_across_requests() -> None:
    task = a_task(resources=Resources(devices=(RequestedDevice(name="gpu", count=2),)))
    other = a_task("other", resources=Resources(devices=(RequestedDevice(name="nvidia/gpu"),)))
    needs = needs_of(a_group(tasks=[task, other]))

    assert why(needs, a_place(devices=(a_device(ids=("a", "b", "c")),))) is None
    assert why(needs, a_place(devices=(a_device(ids=("a", "b", "c"), ill=("c",)),))) == "missing devices"
    assert needs.is_by_kind


def test_what_looks_at_the_single_node_is_asked_of_every_node() -> None:
    by_name = needs_of(None, where("${node.unique.name}", "node-1"))
    ids = (where("${device.ids}", "a", "set_contains"),)
    by_instance = needs_of(
        a_group(tasks=[a_task(resources=Resources(devices=(RequestedDevice(name="gpu", constraints=ids),)))])
    )
    by_alias = needs_of(a_group(networks=(a_network(dynamic(host_network="${meta.unique.net}")),)))

    for needs, node, reason in (
        (by_name, a_node(2), "${node.unique.name} = node-1"),
        (by_instance, a_place(devices=(a_device(ids=("x",)),)), "missing devices"),
        (by_alias, a_place(), 'invalid host network "${meta.unique.net}" template for port "rpc"'),
    ):
        assert not needs.is_by_kind
        assert check_kind(needs, node) is None
        assert check_node(needs, node) == Reason(reason, of_job=needs is by_name, of_class=False)
    assert why(by_name, a_node(1)) is None


def test_volumes_are_asked_of_every_node_with_what_others_write_there() -> None:
    group = a_group(volumes={"v": VolumeRequest(name="v", type="host", source="data", per_alloc=True)})
    node = a_node(host_volumes={"data[3]": HostVolumeInfo(name="data[3]")})

    assert why(needs_of(group), node, name_index=3) is None
    assert why(needs_of(group), node, name_index=4) == "missing compatible host volumes"
    assert why(needs_of(group), node) is None, "which allocation may go there is asked when its turn comes"
    assert why(needs_of(group), a_node(host_volumes={"data": HostVolumeInfo()})) == "missing compatible host volumes"


def test_distinct_constraints_are_kept_aside() -> None:
    group = a_group(constraints=(where("${meta.rack}", "2", "distinct_property"),))
    needs = needs_of(group, Constraint(operand="distinct_hosts"))

    assert why(needs, a_node()) is None
    assert needs.distinct_hosts is Scope.JOB
    assert needs.property_limits == (PropertyLimit("${meta.rack}", 2, Scope.GROUP),)
    assert needs.constraints == ()


@pytest.mark.parametrize(
    ("glob", "text", "expected"),
    [
        ("*", "dc1", True),
        ("*", "", True),
        ("dc1", "dc1", True),
        ("dc1", "dc10", False),
        ("dc*", "dc10", True),
        ("*1", "dc1", True),
        ("*1", "dc10", False),
        ("d*1", "d1", True),
        ("d*d", "d", False),
        ("a*b*c", "axxbyyc", True),
        ("a*b*c", "axxc", False),
        ("a**c", "abc", True),
        ("dc?", "dc1", False),
        ("dc[12]", "dc1", False),
        ("DC1", "dc1", False),
        ("*ab*ab", "abab", True),
        ("*ab*ab", "xab", False),
    ],
)
def test_only_the_star_is_special_in_a_datacenter_pattern(glob: str, text: str, expected: bool) -> None:
    assert glob_matches(glob, text) is expected
    assert in_datacenters(["nowhere", glob], text) is expected


def test_a_pattern_full_of_stars_is_matched_in_linear_time() -> None:
    assert not glob_matches("*a" * 200 + "b", "a" * 5000)


def test_the_pool_all_has_every_node() -> None:
    node = a_node(node_pool="gpu")

    assert in_pool(a_job(node_pool="gpu"), node)
    assert in_pool(a_job(node_pool="all"), node)
    assert not in_pool(a_job(node_pool="default"), node)


def test_a_class_is_eligible_if_any_group_found_it_so() -> None:
    known = ClassEligibility()
    known.note("v1:a", Reason("missing drivers"))
    known.note("v1:a", None)
    known.note("v1:b", None)
    known.note("v1:b", Reason("missing drivers"))
    known.note("v1:c", Reason("missing drivers"))

    assert known.classes() == {"v1:a": True, "v1:b": True, "v1:c": False}


def test_what_the_job_itself_rules_out_overrides_the_groups() -> None:
    known = ClassEligibility()
    known.note("v1:a", Reason("${attr.a} = 1", of_job=True))
    known.note("v1:a", None)

    assert known.classes() == {"v1:a": False}


def test_a_reason_that_may_pass_leaves_the_class_unknown() -> None:
    known = ClassEligibility()
    needs = needs_of(a_group(tasks=[a_task(driver="docker")]))
    ill = a_node(drivers=()), Node(id="n", drivers={"docker": DriverInfo(detected=True)})

    known.note("v1:gone", check_kind(needs, ill[0]))
    known.note("v1:ill", check_kind(needs, ill[1]))
    known.note("v1:both", check_kind(needs, ill[0]))
    known.note("v1:both", check_kind(needs, ill[1]))

    assert known.classes() == {"v1:gone": False}


def test_what_a_class_does_not_cover_never_rules_it_out() -> None:
    volume = needs_of(a_group(volumes={"v": VolumeRequest(name="v", type="host", source="data")}))
    device = needs_of(a_group(tasks=[a_task(resources=Resources(devices=(RequestedDevice(name="gpu"),)))]))
    mode = needs_of(a_group(networks=(a_network(mode="bridge"),)))
    alias = needs_of(a_group(networks=(a_network(static(host_network="private")),)))

    found = [check_node(volume, a_node()), *(check_kind(needs, a_place()) for needs in (device, mode, alias))]

    assert [reason is not None and reason.of_class for reason in found] == [False] * 4
    assert None not in found


@pytest.mark.parametrize(
    "group",
    [
        a_group(constraints=(where("${node.unique.id}", "x"),)),
        a_group(constraints=(where("x", "${attr.unique.hostname}"),)),
        a_group(tasks=[a_task(constraints=(where("${meta.unique.seat}", "x"),))]),
        a_group(volumes={"v": VolumeRequest(name="v", type="csi", source="data")}),
    ],
)
def test_when_something_escapes_no_classes_are_given(group: TaskGroup) -> None:
    known = ClassEligibility()
    known.note("v1:a", None)
    known.note_needs(needs_of(group))
    known.note_needs(needs_of())

    assert known.escaped
    assert known.classes() is None
