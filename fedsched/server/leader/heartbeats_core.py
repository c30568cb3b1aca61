"""Decides which nodes have gone silent, and what follows from a node's coming, going and returning.

A client is told how long it may wait before its next heartbeat: an interval that grows with the fleet, so that all
heartbeats together stay below a rate, plus as much again by chance, so that they spread out. The server allows for some
more. All deadlines are in one heap, with one entry per node: a heartbeat only moves the deadline beside it, and an
entry that comes up too early is put back. Time here is monotonic: a clock that is set forward takes no node down.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import numpy as np

from fedsched.model.alloc import Allocation, AllocState, ClientStatus
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, JobStatus, JobType, behaves_as
from fedsched.model.node import Node, NodeStatus
from fedsched.state.changes import Changes
from fedsched.state.columns import Slots
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import CLIENT_CODES, CLIENT_TERMINAL, RUN
from fedsched.state.tables.alloc_origins import OriginRow
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.tables.job_rows import JobRow
from fedsched.state.tables.node_events import NodeEventWrite
from fedsched.state.tables.node_updates import NodeStatusUpdate, NodeStatusWrite
from fedsched.state.tables.nodes import NodeRow

NS: Final = 1_000_000_000
ALL_POOLS: Final = "all"
EVALUATIONS_MAX: Final = 10_000
"""In one entry of the log."""
MISSED: Final = "its heartbeat was missed"
STATUS_FIELD: Final = 0
"""The number of the client status among the fields whose moves an allocation records."""


@dataclass(frozen=True, slots=True)
class HeartbeatSettings:
    """How patient a leader is."""

    ttl_min_s: float = 10.0
    rate_max: float = 50.0
    """Heartbeats per second that a leader wants to hear from the whole fleet."""
    grace_s: float = 10.0
    failover_ttl_s: float = 300.0
    """What every node gets after a change of leader: nobody knows when it was last heard."""


def interval_s(nodes: int, settings: HeartbeatSettings) -> float:
    """The shortest time between two heartbeats of one node."""
    return max(settings.ttl_min_s, nodes / settings.rate_max)


def ttl_s(nodes: int, chance: float, settings: HeartbeatSettings) -> float:
    """What a client is told; `chance` is in [0, 1)."""
    return interval_s(nodes, settings) * (1 + chance)


class HeartbeatsCore:
    """The deadlines of all nodes."""

    def __init__(self, settings: HeartbeatSettings | None = None) -> None:
        self.settings = settings or HeartbeatSettings()
        self._due: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._due

    def begin(self, node_ids: Iterable[str], now_ns: int) -> None:
        """Take up office: every node that is not down has the failover time to be heard."""
        due = now_ns + round(self.settings.failover_ttl_s * NS)
        self._due = dict.fromkeys(node_ids, due)
        self._heap = [(due, node_id) for node_id in sorted(self._due)]

    def beat(self, node_id: str, now_ns: int, chance: float) -> float:
        """A node was heard: how many seconds it may take until the next time."""
        count = len(self._due) + (node_id not in self._due)
        ttl = ttl_s(count, chance, self.settings)
        due = now_ns + round((ttl + self.settings.grace_s) * NS)
        before = self._due.get(node_id)
        self._due[node_id] = due
        if before is None or due < before:
            heapq.heappush(self._heap, (due, node_id))
            self._trim()
        return ttl

    def put_back(self, node_ids: Iterable[str], now_ns: int) -> None:
        """What was said of these could not be written: say it again as soon as possible, unless they were heard."""
        for node_id in node_ids:
            if node_id not in self._due:
                self._due[node_id] = now_ns
                heapq.heappush(self._heap, (now_ns, node_id))

    def note(self, state: State, changes: Iterable[Changes], now_ns: int) -> None:
        """Hear of changed nodes: those that are down or gone need no deadline, all others have one."""
        for change in changes:
            if change.is_everything:
                listed = {row.id: row for row in state.nodes.rows.scan()}
                for node_id in sorted(self._due.keys() | listed.keys()):
                    self._note_node(node_id, listed.get(node_id), now_ns)
                continue
            for key in change.keys("nodes"):
                self._note_node(str(key[0]), state.nodes.get(str(key[0])), now_ns)

    def _note_node(self, node_id: str, row: NodeRow | None, now_ns: int) -> None:
        if row is None or row.status == NodeStatus.DOWN.value:
            self.forget(node_id)
        elif node_id not in self._due:
            due = now_ns + round(self.settings.failover_ttl_s * NS)
            self._due[node_id] = due
            heapq.heappush(self._heap, (due, node_id))

    def forget(self, node_id: str) -> None:
        """The node is down or gone: its silence says nothing."""
        self._due.pop(node_id, None)

    def wake_at_ns(self) -> int | None:
        """When `wake` next has something to say."""
        while self._heap:
            due, node_id = self._heap[0]
            wanted = self._due.get(node_id)
            if wanted == due:
                return due
            heapq.heappop(self._heap)
            if wanted is not None and wanted > due:
                heapq.heappush(self._heap, (wanted, node_id))
        return None

    def wake(self, now_ns: int) -> list[str]:
        """The nodes whose time is up, each told of once."""
        silent = []
        while (due := self.wake_at_ns()) is not None and due <= now_ns:
            node_id = heapq.heappop(self._heap)[1]
            del self._due[node_id]
            silent.append(node_id)
        return sorted(silent)

    def _trim(self) -> None:
        """Deadlines that were moved closer leave an entry behind; there are never more of those than nodes."""
        if len(self._heap) > 2 * len(self._due) + 16:
            self._heap = sorted((due, node_id) for node_id, due in self._due.items())


@dataclass(frozen=True, slots=True)
class SetNodeStatus:
    """These nodes have gone silent; the evaluations are those of the jobs that this concerns."""

    node_ids: tuple[str, ...]
    status: NodeStatus
    evaluations: tuple[Evaluation, ...] = ()


def silence_effects(
    state: State, node_ids: Iterable[str], now_ns: int, new_id: Callable[[], str]
) -> list[SetNodeStatus]:
    """What the silence of nodes means: some are down, some only cut off. `now_ns` is wall time here.

    Nodes that fell silent together (a switch, a rack) share one change, and each job one evaluation for all of them.
    """
    by_status: dict[NodeStatus, list[NodeRow]] = {}
    patience = Patience(state)
    for node_id in sorted(set(node_ids)):
        row = state.nodes.get(node_id)
        if row is None or row.status == NodeStatus.DOWN.value:
            continue
        status = status_when_silent(state, row, patience, now_ns)
        if status.value != row.status:
            by_status.setdefault(status, []).append(row)
    return [
        effect
        for status in sorted(by_status)
        for effect in _status_effects(state, by_status[status], status, now_ns, new_id)
    ]


def _status_effects(
    state: State, rows: list[NodeRow], status: NodeStatus, now_ns: int, new_id: Callable[[], str]
) -> list[SetNodeStatus]:
    """One change for all, or for halves of them where one entry could not hold the evaluations."""
    evaluations = node_evaluations(state, rows, now_ns, new_id)
    if len(evaluations) > EVALUATIONS_MAX and len(rows) > 1:
        middle = len(rows) // 2
        halves = (rows[:middle], rows[middle:])
        return [effect for half in halves for effect in _status_effects(state, half, status, now_ns, new_id)]
    return [SetNodeStatus(tuple(row.id for row in rows), status, tuple(evaluations))]


def command_of(effect: SetNodeStatus) -> NodeStatusUpdate:
    """The command that carries an effect out."""
    event = NodeEventWrite(message=f"Node heartbeat missed: now {effect.status.value}")
    return NodeStatusUpdate(
        updates=tuple(
            NodeStatusWrite(id=node_id, status=effect.status.value, description=MISSED, event=event)
            for node_id in effect.node_ids
        ),
        evaluations=tuple(evaluation_write(one) for one in effect.evaluations),
    )


class Patience:
    """How long the allocations of each group may stay unknown; every version of a job is read once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._known: dict[tuple[object, ...], int] = {}

    def of(self, origin: OriginRow) -> int:
        """In nanoseconds; 0 for not at all."""
        key = (*origin.version_key, origin.group)
        found = self._known.get(key)
        if found is None:
            job = self._state.jobs.version_by_key(origin.version_key)
            group = job.group(origin.group) if job is not None else None
            found = self._known[key] = round(lost_after_s(group) * NS) if group is not None else 0
        return found


