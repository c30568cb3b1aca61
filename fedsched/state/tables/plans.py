"""A committed plan: what changes for one job, in columns.

The job and its version are named once, a group once, and then come byte strings: ids, node slots, places in the group.
24 bytes per placed allocation, and 4 more for each figure of its score, whatever its size in memory or on paper. The
plan applier has checked the plan against the leader's state before it was proposed; what is checked again here is what
may have changed in between and what could break the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedsched.model.alloc import ClientStatus
from fedsched.model.job import JobStatus
from fedsched.state.changes import AllocChange
from fedsched.state.columns import Rows, Slots, copied, groups, picked
from fedsched.state.fields import Command, Count, Id, Name, Stored, unpack
from fedsched.state.id_map import Words, words_of
from fedsched.state.result import InvalidCommand, Result, refused
from fedsched.state.tables.alloc_columns import CLIENT_CODES, DESIRED_BY_CODE, Flag
from fedsched.state.tables.alloc_origins import OriginRow
from fedsched.state.tables.alloc_scores import NO_SCORES, Scores, joined
from fedsched.state.tables.allocations import COLD_DESIRED, COLD_KIN, COLD_PLAN, NO_ID
from fedsched.state.tables.deployment_counts import count_placed
from fedsched.state.tables.deployment_updates import DeploymentStatusWrite, store_statuses
from fedsched.state.tables.deployments import DeploymentWrite, check_deployments, store_deployments
from fedsched.state.tables.evaluations import EvaluationWrite, store_evaluations
from fedsched.state.tables.job_rows import JobRow
from fedsched.state.tables.job_status import refresh_status
from fedsched.state.tables.jobs import let_go
from fedsched.state.tables.node_events import NodeEventWrite
from fedsched.state.tables.node_updates import INELIGIBLE, set_eligibility
from fedsched.state.tables.services import end_services

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

BATCH_MAX: Final = 1 << 18
"""Allocations in one column; 8 MiB, the most an entry may have, hold no more of them anyway."""

SAID_BY_SERVERS: Final = (CLIENT_CODES[ClientStatus.LOST], CLIENT_CODES[ClientStatus.UNKNOWN])
"""Only this of what became of an allocation is for servers to say; the rest its client knows best."""

REJECTED: Final = NodeEventWrite(
    message="Node marked as ineligible for scheduling due to multiple plan rejections", subsystem="Scheduler"
)

Few = msgspec.Meta(max_length=10_000)


class PlacedGroup(Stored):
    """New allocations of one group."""

    group: Name
    ids: bytes
    node_slots: bytes
    """One little-endian 32-bit slot per id."""
    name_indexes: bytes
    """One little-endian 32-bit place per id."""
    flags: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)] = 0
    shared: bytes = b""
    """Encoded fields of the allocation record that all of them have: resources, metrics."""
    previous: bytes = b""
    """Nothing, or one id per id: the allocation that it replaces, zeros for none."""
    own_at: bytes = b""
    """Positions (32-bit) of those that have fields of their own, such as ports."""
    own: bytes = b""
    """Those fields, encoded, in the same order (see `fields.pack`)."""
    own_sizes: bytes = b""
    score_names: Name = ""
    scores: bytes = b""
    """What each scored where it was placed, in the order of the names (parted by commas): one column of 32-bit floats
    after the other."""
    of_version: Annotated[int, msgspec.Meta(ge=-1)] = -1
    """An older version of the job that these are placed from while canaries of the plan's wait; -1 is its own."""
    of_deployment: Name = ""
    """With `of_version`: the deployment that they belong to, instead of the plan's."""


class StoppedBatch(Stored):
    """Allocations that get a new desired status for one and the same reason."""

    ids: bytes
    desired: Annotated[int, msgspec.Meta(ge=1, le=3)] = 2
    client_status: Annotated[int, msgspec.Meta(ge=0, le=6)] = 0
    """0 leaves it to the client; servers only ever say lost or unknown."""
    fields: bytes = b""
    """Encoded fields of the allocation record: description, follow-up evaluation, preemptor."""


class UpdatedGroup(Stored):
    """Allocations of one group that go on in place under the plan's job version."""

    group: Name
    ids: bytes
    shared: bytes = b""


