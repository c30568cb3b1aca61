"""Small stores to test with: short ways to commands, any command, an independent check of what is derived."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from fedsched.model.ids import uuid_bytes
from fedsched.model.job import Job
from fedsched.state.apply import ApplyResult, apply_bytes
from fedsched.state.commands import Envelope, encode_command
from fedsched.state.digest import COLUMN_HASH_MODULUS, column_hash
from fedsched.state.fields import Command, pack
from fedsched.state.store import State, Store
from fedsched.state.tables.alloc_columns import is_live
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, AllocTransition, Reap
from fedsched.state.tables.deployments import DeploymentsUpsert, DeploymentWrite
from fedsched.state.tables.evaluations import EvaluationsUpsert, EvaluationWrite
from fedsched.state.tables.job_rows import JobChildrenRow
from fedsched.state.tables.jobs import JobDeregister, JobRegister, JobStable, JobTag, job_register
from fedsched.state.tables.meta import ClusterBegin, SchedulerConfigSet
from fedsched.state.tables.namespaces import NamespaceDelete, NamespaceUpsert, NodePoolDelete, NodePoolUpsert
from fedsched.state.tables.nodes import NodeDeregister, NodeUpsert
from fedsched.state.tables.plans import OfficeBegin, PlacedGroup, PlanApply, StoppedBatch, UpdatedGroup
from fedsched.state.tables.sessions import RequestId
from tests.builders import a_job, an_id

SECOND = 1_000_000_000
EMPTY_MAP = b"\xa0"


class World:
    """A store, the log that made it, and short ways to add to both."""

    def __init__(self) -> None:
        self.store = Store()
        self.log: list[bytes] = []

    @property
    def index(self) -> int:
        return self.store.index

    def do(self, command: Command, *, request: RequestId | None = None, time_ns: int | None = None) -> ApplyResult:
        """Send a command the way a proposer does: encoded, decoded, applied."""
        time = (self.index + 1) * SECOND if time_ns is None else time_ns
        return self.send(encode_command(Envelope(command=command, time_ns=time, request=request)))

    def send(self, data: bytes) -> ApplyResult:
        self.log.append(data)
        return apply_bytes(self.store, self.store.index + 1, data)

    def replayed(self) -> Store:
        """A second server that applies the same log."""
        other = Store()
        for at, data in enumerate(self.log):
            apply_bytes(other, at + 1, data)
        return other

    def register(self, job: Job | None = None, **options: Any) -> ApplyResult:
        evaluation = options.pop("evaluation", None)
        return self.do(job_register(job or a_job(), evaluation=evaluation, **options))

    def nodes(self, count: int) -> list[int]:
        """Register so many nodes; their slots."""
        return [self.do(NodeUpsert(id=an_id(n), name=f"node-{n}")).result.value["slot"] for n in range(1, count + 1)]

    def plan(self, job_id: str = "web", **fields: Any) -> ApplyResult:
        row = self.store.jobs.row("default", job_id)
        fields.setdefault("job_create_index", row.create_index if row else 1)
        fields.setdefault("job_version", row.version if row else 0)
        fields.setdefault("snapshot_index", self.index)
        return self.do(PlanApply(namespace="default", job_id=job_id, evaluation_id=an_id(0xE), **fields))

    def place(self, numbers: list[int], nodes: list[int], *, job_id: str = "web", group: str = "group") -> ApplyResult:
        """Place allocations of these numbers (see `an_id`) on nodes of these slots."""
        return self.plan(job_id, placed=(placed_group(numbers, nodes, group=group),))


def ids(numbers: list[int]) -> bytes:
    return b"".join(uuid_bytes(an_id(number)) for number in numbers)


def column(numbers: list[int]) -> bytes:
    return np.array(numbers, dtype="<u4").tobytes()


def placed_group(numbers: list[int], nodes: list[int], *, group: str = "group", **fields: Any) -> PlacedGroup:
    return PlacedGroup(
        group=group,
        ids=ids(numbers),
        node_slots=column(nodes),
        name_indexes=column(list(range(len(numbers)))),
        **fields,
    )


def dump(state: State) -> dict[str, Any]:
    """Everything that can be read of a state, in a form that compares."""
    allocs = state.allocations
    slots = [slot for slot in range(allocs.columns.high) if allocs.columns.one(slot)["used"]]
    records = allocs.records(np.array(slots, dtype=np.int64))
    jobs = list(state.jobs.scan())
    return {
        "index": state.index,
        "time": state.time_ns,
        "indexes": dict(state.table_indexes),
        "jobs": jobs,
        "versions": list(state.jobs.version_rows.scan()),
        "children": list(state.jobs.children_rows.scan()),
        "launches": list(state.jobs.launch_rows.scan()),
        "scaling": list(state.jobs.scaling_rows.scan()),
        "evaluations": list(state.evaluations.rows.scan()),
        "open": [row.id for row in state.evaluations.rows.by("open")],
        "deployments": list(state.deployments.rows.scan()),
        "rollouts": list(state.rollouts.rows.scan()),
        "shares": list(state.rollouts.share_rows.scan()),
        "nodes": list(state.nodes.rows.scan()),
        "node slots": list(state.nodes.slot_rows.scan()),
        "namespaces": list(state.places.namespaces.scan()),
        "pools": list(state.places.node_pools.scan()),
        "services": list(state.services.rows.scan()),
        "service names": list(state.services.names.scan()),
        "variables": list(state.variables.rows.scan()),
        "sessions": list(state.sessions.rows.scan()),
        "results": list(state.sessions.results.scan()),
        "meta": list(state.meta.rows.scan()),
        "origins": list(allocs.origins.scan()),
        "allocs": dict(zip(slots, records, strict=True)),
        "found": [allocs.slot_of(record.id) for record in records],
        "by age": allocs.page(10_000),
        "by node": {row.slot: allocs.slots_of_node(row.slot).tolist() for row in state.nodes.slot_rows.scan()},
        "by job": {job.key: allocs.slots_of_job(job.namespace, job.id).tolist() for job in jobs},
        "counts": {job.key: allocs.group_counts(job.namespace, job.id, job.create_index) for job in jobs},
    }


def problems(store: Store) -> list[str]:
    """What a fresh computation from the rows alone finds different from what the store keeps."""
    found = [problem for table in store.tables().values() for problem in table.index_problems()]
    allocs = store.allocations
    slots = np.array([s for s in range(allocs.live.high) if allocs.live.one(s)["used"]], dtype=np.int64)
    rows = allocs.live.read(slots)
    found += _expect("count of allocations", len(allocs), len(slots))
    found += _expect("count of ids", len(allocs.ids), len(slots))
    found += _expect("ids", allocs.find(np.ascontiguousarray(rows["id"])).tolist(), slots.tolist())
    by_node: dict[int, list[int]] = {}
    by_job: dict[tuple[str, str], list[int]] = {}
    uses: dict[int, int] = {}
    live: dict[int, int] = {}
    for slot, row, alive in zip(slots.tolist(), rows, is_live(rows).tolist(), strict=True):
        origin = allocs.live_origins.rows.get(int(row["origin"]))
        assert origin is not None
        by_node.setdefault(int(row["node"]), []).append(slot)
        by_job.setdefault(origin.job_key, []).append(slot)
        uses[origin.ref] = uses.get(origin.ref, 0) + 1
        live[origin.group_slot] = live.get(origin.group_slot, 0) + alive
    for row in store.nodes.slot_table.scan():
        found += _expect(f"chain of {row}", sorted(allocs.slots_of_node(row.slot).tolist()), by_node.pop(row.slot, []))
    found += _expect("nodes without a slot", by_node, {})
    for key, wanted in by_job.items():
        found += _expect(f"slots of job {key}", allocs.slots_of_job(*key).tolist(), wanted)
    found += _expect("jobs with slots", len(allocs.live_job_slots), len(by_job))
    found += _expect("uses of origins", allocs.live_origins.uses(), uses)
    found += _expect("origins", len(allocs.live_origins.rows), len(uses))
    for group in allocs.group_table.scan():
        count = int(allocs.live_counts.one(group.slot)["live"])
        found += _expect(f"live in {group.key}", count, live.get(group.slot, 0))
    ages = allocs.page(10_000)
    found += _expect("chain by age", sorted(ages), slots.tolist())
    created = [int(allocs.live.one(slot)["create_index"]) for slot in ages]
    found += _expect("order by age", created, sorted(created))
    found += _family_problems(store)
    found += _service_problems(store)
    words = np.ascontiguousarray(rows).view(np.uint64).reshape(len(rows), rows.dtype.itemsize // 8)
    digest = sum(column_hash(words[at : at + 1], slots[at : at + 1].astype(np.uint64)) for at in range(len(slots)))
    found += _expect("digest of allocations", allocs.digest, digest % COLUMN_HASH_MODULUS)
    return found


def _family_problems(store: Store) -> list[str]:
    """The counts of children against the children themselves."""
    wanted: dict[tuple[str, str], dict[str, int]] = {}
    for job in store.jobs.scan():
        if job.parent_id:
            counts = wanted.setdefault((job.namespace, job.parent_id), {"pending": 0, "running": 0, "dead": 0})
            counts[job.status] += 1
    kept = {row.key: {name: getattr(row, name) for name in ("pending", "running", "dead")} for row in _children(store)}
    return _expect("children", kept, wanted)


def _service_problems(store: Store) -> list[str]:
    """The counts of names against the registrations, and those against their allocations."""
    wanted: dict[tuple[str, str], int] = {}
    found = []
    for row in store.services.rows.scan():
        wanted[row.namespace, row.name] = wanted.get((row.namespace, row.name), 0) + 1
        alloc = store.allocations.get(row.alloc_id)
        if alloc is None or alloc.client_status.is_terminal:
            found.append(f"registration {row.id} of an allocation that has ended")
    kept = {row.key: row.count for row in store.services.names.scan()}
    return found + _expect("names of services", kept, wanted)


def _children(store: Store) -> list[JobChildrenRow]:
    return list(store.jobs.children_rows.scan())


def _expect(what: str, actual: object, wanted: object) -> list[str]:
    return [] if actual == wanted else [f"{what}: {actual!r} instead of {wanted!r}"]


# Any command at all, for tests of single ones. Whole histories are drawn by `chance`.

_job_ids = st.sampled_from(["web", "db", "batch"])
_alloc_numbers = st.lists(st.integers(1, 24), min_size=1, max_size=6, unique=True)
_node_ids = st.integers(1, 5).map(an_id)
_groups = st.sampled_from(["group", "other"])
_statuses = st.sampled_from(["pending", "blocked", "complete", "failed", "canceled"])
_evaluations = st.builds(
    EvaluationWrite,
    id=st.integers(1, 8).map(an_id),
    job_id=_job_ids,
    status=_statuses,
    failed_groups=st.booleans(),
    queued=st.dictionaries(_groups, st.integers(0, 5), max_size=2),
)
_some_evaluations = st.lists(_evaluations, max_size=2).map(tuple)
_registers = st.builds(
    JobRegister,
    namespace=st.just("default"),
    id=_job_ids,
    spec=st.sampled_from([EMPTY_MAP, b"\xa1\x64Meta\xa1\x61a\x61b", b"\xa1\x64Meta\xa1\x61a\x61c"]),
    type=st.sampled_from(["service", "batch", "system"]),
    parent_id=st.sampled_from(["", "web"]),
    is_template=st.booleans(),
    stop=st.booleans(),
    enforce_index=st.booleans(),
    check_index=st.integers(0, 5),
    evaluation=st.none() | _evaluations,
)


@st.composite
def _placements(draw: st.DrawFn) -> PlacedGroup:
    numbers = draw(_alloc_numbers)
    nodes = draw(st.lists(st.integers(0, 6), min_size=len(numbers), max_size=len(numbers)))
    fields: dict[str, Any] = {"flags": draw(st.integers(0, 15)), "shared": draw(st.sampled_from([b"", EMPTY_MAP]))}
    if draw(st.booleans()):
        before = draw(st.lists(st.integers(0, 24), min_size=len(numbers), max_size=len(numbers)))
        fields["previous"] = b"".join(ids([n]) if n else bytes(16) for n in before)
    if draw(st.booleans()):
        own, sizes = pack([b"\xa1\x65Extra\x01"])
        fields |= {"own_at": column([0]), "own": own, "own_sizes": sizes}
    return placed_group(numbers, nodes, group=draw(_groups), **fields)


@st.composite
def _plans(draw: st.DrawFn) -> PlanApply:
    stopped = st.builds(
        StoppedBatch,
        ids=_alloc_numbers.map(ids),
        desired=st.integers(1, 3),
        client_status=st.sampled_from([0, 5, 6]),
        fields=st.sampled_from([b"", EMPTY_MAP]),
    )
    updated = st.builds(UpdatedGroup, group=_groups, ids=_alloc_numbers.map(ids))
    deployments = st.builds(
        DeploymentWrite,
        id=st.integers(1, 3).map(an_id),
        job_id=_job_ids,
        status=st.sampled_from(["running", "failed", "successful"]),
    )
    job_id, create_index = draw(st.sampled_from([("web", 4), ("web", 4), ("db", 5), ("db", 9), ("batch", 7)]))
    return PlanApply(
        namespace="default",
        job_id=job_id,
        job_create_index=create_index,
        job_version=draw(st.sampled_from([0, 0, 0, 1, 2])),
        evaluation_id=draw(st.integers(1, 8).map(an_id)),
        snapshot_index=draw(st.sampled_from([0, 5, 1000, 1000])),
        term=draw(st.sampled_from([0, 0, 0, 1, 3])),
        placed=tuple(draw(st.lists(_placements(), max_size=2))),
        stopped=tuple(draw(st.lists(stopped, max_size=2))),
        updated=tuple(draw(st.lists(updated, max_size=1))),
        deployments=tuple(draw(st.lists(deployments, max_size=1))),
        evaluations=draw(_some_evaluations),
    )


@st.composite
def _reports(draw: st.DrawFn) -> AllocStatusUpdate:
    numbers = draw(st.lists(st.integers(1, 24), max_size=6))
    healths = draw(st.sampled_from([b"", bytes([1]) * len(numbers), bytes([2]) * len(numbers)]))
    reports = [draw(st.sampled_from([b"", EMPTY_MAP])) for _ in numbers] if draw(st.booleans()) else []
    client, sizes = pack(reports)
    statuses = bytes(draw(st.integers(1, 6)) for _ in numbers)
    return AllocStatusUpdate(
        ids=ids(numbers),
        statuses=statuses,
        healths=healths,
        client=client,
        client_sizes=sizes,
        evaluations=draw(_some_evaluations),
    )


commands: st.SearchStrategy[Command] = st.one_of(
    _registers,
    _registers,
    st.builds(JobDeregister, namespace=st.just("default"), id=_job_ids, purge=st.booleans()),
    st.builds(
        JobTag,
        namespace=st.just("default"),
        id=_job_ids,
        version=st.integers(0, 3),
        name=st.sampled_from(["", "golden", "silver"]),
    ),
    st.builds(JobStable, namespace=st.just("default"), id=_job_ids, version=st.integers(0, 3), is_stable=st.booleans()),
    st.builds(
        NodeUpsert, id=_node_ids, name=st.sampled_from(["a", "b"]), node_pool=st.sampled_from(["default", "gpu"])
    ),
    st.builds(NodeUpsert, id=_node_ids),
    st.builds(NodeDeregister, ids=st.lists(_node_ids, min_size=1, max_size=2).map(tuple)),
    st.builds(EvaluationsUpsert, evaluations=_some_evaluations),
    st.builds(
        DeploymentsUpsert,
        deployments=st.lists(
            st.builds(DeploymentWrite, id=st.integers(1, 3).map(an_id), job_id=_job_ids), max_size=2
        ).map(tuple),
    ),
    st.builds(ClusterBegin, cluster_id=st.sampled_from(["one", "two"])),
    st.builds(OfficeBegin, term=st.integers(0, 3)),
    st.builds(
        SchedulerConfigSet, config=st.just(EMPTY_MAP), check_and_set=st.booleans(), check_index=st.integers(0, 3)
    ),
    st.builds(NamespaceUpsert, name=st.sampled_from(["default", "prod"]), description=st.sampled_from(["", "x"])),
    st.builds(NamespaceDelete, name=st.sampled_from(["default", "prod"])),
    st.builds(NodePoolUpsert, name=st.sampled_from(["gpu", "all"])),
    st.builds(NodePoolDelete, name=st.sampled_from(["gpu", "all"])),
    _plans(),
    _plans(),
    _plans(),
    _reports(),
    _reports(),
    st.builds(AllocTransition, ids=_alloc_numbers.map(ids), flags=st.integers(0, 63), evaluations=_some_evaluations),
    st.builds(
        Reap, evaluations=st.lists(st.integers(1, 8).map(an_id), max_size=2).map(tuple), allocs=_alloc_numbers.map(ids)
    ),
)

requests = st.none() | st.builds(RequestId, st.sampled_from([b"alice", b"bob"]), st.integers(1, 5), st.integers(0, 4))
