"""All tables at one index, and views of them.

`Store` is the live state; only `apply` changes it. `snapshot()` costs next to nothing, gives the same readers over the
state as it is now, and stays as it is while the store goes on. A snapshot is read on the thread that applies; whatever
is to be worked on elsewhere is taken out of it first (`EvaluationView`).
"""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import Any, Final, NamedTuple

from fedsched.model.evaluation import Evaluation
from fedsched.model.job import Job
from fedsched.state.changes import ALLOCATIONS
from fedsched.state.columns import Columns, Rows, Slots
from fedsched.state.digest import combine
from fedsched.state.past import Keeper, Lease
from fedsched.state.slot_map import SlotMap
from fedsched.state.table import Key, Table, TableReader
from fedsched.state.tables.alloc_origins import OriginRow
from fedsched.state.tables.alloc_reader import AllocationsReader
from fedsched.state.tables.allocations import Allocations
from fedsched.state.tables.deployments import Deployments, DeploymentsReader
from fedsched.state.tables.evaluations import Evaluations, EvaluationsReader
from fedsched.state.tables.jobs import Jobs, JobsReader
from fedsched.state.tables.meta import Meta, MetaReader
from fedsched.state.tables.namespaces import Places, PlacesReader
from fedsched.state.tables.nodes import Nodes, NodesReader
from fedsched.state.tables.rollouts import Rollouts, RolloutsReader
from fedsched.state.tables.services import Services, ServicesReader
from fedsched.state.tables.sessions import Sessions, SessionsReader
from fedsched.state.tables.variables import Variables, VariablesReader

SCHEMA_VERSION: Final = 5
"""The form of images. A reader takes this and older ones and refuses newer ones."""


class EvaluationView(NamedTuple):
    """What one evaluation needs, taken out of a snapshot: plain values, good on any thread."""

    snapshot_index: int
    evaluation: Evaluation
    job: Job | None
    slots: Slots
    allocs: Rows
    """The job's allocations as columns, in the order of `slots`."""
    origins: dict[int, OriginRow]
    """By the number in the `origin` column."""


class State:
    """What can be read of the state at one index; the same for the live store and for snapshots."""

    index: int
    time_ns: int
    jobs: JobsReader
    evaluations: EvaluationsReader
    deployments: DeploymentsReader
    nodes: NodesReader
    allocations: AllocationsReader
    places: PlacesReader
    services: ServicesReader
    variables: VariablesReader
    rollouts: RolloutsReader
    sessions: SessionsReader
    meta: MetaReader
    table_indexes: dict[str, int]

    def table_index(self, table: str) -> int:
        """When this table was last written; at least 1, so that a reader can wait for something newer."""
        return max(1, self.table_indexes.get(table, 0))

    def row_index(self, table: str, key: Key) -> int:
        """When this row was last written, at least 1; 0 if there is no such row."""
        row = self._row(table, key)
        return max(1, getattr(row, "modify_index", 0)) if row is not None else 0

    def view_for(self, evaluation_id: str) -> EvaluationView | None:
        """Everything an evaluation is decided from, except for the fleet."""
        row = self.evaluations.row(evaluation_id)
        if row is None:
            return None
        return self.view_with(row.evaluation(), self.jobs.get(row.namespace, row.job_id))

    def view_with(self, evaluation: Evaluation, job: Job | None) -> EvaluationView:
        """The same for an evaluation and a version of its job that need not be stored."""
        slots = self.allocations.slots_of_job(evaluation.namespace, evaluation.job_id)
        allocs = self.allocations.columns.read(slots)
        origins = {ref: self._origin(ref) for ref in sorted(set(allocs["origin"].tolist()))}
        return EvaluationView(self.index, evaluation, job, slots, allocs, origins)

    def _origin(self, ref: int) -> OriginRow:
        origin = self.allocations.origins.get(ref)
        assert origin is not None
        return origin

    def _row(self, table: str, key: Key) -> Any:
        readers: dict[str, TableReader[Any]] = {
            "jobs": self.jobs.rows,
            "evaluations": self.evaluations.rows,
            "deployments": self.deployments.rows,
            "nodes": self.nodes.rows,
            "namespaces": self.places.namespaces,
            "node_pools": self.places.node_pools,
            "services": self.services.rows,
            "service_names": self.services.names,
            "variables": self.variables.rows,
            "rollouts": self.rollouts.rows,
            "rollout_shares": self.rollouts.share_rows,
            "meta": self.meta.rows,
            "periodic_launches": self.jobs.launch_rows,
            "scaling_events": self.jobs.scaling_rows,
        }
        reader = readers.get(table)
        return reader.get(*key) if reader is not None else None


