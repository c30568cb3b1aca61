"""Jobs: the current state of each, the versions kept of it, and the commands that register and stop one.

A job's specification is stored as the bytes its proposer encoded, and compared as bytes: two servers of different
versions can then never disagree on whether a registration changed anything. What the servers themselves say about a job
(version, indexes, status) stands beside it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import structs

from fedsched.codec import dumps_sorted, to_builtins
from fedsched.model.job import RETAINED_VERSIONS, Job, JobStatus, JobType
from fedsched.model.record import UpdateClass, fields_of
from fedsched.state.fields import Command, Count, Id, Name, Number, ShortText, Text
from fedsched.state.past import Keeper, Past
from fedsched.state.result import Result, refused
from fedsched.state.table import IndexOf, Key, Table, TableReader
from fedsched.state.tables.alloc_origins import OriginRow
from fedsched.state.tables.evaluations import EvaluationWrite, store_evaluation
from fedsched.state.tables.job_children import delete_job, put_job
from fedsched.state.tables.job_rows import JobChildrenRow, JobRow, JobVersionRow, PeriodicLaunchRow, ScalingEventsRow
from fedsched.state.tables.job_stability import mark_stable
from fedsched.state.tables.job_status import ALWAYS_RUNNING_TYPES, refresh_status

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

STATE_FIELDS: Final = frozenset(
    {"Stop"} | {field.internal_name for field in fields_of(Job) if field.update is UpdateClass.BOOKKEEPING}
)
"""What is said about a job beside its specification."""

SUBMISSION_BYTES_MAX: Final = 2 << 20
COMMON_POOLS: Final = frozenset({"", "all", "default"})
"""Node pools that cannot be deleted: nobody needs to find the jobs that ask for them."""


class JobsReader:
    """Jobs, live or as a snapshot saw them."""

    def __init__(
        self,
        rows: TableReader[JobRow],
        versions: TableReader[JobVersionRow],
        children: TableReader[JobChildrenRow],
        launches: TableReader[PeriodicLaunchRow],
        scaling: TableReader[ScalingEventsRow],
    ) -> None:
        self.rows = rows
        self.version_rows = versions
        self.children_rows = children
        self.launch_rows = launches
        self.scaling_rows = scaling

    def row(self, namespace: str, job_id: str) -> JobRow | None:
        return self.rows.get(namespace, job_id)

    def get(self, namespace: str, job_id: str) -> Job | None:
        """The current version of a job."""
        row = self.row(namespace, job_id)
        return self.of_row(row) if row is not None else None

    def of_row(self, row: JobRow) -> Job:
        version = self.version_rows.get(*row.version_key)
        assert version is not None, f"job {row.key!r} without its version {row.version}"
        return structs.replace(version.job(status=row.status), modify_index=row.modify_index)

    def version(self, namespace: str, job_id: str, version: int) -> Job | None:
        """One version of a job that exists; None if it is not kept (any more)."""
        row = self.row(namespace, job_id)
        found = self.version_rows.get(namespace, job_id, row.create_index, version) if row else None
        return found.job(status=row.status) if found and row else None

    def version_by_key(self, key: Key) -> Job | None:
        """The version that an allocation's origin names, also of a job that was purged."""
        found = self.version_rows.get(*key)
        return found.job() if found else None

    def versions(self, namespace: str, job_id: str) -> list[Job]:
        """The versions kept of a job, newest first. Older ones that only live on in allocations are left out."""
        row = self.row(namespace, job_id)
        if row is None:
            return []
        rows = list(self.version_rows.scan(namespace, job_id, row.create_index))
        return [version.job(status=row.status) for version in reversed(rows) if version in kept_versions(rows)]

    def scan(self, namespace: str | None = None, *, start: Key | None = None) -> Iterator[JobRow]:
        """Jobs in order of namespace and id."""
        return self.rows.scan(*(() if namespace is None else (namespace,)), start=start)

    def children(self, namespace: str, parent_id: str) -> Iterator[JobRow]:
        """What a periodic or parameterized job has launched."""
        return self.rows.by("parent", namespace, parent_id)

    def child_counts(self, namespace: str, parent_id: str) -> JobChildrenRow:
        """How many children of a job are pending, running and dead."""
        known = self.children_rows.get(namespace, parent_id)
        return known or JobChildrenRow(namespace=namespace, parent_id=parent_id)

    def last_launch_ns(self, namespace: str, job_id: str) -> int:
        """When a periodic job was last launched; 0 for never."""
        known = self.launch_rows.get(namespace, job_id)
        return known.launch_ns if known else 0

    def periodic(self) -> Iterator[JobRow]:
        """Periodic jobs that are not stopped: what a new leader keeps time for."""
        return self.rows.by("periodic")

    def on_every_node(self) -> Iterator[JobRow]:
        """System jobs that are not stopped: what a node that comes may have to run."""
        return self.rows.by("system")

    def scaling_events(self, namespace: str, job_id: str) -> Iterator[ScalingEventsRow]:
        """The latest scaling events of a job, by group."""
        return self.scaling_rows.scan(namespace, job_id)


