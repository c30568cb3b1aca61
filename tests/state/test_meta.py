"""Facts about the region, namespaces and node pools."""

from __future__ import annotations

import pytest

from fedsched.state.fields import Command
from fedsched.state.tables.meta import (
    AUTOPILOT_CONFIG,
    COMMAND_VERSION,
    SCHEDULER_CONFIG,
    AutopilotConfigSet,
    ClusterBegin,
    EnableVersion,
    MustStop,
    SchedulerConfigSet,
)
from fedsched.state.tables.namespaces import NamespaceDelete, NamespaceUpsert, NodePoolDelete, NodePoolUpsert
from fedsched.state.tables.nodes import NodeUpsert
from fedsched.state.tables.plans import OfficeBegin
from tests.builders import a_job
from tests.state.worlds import EMPTY_MAP, World


def test_a_region_is_named_once() -> None:
    world = World()
    assert world.store.meta.cluster_id == ""
    world.do(ClusterBegin(cluster_id="one"))

    assert world.do(ClusterBegin(cluster_id="two")).result.value == {"cluster_id": "one"}


def test_settings_are_replaced_with_check_and_set() -> None:
    world = World()
    assert world.store.meta.config(SCHEDULER_CONFIG) is None
    world.do(SchedulerConfigSet(config=b"\xa1\x61a\x01"))
    late = world.do(SchedulerConfigSet(config=EMPTY_MAP, check_and_set=True, check_index=9))

    assert late.result.code == "conflict"
    assert world.store.meta.config(SCHEDULER_CONFIG) == {"a": 1}
    assert world.do(SchedulerConfigSet(config=EMPTY_MAP, check_and_set=True, check_index=1)).result.is_done
    assert world.do(AutopilotConfigSet(config=EMPTY_MAP)).result.is_done
    assert world.store.meta.config(AUTOPILOT_CONFIG) == {}


@pytest.mark.parametrize("config", [b"", b"\x01", b"\xff"])
def test_settings_that_are_no_map_raise_an_alarm(config: bytes) -> None:
    world = World()
    done = world.do(SchedulerConfigSet(config=config))

    assert done.alarm
    assert done.result.code == "bad_request"
    assert world.store.meta.config(SCHEDULER_CONFIG) is None


def test_a_version_we_do_not_know_stops_the_server() -> None:
    world = World()
    assert world.do(EnableVersion(version=COMMAND_VERSION)).result.value == {"version": COMMAND_VERSION}
    assert world.do(EnableVersion(version=0)).result.value == {"version": COMMAND_VERSION}
    with pytest.raises(MustStop, match="newer fedsched"):
        world.do(EnableVersion(version=COMMAND_VERSION + 1))


def test_the_term_in_office_only_grows() -> None:
    world = World()
    world.do(OfficeBegin(term=5))

    assert world.do(OfficeBegin(term=3)).result.value == {"term": 5}


def test_namespaces_and_pools_come_and_go() -> None:
    world = World()
    for command in (
        NamespaceUpsert(name="prod", description="old"),
        NamespaceUpsert(name="prod", description="new"),
        NodePoolUpsert(name="gpu"),
        NodePoolUpsert(name="gpu", description="fast"),
    ):
        assert world.do(command).result.is_done
    row = world.store.places.namespaces.get("prod")
    assert row is not None
    assert (row.description, row.create_index, row.modify_index) == ("new", 1, 2)
    pool = world.store.places.node_pools.get("gpu")
    assert pool is not None
    assert (pool.description, pool.create_index) == ("fast", 3)

    assert world.do(NamespaceDelete(name="prod")).result.is_done
    assert world.do(NodePoolDelete(name="gpu")).result.is_done
    assert [row.name for row in world.store.places.namespaces.scan()] == ["default"]
    assert [row.name for row in world.store.places.node_pools.scan()] == ["all", "default"]


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (NamespaceDelete(name="default"), "bad_request"),
        (NamespaceDelete(name="nowhere"), "not_found"),
        (NamespaceDelete(name="prod"), "conflict"),
        (NodePoolDelete(name="all"), "bad_request"),
        (NodePoolDelete(name="nowhere"), "not_found"),
        (NodePoolDelete(name="gpu"), "conflict"),
        (NodePoolUpsert(name="default"), "bad_request"),
    ],
)
def test_what_is_built_in_or_in_use_stays(command: Command, code: str) -> None:
    world = World()
    world.do(NamespaceUpsert(name="prod"))
    world.do(NodePoolUpsert(name="gpu"))
    world.do(NodeUpsert(id="n", node_pool="gpu"))
    world.register(a_job(namespace="prod"))

    done = world.do(command)
    assert done.result.code == code
    assert not done.changes
