"""From what a client sent to the job that is stored, held against recorded pairs."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.compare import same_spec
from fedsched.model.constraint import Constraint
from fedsched.model.identity import WorkloadIdentity
from fedsched.model.job import Job, JobType, ParameterizedJobConfig, PeriodicConfig
from fedsched.model.job_defaults import BATCH_RESTART, canonicalise, with_implied_constraints
from fedsched.model.job_submission import from_submission
from fedsched.model.policies import DisconnectStrategy, MigrateStrategy, ReschedulePolicy
from fedsched.model.record import Malformed, from_api, to_api
from fedsched.model.service import Service
from fedsched.model.task import Template
from fedsched.model.volume import VolumeRequest
from tests.builders import a_group, a_job, a_task
from tests.model.fixtures import load

CASES = [pytest.param(case, id=case["name"]) for case in load("submissions")["submissions"]]
BOOKKEEPING = ("Status", "Stable", "Version", "SubmitTime", "CreateIndex", "ModifyIndex", "JobModifyIndex")


def admitted(plain: dict[str, Any], region: str = "global") -> Job:
    return with_implied_constraints(canonicalise(from_submission(plain), region=region))


def a_submission(kind: str = "service", *, task: dict[str, Any] | None = None, **group: Any) -> dict[str, Any]:
    tasks = [{"Name": "t", "Driver": "exec", **(task or {})}]
    return {"ID": "j", "Type": kind, "TaskGroups": [{"Name": "g", "Tasks": tasks, **group}]}


@pytest.mark.parametrize("case", CASES)
def test_recorded_submission_becomes_the_recorded_job(case: dict[str, Any]) -> None:
    job = admitted(case["sent"], region=case["stored"]["Region"])

    assert same_spec(job, from_api(Job, case["stored"]))
    assert _without_bookkeeping(to_api(job)) == _without_bookkeeping(case["stored"])


@pytest.mark.parametrize("case", CASES)
def test_filling_in_twice_changes_nothing(case: dict[str, Any]) -> None:
    job = admitted(case["sent"])

    assert with_implied_constraints(canonicalise(job)) == job


def _without_bookkeeping(job: dict[str, Any]) -> dict[str, Any]:
    groups = []
    for group in job["TaskGroups"]:
        scaling = group["Scaling"] and {**group["Scaling"], "ID": "", "CreateIndex": 0, "ModifyIndex": 0}
        groups.append({**group, "Scaling": scaling})
    return {**{key: value for key, value in job.items() if key not in BOOKKEEPING}, "TaskGroups": groups}


def test_block_that_says_one_thing_takes_the_rest_from_the_jobs_type() -> None:
    group = admitted(a_submission("batch", RestartPolicy={"Attempts": 7})).task_groups[0]

    assert group.restart_policy == from_api(type(BATCH_RESTART), {**to_api(BATCH_RESTART), "Attempts": 7})


def test_task_restart_block_lies_over_its_groups() -> None:
    plain = a_submission(task={"RestartPolicy": {"Mode": "delay"}}, RestartPolicy={"Attempts": 7})

    policy = admitted(plain).task_groups[0].tasks[0].restart_policy

    assert policy is not None
    assert (policy.attempts, policy.mode, policy.delay_s) == (7, "delay", 15.0)


def test_group_blocks_lie_over_the_jobs_field_by_field() -> None:
    plain = a_submission(Update={"Canary": 2}, ReschedulePolicy={"Delay": "7s"}, Migrate={"MaxParallel": 5})
    plain |= {
        "Update": {"Canary": 1, "MaxParallel": 3, "Stagger": 1},
        "Reschedule": {"MaxDelay": 8 * 10**9, "Delay": 1},
        "Migrate": {"HealthCheck": "task_states"},
    }

    job = admitted(plain)

    group = job.task_groups[0]
    assert group.update is not None
    assert group.reschedule_policy is not None
    assert (group.update.canary, group.update.max_parallel, group.update.healthy_deadline_s) == (2, 3, 300.0)
    assert (group.reschedule_policy.delay_s, group.reschedule_policy.max_delay_s) == (7.0, 8.0)
    assert group.migrate == MigrateStrategy(max_parallel=5, health_check="task_states")
    assert (job.update.max_parallel, job.update.canary, job.reschedule, job.migrate) == (3, 0, None, None)


def test_count_and_scaling_minimum_stand_in_for_each_other() -> None:
    assert admitted(a_submission(Scaling={"Min": 3, "Max": 9})).task_groups[0].count == 3
    scaled = admitted(a_submission(Count=4, Scaling={"Max": 9})).task_groups[0].scaling
    assert scaled is not None
    assert (scaled.min, scaled.target) == (4, {"Namespace": "default", "Job": "j", "Group": "g"})
    assert admitted(a_submission(Count=0)).task_groups[0].count == 0


def test_task_oddities_are_put_straight() -> None:
    task = {
        "Resources": {"Cores": 2},
        "LogConfig": {"Enabled": False},
        "Artifacts": [
            {"GetterSource": "http://h/a/b.bin?x=1", "GetterMode": "file"},
            {"GetterSource": "http://h/c", "RelativeDest": ""},
        ],
        "Services": [{"CheckRestart": {"Limit": 3}, "Checks": [{"Type": "tcp"}, {"CheckRestart": {"Grace": "9s"}}]}],
        "ScalingPolicies": [{"Type": "vertical_cpu", "Max": 5}],
    }

    filled = admitted(a_submission(task=task)).task_groups[0].tasks[0]

    assert (filled.resources.cpu, filled.resources.cores, filled.resources.memory_mb) == (0, 2, 300)
    assert filled.log_config.disabled
    assert [artifact.relative_dest for artifact in filled.artifacts] == ["local/b.bin", "local/"]
    service = filled.services[0]
    assert (service.name, service.task_name, service.provider) == ("j-g-t", "t", "consul")
    assert [(c.check_restart.limit, c.check_restart.grace_s) for c in service.checks if c.check_restart] == [
        (3, 1.0),
        (3, 9.0),
    ]
    assert filled.scaling_policies[0].target["Task"] == "t"


def test_a_type_of_somebodys_own_is_kept_and_gets_the_defaults_of_a_service() -> None:
    (own,) = admitted(a_submission("weird")).task_groups
    (service,) = admitted(a_submission("service")).task_groups

    assert admitted(a_submission("weird")).type == "weird"
    assert own == service
    assert own.restart_policy is not None
    assert own.reschedule_policy is not None
    assert own.migrate is not None


def test_submission_of_the_wrong_shape_is_refused_with_its_path() -> None:
    with pytest.raises(Malformed, match=r"Job.TaskGroups\[0\].Count: expected integer"):
        from_submission(a_submission(Count="x"))


def test_keys_in_any_case_and_empty_spec_types_are_fine() -> None:
    plain = {
        "id": "j",
        "TYPE": "batch",
        "periodic": {"spectype": "", "specs": ["@daily"]},
        "taskgroups": [{"name": "g"}],
    }

    job = admitted(plain)

    assert job.periodic is not None
    assert (job.id, job.periodic.spec_type, job.task_groups[0].restart_policy) == ("j", "cron", BATCH_RESTART)


def test_unclaimed_keys_of_a_submission_are_reported_on_request() -> None:
    unknown: list[str] = []

    from_submission({"ID": "j", "Odd": 1}, unknown=unknown)

    assert unknown == ["Job.Odd"]


def test_records_without_a_submission_are_filled_in_as_well() -> None:
    group = a_group(
        restart_policy=None,
        reschedule_policy=None,
        update=None,
        migrate=None,
        disconnect=DisconnectStrategy(lost_after_s=60),
        volumes={"data": VolumeRequest(type="host", source="data")},
    )
    bare = a_job(groups=[group], name="", region="", priority=0, datacenters=(), node_pool="")
    job = canonicalise(
        from_api(Job, {**to_api(bare), "Reschedule": to_api(ReschedulePolicy(delay_s=9))}),
        region="eu",
        default_priority=7,
    )

    filled = job.task_groups[0]
    assert (job.name, job.region, job.priority, job.datacenters, job.node_pool) == ("web", "eu", 7, ("*",), "default")
    assert filled.reschedule_policy is not None
    assert filled.reschedule_policy.delay_s == 9.0
    assert filled.disconnect == DisconnectStrategy(lost_after_s=60, replace=True, reconcile="best_score")
    assert filled.volumes["data"].name == "data"
    assert filled.update is not None


def test_types_without_a_policy_do_not_get_one() -> None:
    group = a_group(reschedule_policy=None, update=None, migrate=None)
    job = canonicalise(a_job(type=JobType.SYSBATCH.value, groups=[group], reschedule=ReschedulePolicy()))

    filled = job.task_groups[0]
    assert (filled.reschedule_policy, filled.update, filled.migrate) == (None, None, None)


def test_periodic_and_parameterized_blocks_are_completed() -> None:
    job = canonicalise(
        a_job(periodic=PeriodicConfig(spec_type="", time_zone=""), parameterized_job=ParameterizedJobConfig(payload=""))
    )

    assert job.periodic == PeriodicConfig()
    assert job.parameterized_job == ParameterizedJobConfig()


def test_service_names_are_interpolated() -> None:
    service = Service(name="x-${JOB}-${TASKGROUP}-${TASK}-${BASE}")
    job = canonicalise(a_job(groups=[a_group("g", tasks=[a_task("t", services=(service,))])]))

    assert job.task_groups[0].tasks[0].services[0].name == "x-web-g-t-web-g-t"


def test_signals_that_a_task_may_get_are_asked_of_the_node_once() -> None:
    task = a_task(
        kill_signal="SIGUSR1",
        templates=(Template(change_mode="signal", change_signal="sighup"), Template(change_signal="SIGINT")),
        identities=(WorkloadIdentity(name="x", change_mode="signal", change_signal="SIGUSR2"),),
    )
    job = with_implied_constraints(canonicalise(a_job(groups=[a_group(tasks=[task])])))

    wanted = Constraint(l_target="${attr.os.signals}", r_target="SIGHUP,SIGUSR1,SIGUSR2", operand="set_contains")
    assert job.task_groups[0].constraints == (wanted,)
    assert with_implied_constraints(job) == job


def test_job_without_wishes_gets_no_constraints() -> None:
    job = canonicalise(a_job())

    assert with_implied_constraints(job) == job


def test_old_disconnect_fields_are_read_as_the_block_that_took_their_place() -> None:
    group = a_group(max_client_disconnect_s=60.0, prevent_reschedule_on_lost=True)

    filled = canonicalise(a_job(groups=[group])).task_groups[0]

    assert filled.disconnect == DisconnectStrategy(lost_after_s=60.0, replace=False, reconcile="best_score")
    assert filled.max_client_disconnect_s == 60.0


def test_old_disconnect_fields_beside_a_block_change_nothing() -> None:
    group = a_group(stop_after_client_disconnect_s=60.0, disconnect=DisconnectStrategy(lost_after_s=5.0))

    filled = canonicalise(a_job(groups=[group])).task_groups[0]

    assert filled.disconnect == DisconnectStrategy(lost_after_s=5.0, replace=True, reconcile="best_score")


def test_a_template_that_signals_without_saying_how_hangs_up() -> None:
    task = a_task(templates=(Template(change_mode="signal"), Template(change_mode="restart")))

    filled = canonicalise(a_job(groups=[a_group(tasks=[task])])).task_groups[0].tasks[0]

    assert [template.change_signal for template in filled.templates] == ["SIGHUP", ""]
