"""How deployments go on: what healthy and unhealthy allocations make a leader write, and how it is gathered."""

from __future__ import annotations

import pytest

from fedsched.model.alloc import Allocation, ClientStatus, RescheduleEvent, RescheduleTracker
from fedsched.model.evaluation import EvaluationStatus, Trigger
from fedsched.model.policies import ReschedulePolicy
from fedsched.server.leader import deployments_core
from fedsched.server.leader.deployment_rules import (
    Continue,
    FailDeployment,
    latest_evaluation_index,
)
from fedsched.server.leader.deployments_core import DeploymentsCore
from fedsched.state.tables.deployment_updates import DeploymentStatusUpdate, DeploymentStatusWrite
from tests.builders import a_group, a_job, an_id
from tests.server.leader.deployment_kit import DEADLINE_S, Watcher, a_state, canaries
from tests.server.leader.worlds import NS, Region, own_fields
from tests.state.worlds import ids

LIMITED = ReschedulePolicy(attempts=1, interval_s=3600.0, delay_s=5.0, delay_function="constant", unlimited=False)


def test_a_healthy_allocation_makes_an_evaluation_of_its_job() -> None:
    watcher = Watcher()
    watcher.place([1])
    watcher.region.run([1])

    (effect,) = watcher.after(2)

    assert isinstance(effect, Continue)
    assert effect.ids == b""
    (evaluation,) = effect.evaluations
    assert evaluation.triggered_by == Trigger.DEPLOYMENT_WATCHER.value
    assert (evaluation.job_id, evaluation.deployment_id, evaluation.type) == ("web", watcher.id, "service")


def test_evaluations_carry_the_priority_of_the_deployment() -> None:
    region = Region()
    watcher = Watcher(region=region, job=a_job(priority=50))
    watcher.id = region.deployment(watcher.job, {"group": a_state()}, number=0xD2, eval_priority=80)
    watcher.place([1])
    region.run([1])

    effects = watcher.after(2)

    assert [one.priority for effect in effects if isinstance(effect, Continue) for one in effect.evaluations] == [80]


def test_what_happens_to_one_deployment_is_gathered_for_a_second_and_a_quarter() -> None:
    watcher = Watcher()
    watcher.place([1, 2])
    watcher.region.run([1])
    assert watcher.review() == []
    watcher.region.sleep(0.9)
    watcher.region.run([2])
    assert watcher.review() == []
    watcher.region.sleep(0.1)
    assert watcher.review() == []
    watcher.region.sleep(0.24)
    assert watcher.review() == []

    watcher.region.sleep(0.01)
    assert len(watcher.perform(watcher.review())) == 1
    assert watcher.after(5) == []


def test_deployments_whose_second_is_over_are_written_together() -> None:
    watcher = Watcher()
    region = watcher.region
    other = region.register(a_job("db"))
    second = region.deployment(other, {"group": a_state()}, number=0xD2)
    watcher.place([1])
    region.run([1])
    watcher.review()
    region.sleep(0.2)
    region.place([2], watcher.slot, job="db", deployment=second)
    region.run([2])

    (effect,) = watcher.after(3)

    assert isinstance(effect, Continue)
    assert [one.job_id for one in effect.evaluations] == ["web", "db"]


def test_more_deployments_than_one_entry_should_hold_are_written_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployments_core, "TOGETHER_MAX", 1)
    watcher = Watcher()
    region = watcher.region
    other = region.register(a_job("db"))
    second = region.deployment(other, {"group": a_state()}, number=0xD2)
    watcher.place([1])
    region.place([2], watcher.slot, job="db", deployment=second)
    region.run([1, 2])

    assert [len(effect.evaluations) for effect in watcher.after(3) if isinstance(effect, Continue)] == [1, 1]


def test_an_allocation_healthy_before_the_jobs_latest_evaluation_makes_none() -> None:
    watcher = Watcher()
    watcher.place([1])
    watcher.region.run([1])
    watcher.region.evaluation(1, watcher.job, snapshot_index=watcher.region.store.index)

    assert watcher.after(3) == []


def test_a_cancelled_evaluation_has_seen_nothing() -> None:
    watcher = Watcher()
    watcher.place([1])
    watcher.region.run([1])
    watcher.region.evaluation(1, watcher.job, status=EvaluationStatus.CANCELLED)

    assert len(watcher.after(3)) == 1


def test_an_evaluation_without_a_snapshot_counts_from_its_creation() -> None:
    region = Region()
    job = region.register(a_job())
    region.evaluation(1, job)
    created = region.store.index
    region.evaluation(2, job, snapshot_index=1)

    assert latest_evaluation_index(region.store, "default", "web") == created
    assert latest_evaluation_index(region.store, "default", "nobody") == 0


def test_a_new_leader_acts_on_health_that_no_evaluation_has_seen() -> None:
    watcher = Watcher()
    watcher.place([1])
    watcher.region.run([1])

    watcher.core = DeploymentsCore()
    watcher.core.note(watcher.region.store, watcher.region.everything())

    assert len(watcher.after(3)) == 1