class Jobs(JobsReader):
    """The live jobs."""

    def __init__(self, keeper: Keeper) -> None:
        self.table: Table[JobRow] = Table(keeper, JobRow, _INDEXES)
        self.version_table: Table[JobVersionRow] = Table(keeper, JobVersionRow)
        self.children_table: Table[JobChildrenRow] = Table(keeper, JobChildrenRow)
        self.launch_table: Table[PeriodicLaunchRow] = Table(keeper, PeriodicLaunchRow)
        self.scaling_table: Table[ScalingEventsRow] = Table(keeper, ScalingEventsRow)
        super().__init__(self.table, self.version_table, self.children_table, self.launch_table, self.scaling_table)

    def view(self, past: Past) -> JobsReader:
        return JobsReader(
            self.table.view(past),
            self.version_table.view(past),
            self.children_table.view(past),
            self.launch_table.view(past),
            self.scaling_table.view(past),
        )


_INDEXES: Final[dict[str, IndexOf[JobRow]]] = {
    "parent": lambda row: (row.namespace, row.parent_id) if row.parent_id else None,
    "token": lambda row: (row.namespace, row.parent_id, row.dispatch_token) if row.dispatch_token else None,
    "periodic": lambda row: (row.namespace, row.id) if row.is_periodic and not row.stop else None,
    "system": lambda row: (row.namespace, row.id) if row.type in ALWAYS_RUNNING_TYPES and not row.stop else None,
    "pool": lambda row: (row.node_pool,) if row.node_pool not in COMMON_POOLS and not row.stop else None,
}


def kept_versions(rows: list[JobVersionRow], keep: int = RETAINED_VERSIONS) -> list[JobVersionRow]:
    """Which versions stay: the newest few, the latest stable one, and all that carry a tag."""
    untagged = [row for row in rows if not row.tag_name]
    kept = untagged[-keep:]
    stable = next((row for row in reversed(untagged) if row.is_stable), None)
    if stable is not None and stable not in kept:
        kept = [stable, *kept[1:]]
    return [row for row in rows if row.tag_name or row in kept]


class JobRegister(Command):
    """Store a job as its user wants it now, with the evaluation that will act on it."""

    namespace: Id
    id: Id
    spec: bytes
    type: ShortText = JobType.SERVICE.value
    priority: Number = 0
    parent_id: Name = ""
    is_template: bool = False
    submit_time_ns: Count = 0
    stop: bool = False
    enforce_index: bool = False
    check_index: Count = 0
    """With `enforce_index`: the job's `job_modify_index` must be this, or 0 for a job that may not exist yet."""
    evaluation: EvaluationWrite | None = None
    node_pool: Name = ""
    is_periodic: bool = False
    dispatch_token: Name = ""
    submission: Annotated[bytes, msgspec.Meta(max_length=SUBMISSION_BYTES_MAX)] = b""


class JobDeregister(Command):
    """Stop a job, or purge it: then it is forgotten at once and only its allocations live on until they end."""

    namespace: Id
    id: Id
    purge: bool = False
    submit_time_ns: Count = 0
    evaluation: EvaluationWrite | None = None


class JobTag(Command):
    """Name one version of a job, which keeps it; an empty name takes the name away."""

    namespace: Id
    id: Id
    version: Count
    name: ShortText = ""
    description: Text = ""
    tagged_time_ns: Count = 0


class JobStable(Command):
    """Say whether a version of a job has proven itself."""

    namespace: Id
    id: Id
    version: Count
    is_stable: bool = True


def spec_bytes(job: Job) -> bytes:
    """The specification alone, in the one form that equal specifications have."""
    fields = to_builtins(job)
    if fields.get("Payload"):
        fields["Payload"] = zlib.compress(fields["Payload"])
    return dumps_sorted({name: value for name, value in fields.items() if name not in STATE_FIELDS})


