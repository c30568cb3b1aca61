"""Rollouts of multi-region jobs: the records of those that this region drives, and its own share in any.

A record is written on top of the one before or not at all; a share, together with what it says was done, in one entry.
So whoever decides (`federation.rollout_core`, `federation.rollout_share`) may be two leaders at once: the log lets one
of them have its way, and the other looks again.

A share follows its deployment: whatever changes the one, in whichever command, changes the other with it. Bulk, which
is the submitted job, lies beside both and is written once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import msgspec
from msgspec import structs

from fedsched.codec import STORED_LIMITS, CodecError, from_bytes, to_bytes
from fedsched.model.deployment import DEPLOYMENT_MOVES, DeploymentStatus
from fedsched.model.job import Job
from fedsched.model.rollout import Rollout, RolloutShare, RolloutStatus, RolloutStep
from fedsched.state.fields import Command, Count, Id, Name, Stored, Text
from fedsched.state.past import Keeper, Past
from fedsched.state.result import InvalidCommand, Result, refused
from fedsched.state.table import Key, Row, Table, TableReader

if TYPE_CHECKING:
    from fedsched.state.tables.deployments import DeploymentRow
    from fedsched.state.transaction import Transaction

ROLLOUTS: Final = "rollouts"
SHARES: Final = "rollout_shares"
RECORD_MAX: Final = 1 << 20
"""Bytes of a record without its job: some hundred for each region."""
JOB_MAX: Final = 8 << 20
REAP_MAX: Final = 4096
ENDED: Final = frozenset({"successful", "failed", "cancelled"})
"""A region's part in one of these does not change any more."""

StepName = Literal["prepare", "run", "unblock", "fail", "withdraw"]
StatusName = Literal[
    "running", "paused", "failed", "successful", "cancelled", "initializing", "pending", "blocked", "unblocking"
]
"""Spelled out for the decoder."""
Record = Annotated[bytes, msgspec.Meta(max_length=RECORD_MAX)]
JobBytes = Annotated[bytes, msgspec.Meta(max_length=JOB_MAX)]


class RolloutRow(Row):
    """A rollout that this region drives, or drove."""

    table: ClassVar[str] = ROLLOUTS

    id: str
    namespace: str
    job_id: str
    job_version: int
    owner: str = ""
    epoch: int = 0
    revision: int = 0
    is_over: bool = False
    create_index: int = 0
    modify_index: int = 0
    modify_time_ns: int = 0
    record: bytes = b""
    job: bytes = b""

    @property
    def key(self) -> Key:
        return (self.id,)

    @property
    def ballot(self) -> tuple[int, str]:
        return (self.epoch, self.owner)

    def rollout(self) -> Rollout:
        """The whole record."""
        return structs.replace(self.header(), job=from_bytes(self.job, Job, STORED_LIMITS) if self.job else None)

    def header(self) -> Rollout:
        """The record without the job."""
        return from_bytes(self.record, Rollout, STORED_LIMITS)


class ShareRow(Row):
    """What this region was told of the newest rollout of a job, and has done."""

    table: ClassVar[str] = SHARES

    namespace: str
    job_id: str
    rollout_id: str
    region: str = ""
    job_version: int = 0
    epoch: int = 0
    owner: str = ""
    step: str = ""
    status: str = ""
    deployment_id: str = ""
    error: str = ""
    create_index: int = 0
    modify_index: int = 0
    modify_time_ns: int = 0
    record: bytes = b""
    """The owner's record as of the last command."""
    job: bytes = b""

    @property
    def key(self) -> Key:
        return (self.namespace, self.job_id)

    def hashed(self) -> object:
        """As a plain map, like `WideRow`: it may grow, and has sixteen fields already."""
        return {name: value for name, value in structs.asdict(self).items() if value}

    def share(self) -> RolloutShare:
        """The whole record."""
        share = self.header()
        job = from_bytes(self.job, Job, STORED_LIMITS) if self.job else None
        return structs.replace(share, rollout=structs.replace(share.rollout, job=job))

    def header(self) -> RolloutShare:
        """The same without the job."""
        return RolloutShare(
            region=self.region,
            rollout=from_bytes(self.record, Rollout, STORED_LIMITS),
            epoch=self.epoch,
            owner=self.owner,
            step=RolloutStep(self.step),
            status=DeploymentStatus(self.status),
            deployment_id=self.deployment_id,
            error=self.error,
        )


class RolloutsReader:
    """Rollouts and shares, live or as a snapshot saw them."""

    def __init__(self, rows: TableReader[RolloutRow], shares: TableReader[ShareRow]) -> None:
        self.rows = rows
        self.share_rows = shares

    def row(self, rollout_id: str) -> RolloutRow | None:
        return self.rows.get(rollout_id)

    def of_job(self, namespace: str, job_id: str) -> Iterator[RolloutRow]:
        """The records of a job, oldest version first."""
        return self.rows.by("job", namespace, job_id)

    def newest(self, namespace: str, job_id: str) -> RolloutRow | None:
        """The record of a job's newest rollout that this region drives or drove."""
        return next(self.rows.by("job", namespace, job_id, back=True), None)

    def share_row(self, namespace: str, job_id: str) -> ShareRow | None:
        return self.share_rows.get(namespace, job_id)

    def share_of(self, rollout_id: str) -> ShareRow | None:
        """The share in this rollout, while no newer one of the job has taken its place."""
        return next(self.share_rows.by("rollout", rollout_id), None)