class Store(State):
    """The live state."""

    jobs: Jobs
    evaluations: Evaluations
    deployments: Deployments
    nodes: Nodes
    allocations: Allocations
    places: Places
    services: Services
    variables: Variables
    rollouts: Rollouts
    sessions: Sessions
    meta: Meta

    def __init__(self, *, is_empty: bool = False) -> None:
        self.index = 0
        self.time_ns = 0
        self.keeper = Keeper()
        self.jobs = Jobs(self.keeper)
        self.evaluations = Evaluations(self.keeper)
        self.deployments = Deployments(self.keeper)
        self.nodes = Nodes(self.keeper)
        self.allocations = Allocations(self.keeper, self.nodes)
        self.places = Places(self.keeper)
        self.services = Services(self.keeper)
        self.variables = Variables(self.keeper)
        self.rollouts = Rollouts(self.keeper)
        self.sessions = Sessions(self.keeper)
        self.meta = Meta(self.keeper)
        self.table_indexes = {}
        self._last: weakref.ref[Snapshot] | None = None
        if not is_empty:
            self.places.begin()

    def snapshot(self) -> Snapshot:
        """The state as it is now. Asked again before anything changed, the same one is given."""
        last = self._last() if self._last is not None else None
        if last is not None and last.index == self.index:
            return last
        snapshot = Snapshot(self, self.keeper.take())
        self._last = weakref.ref(snapshot)
        return snapshot

    def digest(self) -> bytes:
        """Equal for equal states. The cost does not depend on the size of the state."""
        return combine(self.digest_parts(), self.index)

    def digest_parts(self) -> dict[str, int]:
        """The digest of each table, to tell in which one two servers differ."""
        parts = {name: table.digest for name, table in self.tables().items()}
        parts[ALLOCATIONS] = self.allocations.digest
        parts["alloc_counts"] = self.allocations.counts_digest
        parts["time_ns"] = self.time_ns
        return parts | {f"{name}.index": index for name, index in self.table_indexes.items()}

    def tables(self) -> dict[str, Table[Any]]:
        """All tables of rows, in the order in which an image has them: origins before whatever refers to them."""
        tables: list[Table[Any]] = [
            self.meta.table,
            self.places.namespace_table,
            self.places.pool_table,
            self.sessions.table,
            self.sessions.result_table,
            self.jobs.table,
            self.jobs.version_table,
            self.jobs.children_table,
            self.jobs.launch_table,
            self.jobs.scaling_table,
            self.evaluations.table,
            self.deployments.table,
            self.nodes.table,
            self.nodes.slot_table,
            self.allocations.group_table,
            self.allocations.live_origins.rows,
            self.services.table,
            self.services.name_table,
            self.variables.table,
            self.rollouts.table,
            self.rollouts.share_table,
        ]
        return {table.name: table for table in tables}

    def columns(self) -> dict[str, Columns]:
        """All columns, in the order in which an image has them."""
        return {
            "node_slots": self.nodes.columns,
            "alloc_counts": self.allocations.live_counts,
            "alloc_ages": self.allocations.live_ages,
            "alloc_links": self.allocations.live_links,
            "allocations": self.allocations.live,
        }

    def slot_maps(self) -> dict[str, SlotMap]:
        """The bytes beside the columns of allocations."""
        names = ("alloc_plan", "alloc_desired", "alloc_client", "alloc_kin")
        return dict(zip(names, self.allocations.live_cold, strict=True))


class Snapshot(State):
    """The state as it was at one index. Its readers are made when they are first asked for."""

    def __init__(self, store: Store, lease: Lease) -> None:
        self.index = store.index
        self.time_ns = store.time_ns
        self.table_indexes = dict(store.table_indexes)
        self.digest_parts = store.digest_parts()
        self.column_counts = {name: columns.count for name, columns in store.columns().items()}
        self.cold_counts = {name: len(part) for name, part in store.slot_maps().items()}
        self.store = store
        self.lease = lease

    @cached_property
    def jobs(self) -> JobsReader:  # type: ignore[override]
        return self.store.jobs.view(self.lease.past)

    @cached_property
    def evaluations(self) -> EvaluationsReader:  # type: ignore[override]
        return self.store.evaluations.view(self.lease.past)

    @cached_property
    def deployments(self) -> DeploymentsReader:  # type: ignore[override]
        return self.store.deployments.view(self.lease.past)

    @cached_property
    def nodes(self) -> NodesReader:  # type: ignore[override]
        return self.store.nodes.view(self.lease.past)

    @cached_property
    def allocations(self) -> AllocationsReader:  # type: ignore[override]
        return self.store.allocations.view(self.lease.past, self.nodes)

    @cached_property
    def places(self) -> PlacesReader:  # type: ignore[override]
        return self.store.places.view(self.lease.past)

    @cached_property
    def services(self) -> ServicesReader:  # type: ignore[override]
        return self.store.services.view(self.lease.past)

    @cached_property
    def variables(self) -> VariablesReader:  # type: ignore[override]
        return self.store.variables.view(self.lease.past)

    @cached_property
    def rollouts(self) -> RolloutsReader:  # type: ignore[override]
        return self.store.rollouts.view(self.lease.past)

    @cached_property
    def sessions(self) -> SessionsReader:  # type: ignore[override]
        return self.store.sessions.view(self.lease.past)

    @cached_property
    def meta(self) -> MetaReader:  # type: ignore[override]
        return self.store.meta.view(self.lease.past)