def job_register(
    job: Job,
    *,
    evaluation: EvaluationWrite | None,
    enforce_index: bool = False,
    check_index: int = 0,
    submission: bytes = b"",
) -> JobRegister:
    """The command that registers this job."""
    return JobRegister(
        namespace=job.namespace,
        id=job.id,
        spec=spec_bytes(job),
        type=job.type,
        priority=job.priority,
        parent_id=job.parent_id,
        is_template=job.is_periodic or job.is_parameterized,
        submit_time_ns=job.submit_time_ns,
        stop=job.stop,
        enforce_index=enforce_index,
        check_index=check_index,
        evaluation=evaluation,
        node_pool=job.node_pool,
        is_periodic=job.is_periodic,
        dispatch_token=job.dispatch_idempotency_token if job.dispatched else "",
        submission=submission,
    )


def apply_register(tx: Transaction, command: JobRegister) -> Result:
    row = tx.store.jobs.row(command.namespace, command.id)
    conflict = _check_index(command, row)
    if conflict:
        hint = "read the job again, look at what changed, and use its current index"
        return refused(tx.index, "conflict", conflict, hint=hint)
    current = tx.store.jobs.version_rows.get(*row.version_key) if row else None
    if row is None or current is None or current.spec != command.spec or row.stop != command.stop:
        row = _new_version(tx, command, row)
    if command.evaluation is not None:
        store_evaluation(tx, structs.replace(command.evaluation, job_modify_index=row.job_modify_index))
    refresh_status(tx, row.namespace, row.id)
    return tx.done(
        version=row.version,
        job_modify_index=row.job_modify_index,
        job_create_index=row.create_index,
        evaluation_id=command.evaluation.id if command.evaluation else "",
    )


def apply_deregister(tx: Transaction, command: JobDeregister) -> Result:
    jobs = tx.store.jobs
    row = jobs.row(command.namespace, command.id)
    if row is not None and command.purge:
        forget_job(tx, row)
    elif row is not None:
        current = jobs.version_rows.get(*row.version_key)
        assert current is not None
        stopped = JobRegister(
            namespace=row.namespace,
            id=row.id,
            type=row.type,
            priority=row.priority,
            parent_id=row.parent_id,
            is_template=row.is_template,
            is_periodic=row.is_periodic,
            node_pool=row.node_pool,
            dispatch_token=row.dispatch_token,
            spec=current.spec,
            submission=current.submission,
            submit_time_ns=command.submit_time_ns,
            stop=True,
        )
        row = _new_version(tx, stopped, row)
    if command.evaluation is not None:
        modify_index = row.job_modify_index if row and not command.purge else tx.index
        store_evaluation(tx, structs.replace(command.evaluation, job_modify_index=modify_index))
    refresh_status(tx, command.namespace, command.id)
    return tx.done(
        job_modify_index=tx.index,
        was_known=row is not None,
        evaluation_id=command.evaluation.id if command.evaluation else "",
    )


def apply_tag(tx: Transaction, command: JobTag) -> Result:
    row = tx.store.jobs.row(command.namespace, command.id)
    versions = list(tx.store.jobs.version_rows.scan(command.namespace, command.id, row.create_index)) if row else []
    version = next((version for version in versions if version.version == command.version), None)
    if row is None or version is None:
        return _no_version(tx, command.id, command.version)
    if command.name and any(other.tag_name == command.name for other in versions if other is not version):
        return refused(
            tx.index,
            "conflict",
            f"another version of job {command.id!r} is already tagged {command.name!r}",
            hint="take that tag away first, or choose another name",
        )
    tag = {"tag_description": command.description, "tagged_time_ns": command.tagged_time_ns} if command.name else {}
    blank = structs.replace(version, tag_name=command.name, tag_description="", tagged_time_ns=0)
    tx.put(tx.store.jobs.version_table, structs.replace(blank, **tag, modify_index=tx.index))
    trim_versions(tx, row.namespace, row.id, row.create_index)
    return tx.done()


def apply_stable(tx: Transaction, command: JobStable) -> Result:
    if not mark_stable(tx, command.namespace, command.id, 0, command.version, is_stable=command.is_stable):
        return _no_version(tx, command.id, command.version)
    return tx.done()


