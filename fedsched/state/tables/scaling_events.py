"""What was asked of a job's counts: the latest scaling events of each group, and the command that adds one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import structs

from fedsched.codec import STORED_LIMITS, CodecError, dumps, from_builtins, loads
from fedsched.model.scaling import ScalingEvent
from fedsched.state.fields import Command, Count, Id, Name
from fedsched.state.result import InvalidCommand, Result, refused
from fedsched.state.tables.evaluations import EvaluationWrite
from fedsched.state.tables.job_rows import JobRow, ScalingEventsRow
from fedsched.state.tables.jobs import JobRegister, apply_register

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

EVENTS_KEPT: Final = 20
"""Per group, as Nomad does: enough for an autoscaler to see what it did last."""


class JobScale(Command):
    """Change the count of a group, or only note that somebody wanted to."""

    namespace: Id
    id: Id
    group: Name
    spec: bytes = b""
    """The job with the new count; nothing if the count stays."""
    check_index: Count = 0
    """The job's modify index that `spec` was made from."""
    submit_time_ns: Count = 0
    event: Annotated[bytes, msgspec.Meta(max_length=1 << 20)] = b""
    """The encoded event; its index and evaluation are filled in here."""
    evaluation: EvaluationWrite | None = None


def apply_scale(tx: Transaction, command: JobScale) -> Result:
    event = _event_of(command)
    row = tx.store.jobs.row(command.namespace, command.id)
    if row is None:
        return refused(
            tx.index, "not_found", f"job {command.id!r} not found", hint="`fedsched job status` lists the jobs"
        )
    if command.spec:
        problem = _cannot_scale(tx, command, row)
        if problem is not None:
            return problem
    done = _registered(tx, command, row)
    event = structs.replace(event, create_index=tx.index, eval_id=command.evaluation.id if command.evaluation else None)
    _keep(tx, command, event)
    return done


def _event_of(command: JobScale) -> ScalingEvent:
    try:
        return from_builtins(loads(command.event, STORED_LIMITS), ScalingEvent) if command.event else ScalingEvent()
    except CodecError as error:
        raise InvalidCommand(f"scaling event of job {command.id!r}: {error}") from error


def _cannot_scale(tx: Transaction, command: JobScale, row: JobRow) -> Result | None:
    if tx.store.deployments.active_of_job(row.namespace, row.id) is not None:
        return refused(
            tx.index,
            "bad_request",
            "job scaling blocked due to active deployment",
            hint="wait until it is done, or fail it with `fedsched deployment fail`",
        )
    if row.job_modify_index != command.check_index:
        return refused(
            tx.index,
            "conflict",
            f"job {row.id!r} is at modify index {row.job_modify_index}, not at {command.check_index}",
            hint="somebody changed it meanwhile: look again and repeat",
        )
    return None


def _registered(tx: Transaction, command: JobScale, row: JobRow) -> Result:
    current = tx.store.jobs.version_rows.get(*row.version_key)
    assert current is not None
    return apply_register(
        tx,
        JobRegister(
            namespace=row.namespace,
            id=row.id,
            spec=command.spec or current.spec,
            type=row.type,
            priority=row.priority,
            parent_id=row.parent_id,
            is_template=row.is_template,
            is_periodic=row.is_periodic,
            node_pool=row.node_pool,
            dispatch_token=row.dispatch_token,
            submit_time_ns=command.submit_time_ns,
            stop=row.stop,
            evaluation=command.evaluation,
        ),
    )


def _keep(tx: Transaction, command: JobScale, event: ScalingEvent) -> None:
    table = tx.store.jobs.scaling_table
    known = table.get(command.namespace, command.id, command.group)
    events = (event, *(known.events() if known else ()))[:EVENTS_KEPT]
    row = ScalingEventsRow(
        namespace=command.namespace,
        job_id=command.id,
        group=command.group,
        body=dumps([msgspec.to_builtins(one, builtin_types=(bytes,)) for one in events]),
        create_index=known.create_index if known else tx.index,
        modify_index=tx.index,
    )
    tx.put(table, row)
