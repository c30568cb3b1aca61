"""The lesser job verbs, scheduler settings and clean-up, as a person sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedsched.model.alloc import ClientStatus
from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.diff import diff_jobs
from fedsched.model.diff_annotations import annotated
from fedsched.model.errors import BadRequest
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.model.group import TaskGroup
from fedsched.model.job import JobSubmission, JobVersionTag, ParameterizedJobConfig, PeriodicConfig
from fedsched.model.node import DriverInfo, Node, NodeStatus
from fedsched.model.plan import DesiredUpdates, PlanAnnotations
from fedsched.model.scaling import JobScaleStatus, ScalingEvent, TaskGroupScaleStatus
from fedsched.model.scheduler_config import SchedulerAlgorithm, SchedulerConfiguration
from fedsched.model.summary import JobChildrenSummary, JobSummary, job_stub
from fedsched.rpc.methods import deployment as deployments
from fedsched.rpc.methods import evaluation as evaluations
from fedsched.rpc.methods import job as jobs
from fedsched.rpc.methods import job_extras as extras
from fedsched.rpc.methods import node as nodes
from fedsched.rpc.methods import operator
from tests.verbs.commands import NOW_NS, STAMP
from tests.verbs.scenes import (
    CHANGED,
    EVAL,
    HAS_JOB,
    HAS_NODE,
    NODE,
    WRITTEN,
    a_deployment,
    a_job,
    a_stub,
    complete,
    in_sequence,
    run,
    the_node,
)


def test_a_run_follows_allocations_and_the_deployment_to_the_end(tmp_path: Path) -> None:
    file = tmp_path / "web.json"
    file.write_text('{"Job": {"ID": "web"}}')
    pending = Evaluation(id=EVAL, job_id="web", type="service", create_index=5)
    done = Evaluation(id=EVAL, job_id="web", type="service", create_index=5, status=EvaluationStatus.COMPLETE)
    running = a_stub(create_index=6, client_status=ClientStatus.RUNNING, client_description="Tasks are running")
    answers = {
        jobs.JOB_REGISTER: lambda _: WRITTEN,
        evaluations.EVAL_GET: in_sequence(
            *(evaluations.EvaluationGetReply(evaluation=one) for one in (pending, pending, done))
        ),
        evaluations.EVAL_ALLOCS: in_sequence(
            evaluations.EvaluationAllocsReply(),
            evaluations.EvaluationAllocsReply(allocs=(a_stub(create_index=6),)),
            evaluations.EvaluationAllocsReply(allocs=(running,)),
        ),
        extras.JOB_LATEST_DEPLOYMENT: lambda _: extras.JobDeploymentReply(deployment=a_deployment(create_index=6)),
        deployments.DEPLOYMENT_GET: lambda _: deployments.DeploymentGetReply(
            deployment=a_deployment(DeploymentStatus.SUCCESSFUL)
        ),
    }
    seen = run(f"job run {file}", answers)

    assert f'{STAMP}: Allocation "a3d1f1b9" created: node "6e01b7c2", group "front"' in seen.out
    assert '"a3d1f1b9" status changed: "pending" -> "running" (Tasks are running)' in seen.out
    assert '[ok] Deployment "51c9e0d4" successful' in seen.out
    assert seen.code == 0


def test_a_placement_failure_names_what_stood_in_the_way_and_exits_with_2() -> None:
    metric = AllocMetric(
        nodes_evaluated=3,
        nodes_in_pool=3,
        class_filtered={"gpu": 2},
        constraint_filtered={"${attr.kernel.name} = windows": 2},
        nodes_exhausted=1,
        dimension_exhausted={"memory": 1},
        class_exhausted={"big": 1},
        nodes_available={"dc1": 0},
        quota_exhausted=("small",),
    )
    waiting = "c0ffee00-0000-4000-8000-000000000000"
    failed = complete(failed_tg_allocs={"front": metric}, blocked_eval=waiting)
    evaluated = {extras.JOB_EVALUATE: lambda _: WRITTEN, evaluations.EVAL_GET: failed}
    seen = run("job eval -force-reschedule web", HAS_JOB, evaluated)

    assert seen.code == 2
    for line in (
        'Task Group "front" (failed to place 1 allocation):',
        '* Class "gpu": 2 nodes excluded by filter',
        '* Constraint "${attr.kernel.name} = windows": 2 nodes excluded by filter',
        "* Resources exhausted on 1 nodes",
        '* Dimension "memory" exhausted on 1 nodes',
        '* Quota limit hit "small"',
        'Evaluation "c0ffee00" waiting for additional capacity to place remainder',
    ):
        assert line in seen.out


def a_plan(**fields: Any) -> extras.JobPlanReply:
    old, new = a_job(task_groups=(TaskGroup(name="front", count=1),)), a_job()
    wanted = PlanAnnotations(desired_tg_updates={"front": DesiredUpdates(place=1, in_place_update=1)})
    diff = annotated(diff_jobs(old, new), old, new, wanted)
    return extras.JobPlanReply(annotations=wanted, diff=diff, job_modify_index=118, **fields)


def test_a_plan_shows_the_difference_the_dry_run_and_how_to_go_on(tmp_path: Path) -> None:
    file = tmp_path / "web.json"
    file.write_text('{"Job": {"ID": "web"}}')
    seen = run(f"job plan {file}", {extras.JOB_PLAN: lambda _: a_plan()})

    assert seen.code == 1
    assert seen.out.startswith(
        '+/- Job: "web"\n+/- Task Group: "front" (1 create, 1 in-place update)\n'
        '  +/- Count: "1" => "2" (forces create)\n'
    )
    assert "- All tasks successfully allocated." in seen.out
    assert f"fedsched job run -check-index 118 {file}" in seen.out
    assert json.loads(run(f"job plan -json {file}", {extras.JOB_PLAN: lambda _: a_plan()}).out)["JobModifyIndex"] == 118


def test_a_plan_exits_with_0_for_nothing_1_for_failures_and_255_for_errors(tmp_path: Path) -> None:
    file = tmp_path / "web.json"
    file.write_text('{"Job": {"ID": "web"}}')
    nothing = run(f"job plan -diff=false {file}", {extras.JOB_PLAN: lambda _: extras.JobPlanReply()})
    short = extras.JobPlanReply(
        failed_tg_allocs={"front": AllocMetric()},
        annotations=PlanAnnotations(preempted_allocs=(a_stub(),)),
        next_periodic_launch_ns=NOW_NS,
        warnings=("careful",),
    )
    failing = run(f"job plan {file}", {extras.JOB_PLAN: lambda _: short})

    def refuse(_: Any) -> Any:
        raise BadRequest("no such pool", hint="make one")

    wrong = run(f"job plan {file}", {extras.JOB_PLAN: refuse})
    assert (nothing.code, failing.code, wrong.code) == (0, 1, 255)
    assert "- WARNING: Failed to place all allocations." in failing.out
    assert "a3d1f1b9  web     front" in failing.out
    assert "next periodic launch would be at" in failing.out
    assert "Warning: careful" in failing.err
    assert wrong.err == "Error during plan: no such pool\n  make one\n"


VERSIONS = (
    a_job(version=1, priority=60, submit_time_ns=NOW_NS),
    a_job(version=0, stable=True, submit_time_ns=NOW_NS, version_tag=JobVersionTag(name="good", description="well")),
)
HAS_VERSIONS: Mapping[Any, Any] = {
    **HAS_JOB,
    jobs.JOB_VERSIONS: lambda _: jobs.JobVersionsReply(versions=VERSIONS),
}


def test_history_shows_each_version_and_with_p_how_it_differs() -> None:
    seen = run("job history -p web", HAS_VERSIONS)

    assert seen.out.startswith(
        f'Version     = 1\nStable      = false\nSubmit Date = {STAMP}\nDiff        =\n+/- Job: "web"\n'
    )
    assert "Tag Name        = good\nTag Description = well\n" in seen.out
    assert '"Version": 0' in run("job history -full -version 0 web", HAS_VERSIONS).out
    assert "kept are 1, 0" in run("job history -version 7 web", HAS_VERSIONS).err
    assert len(json.loads(run("job history -json web", HAS_VERSIONS).out)) == 2


def test_revert_takes_a_number_or_a_tag() -> None:
    done = {extras.JOB_REVERT: lambda _: WRITTEN}
    for wanted in ("0", "good"):
        seen = run(f"job revert -detach web {wanted}", HAS_VERSIONS, done)
        request = seen.agent.requests(extras.JOB_REVERT)[0]
        assert (request.job_version, request.enforce_prior_version) == (0, 1)
        assert seen.out == f"Job reverted\nEvaluation ID: {EVAL}\n"
    assert 'finished with status "complete"' in run("job revert web 0", HAS_VERSIONS, done).out


def test_versions_are_tagged_and_untagged() -> None:
    done = {extras.JOB_TAG: lambda _: WRITTEN}
    assert "tagged with name" in run("job tag apply -name good -version 0 web", HAS_JOB, done).out
    assert run("job tag unset -name good web", HAS_JOB, done).out == 'Tag "good" removed from job "web"\n'
    assert "-name is missing" in run("job tag apply web", HAS_JOB, done).err


def test_a_dispatch_hands_over_meta_and_payload(tmp_path: Path) -> None:
    file = tmp_path / "input"
    file.write_bytes(b"hello")
    reply = extras.JobDispatchReply(dispatched_job_id="web/dispatch-1-abc", eval_id=EVAL)
    done = {extras.JOB_DISPATCH: lambda _: reply}
    seen = run(f"job dispatch -meta who=you -idempotency-token t -detach web {file}", HAS_JOB, done)

    request = seen.agent.requests(extras.JOB_DISPATCH)[0]
    assert (request.payload, request.meta, request.idempotency_token) == (b"hello", {"who": "you"}, "t")
    assert seen.out == "Dispatched Job ID = web/dispatch-1-abc\nEvaluation ID     = 8f0b2a77\n"
    piped = run("job dispatch web -", HAS_JOB, done, stdin="from elsewhere")
    assert piped.agent.requests(extras.JOB_DISPATCH)[0].payload == b"from elsewhere"
    assert 'finished with status "complete"' in piped.out
    file.write_bytes(bytes(20_000))
    assert "larger than 16384 bytes" in run(f"job dispatch web {file}", HAS_JOB, done).err
    assert "cannot be read" in run(f"job dispatch web {tmp_path}/nothing", HAS_JOB, done).err
    assert "no key=value" in run("job dispatch -meta who web", HAS_JOB, done).err


def test_a_periodic_job_is_forced_and_the_child_followed() -> None:
    reply = extras.JobDispatchReply(dispatched_job_id="web/periodic-1", eval_id=EVAL)
    done = {extras.PERIODIC_FORCE: lambda _: reply}

    assert run("job periodic force -detach web", HAS_JOB, done).out.startswith("Force periodic successful\n")
    assert 'finished with status "complete"' in run("job periodic force web", HAS_JOB, done).out


def test_scaling_names_the_group_only_where_there_are_several() -> None:
    two = a_job(task_groups=(TaskGroup(name="front"), TaskGroup(name="back")))
    one = {extras.JOB_SCALE: lambda _: WRITTEN, jobs.JOB_GET: lambda _: jobs.JobGetReply(job=a_job())}
    several = {extras.JOB_SCALE: lambda _: WRITTEN, jobs.JOB_GET: lambda _: jobs.JobGetReply(job=two)}

    seen = run("job scale -check-index 5 -detach web 3", HAS_JOB, one)
    request = seen.agent.requests(extras.JOB_SCALE)[0]
    assert (request.group, request.count, request.enforce_index, request.job_modify_index) == ("front", 3, True, 5)
    assert "name one of front, back" in run("job scale web 3", HAS_JOB, several).err
    assert 'finished with status "complete"' in run("job scale web back 3", HAS_JOB, several).out
    assert "not a whole number" in run("job scale web back many", HAS_JOB, several).err


def test_scaling_events_are_listed_newest_first() -> None:
    event = ScalingEvent(time_ns=NOW_NS, count=4, previous_count=2, message="busy", eval_id=EVAL, create_index=3)
    status = JobScaleStatus(job_id="web", task_groups={"front": TaskGroupScaleStatus(events=(event,))})
    answers = {extras.JOB_SCALE_STATUS: lambda _: extras.JobScaleStatusReply(status=status)}
    none = {extras.JOB_SCALE_STATUS: lambda _: extras.JobScaleStatusReply(status=JobScaleStatus(job_id="web"))}

    assert (
        "front       4      2          false  busy     8f0b2a77" in run("job scaling-events web", HAS_JOB, answers).out
    )
    assert run("job scaling-events web", HAS_JOB, none).out == "No events found\n"


def test_a_job_is_promoted_and_its_deployments_and_allocations_listed() -> None:
    latest = {extras.JOB_LATEST_DEPLOYMENT: lambda _: extras.JobDeploymentReply(deployment=a_deployment())}
    done = {deployments.DEPLOYMENT_PROMOTE: lambda _: CHANGED}
    seen = run("job promote -group front -detach web", HAS_JOB, latest, done)
    request = seen.agent.requests(deployments.DEPLOYMENT_PROMOTE)[0]
    assert (request.all, request.groups) == (False, ("front",))
    assert "has no deployment to promote" in run("job promote web", HAS_JOB).err
    some = {extras.JOB_DEPLOYMENTS: lambda _: extras.JobDeploymentsReply(deployments=(a_deployment(),))}
    none = {extras.JOB_DEPLOYMENTS: lambda _: extras.JobDeploymentsReply()}
    assert "51c9e0d4  web" in run("job deployments web", HAS_JOB, some).out
    assert "Deployed" in run("job deployments -latest web", HAS_JOB, some).out
    assert run("job deployments web", HAS_JOB, none).out == "No deployments found\n"
    held = {extras.JOB_ALLOCS: lambda _: extras.JobAllocsReply(allocs=(a_stub(),))}
    assert "a3d1f1b9" in run("job allocs web", HAS_JOB, held).out
    assert run("job allocs web", HAS_JOB).out == "No allocations placed\n"


def test_job_status_shows_deployment_failures_and_allocations() -> None:
    blocked = Evaluation(id=EVAL, job_id="web", status=EvaluationStatus.BLOCKED)
    failed = Evaluation(
        id=EVAL, job_id="web", status=EvaluationStatus.COMPLETE, failed_tg_allocs={"front": AllocMetric()}
    )
    answers = {
        jobs.JOB_GET: lambda _: jobs.JobGetReply(job=a_job()),
        extras.JOB_LATEST_DEPLOYMENT: lambda _: extras.JobDeploymentReply(deployment=a_deployment()),
        extras.JOB_ALLOCS: lambda _: extras.JobAllocsReply(allocs=(a_stub(),)),
        jobs.JOB_EVALUATIONS: lambda _: jobs.JobEvaluationsReply(evaluations=(blocked, failed)),
    }
    seen = run("job status web", HAS_JOB, answers)

    assert "\nLatest Deployment\nID          = 51c9e0d4\nStatus      = running\n" in seen.out
    assert "\nPlacement Failure\nTask Group" in seen.out
    assert seen.out.endswith("a3d1f1b9  6e01b7c2  front       0        run      pending  2m ago   1m ago\n")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"parameterized_job": ParameterizedJobConfig(meta_required=("who",))}, "Required Metadata = who"),
        ({"periodic": PeriodicConfig(specs=("@daily",))}, "Previously Launched Jobs"),
    ],
)
def test_templates_show_their_children(fields: dict[str, Any], words: str) -> None:
    parent = a_job(**fields)
    child = a_job("web/child", parent_id="web")
    counts = JobSummary(job_id="web", children=JobChildrenSummary(pending=1, running=2, dead=3))
    answers = {
        jobs.JOB_GET: lambda _: jobs.JobGetReply(job=parent),
        jobs.JOB_LIST: lambda request: jobs.JobListReply(
            jobs=(job_stub(child, None),) if request.prefix == "web/" else (job_stub(parent, counts),)
        ),
    }
    seen = run("job status web", answers)

    assert words in seen.out
    assert "Pending  Running  Dead\n1        2        3\n" in seen.out
    assert "web/child" in seen.out


def test_the_scheduler_configuration_is_shown_and_changed_bit_by_bit() -> None:
    known = SchedulerConfiguration(memory_oversubscription_enabled=True, modify_index=12)
    answers = {
        operator.SCHEDULER_GET_CONFIG: lambda _: operator.SchedulerConfigReply(scheduler_config=known),
        operator.SCHEDULER_SET_CONFIG: lambda _: operator.SchedulerConfigSetReply(updated=True),
    }
    shown = run("operator scheduler get-config", answers).out
    assert shown.startswith("Scheduler Algorithm           = binpack\nMemory Oversubscription       = true\n")
    seen = run("operator scheduler set-config -scheduler-algorithm spread -preempt-batch-scheduler", answers)
    request = seen.agent.requests(operator.SCHEDULER_SET_CONFIG)[0]
    config = request.scheduler_config
    assert (config.scheduler_algorithm, config.memory_oversubscription_enabled) == (SchedulerAlgorithm.SPREAD, True)
    assert config.preemption_config.batch_scheduler_enabled
    assert (request.check_and_set, request.check_index) == (True, 12)
    assert seen.out == "Scheduler configuration updated!\n"
    assert "nothing to change" in run("operator scheduler set-config", answers).err
    assert "binpack, spread" in run("operator scheduler set-config -scheduler-algorithm x", answers).err


def test_cleaning_up_and_deleting_evaluations_say_what_was_done() -> None:
    answers = {
        operator.SYSTEM_GC: lambda _: operator.SystemReply(),
        operator.SYSTEM_RECONCILE: lambda _: operator.SystemReply(),
        evaluations.EVAL_LIST: lambda _: evaluations.EvaluationListReply(evaluations=(Evaluation(id=EVAL),)),
        evaluations.EVAL_DELETE: lambda _: evaluations.EvaluationDeleteReply(count=1),
    }
    assert run("system gc", answers).code == 0
    assert run("system reconcile summaries", answers).code == 0
    assert run("eval delete 8f0b", answers).out == "Successfully deleted 1 evaluation\n"


def test_the_node_a_driver_is_healthy_on_says_so() -> None:
    node = the_node()
    found = Node(
        id=NODE,
        name="n",
        status=NodeStatus.READY,
        drivers={"exec": DriverInfo(detected=True, healthy=True), "docker": DriverInfo(detected=True)},
    )
    answers = {nodes.NODE_GET: lambda _: nodes.NodeGetReply(node=found)}

    assert "Driver Status   = exec\n" in run(f"node status {node.id}", HAS_NODE, answers).out


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"periodic": PeriodicConfig(specs=("0 12 * * *",))}, "2026-08-21T12:00:00Z (1h26m from now)"),
        ({"periodic": PeriodicConfig(specs=("0 12 * * *",)), "stop": True}, "none (stopped)"),
        ({"periodic": PeriodicConfig(specs=("@daily",), enabled=False)}, "none (not enabled)"),
        ({"periodic": PeriodicConfig(specs=("0 0 30 2 *",))}, "never"),
    ],
)
def test_a_periodic_job_says_when_it_is_launched_next(fields: dict[str, Any], words: str) -> None:
    job = a_job(type="batch", **fields)
    answers = {
        jobs.JOB_LIST: lambda request: jobs.JobListReply(jobs=() if "/" in request.prefix else (job_stub(job, None),)),
        jobs.JOB_GET: lambda _: jobs.JobGetReply(job=job),
    }

    assert f"Next Periodic Launch = {words}\n" in run("job status web", answers).out


def test_the_text_of_a_job_can_be_had_again() -> None:
    asked = []

    def submission(request: extras.JobSubmissionRequest) -> extras.JobSubmissionReply:
        asked.append(request.version)
        return extras.JobSubmissionReply(submission=JobSubmission(source='job "web" {}', format="hcl2"))

    answers = {extras.JOB_SUBMISSION: submission, jobs.JOB_GET: lambda _: jobs.JobGetReply(job=a_job(version=3))}

    assert run("job inspect -hcl web", HAS_JOB, answers).out == 'job "web" {}\n'
    assert run("job inspect -hcl -version 1 web", HAS_JOB, answers).code == 0
    assert asked == [3, 1]
