"""Evaluations: notes that a job's wanted and actual state may differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Final, Literal

import msgspec
from msgspec import structs

from fedsched.codec import STORED_LIMITS, from_bytes, to_bytes
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.state.fields import Command, Count, Id, Name, Number, ShortText, Stored, Text
from fedsched.state.past import Keeper, Past
from fedsched.state.result import Result
from fedsched.state.table import Key, Row, Table, TableReader
from fedsched.state.tables.job_children import put_job
from fedsched.state.tables.job_status import refresh_status

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

OPEN: Final = (EvaluationStatus.PENDING.value, EvaluationStatus.BLOCKED.value)
UPSERT_MAX: Final = 10_000
Queued = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]


class EvaluationRow(Row):
    """An evaluation: what is asked for often, and all of it encoded."""

    table: ClassVar[str] = "evaluations"

    id: str
    namespace: str
    job_id: str
    status: str
    status_description: str = ""
    type: str = ""
    priority: int = 0
    triggered_by: str = ""
    node_id: str = ""
    deployment_id: str = ""
    wait_until_ns: int = 0
    snapshot_index: int = 0
    job_modify_index: int = 0
    create_index: int = 0
    modify_index: int = 0
    create_time_ns: int = 0
    modify_time_ns: int = 0
    body: bytes = b""

    @property
    def key(self) -> Key:
        return (self.id,)

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    def evaluation(self) -> Evaluation:
        """The whole record."""
        whole = from_bytes(self.body, Evaluation, STORED_LIMITS)
        return structs.replace(
            whole,
            namespace=self.namespace,
            job_id=self.job_id,
            status=EvaluationStatus(self.status),
            status_description=self.status_description,
            job_modify_index=self.job_modify_index,
            create_index=self.create_index,
            modify_index=self.modify_index,
            create_time_ns=self.create_time_ns,
            modify_time_ns=self.modify_time_ns,
        )


class EvaluationsReader:
    """Evaluations, live or as a snapshot saw them."""

    def __init__(self, rows: TableReader[EvaluationRow]) -> None:
        self.rows = rows

    def row(self, evaluation_id: str) -> EvaluationRow | None:
        return self.rows.get(evaluation_id)

    def get(self, evaluation_id: str) -> Evaluation | None:
        row = self.row(evaluation_id)
        return row.evaluation() if row else None

    def of_job(self, namespace: str, job_id: str) -> Iterator[EvaluationRow]:
        """A job's evaluations, oldest first."""
        return self.rows.by("job", namespace, job_id)

    def with_status(self, status: str) -> Iterator[EvaluationRow]:
        """All with this status, oldest first; what a new leader starts its broker from."""
        return self.rows.by("status", status)


class Evaluations(EvaluationsReader):
    """The live evaluations."""

    def __init__(self, keeper: Keeper) -> None:
        self.table: Table[EvaluationRow] = Table(
            keeper,
            EvaluationRow,
            {
                "job": lambda row: (row.namespace, row.job_id, row.create_index),
                "open": lambda row: (row.namespace, row.job_id) if row.is_open else None,
                "status": lambda row: (row.status, row.create_index) if row.is_open else None,
                "namespace": lambda row: (row.namespace,),
            },
        )
        super().__init__(self.table)

    def view(self, past: Past) -> EvaluationsReader:
        return EvaluationsReader(self.table.view(past))


class EvaluationWrite(Stored):
    """An evaluation inside a command."""

    id: Id
    namespace: Id = "default"
    job_id: Name = ""
    status: Literal["blocked", "pending", "complete", "failed", "canceled"] = "pending"
    status_description: Text = ""
    type: ShortText = ""
    priority: Number = 0
    triggered_by: ShortText = ""
    node_id: Name = ""
    deployment_id: Name = ""
    wait_until_ns: Count = 0
    snapshot_index: Count = 0
    job_modify_index: Count = 0
    create_time_ns: Count = 0
    modify_time_ns: Count = 0
    failed_groups: bool = False
    """Whether some groups found no place."""
    queued: Annotated[dict[Name, Queued], msgspec.Meta(max_length=10_000)] = msgspec.field(default_factory=dict)
    """How many are still to be placed, by group."""
    body: bytes = b""


