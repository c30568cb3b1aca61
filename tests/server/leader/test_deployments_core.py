"""How deployments go on, get promoted, and end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedsched.model.alloc import Allocation, ClientStatus, RescheduleEvent, RescheduleTracker
from fedsched.model.deployment import DeploymentState, DeploymentStatus
from fedsched.model.errors import BadRequest, NotFound
from fedsched.model.evaluation import EvaluationStatus, Trigger
from fedsched.model.job import Job
from fedsched.model.policies import ReschedulePolicy
from fedsched.server.leader import deployments_core
from fedsched.server.leader.deployment_rules import (
    Continue,
    DeploymentEffect,
    FailDeployment,
    PromoteDeployment,
    command_of,
    latest_evaluation_index,
    plan_failure,
    plan_health,
    plan_pause,
    plan_promotion,
)
from fedsched.server.leader.deployments_core import DeploymentsCore
from fedsched.state.tables.alloc_columns import Flag
from fedsched.state.tables.deployment_updates import DeploymentStatusUpdate, DeploymentStatusWrite
from fedsched.state.tables.jobs import JobStable
from tests.builders import a_group, a_job, an_id
from tests.server.leader.worlds import NS, Region, own_fields
from tests.state.worlds import ids

DEADLINE_S = 600.0
LIMITED = ReschedulePolicy(attempts=1, interval_s=3600.0, delay_s=5.0, delay_function="constant", unlimited=False)


def a_state(total: int = 2, **fields: Any) -> DeploymentState:
    fields.setdefault("progress_deadline_s", DEADLINE_S)
    return DeploymentState(desired_total=total, **fields)


class Watcher:
    """A leader's core over a region with one deployment of one job."""

    def __init__(
        self, groups: dict[str, DeploymentState] | None = None, *, job: Job | None = None, region: Region | None = None
    ) -> None:
        self.region = region or Region()
        self.slot = self.region.node(1)
        self.job = self.region.register(job or a_job())
        self.id = self.region.deployment(self.job, groups or {"group": a_state()})
        self.core = DeploymentsCore()
        self.core.note(self.region.store, self.region.everything())

    def place(self, numbers: Iterable[int], *, group: str = "group", canary: bool = False, **fields: Any) -> None:
        flags = int(Flag.CANARY) if canary else 0
        self.region.place(numbers, self.slot, group=group, deployment=self.id, flags=flags, **fields)

    def review(self) -> list[DeploymentEffect]:
        self.core.note(self.region.store, self.region.changes())
        return self.core.review(self.region.store, self.region.now_ns, self.region.new_id)

    def perform(self, effects: Iterable[DeploymentEffect]) -> list[DeploymentEffect]:
        done = list(effects)
        for effect in done:
            self.region.do(command_of(effect))
        return done

    def after(self, seconds: float) -> list[DeploymentEffect]:
        """What is written until so much later, waking when the core wants to."""
        until = self.region.now_ns + round(seconds * NS)
        found = self.perform(self.review())
        while (wake_at := self.core.wake_at_ns()) is not None and wake_at <= until:
            self.region.now_ns = max(self.region.now_ns, wake_at)
            found += self.perform(self.review())
        self.region.now_ns = until
        return found + self.perform(self.review())

    @property
    def row(self) -> Any:
        found = self.region.store.deployments.rows.get(self.id)
        assert found is not None
        return found


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


def canaries(**fields: Any) -> Watcher:
    fields = {"desired_canaries": 2, "auto_promote": True, **fields}
    watcher = Watcher({"group": a_state(4, **fields)})
    watcher.place([1, 2], canary=True)
    return watcher


def test_canaries_promote_themselves_when_all_of_them_are_healthy() -> None:
    watcher = canaries()
    watcher.region.run([1])
    assert watcher.review() == []
    watcher.region.run([2])

    (effect,) = watcher.perform(watcher.review())

    assert isinstance(effect, PromoteDeployment)
    assert effect.groups == ()
    assert watcher.row.progress()["group"].promoted
    assert not watcher.region.alloc(1).is_canary
    made = list(watcher.region.store.evaluations.of_job("default", "web"))
    assert [row.triggered_by for row in made] == [Trigger.DEPLOYMENT_WATCHER.value]


def test_canaries_wait_for_people_unless_their_group_promotes_itself() -> None:
    watcher = canaries(auto_promote=False)
    watcher.region.run([1, 2])

    assert not any(isinstance(effect, PromoteDeployment) for effect in watcher.after(3))