def forget_job(tx: Transaction, row: JobRow) -> None:
    """A job goes, and all that belongs to it; versions that allocations still run stay until those end."""
    jobs = tx.store.jobs
    delete_job(tx, row)
    trim_versions(tx, row.namespace, row.id, row.create_index)
    _drop_empty_groups(tx, row)
    tx.delete(jobs.launch_table, *row.key)
    for events in list(jobs.scaling_rows.scan(*row.key)):
        tx.delete(jobs.scaling_table, *events.key)


def trim_versions(tx: Transaction, namespace: str, job_id: str, create_index: int) -> None:
    """Forget versions that are beyond those kept and that no allocation runs."""
    store = tx.store
    row = store.jobs.row(namespace, job_id)
    rows = list(store.jobs.version_rows.scan(namespace, job_id, create_index))
    kept = kept_versions(rows) if row is not None and row.create_index == create_index else []
    for version in rows:
        in_use = next(store.allocations.origins.by("version", *version.key), None) is not None
        if version not in kept and not in_use:
            tx.delete(store.jobs.version_table, *version.key)


def let_go(tx: Transaction, origins: Iterable[OriginRow]) -> None:
    """Allocations went, and these origins with them: so may the job versions and the counts that they alone kept."""
    store = tx.store
    gone = list(origins)
    for namespace, job_id, create_index in sorted({(*origin.job_key, origin.job_create_index) for origin in gone}):
        trim_versions(tx, namespace, job_id, create_index)
    for key in sorted({origin.group_key for origin in gone}):
        row = store.jobs.row(key[0], key[1])
        if row is not None and row.create_index == key[2]:
            continue
        group = store.allocations.groups.get(*key)
        if group is not None and next(store.allocations.origins.by("group", *key), None) is None:
            store.allocations.drop_group(group)


def _check_index(command: JobRegister, row: JobRow | None) -> str:
    if not command.enforce_index:
        return ""
    wanted = f"Enforcing job modify index {command.check_index}"
    if command.check_index == 0:
        return f"{wanted}: job {command.id!r} already exists" if row is not None else ""
    if row is None:
        return f"{wanted}: job {command.id!r} does not exist"
    if row.job_modify_index != command.check_index:
        return f"{wanted}: job {command.id!r} is now at modify index {row.job_modify_index}"
    return ""


def register_at(tx: Transaction, command: JobRegister, version: int) -> JobRow:
    """Store a job under a version that several regions have agreed on, also if nothing differs from the one before.

    The version must be above the one that is known.
    """
    row = _new_version(tx, command, tx.store.jobs.row(command.namespace, command.id), version)
    refresh_status(tx, row.namespace, row.id)
    return row


def _new_version(tx: Transaction, command: JobRegister, row: JobRow | None, number: int | None = None) -> JobRow:
    following = row.version + 1 if row else 0
    new = JobRow(
        namespace=command.namespace,
        id=command.id,
        version=following if number is None else number,
        type=command.type,
        status=row.status if row else JobStatus.PENDING.value,
        priority=command.priority,
        parent_id=command.parent_id,
        stop=command.stop,
        is_template=command.is_template,
        had_evaluation=row.had_evaluation if row else False,
        create_index=row.create_index if row else tx.index,
        modify_index=tx.index,
        job_modify_index=tx.index,
        submit_time_ns=command.submit_time_ns,
        node_pool=command.node_pool,
        is_periodic=command.is_periodic,
        dispatch_token=command.dispatch_token,
    )
    version = JobVersionRow(
        namespace=new.namespace,
        id=new.id,
        create_index=new.create_index,
        version=new.version,
        spec=command.spec,
        stop=new.stop,
        modify_index=tx.index,
        job_modify_index=tx.index,
        submit_time_ns=command.submit_time_ns,
        submission=command.submission,
    )
    tx.put(tx.store.jobs.version_table, version)
    put_job(tx, new)
    trim_versions(tx, new.namespace, new.id, new.create_index)
    return new


def _drop_empty_groups(tx: Transaction, row: JobRow) -> None:
    allocations = tx.store.allocations
    for group in list(allocations.groups.scan(row.namespace, row.id, row.create_index)):
        if next(allocations.origins.by("group", *group.key), None) is None:
            allocations.drop_group(group)


def _no_version(tx: Transaction, job_id: str, version: int) -> Result:
    return refused(
        tx.index,
        "not_found",
        f"job {job_id!r} has no version {version}",
        hint="`fedsched job history` lists the versions that are kept",
    )
