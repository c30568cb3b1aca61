"""What becomes of a deployment: a new status, promotion of its canaries, word about the health of its allocations.

All of it is asked for by the leader's watcher or by people, and checked again here, because between the asking and the
log a client or another person may have been faster.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np
from msgspec import structs

from fedsched.model.ids import uuid_text
from fedsched.state.columns import Rows, Slots, copied
from fedsched.state.fields import Command, Id, Name, Stored, Text
from fedsched.state.id_map import words_of
from fedsched.state.result import InvalidCommand, Result, refused
from fedsched.state.tables.alloc_columns import HEALTHY, UNHEALTHY, Flag, is_live
from fedsched.state.tables.deployment_counts import change_groups, count_health
from fedsched.state.tables.deployment_groups import GroupProgress
from fedsched.state.tables.deployments import SUCCESSFUL, DeploymentRow, StatusName, has_overtaken
from fedsched.state.tables.evaluations import EvaluationWrite, store_evaluations
from fedsched.state.tables.job_stability import mark_stable
from fedsched.state.tables.job_status import refresh_status
from fedsched.state.tables.jobs import JobRegister, apply_register
from fedsched.state.tables.rollouts import follow_deployment

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

PAUSED: Final = "paused"
RUNNING: Final = "running"
HEALTH_MAX: Final = 10_000
Evaluations = Annotated[tuple[EvaluationWrite, ...], msgspec.Meta(max_length=10_000)]


class DeploymentStatusWrite(Stored):
    """A new status of one deployment."""

    id: Id
    status: StatusName
    description: Text = ""


class DeploymentStatusUpdate(Command):
    """New statuses of deployments; with a failed one, perhaps the registration of the version to go back to."""

    updates: Annotated[tuple[DeploymentStatusWrite, ...], msgspec.Meta(max_length=1_000)]
    revert: JobRegister | None = None
    """Carried out only if the job is still at the index that it names."""
    evaluations: Evaluations = ()


class DeploymentPromote(Command):
    """Let canaries become ordinary: of the groups named, or of all."""

    id: Id
    groups: Annotated[tuple[Name, ...], msgspec.Meta(max_length=10_000)] = ()
    evaluations: Evaluations = ()


class DeploymentAllocHealth(Command):
    """Somebody says which allocations of a deployment are well and which are not."""

    id: Id
    healthy: bytes = b""
    """Ids, 16 bytes each."""
    unhealthy: bytes = b""
    status: DeploymentStatusWrite | None = None
    revert: JobRegister | None = None
    evaluations: Evaluations = ()


def apply_status(tx: Transaction, command: DeploymentStatusUpdate) -> Result:
    rows = [tx.store.deployments.rows.get(update.id) for update in command.updates]
    for update, row in zip(command.updates, rows, strict=True):
        problem = _not_active(tx, update.id, row)
        if problem is not None and not (row is not None and row.status == update.status):
            return problem
    store_statuses(tx, command.updates)
    reverted = _revert(tx, command.revert)
    store_evaluations(tx, command.evaluations)
    return tx.done(reverted=reverted)


def apply_promote(tx: Transaction, command: DeploymentPromote) -> Result:
    row = tx.store.deployments.rows.get(command.id)
    problem = _not_active(tx, command.id, row)
    if problem is not None or row is None:
        assert problem is not None
        return problem
    progress = row.progress()
    wanted = command.groups or tuple(sorted(progress))
    unknown = [name for name in wanted if name not in progress]
    if unknown:
        return refused(
            tx.index,
            "bad_request",
            f"deployment {row.id!r} has no group {unknown[0]!r}",
            hint=f"its groups are {', '.join(sorted(progress))}",
        )
    waiting = {name: progress[name] for name in wanted if _awaits_promotion(progress[name])}
    if not waiting:
        return refused(
            tx.index,
            "bad_request",
            f"deployment {row.id!r} has no canaries to promote",
            hint="`fedsched deployment status` shows which groups have some",
        )
    healthy = {name: _healthy_canaries(tx, one) for name, one in waiting.items()}
    short = [name for name, one in waiting.items() if len(healthy[name]) < one.desired_canaries]
    if short:
        words = "; ".join(f"{name}: {len(healthy[name])} of {waiting[name].desired_canaries}" for name in short)
        return refused(
            tx.index,
            "bad_request",
            f"canaries of deployment {row.id!r} are not all healthy: {words}",
            hint="wait until they are, or fail the deployment",
        )
    _clear_canary_marks(tx, [slots for slots in healthy.values() if len(slots)])
    change_groups(tx, row.id, dict.fromkeys(waiting, lambda one: _promoted(tx, one)))
    store_evaluations(tx, command.evaluations)
    refresh_status(tx, row.namespace, row.job_id)
    return tx.done(promoted=sorted(waiting))


def apply_health(tx: Transaction, command: DeploymentAllocHealth) -> Result:
    for ids in (command.healthy, command.unhealthy):
        if len(ids) % 16 or len(ids) > 16 * HEALTH_MAX:
            raise InvalidCommand(f"{len(ids)} bytes are not a column of 16-byte ids")
    row = tx.store.deployments.rows.get(command.id)
    problem = _not_active(tx, command.id, row)
    if problem is not None:
        return problem
    healthy, problem = _allocs_of(tx, command.id, command.healthy)
    if problem is not None:
        return problem
    unhealthy, problem = _allocs_of(tx, command.id, command.unhealthy)
    if problem is not None:
        return problem
    _set_health(tx, np.setdiff1d(healthy, unhealthy), HEALTHY)
    _set_health(tx, unhealthy, UNHEALTHY)
    if command.status is not None:
        store_statuses(tx, (command.status,))
    reverted = _revert(tx, command.revert)
    store_evaluations(tx, command.evaluations)
    return tx.done(reverted=reverted)


def store_statuses(tx: Transaction, updates: Iterable[DeploymentStatusWrite]) -> None:
    """Write new statuses, and what follows from them. Deployments that have ended or gone are passed over."""
    table = tx.store.deployments.table
    for update in updates:
        row = table.get(update.id)
        if row is None or (not row.is_active and row.status != update.status) or has_overtaken(row, update.status):
            continue
        changed = structs.replace(
            row,
            status=update.status,
            status_description=update.description,
            modify_index=tx.index,
            modify_time_ns=tx.time_ns,
        )
        tx.put(table, changed)
        follow_deployment(tx, changed)
        if PAUSED in (row.status, update.status) and row.status != update.status:
            change_groups(tx, row.id, {name: lambda one: _deadline_reset(tx, one) for name in row.progress()})
        if update.status == SUCCESSFUL:
            mark_stable(tx, row.namespace, row.job_id, row.job_create_index, row.job_version)
        refresh_status(tx, row.namespace, row.job_id)


def _awaits_promotion(one: GroupProgress) -> bool:
    return one.desired_canaries > 0 and not one.promoted


def _promoted(tx: Transaction, one: GroupProgress) -> GroupProgress:
    return structs.replace(_deadline_reset(tx, one), promoted=True)


def _deadline_reset(tx: Transaction, one: GroupProgress) -> GroupProgress:
    """The deadline anew from here; one that has not begun to run is left alone."""
    if not one.require_progress_by_ns or not one.progress_deadline_ns:
        return one
    return structs.replace(one, require_progress_by_ns=tx.time_ns + one.progress_deadline_ns)


def _healthy_canaries(tx: Transaction, one: GroupProgress) -> Slots:
    slots = _found(tx, one.canaries)
    rows = tx.store.allocations.live.read(slots)
    well: Slots = slots[is_live(rows) & (rows["health"] == HEALTHY)]
    return well


def _clear_canary_marks(tx: Transaction, batches: list[Slots]) -> None:
    slots = np.unique(np.concatenate(batches))
    before = tx.store.allocations.live.read(slots)
    after = copied(before)
    after["flags"] &= np.uint32(0xFFFFFFFF ^ int(Flag.CANARY))
    _write(tx, slots, before, after)


def _set_health(tx: Transaction, slots: Slots, health: int) -> None:
    if not len(slots):
        return
    before = tx.store.allocations.live.read(slots)
    after = copied(before)
    after["health"] = health
    _write(tx, slots, before, after)
    count_health(tx, before, after)


def _write(tx: Transaction, slots: Slots, before: Rows, after: Rows) -> None:
    after["modify_index"] = after["alloc_modify_index"] = tx.index
    after["modify_time"] = tx.time_ns
    tx.store.allocations.rewrite(slots, before, after)
    tx.changed(tx.store.allocations.change(slots, after))


def _allocs_of(tx: Transaction, deployment_id: str, ids: bytes) -> tuple[Slots, Result | None]:
    """The slots of allocations that all have to belong to this deployment."""
    found = tx.store.allocations.find(words_of(ids)) if ids else np.empty(0, dtype=np.int64)
    for at, slot in enumerate(found.tolist()):
        if slot < 0 or tx.store.allocations.origin_of(slot).deployment_id != deployment_id:
            name = uuid_text(ids[16 * at : 16 * at + 16])
            return found, refused(
                tx.index,
                "bad_request",
                f"allocation {name!r} is not part of deployment {deployment_id!r}",
                hint="`fedsched deployment status` lists its allocations",
            )
    return np.unique(found), None


def _found(tx: Transaction, ids: bytes) -> Slots:
    if not ids:
        return np.empty(0, dtype=np.int64)
    found = tx.store.allocations.find(words_of(ids))
    return np.unique(found[found >= 0])


def _revert(tx: Transaction, revert: JobRegister | None) -> bool:
    """Go back to an earlier version if nobody has changed the job meanwhile."""
    return revert is not None and apply_register(tx, revert).is_done


def _not_active(tx: Transaction, deployment_id: str, row: DeploymentRow | None) -> Result | None:
    if row is None:
        return refused(
            tx.index, "not_found", f"no deployment {deployment_id!r}", hint="`fedsched deployment list` shows them"
        )
    if not row.is_active:
        return refused(
            tx.index,
            "bad_request",
            f"deployment {deployment_id!r} has ended: it is {row.status}",
            hint="only a deployment under way can be changed",
        )
    return None