def test_one_group_with_canaries_that_does_not_promote_itself_holds_all() -> None:
    job = a_job(groups=[a_group("a"), a_group("b"), a_group("c")])
    groups = {
        "a": a_state(desired_canaries=1, auto_promote=True),
        "b": a_state(desired_canaries=1, auto_promote=False),
        "c": a_state(),
    }
    watcher = Watcher(groups, job=job)
    watcher.place([1], group="a", canary=True)
    watcher.place([2], group="b", canary=True)
    watcher.region.run([1, 2])

    assert not any(isinstance(effect, PromoteDeployment) for effect in watcher.after(3))


def test_fewer_canaries_than_wanted_do_not_promote_themselves() -> None:
    watcher = canaries(desired_canaries=3)
    watcher.region.run([1, 2])

    assert not any(isinstance(effect, PromoteDeployment) for effect in watcher.after(3))


def test_a_canary_that_died_does_not_count_for_promotion() -> None:
    watcher = canaries()
    watcher.region.run([1, 2])
    watcher.region.client([2], ClientStatus.FAILED)

    assert not any(isinstance(effect, PromoteDeployment) for effect in watcher.review())


def test_a_paused_deployment_is_not_promoted_behind_the_back_of_who_paused_it() -> None:
    watcher = canaries()
    pause(watcher)
    watcher.region.run([1, 2])

    assert not any(isinstance(effect, PromoteDeployment) for effect in watcher.after(3))


def test_a_deployment_that_shows_no_progress_by_its_deadline_fails() -> None:
    watcher = Watcher()
    watcher.place([1, 2])

    assert watcher.after(DEADLINE_S - 1) == []
    (effect,) = watcher.after(1)

    assert isinstance(effect, FailDeployment)
    assert "deadline" in effect.description
    assert watcher.row.status == "failed"


def test_each_healthy_allocation_moves_the_deadline() -> None:
    watcher = Watcher()
    watcher.place([1, 2])
    watcher.after(500)
    watcher.region.run([1])

    assert [type(effect) for effect in watcher.after(DEADLINE_S - 1)] == [Continue]
    assert [type(effect) for effect in watcher.after(2)] == [FailDeployment]


def test_a_deployment_that_can_place_nothing_stays_running() -> None:
    watcher = Watcher()

    assert watcher.after(100 * DEADLINE_S) == []
    assert watcher.row.status == "running"


def test_a_group_that_is_done_has_no_deadline() -> None:
    watcher = Watcher({"group": a_state(2)})
    watcher.place([1, 2])
    watcher.region.run([1, 2])

    assert not any(isinstance(effect, FailDeployment) for effect in watcher.after(10 * DEADLINE_S))


def test_enough_healthy_canaries_wait_for_promotion_past_the_deadline() -> None:
    watcher = canaries(auto_promote=False)
    watcher.region.run([1, 2])

    assert not any(isinstance(effect, FailDeployment) for effect in watcher.after(10 * DEADLINE_S))


def test_too_few_healthy_canaries_fail_at_the_deadline() -> None:
    watcher = canaries(auto_promote=False)
    watcher.region.run([1])

    assert any(isinstance(effect, FailDeployment) for effect in watcher.after(DEADLINE_S + 1))


def test_the_earliest_deadline_of_a_group_that_is_not_done_counts() -> None:
    job = a_job(groups=[a_group("a"), a_group("b")])
    watcher = Watcher({"a": a_state(1, progress_deadline_s=60.0), "b": a_state(1, progress_deadline_s=30.0)}, job=job)
    watcher.place([1], group="a")
    watcher.place([2], group="b")
    watcher.region.run([2])

    assert not any(isinstance(effect, FailDeployment) for effect in watcher.after(59))
    assert any(isinstance(effect, FailDeployment) for effect in watcher.after(2))


def pause(watcher: Watcher, on: bool = True) -> None:
    effect = plan_pause(watcher.region.store, watcher.id, on, watcher.region.now_ns, watcher.region.new_id)
    watcher.perform([effect])


def test_a_paused_deployment_ignores_its_deadline_and_gets_a_new_one_when_resumed() -> None:
    watcher = Watcher()
    watcher.place([1, 2])
    watcher.after(500)
    pause(watcher)
    assert watcher.row.status == "paused"
    assert watcher.after(10 * DEADLINE_S) == []

    pause(watcher, on=False)

    made = [row.triggered_by for row in watcher.region.store.evaluations.of_job("default", "web")]
    assert made == [Trigger.DEPLOYMENT_WATCHER.value]
    assert watcher.after(DEADLINE_S - 1) == []
    assert [type(effect) for effect in watcher.after(2)] == [FailDeployment]


def reverting(*, stable: bool = True, same: bool = False, auto_revert: bool = True) -> Watcher:
    """Version 0 has proven itself (or not), version 1 is being deployed."""
    region = Region()
    region.node(1)
    region.register(a_job(meta={"color": "blue"}))
    if stable:
        region.do(JobStable(namespace="default", id="web", version=0))
    if same:
        region.register(a_job(meta={"color": "green"}))
    color = "blue" if same else "red"
    return Watcher({"group": a_state(auto_revert=auto_revert)}, job=a_job(meta={"color": color}), region=region)


