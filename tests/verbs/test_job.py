from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.errors import Conflict, NotFound
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, JobStatus, PeriodicConfig
from fedsched.model.summary import JobListStub, JobSummary, TaskGroupSummary, job_stub
from fedsched.rpc.methods.evaluation import EVAL_GET, EvaluationGetReply
from fedsched.rpc.methods.job import (
    JOB_DEREGISTER,
    JOB_EVALUATIONS,
    JOB_GET,
    JOB_LIST,
    JOB_REGISTER,
    JOB_VERSIONS,
    JobDeregisterRequest,
    JobEvaluationsReply,
    JobGetReply,
    JobListReply,
    JobListRequest,
    JobVersionsReply,
    JobWriteReply,
)
from tests.verbs.commands import NOW_NS, STAMP, fedsched

EVAL_ID = "8f0b2a77-0000-4000-8000-000000000000"
WRITTEN = JobWriteReply(eval_id=EVAL_ID, index=9, job_modify_index=9)


def a_job(job_id: str = "web", **more: Any) -> Job:
    fields: dict[str, Any] = {
        "name": job_id,
        "priority": 50,
        "datacenters": ("dc1", "dc2"),
        "node_pool": "default",
        "submit_time_ns": NOW_NS,
        "task_groups": (TaskGroup(name="front", count=2), TaskGroup(name="back", count=1)),
    }
    return Job(id=job_id, **(fields | more))


def listing(*jobs: Job, summary: JobSummary | None = None, page: int = 100) -> Callable[[JobListRequest], JobListReply]:
    """Answer lists of these jobs, a page at a time."""
    stubs = [job_stub(job, summary) for job in sorted(jobs, key=lambda job: job.id)]

    def answer(request: JobListRequest) -> JobListReply:
        found = [stub for stub in stubs if stub.id.startswith(request.prefix) and stub.id >= request.next_token]
        following = found[page].id if len(found) > page else ""
        return JobListReply(jobs=tuple(found[:page]), next_token=following)

    return answer


def getting(*jobs: Job) -> Callable[[Any], JobGetReply]:
    def answer(request: Any) -> JobGetReply:
        return JobGetReply(job=next(job for job in jobs if job.id == request.job_id))

    return answer


def an_evaluation(status: EvaluationStatus = EvaluationStatus.PENDING, **more: Any) -> Evaluation:
    return Evaluation(id=EVAL_ID, job_id="web", priority=50, triggered_by="job-register", status=status, **more)


def evaluations(*outcomes: Evaluation) -> Callable[[Any], EvaluationGetReply]:
    left = list(outcomes)

    def answer(_: Any) -> EvaluationGetReply:
        return EvaluationGetReply(evaluation=left.pop(0) if len(left) > 1 else left[0])

    return answer


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "web.json"
    path.write_text(json.dumps({"Job": {"ID": "web", "TaskGroups": [{"Name": "front", "Count": 2}]}}))
    return str(path)


# --- run


def test_run_detached_prints_the_evaluation_id(file: str) -> None:
    seen = fedsched(f"job run -detach {file}", {JOB_REGISTER: lambda _: WRITTEN})

    assert seen.out == f"Job registration successful\nEvaluation ID: {EVAL_ID}\n"
    (request,) = seen.agent.requests(JOB_REGISTER)
    assert (request.job.id, request.job.task_groups[0].count, request.enforce_index) == ("web", 2, False)
    assert seen.agent.metas(JOB_REGISTER)[0].request_id is not None
    assert seen.code == 0


def test_run_with_json_prints_the_answer_as_json_and_follows_nothing(file: str) -> None:
    seen = fedsched(f"job run -json {file}", {JOB_REGISTER: lambda _: WRITTEN})

    assert json.loads(seen.out)["EvalID"] == EVAL_ID
    assert seen.code == 0


def test_run_from_standard_input_with_the_old_spelling() -> None:
    seen = fedsched("run -detach -", {JOB_REGISTER: lambda _: WRITTEN}, stdin='{"ID": "web"}')

    assert seen.code == 0
    assert seen.agent.requests(JOB_REGISTER)[0].job.id == "web"


