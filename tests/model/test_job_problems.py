"""Everything that is wrong with a job, at once, with its place."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.constraint import Affinity, Constraint, Spread, SpreadTarget
from fedsched.model.job import (
    Job,
    JobType,
    JobUIConfig,
    Multiregion,
    MultiregionRegion,
    MultiregionStrategy,
    ParameterizedJobConfig,
    PeriodicConfig,
)
from fedsched.model.job_problems import problems
from fedsched.model.policies import (
    DisconnectStrategy,
    EphemeralDisk,
    MigrateStrategy,
    ReschedulePolicy,
    RestartPolicy,
    UpdateStrategy,
)
from fedsched.model.policy_problems import nth_delay, total_delay
from fedsched.model.problem import InvalidJob, Problem, error_text, flat
from fedsched.model.resources import Resources
from fedsched.model.scaling import ScalingPolicy
from fedsched.model.task import LogConfig, TaskLifecycle
from fedsched.model.volume import VolumeMount, VolumeRequest
from tests.builders import a_group, a_job, a_task
from tests.model.fixtures import load
from tests.model.test_job_defaults import admitted

BATCH, SYSTEM = JobType.BATCH.value, JobType.SYSTEM.value


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=f"{i}-{c['name']}") for i, c in enumerate(load("refusals")["refusals"])]
)
def test_recorded_refusal_has_the_recorded_text(case: dict[str, Any]) -> None:
    assert error_text(problems(admitted(case["job"]))) == case["error"]


@pytest.mark.parametrize("case", load("submissions")["submissions"], ids=lambda case: case["name"])
def test_recorded_good_jobs_have_no_problems(case: dict[str, Any]) -> None:
    assert problems(admitted(case["sent"])) == []


def batch(**fields: Any) -> Job:
    return a_job(type=BATCH, groups=[a_group(update=None, migrate=None)], **fields)


def grouped(**fields: Any) -> Job:
    return a_job(groups=[a_group(**fields)])


def tasked(**fields: Any) -> Job:
    return a_job(groups=[a_group(tasks=[a_task(**fields)])])


def placed(**fields: Any) -> Job:
    return a_job(constraints=(Constraint(**fields),))


JOBS = [
    (tasked(kill_timeout_s=1e300), "TaskGroups[0].Tasks[0].KillTimeout: duration is out of range"),
    (grouped(update=UpdateStrategy(stagger_s=float("nan"))), "TaskGroups[0].Update.Stagger: duration is out of range"),
    (a_job(""), "ID: Missing job ID"),
    (a_job("a\0b"), "ID: Job ID contains a null character"),
    (a_job(name=""), "Name: Missing job name"),
    (a_job(name="a\0b"), "Name: Job Name contains a null character"),
    (a_job(region=""), "Region: Missing job region"),
    (a_job(namespace=""), "Namespace: Job must be in a namespace"),
    (a_job(namespace="a b"), "Namespace: invalid namespace 'a b'"),
    (a_job(node_pool="a b"), "NodePool: invalid node pool 'a b'"),
    (a_job(datacenters=()), "Datacenters: Missing job datacenters"),
    (a_job(datacenters=("a", "")), "Datacenters: job datacenter must be non-empty string"),
    (a_job(priority=101), "Priority: job priority must be between [1, 100]"),
    (a_job(payload=b"x"), "Payload: Job can't be submitted with a payload"),
    (a_job(ui=JobUIConfig(description="x" * 1001)), "UI.Description: UI description must be under 1000 characters"),
    (a_job(periodic=PeriodicConfig(specs=("@daily",))), "Periodic: Periodic can only be used with batch or sysbatch"),
    (a_job(parameterized_job=ParameterizedJobConfig()), "ParameterizedJob: Parameterized job can only be used"),
    (batch(periodic=PeriodicConfig(spec="a", specs=("b",))), "Periodic: Only cron or crons may be used"),
    (batch(periodic=PeriodicConfig()), "Periodic.Specs: Must specify a spec"),
    (batch(periodic=PeriodicConfig(spec="a", spec_type="x")), "Periodic.SpecType: Unknown periodic specification"),
    (batch(parameterized_job=ParameterizedJobConfig(payload="x")), "ParameterizedJob.Payload: Unknown payload"),
    (
        batch(parameterized_job=ParameterizedJobConfig(meta_required=("a", "b"), meta_optional=("b",))),
        "ParameterizedJob: Required and optional meta keys should be disjoint: b",
    ),
    (a_job(multiregion=Multiregion()), "Multiregion.Regions: multiregion needs at least one region"),
    (
        a_job(multiregion=Multiregion(regions=(MultiregionRegion(name="eu"), MultiregionRegion(name="eu")))),
        'Multiregion.Regions: multiregion names region "eu" 2 times',
    ),
    (a_job(multiregion=Multiregion(regions=(MultiregionRegion(),))), "Multiregion.Regions: multiregion has a region"),
    (
        a_job(
            multiregion=Multiregion(
                strategy=MultiregionStrategy(on_failure="x"), regions=(MultiregionRegion(name="eu"),)
            )
        ),
        'Multiregion.Strategy.OnFailure: unknown on_failure "x"',
    ),
    (
        a_job(
            type=SYSTEM, affinities=(Affinity(l_target="a", r_target="b"),), groups=[a_group(reschedule_policy=None)]
        ),
        "Affinities: System jobs may not have an affinity block",
    ),
    (a_job(type=SYSTEM, spreads=(Spread(attribute="a"),)), "Spreads: System jobs may not have a spread block"),
    (
        a_job(type=SYSTEM, groups=[a_group(count=2)]),
        "TaskGroups[0].Count: Job task group group has count 2. Count cannot exceed 1 with system scheduler",
    ),
    (grouped(name="a\0"), "TaskGroups[0].Name: Task group name contains null character"),
    (grouped(tasks=[]), "TaskGroups[0].Tasks: Missing tasks for task group"),
    (grouped(ephemeral_disk=EphemeralDisk(size_mb=9)), "TaskGroups[0].EphemeralDisk.SizeMB: minimum disk value is 10"),
    (grouped(shutdown_delay_s=-1.0), "TaskGroups[0].ShutdownDelay: shutdown_delay must not be negative"),
    (grouped(max_run_duration_s=5.0), "TaskGroups[0].MaxRunDuration: max_run_duration can only be used with batch"),
    (grouped(max_run_duration_s=0.0), "TaskGroups[0].MaxRunDuration: max_run_duration must be greater than zero"),
    (grouped(scaling=ScalingPolicy(min=-1, max=1)), "TaskGroups[0].Scaling.Min: Scaling"),
    (grouped(scaling=ScalingPolicy(min=2, max=1)), "TaskGroups[0].Scaling.Max: Scaling"),
    (grouped(scaling=ScalingPolicy(min=2, max=3)), "TaskGroups[0].Count: Scaling"),
    (grouped(count=9, scaling=ScalingPolicy(min=2, max=3)), "TaskGroups[0].Count: Scaling"),
    (
        a_job(type=SYSTEM, groups=[a_group(migrate=None)]),
        "TaskGroups[0].ReschedulePolicy: System jobs should not have a reschedule policy",
    ),
    (a_job(type=SYSTEM), 'TaskGroups[0].Migrate: Job type "system" does not allow migrate block'),
    (grouped(tasks=[a_task(""), a_task()]), "TaskGroups[0].Tasks[0].Name: Task 1 missing name"),
    (grouped(tasks=[a_task(), a_task()]), "TaskGroups[0].Tasks[1].Name: Task 2 redefines 'web' from task 1"),
    (
        grouped(tasks=[a_task("a", leader=True), a_task("b", leader=True)]),
        "TaskGroups[0].Tasks: Only one task may be marked as leader",
    ),
    (
        tasked(lifecycle=TaskLifecycle(hook="prestart")),
        "TaskGroups[0].Tasks: Task group must have at least one main task",
    ),
    (tasked(name="alloc"), "TaskGroups[0].Tasks[0].Name: Task name cannot be 'alloc'"),
    (tasked(name="a\0"), "TaskGroups[0].Tasks[0].Name: Task name cannot include null characters"),
    (tasked(kill_timeout_s=-1.0), "TaskGroups[0].Tasks[0].KillTimeout: KillTimeout must be a positive value"),
    (tasked(kill_timeout_s=601.0), "TaskGroups[0].Tasks[0].KillTimeout: KillTimeout must not be longer"),
    (tasked(shutdown_delay_s=-1.0), "TaskGroups[0].Tasks[0].ShutdownDelay: ShutdownDelay must be a positive value"),
    (
        tasked(resources=Resources(cores=1)),
        "TaskGroups[0].Tasks[0].Resources: Task can only ask for 'cpu' or 'cores' resource, not both.",
    ),
    (tasked(resources=Resources(cores=-1)), "TaskGroups[0].Tasks[0].Resources.Cores: minimum cores value is 0; got -1"),
    (
        tasked(resources=Resources(memory_max_mb=5)),
        "TaskGroups[0].Tasks[0].Resources.MemoryMaxMB: MemoryMaxMB value",
    ),
    (tasked(resources=Resources(secrets_mb=301)), "TaskGroups[0].Tasks[0].Resources.SecretsMB: SecretsMB value (301)"),
    (tasked(log_config=LogConfig(max_files=0)), "TaskGroups[0].Tasks[0].LogConfig.MaxFiles: minimum number of files"),
    (tasked(log_config=LogConfig(max_file_size_mb=0)), "TaskGroups[0].Tasks[0].LogConfig.MaxFileSizeMB: minimum file"),
    (
        tasked(restart_policy=RestartPolicy(mode="x")),
        'TaskGroups[0].Tasks[0].RestartPolicy.Mode: Unsupported restart mode: "x"',
    ),
    (
        grouped(tasks=[a_task(), a_task("b", lifecycle=TaskLifecycle(hook="x"))]),
        "TaskGroups[0].Tasks[1].Lifecycle.Hook: invalid hook: x",
    ),
    (tasked(volume_mounts=(VolumeMount(),)), "TaskGroups[0].Tasks[0].VolumeMounts[0].Volume: Volume Mount 0 has no"),
    (
        tasked(volume_mounts=(VolumeMount(volume="v"),)),
        "TaskGroups[0].Tasks[0].VolumeMounts[0].Volume: Volume Mount (0) references undefined volume v",
    ),
    (tasked(consul={}), "TaskGroups[0].Tasks[0].Consul: Task web asks for Consul"),
    (tasked(csi_plugin_config={}), "TaskGroups[0].Tasks[0].CSIPluginConfig: Task web is a CSI plugin"),
    (tasked(schedule={}), "TaskGroups[0].Tasks[0].Schedule: Task web has a schedule"),
]

POLICIES = [
    (grouped(restart_policy=RestartPolicy(attempts=0, mode="delay")), "Attempts: Restart policy"),
    (grouped(restart_policy=RestartPolicy(attempts=-1)), "Attempts: Restart attempts cannot be negative"),
    (grouped(restart_policy=RestartPolicy(interval_s=4)), "Interval: Interval can not be less than 5s (got 4s)"),
    (grouped(restart_policy=RestartPolicy(attempts=200)), "RestartPolicy: Task group can't be restarted 200 times"),
    (grouped(reschedule_policy=ReschedulePolicy(attempts=1)), "ReschedulePolicy: Reschedule Policy with Attempts and"),
    (grouped(reschedule_policy=ReschedulePolicy(delay_function="x")), "DelayFunction: Invalid delay function"),
    (grouped(reschedule_policy=ReschedulePolicy(delay_s=1)), "Delay: Delay cannot be less than 5s (got 1s)"),
    (grouped(reschedule_policy=ReschedulePolicy(max_delay_s=1)), "MaxDelay: Max Delay cannot be less than 5s"),
    (grouped(reschedule_policy=ReschedulePolicy(max_delay_s=9)), "MaxDelay: Max Delay cannot be less than Delay 30s"),
    (
        grouped(reschedule_policy=ReschedulePolicy(unlimited=False, attempts=2, interval_s=1)),
        "Interval: Interval cannot be less than 15s (got 1s)",
    ),
    (
        grouped(reschedule_policy=ReschedulePolicy(unlimited=False, attempts=5, interval_s=300)),
        "can only make 3 attempts (taking 3m30s) in an interval of 5m0s: set the interval to at least 15m30s",
    ),
    (
        grouped(
            reschedule_policy=ReschedulePolicy(
                unlimited=False, attempts=10**12, interval_s=600, delay_s=5, delay_function="constant"
            )
        ),
        "can only make 120 attempts (taking 10m0s) in an interval of 10m0s: set the interval to at least 292 years",
    ),
    (grouped(update=UpdateStrategy(max_parallel=-1)), "MaxParallel: Max parallel can not be less than zero"),
    (grouped(update=UpdateStrategy(health_check="x")), 'HealthCheck: Invalid health check given: "x"'),
    (grouped(update=UpdateStrategy(canary=-1)), "Canary: Canary count can not be less than zero"),
    (grouped(update=UpdateStrategy(auto_promote=True)), "AutoPromote: Auto Promote requires a Canary count"),
    (grouped(update=UpdateStrategy(min_healthy_time_s=-1)), "MinHealthyTime: Minimum healthy time may not be less"),
    (grouped(update=UpdateStrategy(healthy_deadline_s=0)), "HealthyDeadline: Healthy deadline must be greater than"),
    (grouped(update=UpdateStrategy(progress_deadline_s=-1)), "ProgressDeadline: Progress deadline must be zero or"),
    (grouped(update=UpdateStrategy(min_healthy_time_s=300)), "MinHealthyTime: Minimum healthy time must be less than"),
    (grouped(update=UpdateStrategy(progress_deadline_s=300)), "ProgressDeadline: Healthy deadline must be less than"),
    (grouped(update=UpdateStrategy(stagger_s=0)), "Stagger: Stagger must be greater than zero"),
    (grouped(migrate=MigrateStrategy(max_parallel=-1)), "MaxParallel: MaxParallel must be >= 0 but found -1"),
    (grouped(migrate=MigrateStrategy(health_check="manual")), 'HealthCheck: Invalid health check given: "manual"'),
    (grouped(migrate=MigrateStrategy(min_healthy_time_s=-1)), "MinHealthyTime: MinHealthyTime must not be negative"),
    (grouped(migrate=MigrateStrategy(healthy_deadline_s=-1)), "HealthyDeadline: HealthyDeadline must not be negative"),
    (grouped(migrate=MigrateStrategy(min_healthy_time_s=301)), "MinHealthyTime: MinHealthyTime must be less than"),
    (grouped(disconnect=DisconnectStrategy(lost_after_s=-1)), "LostAfter: lost_after cannot be a negative duration"),
    (
        grouped(disconnect=DisconnectStrategy(stop_on_client_after_s=-1)),
        "StopOnClientAfter: stop_on_client_after cannot",
    ),
    (
        grouped(disconnect=DisconnectStrategy(stop_on_client_after_s=1, lost_after_s=1)),
        "Disconnect: disconnect cannot be configured with both",
    ),
    (grouped(disconnect=DisconnectStrategy(reconcile="x")), 'Reconcile: invalid reconcile option "x"'),
    (
        a_job(type=SYSTEM, groups=[a_group(disconnect=DisconnectStrategy(stop_on_client_after_s=1))]),
        "StopOnClientAfter: stop_on_client_after can only be used with service and batch jobs",
    ),
]

PLACEMENT = [
    (placed(l_target="a"), 'Operator "=" requires an RTarget'),
    (placed(l_target="a", operand="is_set", r_target="x"), 'Operator "is_set" does not support an RTarget'),
    (placed(r_target="x"), "No LTarget provided but is required by constraint"),
    (placed(l_target="${node.region}", r_target="x"), 'unsupported attribute "${node.region}"'),
    (placed(l_target="$attr.x", r_target="x"), 'unsupported attribute "$attr.x"'),
    (placed(l_target="${meta.x}", operand="distinct_property", r_target="0"), "Distinct Property must have an allowed"),
    (tasked(constraints=(Constraint(operand="distinct_hosts"),)), "distinct_hosts may only be used on job and group"),
    (a_job(affinities=(Affinity(l_target="a", r_target="b", weight=0),)), "Affinity weight must be within the range"),
    (a_job(affinities=(Affinity(l_target="a", r_target="b", weight=101),)), "Affinity weight must be within the range"),
    (a_job(affinities=(Affinity(l_target="a"),)), 'Operator "=" requires an RTarget'),
    (a_job(affinities=(Affinity(l_target="a", operand="is_set"),)), 'Unknown affinity operator "is_set"'),
    (a_job(spreads=(Spread(),)), "Missing spread attribute"),
    (a_job(spreads=(Spread(attribute="${x}"),)), 'unsupported attribute "${x}"'),
    (a_job(spreads=(Spread(attribute="a", weight=0),)), "Spread block must have a positive weight"),
    (
        a_job(spreads=(Spread(attribute="a", spread_target=(SpreadTarget(value="x"), SpreadTarget(value="x"))),)),
        'Spread target value "x" already defined',
    ),
    (
        a_job(spreads=(Spread(attribute="a", spread_target=(SpreadTarget(value="x", percent=-1),)),)),
        'Spread target percentage for value "x" must be between 0 and 100',
    ),
    (
        a_job(
            spreads=(
                Spread(
                    attribute="a",
                    spread_target=(SpreadTarget(value="x", percent=60), SpreadTarget(value="y", percent=60)),
                ),
            )
        ),
        "Sum of spread target percentages must not be greater than 100%; got 120%",
    ),
]


@pytest.mark.parametrize(("job", "expected"), JOBS + POLICIES + PLACEMENT)
def test_problem_is_found_and_placed(job: Job, expected: str) -> None:
    found = [f"{problem.path}: {problem.message}" for problem in flat(problems(job))]

    assert any(expected in line for line in found), found


@pytest.mark.parametrize(
    "job",
    [
        a_job(),
        batch(periodic=PeriodicConfig(specs=("@daily",)), parameterized_job=ParameterizedJobConfig()),
        a_job(
            periodic=None, multiregion=Multiregion(regions=(MultiregionRegion(name="eu"),)), datacenters=(), region=""
        ),
        batch(periodic=PeriodicConfig(enabled=False)),
        grouped(update=UpdateStrategy(max_parallel=0, health_check="")),
        grouped(reschedule_policy=ReschedulePolicy(unlimited=False, attempts=0, delay_function="")),
        grouped(
            reschedule_policy=ReschedulePolicy(
                unlimited=False, attempts=3, interval_s=86400, delay_s=5, delay_function="fibonacci"
            )
        ),
        grouped(disconnect=DisconnectStrategy(stop_on_client_after_s=5.0, reconcile="best_score", replace=True)),
        grouped(scaling=ScalingPolicy(min=1, max=1)),
        a_job(type=BATCH, groups=[a_group(update=None, migrate=None, max_run_duration_s=5.0)]),
        tasked(resources=Resources(cpu=0, cores=2, memory_max_mb=-1)),
        tasked(log_config=LogConfig(disabled=True, max_files=0)),
        a_job(
            groups=[
                a_group(
                    volumes={"v": VolumeRequest(type="host", source="data")},
                    tasks=[a_task(volume_mounts=(VolumeMount(volume="v", destination="/v"),))],
                ),
            ]
        ),
        placed(operand="distinct_hosts"),
        placed(l_target="${meta.rack}", operand="distinct_property", r_target="2"),
        placed(l_target="${attr.x}", operand="is_not_set"),
    ],
)
def test_good_job_has_no_problems(job: Job) -> None:
    assert problems(job) == []


def test_total_count_is_limited() -> None:
    job = a_job(groups=[a_group("a", count=30_000), a_group("b", count=30_000)])

    assert [problem.message for problem in problems(job)] == [
        "total count was greater than configured job_max_count: 60000 > 50000"
    ]
    assert problems(job, max_count=60_000) == []


def test_highest_priority_is_a_setting() -> None:
    assert problems(a_job(priority=200), max_priority=200) == []


def test_refusal_carries_its_problems() -> None:
    refusal = InvalidJob([Problem("ID", "Missing job ID")])

    assert refusal.message == "1 error occurred:\n\t* Missing job ID\n\n"
    assert refusal.problems[0].path == "ID"


@pytest.mark.parametrize(
    ("function", "delays"),
    [
        ("constant", [5, 5, 5, 5, 5, 5]),
        ("exponential", [5, 10, 20, 40, 60, 60]),
        ("fibonacci", [5, 5, 10, 15, 25, 40]),
    ],
)
def test_delays_grow_as_their_function_says_up_to_the_maximum(function: str, delays: list[int]) -> None:
    policy = ReschedulePolicy(delay_s=5, delay_function=function, max_delay_s=60)

    assert [nth_delay(policy, attempt) for attempt in range(6)] == delays
    assert total_delay(policy, 6) == sum(delays)