def test_an_unhealthy_allocation_that_may_be_replaced_is_allowed_to_be() -> None:
    watcher = Watcher()
    watcher.place([1, 2])
    watcher.region.client([1], ClientStatus.FAILED, healthy=False)

    (effect,) = watcher.after(2)

    assert isinstance(effect, Continue)
    assert effect.ids == ids([1])
    assert len(effect.evaluations) == 1
    assert watcher.region.alloc(1).desired_transition.reschedule is True
    assert watcher.after(5) == []


def test_without_a_progress_deadline_the_first_unhealthy_allocation_ends_it() -> None:
    watcher = Watcher({"group": a_state(progress_deadline_s=0.0)})
    watcher.place([1, 2])
    watcher.region.client([1], ClientStatus.FAILED, healthy=False)

    (effect,) = watcher.perform(watcher.review())

    assert isinstance(effect, FailDeployment)
    assert "unhealthy" in effect.description
    assert watcher.row.status == "failed"
    assert watcher.core.watched() == [watcher.id]
    assert watcher.review() == []
    assert watcher.core.watched() == []


@pytest.mark.parametrize("policy", [None, ReschedulePolicy(attempts=0, unlimited=False)])
def test_an_unhealthy_allocation_of_a_group_without_rescheduling_ends_it(policy: ReschedulePolicy | None) -> None:
    watcher = Watcher(job=a_job(groups=[a_group(reschedule_policy=policy)]))
    watcher.place([1])
    watcher.region.client([1], ClientStatus.FAILED, healthy=False)

    assert [type(effect) for effect in watcher.review()] == [FailDeployment]


@pytest.mark.parametrize(("past", "fails"), [(0, False), (1, True)])
def test_an_unhealthy_allocation_ends_it_once_its_attempts_are_used_up(past: int, fails: bool) -> None:
    watcher = Watcher(job=a_job(groups=[a_group(reschedule_policy=LIMITED)]))
    events = (RescheduleEvent(reschedule_time_ns=watcher.region.now_ns - NS, delay_s=5.0),) * past
    record = Allocation(id=an_id(1), reschedule_tracker=RescheduleTracker(events=events))
    watcher.place([1], **own_fields([0], [record], "reschedule_tracker"))
    watcher.region.client([1], ClientStatus.FAILED, healthy=False)

    effects = watcher.after(3)

    assert [type(effect) for effect in effects] == [FailDeployment if fails else Continue]


def test_an_unhealthy_allocation_that_is_not_wanted_any_more_means_nothing() -> None:
    watcher = Watcher({"group": a_state(progress_deadline_s=0.0)})
    watcher.place([1])
    watcher.region.stop_allocs([1])
    watcher.region.client([1], ClientStatus.FAILED, healthy=False)

    assert watcher.after(3) == []


@pytest.mark.parametrize("change", ["newer", "stopped", "purged"])
def test_a_deployment_whose_job_moved_on_is_left_to_the_jobs_evaluation(change: str) -> None:
    watcher = Watcher()
    watcher.place([1])
    if change == "newer":
        watcher.region.register(a_job(meta={"a": "b"}))
    else:
        watcher.region.stop("web", purge=change == "purged")

    assert watcher.after(3 * DEADLINE_S) == []


def test_an_ended_deployment_is_forgotten() -> None:
    watcher = Watcher()
    watcher.review()
    assert watcher.core.watched() == [watcher.id]
    done = DeploymentStatusWrite(id=watcher.id, status="successful")
    watcher.region.do(DeploymentStatusUpdate(updates=(done,)))

    watcher.review()

    assert watcher.core.watched() == []
    assert watcher.core.wake_at_ns() is None


def test_what_was_asked_for_is_not_asked_for_again_before_it_shows_in_the_state() -> None:
    watcher = Watcher({"group": a_state(progress_deadline_s=0.0)})
    watcher.place([1, 2])
    watcher.region.client([1], ClientStatus.FAILED, healthy=False)
    assert len(watcher.review()) == 1
    watcher.region.client([2], ClientStatus.FAILED)

    assert watcher.review() == []
    promoted = canaries()
    promoted.region.run([1, 2])
    assert len(promoted.review()) == 1
    promoted.region.client([1], ClientStatus.RUNNING)
    assert promoted.review() == []


def test_a_large_deployment_is_looked_at_four_times_a_second_at_most() -> None:
    watcher = Watcher({"group": a_state(1500)})
    watcher.place(range(1, 1501))
    watcher.review()
    watcher.region.run([1])
    assert watcher.core.wake_at_ns() != watcher.region.now_ns
    watcher.review()
    assert watcher.core.wake_at_ns() == watcher.region.now_ns + NS // 4

    assert len(watcher.after(2)) == 1


def test_changes_of_jobs_without_a_deployment_are_passed_over() -> None:
    watcher = Watcher()
    watcher.review()
    watcher.region.register(a_job("other"))
    watcher.region.place([1], watcher.slot, job="other")

    watcher.core.note(watcher.region.store, watcher.region.changes())

    assert watcher.core.wake_at_ns() is None