class PlanApply(Command):
    """The part of a plan that its applier found good."""

    namespace: Id
    job_id: Id
    job_create_index: Count
    job_version: Count
    evaluation_id: Id
    snapshot_index: Count
    """The index up to which the planner knew the fleet."""
    term: Count = 0
    """The leadership under which it was made; older than the current one is refused. 0 is not checked."""
    deployment_id: Name = ""
    placed: Annotated[tuple[PlacedGroup, ...], Few] = ()
    stopped: Annotated[tuple[StoppedBatch, ...], Few] = ()
    updated: Annotated[tuple[UpdatedGroup, ...], Few] = ()
    deployments: Annotated[tuple[DeploymentWrite, ...], Few] = ()
    evaluations: Annotated[tuple[EvaluationWrite, ...], Few] = ()
    deployment_updates: Annotated[tuple[DeploymentStatusWrite, ...], Few] = ()
    """New statuses of deployments that exist already."""
    ends: Annotated[tuple[EvaluationWrite, ...], Few] = ()
    """Stored only if nothing of the plan had to be left out: how the evaluation that made it ends."""
    ineligible_nodes: Annotated[tuple[Id, ...], Few] = ()
    """Nodes that refuse plan after plan: nothing new goes there until a person has looked."""


class OfficeBegin(Command):
    """A new leader's first command: plans of earlier leaderships are void from here on."""

    term: Count


def apply_office(tx: Transaction, command: OfficeBegin) -> Result:
    known = tx.store.meta.number("office_term")
    if command.term > known:
        tx.store.meta.put(tx, "office_term", number=command.term)
    return tx.done(term=max(known, command.term))


def apply_plan(tx: Transaction, command: PlanApply) -> Result:
    office = tx.store.meta.number("office_term")
    if 0 < command.term < office:
        return refused(
            tx.index,
            "conflict",
            f"plan of term {command.term} for job {command.job_id!r}, but the leader of term {office} is in office",
            hint="schedule the evaluation again",
        )
    check_shapes(command)
    tally = _Tally()
    store_deployments(tx, command.deployments)
    store_statuses(tx, command.deployment_updates)
    for batch in command.stopped:
        _stop(tx, batch, tally)
    job = _job_to_place_for(tx, command)
    if job is not None:
        for update in command.updated:
            _update(tx, command, update, tally)
        for group in command.placed:
            _place(tx, command, group, tally)
    else:
        tally.placements_skipped += sum(len(group.ids) for group in command.placed) // 16
        tally.skipped += tally.placements_skipped
        tally.skipped += sum(len(group.ids) for group in command.updated) // 16
    store_evaluations(tx, command.evaluations)
    _end_evaluation(tx, command, tally)
    nodes = [row for node_id in command.ineligible_nodes if (row := tx.store.nodes.get(node_id))]
    set_eligibility(tx, nodes, INELIGIBLE, REJECTED)
    if job is not None and tally.placed and job.status != JobStatus.RUNNING.value:
        tally.jobs.add((command.namespace, command.job_id))
    for namespace, job_id in sorted(tally.jobs):
        refresh_status(tx, namespace, job_id)
    return tx.done(
        placed=tally.placed,
        changed=tally.changed,
        skipped=tally.skipped,
        placements_skipped=tally.placements_skipped,
        refused_node_slots=sorted(tally.refused_node_slots),
    )


def _end_evaluation(tx: Transaction, command: PlanApply, tally: _Tally) -> None:
    """The evaluation is over if all of its plan was carried out; in any case its job's next one waits for this."""
    is_whole = not tally.placements_skipped and not tally.refused_node_slots
    if is_whole:
        store_evaluations(tx, command.ends)
    if is_whole and any(item.id == command.evaluation_id for item in command.ends):
        return
    table = tx.store.evaluations.table
    row = table.get(command.evaluation_id)
    if row is not None:
        tx.put(table, structs.replace(row, modify_index=tx.index))


class _Tally:
    """What a plan came to."""

    def __init__(self) -> None:
        self.placed = 0
        self.changed = 0
        self.skipped = 0
        self.placements_skipped = 0
        self.refused_node_slots: set[int] = set()
        self.jobs: set[tuple[str, str]] = set()


