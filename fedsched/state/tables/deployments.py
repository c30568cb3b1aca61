"""Deployments: the supervised changes from one job version to the next. Rows only; their rules live with the leader.

What happens to a stored one (status, promotion, health of its allocations) is in `deployment_updates`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import structs

from fedsched.codec import STORED_LIMITS, CodecError, from_bytes, to_bytes
from fedsched.model.deployment import Deployment, DeploymentStatus
from fedsched.state.fields import Command, Count, Id, Stored, Text
from fedsched.state.past import Keeper, Past
from fedsched.state.result import InvalidCommand, Result
from fedsched.state.table import Key, Row, Table, TableReader
from fedsched.state.tables.deployment_groups import GroupProgress, kept, pack_groups, pack_states, unpack_groups
from fedsched.state.tables.job_stability import mark_stable
from fedsched.state.tables.job_status import refresh_status
from fedsched.state.tables.rollouts import follow_deployment

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

ENDED: Final = frozenset(status.value for status in DeploymentStatus if not status.is_active)
WAITING: Final = frozenset({DeploymentStatus.INITIALIZING.value, DeploymentStatus.PENDING.value})
SUCCESSFUL: Final = DeploymentStatus.SUCCESSFUL.value

StatusName = Literal[
    "running", "paused", "failed", "successful", "cancelled", "initializing", "pending", "blocked", "unblocking"
]
"""The statuses, spelled out for the decoder."""


class DeploymentRow(Row):
    """A deployment: what is asked for often, and all of it encoded."""

    table: ClassVar[str] = "deployments"

    id: str
    namespace: str
    job_id: str
    status: str
    job_version: int = 0
    job_create_index: int = 0
    status_description: str = ""
    create_index: int = 0
    modify_index: int = 0
    create_time_ns: int = 0
    modify_time_ns: int = 0
    body: bytes = b""
    groups: bytes = b""
    """How far each group has come (see `deployment_groups`); counts for more than what the body says of it."""

    @property
    def key(self) -> Key:
        return (self.id,)

    @property
    def is_active(self) -> bool:
        return self.status not in ENDED

    def progress(self) -> dict[str, GroupProgress]:
        """How far each group has come, without reading the whole record."""
        return unpack_groups(self.groups)

    def deployment(self) -> Deployment:
        """The whole record."""
        whole = from_bytes(self.body, Deployment, STORED_LIMITS)
        progress = self.progress()
        return structs.replace(
            whole,
            task_groups={name: one.state() for name, one in progress.items()} if progress else whole.task_groups,
            job_create_index=self.job_create_index or whole.job_create_index,
            job_version=self.job_version or whole.job_version,
            status=DeploymentStatus(self.status),
            status_description=self.status_description,
            create_index=self.create_index,
            modify_index=self.modify_index,
            create_time_ns=self.create_time_ns,
            modify_time_ns=self.modify_time_ns,
        )


class DeploymentsReader:
    """Deployments, live or as a snapshot saw them."""

    def __init__(self, rows: TableReader[DeploymentRow]) -> None:
        self.rows = rows

    def get(self, deployment_id: str) -> Deployment | None:
        row = self.rows.get(deployment_id)
        return row.deployment() if row else None

    def of_job(self, namespace: str, job_id: str) -> Iterator[DeploymentRow]:
        """A job's deployments, oldest first."""
        return self.rows.by("job", namespace, job_id)

    def latest(self, namespace: str, job_id: str, job_create_index: int | None = None) -> DeploymentRow | None:
        """A job's newest deployment; with a create index, only those of that very job and not of a purged namesake."""
        rows = [
            row
            for row in self.of_job(namespace, job_id)
            if job_create_index is None or row.job_create_index in (0, job_create_index)
        ]
        return rows[-1] if rows else None

    def active_of_job(self, namespace: str, job_id: str) -> DeploymentRow | None:
        """The deployment of a job that is under way, if there is one."""
        return next(self.rows.by("active", namespace, job_id), None)

    def active(self) -> Iterator[DeploymentRow]:
        """All that are under way: what a new leader watches."""
        return self.rows.by("active")