class Rollouts(RolloutsReader):
    """The live ones."""

    def __init__(self, keeper: Keeper) -> None:
        self.table: Table[RolloutRow] = Table(
            keeper, RolloutRow, {"job": lambda row: (row.namespace, row.job_id, row.job_version, row.create_index)}
        )
        self.share_table: Table[ShareRow] = Table(keeper, ShareRow, {"rollout": lambda row: (row.rollout_id,)})
        super().__init__(self.table, self.share_table)

    def view(self, past: Past) -> RolloutsReader:
        return RolloutsReader(self.table.view(past), self.share_table.view(past))


class RolloutWrite(Command):
    """Write the owner's record: a new one, or on top of the one before. A higher ballot counts for more than that."""

    id: Id
    namespace: Id
    job_id: Id
    job_version: Count
    owner: Name
    epoch: Count
    revision: Count
    is_over: bool = False
    record: Record
    job: JobBytes = b""
    """Empty: as it was."""
    is_new: bool = False
    """It begins: then no rollout of the job may have this version or a later one."""
    enforce_index: bool = False
    check_index: Count = 0
    """With `enforce_index`: the `job_modify_index` that the job here must have, or 0 for one that may not exist yet."""


class ShareWrite(Stored):
    """A region's share inside a command."""

    rollout_id: Id
    region: Name
    job_version: Count
    epoch: Count = 0
    owner: Name = ""
    step: StepName
    status: StatusName
    deployment_id: Name = ""
    error: Text = ""
    record: Record
    job: JobBytes = b""
    """Empty: as it was, if it is the same rollout."""


class JobPart(Stored):
    """Names a job."""

    namespace: Id
    id: Id


class RolloutsReap(Command):
    """Forget rollouts that are over and shares that have ended, of jobs that are gone here."""

    rollouts: Annotated[tuple[Id, ...], msgspec.Meta(max_length=REAP_MAX)] = ()
    shares: Annotated[tuple[JobPart, ...], msgspec.Meta(max_length=REAP_MAX)] = ()
    seen_index: Count = 0


def rollout_write(
    rollout: Rollout, *, is_new: bool = False, with_job: bool = False, enforce_index: bool = False, check_index: int = 0
) -> RolloutWrite:
    """The command that writes this record. Its job needs to be written once."""
    return RolloutWrite(
        id=rollout.id,
        namespace=rollout.namespace,
        job_id=rollout.job_id,
        job_version=rollout.job_version,
        owner=rollout.owner,
        epoch=rollout.epoch,
        revision=rollout.revision,
        is_over=rollout.status.is_over,
        record=to_bytes(structs.replace(rollout, job=None)),
        job=to_bytes(rollout.job) if rollout.job is not None and (with_job or is_new) else b"",
        is_new=is_new,
        enforce_index=enforce_index,
        check_index=check_index,
    )


def share_write(share: RolloutShare, *, with_job: bool) -> ShareWrite:
    """The form in which commands carry this share."""
    rollout = share.rollout
    return ShareWrite(
        rollout_id=rollout.id,
        region=share.region,
        job_version=rollout.job_version,
        epoch=share.epoch,
        owner=share.owner,
        step=_spelled(share.step),
        status=_spelled(share.status),
        deployment_id=share.deployment_id,
        error=share.error,
        record=to_bytes(structs.replace(rollout, job=None)),
        job=to_bytes(rollout.job) if with_job and rollout.job is not None else b"",
    )


def apply_write(tx: Transaction, command: RolloutWrite) -> Result:
    _check_bytes(command.record, command.job)
    problem = _not_next(tx, command) or (_not_new(tx, command) if command.is_new else "")
    if problem:
        return refused(tx.index, "conflict", problem, hint="look at the rollout again: somebody was faster")
    known = tx.store.rollouts.row(command.id)
    row = RolloutRow(
        id=command.id,
        namespace=command.namespace,
        job_id=command.job_id,
        job_version=command.job_version,
        owner=command.owner,
        epoch=command.epoch,
        revision=command.revision,
        is_over=command.is_over,
        create_index=known.create_index if known else tx.index,
        modify_index=tx.index,
        modify_time_ns=tx.time_ns,
        record=command.record,
        job=command.job or (known.job if known else b""),
    )
    tx.put(tx.store.rollouts.table, row)
    _forget_older(tx, row)
    return tx.done(rollout_id=command.id, job_version=command.job_version, revision=command.revision)


