"""One answer per kind is the answer for every node of the kind, and a class hides nothing that constraints see."""

from __future__ import annotations

import random
from typing import Any

from fedsched.model.constraint import Constraint
from fedsched.model.group import TaskGroup
from fedsched.model.network import NetworkResource
from fedsched.model.node import DriverInfo, HostVolumeInfo, Node
from fedsched.model.node_resources import NodeResources
from fedsched.model.resources import RequestedDevice, Resources
from fedsched.scheduler.computed_class import computed_class
from fedsched.scheduler.constraints import escapes, matches
from fedsched.scheduler.feasible import GroupNeeds, check_kind, check_node
from fedsched.scheduler.fleet_kinds import kind_key
from tests.builders import a_group, a_job, a_node, a_task
from tests.scheduler.places import a_device, a_network, a_place, an_address, dynamic, static

TARGETS = (
    "${attr.a}",
    "${meta.m}",
    "${node.class}",
    "${node.datacenter}",
    "${node.unique.name}",
    "${attr.unique.u}",
    "1",
)
OPERANDS = ("=", "!=", "<", ">=", "is_set", "is_not_set", "regexp", "version", "set_contains_any", "nonsense")


def some_node(chance: random.Random, number: int) -> Node:
    aliases = [
        an_address(f"10.0.0.{n}", alias) for n, alias in enumerate(("default", "public")) if chance.random() < 0.7
    ]
    modes = tuple(mode for mode in ("host", "bridge") if chance.random() < 0.7)
    place = a_place(
        addresses=tuple(aliases),
        modes=modes,
        devices=tuple(
            a_device(ids=(f"{number}a", f"{number}b"), ill=chance.choice(((), (f"{number}a",)))) for _ in "x"
        ),
    ).node_resources
    legacy = NodeResources(networks=(NetworkResource(mode=chance.choice(("host", "bridge"))),))
    fields: dict[str, Any] = {
        "attributes": {"a": chance.choice("12"), "unique.u": str(number)} if chance.random() < 0.8 else {},
        "meta": {"m": chance.choice(("1", "2.0", "x"))} if chance.random() < 0.5 else {},
        "node_class": chance.choice(("", "1")),
        "datacenter": chance.choice(("dc1", "dc2")),
        "node_resources": chance.choice((place, legacy)),
    }
    fields["drivers"] = ()
    node = a_node(number, **fields)
    info = DriverInfo(detected=chance.random() < 0.8, healthy=chance.random() < 0.8)
    drivers = {"mock_driver": info} if chance.random() < 0.8 else {}
    volumes = {"data": HostVolumeInfo(name="data")} if chance.random() < 0.5 else {}
    changed: dict[str, Any] = {"drivers": drivers, "host_volumes": volumes}
    return Node(**{**{name: getattr(node, name) for name in node.__struct_fields__}, **changed})


def some_constraint(chance: random.Random) -> Constraint:
    return Constraint(l_target=chance.choice(TARGETS), r_target=chance.choice(TARGETS), operand=chance.choice(OPERANDS))


def some_group(chance: random.Random) -> TaskGroup:
    devices = (RequestedDevice(name="gpu", count=chance.randint(1, 2)),) if chance.random() < 0.3 else ()
    ports = [static(host_network=chance.choice(("", "public", "${meta.m}"))), dynamic()][: chance.randint(0, 2)]
    networks = (a_network(*ports, mode=chance.choice(("", "bridge", "none"))),) if chance.random() < 0.4 else ()
    constraints = tuple(some_constraint(chance) for _ in range(chance.randint(0, 2)))
    return a_group(tasks=[a_task(resources=Resources(devices=devices))], constraints=constraints, networks=networks)


def test_nodes_of_one_kind_get_one_answer() -> None:
    chance = random.Random(3)
    nodes = [some_node(chance, number) for number in range(300)]
    kinds: dict[bytes, list[Node]] = {}
    for node in nodes:
        kinds.setdefault(kind_key(node), []).append(node)
    assert any(len(alike) > 2 for alike in kinds.values())

    verdicts = {True: 0, False: 0}
    for _ in range(200):
        group = some_group(chance)
        needs = GroupNeeds.of(a_job(groups=[group], constraints=(some_constraint(chance),)), group)
        for alike in kinds.values():
            answers = {check_kind(needs, node) for node in alike}
            assert len(answers) == 1, (group, alike)
            verdicts[answers == {None}] += 1
            if needs.is_by_kind:
                assert {check_node(needs, node) for node in alike} == {None}
    assert min(verdicts.values()) > 500


def test_nodes_of_one_class_answer_every_constraint_alike_unless_it_escapes() -> None:
    chance = random.Random(4)
    classes: dict[str, list[Node]] = {}
    for number in range(300):
        node = some_node(chance, number)
        classes.setdefault(computed_class(node), []).append(node)
    assert any(len(alike) > 2 for alike in classes.values())

    for _ in range(500):
        constraint = some_constraint(chance)
        if not escapes(constraint):
            for alike in classes.values():
                assert len({matches(constraint, node) for node in alike}) == 1, constraint
