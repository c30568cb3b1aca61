"""Decides how draining nodes are emptied. Pure: reads the state, is told the time, says what should be written.

What is to move is worked out anew from the state each time, never remembered: a leader that comes to office in the
middle of a drain goes on where the other stopped. All that is kept is which nodes drain and when the next batch is due.

    service   as many at a time as their group's migrate block allows, counted over the whole group
    batch     stays until the deadline; what is left then is stopped and not placed again
    system    after everything else, unless the drain leaves system jobs alone

At its deadline everything left is told to go at once. A drain ends when nothing that has to go is left on the client,
by the client's own word: whoever reads "complete" may switch the machine off. The node stays ineligible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.job import JobType
from fedsched.model.node import DrainStrategy
from fedsched.model.policies import MigrateStrategy
from fedsched.server.leader.heartbeats_core import by_origin, job_type_of
from fedsched.state.changes import Changes
from fedsched.state.columns import Rows, Slots
from fedsched.state.fields import Command
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import CLIENT_TERMINAL, Flag, is_live
from fedsched.state.tables.alloc_updates import AllocTransition
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.tables.node_events import NodeEventWrite
from fedsched.state.tables.node_updates import NodeDrainUpdate, NodeDrainWrite
from fedsched.state.tables.nodes import NodeRow

NS: Final = 1_000_000_000
BATCH_NS: Final = NS
"""Flags are gathered for so long before they are written."""
COALESCE_NS: Final = 5 * NS
"""Deadlines this close together are handled together, at the last of them: none is enforced early."""
IDS_MAX: Final = 7281
ONE_SHOT: Final = (JobType.BATCH.value, JobType.SYSBATCH.value)


@dataclass(frozen=True, slots=True)
class MarkMigrate:
    """Tell the scheduler to move these allocations (16 bytes of id each), or to stop them for good."""

    ids: bytes
    no_placement: bool
    evaluations: tuple[Evaluation, ...]


@dataclass(frozen=True, slots=True)
class EndDrain:
    """Take the drain off these nodes, which are empty; they stay ineligible."""

    node_ids: tuple[str, ...]
    is_forced: bool = False
    """Whether it took the deadline."""
    strategies: tuple[bytes, ...] = field(default=(), compare=False)
    """The drains that were seen, as they are stored: one that was changed meanwhile is not over."""
    as_of: int = field(default=0, compare=False)
    """The index of the state that they were seen in."""


DrainEffect = MarkMigrate | EndDrain


def command_of(effect: DrainEffect) -> Command:
    """The command that carries an effect out."""
    match effect:
        case MarkMigrate(ids, no_placement, evaluations):
            flags = Flag.MIGRATE | Flag.MIGRATE_DISABLE_PLACEMENT if no_placement else Flag.MIGRATE
            writes = tuple(evaluation_write(one) for one in evaluations)
            return AllocTransition(ids=ids, flags=int(flags), evaluations=writes)
        case EndDrain(node_ids, is_forced, strategies, as_of):
            message = "Node drain complete, forced by its deadline" if is_forced else "Node drain complete"
            event = NodeEventWrite(message=message, subsystem="Drain")
            return NodeDrainUpdate(
                updates=tuple(
                    NodeDrainWrite(id=node_id, is_complete=True, strategy=strategy, event=event, as_of=as_of)
                    for node_id, strategy in zip(node_ids, strategies or (b"",) * len(node_ids), strict=True)
                )
            )


@dataclass(frozen=True, slots=True)
class _Draining:
    """A node that is to be emptied."""

    id: str
    slot: int
    modify_index: int
    strategy: DrainStrategy
    encoded: bytes
    """The same as it is stored."""

    @property
    def deadline_ns(self) -> int | None:
        """When it is forced; None for never."""
        if self.strategy.deadline_s < 0:
            return 0
        return self.strategy.force_deadline_ns or None


@dataclass(slots=True)
class _Here:
    """What one draining node still holds: the slots of allocations that have not ended on the client."""

    service: list[tuple[tuple[str, str], str, Slots]]
    """By job and group."""
    one_shot: list[Slots]
    system: list[Slots]

    @property
    def is_empty_but_for_system(self) -> bool:
        return not self.service and not self.one_shot


class DrainCore:
    """Which nodes drain, and what has to happen on them."""

    def __init__(self) -> None:
        self._draining: dict[str, _Draining] = {}
        self._forced: set[str] = set()
        """Those whose deadline has passed."""
        self._batch_due_ns: int | None = None

    def note(self, state: State, changes: Iterable[Changes]) -> bool:
        """Hear of changes; whether a review may find anything new."""
        matters = False
        for change in changes:
            if change.is_everything:
                self._note_all(state)
                matters = True
                continue
            for key in change.keys("nodes"):
                matters |= self._note_node(state, str(key[0]))
            matters |= bool(change.allocs) and bool(self._draining)
            matters |= bool(self._draining) and any(row.table == "jobs" for row in change.rows)
        return matters

    def draining(self) -> list[str]:
        """The nodes that drain."""
        return sorted(self._draining)

    def wake_at_ns(self) -> int | None:
        """When the next review is due even if nothing changes."""
        times = [self._batch_due_ns, self._forced_at_ns()]
        return min((time for time in times if time is not None), default=None)

    def review(self, state: State, now_ns: int, new_id: Callable[[], str]) -> list[DrainEffect]:
        """What is to be written now."""
        self._pass_deadlines(now_ns)
        done, moves = self._look(state)
        effects = self._force(state, now_ns, new_id)
        effects += self._batch(state, moves, now_ns, new_id)
        for is_forced in (False, True):
            ended = tuple(node_id for node_id in done if (node_id in self._forced) is is_forced)
            if ended:
                encoded = tuple(self._draining[node_id].encoded for node_id in ended)
                effects.append(EndDrain(ended, is_forced, encoded, state.index))
        return effects

    def _pass_deadlines(self, now_ns: int) -> None:
        at_ns = self._forced_at_ns()
        if at_ns is not None and at_ns <= now_ns:
            due = (node for node in self._draining.values() if node.deadline_ns is not None)
            self._forced |= {node.id for node in due if (node.deadline_ns or 0) <= now_ns}

    def _forced_at_ns(self) -> int | None:
        """When the next deadlines are enforced: with the last of those that lie close behind the first."""
        waiting = (node for node in self._draining.values() if node.id not in self._forced)
        deadlines = sorted(node.deadline_ns for node in waiting if node.deadline_ns is not None)
        if not deadlines or deadlines[0] == 0:
            return deadlines[0] if deadlines else None
        return max(deadline for deadline in deadlines if deadline <= deadlines[0] + COALESCE_NS)

    def _force(self, state: State, now_ns: int, new_id: Callable[[], str]) -> list[DrainEffect]:
        """Tell everything that is left to go."""
        moved: list[Slots] = []
        dropped: list[Slots] = []
        for node_id in sorted(self._forced & self._draining.keys()):
            node = self._draining[node_id]
            here = self._here(state, node)
            moved += [slots for _, _, slots in here.service]
            moved += [] if node.strategy.ignore_system_jobs else here.system
            dropped += here.one_shot
        return [
            *_marks(state, _unmarked(state, moved, Flag.MIGRATE), False, now_ns, new_id),
            *_marks(state, _unmarked(state, dropped, Flag.MIGRATE_DISABLE_PLACEMENT), True, now_ns, new_id),
        ]

    def _look(self, state: State) -> tuple[list[str], list[Slots]]:
        """The nodes that are empty, and the allocations that may move now; those that are forced move anyway."""
        done: list[str] = []
        moves: list[Slots] = []
        groups: dict[tuple[str, str], dict[str, list[Slots]]] = {}
        for node_id, node in sorted(self._draining.items()):
            here = self._here(state, node)
            system = [] if node.strategy.ignore_system_jobs else here.system
            if here.is_empty_but_for_system and not system:
                done.append(node_id)
            if node_id in self._forced:
                continue
            if here.is_empty_but_for_system:
                moves += system
            for job_key, group, slots in here.service:
                groups.setdefault(job_key, {}).setdefault(group, []).append(slots)
        for job_key in sorted(groups):
            moves += _movable(state, job_key, groups[job_key])
        return done, moves

    def _batch(self, state: State, moves: list[Slots], now_ns: int, new_id: Callable[[], str]) -> list[DrainEffect]:
        """Hold moves back until the batch is due; they are worked out again then, from the newest state."""
        slots = _unmarked(state, moves, Flag.MIGRATE)
        if not len(slots):
            self._batch_due_ns = None
            return []
        if self._batch_due_ns is None:
            self._batch_due_ns = now_ns + BATCH_NS
        if now_ns < self._batch_due_ns:
            return []
        self._batch_due_ns = None
        return list(_marks(state, slots, False, now_ns, new_id))

    def _here(self, state: State, node: _Draining) -> _Here:
        slots = state.allocations.slots_of_node(node.slot)
        rows = state.allocations.columns.read(slots)
        here = _Here([], [], [])
        for origin, mine in by_origin(state, slots[~CLIENT_TERMINAL[rows["client_status"]]]):
            kind, _ = job_type_of(state, origin)
            if kind == JobType.SYSTEM.value:
                here.system.append(mine)
            elif kind in ONE_SHOT:
                here.one_shot.append(mine)
            else:
                here.service.append((origin.job_key, origin.group, mine))
        return here

    def _note_all(self, state: State) -> None:
        rows = {row.id: row for row in state.nodes.rows.scan() if row.draining}
        self._draining = {node_id: _read(row) for node_id, row in rows.items()}
        self._forced = set()

    def _note_node(self, state: State, node_id: str) -> bool:
        row = state.nodes.get(node_id)
        known = self._draining.get(node_id)
        if row is None or not row.draining:
            self._forced.discard(node_id)
            return self._draining.pop(node_id, None) is not None
        if known is None or known.modify_index != row.modify_index:
            self._draining[node_id] = _read(row)
            self._forced.discard(node_id)
        return True


def allowed_moves(*, settled: int, count: int, max_parallel: int) -> int:
    """How many allocations of a group may begin to move: as many as its count can spare.

    `settled` are those that live, are not moving, and whose health is known, good or bad.
    """
    return max(0, settled - (count - max_parallel))


def _movable(state: State, job_key: tuple[str, str], groups: dict[str, list[Slots]]) -> Iterator[Slots]:
    """Of a service job's allocations on draining nodes, those that may move now."""
    job = state.jobs.get(*job_key)
    if job is None or job.stop:
        return  # its evaluation stops them all
    slots = state.allocations.slots_of_job(*job_key)
    rows = state.allocations.columns.read(slots)
    refs = {ref: state.allocations.origins.get(ref) for ref in np.unique(rows["origin"]).tolist()}
    for name in sorted(groups):
        group = job.group(name)
        if group is None:
            continue  # the group is gone from the job: so will its allocations be
        mine = np.isin(rows["origin"], [ref for ref, origin in refs.items() if origin and origin.group == name])
        still = mine & is_live(rows) & ((rows["flags"] & np.uint32(Flag.MIGRATE)) == 0)
        settled = int((still & (rows["health"] != 0)).sum())
        migrate = group.migrate or MigrateStrategy()
        allowed = allowed_moves(settled=settled, count=group.count, max_parallel=migrate.max_parallel)
        here = np.isin(slots, np.concatenate(groups[name]))
        yield slots[still & here][:allowed]