def check_shapes(command: PlanApply) -> None:
    """Whatever could break the tables is refused (`InvalidCommand`) before anything is touched."""
    check_deployments(command.deployments)
    for ids in _id_columns(command):
        if len(ids) % 16 or len(ids) > 16 * BATCH_MAX:
            raise InvalidCommand(f"{len(ids)} bytes are not a column of 16-byte ids")
    for group in command.placed:
        count = len(group.ids) // 16
        if len(group.node_slots) != 4 * count or len(group.name_indexes) != 4 * count:
            raise InvalidCommand(f"group {group.group!r}: columns of different length")
        if group.previous and len(group.previous) != len(group.ids):
            raise InvalidCommand(f"group {group.group!r}: predecessors for some but not for all")
        if count and (_repeats(group.ids) or int(_column(group.name_indexes).max()) >= 1 << 31):
            raise InvalidCommand(f"group {group.group!r}: an id comes twice or a place is out of range")
        if not Scores.of(group.score_names, group.scores).fits(count):
            raise InvalidCommand(f"group {group.group!r}: scores for some but not for all")
        _check_own(group, count)


def _check_own(group: PlacedGroup, count: int) -> None:
    if not (group.own_at or group.own_sizes or group.own):
        return
    try:
        known = len(unpack(group.own, group.own_sizes))
    except ValueError as error:
        raise InvalidCommand(f"group {group.group!r}: own fields: {error}") from error
    if len(group.own_at) != 4 * known:
        raise InvalidCommand(f"group {group.group!r}: own fields without a position")
    if int(_column(group.own_at).max()) >= count or _repeats_one(_column(group.own_at)):
        raise InvalidCommand(f"group {group.group!r}: own fields for a place that is not there")


def _id_columns(command: PlanApply) -> list[bytes]:
    placed = [group.ids for group in command.placed]
    return [*placed, *(batch.ids for batch in command.stopped), *(group.ids for group in command.updated)]


def _job_to_place_for(tx: Transaction, command: PlanApply) -> JobRow | None:
    """The job, unless it was stopped or purged since, or no longer has the version that the plan is for."""
    row = tx.store.jobs.row(command.namespace, command.job_id)
    if row is None or row.stop or row.create_index != command.job_create_index:
        return None
    key = (command.namespace, command.job_id, command.job_create_index, command.job_version)
    return row if tx.store.jobs.version_rows.get(*key) is not None else None


def _place(tx: Transaction, command: PlanApply, group: PlacedGroup, tally: _Tally) -> None:
    allocations = tx.store.allocations
    words = words_of(group.ids)
    node_slots = _column(group.node_slots).astype(np.int64)
    good = _good_nodes(tx, node_slots, command.snapshot_index)
    if not good.all():
        tally.refused_node_slots.update(node_slots[~good].tolist())
    known = allocations.look_up(words)
    good &= known.slots < 0
    count = int(good.sum())
    tally.skipped += len(words) - count
    tally.placements_skipped += len(words) - count
    if not count:
        return
    name_indexes = _column(group.name_indexes).astype(np.int32)
    if count < len(words):
        words, node_slots, name_indexes, known = words[good], node_slots[good], name_indexes[good], known.only(good)
    slots = allocations.place(
        _placed_origin(tx, command, group, good),
        words=words,
        known=known,
        node_slots=node_slots,
        name_indexes=name_indexes,
        index=tx.index,
        time_ns=tx.time_ns,
        flags=group.flags & int(_ALL_FLAGS),
    )
    if group.own_at or group.previous:
        _add_own(tx, group, good, slots)
    tally.placed += count
    ids = group.ids if count == len(good) else _id_bytes(words)
    deployment_id = command.deployment_id if group.of_version < 0 else group.of_deployment
    if deployment_id:
        is_canary = bool(group.flags & int(Flag.CANARY))
        count_placed(tx, deployment_id, group.group, count, ids if is_canary else b"")
    tx.changed(AllocChange(slots, node_slots, ((command.namespace, command.job_id),), ids))


def _good_nodes(tx: Transaction, node_slots: Slots, known_until: int) -> NDArray[np.bool_]:
    """Which of these are slots of nodes that the planner can have meant."""
    columns = tx.store.nodes.columns
    if not columns.high:
        return np.zeros(len(node_slots), dtype=np.bool_)
    inside = node_slots < columns.high
    records = columns.read(node_slots if inside.all() else np.where(inside, node_slots, 0))
    good: NDArray[np.bool_] = records["create_index"] <= known_until
    good &= records["used"] > records["departed"]
    good &= inside
    return good


