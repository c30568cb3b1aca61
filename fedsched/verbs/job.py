"""`job ...`: submit, look, stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsched.model.errors import NotFound
from fedsched.model.job import Job
from fedsched.model.record import to_api
from fedsched.model.summary import JobListStub, TaskGroupSummary
from fedsched.rpc.methods.job import (
    JOB_DEREGISTER,
    JOB_EVALUATIONS,
    JOB_GET,
    JOB_REGISTER,
    JOB_VERSIONS,
    JobDeregisterRequest,
    JobRegisterRequest,
    JobRequest,
    JobWriteReply,
)
from fedsched.verbs.finding import ANY_NAMESPACE, all_jobs, alloc_table, find_job, job_status, job_table
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.job_file import FILE, VAR_FLAGS, read_for_submission
from fedsched.verbs.job_monitor import deployed_table, evaluation_rows, monitor
from fedsched.verbs.placement import failure_lines
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import columns, moment, pairs, short, span

VERBS = Verbs()

DETACH = Flag("detach", "return at once and print the evaluation's id", bool)
EVAL_PRIORITY = Flag("eval-priority", "priority of the evaluation; the job's by default", int, value="number")
JOB = Argument("job", "id of the job, or the beginning of it")


@VERBS.verb(
    "job run",
    "submit a job",
    doc="Submits a job and follows its evaluation. The file is a job file, or a job in JSON as the API has it; - reads"
    " standard input. Exits 0 when everything is placed, 2 when the job was taken but not (yet) placed.\n\n"
    "A job with a multiregion block is followed through all its regions, with a line for each, until its rollout has"
    " ended: 0 if it did well, 1 if not or if it waits for a decision. Ctrl-C ends the following, not the rollout.",
    flags=(
        Flag(
            "check-index",
            "only if the job's modify index is still this; 0: only if it does not exist",
            int,
            value="index",
        ),
        DETACH,
        EVAL_PRIORITY,
        Flag("json", "the file is JSON; the answer is printed as JSON, and nothing is followed", bool),
        Flag("output", "print the job as it would be submitted, and submit nothing", bool),
        Flag("preserve-counts", "keep the counts of groups that exist already", bool),
        *VAR_FLAGS,
        VERBOSE,
    ),
    arguments=(FILE,),
)
def run(terminal: Terminal, given: Given) -> int:
    job, submission, warnings = read_for_submission(terminal, given)
    for warning in warnings:
        terminal.warn(f"Warning: {warning}")
    if given["output"]:
        terminal.show_json({"Job": to_api(job)})
        return OK
    request = JobRegisterRequest(
        job=job,
        enforce_index=given["check-index"] is not None,
        job_modify_index=given["check-index"] or 0,
        preserve_counts=given["preserve-counts"],
        eval_priority=given["eval-priority"] or 0,
        submission=submission,
    )
    reply = terminal.client.call(JOB_REGISTER, request)
    for warning in reply.warnings:
        terminal.warn(f"Warning: {warning}")
    if given["json"]:
        terminal.show_json(to_api(reply))
        return OK
    if reply.rollout_id or reply.regions:
        from fedsched.verbs.job_regions import after_registration  # most jobs are of one region

        return after_registration(terminal, given, job, reply, _namespace_of(job, terminal))
    if given["detach"] or not reply.eval_id:
        terminal.say("Job registration successful")
        if reply.eval_id:
            terminal.say(f"Evaluation ID: {reply.eval_id}")
        return OK
    return _follow(terminal, given, reply, _namespace_of(job, terminal))


@VERBS.verb(
    "job status",
    "list the jobs, or show one",
    doc="Without an argument, lists the jobs. With one, shows that job: what it is, how its groups are doing, its"
    " latest deployment and its allocations.",
    flags=(
        Flag("short", "only the head", bool),
        Flag("evals", "also the job's evaluations", bool),
        Flag("all-allocs", "also allocations of earlier jobs of the same id", bool),
        VERBOSE,
        JSON,
        TEMPLATE,
    ),
    arguments=(Argument("job", JOB.doc, optional=True),),
    regions=Regions.EACH,
)
def status(terminal: Terminal, given: Given) -> int:
    if not given["job"]:
        return _list(terminal, given)
    stub = find_job(terminal, given["job"])
    job = terminal.client.call(JOB_GET, JobRequest(job_id=stub.id), namespace=stub.namespace).job
    if terminal.formatted(given, lambda: to_api(job)):
        return OK
    _show_head(terminal, job, stub)
    if given["short"]:
        return OK
    if job.is_periodic or job.is_parameterized:
        _show_children(terminal, job, stub)
        return OK
    _show_summary(terminal, job, stub)
    if given["evals"]:
        request = JobRequest(job_id=job.id)
        found = terminal.client.call(JOB_EVALUATIONS, request, namespace=job.namespace).evaluations
        terminal.heading("Evaluations")
        head = ("ID", "Priority", "Triggered By", "Status", "Placement Failures")
        terminal.write(columns(head, evaluation_rows(found, verbose=given["verbose"])))
    _show_rollout(terminal, job, given)
    return OK


@VERBS.verb(
    "job inspect",
    "print a job as the API gives it",
    flags=(
        Flag("version", "an older version of it", int, value="number"),
        Flag("json", "print JSON; it always does", bool),
        Flag("hcl", "the text that the job was submitted as", bool),
        TEMPLATE,
    ),
    arguments=(JOB,),
    regions=Regions.EACH,
)
def inspect(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    if given["hcl"]:
        return _show_source(terminal, stub, given["version"])
    request = JobRequest(job_id=stub.id)
    if given["version"] is None:
        job = terminal.client.call(JOB_GET, request, namespace=stub.namespace).job
    else:
        kept = terminal.client.call(JOB_VERSIONS, request, namespace=stub.namespace).versions
        job = _version(kept, given["version"], stub.id)
    if not terminal.formatted(given, lambda: {"Job": to_api(job)}):
        terminal.show_json({"Job": to_api(job)})
    return OK


@VERBS.verb(
    "job stop",
    "stop a job",
    doc="Stops a job and follows the evaluation. It stays known, and its versions with it, unless it is purged.",
    flags=(
        Flag("purge", "forget the job instead of keeping it stopped", bool),
        Flag("global", "in all regions that a multi-region job lists, not in this one alone", bool),
        DETACH,
        EVAL_PRIORITY,
        Flag("yes", "do not ask when only the beginning of the id was typed", bool),
        VERBOSE,
        Flag("json", "return at once and print the answer as JSON", bool),
    ),
    arguments=(JOB,),
)
def stop(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    is_sure = given["yes"] or stub.id == given["job"]
    if not is_sure and not terminal.confirm(f'Are you sure you want to stop job "{stub.id}"?'):
        terminal.say("Cancelling job stop")
        return OK
    request = JobDeregisterRequest(
        job_id=stub.id, purge=given["purge"], eval_priority=given["eval-priority"] or 0, global_=given["global"]
    )
    reply = terminal.client.call(JOB_DEREGISTER, request, namespace=stub.namespace)
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    if reply.regions:
        from fedsched.verbs.job_regions import after_write

        return after_write(terminal, given, reply.regions, stub.namespace, "stopped")
    if given["detach"] or not reply.eval_id:
        terminal.say(reply.eval_id or f'Job "{stub.id}" stopped')
        return OK
    return _follow(terminal, given, reply, stub.namespace)


def _show_source(terminal: Terminal, stub: JobListStub, version: int | None) -> int:
    from fedsched.rpc.methods.job_extras import JOB_SUBMISSION, JobSubmissionRequest

    if version is None:
        version = terminal.client.call(JOB_GET, JobRequest(job_id=stub.id), namespace=stub.namespace).job.version
    request = JobSubmissionRequest(job_id=stub.id, version=version)
    source = terminal.client.call(JOB_SUBMISSION, request, namespace=stub.namespace).submission.source
    terminal.write(source if source.endswith("\n") else f"{source}\n")
    return OK


def _namespace_of(job: Job, terminal: Terminal) -> str:
    """Where the job ended up: in its own namespace, or in the command's if it names none."""
    wanted = terminal.target.namespace
    return wanted if job.namespace in ("", "default") and wanted != ANY_NAMESPACE else job.namespace


