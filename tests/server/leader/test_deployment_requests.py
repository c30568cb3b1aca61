"""What people ask of deployments: to promote, fail, pause and resume them, and word about their allocations' health."""

from __future__ import annotations

import pytest
from msgspec import structs

from fedsched.model.deployment import DeploymentStatus
from fedsched.model.errors import BadRequest, NotFound
from fedsched.server.leader.deployment_rules import (
    FailDeployment,
    plan_failure,
    plan_health,
    plan_pause,
    plan_promotion,
)
from tests.builders import an_id
from tests.server.leader.deployment_kit import DEADLINE_S, Watcher, a_state, asked, canaries, reverting


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


def test_a_registration_in_an_effect_keeps_its_specification() -> None:
    watcher = reverting()
    store, deployment, now_ns, new_id = asked(watcher)

    effect = plan_failure(store, deployment, now_ns, new_id)

    assert effect.revert_to is not None
    known = store.jobs.version("default", "web", 0)
    same = structs.replace(effect.revert_to, stable=True, submit_time_ns=known.submit_time_ns)
    assert same == structs.replace(known, stable=True)


def test_people_read_that_a_deployment_was_paused_and_that_it_goes_on() -> None:
    watcher = Watcher()
    said = []
    for is_paused in (True, False):
        effect = plan_pause(watcher.region.store, watcher.id, is_paused, watcher.region.now_ns, watcher.region.new_id)
        watcher.perform([effect])
        said.append((watcher.row.status, watcher.row.deployment().status_description))

    assert said == [("paused", "paused by an operator"), ("running", "Deployment is running")]
