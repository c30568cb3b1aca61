"""Registrations: who may enter them, how they change, and what takes them out."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.service import ServiceRegistration
from fedsched.state.image import Restorer, save
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, Reap
from fedsched.state.tables.node_updates import NodeStatusUpdate, NodeStatusWrite
from fedsched.state.tables.nodes import NodeDeregister
from fedsched.state.tables.plans import StoppedBatch
from fedsched.state.tables.services import (
    ServiceDelete,
    ServicesDeregister,
    ServicesRegister,
    ServiceWrite,
    service_write,
)
from tests.builders import an_id
from tests.state.worlds import World, ids, problems

COMPLETE, LOST, UNKNOWN = 3, 5, 6


def a_world() -> World:
    """Two nodes; allocations 1 and 2 on the first, 3 on the second."""
    world = World()
    slots = world.nodes(2)
    world.register()
    world.place([1, 2, 3], [slots[0], slots[0], slots[1]])
    return world


def a_registration(
    identity: str = "s1", alloc: int = 1, node: int = 1, name: str = "web", **fields: Any
) -> ServiceRegistration:
    known = {"namespace": "default", "id": identity, "node_id": an_id(node), "alloc_id": an_id(alloc)}
    return ServiceRegistration(service_name=name, **known | fields)


def a_write(*args: Any, **fields: Any) -> ServiceWrite:
    return service_write(a_registration(*args, **fields))


def names(world: World) -> dict[str, int]:
    return {row.name: row.count for row in world.store.services.names.scan()}


def registered(world: World) -> list[str]:
    return [row.id for row in world.store.services.rows.scan()]


def test_registrations_are_found_by_name_allocation_node_and_job() -> None:
    world = a_world()
    world.do(ServicesRegister(services=(a_write(job_id="j"), a_write("s2", 3, 2), a_write("s3", 2, name="db"))))

    services = world.store.services
    assert [row.id for row in services.of_name("default", "web")] == ["s1", "s2"]
    assert [row.id for row in services.of_alloc(an_id(3))] == ["s2"]
    assert [row.id for row in services.of_node(an_id(1))] == ["s1", "s3"]
    assert [row.id for row in services.of_job("default", "j")] == ["s1"]
    assert names(world) == {"web": 2, "db": 1}


def test_a_registration_comes_back_as_it_was_entered_with_its_indexes() -> None:
    world = a_world()
    wanted = a_registration(job_id="j", datacenter="dc1", address="10.1.1.1", port=80, tags=("a", "b"), modify_index=7)
    index = world.do(ServicesRegister(services=(service_write(wanted),))).result.index

    row = world.store.services.rows.get("s1")
    assert row is not None
    assert row.registration() == replace(wanted, create_index=index, modify_index=index)


def test_entering_the_same_again_changes_nothing_and_something_else_moves_its_name_on() -> None:
    world = a_world()
    first = world.do(ServicesRegister(services=(a_write(),))).result.index
    again = world.do(ServicesRegister(services=(a_write(),)))
    assert not again.changes
    changed = world.do(ServicesRegister(services=(a_write(port=9),)))

    name = world.store.services.names.get("default", "web")
    row = world.store.services.rows.get("s1")
    assert name is not None
    assert row is not None
    assert (name.count, name.create_index, name.modify_index) == (1, first, changed.result.index)
    assert (row.create_index, row.modify_index) == (first, changed.result.index)


def test_a_registration_under_another_name_leaves_the_old_one() -> None:
    world = a_world()
    world.do(ServicesRegister(services=(a_write(),)))
    world.do(ServicesRegister(services=(a_write(name="other"),)))

    assert names(world) == {"other": 1}
    assert problems(world.store) == []


@pytest.mark.parametrize(
    "write",
    [a_write(alloc=9), a_write(node=2), a_write(alloc_id="no id"), a_write(node=9)],
    ids=["unknown allocation", "another node", "no id at all", "unknown node"],
)
def test_what_does_not_run_there_is_passed_over(write: ServiceWrite) -> None:
    world = a_world()
    result = world.do(ServicesRegister(services=(write, a_write("good")))).result

    assert result.value == {"passed_over": ["s1"]}
    assert registered(world) == ["good"]


def test_a_late_registration_of_an_ended_allocation_is_passed_over() -> None:
    world = a_world()
    world.do(AllocStatusUpdate(ids=ids([1]), statuses=bytes([COMPLETE])))
    world.do(ServicesRegister(services=(a_write(),)))

    assert registered(world) == []


def test_a_node_cannot_take_over_the_registration_of_another() -> None:
    world = a_world()
    world.do(ServicesRegister(services=(a_write(),)))
    result = world.do(ServicesRegister(services=(a_write(alloc=3, node=2),))).result

    assert result.value == {"passed_over": ["s1"]}
    assert [row.node_id for row in world.store.services.rows.scan()] == [an_id(1)]


def test_the_end_of_an_allocation_takes_its_registrations_with_it() -> None:
    world = a_world()
    world.do(ServicesRegister(services=(a_write(), a_write("s2", 2), a_write("s3", 1, name="db"))))
    changes = world.do(AllocStatusUpdate(ids=ids([1]), statuses=bytes([COMPLETE]))).changes

    assert registered(world) == ["s2"]
    assert names(world) == {"web": 1}
    assert {"services", "service_names"} <= changes.tables()
    assert problems(world.store) == []


def test_an_allocation_that_servers_take_for_lost_offers_nothing() -> None:
    world = a_world()
    world.do(ServicesRegister(services=(a_write(), a_write("s2", 2))))
    world.plan(stopped=(StoppedBatch(ids=ids([1]), client_status=LOST), StoppedBatch(ids=ids([2]))))

    assert registered(world) == ["s2"]  # stopped, but still on its way out


def test_a_forgotten_allocation_is_forgotten_here_too() -> None:
    world = a_world()
    world.do(ServicesRegister(services=(a_write(),)))
    world.do(Reap(allocs=ids([1])))

    assert registered(world) == []
    assert problems(world.store) == []


@pytest.mark.parametrize("status", ["down", "disconnected"])
def test_nobody_is_sent_to_a_node_that_fell_silent(status: Any) -> None:
    world = a_world()
    world.do(ServicesRegister(services=(a_write(), a_write("s2", 3, 2))))
    world.do(NodeStatusUpdate(updates=(NodeStatusWrite(id=an_id(1), status=status),)))

    assert registered(world) == ["s2"]


def test_nobody_is_sent_to_a_node_that_left() -> None:
    world = a_world()
    world.do(ServicesRegister(services=(a_write(), a_write("s2", 3, 2))))
    world.do(NodeDeregister(ids=(an_id(2),)))

    assert registered(world) == ["s1"]


def test_a_client_takes_out_only_what_is_its_own() -> None:
    world = a_world()
    world.do(ServicesRegister(services=(a_write(), a_write("s2", 3, 2))))
    result = world.do(ServicesDeregister(ids=("s1", "s2", "s1", "nothing"), node_id=an_id(1))).result

    assert result.value == {"removed": 1}
    assert registered(world) == ["s2"]
    assert world.do(ServicesDeregister(ids=("s2",))).result.value == {"removed": 1}


def test_a_registration_is_deleted_by_hand_under_its_own_name_only() -> None:
    world = a_world()
    index = world.do(ServicesRegister(services=(a_write(),))).result.index

    assert world.do(ServiceDelete(id="s1", namespace="default", name="db")).result.code == "not_found"
    assert world.do(ServiceDelete(id="s2", namespace="default", name="web")).result.code == "not_found"
    stale = ServiceDelete(id="s1", namespace="default", name="web", check_index=index + 5)
    assert world.do(stale).result.code == "conflict"
    assert world.do(ServiceDelete(id="s1", namespace="default", name="web", check_index=index)).result.is_done
    assert names(world) == {}


def test_services_survive_an_image() -> None:
    world = a_world()
    world.do(ServicesRegister(services=(a_write(tags=("x",)), a_write("s2", 2))))
    restorer = Restorer()
    for chunk in save(world.store.snapshot()):
        restorer.feed(chunk)
    restored = restorer.finish()

    assert list(restored.services.rows.scan()) == list(world.store.services.rows.scan())
    assert list(restored.services.names.scan()) == list(world.store.services.names.scan())


def test_a_snapshot_keeps_seeing_what_was_there() -> None:
    world = a_world()
    world.do(ServicesRegister(services=(a_write(),)))
    snapshot = world.store.snapshot()
    world.do(ServicesDeregister(ids=("s1",)))

    assert [row.id for row in snapshot.services.of_name("default", "web")] == ["s1"]
    assert registered(world) == []