class EvaluationsUpsert(Command):
    """Store new or changed evaluations."""

    evaluations: Annotated[tuple[EvaluationWrite, ...], msgspec.Meta(max_length=UPSERT_MAX)]


def evaluation_write(evaluation: Evaluation) -> EvaluationWrite:
    """The form in which commands carry this evaluation."""
    return EvaluationWrite(
        id=evaluation.id,
        namespace=evaluation.namespace,
        job_id=evaluation.job_id,
        status=evaluation.status.value,
        status_description=evaluation.status_description,
        type=evaluation.type,
        priority=evaluation.priority,
        triggered_by=str(evaluation.triggered_by),
        node_id=evaluation.node_id,
        deployment_id=evaluation.deployment_id,
        wait_until_ns=evaluation.wait_until_ns or _end_of_wait(evaluation),
        snapshot_index=evaluation.snapshot_index,
        job_modify_index=evaluation.job_modify_index,
        create_time_ns=evaluation.create_time_ns,
        modify_time_ns=evaluation.modify_time_ns,
        failed_groups=bool(evaluation.failed_tg_allocs),
        queued=dict(evaluation.queued_allocations),
        body=to_bytes(structs.replace(evaluation, create_index=0, modify_index=0)),
    )


def _end_of_wait(evaluation: Evaluation) -> int:
    """When a delay counted from its creation is over: a moment means the same to every leader, a delay does not."""
    return evaluation.create_time_ns + round(evaluation.wait_s * 1e9) if evaluation.wait_s else 0


def apply_upsert(tx: Transaction, command: EvaluationsUpsert) -> Result:
    store_evaluations(tx, command.evaluations)
    return tx.done()


def store_evaluations(tx: Transaction, items: tuple[EvaluationWrite, ...]) -> None:
    """Store evaluations and what follows from them for their jobs."""
    for item in items:
        store_evaluation(tx, item)
    for namespace, job_id in sorted({(item.namespace, item.job_id) for item in items}):
        refresh_status(tx, namespace, job_id)


def store_evaluation(tx: Transaction, item: EvaluationWrite) -> None:
    """Store one evaluation. The caller sees to the job's status afterwards."""
    table = tx.store.evaluations.table
    known = table.get(item.id)
    fields = structs.asdict(item)
    del fields["failed_groups"], fields["queued"]
    row = EvaluationRow(**fields, create_index=known.create_index if known else tx.index, modify_index=tx.index)
    if known is not None:
        row = structs.replace(row, create_time_ns=known.create_time_ns)
    tx.put(table, row)
    _note_on_job(tx, item)
    if item.status == EvaluationStatus.COMPLETE.value and not item.failed_groups:
        _cancel_blocked(tx, row)


def _note_on_job(tx: Transaction, item: EvaluationWrite) -> None:
    job = tx.store.jobs.row(item.namespace, item.job_id)
    if job is None:
        return
    if not job.had_evaluation:
        put_job(tx, structs.replace(job, had_evaluation=True))
    for name, queued in sorted(item.queued.items()):
        group = tx.store.allocations.ensure_group(job.namespace, job.id, job.create_index, name)
        tx.store.allocations.set_queued(group, queued)


def _cancel_blocked(tx: Transaction, done: EvaluationRow) -> None:
    """Whoever waited for capacity for this job waits no more: everything has found its place."""
    rows = list(tx.store.evaluations.rows.by("open", done.namespace, done.job_id))
    for row in rows:
        if row.status == EvaluationStatus.BLOCKED.value and row.id != done.id:
            cancelled = structs.replace(
                row,
                status=EvaluationStatus.CANCELLED.value,
                status_description=f'evaluation "{done.id}" successful',
                modify_index=tx.index,
                modify_time_ns=tx.time_ns,
            )
            tx.put(tx.store.evaluations.table, cancelled)