def test_a_failed_deployment_goes_back_to_the_newest_stable_version() -> None:
    watcher = reverting()
    watcher.place([1])

    (effect,) = watcher.after(DEADLINE_S + 1)

    assert isinstance(effect, FailDeployment)
    assert "version 0" in effect.description
    job = watcher.region.store.jobs.get("default", "web")
    assert job is not None
    assert (job.version, job.meta, job.stable) == (2, {"color": "blue"}, False)
    assert watcher.row.status_description == effect.description


def test_it_does_not_go_back_to_a_version_with_the_same_specification() -> None:
    watcher = reverting(same=True)
    watcher.place([1])

    (effect,) = watcher.after(DEADLINE_S + 1)

    assert isinstance(effect, FailDeployment)
    assert effect.revert_to is None
    assert "no different" in effect.description


def test_a_revert_that_fails_in_turn_is_not_reverted_again() -> None:
    watcher = reverting()
    watcher.place([1])
    watcher.after(DEADLINE_S + 1)
    region = watcher.region
    job = region.store.jobs.get("default", "web")
    assert job is not None
    watcher.id = region.deployment(job, {"group": a_state(auto_revert=True)}, number=0xD2)
    watcher.place([2])

    effects = watcher.after(2 * DEADLINE_S)

    assert [effect.revert_to for effect in effects if isinstance(effect, FailDeployment)] == [None]
    row = region.store.jobs.row("default", "web")
    assert row is not None
    assert row.version == 2


def test_without_a_stable_version_only_the_description_says_so() -> None:
    watcher = reverting(stable=False)
    watcher.place([1])

    (effect,) = watcher.after(DEADLINE_S + 1)

    assert isinstance(effect, FailDeployment)
    assert effect.revert_to is None
    assert "no stable version" in effect.description


def test_a_group_without_auto_revert_fails_without_going_back() -> None:
    watcher = reverting(auto_revert=False)
    watcher.place([1])

    (effect,) = watcher.after(DEADLINE_S + 1)

    assert isinstance(effect, FailDeployment)
    assert effect.revert_to is None


def test_failing_always_makes_one_evaluation() -> None:
    for watcher in (reverting(), reverting(stable=False), reverting(auto_revert=False)):
        watcher.place([1])
        watcher.after(DEADLINE_S + 1)

        made = list(watcher.region.store.evaluations.of_job("default", "web"))

        assert [(row.triggered_by, row.deployment_id) for row in made] == [("deployment-watcher", watcher.id)]


def test_a_job_changed_in_between_is_not_overwritten_by_a_revert() -> None:
    watcher = reverting()
    watcher.place([1])
    watcher.region.sleep(DEADLINE_S)
    (effect,) = watcher.review()
    watcher.region.register(a_job(meta={"color": "new"}))

    watcher.region.do(command_of(effect))

    job = watcher.region.store.jobs.get("default", "web")
    assert job is not None
    assert job.meta == {"color": "new"}


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


def asked(watcher: Watcher) -> tuple[Any, str, int, Any]:
    return watcher.region.store, watcher.id, watcher.region.now_ns, watcher.region.new_id


def test_promotion_needs_the_wanted_canaries_of_each_group_healthy_and_live() -> None:
    watcher = canaries(auto_promote=False)
    store, deployment, now_ns, new_id = asked(watcher)
    watcher.region.run([1])
    with pytest.raises(BadRequest, match="1 of 2"):
        plan_promotion(store, deployment, (), now_ns, new_id)

    watcher.region.run([2])
    watcher.perform([plan_promotion(store, deployment, ("group",), now_ns, new_id)])

    assert watcher.row.progress()["group"].promoted
    with pytest.raises(BadRequest, match="no canaries"):
        plan_promotion(store, deployment, (), now_ns, new_id)
    with pytest.raises(BadRequest, match="no group"):
        plan_promotion(store, deployment, ("other",), now_ns, new_id)


def test_promotion_resets_the_deadline() -> None:
    watcher = canaries(auto_promote=False)
    watcher.region.run([1, 2])
    watcher.after(500)
    store, deployment, now_ns, new_id = asked(watcher)

    watcher.perform([plan_promotion(store, deployment, (), now_ns, new_id)])

    assert not any(isinstance(effect, FailDeployment) for effect in watcher.after(DEADLINE_S - 1))
    assert any(isinstance(effect, FailDeployment) for effect in watcher.after(2))


def test_people_can_fail_a_deployment_with_auto_revert_as_its_groups_want_it() -> None:
    watcher = reverting()
    store, deployment, now_ns, new_id = asked(watcher)

    watcher.perform([plan_failure(store, deployment, now_ns, new_id)])

    assert watcher.row.status == "failed"
    assert store.jobs.row("default", "web").version == 2


