"""Dispatching a parameterized job: what a request must and may give, and the child that it makes."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from fedsched.model.errors import BadRequest
from fedsched.model.job import MAX_PRIORITY, Job, PayloadRule
from fedsched.rpc.methods.job_extras import JobDispatchRequest
from fedsched.state.tables.job_rows import PAYLOAD_BYTES_MAX

NS: Final = 1_000_000_000
RANDOM_DIGITS: Final = 8


def check_dispatch(job: Job, request: JobDispatchRequest) -> None:
    """Refuse a dispatch that the job does not allow, saying what it expects."""
    rule = job.parameterized_job
    if rule is None or job.dispatched:
        raise BadRequest(f"job {job.id!r} is not parameterized", hint="only parameterized jobs can be dispatched")
    if job.stop:
        raise BadRequest(f"job {job.id!r} is stopped and cannot be dispatched", hint="register it again first")
    if rule.payload == PayloadRule.REQUIRED and not request.payload:
        raise BadRequest(f"job {job.id!r} requires a payload", hint="give a file, or - for standard input")
    if rule.payload == PayloadRule.FORBIDDEN and request.payload:
        raise BadRequest(f"job {job.id!r} takes no payload", hint="dispatch it without one")
    if len(request.payload) > PAYLOAD_BYTES_MAX:
        raise BadRequest(
            f"the payload has {len(request.payload)} bytes, at most {PAYLOAD_BYTES_MAX} are possible",
            hint="put it somewhere and hand over where it is",
        )
    missing = sorted(set(rule.meta_required) - set(request.meta))
    if missing:
        raise BadRequest(f"job {job.id!r} requires meta {', '.join(missing)}", hint="give each with -meta key=value")
    unknown = sorted(set(request.meta) - set(rule.meta_required) - set(rule.meta_optional))
    if unknown:
        allowed = ", ".join(sorted({*rule.meta_required, *rule.meta_optional})) or "none at all"
        raise BadRequest(f"job {job.id!r} does not know meta {', '.join(unknown)}", hint=f"it takes {allowed}")
    if not 0 <= request.priority <= MAX_PRIORITY:
        raise BadRequest(f"priority {request.priority} is out of range", hint=f"1 to {MAX_PRIORITY}, 0 for the job's")


def dispatched_child(job: Job, request: JobDispatchRequest, *, now_ns: int, random_hex: str) -> Job:
    """The child: the job with its template filled in."""
    prefix = f"{request.id_prefix_template}-" if request.id_prefix_template else ""
    child_id = f"{job.id}/dispatch-{prefix}{now_ns // NS}-{random_hex[:RANDOM_DIGITS]}"
    return structs.replace(
        job,
        id=child_id,
        name=child_id,
        parent_id=job.id,
        dispatched=True,
        dispatch_idempotency_token=request.idempotency_token,
        payload=request.payload,
        meta={**job.meta, **request.meta},
        periodic=None,
        priority=request.priority or job.priority,
        submit_time_ns=now_ns,
        version_tag=None,
        stable=False,
        version=0,
    )