def _read(row: NodeRow) -> _Draining:
    return _Draining(row.id, row.slot, row.modify_index, row.node().drain_strategy or DrainStrategy(), row.drain)


def _unmarked(state: State, batches: list[Slots], flag: Flag) -> Slots:
    """Those that have not been told yet and that the servers still want to run."""
    if not batches:
        return np.empty(0, dtype=np.int64)
    slots = np.unique(np.concatenate(batches))
    rows = state.allocations.columns.read(slots)
    found: Slots = slots[is_live(rows) & ((rows["flags"] & np.uint32(flag)) == 0)]
    return found


def _marks(
    state: State, slots: Slots, no_placement: bool, now_ns: int, new_id: Callable[[], str]
) -> Iterator[MarkMigrate]:
    """Flags for these allocations, in commands that are not too large, each with one evaluation per job."""
    for start in range(0, len(slots), IDS_MAX):
        part = slots[start : start + IDS_MAX]
        rows = state.allocations.columns.read(part)
        yield MarkMigrate(_ids(rows), no_placement, tuple(_evaluations(state, part, now_ns, new_id)))


def _ids(rows: Rows) -> bytes:
    return rows["id"].astype(">u8").tobytes()


def _evaluations(state: State, slots: Slots, now_ns: int, new_id: Callable[[], str]) -> Iterator[Evaluation]:
    """One for each job."""
    seen: set[tuple[str, str]] = set()
    for origin, mine in by_origin(state, slots):
        if origin.job_key in seen:
            continue
        seen.add(origin.job_key)
        kind, priority = job_type_of(state, origin)
        node = state.nodes.at(int(state.allocations.columns.one(int(mine[0]))["node"]))
        row = state.jobs.row(*origin.job_key)
        yield Evaluation(
            id=new_id(),
            namespace=origin.namespace,
            priority=priority,
            type=kind,
            triggered_by=Trigger.NODE_DRAIN.value,
            job_id=origin.job_id,
            job_modify_index=row.job_modify_index if row is not None else 0,
            node_id=node.node_id if node is not None else "",
            status=EvaluationStatus.PENDING,
            create_time_ns=now_ns,
            modify_time_ns=now_ns,
        )