class Deployments(DeploymentsReader):
    """The live deployments."""

    def __init__(self, keeper: Keeper) -> None:
        self.table: Table[DeploymentRow] = Table(
            keeper,
            DeploymentRow,
            {
                "job": lambda row: (row.namespace, row.job_id, row.create_index),
                "active": lambda row: (row.namespace, row.job_id) if row.is_active else None,
                "namespace": lambda row: (row.namespace,),
            },
        )
        super().__init__(self.table)

    def view(self, past: Past) -> DeploymentsReader:
        return DeploymentsReader(self.table.view(past))


class DeploymentWrite(Stored):
    """A deployment inside a command."""

    id: Id
    namespace: Id = "default"
    job_id: Id
    job_version: Count = 0
    job_create_index: Count = 0
    status: StatusName = "running"
    status_description: Text = ""
    create_time_ns: Count = 0
    modify_time_ns: Count = 0
    body: bytes = b""
    groups: bytes = b""


class DeploymentsUpsert(Command):
    """Store new or changed deployments."""

    deployments: Annotated[tuple[DeploymentWrite, ...], msgspec.Meta(max_length=1_000)]


def deployment_write(deployment: Deployment) -> DeploymentWrite:
    """The form in which commands carry this deployment."""
    return DeploymentWrite(
        id=deployment.id,
        namespace=deployment.namespace,
        job_id=deployment.job_id,
        job_version=deployment.job_version,
        job_create_index=deployment.job_create_index,
        status=deployment.status.value,
        status_description=deployment.status_description,
        create_time_ns=deployment.create_time_ns,
        modify_time_ns=deployment.modify_time_ns,
        body=to_bytes(structs.replace(deployment, task_groups={}, create_index=0, modify_index=0)),
        groups=pack_states(deployment.task_groups),
    )


def apply_upsert(tx: Transaction, command: DeploymentsUpsert) -> Result:
    check_deployments(command.deployments)
    store_deployments(tx, command.deployments)
    return tx.done()


def check_deployments(items: tuple[DeploymentWrite, ...]) -> None:
    """Refuse what could not be read back; before anything is written."""
    for item in items:
        try:
            unpack_groups(item.groups)
        except CodecError as error:
            raise InvalidCommand(f"deployment {item.id!r}: {error}") from error


def store_deployments(tx: Transaction, items: tuple[DeploymentWrite, ...]) -> None:
    """Store deployments and what follows from them for their jobs. What was counted for a known one stays counted."""
    table = tx.store.deployments.table
    for item in items:
        known = table.get(item.id)
        row = DeploymentRow(
            **structs.asdict(item), create_index=known.create_index if known else tx.index, modify_index=tx.index
        )
        if known is not None:
            row = structs.replace(row, create_time_ns=known.create_time_ns, groups=_merged(item.groups, known))
            if has_overtaken(known, item.status):
                row = structs.replace(row, status=known.status, status_description=known.status_description)
        tx.put(table, row)
        follow_deployment(tx, row)
        if row.status == SUCCESSFUL and (known is None or known.status != SUCCESSFUL):
            mark_stable(tx, row.namespace, row.job_id, row.job_create_index, row.job_version)
    for namespace, job_id in sorted({(item.namespace, item.job_id) for item in items}):
        refresh_status(tx, namespace, job_id)


def has_overtaken(known: DeploymentRow, status: str) -> bool:
    """Whether a plan that would have the deployment wait for its turn was made before that came, or went by."""
    return status in WAITING and known.status not in WAITING


def _merged(groups: bytes, known: DeploymentRow) -> bytes:
    if not known.groups:
        return groups
    before = known.progress()
    return pack_groups(kept(one, before.get(name)) for name, one in unpack_groups(groups).items())