def test_run_waits_at_the_server_for_an_evaluation_that_nobody_has_taken_up(file: str) -> None:
    moving = evaluations(an_evaluation(), an_evaluation(), an_evaluation(EvaluationStatus.COMPLETE))

    seen = fedsched(f"job run {file}", {JOB_REGISTER: lambda _: WRITTEN, EVAL_GET: moving})

    assert seen.out.splitlines()[:2] == [
        f'==> {STAMP}: Monitoring evaluation "8f0b2a77"',
        f'    {STAMP}: Evaluation triggered by job "web"',
    ]
    assert seen.code == 0
    assert [(meta.min_index, meta.max_wait_s) for meta in seen.agent.metas(EVAL_GET)] == [(0, 0), (7, 10), (7, 10)]


def test_run_follows_an_evaluation_that_moves(file: str) -> None:
    moving = evaluations(an_evaluation(), an_evaluation(EvaluationStatus.COMPLETE))

    seen = fedsched(f"job run -verbose {file}", {JOB_REGISTER: lambda _: WRITTEN, EVAL_GET: moving})

    assert seen.out.splitlines()[2:] == [
        f'    {STAMP}: Evaluation status changed: "pending" -> "complete"',
        f'==> {STAMP}: Evaluation "{EVAL_ID}" finished with status "complete"',
    ]
    assert seen.code == 0


@pytest.mark.parametrize(
    ("outcome", "code", "text"),
    [
        (an_evaluation(EvaluationStatus.FAILED), 1, 'finished with status "failed"'),
        (an_evaluation(EvaluationStatus.BLOCKED, status_description="no room"), 2, 'is "blocked": no room'),
        (
            an_evaluation(EvaluationStatus.COMPLETE, failed_tg_allocs={"front": AllocMetric(coalesced_failures=1)}),
            2,
            'Task Group "front" (failed to place 2 allocations)',
        ),
    ],
)
def test_the_exit_code_says_what_came_of_it(file: str, outcome: Evaluation, code: int, text: str) -> None:
    seen = fedsched(f"job run {file}", {JOB_REGISTER: lambda _: WRITTEN, EVAL_GET: evaluations(outcome)})

    assert text in seen.out
    assert seen.code == code


def test_run_passes_its_flags_on_and_shows_warnings(file: str) -> None:
    reply = JobWriteReply(warnings=("consul is served natively",))

    seen = fedsched(
        f"job run -check-index 0 -preserve-counts -eval-priority=70 -namespace shop {file}",
        {JOB_REGISTER: lambda _: reply},
    )

    (request,) = seen.agent.requests(JOB_REGISTER)
    assert (request.enforce_index, request.job_modify_index) == (True, 0)
    assert (request.preserve_counts, request.eval_priority) == (True, 70)
    assert seen.agent.metas(JOB_REGISTER)[0].namespace == "shop"
    assert seen.out == "Job registration successful\n"
    assert seen.err == "Warning: consul is served natively\n"


def test_a_job_that_names_no_namespace_is_followed_in_the_commands(file: str) -> None:
    answers = {JOB_REGISTER: lambda _: WRITTEN, EVAL_GET: evaluations(an_evaluation(EvaluationStatus.COMPLETE))}

    seen = fedsched(f"job run -namespace shop {file}", answers)

    assert seen.agent.metas(EVAL_GET)[0].namespace == "shop"


def test_run_with_output_submits_nothing(file: str) -> None:
    seen = fedsched(f"job run -output {file}")

    assert json.loads(seen.out)["Job"]["TaskGroups"][0]["Name"] == "front"
    assert seen.agent.asked == []


def test_members_of_the_file_that_nobody_knows_are_warned_of() -> None:
    seen = fedsched("job run -detach -", {JOB_REGISTER: lambda _: WRITTEN}, stdin='{"ID": "web", "Prioritty": 5}')

    assert seen.err == "Warning: Job.Prioritty is not known and was ignored\n"
    assert seen.code == 0


