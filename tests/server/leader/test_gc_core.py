"""What the region forgets, row by row of the table of ages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedsched.model.alloc import Allocation, ClientStatus, RescheduleEvent, RescheduleTracker
from fedsched.model.deployment import DeploymentState, DeploymentStatus
from fedsched.model.evaluation import EvaluationStatus
from fedsched.model.job import Job, PeriodicConfig
from fedsched.model.node import NodeStatus
from fedsched.model.policies import ReschedulePolicy
from fedsched.server.leader import gc_core
from fedsched.server.leader.gc_core import (
    FORCED,
    KINDS,
    GcEffect,
    GcSettings,
    ReapNodes,
    ReapRows,
    collect,
    command_of,
    is_failure_settled,
    is_job_collectible,
    is_one_time_token_collectible,
    is_token_collectible,
)
from fedsched.state.tables.job_rows import JobRow
from fedsched.state.tables.jobs import JobTag
from fedsched.state.tables.nodes import NodeDeregister
from tests.builders import a_group, a_job, an_alloc, an_id
from tests.server.leader.worlds import NS, START_NS, Region, own_fields
from tests.state.worlds import ids, problems

SETTINGS = GcSettings()
HOUR = 3600.0
LIMITED = ReschedulePolicy(attempts=1, interval_s=7200.0, delay_s=5.0, delay_function="constant", unlimited=False)
COMPLETE = EvaluationStatus.COMPLETE


def effects(region: Region, kind: str, settings: GcSettings = SETTINGS) -> list[GcEffect]:
    found = collect(region.store.snapshot(), kind, region.now_ns, settings)
    return [effect for effect in found if effect is not None]


def reaped(region: Region, kind: str, settings: GcSettings = SETTINGS) -> tuple[list[str], bytes]:
    """Evaluations and allocations that a pass over one kind lets go."""
    rows = [effect for effect in effects(region, kind, settings) if isinstance(effect, ReapRows)]
    return [one for effect in rows for one in effect.evaluations], b"".join(effect.allocs for effect in rows)


def a_pass(region: Region, settings: GcSettings = SETTINGS) -> None:
    for kind in KINDS:
        seen_index = region.store.index
        for effect in effects(region, kind, settings):
            region.do(command_of(effect, seen_index))


def world(job: Job | None = None, *, status: EvaluationStatus = COMPLETE, allocs: int = 1) -> Region:
    """A job with one evaluation and the allocations that it made, on one node."""
    region = Region()
    slot = region.node(1)
    job = region.register(job or a_job(submit_time_ns=START_NS))
    region.evaluation(0xE, job, status=status)
    if allocs:
        region.place(range(1, allocs + 1), slot)
    return region


def ended(job: Job | None = None, **fields: Any) -> Region:
    region = world(job, **fields)
    region.stop_allocs([1])
    region.client([1], ClientStatus.COMPLETE)
    return region


def test_a_terminal_evaluation_goes_an_hour_after_its_last_change_with_its_allocations() -> None:
    region = ended()
    region.sleep(HOUR - 1)
    assert reaped(region, "evaluation") == ([], b"")

    region.sleep(1)

    assert reaped(region, "evaluation") == ([an_id(0xE)], ids([1]))


@pytest.mark.parametrize("status", [EvaluationStatus.PENDING, EvaluationStatus.BLOCKED])
def test_an_open_evaluation_stays_however_old(status: EvaluationStatus) -> None:
    region = ended(status=status)
    region.sleep(1000 * HOUR)

    assert reaped(region, "evaluation") == ([], b"")


def test_an_evaluation_stays_while_one_of_its_allocations_stays_but_the_others_go() -> None:
    region = world(allocs=2)
    region.run([1, 2])
    region.stop_allocs([1])
    region.client([1], ClientStatus.COMPLETE)
    region.sleep(2 * HOUR)

    assert reaped(region, "evaluation") == ([], ids([1]))


def test_an_allocation_that_still_runs_on_its_client_stays() -> None:
    region = world()
    region.run([1])
    region.stop_allocs([1])
    region.sleep(1000 * HOUR)

    assert reaped(region, "evaluation") == ([], b"")


@pytest.mark.parametrize("kind", ["batch", "sysbatch"])
def test_evaluations_of_batch_jobs_go_after_a_day_and_only_once_the_job_is_dead_and_stopped(kind: str) -> None:
    region = ended(a_job(type=kind, submit_time_ns=START_NS))
    region.sleep(25 * HOUR)
    assert reaped(region, "evaluation")[0] == []

    region.stop("web")
    region.evaluation(0xE, region.store.jobs.get("default", "web"), status=COMPLETE)  # type: ignore[arg-type]
    region.sleep(23 * HOUR)
    assert reaped(region, "evaluation") == ([], b"")
    region.sleep(1 * HOUR)
    assert reaped(region, "evaluation") == ([an_id(0xE)], ids([1]))


def test_evaluations_of_a_batch_job_that_is_gone_go_after_a_day() -> None:
    region = ended(a_job(type="batch", submit_time_ns=START_NS))
    region.stop("web", purge=True)
    region.sleep(24 * HOUR)

    assert reaped(region, "evaluation") == ([an_id(0xE)], ids([1]))


def test_of_a_batch_job_that_goes_on_only_ended_allocations_of_older_versions_go() -> None:
    region = world(a_job(type="batch", submit_time_ns=START_NS), allocs=0)
    slot = 0
    region.place([1, 2], slot)
    region.register(a_job(type="batch", priority=60, submit_time_ns=START_NS))
    region.place([3], slot)
    region.client([1, 3], ClientStatus.COMPLETE)
    region.sleep(48 * HOUR)

    assert reaped(region, "evaluation") == ([], ids([1]))


def failed(policy: ReschedulePolicy | None, *, tries_ago_s: float | None = None, **fields: Any) -> Region:
    """A failed allocation of a job that goes on with another."""
    region = Region()
    slot = region.node(1)
    job = region.register(a_job(groups=[a_group(reschedule_policy=policy)], submit_time_ns=START_NS))
    region.evaluation(0xE, job, status=COMPLETE)
    own = {}
    if tries_ago_s is not None:
        event = RescheduleEvent(reschedule_time_ns=region.now_ns - round(tries_ago_s * NS))
        record = Allocation(id=an_id(1), reschedule_tracker=RescheduleTracker(events=(event,)))
        own = own_fields([0], [record], "reschedule_tracker")
    region.place([1], slot, **own)
    region.client([1], ClientStatus.FAILED)
    region.place([2], slot, evaluation=0xE2, **fields)
    region.run([2])
    region.sleep(1.5 * HOUR)
    return region


def test_a_failed_allocation_that_was_never_replaced_stays_while_replacements_are_unlimited() -> None:
    assert reaped(failed(ReschedulePolicy()), "evaluation") == ([], b"")


def test_a_failed_allocation_goes_once_it_was_replaced() -> None:
    assert reaped(failed(ReschedulePolicy(), previous=[1]), "evaluation") == ([an_id(0xE)], ids([1]))


@pytest.mark.parametrize("policy", [None, ReschedulePolicy(attempts=0, unlimited=False)])
def test_a_failed_allocation_goes_where_nothing_is_rescheduled(policy: ReschedulePolicy | None) -> None:
    assert reaped(failed(policy), "evaluation") == ([an_id(0xE)], ids([1]))


def test_a_failed_allocation_whose_last_attempt_is_within_the_interval_stays() -> None:
    assert reaped(failed(LIMITED, tries_ago_s=0), "evaluation") == ([], b"")
    assert reaped(failed(LIMITED), "evaluation") == ([], b"")


def test_a_failed_allocation_whose_last_attempt_is_outside_the_interval_goes() -> None:
    assert reaped(failed(LIMITED, tries_ago_s=HOUR), "evaluation") == ([an_id(0xE)], ids([1]))


def test_a_failed_allocation_that_is_to_stop_goes() -> None:
    region = failed(ReschedulePolicy())
    region.stop_allocs([1])
    region.sleep(HOUR)

    assert reaped(region, "evaluation")[1] == ids([1])


def test_a_failed_allocation_of_a_stopped_job_goes() -> None:
    region = failed(ReschedulePolicy())
    region.stop("web")

    assert reaped(region, "evaluation") == ([an_id(0xE)], ids([1]))


def test_a_failure_is_settled_by_a_replacement_or_by_age() -> None:
    alloc = an_alloc()
    assert is_failure_settled(alloc, None, 0)
    assert not is_failure_settled(alloc, ReschedulePolicy(), 0)


def dead(**fields: Any) -> Region:
    region = ended(a_job(submit_time_ns=START_NS, **fields))
    region.stop("web")
    return region


def jobs_gone(region: Region, settings: GcSettings = SETTINGS) -> list[tuple[str, str]]:
    return [name for effect in effects(region, "job", settings) if isinstance(effect, ReapRows) for name in effect.jobs]


@pytest.mark.parametrize(
    ("fields", "goes"),
    [
        ({"stop": True}, True),
        ({"stop": True, "submit_time_ns": 11}, False),
        ({"stop": True, "status": "running"}, False),
        ({"stop": True, "status": "pending"}, False),
        ({}, False),
        ({"type": "system"}, False),
        ({"type": "batch"}, True),
        ({"type": "sysbatch"}, True),
        ({"type": "batch", "status": "running"}, False),
        ({"type": "batch", "is_template": True}, False),
        ({"type": "batch", "is_template": True, "stop": True}, True),
    ],
)
def test_which_jobs_may_go_by_their_own_state(fields: dict[str, Any], goes: bool) -> None:
    row = JobRow(**{"namespace": "default", "id": "web", "version": 0, "type": "service", "status": "dead", **fields})

    assert is_job_collectible(row, 10) is goes


def test_a_stopped_dead_job_goes_four_hours_after_it_was_submitted_with_all_that_belongs_to_it() -> None:
    region = dead()
    region.sleep(4 * HOUR - 1)
    assert jobs_gone(region) == []
    region.sleep(1)

    assert jobs_gone(region) == [("default", "web")]
    assert reaped(region, "job") == ([an_id(0xE)], ids([1]))
    a_pass(region)
    assert region.store.jobs.row("default", "web") is None
    assert len(region.store.allocations) == 0
    assert list(region.store.evaluations.rows.scan()) == []
    assert problems(region.store) == []


def test_a_dead_service_job_that_was_never_stopped_stays() -> None:
    region = ended()
    assert region.store.jobs.row("default", "web").status == "dead"  # type: ignore[union-attr]
    region.sleep(1000 * HOUR)

    assert jobs_gone(region) == []


@pytest.mark.parametrize("kind", ["batch", "sysbatch"])
def test_a_dead_batch_job_goes_without_being_stopped(kind: str) -> None:
    region = ended(a_job(type=kind, submit_time_ns=START_NS))
    region.sleep(4 * HOUR)

    assert jobs_gone(region) == [("default", "web")]


def test_a_job_with_an_open_evaluation_or_a_live_allocation_stays() -> None:
    region = dead()
    region.evaluation(0xE2, region.store.jobs.get("default", "web"))  # type: ignore[arg-type]
    region.sleep(100 * HOUR)
    assert jobs_gone(region) == []

    still = world(a_job(submit_time_ns=START_NS))
    still.run([1])
    still.stop("web")
    still.stop_allocs([1])
    still.sleep(100 * HOUR)
    assert jobs_gone(still) == []


def test_a_job_whose_evaluation_changed_lately_stays() -> None:
    region = dead()
    region.sleep(4 * HOUR)
    region.evaluation(0xE, region.store.jobs.get("default", "web"), status=COMPLETE)  # type: ignore[arg-type]

    assert jobs_gone(region) == []


def test_a_job_with_a_tagged_version_stays() -> None:
    region = dead()
    region.do(JobTag(namespace="default", id="web", version=0, name="golden"))
    region.sleep(100 * HOUR)

    assert jobs_gone(region) == []


def test_a_periodic_parent_goes_only_once_it_is_stopped() -> None:
    region = Region()
    region.register(a_job(type="batch", periodic=PeriodicConfig(specs=("@daily",)), submit_time_ns=START_NS))
    region.sleep(100 * HOUR)
    assert jobs_gone(region) == []
    region.stop("web")
    region.sleep(100 * HOUR)

    assert jobs_gone(region) == [("default", "web")]


def test_a_job_that_was_registered_again_meanwhile_is_not_lost() -> None:
    region = dead()
    region.sleep(4 * HOUR)
    found, seen_index = effects(region, "job"), region.store.index
    region.register(a_job(submit_time_ns=region.now_ns))
    region.evaluation(0xE3, region.store.jobs.get("default", "web"))  # type: ignore[arg-type]

    for effect in found:
        region.do(command_of(effect, seen_index))

    assert region.store.jobs.row("default", "web") is not None


def nodes_gone(region: Region, settings: GcSettings = SETTINGS) -> list[str]:
    return [one for effect in effects(region, "node", settings) if isinstance(effect, ReapNodes) for one in effect.ids]


def test_a_node_goes_after_it_was_down_for_a_day() -> None:
    region = Region()
    region.node(1)
    region.node(2)
    region.node_status(1, NodeStatus.DOWN)
    region.node_status(2, NodeStatus.DISCONNECTED)
    region.sleep(24 * HOUR - 1)
    assert nodes_gone(region) == []
    region.sleep(1)

    assert nodes_gone(region) == [an_id(1)]


def test_a_node_with_an_allocation_that_is_not_terminal_stays() -> None:
    region = world()
    region.node_status(1, NodeStatus.DOWN)
    region.sleep(48 * HOUR)
    assert nodes_gone(region) == []
    region.client([1], ClientStatus.LOST)

    assert nodes_gone(region) == [an_id(1)]


def deployments_gone(region: Region, settings: GcSettings = SETTINGS) -> list[str]:
    rows = [effect for effect in effects(region, "deployment", settings) if isinstance(effect, ReapRows)]
    return [one for effect in rows for one in effect.deployments]


def test_an_ended_deployment_goes_after_an_hour_once_its_allocations_are_terminal() -> None:
    region = Region()
    slot = region.node(1)
    job = region.register(a_job())
    state = {"group": DeploymentState(desired_total=1)}
    deployment = region.deployment(job, state, status=DeploymentStatus.SUCCESSFUL)
    active = region.deployment(job, state, number=0xD2)
    region.place([1], slot, deployment=deployment)
    region.sleep(2 * HOUR)
    assert deployments_gone(region) == []

    region.client([1], ClientStatus.COMPLETE)

    assert deployments_gone(region) == [deployment]
    assert active not in deployments_gone(region, FORCED)


def test_an_ended_deployment_stays_for_an_hour() -> None:
    region = Region()
    job = region.register(a_job())
    region.deployment(job, {}, status=DeploymentStatus.FAILED)
    region.sleep(HOUR - 1)
    assert deployments_gone(region) == []
    region.sleep(1)

    assert len(deployments_gone(region)) == 1


def test_tokens_go_when_they_have_expired() -> None:
    assert is_token_collectible(START_NS, START_NS + 3600 * NS, HOUR)
    assert not is_token_collectible(START_NS, START_NS + 3599 * NS, HOUR)
    assert not is_token_collectible(0, START_NS, HOUR)
    assert is_one_time_token_collectible(START_NS, START_NS)
    assert not is_one_time_token_collectible(START_NS + 1, START_NS)


def test_a_forced_pass_takes_everything_that_may_go_however_young_jobs_first() -> None:
    region = dead()
    region.node_status(1, NodeStatus.DOWN)
    region.deployment(region.store.jobs.get("default", "web"), {}, status=DeploymentStatus.FAILED)  # type: ignore[arg-type]
    assert KINDS == ("job", "evaluation", "deployment", "node", "rollout")

    a_pass(region, FORCED)

    assert region.store.jobs.row("default", "web") is None
    assert list(region.store.evaluations.rows.scan()) == []
    assert list(region.store.deployments.rows.scan()) == []
    assert region.store.nodes.get(an_id(1)) is None
    assert problems(region.store) == []


def test_deletes_are_split_so_that_no_entry_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_core, "IDS_MAX", 3)
    monkeypatch.setattr(gc_core, "JOBS_MAX", 2)
    region = Region()
    for number in range(1, 8):
        job = region.register(a_job(f"job-{number}", submit_time_ns=START_NS))
        region.evaluation(number, job, status=COMPLETE)
        region.stop(job.id)
        region.node(number)
        region.node_status(number, NodeStatus.DOWN)
    region.sleep(100 * HOUR)

    rows = [effect for effect in effects(region, "job") if isinstance(effect, ReapRows)]
    nodes = [len(effect.ids) for effect in effects(region, "node") if isinstance(effect, ReapNodes)]

    assert [len(effect.jobs) for effect in rows if effect.jobs] == [2, 2, 2, 1]
    assert max(len(effect.evaluations) for effect in rows) <= 3
    assert sum(len(effect.evaluations) for effect in rows) == 7
    assert nodes == [3, 3, 1]


def test_the_limits_are_those_of_the_log() -> None:
    assert gc_core.IDS_MAX == 7281
    assert gc_core.JOBS_MAX == 2048


def test_ten_thousand_allocations_of_one_evaluation_are_split() -> None:
    region = world(allocs=10_000)
    region.client(range(1, 10_001), ClientStatus.COMPLETE)
    region.stop("web")
    region.sleep(HOUR)

    sizes = [len(effect.allocs) // 16 for effect in effects(region, "evaluation") if isinstance(effect, ReapRows)]

    assert sizes == [7281, 2719]


def test_ended_allocations_of_an_evaluation_that_is_gone_go_as_well() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job())
    region.place([1, 2], slot, evaluation=0xABC)
    region.client([1], ClientStatus.COMPLETE)
    region.sleep(HOUR)

    assert reaped(region, "evaluation") == ([], ids([1]))


def test_an_old_evaluation_that_made_nothing_goes_except_for_a_batch_job_that_goes_on() -> None:
    region = world(allocs=0)
    region.sleep(24 * HOUR)
    assert reaped(region, "evaluation") == ([an_id(0xE)], b"")

    batch = world(a_job(type="batch", submit_time_ns=START_NS), allocs=0)
    batch.sleep(24 * HOUR)
    assert reaped(batch, "evaluation") == ([], b"")


def test_a_pass_takes_breath() -> None:
    region = world(allocs=20_000)

    assert None in list(collect(region.store.snapshot(), "evaluation", region.now_ns, SETTINGS))


def test_an_unknown_kind_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="kind"):
        list(collect(Region().store, "castle", 0, SETTINGS))


def test_what_is_kept_for_how_long_and_how_often_it_is_looked_for() -> None:
    assert GcSettings() == GcSettings(
        evaluation_s=HOUR,
        batch_evaluation_s=24 * HOUR,
        job_s=4 * HOUR,
        node_s=24 * HOUR,
        deployment_s=HOUR,
        acl_token_s=HOUR,
        every_s=300.0,
        one_time_token_every_s=600.0,
    )


@pytest.mark.parametrize("kind", ["batch", "sysbatch"])
def test_evaluations_of_a_stopped_batch_job_stay_while_something_of_it_still_runs(kind: str) -> None:
    region = world(a_job(type=kind))
    region.client([1], ClientStatus.COMPLETE)
    region.place([2], 0, evaluation=2)
    region.run([2])
    region.stop("web")
    region.sleep(25 * HOUR)
    assert reaped(region, "evaluation")[0] == []

    region.client([2], ClientStatus.COMPLETE)
    region.sleep(25 * HOUR)

    assert reaped(region, "evaluation")[0] == [an_id(0xE)]


def test_an_allocation_that_is_to_stop_stays_until_its_client_has_said_what_became_of_it() -> None:
    region = world()
    region.stop_allocs([1])  # its client may just have begun it, and its place is taken until it says otherwise
    region.stop("web")
    region.sleep(1000 * HOUR)
    assert (reaped(region, "evaluation"), jobs_gone(region)) == (([], b""), [])
    assert reaped(region, "evaluation", FORCED) == ([], b"")

    region.client([1], ClientStatus.COMPLETE)
    region.sleep(HOUR)

    assert reaped(region, "evaluation") == ([an_id(0xE)], ids([1]))


def test_of_older_versions_of_a_batch_job_too_only_what_clients_have_confirmed_goes() -> None:
    region = world(a_job(type="batch", submit_time_ns=START_NS), allocs=2)
    region.register(a_job(type="batch", priority=60, submit_time_ns=START_NS))
    region.stop_allocs([1, 2])
    region.client([1], ClientStatus.COMPLETE)
    region.sleep(48 * HOUR)

    assert reaped(region, "evaluation") == ([], ids([1]))


def test_what_a_forgotten_node_never_confirmed_goes_all_the_same() -> None:
    region = dead()
    region.register(a_job("more"))
    region.place([5], [0], job="more")
    region.stop_allocs([5], job="more")
    slots = np.array([region.store.allocations.slot_of(an_id(5))], dtype=np.int64)
    row = region.store.jobs.row("default", "more")
    later_ns = region.now_ns + 1
    assert gc_core.collectible(region.store, slots, row, later_ns, later_ns).tolist() == []
    region.do(NodeDeregister(ids=(an_id(1),)))

    assert gc_core.collectible(region.store, slots, row, later_ns, later_ns).tolist() == slots.tolist()