def apply_reap(tx: Transaction, command: RolloutsReap) -> Result:
    rollouts = tx.store.rollouts
    gone = 0
    for rollout_id in dict.fromkeys(command.rollouts):
        row = rollouts.row(rollout_id)
        if row is not None and row.is_over and row.modify_index <= command.seen_index:
            tx.delete(rollouts.table, rollout_id)
            gone += 1
    for name in dict.fromkeys(command.shares):
        share = rollouts.share_row(name.namespace, name.id)
        is_old = share is not None and share.status in ENDED and share.modify_index <= command.seen_index
        if is_old and tx.store.jobs.row(name.namespace, name.id) is None:
            tx.delete(rollouts.share_table, name.namespace, name.id)
            gone += 1
    return tx.done(removed=gone)


def put_share(tx: Transaction, namespace: str, job_id: str, wanted: ShareWrite) -> ShareRow:
    """Write a share; it takes the place of that in an earlier rollout of the job."""
    _check_bytes(wanted.record, wanted.job)
    known = tx.store.rollouts.share_row(namespace, job_id)
    is_same = known is not None and known.rollout_id == wanted.rollout_id
    job = wanted.job or (known.job if known is not None and is_same else b"")
    row = ShareRow(
        namespace=namespace,
        job_id=job_id,
        **{**structs.asdict(wanted), "job": job},
        create_index=known.create_index if known is not None and is_same else tx.index,
        modify_index=tx.index,
        modify_time_ns=tx.time_ns,
    )
    tx.put(tx.store.rollouts.share_table, row)
    return row


def follow_deployment(tx: Transaction, deployment: DeploymentRow) -> None:
    """Let the share say what became of its deployment, as `federation.rollout_share.deployment_changed` has it."""
    share = tx.store.rollouts.share_row(deployment.namespace, deployment.job_id)
    if share is None or share.deployment_id != deployment.id or share.status in ENDED:
        return
    if not DEPLOYMENT_MOVES.allows(DeploymentStatus(share.status), DeploymentStatus(deployment.status)):
        return
    ended_badly = deployment.status in ("failed", "cancelled")
    changed = structs.replace(
        share,
        status=deployment.status,
        error=deployment.status_description if ended_badly else "",
        modify_index=tx.index,
        modify_time_ns=tx.time_ns,
    )
    tx.put(tx.store.rollouts.share_table, changed)


def changed_since(tx: Transaction, namespace: str, job_id: str, seen_index: int) -> str:
    """Why a share that was decided on from what it was at this index is not to be written; empty if it is."""
    share = tx.store.rollouts.share_row(namespace, job_id)
    index = share.modify_index if share is not None else 0
    return "" if index == seen_index else f"the share in the rollout of job {job_id!r} is at index {index} now"


def _spelled(value: RolloutStep | DeploymentStatus) -> Any:
    """The plain text of it, which the decoder knows."""
    return value.value


def _check_bytes(record: bytes, job: bytes) -> None:
    """Refuse what could not be read back; before anything is written."""
    try:
        rollout = from_bytes(record, Rollout, STORED_LIMITS)
        if job:
            from_bytes(job, Job, STORED_LIMITS)
    except CodecError as error:
        raise InvalidCommand(f"a rollout that cannot be read: {error}") from error
    if rollout.job is not None:
        raise InvalidCommand(f"rollout {rollout.id!r} carries its job twice")


def _not_next(tx: Transaction, command: RolloutWrite) -> str:
    """Why this record does not follow what is known; empty if it does."""
    share = tx.store.rollouts.share_of(command.id)
    ballot = (command.epoch, command.owner)
    status = from_bytes(command.record, Rollout, STORED_LIMITS).status
    if share is not None and (share.epoch, share.owner) > ballot and status is not RolloutStatus.ADOPTED:
        return f"region {share.owner} was promised to drive rollout {command.id!r} in epoch {share.epoch}"
    known = tx.store.rollouts.row(command.id)
    if known is None or ballot > known.ballot:
        return ""
    if ballot < known.ballot:
        return f"region {known.owner} drives rollout {command.id!r} in epoch {known.epoch}"
    if command.revision != known.revision + 1:
        return f"rollout {command.id!r} is at revision {known.revision}, which {command.revision} does not follow"
    return ""


def _not_new(tx: Transaction, command: RolloutWrite) -> str:
    """Why a rollout cannot begin; empty if it can."""
    newest = tx.store.rollouts.newest(command.namespace, command.job_id)
    share = tx.store.rollouts.share_row(command.namespace, command.job_id)
    job = tx.store.jobs.row(command.namespace, command.job_id)
    if command.enforce_index:
        index = job.job_modify_index if job is not None else 0
        if index != command.check_index:
            words = f"is now at modify index {index}" if index else "does not exist"
            words = "already exists" if command.check_index == 0 else words
            return f"Enforcing job modify index {command.check_index}: job {command.job_id!r} {words}"
    versions = [row.job_version for row in (newest, share) if row is not None]
    versions += [job.version] if job is not None else []
    if versions and max(versions) >= command.job_version:
        return f"job {command.job_id!r} is at version {max(versions)} already, so {command.job_version} is not new"
    return ""


def _forget_older(tx: Transaction, row: RolloutRow) -> None:
    """Of each job the newest record stays, and those of which it is not known that they are over."""
    for older in list(tx.store.rollouts.of_job(row.namespace, row.job_id))[:-1]:
        if older.is_over:
            tx.delete(tx.store.rollouts.table, older.id)
