"""Why a job, an allocation or a node is as it is, over the real store and fleet."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.alloc import AllocDeploymentStatus, ClientStatus
from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.constraint import Constraint
from fedsched.model.deployment import Deployment, DeploymentState, DeploymentStatus
from fedsched.model.evaluation import EvaluationStatus, Trigger
from fedsched.model.job import Job, JobType, ParameterizedJobConfig, PeriodicConfig
from fedsched.model.job_defaults import canonicalise
from fedsched.model.node import Eligibility
from fedsched.model.policies import ReschedulePolicy, UpdateStrategy
from fedsched.model.task_state import TaskEvent, TaskState, TaskStatus
from fedsched.model.why import AllocWhy, JobWhy, NodeGroupWhy
from fedsched.scheduler import explain
from fedsched.scheduler.explain import alloc_why, failure_words, job_why, node_why_not
from fedsched.state.tables.deployments import DeploymentsUpsert, deployment_write
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.jobs import JobDeregister, job_register
from tests.builders import a_group, a_job, a_task
from tests.scheduler.test_explain_change import a_host, a_wish
from tests.scheduler.toy_region import NS, ToyRegion


def put(region: ToyRegion, job: Job) -> None:
    """Store a job that nobody evaluates."""
    region.do(job_register(canonicalise(job), evaluation=None))


def why(region: ToyRegion, job_id: str = "web", group: str = "") -> JobWhy:
    job = region.store.jobs.get("default", job_id)
    assert job is not None
    before = region.fleet.occupied_memory.copy()
    found = job_why(region.store, region.fleet, job, region.now_ns, group)
    assert (region.fleet.occupied_memory == before).all(), "asking must change nothing"
    return found


def on_node(region: ToyRegion, number: int, job_id: str = "web") -> NodeGroupWhy:
    job = region.store.jobs.get("default", job_id)
    slot = region.fleet.slot_of(f"{number:08x}-0000-4000-8000-000000000000")
    assert job is not None
    assert slot is not None
    return node_why_not(region.store, region.fleet, slot, job).groups[0]


def of_alloc(region: ToyRegion, at: int = 0, job_id: str = "web", **fields: Any) -> AllocWhy:
    alloc = region.allocs(a_job(job_id))[at]
    return alloc_why(region.store, replace(alloc, **fields), region.now_ns)


# ------------------------------------------------------------------------- jobs


def test_a_job_that_runs_as_it_should_says_so() -> None:
    region = ToyRegion([a_host(1)])
    region.report(region.go(a_wish(count=3)), ClientStatus.RUNNING)

    found = why(region)

    assert (found.verdict, found.words) == ("running", ("All 3 allocations running.",))
    assert (found.groups[0].wanted, found.groups[0].running) == (3, 3)


def test_a_job_whose_clients_have_yet_to_start_it_waits_for_them() -> None:
    region = ToyRegion([a_host(1)])
    region.report(region.go(a_wish(count=3))[:1], ClientStatus.RUNNING)

    assert why(region).words == (
        "2 allocations placed, and yet to start on the client.",
        "1 allocation running.",
    )


def test_what_finds_no_place_comes_first_with_the_smallest_change() -> None:
    region = ToyRegion([a_host(1, memory_mb=812), a_host(2, memory_mb=100)])
    region.go(a_wish(memory_mb=1024))

    found = why(region)

    assert found.verdict == "blocked"
    assert found.words[:2] == ('Group "group": 1 allocation without a place.', "It fits if memory is 212 MB less.")
    assert found.words[2].endswith("is blocked: it waits for room.")
    assert found.groups[0].words == ('2 nodes are without enough "memory".',)


def test_of_several_that_find_no_place_the_next_one_is_explained() -> None:
    region = ToyRegion([a_host(1, memory_mb=1000)])
    region.go(a_wish(memory_mb=300, count=5))

    assert why(region).words[:2] == (
        'Group "group": 2 allocations without a place.',
        "One more fits if memory is 200 MB less.",
    )


def test_nodes_are_counted_by_what_rules_them_out() -> None:
    region = ToyRegion([a_host(1), a_host(2), a_host(3, memory_mb=20, rack="r9")])
    region.go(a_wish(constraints=(Constraint(l_target="${attr.rack}", r_target="r9", operand="="),)))

    assert why(region).groups[0].words == (
        '2 nodes are ruled out by "${attr.rack} = r9".',
        '1 node is without enough "memory".',
    )


def test_only_the_group_that_is_asked_for_is_told_of() -> None:
    region = ToyRegion([a_host(1)])
    groups = [a_group("front"), a_group("back", tasks=[a_task(memory_mb=10_000)])]
    region.go(a_job(groups=groups))

    assert [one.group for one in why(region).groups] == ["front", "back"]
    assert [one.group for one in why(region, group="front").groups] == ["front"]


def test_the_nodes_for_the_next_allocation_come_with_their_scores() -> None:
    region = ToyRegion([a_host(1), a_host(2)])
    region.go(a_wish(job_id="filler"))
    region.go(a_wish())

    candidates = why(region).groups[0].candidates

    assert {one.node_name for one in candidates} == {"n1", "n2"}
    assert candidates[0].score > candidates[1].score
    assert "binpack" in candidates[0].scores


def test_a_stopped_job_says_so_and_nothing_else() -> None:
    region = ToyRegion([a_host(1)])
    region.go(a_wish(count=2))
    region.do(JobDeregister(namespace="default", id="web", submit_time_ns=region.now_ns))

    found = why(region)

    assert (found.verdict, found.words) == ("stopped", ("The job is stopped.", "2 allocations still to end."))


def test_a_job_that_only_launches_others_says_so() -> None:
    region = ToyRegion()
    periodic = a_wish(job_id="nightly", type="batch")
    put(region, replace(periodic, periodic=PeriodicConfig(enabled=True, spec="0 0 * * *")))
    called = a_wish(job_id="called", type="batch")
    put(region, replace(called, parameterized_job=ParameterizedJobConfig()))
    put(region, replace(a_wish(job_id="odd"), type="own"))

    assert "periodic" in why(region, "nightly").words[0]
    assert "dispatched" in why(region, "called").words[0]
    assert why(region, "odd").verdict == "waiting"


def test_a_job_that_was_never_evaluated_says_so() -> None:
    region = ToyRegion([a_host(1)])
    put(region, a_wish())

    assert why(region).words == (
        "The job was never evaluated: `fedsched job eval` has it looked at.",
        'Group "group": 1 allocation would be placed now.',
    )


def test_an_evaluation_that_waits_its_turn_says_behind_how_many() -> None:
    region = ToyRegion([a_host(1)])
    region.register(a_wish(job_id="first"))
    region.register(a_wish(job_id="second"))
    evaluation = region.register(a_wish())

    assert why(region).words[0] == f"Evaluation {evaluation.id[:8]} is queued behind 2 others."
    assert why(region, "first").words[0].endswith("is next to be looked at.")
    assert why(region, "second").words[0].endswith("behind 1 other.")


def test_a_higher_priority_goes_first() -> None:
    region = ToyRegion([a_host(1)])
    region.register(a_wish(job_id="first"))
    region.register(replace(a_wish(), priority=90))

    assert why(region).words[0].endswith("is next to be looked at.")
    assert why(region, "first").words[0].endswith("behind 1 other.")


def test_a_second_evaluation_of_a_job_waits_for_the_first() -> None:
    region = ToyRegion([a_host(1)])
    region.register(a_wish())
    region.evaluate(a_wish())

    assert why(region).words[1].endswith("is queued behind another one of this job.")


def test_a_failed_allocation_waits_for_its_reschedule_delay() -> None:
    region = ToyRegion([a_host(1), a_host(2)])
    policy = ReschedulePolicy(unlimited=True, delay_s=180.0, delay_function="constant")
    job = a_wish(reschedule_policy=policy)
    region.report(region.go(job), ClientStatus.FAILED)
    region.run(region.evaluate(job, Trigger.ALLOC_FAILURE))

    found = why(region)

    assert found.verdict == "waiting"
    assert "waits until 1970-01-01T00:19:40Z (reschedule delay)." in found.words[0]
    alloc = of_alloc(region)
    assert alloc.words[0] == "It is failed."
    assert "Its replacement waits until 1970-01-01T00:19:40Z (reschedule delay)." in alloc.words


def test_an_evaluation_that_failed_says_why() -> None:
    region = ToyRegion([a_host(1)])
    job = a_wish()
    region.report(region.go(job), ClientStatus.RUNNING)
    region.evaluate(job, status=EvaluationStatus.FAILED, status_description="maximum attempts reached (5)")

    found = why(region)

    assert found.verdict == "failed"
    assert "failed: maximum attempts reached (5)." in found.words[0]


def test_a_blocked_evaluation_is_told_even_if_there_is_room_by_now() -> None:
    region = ToyRegion([a_host(1)])
    job = a_wish()
    put(region, job)
    region.evaluate(job, status=EvaluationStatus.BLOCKED)

    assert "though there is room now" in why(region).words[0]


def test_a_batch_job_that_is_done_says_so() -> None:
    region = ToyRegion([a_host(1)])
    region.report(region.go(a_wish(type=JobType.BATCH.value)), ClientStatus.COMPLETE)

    found = why(region)

    assert (found.verdict, found.words) == ("complete", ("All that the job had to do has been done.",))


def test_a_job_that_asks_for_nothing_says_so() -> None:
    region = ToyRegion([a_host(1)])
    region.go(a_wish(count=0))

    assert why(region).words == ("The job asks for no allocations.",)


def test_a_system_job_is_explained_by_the_nodes_that_lack_it() -> None:
    region = ToyRegion([a_host(1), a_host(2, memory_mb=200)])
    region.go(a_wish(type=JobType.SYSTEM.value))

    found = why(region)

    assert found.groups[0].unplaced == 1
    assert [one.words for one in found.groups[0].changes] == ["fits if memory is 56 MB less"]
    assert found.groups[0].changes[0].node_name == "n2"


def test_failed_allocations_that_are_not_replaced_are_no_success() -> None:
    for kind, policy in ((JobType.SERVICE, 0), (JobType.BATCH, 0)):
        region = ToyRegion([a_host(1)])
        never = ReschedulePolicy(attempts=policy, unlimited=False)
        job = a_wish(count=2, type=kind.value, reschedule_policy=never)
        first, second = region.go(job)
        region.report([first], ClientStatus.FAILED)
        region.report([second], ClientStatus.RUNNING)
        region.run(region.evaluate(job, Trigger.ALLOC_FAILURE))

        found = why(region)

        assert found.verdict == "failed"
        assert found.words == (
            'Group "group": 1 of 2 ended, and its reschedule policy lets none be replaced now.',
            "1 allocation running.",
        )


def test_a_system_job_that_fits_nowhere_by_constraint_says_so() -> None:
    region = ToyRegion()
    region.go(a_wish(type=JobType.SYSTEM.value))

    assert why(region).words[-1] == "There is no node that the job runs on."


def test_a_long_queue_is_counted_only_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "AHEAD_MAX", 2)
    region = ToyRegion([a_host(1)])
    for number in range(3):
        region.register(a_wish(job_id=f"other-{number}"))
    region.register(a_wish())

    assert why(region).words[0].endswith("is queued behind 2 others or more.")


# ------------------------------------------------------------------ deployments


def deployed(status: DeploymentStatus = DeploymentStatus.RUNNING, **state: Any) -> JobWhy:
    region = ToyRegion([a_host(1)])
    job = a_wish(count=2)
    region.report(region.go(job), ClientStatus.RUNNING)
    stored = region.store.jobs.get("default", "web")
    assert stored is not None
    deployment = Deployment(
        id=region.new_id(),
        job_id="web",
        job_version=stored.version,
        job_create_index=stored.create_index,
        task_groups={"group": DeploymentState(desired_total=2, **state)},
        status=status,
        status_description="so it goes",
    )
    region.do(DeploymentsUpsert(deployments=(deployment_write(deployment),)))
    return why(region)


def test_a_paused_deployment_says_how_it_goes_on() -> None:
    found = deployed(DeploymentStatus.PAUSED)

    assert found.verdict == "waiting"
    assert "is paused: it goes on with `fedsched deployment resume`." in found.words[0]


def test_a_failed_deployment_says_why() -> None:
    found = deployed(DeploymentStatus.FAILED)

    assert found.verdict == "failed"
    assert found.words[0].endswith("failed: so it goes.")


def test_a_deployment_held_by_other_regions_says_so() -> None:
    assert deployed(DeploymentStatus.BLOCKED).words[0].endswith("is blocked: it waits for other regions.")


def test_a_deployment_waits_for_health() -> None:
    found = deployed(healthy_allocs=1)

    assert found.words[0].endswith('waits for health: 1 of 2 of group "group" are healthy.')


def test_healthy_canaries_wait_for_promotion() -> None:
    found = deployed(healthy_allocs=1, desired_canaries=1)

    assert 'waits for promotion of group "group"' in found.words[0]


def test_a_deployment_that_is_through_is_no_news() -> None:
    assert deployed(DeploymentStatus.SUCCESSFUL).verdict == "running"
    assert deployed(healthy_allocs=2).verdict == "running"


# ------------------------------------------------------------------------ nodes


def test_a_node_says_all_that_keeps_a_group_off_it() -> None:
    region = ToyRegion([a_host(1, memory_mb=100, scheduling_eligibility=Eligibility.INELIGIBLE), a_host(2)])
    region.go(a_wish())

    found = on_node(region, 1)

    assert not found.fits
    assert found.words == (
        "n1 is not eligible.",
        "n1 has 100 MB of memory free, 256 MB are asked for.",
        "Fits if node n1 is eligible and memory is 156 MB less.",
    )


def test_a_node_that_fits_says_which_one_is_better() -> None:
    region = ToyRegion([a_host(1), a_host(2)])
    region.go(a_wish(job_id="filler"))
    (filler,) = region.live(a_wish(job_id="filler"))
    put(region, a_wish())
    other = 2 if filler.node_name == "n1" else 1

    found = on_node(region, other)

    assert found.fits
    assert found.best is not None
    assert found.best.node_name == filler.node_name
    assert found.words[0] == "The group fits here."
    assert found.words[1].startswith(f"Node {filler.node_name} scores better: ")
    assert len(on_node(region, 3 - other).words) == 1


def test_a_node_that_has_the_group_says_so() -> None:
    region = ToyRegion([a_host(1)])
    region.go(a_wish())

    assert on_node(region, 1).words == ("1 allocation of the group already there.", "One more allocation fits here.")


def test_a_system_job_that_is_on_the_node_has_nothing_to_change() -> None:
    region = ToyRegion([a_host(1)])
    region.go(a_wish(type=JobType.SYSTEM.value))

    found = on_node(region, 1)

    assert not found.fits
    assert found.words == ("1 allocation of the group already there.", "the group is on n1 already.")


# ------------------------------------------------------------------ allocations


def test_an_allocation_says_how_its_node_was_chosen() -> None:
    region = ToyRegion([a_host(1), a_host(2)])
    (alloc,) = region.go(a_wish())

    found = of_alloc(region)

    assert found.words[0] == f"It is placed on {alloc.node_name}, and its client has not started it yet."
    assert found.words[-1].startswith(f"Node {alloc.node_name} scored ")
    assert found.words[-1].endswith("the best of 2 looked at.")
    assert found.candidates[0].node_id == alloc.node_id


def test_an_allocation_that_was_replaced_says_by_which() -> None:
    region = ToyRegion([a_host(1)])
    region.go(a_wish())

    told = of_alloc(region, next_allocation="a" * 36, previous_allocation="b" * 36, preempted_by_allocation="c" * 36)

    assert "Allocation aaaaaaaa replaced it." in told.words
    assert "It replaced allocation bbbbbbbb." in told.words
    assert "It made room for allocation cccccccc of a higher priority." in told.words


def test_a_failed_task_says_what_happened_last() -> None:
    region = ToyRegion([a_host(1)])
    region.go(a_wish())
    state = TaskState(state=TaskStatus.DEAD, failed=True, events=(TaskEvent(type="Terminated", message="exit 3"),))

    told = of_alloc(region, client_status=ClientStatus.FAILED, client_description="oh", task_states={"web": state})

    assert told.words[:2] == ("It is failed: oh.", "Task web failed: exit 3.")


def test_an_allocation_on_a_cut_off_client_says_so() -> None:
    region = ToyRegion([a_host(1)])
    region.go(a_wish())

    assert of_alloc(region, client_status=ClientStatus.UNKNOWN).words[0].startswith("Its client is cut off")


def test_a_stopped_allocation_says_why() -> None:
    region = ToyRegion([a_host(1)])
    job = a_wish(count=2)
    region.go(job)
    region.go(replace(job, task_groups=tuple(replace(one, count=1) for one in job.task_groups)))
    stopped = next(at for at, one in enumerate(region.allocs(job)) if one.is_server_terminal)

    assert of_alloc(region, stopped).words[0].startswith("It is to stop: ")


def test_an_allocation_of_a_deployment_says_what_its_health_is_waited_for() -> None:
    region = ToyRegion([a_host(1)])
    job = a_wish()
    group = replace(job.task_groups[0], update=UpdateStrategy(max_parallel=1))
    region.go(replace(job, task_groups=(group,)))

    assert any("waits for its health" in line for line in of_alloc(region).words)
    ill = of_alloc(region, deployment_status=AllocDeploymentStatus(healthy=False, canary=True))
    assert "Its deployment counts it as unhealthy." in ill.words
    assert any(line.startswith("It is a canary") for line in ill.words)


def test_an_allocation_that_others_made_room_for_says_so() -> None:
    region = ToyRegion([a_host(1)])
    region.go(a_wish())

    assert "2 allocations made room for it." in of_alloc(region, preempted_allocations=("a", "b")).words


def test_an_allocation_without_a_record_of_its_placement_only_tells_its_state() -> None:
    region = ToyRegion([a_host(1)])
    region.go(a_wish())

    assert len(of_alloc(region, metrics=None).words) == 1
    other = of_alloc(region, node_id="f" * 36, node_name="", metrics=AllocMetric(nodes_evaluated=9))
    assert other.words[-1] != other.words[0]


def test_a_job_in_datacenters_without_nodes_says_so() -> None:
    metric = AllocMetric(nodes_in_pool=3, node_pool="default", nodes_available={"dc9": 0})

    assert list(failure_words(metric)) == ["No node is ready in the job's datacenters (dc9)."]


def test_time_moves_a_delayed_evaluation_into_the_queue() -> None:
    region = ToyRegion([a_host(1)])
    job: Job = a_wish()
    put(region, job)
    evaluation = region.evaluate(job, wait_until_ns=region.now_ns + 60 * NS)
    assert "waits until" in why(region).words[0]

    region.now_ns += 61 * NS
    region.do(EvaluationsUpsert(evaluations=(evaluation_write(replace(evaluation, status_description="due")),)))

    assert why(region).words[0].endswith("is next to be looked at.")
