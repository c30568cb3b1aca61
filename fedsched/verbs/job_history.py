"""`job history`, `job revert`, `job tag`: the versions of a job."""

from __future__ import annotations

from typing import Any

from fedsched.model.errors import NotFound
from fedsched.model.job import Job
from fedsched.model.record import to_api
from fedsched.rpc.methods.job import JOB_VERSIONS, JobRequest
from fedsched.rpc.methods.job_extras import JOB_REVERT, JOB_TAG, JobRevertRequest, JobTagRequest
from fedsched.verbs.finding import find_job
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.job_monitor import monitor
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import as_json, moment, pairs

VERBS = Verbs()

JOB = Argument("job", "id of the job, or the beginning of it")
VERSION = Flag("version", "only this version", int, value="number")


@VERBS.verb(
    "job history",
    "list the versions of a job that are kept",
    flags=(
        Flag("p", "how each differs from the one before it", bool),
        Flag("full", "the whole job of each", bool),
        VERSION,
        JSON,
        TEMPLATE,
    ),
    arguments=(JOB,),
    regions=Regions.EACH,
)
def history(terminal: Terminal, given: Given) -> int:
    stub, kept = _kept(terminal, given["job"])
    chosen = kept
    if given["version"] is not None:
        chosen = [_version(kept, str(given["version"]), stub)]
    if terminal.formatted(given, lambda: [to_api(job) for job in chosen]):
        return OK
    for number, job in enumerate(chosen):
        if number:
            terminal.say()
        terminal.write(pairs(_head(job)))
        if given["p"]:
            _show_diff(terminal, kept, job)
        if given["full"]:
            terminal.write(as_json({"Job": to_api(job)}))
    return OK


@VERBS.verb(
    "job revert",
    "go back to an earlier version of a job",
    flags=(Flag("detach", "return at once and print the evaluation's id", bool), VERBOSE, JSON),
    arguments=(JOB, Argument("version", "number or tag of the version")),
)
def revert(terminal: Terminal, given: Given) -> int:
    stub, kept = _kept(terminal, given["job"])
    wanted = _version(kept, given["version"], stub)
    request = JobRevertRequest(job_id=stub, job_version=wanted.version, enforce_prior_version=kept[0].version)
    reply = terminal.client.call(JOB_REVERT, request, namespace=wanted.namespace)
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    if given["detach"] or not reply.eval_id:
        terminal.say("Job reverted")
        if reply.eval_id:
            terminal.say(f"Evaluation ID: {reply.eval_id}")
        return OK
    return monitor(terminal, reply.eval_id, namespace=wanted.namespace, verbose=given["verbose"])


@VERBS.verb(
    "job tag apply",
    "name a version of a job, which keeps it",
    flags=(
        Flag("name", "the tag", value="name"),
        Flag("description", "what is special about it", value="text"),
        Flag("version", "which version; the newest unless said", int, value="number"),
        JSON,
    ),
    arguments=(JOB,),
)
def tag_apply(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    request = JobTagRequest(
        job_id=stub.id, name=_tag(given), description=given["description"] or "", version=given["version"]
    )
    reply = terminal.client.call(JOB_TAG, request, namespace=stub.namespace)
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f'Job version of "{stub.id}" tagged with name "{request.name}"')
    return OK


@VERBS.verb(
    "job tag unset",
    "take the name of a version away",
    flags=(Flag("name", "the tag", value="name"), JSON),
    arguments=(JOB,),
)
def tag_unset(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    request = JobTagRequest(job_id=stub.id, name=_tag(given), unset=True)
    reply = terminal.client.call(JOB_TAG, request, namespace=stub.namespace)
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f'Tag "{request.name}" removed from job "{stub.id}"')
    return OK


def _kept(terminal: Terminal, typed: str) -> tuple[str, list[Job]]:
    """The job's id and its versions, newest first."""
    stub = find_job(terminal, typed)
    reply = terminal.client.call(JOB_VERSIONS, JobRequest(job_id=stub.id), namespace=stub.namespace)
    return stub.id, list(reply.versions)


def _version(kept: list[Job], wanted: str, job_id: str) -> Job:
    """The version of this number, or with this tag."""
    for job in kept:
        if wanted == str(job.version) or (job.version_tag is not None and job.version_tag.name == wanted):
            return job
    have = ", ".join(str(job.version) for job in kept)
    raise NotFound(f'job "{job_id}" has no version {wanted}', hint=f"kept are {have}")


def _tag(given: Given) -> str:
    if not given["name"]:
        raise BadUsage("-name is missing", hint="name the tag")
    name: str = given["name"]
    return name


def _head(job: Job) -> list[tuple[str, Any]]:
    head: list[tuple[str, Any]] = [
        ("Version", job.version),
        ("Stable", job.stable),
        ("Submit Date", moment(job.submit_time_ns)),
    ]
    if job.version_tag is not None:
        head.append(("Tag Name", job.version_tag.name))
        if job.version_tag.description:
            head.append(("Tag Description", job.version_tag.description))
    return head


def _show_diff(terminal: Terminal, kept: list[Job], job: Job) -> None:
    from fedsched.model.diff import diff_jobs
    from fedsched.verbs.diff_text import diff_lines

    before = next((one for one in kept if one.version < job.version), None)
    if before is None:
        return
    terminal.say("Diff        =")
    for line in diff_lines(diff_jobs(before, job), verbose=False):
        terminal.say(line)