def status_when_silent(state: State, row: NodeRow, patience: Patience, now_ns: int) -> NodeStatus:
    """Cut off if any allocation that should run may stay unknown for a while and has not done so for too long."""
    allocations = state.allocations
    slots = allocations.slots_of_node(row.slot)
    rows = allocations.columns.read(slots)
    wanted = slots[(rows["desired"] == RUN) & ~CLIENT_TERMINAL[rows["client_status"]]]
    for origin, mine in by_origin(state, wanted):
        patience_ns = patience.of(origin)
        if patience_ns <= 0:
            continue
        statuses = allocations.columns.read(mine)["client_status"]
        unknown = statuses == CLIENT_CODES[ClientStatus.UNKNOWN]
        if not unknown.all():
            return NodeStatus.DISCONNECTED
        if any(unknown_since_ns(alloc) + patience_ns > now_ns for alloc in allocations.records(mine)):
            return NodeStatus.DISCONNECTED
    return NodeStatus.DOWN


def lost_after_s(group: TaskGroup) -> float:
    """How long this group's allocations may stay unknown; the older field of a group says the same."""
    if group.disconnect is not None and group.disconnect.lost_after_s > 0:
        return group.disconnect.lost_after_s
    return group.max_client_disconnect_s or 0.0


def unknown_since_ns(alloc: Allocation) -> int:
    """When an allocation last became unknown."""
    moves = (move for move in reversed(alloc.alloc_states) if _is_unknown(move))
    return next((move.time_ns for move in moves), alloc.modify_time_ns)


