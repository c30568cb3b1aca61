"""Who has gone silent, and which jobs that concerns."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedsched.model.alloc import Allocation, AllocState, ClientStatus
from fedsched.model.node import DriverInfo, HostVolumeInfo, NodeStatus
from fedsched.model.node_resources import NodeCPU, NodeDeviceGroup, NodeMemory, NodeResources
from fedsched.model.policies import DisconnectStrategy
from fedsched.server.leader import heartbeats_core
from fedsched.server.leader.heartbeats_core import (
    HeartbeatsCore,
    HeartbeatSettings,
    SetNodeStatus,
    command_of,
    eligibility_needs_evaluations,
    interval_s,
    matches_glob,
    node_evaluations,
    registration_needs_evaluations,
    silence_effects,
    status_after_beat,
    status_needs_evaluations,
    ttl_s,
)
from fedsched.state.tables.alloc_updates import AllocStatusUpdate
from tests.builders import a_group, a_job, a_node, an_id
from tests.server.leader.worlds import NS, Region, own_fields

SETTINGS = HeartbeatSettings()


@pytest.mark.parametrize(
    ("nodes", "interval", "longest_ttl", "shortest_timer", "longest_timer"),
    [(1, 10, 20, 20, 30), (500, 10, 20, 20, 30), (1000, 20, 40, 30, 50), (5000, 100, 200, 110, 210)],
)
def test_the_time_between_heartbeats_grows_with_the_fleet(
    nodes: int, interval: float, longest_ttl: float, shortest_timer: float, longest_timer: float
) -> None:
    assert interval_s(nodes, SETTINGS) == interval
    assert ttl_s(nodes, 0.0, SETTINGS) == interval
    assert ttl_s(nodes, 0.999999, SETTINGS) == pytest.approx(longest_ttl, rel=1e-5)
    assert ttl_s(nodes, 0.0, SETTINGS) + SETTINGS.grace_s == shortest_timer
    assert ttl_s(nodes, 0.999999, SETTINGS) + SETTINGS.grace_s == pytest.approx(longest_timer, rel=1e-5)


def test_a_fleet_of_any_size_stays_below_the_rate() -> None:
    for nodes in (600, 1000, 5000, 50_000):
        assert nodes / interval_s(nodes, SETTINGS) <= SETTINGS.rate_max


def test_a_node_counts_itself_once_among_the_fleet() -> None:
    core = HeartbeatsCore(HeartbeatSettings(ttl_min_s=1.0, rate_max=1.0))

    assert [core.beat("n1", 0, 0.0), core.beat("n2", 0, 0.0), core.beat("n1", 0, 0.0)] == [1, 2, 2]


def test_a_silent_node_is_told_of_once_when_ttl_and_grace_are_up() -> None:
    core = HeartbeatsCore()
    assert core.beat("n1", 0, 0.5) == 15

    assert core.wake(25 * NS - 1) == []
    assert core.wake_at_ns() == 25 * NS
    assert core.wake(25 * NS) == ["n1"]
    assert core.wake(100 * NS) == []
    assert "n1" not in core


def test_a_heartbeat_moves_the_deadline() -> None:
    core = HeartbeatsCore()
    core.beat("n1", 0, 0.0)
    core.beat("n1", 15 * NS, 0.0)

    assert core.wake(20 * NS) == []
    assert core.wake_at_ns() == 35 * NS


def test_after_a_change_of_leader_every_node_has_five_minutes_first() -> None:
    core = HeartbeatsCore()
    core.begin(["n1", "n2"], 7 * NS)

    assert core.wake_at_ns() == 307 * NS
    assert core.wake(307 * NS) == ["n1", "n2"]


def test_a_heartbeat_after_a_change_of_leader_counts_as_always() -> None:
    core = HeartbeatsCore()
    core.begin(["n1", "n2"], 0)

    core.beat("n1", 0, 0.0)

    assert core.wake_at_ns() == 20 * NS
    assert core.wake(20 * NS) == ["n1"]
    assert core.wake_at_ns() == 300 * NS


def test_a_node_that_is_forgotten_is_not_missed() -> None:
    core = HeartbeatsCore()
    core.beat("n1", 0, 0.0)
    core.forget("n1")

    assert core.wake_at_ns() is None
    assert len(core) == 0


def test_a_node_whose_silence_could_not_be_written_is_told_of_again_unless_it_was_heard() -> None:
    core = HeartbeatsCore()
    for node in ("n1", "n2"):
        core.beat(node, 0, 0.0)
    silent = core.wake(20 * NS)
    core.beat("n2", 20 * NS, 0.0)

    core.put_back(silent, 21 * NS)

    assert core.wake(21 * NS) == ["n1"]


def test_new_nodes_get_a_deadline_and_nodes_that_are_down_or_gone_lose_it() -> None:
    region = Region()
    core = HeartbeatsCore()
    region.node(1)
    region.node(2, status=NodeStatus.DOWN)
    region.node(3, status=NodeStatus.DISCONNECTED)
    core.note(region.store, region.everything(), 0)
    assert (an_id(1) in core, an_id(2) in core, an_id(3) in core) == (True, False, True)
    region.node(4)
    region.node_status(1, NodeStatus.DOWN)

    core.note(region.store, region.changes(), 0)

    assert (an_id(1) in core, an_id(4) in core) == (False, True)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.booleans()), max_size=60))
@settings(max_examples=100)
def test_nobody_is_missed_early_and_everybody_is_missed_in_the_end(story: list[tuple[int, int, bool]]) -> None:
    core = HeartbeatsCore()
    due: dict[str, int] = {}
    now = 0
    for node, seconds, heard in story:
        now += seconds * NS
        for silent in core.wake(now):
            assert due.pop(silent) <= now
        assert all(moment > now for moment in due.values())
        if heard:
            name = f"n{node}"
            due[name] = now + round((core.beat(name, now, node / 6) + SETTINGS.grace_s) * NS)
        else:
            core.forget(f"n{node}")
            due.pop(f"n{node}", None)
    assert core.wake(now + 10**6 * NS) == sorted(due)


def with_patience(lost_after_s: float = 60.0, **fields: Any) -> Any:
    disconnect = DisconnectStrategy(lost_after_s=lost_after_s)
    return a_job(groups=[a_group(disconnect=disconnect, **fields)])


def silence(region: Region, *numbers: int) -> list[SetNodeStatus]:
    return silence_effects(region.store, [an_id(one) for one in numbers], region.now_ns, region.new_id)


def test_a_silent_node_is_down() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job())
    region.place([1], slot)

    (effect,) = silence(region, 1)

    assert effect.status is NodeStatus.DOWN
    assert [one.job_id for one in effect.evaluations] == ["web"]
    region.do(command_of(effect))
    row = region.store.nodes.get(an_id(1))
    assert row is not None
    assert row.status == "down"
    assert row.missed_heartbeat_index == region.store.index


def test_a_silent_node_is_disconnected_if_an_allocation_may_stay_unknown() -> None:
    region = Region()
    slot = region.node(1)
    region.register(with_patience())
    region.place([1], slot)
    region.run([1])

    assert [effect.status for effect in silence(region, 1)] == [NodeStatus.DISCONNECTED]


def test_the_older_field_of_a_group_means_the_same() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job(groups=[a_group(max_client_disconnect_s=60.0)]))
    region.place([1], slot)
    region.run([1])

    assert [effect.status for effect in silence(region, 1)] == [NodeStatus.DISCONNECTED]


def test_an_allocation_that_is_to_stop_or_has_ended_does_not_keep_its_node_from_being_down() -> None:
    region = Region()
    slot = region.node(1)
    region.register(with_patience())
    region.place([1, 2], slot)
    region.run([1])
    region.stop_allocs([1])
    region.client([2], ClientStatus.COMPLETE)

    assert [effect.status for effect in silence(region, 1)] == [NodeStatus.DOWN]


@pytest.mark.parametrize(("ago_s", "status"), [(30, None), (61, NodeStatus.DOWN)])
def test_a_node_is_down_once_its_unknown_allocations_have_expired(ago_s: int, status: NodeStatus | None) -> None:
    region = Region()
    slot = region.node(1, status=NodeStatus.DISCONNECTED)
    region.register(with_patience(60.0))
    moves = (
        AllocState(value="running", time_ns=region.now_ns),
        AllocState(value="unknown", time_ns=region.now_ns - ago_s * NS),
    )
    record = Allocation(id=an_id(1), alloc_states=moves)
    region.place([1], slot, **own_fields([0], [record], "alloc_states"))
    region.client([1], ClientStatus.UNKNOWN)

    assert [effect.status for effect in silence(region, 1)] == ([status] if status else [])


def test_nodes_that_fall_silent_together_share_one_change_and_one_evaluation_per_job() -> None:
    region = Region()
    region.register(a_job())
    for number in (1, 2, 3):
        region.place([number], region.node(number))

    (effect,) = silence(region, 3, 1, 2, 1, 9)

    assert effect.node_ids == (an_id(1), an_id(2), an_id(3))
    assert len(effect.evaluations) == 1


def test_nodes_with_more_evaluations_than_one_entry_holds_are_told_of_in_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeats_core, "EVALUATIONS_MAX", 1)
    region = Region()
    for number in (1, 2):
        region.register(a_job(f"job-{number}"))
        region.place([number], region.node(number), job=f"job-{number}")

    assert [effect.node_ids for effect in silence(region, 1, 2)] == [(an_id(1),), (an_id(2),)]


def test_a_node_that_is_down_already_is_not_told_of() -> None:
    region = Region()
    region.node(1, status=NodeStatus.DOWN)

    assert silence(region, 1, 2) == []


def beat(region: Region, number: int) -> NodeStatus:
    row = region.store.nodes.get(an_id(number))
    assert row is not None
    return status_after_beat(region.store, row)


def test_a_disconnected_node_that_is_heard_is_looked_at_first() -> None:
    region = Region()
    region.node(1, status=NodeStatus.DISCONNECTED)

    assert beat(region, 1) is NodeStatus.INITIALIZING


def test_a_ready_node_stays_ready_and_a_new_one_becomes_it() -> None:
    region = Region()
    region.node(1)
    region.node(2, status=NodeStatus.INITIALIZING)

    assert beat(region, 1) is NodeStatus.READY
    assert beat(region, 2) is NodeStatus.READY


def test_a_node_that_was_missed_is_ready_only_after_its_client_told_about_its_allocations() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job())
    region.place([1], slot)
    region.run([1])
    region.node_status(1, NodeStatus.DOWN)
    region.node_status(1, NodeStatus.INITIALIZING)
    assert beat(region, 1) is NodeStatus.INITIALIZING

    region.do(AllocStatusUpdate(ids=b"", statuses=b"", synced_nodes=(an_id(1),)))

    assert beat(region, 1) is NodeStatus.READY


def test_a_node_that_was_missed_without_live_allocations_is_ready_at_once() -> None:
    region = Region()
    region.node(1)
    region.node_status(1, NodeStatus.DOWN)

    assert beat(region, 1) is NodeStatus.READY


def test_a_node_of_a_pool_that_does_not_exist_is_not_ready() -> None:
    region = Region()
    region.node(1, status=NodeStatus.INITIALIZING, node_pool="gpu")

    assert beat(region, 1) is NodeStatus.INITIALIZING


@pytest.mark.parametrize(
    ("before", "after", "needed"),
    [
        ("ready", "down", True),
        ("initializing", "down", True),
        ("disconnected", "down", True),
        ("down", "ready", True),
        ("initializing", "ready", True),
        ("ready", "disconnected", True),
        ("disconnected", "initializing", True),
        ("disconnected", "ready", True),
        ("down", "initializing", False),
        ("ready", "initializing", False),
        ("ready", "ready", False),
        ("down", "down", False),
    ],
)
def test_which_moves_of_a_nodes_status_concern_jobs(before: str, after: str, needed: bool) -> None:
    assert status_needs_evaluations(before, after) is needed


def test_a_node_that_becomes_eligible_concerns_jobs_and_one_that_stops_being_it_does_not() -> None:
    assert eligibility_needs_evaluations("ineligible", "eligible")
    assert not eligibility_needs_evaluations("eligible", "ineligible")
    assert not eligibility_needs_evaluations("eligible", "eligible")


@pytest.mark.parametrize(
    "change",
    [
        {"datacenter": "dc2"},
        {"name": "other"},
        {"node_class": "large"},
        {"attributes": {"kernel.name": "plan9"}},
        {"meta": {"rack": "r1"}},
        {"drivers": {"docker": DriverInfo(detected=True)}},
        {"host_volumes": {"data": HostVolumeInfo(name="data")}},
        {"node_resources": NodeResources(devices=(NodeDeviceGroup(type="gpu"),))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_node_that_registers_again_with_something_new_to_place_on_concerns_jobs(change: dict[str, Any]) -> None:
    node = a_node(1)

    assert registration_needs_evaluations(node, structs.replace(node, **change))


def test_a_node_that_registers_again_with_more_of_the_same_does_not() -> None:
    node = a_node(1)
    more = NodeResources(cpu=NodeCPU(cpu_shares=9000), memory=NodeMemory(memory_mb=64_000))

    assert not registration_needs_evaluations(node, structs.replace(node, node_resources=more))
    assert not registration_needs_evaluations(node, node)


def concerned(region: Region, *numbers: int) -> list[tuple[str, str]]:
    rows = [row for number in numbers if (row := region.store.nodes.get(an_id(number))) is not None]
    made = node_evaluations(region.store, rows, region.now_ns, region.new_id)
    assert all(one.triggered_by == "node-update" and one.node_id and one.node_modify_index for one in made)
    return [(one.job_id, one.type) for one in made]


def test_a_service_job_is_concerned_until_its_allocation_has_ended_on_both_sides() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job())
    region.place([1], slot)
    assert concerned(region, 1) == [("web", "service")]
    region.client([1], ClientStatus.FAILED)
    assert concerned(region, 1) == [("web", "service")]
    region.stop_allocs([1])
    assert concerned(region, 1) == []


def test_a_service_job_is_concerned_while_a_stopped_allocation_still_runs() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job())
    region.place([1], slot)
    region.run([1])
    region.stop_allocs([1])

    assert concerned(region, 1) == [("web", "service")]


def test_a_batch_job_is_concerned_until_its_allocation_has_finished() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job(type="batch"))
    region.place([1], slot)
    assert concerned(region, 1) == [("web", "batch")]
    region.client([1], ClientStatus.COMPLETE)
    assert concerned(region, 1) == []


def test_sysbatch_jobs_are_never_concerned() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job(type="sysbatch"))
    region.place([1], slot)

    assert concerned(region, 1) == []


@pytest.mark.parametrize(
    ("fields", "is_for"),
    [
        ({}, True),
        ({"datacenters": ("dc1",)}, True),
        ({"datacenters": ("eu-*", "dc*")}, True),
        ({"datacenters": ("dc2",)}, False),
        ({"datacenters": ("dc?",)}, False),
        ({"node_pool": "all"}, True),
        ({"node_pool": "gpu"}, False),
    ],
)
def test_running_system_jobs_are_concerned_if_pool_and_datacenter_match(fields: dict[str, Any], is_for: bool) -> None:
    region = Region()
    region.node(1, datacenter="dc1")
    region.register(a_job(type="system", **fields))

    assert concerned(region, 1) == ([("web", "system")] if is_for else [])


def test_a_stopped_system_job_is_not_concerned() -> None:
    region = Region()
    region.node(1)
    region.register(a_job(type="system"))
    region.stop("web")

    assert concerned(region, 1) == []


def test_a_purged_job_is_concerned_with_the_type_it_had() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job(priority=77))
    region.place([1], slot)
    region.stop("web", purge=True)

    assert concerned(region, 1) == [("web", "service")]


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [("*", "dc1", True), ("dc*", "dc1", True), ("dc[1]", "dc1", False), ("d?1", "dc1", False), ("DC1", "dc1", False)],
)
def test_only_the_star_is_special_in_a_datacenter_pattern(pattern: str, text: str, matches: bool) -> None:
    assert matches_glob(pattern, text) is matches


def test_a_node_that_registers_and_is_never_heard_of_again_is_missed() -> None:
    region = Region()
    core = HeartbeatsCore()
    core.note(region.store, region.everything(), 0)
    region.node(1)

    core.note(region.store, region.changes(), 5 * NS)

    assert core.wake(305 * NS - 1) == []
    assert core.wake(305 * NS) == [an_id(1)]


def test_an_allocation_that_was_unknown_before_and_came_back_is_counted_from_the_last_time() -> None:
    region = Region()
    slot = region.node(1, status=NodeStatus.DISCONNECTED)
    region.register(with_patience(60.0))
    moves = (
        AllocState(value="unknown", time_ns=region.now_ns - 500 * NS),
        AllocState(value="running", time_ns=region.now_ns - 400 * NS),
        AllocState(value="unknown", time_ns=region.now_ns - 30 * NS),
        AllocState(value="pending", time_ns=region.now_ns - 300 * NS),
    )
    record = Allocation(id=an_id(1), alloc_states=moves)
    region.place([1], slot, **own_fields([0], [record], "alloc_states"))
    region.client([1], ClientStatus.UNKNOWN)

    assert silence(region, 1) == []
    region.sleep(31)
    assert [effect.status for effect in silence(region, 1)] == [NodeStatus.DOWN]


def test_a_node_that_stays_ineligible_concerns_nobody() -> None:
    assert not eligibility_needs_evaluations("ineligible", "ineligible")
