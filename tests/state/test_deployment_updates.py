"""Deployments: what placements, reports of health and people do to their counters, deadlines and status."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from fedsched.model.deployment import Deployment, DeploymentState, DeploymentStatus
from fedsched.model.ids import uuid_bytes
from fedsched.state.apply import ApplyResult
from fedsched.state.tables.alloc_columns import HEALTHY, UNHEALTHY, Flag
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, JobName, Reap
from fedsched.state.tables.deployment_updates import (
    DeploymentAllocHealth,
    DeploymentPromote,
    DeploymentStatusUpdate,
    DeploymentStatusWrite,
)
from fedsched.state.tables.deployments import DeploymentsUpsert, DeploymentWrite, deployment_write
from fedsched.state.tables.evaluations import EvaluationWrite
from fedsched.state.tables.jobs import job_register
from fedsched.state.tables.plans import StoppedBatch, UpdatedGroup
from tests.builders import a_deployment, a_group, a_job, an_id
from tests.state.worlds import SECOND, World, ids, placed_group

ROLLOUT = an_id(9)
MINUTE_S = 60.0


def a_rollout(world: World, **state: Any) -> Deployment:
    """A job with two nodes and, not stored yet, a deployment of its newest version."""
    if world.store.jobs.row("default", "web") is None:
        world.nodes(2)
        world.register(a_job(groups=[a_group(count=4)]))
    row = world.store.jobs.row("default", "web")
    assert row is not None
    fields = {"desired_total": 4, "progress_deadline_s": MINUTE_S, **state}
    return a_deployment(
        9,
        job=a_job(version=row.version),
        job_create_index=row.create_index,
        task_groups={"group": DeploymentState(**fields)},
    )


def place(world: World, numbers: list[int], rollout: Deployment | None = None, *, canary: bool = False) -> ApplyResult:
    return world.plan(
        placed=(placed_group(numbers, [0] * len(numbers), flags=int(Flag.CANARY) if canary else 0),),
        deployment_id=ROLLOUT,
        deployments=(deployment_write(rollout),) if rollout else (),
    )


def health(world: World, numbers: list[int], value: int) -> ApplyResult:
    count = len(numbers)
    return world.do(AllocStatusUpdate(ids=ids(numbers), statuses=bytes([2]) * count, healths=bytes([value]) * count))


def group_of(world: World) -> DeploymentState:
    found = world.store.deployments.get(ROLLOUT)
    assert found is not None
    return found.task_groups["group"]


def set_status(world: World, status: Any, **fields: Any) -> ApplyResult:
    return world.do(
        DeploymentStatusUpdate(updates=(DeploymentStatusWrite(id=ROLLOUT, status=status, description="so"),), **fields)
    )


def test_placements_count_and_the_first_one_starts_the_deadline() -> None:
    world = World()
    place(world, [1, 2], a_rollout(world))
    began = world.store.time_ns
    place(world, [3])

    state = group_of(world)
    assert state.placed_allocs == 3
    assert state.require_progress_by_ns == began + 60 * SECOND


def test_health_counts_once_and_moves_when_it_changes() -> None:
    world = World()
    place(world, [1, 2, 3], a_rollout(world))
    health(world, [1, 2], HEALTHY)
    health(world, [1, 2], HEALTHY)
    assert (group_of(world).healthy_allocs, group_of(world).unhealthy_allocs) == (2, 0)

    health(world, [2, 3], UNHEALTHY)

    assert (group_of(world).healthy_allocs, group_of(world).unhealthy_allocs) == (1, 2)


def test_each_healthy_allocation_moves_the_deadline_and_an_unhealthy_one_does_not() -> None:
    world = World()
    place(world, [1, 2], a_rollout(world))
    health(world, [1], HEALTHY)
    moved = group_of(world).require_progress_by_ns
    assert moved == world.store.time_ns + 60 * SECOND

    health(world, [2], UNHEALTHY)

    assert group_of(world).require_progress_by_ns == moved


def test_the_deadline_never_goes_back() -> None:
    world = World()
    place(world, [1, 2], a_rollout(world, require_progress_by_ns=10**15))

    health(world, [1], HEALTHY)

    assert group_of(world).require_progress_by_ns == 10**15


def test_a_canary_is_listed_once() -> None:
    world = World()
    rollout = a_rollout(world, desired_canaries=2)
    place(world, [1], rollout, canary=True)
    place(world, [2], canary=True)
    world.do(DeploymentsUpsert(deployments=(deployment_write(rollout),)))

    assert group_of(world).placed_canaries == (an_id(1), an_id(2))


def test_a_deployment_sent_in_a_plan_keeps_what_was_counted_and_takes_what_is_wished() -> None:
    world = World()
    rollout = a_rollout(world)
    place(world, [1, 2], rollout)
    health(world, [1], HEALTHY)

    wider = a_rollout(world, desired_total=7)
    place(world, [3], wider)

    state = group_of(world)
    assert (state.desired_total, state.placed_allocs, state.healthy_allocs) == (7, 3, 1)


def test_an_in_place_update_that_joins_a_deployment_proves_its_health_anew() -> None:
    world = World()
    world.nodes(2)
    world.register(a_job(groups=[a_group(count=4)]))
    world.place([1, 2], [0, 1])
    health(world, [1, 2], HEALTHY)
    world.register(a_job(groups=[a_group(count=4)], priority=60))
    rollout = a_rollout(world)
    world.plan(
        updated=(UpdatedGroup(group="group", ids=ids([1, 2])),),
        deployment_id=ROLLOUT,
        deployments=(deployment_write(rollout),),
    )

    alloc = world.store.allocations.get(an_id(1))
    assert alloc is not None
    assert (alloc.deployment_id, alloc.deployment_status) == (ROLLOUT, None)
    assert (group_of(world).placed_allocs, group_of(world).healthy_allocs) == (2, 0)
    health(world, [1], HEALTHY)
    assert group_of(world).healthy_allocs == 1


def test_an_in_place_update_without_a_deployment_leaves_each_where_it_was() -> None:
    world = World()
    place(world, [1], a_rollout(world))
    world.place([2], [1])
    health(world, [1], HEALTHY)
    world.register(a_job(groups=[a_group(count=4)], priority=60))

    world.plan(updated=(UpdatedGroup(group="group", ids=ids([1, 2])),))

    found = [world.store.allocations.get(an_id(number)) for number in (1, 2)]
    assert [one.deployment_id for one in found if one] == [ROLLOUT, ""]
    assert found[0] is not None
    assert found[0].deployment_status is not None
    assert found[0].deployment_status.is_healthy


def test_promotion_needs_every_wanted_canary_healthy_and_alive() -> None:
    world = World()
    place(world, [1, 2], a_rollout(world, desired_canaries=2), canary=True)
    health(world, [1], HEALTHY)
    assert "1 of 2" in world.do(DeploymentPromote(id=ROLLOUT)).result.message
    health(world, [2], HEALTHY)
    world.plan(stopped=(StoppedBatch(ids=ids([2])),))

    refused = world.do(DeploymentPromote(id=ROLLOUT)).result

    assert (refused.code, "1 of 2" in refused.message) == ("bad_request", True)


def test_promotion_clears_the_marks_and_starts_the_deadline_anew() -> None:
    world = World()
    place(world, [1, 2], a_rollout(world, desired_canaries=2), canary=True)
    health(world, [1, 2], HEALTHY)
    done = world.do(DeploymentPromote(id=ROLLOUT, groups=("group",)))

    assert done.result.value == {"promoted": ["group"]}
    state = group_of(world)
    assert (state.promoted, state.require_progress_by_ns) == (True, world.store.time_ns + 60 * SECOND)
    alloc = world.store.allocations.get(an_id(1))
    assert alloc is not None
    assert not alloc.is_canary
    assert "no canaries" in world.do(DeploymentPromote(id=ROLLOUT)).result.message


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (DeploymentPromote(id=an_id(1)), "not_found"),
        (DeploymentPromote(id=ROLLOUT, groups=("nobody",)), "bad_request"),
        (DeploymentPromote(id=ROLLOUT), "bad_request"),
        (DeploymentAllocHealth(id=an_id(1)), "not_found"),
        (DeploymentAllocHealth(id=ROLLOUT, healthy=uuid_bytes(an_id(77))), "bad_request"),
        (DeploymentAllocHealth(id=ROLLOUT, unhealthy=uuid_bytes(an_id(77))), "bad_request"),
        (DeploymentAllocHealth(id=ROLLOUT, healthy=b"short"), "bad_request"),
        (DeploymentStatusUpdate(updates=(DeploymentStatusWrite(id=an_id(1), status="failed"),)), "not_found"),
    ],
)
def test_what_cannot_be_done_is_refused_and_changes_nothing(command: Any, code: str) -> None:
    world = World()
    place(world, [1], a_rollout(world))
    before = world.store.deployments.get(ROLLOUT)

    assert world.do(command).result.code == code
    assert world.store.deployments.get(ROLLOUT) == before


def test_pausing_and_going_on_both_start_the_deadline_anew_once_it_runs() -> None:
    world = World()
    rollout = a_rollout(world)
    world.do(DeploymentsUpsert(deployments=(deployment_write(rollout),)))
    set_status(world, "paused")
    assert group_of(world).require_progress_by_ns == 0  # nothing placed: the clock has not begun
    set_status(world, "running")
    place(world, [1])
    set_status(world, "paused")
    assert group_of(world).require_progress_by_ns == world.store.time_ns + 60 * SECOND
    set_status(world, "running")

    assert group_of(world).require_progress_by_ns == world.store.time_ns + 60 * SECOND


def test_success_marks_the_version_stable_and_an_ended_deployment_stays_ended() -> None:
    world = World()
    place(world, [1], a_rollout(world))
    set_status(world, "successful")

    job = world.store.jobs.get("default", "web")
    assert job is not None
    assert job.stable
    assert set_status(world, "running").result.code == "bad_request"
    found = world.store.deployments.get(ROLLOUT)
    assert found is not None
    assert found.status is DeploymentStatus.SUCCESSFUL


def test_success_that_a_plan_writes_marks_the_version_stable_too() -> None:
    world = World()
    rollout = a_rollout(world)
    place(world, [1], rollout)
    world.plan(deployment_updates=(DeploymentStatusWrite(id=ROLLOUT, status="successful"),))

    job = world.store.jobs.get("default", "web")
    assert job is not None
    assert job.stable


def test_failing_goes_back_only_if_nobody_changed_the_job_meanwhile() -> None:
    world = World()
    place(world, [1], a_rollout(world))
    row = world.store.jobs.row("default", "web")
    assert row is not None
    stale = job_register(a_job(priority=10), evaluation=None, enforce_index=True, check_index=row.job_modify_index + 1)
    fresh = job_register(a_job(priority=20), evaluation=None, enforce_index=True, check_index=row.job_modify_index)
    assert set_status(world, "failed", revert=stale).result.value == {"reverted": False}
    assert set_status(world, "failed", revert=fresh).result.value == {"reverted": True}

    job = world.store.jobs.get("default", "web")
    assert job is not None
    assert (job.version, job.priority) == (1, 20)


def test_health_said_by_a_person_counts_and_may_fail_the_deployment_at_once() -> None:
    world = World()
    place(world, [1, 2], a_rollout(world))
    failed = DeploymentStatusWrite(id=ROLLOUT, status="failed", description="ill")
    world.do(DeploymentAllocHealth(id=ROLLOUT, healthy=ids([1]), unhealthy=ids([2]), status=failed))

    found = world.store.deployments.get(ROLLOUT)
    assert found is not None
    state = found.task_groups["group"]
    assert (found.status, state.healthy_allocs, state.unhealthy_allocs) == (DeploymentStatus.FAILED, 1, 1)


def test_groups_that_cannot_be_read_are_refused_before_anything_is_written() -> None:
    world = World()
    world.nodes(1)
    world.register(a_job())
    bad = DeploymentWrite(id=ROLLOUT, job_id="web", groups=b"\x81\x01")

    assert world.do(DeploymentsUpsert(deployments=(bad,))).alarm
    done = world.plan(placed=(placed_group([1], [0]),), deployments=(bad,))
    assert done.alarm
    assert world.store.allocations.get(an_id(1)) is None


def test_the_newest_and_the_active_deployment_of_a_job_are_found() -> None:
    world = World()
    place(world, [1], a_rollout(world))
    reader = world.store.deployments
    active = reader.active_of_job("default", "web")
    assert active is not None
    assert [row.id for row in reader.active()] == [ROLLOUT]
    latest = reader.latest("default", "web", active.job_create_index)
    assert latest == active
    assert reader.latest("default", "web", active.job_create_index + 1) is None
    assert reader.latest("default", "nobody") is None
    set_status(world, "cancelled")
    assert reader.active_of_job("default", "web") is None


def test_only_deployments_that_ended_and_jobs_that_are_dead_are_reaped() -> None:
    world = World()
    place(world, [1], a_rollout(world))
    kept = world.do(Reap(deployments=(ROLLOUT, ROLLOUT), jobs=(JobName(id="web"), JobName(id="nobody"))))
    assert (kept.result.value["deployments"], kept.result.value["jobs"]) == (0, 0)
    set_status(world, "failed")
    world.plan(stopped=(StoppedBatch(ids=ids([1])),))
    world.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x03"))

    row = world.store.jobs.row("default", "web")
    assert row is not None
    gone = world.do(Reap(deployments=(ROLLOUT,), jobs=(JobName(id="web"),)))
    assert gone.result.value["deployments"] == 1
    assert gone.result.value["jobs"] == int(row.status == "dead")


def test_without_a_time_to_show_progress_in_there_is_no_deadline() -> None:
    world = World()
    place(world, [1, 2], a_rollout(world, progress_deadline_s=0.0))
    health(world, [1], HEALTHY)

    assert group_of(world).require_progress_by_ns == 0
    assert group_of(world).healthy_allocs == 1


def test_whoever_waits_for_a_deployment_hears_of_every_placement_and_health() -> None:
    world = World()
    place(world, [1, 2], a_rollout(world))

    def indexes() -> tuple[int, int]:
        found = world.store.deployments.get(ROLLOUT)
        assert found is not None
        return found.modify_index, found.modify_time_ns

    assert indexes() == (world.index, world.store.time_ns)
    place(world, [3])
    assert indexes() == (world.index, world.store.time_ns)
    health(world, [1], HEALTHY)
    told = indexes()
    assert told == (world.index, world.store.time_ns)
    health(world, [1], HEALTHY)
    assert indexes() == told  # that was no news


def test_health_of_allocations_outside_any_deployment_is_nobodys_progress() -> None:
    world = World()
    place(world, [1], a_rollout(world))
    world.plan(placed=(placed_group([2], [0]),))
    health(world, [1, 2], HEALTHY)

    assert group_of(world).healthy_allocs == 1


def test_the_evaluations_that_follow_are_stored_with_whatever_becomes_of_a_deployment() -> None:
    world = World()
    place(world, [1], a_rollout(world, desired_canaries=1), canary=True)
    health(world, [1], HEALTHY)
    writes = iter([(EvaluationWrite(id=an_id(number), job_id="web"),) for number in (0xA1, 0xA2, 0xA3)])

    world.do(DeploymentPromote(id=ROLLOUT, evaluations=next(writes)))
    world.do(DeploymentAllocHealth(id=ROLLOUT, unhealthy=ids([1]), evaluations=next(writes)))
    set_status(world, "failed", evaluations=next(writes))

    found = [row.id for row in world.store.evaluations.rows.scan()]
    assert found == [an_id(0xA1), an_id(0xA2), an_id(0xA3)]


def test_only_the_groups_that_are_named_are_promoted() -> None:
    world = World()
    rollout = a_rollout(world, desired_canaries=1)
    state = DeploymentState(desired_total=4, desired_canaries=1, progress_deadline_s=MINUTE_S)
    rollout = structs.replace(rollout, task_groups={"group": state, "other": state})
    place(world, [1], rollout, canary=True)
    world.plan(placed=(placed_group([2], [0], group="other", flags=int(Flag.CANARY)),), deployment_id=ROLLOUT)
    health(world, [1, 2], HEALTHY)

    done = world.do(DeploymentPromote(id=ROLLOUT, groups=("group",)))

    assert done.result.value["promoted"] == ["group"]
    assert [change.ids for change in done.changes.allocs] == [ids([1])]  # its mark is gone, and its client hears of it
    found = world.store.deployments.get(ROLLOUT)
    assert found is not None
    assert {name: one.promoted for name, one in found.task_groups.items()} == {"group": True, "other": False}
    again = world.do(DeploymentPromote(id=ROLLOUT))
    assert again.result.value["promoted"] == ["other"]


def test_a_job_without_anything_left_is_dead_once_its_deployment_has_ended() -> None:
    world = World()
    place(world, [1], a_rollout(world))
    world.do(AllocStatusUpdate(ids=ids([1]), statuses=bytes([3])))

    def job_status() -> str:
        row = world.store.jobs.row("default", "web")
        assert row is not None
        return row.status

    assert job_status() == "running"
    set_status(world, "failed", evaluations=(EvaluationWrite(id=an_id(0xA1), job_id="web", status="complete"),))
    assert job_status() == "dead"
