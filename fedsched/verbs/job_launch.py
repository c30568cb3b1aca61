"""`job dispatch`, `job periodic force`, `job scale`, `job eval`: setting a job going in another way than running it."""

from __future__ import annotations

from fedsched.model.errors import BadRequest
from fedsched.model.record import to_api
from fedsched.rpc.methods.job import JOB_GET, JobRequest
from fedsched.rpc.methods.job_extras import (
    JOB_DISPATCH,
    JOB_EVALUATE,
    JOB_SCALE,
    JOB_SCALE_STATUS,
    PERIODIC_FORCE,
    JobDispatchRequest,
    JobEvaluateRequest,
    JobScaleRequest,
)
from fedsched.verbs.finding import find_job
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.job_monitor import monitor
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import columns, moment, pairs, short

VERBS = Verbs()

JOB = Argument("job", "id of the job, or the beginning of it")
DETACH = Flag("detach", "return at once and print the evaluation's id", bool)
PAYLOAD_BYTES_MAX = 16_384


@VERBS.verb(
    "job dispatch",
    "launch a child of a parameterized job",
    flags=(
        Flag("meta", "a value for the child; may be repeated", list, value="key=value"),
        Flag("idempotency-token", "the same token again launches nothing more", value="token"),
        Flag("id-prefix-template", "what the child's id has after `dispatch-`", value="text"),
        Flag("priority", "of the child; the job's unless said", int, value="number"),
        DETACH,
        VERBOSE,
        JSON,
    ),
    arguments=(JOB, Argument("payload", "file to hand over, or - for standard input", optional=True)),
)
def dispatch(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    request = JobDispatchRequest(
        job_id=stub.id,
        payload=_payload(terminal, given["payload"]),
        meta=_meta(given),
        idempotency_token=given["idempotency-token"] or "",
        id_prefix_template=given["id-prefix-template"] or "",
        priority=given["priority"] or 0,
    )
    reply = terminal.client.call(JOB_DISPATCH, request, namespace=stub.namespace)
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    rows = [("Dispatched Job ID", reply.dispatched_job_id)]
    if reply.eval_id:
        rows.append(("Evaluation ID", short(reply.eval_id, verbose=given["verbose"])))
    terminal.write(pairs(rows))
    if given["detach"] or not reply.eval_id:
        return OK
    terminal.say()
    return monitor(terminal, reply.eval_id, namespace=stub.namespace, verbose=given["verbose"])


@VERBS.verb(
    "job periodic force",
    "launch a periodic job out of turn",
    flags=(DETACH, VERBOSE, JSON),
    arguments=(JOB,),
)
def force(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    reply = terminal.client.call(PERIODIC_FORCE, JobRequest(job_id=stub.id), namespace=stub.namespace)
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    if given["detach"]:
        terminal.say("Force periodic successful")
        terminal.say(f"Evaluation ID: {reply.eval_id}")
        return OK
    return monitor(terminal, reply.eval_id, namespace=stub.namespace, verbose=given["verbose"])


@VERBS.verb(
    "job scale",
    "change the count of a group",
    doc="Changes how many allocations of a group there should be. The group may be left out if the job has only one.",
    flags=(
        Flag("check-index", "only if the job's modify index is still this", int, value="index"),
        DETACH,
        VERBOSE,
        JSON,
    ),
    arguments=(
        JOB,
        Argument("group", "name of the group, or the count if there is only one"),
        Argument("count", "how many", optional=True),
    ),
)
def scale(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    group, word = (given["group"], given["count"]) if given["count"] is not None else ("", given["group"])
    try:
        count = int(word)
    except ValueError:
        raise BadUsage(f"count {word!r} is not a whole number", hint="job scale <job> [group] <count>") from None
    if not group:
        job = terminal.client.call(JOB_GET, JobRequest(job_id=stub.id), namespace=stub.namespace).job
        if len(job.task_groups) != 1:
            names = ", ".join(one.name for one in job.task_groups)
            raise BadUsage(f'job "{stub.id}" has several groups', hint=f"name one of {names}")
        group = job.task_groups[0].name
    request = JobScaleRequest(
        job_id=stub.id,
        group=group,
        count=count,
        message="submitted using the fedsched CLI",
        enforce_index=given["check-index"] is not None,
        job_modify_index=given["check-index"] or 0,
    )
    reply = terminal.client.call(JOB_SCALE, request, namespace=stub.namespace)
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    if given["detach"] or not reply.eval_id:
        terminal.say(f"Evaluation ID: {reply.eval_id}" if reply.eval_id else "Job scaled")
        return OK
    return monitor(terminal, reply.eval_id, namespace=stub.namespace, verbose=given["verbose"])


@VERBS.verb(
    "job scaling-events",
    "list the latest scaling events of a job",
    flags=(VERBOSE, JSON, TEMPLATE),
    arguments=(JOB,),
    regions=Regions.EACH,
)
def scaling_events(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    found = terminal.client.call(JOB_SCALE_STATUS, JobRequest(job_id=stub.id), namespace=stub.namespace).status
    if terminal.formatted(given, lambda: to_api(found)):
        return OK
    events = [(one, name) for name, group in sorted(found.task_groups.items()) for one in group.events]
    if not events:
        terminal.say("No events found")
        return OK
    rows = [
        (
            name,
            one.count if one.count is not None else None,
            one.previous_count,
            one.error,
            one.message,
            short(one.eval_id or "", verbose=given["verbose"]),
            moment(one.time_ns),
        )
        for one, name in sorted(events, key=lambda pair: -pair[0].create_index)
    ]
    head = ("Task Group", "Count", "PrevCount", "Error", "Message", "Eval ID", "Date")
    terminal.write(columns(head, rows))
    return OK


@VERBS.verb(
    "job eval",
    "have a job looked at again",
    flags=(
        Flag("force-reschedule", "replace failed allocations now, whatever the policy's delay", bool),
        DETACH,
        VERBOSE,
        JSON,
    ),
    arguments=(JOB,),
)
def evaluate(terminal: Terminal, given: Given) -> int:
    stub = find_job(terminal, given["job"])
    request = JobEvaluateRequest(job_id=stub.id, force_reschedule=given["force-reschedule"])
    reply = terminal.client.call(JOB_EVALUATE, request, namespace=stub.namespace)
    if terminal.formatted(given, lambda: to_api(reply)):
        return OK
    if given["detach"]:
        terminal.say(f'Created eval ID: "{short(reply.eval_id, verbose=given["verbose"])}"')
        return OK
    return monitor(terminal, reply.eval_id, namespace=stub.namespace, verbose=given["verbose"])


def _meta(given: Given) -> dict[str, str]:
    meta = {}
    for word in given["meta"]:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise BadUsage(f"-meta {word!r} is no key=value", hint="such as -meta who=you")
        meta[key] = value
    return meta


def _payload(terminal: Terminal, path: str | None) -> bytes:
    if not path:
        return b""
    try:
        if path == "-":
            data = terminal.stdin.read(PAYLOAD_BYTES_MAX + 1).encode()
        else:
            with open(path, "rb") as file:
                data = file.read(PAYLOAD_BYTES_MAX + 1)
    except OSError as error:
        raise BadRequest(f"{path}: cannot be read: {error.strerror}", hint="name a file, or - for input") from error
    if len(data) > PAYLOAD_BYTES_MAX:
        raise BadRequest(f"{path}: larger than {PAYLOAD_BYTES_MAX} bytes", hint="hand over where it is instead")
    return data
