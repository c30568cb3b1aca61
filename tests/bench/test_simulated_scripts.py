"""What simulated tasks do is read from their job."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fedsched.bench import simulated_scripts
from fedsched.bench.simulated_scripts import FOR_EVER, Script, Scripts, script_of
from fedsched.codec import to_bytes_sparse
from fedsched.model.job import Job
from fedsched.model.policies import MigrateStrategy, RestartPolicy, UpdateStrategy
from fedsched.model.resources import TaskLifecycle
from fedsched.model.task import Task
from fedsched.rpc.methods.node_frames import WatchOrigin
from tests.builders import a_group, a_job, a_task

NEVER_AGAIN = RestartPolicy(attempts=0, mode="fail")


def a_mock(name: str = "web", *, restart: RestartPolicy = NEVER_AGAIN, **knobs: Any) -> Task:
    return a_task(name, config=knobs, restart_policy=restart)


def a_script(*tasks: Task, kind: str = "batch", is_deployed: bool = False, **fields: Any) -> Script:
    fields = {"migrate": None, "update": None, **fields}
    return script_of(a_job(type=kind, groups=[a_group(tasks=tasks, **fields)]), "group", is_deployed, batch_s=30.0)


def test_a_batch_task_runs_as_long_as_it_says_and_ends_as_it_says() -> None:
    assert a_script(a_mock(run_for="10s")) == Script(runs_for_s=10.0)
    assert a_script(a_mock(run_for="10s", exit_code=2)) == Script(runs_for_s=10.0, fails=True)
    assert a_script(a_mock(run_for=10, exit_signal="9")) == Script(runs_for_s=10.0, fails=True)


def test_tasks_that_do_not_say_how_long_run_for_ever_or_a_while() -> None:
    assert a_script(a_mock()) == Script(runs_for_s=30.0)
    assert a_script(a_task(driver="raw_exec", config={"run_for": "1s"})) == Script(runs_for_s=30.0)
    assert a_script(a_mock(), kind="sysbatch") == Script(runs_for_s=30.0)
    assert a_script(a_mock(), kind="service") == a_script(a_mock(), kind="system") == FOR_EVER
    assert a_script(a_mock(exit_code=1)) == Script(fails_at_start=True)


def test_a_task_that_cannot_start_fails_unless_trying_again_may_help() -> None:
    assert a_script(a_mock(start_error="no")).fails_at_start
    again = RestartPolicy(attempts=3, delay_s=2.0, interval_s=60.0)
    assert a_script(a_mock(start_error="no", restart=again)).fails_at_start
    later = a_script(a_mock(start_error="no", start_error_recoverable=True, restart=again))
    assert (later.runs_for_s, later.fails, later.fails_at_start) == (6.0, True, False)


@pytest.mark.parametrize("knobs", [{"run_for": "soon"}, {"exit_code": "bad"}, {"kill_after": [1]}])
def test_settings_that_no_driver_could_read_fail_at_the_start(knobs: dict[str, Any]) -> None:
    assert a_script(a_mock(**knobs)).fails_at_start


def test_starts_may_be_held_up_and_stops_take_time() -> None:
    script = a_script(a_mock("a", start_block_for="2s", run_for="1h"), a_mock("b", kill_after="3s", run_for="1h"))
    assert (script.starts_after_s, script.stops_after_s) == (2.0, 3.0)


def test_restarts_on_the_spot_are_part_of_the_run() -> None:
    twice = RestartPolicy(attempts=2, delay_s=5.0, interval_s=100.0, mode="fail")
    assert a_script(a_mock(run_for="10s", restart=twice)) == Script(runs_for_s=10.0)  # a batch task that ends well
    assert a_script(a_mock(run_for="10s", exit_code=1, restart=twice)) == Script(runs_for_s=40.0, fails=True)
    assert a_script(a_mock(run_for="10s", restart=twice), kind="service") == Script(runs_for_s=40.0, fails=True)
    rarely = a_script(a_mock(run_for="1m", exit_code=1, restart=twice))
    assert rarely == FOR_EVER  # never twice within the interval
    patient = RestartPolicy(attempts=1, delay_s=5.0, interval_s=100.0, mode="delay")
    assert a_script(a_mock(run_for="10s", exit_code=1, restart=patient)) == FOR_EVER
    bare = a_task(config={"run_for": "10s", "exit_code": 1}, restart_policy=None)
    assert a_script(bare, restart_policy=None) == Script(runs_for_s=10.0, fails=True)


def test_a_group_is_over_with_its_last_task_its_leader_or_its_first_failure() -> None:
    short, long = a_mock("a", run_for="1s"), a_mock("b", run_for="9s")
    assert a_script(short, long).runs_for_s == 9.0
    leader = a_task("a", config={"run_for": "1s"}, leader=True, restart_policy=NEVER_AGAIN)
    assert a_script(leader, long) == Script(runs_for_s=1.0)
    broken = a_mock("c", run_for="2s", exit_code=1)
    assert a_script(short, long, broken) == Script(runs_for_s=2.0, fails=True)
    beside = a_task("log", lifecycle=TaskLifecycle(hook="prestart", sidecar=True))
    assert a_script(short, beside).runs_for_s == 1.0
    assert a_script(beside) == FOR_EVER


def test_health_is_told_where_a_deployment_or_a_drain_waits_for_it() -> None:
    update = UpdateStrategy(min_healthy_time_s=4.0)
    migrate = MigrateStrategy(min_healthy_time_s=7.0)
    both: dict[str, Any] = {"update": update, "migrate": migrate}
    assert a_script(a_mock(), kind="service", is_deployed=True, **both).healthy_after_s == 4.0
    assert a_script(a_mock(), kind="service", **both).healthy_after_s == 7.0
    assert not a_script(a_mock(), kind="batch", **both).is_watched
    by_hand = UpdateStrategy(health_check="manual")
    assert math.isinf(a_script(a_mock(), kind="service", is_deployed=True, update=by_hand).healthy_after_s)
    assert a_script(a_mock(start_error="no"), kind="service", is_deployed=True, update=update).healthy_after_s == 4.0


def encoded(job: Job, ref: int) -> tuple[bytes, bytes]:
    origin = WatchOrigin(ref=ref, job_id=job.id, job_create_index=job.create_index, group="group")
    return to_bytes_sparse(job), to_bytes_sparse(origin)


def test_what_many_nodes_are_sent_alike_is_decoded_once() -> None:
    scripts = Scripts(batch_s=5.0)
    job, origin = encoded(a_job(type="batch", groups=[a_group(tasks=[a_mock()], migrate=None)], create_index=3), 7)
    for _ in range(10):
        scripts.learn(job)
        assert scripts.origin(origin) == (7, Script(runs_for_s=5.0))
    assert scripts.decoded == 2


def test_an_origin_without_a_job_runs_until_it_is_stopped() -> None:
    scripts = Scripts()
    job, origin = encoded(a_job(type="batch", groups=[a_group(tasks=[a_mock()], migrate=None)]), 1)
    assert scripts.origin(origin) == (1, FOR_EVER)
    scripts.learn(job)
    assert scripts.origin(origin)[1].runs_for_s == 30.0


def test_what_a_fleet_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_scripts, "KEPT_MAX", 3)
    scripts = Scripts()
    for number in range(10):
        job, origin = encoded(a_job(f"job{number}"), number)
        scripts.learn(job)
        scripts.origin(origin)
    assert (len(scripts._jobs), len(scripts._origins), len(scripts._seen)) == (3, 3, 3)