def _origin(tx: Transaction, command: PlanApply, group: str, shared: bytes, scores: Scores = NO_SCORES) -> OriginRow:
    allocations = tx.store.allocations
    row = allocations.ensure_group(command.namespace, command.job_id, command.job_create_index, group)
    return OriginRow(
        ref=allocations.live_origins.next_ref(),
        namespace=command.namespace,
        job_id=command.job_id,
        job_create_index=command.job_create_index,
        job_version=command.job_version,
        group=group,
        evaluation_id=command.evaluation_id,
        deployment_id=command.deployment_id,
        group_slot=row.slot,
        shared=shared,
        score_names=scores.text,
        scores=scores.data,
    )


def _placed_origin(tx: Transaction, command: PlanApply, group: PlacedGroup, good: NDArray[np.bool_]) -> OriginRow:
    scores = Scores.of(group.score_names, group.scores)
    if not good.all():
        scores = scores.only(good)
    origin = _origin(tx, command, group.group, group.shared, scores)
    if group.of_version < 0:
        return origin
    return structs.replace(origin, job_version=group.of_version, deployment_id=group.of_deployment)


def _add_own(tx: Transaction, group: PlacedGroup, good: NDArray[np.bool_], slots: Slots) -> None:
    """Fields of single allocations, and the links between an allocation and the one that it replaces."""
    allocations = tx.store.allocations
    where = np.full(len(good), -1, dtype=np.int64)
    where[good] = slots
    if group.own_at:
        own_slots = where[_column(group.own_at)]
        placed = np.flatnonzero(own_slots >= 0)
        own = unpack(group.own, group.own_sizes)
        _rewrite_cold(tx, COLD_PLAN, own_slots[placed], [own[at] for at in placed.tolist()])
    if not group.previous:
        return
    before = np.frombuffer(group.previous, dtype="V16")
    linked = np.flatnonzero(good & (before != np.void(NO_ID)))
    if not len(linked):
        return
    _rewrite_cold(tx, COLD_KIN, where[linked], [one + NO_ID for one in before[linked].tolist()])
    found = allocations.find(words_of(before[linked].tobytes()))
    heirs = np.frombuffer(group.ids, dtype="V16")[linked]
    # Of several that replace one, the last counts.
    known = {slot: heir for slot, heir in zip(found.tolist(), heirs.tolist(), strict=True) if slot >= 0}
    if known:
        kin = allocations.cold.kin.get
        links = [((kin(slot) or NO_ID)[:16] or NO_ID) + heir for slot, heir in known.items()]
        _rewrite_cold(tx, COLD_KIN, np.array(list(known)), links, index=tx.index)


def _rewrite_cold(tx: Transaction, part: int, slots: Slots, values: list[bytes], *, index: int | None = None) -> None:
    if not len(slots):
        return
    before = tx.store.allocations.live.read(slots)
    after = copied(before)
    if index is not None:
        after["modify_index"] = after["alloc_modify_index"] = index
    tx.store.allocations.put_cold(part, slots, after, values)
    tx.store.allocations.rewrite(slots, before, after)
    if index is not None:
        tx.changed(tx.store.allocations.change(slots, after))


def _stop(tx: Transaction, batch: StoppedBatch, tally: _Tally) -> None:
    allocations = tx.store.allocations
    slots = _known_slots(tx, batch.ids, tally)
    if not len(slots):
        return
    assert batch.desired in DESIRED_BY_CODE
    before = allocations.live.read(slots)
    after = copied(before)
    after["desired"] = batch.desired
    if batch.client_status in SAID_BY_SERVERS:
        after["client_status"] = batch.client_status
    after["modify_index"] = after["alloc_modify_index"] = tx.index
    after["modify_time"] = tx.time_ns
    if batch.fields:
        allocations.put_cold(COLD_DESIRED, slots, after, [batch.fields] * len(slots))
    allocations.rewrite(slots, before, after)
    tally.jobs.update(allocations.recount(before, after))
    tally.changed += len(slots)
    tx.changed(allocations.change(slots, before))
    end_services(tx, after)


