"""What happens to allocations after they were placed: reports of clients, wishes of people, and their end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np

from fedsched.model.alloc import ClientStatus, DesiredStatus
from fedsched.model.job import JobStatus
from fedsched.state.columns import Rows, Slots, copied, picked, raw
from fedsched.state.fields import Command, Count, Id, Stored, unpack
from fedsched.state.id_map import words_of
from fedsched.state.result import InvalidCommand, Result
from fedsched.state.tables.alloc_columns import (
    CLIENT_BY_CODE,
    CLIENT_CODES,
    DESIRED_CODES,
    HEALTHY,
    RUN,
    UNHEALTHY,
    is_live,
)
from fedsched.state.tables.allocations import COLD_CLIENT, Allocations
from fedsched.state.tables.deployment_counts import count_health
from fedsched.state.tables.evaluations import EvaluationWrite, store_evaluations
from fedsched.state.tables.job_status import refresh_status
from fedsched.state.tables.jobs import forget_job, let_go
from fedsched.state.tables.node_updates import note_alloc_updates
from fedsched.state.tables.services import end_services, forget_services

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

STOP: Final = DESIRED_CODES[DesiredStatus.STOP]
REMOVE_MAX: Final = 7281
"""Ids in one clean-up command; more are split by whoever makes them."""


class AllocStatusUpdate(Command):
    """What clients say about their allocations, collected from many."""

    ids: bytes
    statuses: bytes
    """One code per id (see `alloc_columns`)."""
    healths: bytes = b""
    """Nothing, or one code per id: 0 says nothing about its health."""
    client: bytes = b""
    """Encoded fields of the allocation record (task states, network), those of each id in turn (see `fields.pack`)."""
    client_sizes: bytes = b""
    """Nothing, or how long each is; 0 leaves what is there alone."""
    evaluations: Annotated[tuple[EvaluationWrite, ...], msgspec.Meta(max_length=10_000)] = ()
    synced_nodes: Annotated[tuple[Id, ...], msgspec.Meta(max_length=10_000)] = ()
    """Nodes of which this is the first word about their allocations since they were missed."""
    stopped: bytes = b""
    """Ids of those whose job is gone: nobody wants them to run any more."""


class AllocTransition(Command):
    """Ask for allocations to be moved, rescheduled or stopped at the next evaluation."""

    ids: bytes
    flags: Annotated[int, msgspec.Meta(ge=0, le=0x3F)]
    evaluations: Annotated[tuple[EvaluationWrite, ...], msgspec.Meta(max_length=10_000)] = ()


class JobName(Stored):
    """Names one job."""

    namespace: Id = "default"
    id: Id


class Reap(Command):
    """Forget what nobody needs any more."""

    evaluations: Annotated[tuple[Id, ...], msgspec.Meta(max_length=REMOVE_MAX)] = ()
    allocs: Annotated[bytes, msgspec.Meta(max_length=16 * REMOVE_MAX)] = b""
    deployments: Annotated[tuple[Id, ...], msgspec.Meta(max_length=REMOVE_MAX)] = ()
    """Those that have ended; one that is under way stays."""
    jobs: Annotated[tuple[JobName, ...], msgspec.Meta(max_length=REMOVE_MAX)] = ()
    """Those that are dead; one that has come to life again stays."""
    seen_index: Count = 0
    """The state in which somebody found that nobody needs these. Whatever has changed since, or is alive after all,
    stays, and so does the evaluation of an allocation that stays. 0 takes the word for it."""


def apply_status(tx: Transaction, command: AllocStatusUpdate) -> Result:
    count = _id_count(command.ids)
    if len(command.statuses) != count or (command.healths and len(command.healths) != count):
        raise InvalidCommand("one status (and one health or none at all) per id is expected")
    if not set(command.statuses) <= CLIENT_BY_CODE.keys() or not set(command.healths) <= {0, HEALTHY, UNHEALTHY}:
        raise InvalidCommand("a status or health that does not exist")
    _id_count(command.stopped)
    reports = _reports(command, count)
    unknown = _report(tx, command, reports) if count else 0
    _stop_orphans(tx, command.stopped)
    note_alloc_updates(tx, command.synced_nodes)
    store_evaluations(tx, command.evaluations)
    return tx.done(updated=count - unknown, unknown=unknown)


def _reports(command: AllocStatusUpdate, count: int) -> list[bytes]:
    try:
        reports = unpack(command.client, command.client_sizes)
    except ValueError as error:
        raise InvalidCommand(f"reports: {error}") from error
    if reports and len(reports) != count:
        raise InvalidCommand(f"{len(reports)} reports for {count} ids")
    return reports


def _report(tx: Transaction, command: AllocStatusUpdate, reports: list[bytes]) -> int:
    allocations = tx.store.allocations
    found = allocations.find(words_of(command.ids))
    # Of several reports about one allocation the last one counts.
    slots, last = np.unique(found[::-1], return_index=True)
    positions = len(found) - 1 - last
    if len(slots) and slots[0] < 0:
        slots, positions = slots[1:], positions[1:]
    if not len(slots):
        return len(found)
    before = allocations.live.read(slots)
    after = copied(before)
    after["client_status"] = np.frombuffer(command.statuses, dtype=np.uint8)[positions]
    if command.healths:
        health = np.frombuffer(command.healths, dtype=np.uint8)[positions]
        after["health"] = np.where(health != 0, health, before["health"])
    after["modify_index"] = tx.index
    after["modify_time"] = tx.time_ns
    if reports:
        _put_reports(allocations, slots, after, [reports[position] for position in positions.tolist()])
    allocations.rewrite(slots, before, after)
    count_health(tx, before, after)
    for namespace, job_id in allocations.recount(before, after):
        refresh_status(tx, namespace, job_id)
    tx.changed(allocations.change(slots, after))
    end_services(tx, after)
    return int((found < 0).sum())


def _stop_orphans(tx: Transaction, ids: bytes) -> None:
    if not ids:
        return
    allocations = tx.store.allocations
    found = allocations.find(words_of(ids))
    slots = np.unique(found[found >= 0])
    before = allocations.live.read(slots)
    after = copied(before)
    after["desired"] = np.where(before["desired"] == RUN, STOP, before["desired"])
    after["modify_index"] = after["alloc_modify_index"] = tx.index
    after["modify_time"] = tx.time_ns
    allocations.rewrite(slots, before, after)
    for namespace, job_id in allocations.recount(before, after):
        refresh_status(tx, namespace, job_id)
    tx.changed(allocations.change(slots, after))


def _put_reports(allocations: Allocations, slots: Slots, rows: Rows, reports: list[bytes]) -> None:
    if all(reports):
        allocations.put_cold(COLD_CLIENT, slots, rows, reports)
        return
    where = np.array([at for at, report in enumerate(reports) if report], dtype=np.int64)
    said = picked(rows, where)
    allocations.put_cold(COLD_CLIENT, slots[where], said, [report for report in reports if report])
    raw(rows)[where] = raw(said)


def apply_transition(tx: Transaction, command: AllocTransition) -> Result:
    count = _id_count(command.ids)
    found = tx.store.allocations.find(words_of(command.ids)) if count else np.empty(0, dtype=np.int64)
    slots = np.unique(found[found >= 0])
    if len(slots):
        before = tx.store.allocations.live.read(slots)
        after = copied(before)
        after["flags"] |= np.uint32(command.flags)
        after["modify_index"] = after["alloc_modify_index"] = tx.index
        after["modify_time"] = tx.time_ns
        tx.store.allocations.rewrite(slots, before, after)
        tx.changed(tx.store.allocations.change(slots, after))
    store_evaluations(tx, command.evaluations)
    return tx.done(updated=len(slots), unknown=int((found < 0).sum()))


def apply_reap(tx: Transaction, command: Reap) -> Result:
    allocations = tx.store.allocations
    count = _id_count(command.allocs)
    found = allocations.find(words_of(command.allocs)) if count else np.empty(0, dtype=np.int64)
    slots = np.unique(found[found >= 0])
    needed: set[str] = set()
    if command.seen_index:
        slots, needed = _still_unneeded(tx, slots, command.seen_index)
    if len(slots):
        rows = allocations.live.read(slots)
        change = allocations.change(slots, rows, removed=True)
        jobs = allocations.recount(rows, np.zeros_like(rows))
        let_go(tx, allocations.remove(slots))
        forget_services(tx, rows)
        tx.changed(change)
        for namespace, job_id in jobs:
            refresh_status(tx, namespace, job_id)
    table = tx.store.evaluations.table
    over = [key for key in dict.fromkeys(command.evaluations) if key not in needed]
    if command.seen_index:
        known = ((key, table.get(key)) for key in over)
        over = [key for key, row in known if row and not row.is_open and row.modify_index <= command.seen_index]
    gone = [row for key in over if (row := tx.delete(table, key))]
    for namespace, job_id in sorted({(row.namespace, row.job_id) for row in gone}):
        refresh_status(tx, namespace, job_id)
    ended = _reap_deployments(tx, command.deployments)
    return tx.done(allocs=len(slots), evaluations=len(gone), deployments=ended, jobs=_reap_jobs(tx, command.jobs))


def _still_unneeded(tx: Transaction, slots: Slots, seen_index: int) -> tuple[Slots, set[str]]:
    """Those of these allocations that have ended and are as somebody saw them; the evaluations that made the others."""
    allocations = tx.store.allocations
    rows = allocations.live.read(slots)
    good = ~is_live(rows) & (rows["client_status"] != CLIENT_CODES[ClientStatus.RUNNING])
    good &= rows["modify_index"] <= seen_index
    kept = [allocations.live_origins.rows.get(ref) for ref in np.unique(rows["origin"][~good]).tolist()]
    return slots[good], {origin.evaluation_id for origin in kept if origin is not None}


def _reap_deployments(tx: Transaction, ids: tuple[str, ...]) -> int:
    table = tx.store.deployments.table
    gone = 0
    for deployment_id in dict.fromkeys(ids):
        row = table.get(deployment_id)
        if row is not None and not row.is_active:
            tx.delete(table, deployment_id)
            gone += 1
    return gone


def _reap_jobs(tx: Transaction, names: tuple[JobName, ...]) -> int:
    gone = 0
    for name in names:
        row = tx.store.jobs.row(name.namespace, name.id)
        if row is not None and row.status == JobStatus.DEAD.value:
            forget_job(tx, row)
            gone += 1
    return gone


def _id_count(ids: bytes) -> int:
    if len(ids) % 16:
        raise InvalidCommand(f"{len(ids)} bytes are not a column of 16-byte ids")
    return len(ids) // 16
