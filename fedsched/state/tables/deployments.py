"""Deployments: the supervised changes from one job version to the next. Rows only; their rules live with the leader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import structs

from fedsched.codec import STORED_LIMITS, from_bytes, to_bytes
from fedsched.model.deployment import Deployment, DeploymentStatus
from fedsched.state.fields import Command, Count, Id, Stored, Text
from fedsched.state.past import Keeper, Past
from fedsched.state.result import Result
from fedsched.state.table import Key, Row, Table, TableReader
from fedsched.state.tables.job_status import refresh_status

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

ENDED: Final = frozenset(status.value for status in DeploymentStatus if not status.is_active)


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

    @property
    def key(self) -> Key:
        return (self.id,)

    @property
    def is_active(self) -> bool:
        return self.status not in ENDED

    def deployment(self) -> Deployment:
        """The whole record."""
        whole = from_bytes(self.body, Deployment, STORED_LIMITS)
        return structs.replace(
            whole,
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


class Deployments(DeploymentsReader):
    """The live deployments."""

    def __init__(self, keeper: Keeper) -> None:
        self.table: Table[DeploymentRow] = Table(
            keeper,
            DeploymentRow,
            {
                "job": lambda row: (row.namespace, row.job_id, row.create_index),
                "active": lambda row: (row.namespace, row.job_id) if row.is_active else None,
                "age": lambda row: (row.namespace, row.create_index),
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
    status: Literal[
        "running",
        "paused",
        "failed",
        "successful",
        "cancelled",
        "initializing",
        "pending",
        "blocked",
        "unblocking",
    ] = "running"
    status_description: Text = ""
    create_time_ns: Count = 0
    modify_time_ns: Count = 0
    body: bytes = b""


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
        body=to_bytes(structs.replace(deployment, create_index=0, modify_index=0)),
    )


def apply_upsert(tx: Transaction, command: DeploymentsUpsert) -> Result:
    store_deployments(tx, command.deployments)
    return tx.done()


def store_deployments(tx: Transaction, items: tuple[DeploymentWrite, ...]) -> None:
    """Store deployments and what follows from them for their jobs."""
    table = tx.store.deployments.table
    for item in items:
        known = table.get(item.id)
        row = DeploymentRow(
            **structs.asdict(item), create_index=known.create_index if known else tx.index, modify_index=tx.index
        )
        if known is not None:
            row = structs.replace(row, create_time_ns=known.create_time_ns)
        tx.put(table, row)
    for namespace, job_id in sorted({(item.namespace, item.job_id) for item in items}):
        refresh_status(tx, namespace, job_id)