def _update(tx: Transaction, command: PlanApply, update: UpdatedGroup, tally: _Tally) -> None:
    allocations = tx.store.allocations
    slots = _known_slots(tx, update.ids, tally)
    before = allocations.live.read(slots)
    group = allocations.ensure_group(command.namespace, command.job_id, command.job_create_index, update.group)
    mine = allocations.live_origins.group_slots(before["origin"]) == group.slot
    tally.skipped += int((~mine).sum())
    slots, before = slots[mine], picked(before, mine)
    if not len(slots):
        return
    after = copied(before)
    _give_origins(tx, command, update, before, after)
    after["modify_index"] = after["alloc_modify_index"] = tx.index
    after["modify_time"] = tx.time_ns
    if command.deployment_id:
        _count_joining(tx, command, update, before, after)
    allocations.rewrite(slots, before, after)
    let_go(tx, allocations.live_origins.unuse(before["origin"]))
    tally.changed += len(slots)
    tx.changed(allocations.change(slots, after))


def _give_origins(tx: Transaction, command: PlanApply, update: UpdatedGroup, before: Rows, after: Rows) -> None:
    """The plan's job version for all; the deployment they are in stays theirs unless the plan has one."""
    origins = tx.store.allocations.live_origins
    refs = np.unique(before["origin"])
    by_deployment: dict[str, list[int]] = {}
    for ref in refs.tolist():
        known = origins.rows.get(ref)
        assert known is not None
        by_deployment.setdefault(command.deployment_id or known.deployment_id, []).append(ref)
    for deployment_id, mine in sorted(by_deployment.items()):
        where = np.flatnonzero(np.isin(before["origin"], mine))
        scores, places = _scores_of(tx, picked(before, where))
        origin = _origin(tx, command, update.group, update.shared, scores)
        origins.put(structs.replace(origin, deployment_id=deployment_id), len(where))
        after["origin"][where] = origin.ref
        after["score_at"][where] = places


def _scores_of(tx: Transaction, rows: Rows) -> tuple[Scores, NDArray[np.int64]]:
    """What these allocations scored when they were placed, put together from all of their origins, and each one's
    position in it (from 1, 0 for none)."""
    parts: list[tuple[Scores, int]] = []
    places = np.zeros(len(rows), dtype=np.int64)
    taken = 0
    for ref, where in groups(rows["origin"]):
        origin = tx.store.allocations.live_origins.rows.get(ref)
        assert origin is not None
        at = rows["score_at"][where].astype(np.int64)
        noted = np.flatnonzero(at > 0)
        if not origin.scores or not len(noted):
            continue
        parts.append((Scores.of(origin.score_names, origin.scores).only(at[noted] - 1), len(noted)))
        places[where[noted]] = np.arange(taken + 1, taken + 1 + len(noted))
        taken += len(noted)
    return joined(parts), places


def _count_joining(tx: Transaction, command: PlanApply, update: UpdatedGroup, before: Rows, after: Rows) -> None:
    """Those that join another deployment have to prove their health again, and count as placed in it."""
    origins = tx.store.allocations.live_origins.rows
    joining = np.zeros(len(before), dtype=np.bool_)
    for ref in np.unique(before["origin"]).tolist():
        known = origins.get(ref)
        assert known is not None
        if known.deployment_id != command.deployment_id:
            joining |= before["origin"] == ref
    if joining.any():
        after["health"][joining] = 0
        after["flags"][joining] &= np.uint32(0xFFFFFFFF ^ int(Flag.CANARY))
        count_placed(tx, command.deployment_id, update.group, int(joining.sum()))


def _known_slots(tx: Transaction, ids: bytes, tally: _Tally) -> Slots:
    """The slots of these ids, each once; ids that are not there (any more) are skipped."""
    if not ids:
        return np.empty(0, dtype=np.int64)
    found = tx.store.allocations.find(words_of(ids))
    slots = np.unique(found[found >= 0])
    tally.skipped += len(found) - len(slots)
    return slots


_ALL_FLAGS: Final = Flag.CANARY | Flag.MIGRATE | Flag.RESCHEDULE | Flag.FORCE_RESCHEDULE


def _column(data: bytes) -> NDArray[np.uint32]:
    return np.frombuffer(data, dtype="<u4")


def _id_bytes(words: Words) -> bytes:
    return words.astype(">u8").tobytes()


def _repeats(ids: bytes) -> bool:
    """Whether an id comes twice; nearly always the first halves are different already."""
    first = np.frombuffer(ids, dtype=np.uint64)[::2].copy()
    first.sort()
    if not (first[1:] == first[:-1]).any():
        return False
    words = words_of(ids)
    return len(np.unique(words, axis=0)) != len(words)


def _repeats_one(values: NDArray[np.uint32]) -> bool:
    return len(np.unique(values)) != len(values)