def test_an_allocation_that_people_call_unhealthy_ends_the_deployment() -> None:
    watcher = reverting()
    watcher.place([1, 2])
    store, deployment, now_ns, new_id = asked(watcher)

    watcher.perform([plan_health(store, deployment, [an_id(1)], [an_id(2)], now_ns, new_id)])

    assert watcher.row.status == "failed"
    assert store.jobs.row("default", "web").version == 2
    assert watcher.region.alloc(1).deployment_status.is_healthy
    assert watcher.region.alloc(2).deployment_status.is_unhealthy


def test_allocations_that_people_call_healthy_let_it_go_on() -> None:
    watcher = Watcher()
    watcher.place([1])
    store, deployment, now_ns, new_id = asked(watcher)

    watcher.perform([plan_health(store, deployment, [an_id(1)], [], now_ns, new_id)])

    assert watcher.row.status == "running"
    assert watcher.row.progress()["group"].healthy == 1
    assert len(list(store.evaluations.of_job("default", "web"))) == 1


def test_word_about_health_has_to_be_about_this_deployments_allocations() -> None:
    watcher = Watcher()
    watcher.place([1])
    watcher.region.place([2], watcher.slot)
    store, deployment, now_ns, new_id = asked(watcher)

    for well, ill in (([], []), ([an_id(2)], []), ([an_id(9)], []), ([an_id(1)], [an_id(1)])):
        with pytest.raises(BadRequest):
            plan_health(store, deployment, well, ill, now_ns, new_id)


def test_only_a_known_deployment_under_way_can_be_changed() -> None:
    watcher = Watcher()
    store, deployment, now_ns, new_id = asked(watcher)
    with pytest.raises(NotFound):
        plan_failure(store, an_id(77), now_ns, new_id)

    watcher.perform([plan_failure(store, deployment, now_ns, new_id)])

    with pytest.raises(BadRequest, match="has ended"):
        plan_pause(store, deployment, True, now_ns, new_id)


def test_a_deployment_of_a_purged_job_cannot_be_changed() -> None:
    watcher = Watcher()
    watcher.region.stop("web", purge=True)

    with pytest.raises(BadRequest, match="gone"):
        plan_failure(*asked(watcher))


@pytest.mark.parametrize("status", ["pending", "blocked", "initializing", "unblocking"])
def test_only_a_running_deployment_can_be_paused(status: str) -> None:
    watcher = Watcher()
    region = watcher.region
    other = region.deployment(watcher.job, {"group": a_state()}, number=0xD2, status=DeploymentStatus(status))

    with pytest.raises(BadRequest, match=status):
        plan_pause(region.store, other, True, region.now_ns, region.new_id)


@given(
    story=st.lists(
        st.tuples(st.sampled_from(["healthy", "unhealthy", "nothing", "leader"]), st.integers(1, 900)), max_size=12
    ),
    auto_promote=st.booleans(),
    canary=st.integers(0, 2),
)
@settings(max_examples=80)
def test_a_deployment_with_placements_always_ends_or_awaits_people(
    story: list[tuple[str, int]], auto_promote: bool, canary: int
) -> None:
    fields = {"desired_canaries": canary, "auto_promote": auto_promote and canary > 0}
    watcher = Watcher({"group": a_state(2, **fields)})
    watcher.place([1, 2], canary=canary > 0)
    seen: list[DeploymentEffect] = []
    fresh = [1, 2]
    for what, seconds in story:
        if not watcher.row.is_active:
            break
        if what == "leader":
            watcher.core = DeploymentsCore()
            watcher.core.note(watcher.region.store, watcher.region.everything())
        elif what != "nothing" and fresh:
            watcher.region.run([fresh.pop()], healthy=what == "healthy")
        seen += watcher.after(seconds)
    seen += watcher.after(3 * DEADLINE_S)

    progress = watcher.row.progress()["group"]
    awaits_people = canary > 0 and not progress.promoted and progress.healthy >= canary
    has_succeeded = progress.healthy >= 2
    assert watcher.row.status == "failed" or awaits_people or has_succeeded
    assert sum(isinstance(effect, FailDeployment) for effect in seen) <= 1


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


def test_a_registration_in_an_effect_keeps_its_specification() -> None:
    watcher = reverting()
    store, deployment, now_ns, new_id = asked(watcher)

    effect = plan_failure(store, deployment, now_ns, new_id)

    assert effect.revert_to is not None
    known = store.jobs.version("default", "web", 0)
    same = structs.replace(effect.revert_to, stable=True, submit_time_ns=known.submit_time_ns)
    assert same == structs.replace(known, stable=True)