def _is_unknown(move: AllocState) -> bool:
    return move.field == STATUS_FIELD and move.value == ClientStatus.UNKNOWN.value


def status_after_beat(state: State, row: NodeRow) -> NodeStatus:
    """What a node is, now that it has been heard again and says that it is ready.

    Who was cut off is looked at first (initializing); and nobody is ready before its pool exists and before its client
    has said what became of the allocations that were left there, or a replacement might run beside the original.
    """
    if row.status == NodeStatus.DISCONNECTED.value:
        return NodeStatus.INITIALIZING
    if row.status == NodeStatus.READY.value:
        return NodeStatus.READY
    if state.places.node_pools.get(row.node_pool) is None:
        return NodeStatus.INITIALIZING
    has_told = row.alloc_update_index > row.missed_heartbeat_index
    if row.missed_heartbeat_index and not has_told and has_live_allocs(state, row.id):
        return NodeStatus.INITIALIZING
    return NodeStatus.READY


def has_live_allocs(state: State, node_id: str) -> bool:
    """Whether any allocation on the node is not terminal."""
    row = state.nodes.get(node_id)
    if row is None:
        return False
    rows = state.allocations.columns.read(state.allocations.slots_of_node(row.slot))
    return bool(((rows["desired"] == RUN) & ~CLIENT_TERMINAL[rows["client_status"]]).any())


def status_needs_evaluations(before: str, after: str) -> bool:
    """Whether a move of a node's status concerns jobs."""
    if before == after:
        return False
    if NodeStatus.DOWN.value == after or NodeStatus.DISCONNECTED.value in (before, after):
        return True
    return after == NodeStatus.READY.value and before in (NodeStatus.DOWN.value, NodeStatus.INITIALIZING.value)


def eligibility_needs_evaluations(before: str, after: str) -> bool:
    """A node that may be used again concerns jobs; one that may not be used any more keeps what it has."""
    return before == "ineligible" and after == "eligible"


_SEEN_BY_PLACEMENT: Final = (
    "datacenter",
    "name",
    "node_class",
    "attributes",
    "meta",
    "drivers",
    "host_volumes",
)