def test_a_refused_registration_exits_1(file: str) -> None:
    def refuse(_: Any) -> JobWriteReply:
        raise Conflict('job "web" was changed at index 8', hint="look at it and run again")

    seen = fedsched(f"job run -check-index 5 {file}", {JOB_REGISTER: refuse})

    assert seen.err == 'Error: job "web" was changed at index 8\n  look at it and run again\n'
    assert (seen.code, seen.out) == (1, "")


# --- status


def test_status_lists_the_jobs() -> None:
    jobs = (
        a_job("web"),
        a_job("cron", type="batch", periodic=PeriodicConfig(), status=JobStatus.RUNNING),
        a_job("old", status=JobStatus.DEAD, stop=True, submit_time_ns=0),
    )

    seen = fedsched("job status", {JOB_LIST: listing(*jobs, page=2)})

    assert seen.out == (
        "ID    Type            Priority  Status          Submit Date\n"
        f"cron  batch/periodic  50        running         {STAMP}\n"
        "old   service         50        dead (stopped)  N/A\n"
        f"web   service         50        pending         {STAMP}\n"
    )
    assert len(seen.agent.asked) == 2


def test_status_of_all_namespaces_shows_them() -> None:
    seen = fedsched("status -namespace '*'", {JOB_LIST: listing(a_job("web", namespace="shop"))})

    assert seen.out.splitlines()[0].split("  ")[:2] == ["ID", " Namespace"]
    assert "web  shop" in seen.out


def test_status_without_jobs_and_as_json() -> None:
    assert fedsched("job status", {JOB_LIST: listing()}).out == "No running jobs\n"
    assert fedsched("job status -json", {JOB_LIST: listing()}).out == "[]\n"
    assert json.loads(fedsched("job status -json", {JOB_LIST: listing(a_job())}).out)[0]["ID"] == "web"


STATUS_HEAD = f"""\
ID            = web
Name          = web
Submit Date   = {STAMP}
Type          = service
Priority      = 50
Datacenters   = dc1,dc2
Namespace     = default
Node Pool     = default
Status        = pending
Periodic      = false
Parameterized = false
"""


def test_status_of_one_job() -> None:
    job = a_job()
    summary = JobSummary(job_id="web", summary={"front": TaskGroupSummary(running=2, failed=1)})
    answers = {JOB_LIST: listing(job, summary=summary), JOB_GET: getting(job)}

    seen = fedsched("job status web", answers)

    assert seen.out == (
        STATUS_HEAD + "\nSummary\n"
        "Task Group  Queued  Starting  Running  Failed  Complete  Lost  Unknown\n"
        "back        0       0         0        0       0         0     0\n"
        "front       0       0         2        1       0         0     0\n"
        "\nAllocations\nNo allocations placed\n"
    )
    assert fedsched("job status -short web", answers).out == STATUS_HEAD
    assert json.loads(fedsched("job status -json web", answers).out)["ID"] == "web"


def test_status_with_evaluations() -> None:
    job = a_job()
    found = JobEvaluationsReply(evaluations=(an_evaluation(EvaluationStatus.BLOCKED), an_evaluation()))

    seen = fedsched(
        "job status -evals web", {JOB_LIST: listing(job), JOB_GET: getting(job), JOB_EVALUATIONS: lambda _: found}
    )

    assert (
        "\nEvaluations\n"
        "ID        Priority  Triggered By  Status   Placement Failures\n"
        "8f0b2a77  50        job-register  blocked  N/A - In Progress\n"
        "8f0b2a77  50        job-register  pending  false\n"
    ) in seen.out


def test_a_unique_prefix_will_do_and_an_exact_id_wins() -> None:
    jobs = (a_job("web"), a_job("web-2"), a_job("api"))
    answers = {JOB_LIST: listing(*jobs), JOB_GET: getting(*jobs)}

    assert fedsched("job status -short ap", answers).out.startswith("ID            = api\n")
    assert fedsched("job status -short web", answers).out.startswith("ID            = web\n")