def _follow(terminal: Terminal, given: Given, reply: JobWriteReply, namespace: str) -> int:
    return monitor(terminal, reply.eval_id, namespace=namespace, verbose=given["verbose"])


def _list(terminal: Terminal, given: Given) -> int:
    found = all_jobs(terminal, "")
    if terminal.formatted(given, lambda: [to_api(stub) for stub in found]):
        return OK
    if not found:
        terminal.say("No running jobs")
        return OK
    terminal.write(job_table(found, with_namespace=terminal.target.namespace == ANY_NAMESPACE))
    return OK


def _show_head(terminal: Terminal, job: Job, stub: JobListStub) -> None:
    head: list[tuple[str, Any]] = [
        ("ID", job.id),
        ("Name", job.name or job.id),
        ("Submit Date", moment(job.submit_time_ns)),
        ("Type", job.type),
        ("Priority", job.priority),
        ("Datacenters", ",".join(job.datacenters)),
        ("Namespace", job.namespace),
        ("Node Pool", job.node_pool),
        ("Status", job_status(job.status.value, job.stop)),
        ("Periodic", job.is_periodic),
        ("Parameterized", job.is_parameterized),
    ]
    if job.parent_id:
        head.append(("Parent Job", job.parent_id))
    if job.is_periodic:
        head.append(("Next Periodic Launch", _next_launch(job, terminal.now_ns())))
    terminal.write(pairs(head))


