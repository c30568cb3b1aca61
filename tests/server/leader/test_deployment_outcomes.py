"""How deployments end: canaries promote themselves, deadlines pass, and what fails goes back to a stable version."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.model.alloc import ClientStatus
from fedsched.model.evaluation import Trigger
from fedsched.server.leader.deployment_rules import (
    Continue,
    DeploymentEffect,
    FailDeployment,
    PromoteDeployment,
    command_of,
)
from fedsched.server.leader.deployments_core import DeploymentsCore
from tests.builders import a_group, a_job
from tests.server.leader.deployment_kit import DEADLINE_S, Watcher, a_state, canaries, pause, reverting


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