def registration_needs_evaluations(before: Node, after: Node) -> bool:
    """Whether a node that registers again differs in a way that jobs may have waited for.

    More processor or memory is not in here: whoever waits for that is blocked, and is woken by it.
    """
    if any(getattr(before, name) != getattr(after, name) for name in _SEEN_BY_PLACEMENT):
        return True
    return before.node_resources.devices != after.node_resources.devices


def node_evaluations(state: State, rows: Iterable[NodeRow], now_ns: int, new_id: Callable[[], str]) -> list[Evaluation]:
    """One evaluation for each job that a change of these nodes concerns; the first such node is named in it.

    Service jobs with an allocation there that has not ended on both sides, batch jobs with one that has not finished,
    and every running system job that the node is for. None for sysbatch: nodes that come and go must not start one-shot
    work early.
    """
    concerned: dict[tuple[str, str], tuple[NodeRow, str, int]] = {}
    system_jobs = _system_jobs(state)
    for node in rows:
        for origin in _unsettled_origins(state, node):
            if origin.job_key not in concerned:
                kind, priority = job_type_of(state, origin)
                concerned[origin.job_key] = (node, kind, priority)
        for row, job in system_jobs:
            if row.key not in concerned and is_for_node(job, node):
                concerned[row.namespace, row.id] = (node, row.type, row.priority)
    return [
        Evaluation(
            id=new_id(),
            namespace=namespace,
            priority=priority,
            type=kind,
            triggered_by=Trigger.NODE_UPDATE.value,
            job_id=job_id,
            node_id=node.id,
            node_modify_index=node.modify_index,
            status=EvaluationStatus.PENDING,
            create_time_ns=now_ns,
            modify_time_ns=now_ns,
        )
        for (namespace, job_id), (node, kind, priority) in sorted(concerned.items())
    ]


def is_for_node(job: Job, node: NodeRow) -> bool:
    """Whether the node is in the job's pool and in one of its datacenters."""
    if job.node_pool not in (ALL_POOLS, node.node_pool):
        return False
    return any(matches_glob(pattern, node.datacenter) for pattern in job.datacenters)


def matches_glob(pattern: str, text: str) -> bool:
    """Whether text matches a pattern in which only `*` is special."""
    literal = pattern.replace("[", "[[]").replace("?", "[?]")
    return fnmatchcase(text, literal)


def _system_jobs(state: State) -> list[tuple[JobRow, Job]]:
    running = (row for row in state.jobs.on_every_node() if row.status == JobStatus.RUNNING.value)
    return [(row, state.jobs.of_row(row)) for row in running]


def _unsettled_origins(state: State, node: NodeRow) -> list[OriginRow]:
    """The origins on a node of service and batch allocations that something may have to happen to."""
    slots = state.allocations.slots_of_node(node.slot)
    rows = state.allocations.columns.read(slots)
    ended = CLIENT_TERMINAL[rows["client_status"]]
    unsettled = (rows["desired"] == RUN) | ~ended
    found = []
    for ref in np.unique(rows["origin"][unsettled]).tolist():
        origin = state.allocations.origins.get(ref)
        assert origin is not None
        kind = behaves_as(job_type_of(state, origin)[0])
        is_unfinished = bool((~ended[rows["origin"] == ref]).any())
        if kind is JobType.SERVICE or (kind is JobType.BATCH and is_unfinished):
            found.append(origin)
    return found


def by_origin(state: State, slots: Slots) -> list[tuple[OriginRow, Slots]]:
    """Allocations by what they have in common."""
    if not len(slots):
        return []
    refs = state.allocations.columns.read(slots)["origin"]
    found = []
    for ref in np.unique(refs).tolist():
        origin = state.allocations.origins.get(ref)
        assert origin is not None
        found.append((origin, slots[refs == ref]))
    return found


def job_type_of(state: State, origin: OriginRow) -> tuple[str, int]:
    """Type and priority of the job that allocations belong to, also of one that was purged."""
    row = state.jobs.row(*origin.job_key)
    if row is not None:
        return row.type, row.priority
    job = state.jobs.version_by_key(origin.version_key)
    assert job is not None, f"allocations of job {origin.job_id!r} without its version"
    return job.type, job.priority
