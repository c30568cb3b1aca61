"""Jobs that launch others: at a time, or when somebody dispatches them. A launch happens once, whoever asks twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from fedsched.state.fields import Command, Count, Id
from fedsched.state.result import Result, refused
from fedsched.state.tables.job_rows import PeriodicLaunchRow
from fedsched.state.tables.jobs import JobRegister, apply_register

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction


class PeriodicLaunch(Command):
    """Launch a periodic job for one moment, unless it has been launched for that or a later one."""

    namespace: Id
    id: Id
    launch_ns: Count
    child: JobRegister | None = None
    """None notes the moment and launches nothing."""


class JobDispatch(Command):
    """Register the child that a dispatch makes, unless an earlier one with the same token still exists."""

    namespace: Id
    id: Id
    child: JobRegister
    """Its `dispatch_token` is the token, if there is one."""


def apply_launch(tx: Transaction, command: PeriodicLaunch) -> Result:
    parent = tx.store.jobs.row(command.namespace, command.id)
    table = tx.store.jobs.launch_table
    known = table.get(command.namespace, command.id)
    if parent is None or parent.stop or (known is not None and known.launch_ns >= command.launch_ns):
        return tx.done(launched=False, child_id="", evaluation_id="")
    row = known or PeriodicLaunchRow(namespace=command.namespace, job_id=command.id, create_index=tx.index)
    tx.put(table, structs.replace(row, launch_ns=command.launch_ns, modify_index=tx.index))
    if command.child is None:
        return tx.done(launched=False, child_id="", evaluation_id="")
    done = apply_register(tx, command.child)
    return tx.done(launched=done.is_done, child_id=command.child.id, evaluation_id=done.value.get("evaluation_id", ""))


def apply_dispatch(tx: Transaction, command: JobDispatch) -> Result:
    child = command.child
    parent = tx.store.jobs.row(command.namespace, command.id)
    if parent is None:
        return refused(
            tx.index, "not_found", f"job {command.id!r} not found", hint="`fedsched job status` lists the jobs"
        )
    if parent.stop:
        return refused(
            tx.index,
            "bad_request",
            f"job {command.id!r} is stopped and cannot be dispatched",
            hint="register it again first",
        )
    if child.dispatch_token:
        earlier = next(tx.store.jobs.rows.by("token", command.namespace, command.id, child.dispatch_token), None)
        if earlier is not None:
            return tx.done(
                child_id=earlier.id,
                job_create_index=earlier.create_index,
                job_modify_index=earlier.job_modify_index,
                evaluation_id="",
                is_new=False,
            )
    if tx.store.jobs.row(child.namespace, child.id) is not None:
        return refused(tx.index, "conflict", f"job {child.id!r} exists already", hint="dispatch it again")
    done = apply_register(tx, child)
    return tx.done(**done.value, child_id=child.id, is_new=True)