def _next_launch(job: Job, now_ns: int) -> str:
    from fedsched.model.periodic import next_launch

    if job.stop or (job.periodic is not None and not job.periodic.enabled):
        return "none (stopped)" if job.stop else "none (not enabled)"
    due_ns = next_launch(job, now_ns)
    return f"{moment(due_ns)} ({span((due_ns - now_ns) / 1e9)} from now)" if due_ns else "never"


def _show_children(terminal: Terminal, job: Job, stub: JobListStub) -> None:
    """What a periodic or parameterized job takes, and what it has launched."""
    rule = job.parameterized_job
    if rule is not None:
        terminal.heading("Parameterized Job")
        rows = [
            ("Payload", rule.payload),
            ("Required Metadata", ", ".join(rule.meta_required)),
            ("Optional Metadata", ", ".join(rule.meta_optional)),
        ]
        terminal.write(pairs(rows))
    children = stub.job_summary.children if stub.job_summary else None
    if children is not None:
        terminal.heading("Parameterized Job Summary" if rule is not None else "Children Job Summary")
        terminal.write(columns(("Pending", "Running", "Dead"), [(children.pending, children.running, children.dead)]))
    launched = [one for one in all_jobs(terminal, f"{job.id}/") if one.parent_id == job.id]
    terminal.heading("Dispatched Jobs" if rule is not None else "Previously Launched Jobs")
    if not launched:
        terminal.say("No instances dispatched" if rule is not None else "No instances launched")
        return
    terminal.write(columns(("ID", "Status"), [(one.id, job_status(one.status.value, one.stop)) for one in launched]))


def _show_rollout(terminal: Terminal, job: Job, given: Given) -> None:
    """The rollout through the regions, the latest deployment, what could not be placed, and the allocations."""
    from fedsched.rpc.methods.job_extras import JOB_ALLOCS, JOB_LATEST_DEPLOYMENT, JobAllocsRequest

    if job.multiregion is not None:
        from fedsched.verbs.rollout_view import rollout_of_job, show_in_short

        view = rollout_of_job(terminal, job.id, job.namespace)
        if view is not None:
            show_in_short(terminal, view, verbose=given["verbose"])
    request = JobRequest(job_id=job.id)
    deployment = terminal.client.call(JOB_LATEST_DEPLOYMENT, request, namespace=job.namespace).deployment
    if deployment is not None:
        terminal.heading("Latest Deployment")
        head = [
            ("ID", short(deployment.id, verbose=given["verbose"])),
            ("Status", deployment.status.value),
            ("Description", deployment.status_description),
        ]
        terminal.write(pairs(head))
        terminal.heading("Deployed")
        terminal.write(deployed_table(deployment))
    _show_failures(terminal, job)
    asked = JobAllocsRequest(job_id=job.id, all=given["all-allocs"])
    allocs = terminal.client.call(JOB_ALLOCS, asked, namespace=job.namespace).allocs
    terminal.heading("Allocations")
    terminal.write(alloc_table(terminal, allocs, verbose=given["verbose"]) if allocs else "No allocations placed\n")


def _show_failures(terminal: Terminal, job: Job) -> None:
    """Why the job's newest evaluation could not place everything, while something still waits."""
    found = terminal.client.call(JOB_EVALUATIONS, JobRequest(job_id=job.id), namespace=job.namespace).evaluations
    if not any(one.status.value == "blocked" for one in found):
        return
    newest = next((one for one in found if one.failed_tg_allocs), None)
    if newest is not None:
        terminal.heading("Placement Failure")
        for line in failure_lines(newest.failed_tg_allocs, newest.queued_allocations):
            terminal.say(line)


def _show_summary(terminal: Terminal, job: Job, stub: JobListStub) -> None:
    known = stub.job_summary.summary if stub.job_summary else {}
    terminal.heading("Summary")
    rows = []
    for name in sorted({group.name for group in job.task_groups} | set(known)):
        one = known.get(name, TaskGroupSummary())
        rows.append((name, one.queued, one.starting, one.running, one.failed, one.complete, one.lost, one.unknown))
    head = ("Task Group", "Queued", "Starting", "Running", "Failed", "Complete", "Lost", "Unknown")
    terminal.write(columns(head, rows))


def _version(kept: Sequence[Job], number: int, job_id: str) -> Job:
    for job in kept:
        if job.version == number:
            return job
    have = ", ".join(str(job.version) for job in kept)
    raise NotFound(f'job "{job_id}" has no version {number}', hint=f"kept are {have}")