def test_several_matches_are_listed_and_none_is_said() -> None:
    answers = {JOB_LIST: listing(a_job("web-1"), a_job("web-2"))}

    several = fedsched("job status web", answers)
    assert several.err.startswith("Error: Prefix matched multiple jobs\n\nID     Namespace  Type ")
    assert several.code == 1

    none = fedsched("job status x", answers)
    assert none.code == 1
    assert none.err.startswith('Error: No job(s) with prefix or id "x" found\n')
    assert "`fedsched job status` lists them" in none.err


def test_a_list_that_does_not_move_on_is_given_up() -> None:
    stub = JobListStub(id="web")

    seen = fedsched("job status", {JOB_LIST: lambda _: JobListReply(jobs=(stub,), next_token="web")})

    assert seen.err.startswith("Error: the server's list does not move on from 'web'\n")


# --- inspect


def test_inspect_prints_the_job_as_the_api_gives_it() -> None:
    job = a_job()
    answers = {
        JOB_LIST: listing(job),
        JOB_GET: getting(job),
        JOB_VERSIONS: lambda _: JobVersionsReply(versions=(a_job(version=2), a_job(version=1, priority=7))),
    }

    assert json.loads(fedsched("job inspect web", answers).out)["Job"]["Datacenters"] == ["dc1", "dc2"]
    assert json.loads(fedsched("inspect -json we", answers).out)["Job"]["ID"] == "web"
    assert json.loads(fedsched("job inspect -version 1 web", answers).out)["Job"]["Priority"] == 7
    assert fedsched("job inspect -t '{{.Job.ID}}' web", answers).out == "web\n"
    assert fedsched("job inspect -version 9 web", answers).err == (
        'Error: job "web" has no version 9\n  kept are 2, 1\n'
    )


# --- stop


def stopping(*jobs: Job) -> dict[Any, Any]:
    return {
        JOB_LIST: listing(*jobs),
        JOB_DEREGISTER: lambda _: WRITTEN,
        EVAL_GET: evaluations(an_evaluation(EvaluationStatus.COMPLETE)),
    }


def test_stop_detached_prints_the_evaluation_id() -> None:
    seen = fedsched("job stop -purge -detach -eval-priority 60 web", stopping(a_job()))

    assert seen.out == f"{EVAL_ID}\n"
    assert seen.agent.requests(JOB_DEREGISTER) == [JobDeregisterRequest(job_id="web", purge=True, eval_priority=60)]


def test_stop_as_json_returns_at_once() -> None:
    seen = fedsched("job stop -json web", stopping(a_job()))

    assert json.loads(seen.out)["EvalID"] == EVAL_ID
    assert seen.agent.requests(EVAL_GET) == []


def test_stop_follows_the_evaluation() -> None:
    seen = fedsched("stop web", stopping(a_job()))

    assert seen.out.endswith('finished with status "complete"\n')
    assert seen.code == 0


def test_stop_of_a_job_without_evaluation_says_so() -> None:
    answers = stopping(a_job()) | {JOB_DEREGISTER: lambda _: JobWriteReply()}

    assert fedsched("job stop web", answers).out == 'Job "web" stopped\n'


def test_stop_by_a_prefix_asks_first() -> None:
    question = 'Are you sure you want to stop job "web-1"? [y/N] '

    refused = fedsched("job stop -detach web", stopping(a_job("web-1")), typed="n\n")
    agreed = fedsched("job stop -detach web", stopping(a_job("web-1")), typed="y\n")
    assured = fedsched("job stop -detach -yes web", stopping(a_job("web-1")))

    assert refused.out == question + "Cancelling job stop\n"
    assert refused.agent.requests(JOB_DEREGISTER) == []
    assert agreed.out == question + f"{EVAL_ID}\n"
    assert assured.out == f"{EVAL_ID}\n"


def test_a_job_that_vanished_meanwhile_is_said() -> None:
    def gone(_: Any) -> JobWriteReply:
        raise NotFound("no job 'web'")

    assert fedsched("job stop web", stopping(a_job()) | {JOB_DEREGISTER: gone}).err == "Error: no job 'web'\n"
