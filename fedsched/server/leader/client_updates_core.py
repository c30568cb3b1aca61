"""Gathers what clients say about their allocations, and decides which jobs have to be evaluated for it.

The busiest path of a leader: thousands of reports a second, nearly all of them plain ("runs now", "has ended"). They
stay columns of bytes from the link to the log. Only an allocation that failed, or came back from being cut off, is
looked at by itself, and of those only as many as it takes to know that its job needs an evaluation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedsched.model.alloc import ClientStatus, RescheduleTracker
from fedsched.model.errors import BadRequest, Busy, Conflict, NotFound, TooLarge
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.ids import uuid_text
from fedsched.model.node import NodeStatus
from fedsched.model.policies import ReschedulePolicy
from fedsched.scheduler.reconcile.reschedule import next_due
from fedsched.server.leader.heartbeats_core import job_type_of
from fedsched.state.columns import Rows, Slots
from fedsched.state.fields import pack, unpack
from fedsched.state.id_map import words_of
from fedsched.state.store import State, Store
from fedsched.state.tables.alloc_columns import CLIENT_BY_CODE, CLIENT_CODES, CLIENT_TERMINAL
from fedsched.state.tables.alloc_origins import OriginRow
from fedsched.state.tables.alloc_updates import AllocStatusUpdate
from fedsched.state.tables.evaluations import evaluation_write

NS: Final = 1_000_000_000
WINDOW_NS: Final = 50_000_000
"""How long reports are gathered."""
BATCH_IDS: Final = 8_192
"""Updates in one command, and so evaluations at most. A full one does not wait for the end of the window."""
BATCH_BYTES: Final = 2 << 20
PENDING_IDS_MAX: Final = 8 * BATCH_IDS
PENDING_BYTES_MAX: Final = 8 * BATCH_BYTES
"""Updates gathered at most, and their details; who comes after that is asked to come again."""
NO_SLOT: Final = -1
FAILED: Final = CLIENT_CODES[ClientStatus.FAILED]
UNKNOWN: Final = CLIENT_CODES[ClientStatus.UNKNOWN]
CUT_OFF: Final = (NodeStatus.DOWN.value, NodeStatus.DISCONNECTED.value)


@dataclass(frozen=True, slots=True)
class Report:
    """What one client says, in columns (see `AllocStatusUpdate`)."""

    node_id: str
    ids: bytes
    statuses: bytes
    healths: bytes = b""
    client: bytes = b""
    client_sizes: bytes = b""

    @property
    def count(self) -> int:
        return len(self.statuses)

    @property
    def cost(self) -> int:
        """What it takes of the room for those that wait: one without any updates takes some, too."""
        return len(self.statuses) or 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Reports that are written together."""

    number: int
    command: AllocStatusUpdate
    strange: Mapping[str, int]
    """Nodes that spoke of allocations of other nodes, and how many updates were dropped for it."""


def check_report(state: State, report: Report) -> None:
    """Refuse a report that is out of shape, or from a client that has not come back yet as far as servers know."""
    row = state.nodes.get(report.node_id)
    if row is None:
        raise NotFound(f"no node {report.node_id!r}", hint="the client has to register first")
    if row.status in CUT_OFF:
        raise Conflict(
            f"node {report.node_id!r} is {row.status}: its allocations may be running elsewhere by now",
            hint="send a heartbeat first, then the report again",
        )
    check_shape(report)


def check_shape(report: Report) -> None:
    """Refuse a report whose columns do not fit together."""
    count = report.count
    if count > BATCH_IDS:
        raise TooLarge(
            f"node {report.node_id!r} reports {count} allocations at once", hint=f"send {BATCH_IDS} at a time"
        )
    shapes = (
        len(report.ids) == 16 * count,
        not report.healths or len(report.healths) == count,
        not report.client_sizes or len(report.client_sizes) == 4 * count,
        not report.statuses.translate(None, bytes(CLIENT_BY_CODE)),
        not report.healths.translate(None, b"\0\1\2"),
    )
    if not all(shapes):
        raise BadRequest(
            f"a report of node {report.node_id!r} has columns that do not fit together", hint="is the client older?"
        )
    if sum(struct.unpack(f"<{len(report.client_sizes) // 4}I", report.client_sizes)) != len(report.client):
        raise BadRequest(
            f"a report of node {report.node_id!r} has details of another length than it says", hint="send it again"
        )


def reports_in(nodes: bytes, counts: bytes, columns: Report) -> list[Report]:
    """The reports that one server has put together, apart again. `columns` holds what all of them say."""
    sizes = np.frombuffer(counts, dtype="<u4", count=len(counts) // 4)
    if len(counts) % 4 or len(nodes) != 16 * len(sizes) or int(sizes.sum()) != columns.count:
        raise BadRequest("gathered reports that do not fit together", hint="is one of the servers older?")
    check_shape(columns)
    ends = np.cumsum(sizes).tolist()
    details = _ends_of_details(columns.client_sizes, ends)
    found = []
    start = before = 0
    for at, end in enumerate(ends):
        upto = details[at] if details else 0
        found.append(
            Report(
                uuid_text(nodes[16 * at : 16 * at + 16]),
                columns.ids[16 * start : 16 * end],
                columns.statuses[start:end],
                columns.healths[start:end],
                columns.client[before:upto],
                columns.client_sizes[4 * start : 4 * end],
            )
        )
        start, before = end, upto
    return found


def _ends_of_details(client_sizes: bytes, ends: list[int]) -> list[int]:
    """Up to where the details of each report go."""
    if not client_sizes:
        return []
    upto = np.concatenate([[0], np.cumsum(np.frombuffer(client_sizes, dtype="<u4").astype(np.int64))])
    found: list[int] = upto[ends].tolist()
    return found


class ClientUpdatesCore:
    """Reports that wait for their batch."""

    def __init__(self) -> None:
        self._reports: list[Report] = []
        self._count = 0
        self._bytes = 0
        self._due_ns: int | None = None
        self._number = 0

    @property
    def pending(self) -> int:
        """Updates that wait."""
        return self._count

    def add(self, report: Report, now_ns: int) -> int:
        """Take a checked report; the number of the batch that it will be in or before. `Busy` if too many wait."""
        if self._reports and (
            self._count + report.cost > PENDING_IDS_MAX or self._bytes + len(report.client) > PENDING_BYTES_MAX
        ):
            raise Busy(f"{self._count} updates of allocations wait to be written", hint="send them again in a second")
        self._reports.append(report)
        self._count += report.cost
        self._bytes += len(report.client)
        if self._count >= BATCH_IDS or self._bytes >= BATCH_BYTES:
            self._due_ns = now_ns
        elif self._due_ns is None:
            self._due_ns = now_ns + WINDOW_NS
        return self._number

    def wake_at_ns(self) -> int | None:
        """When the batch is due."""
        return self._due_ns

    def wake(self, store: Store, now_ns: int, *, time_ns: int, new_id: Callable[[], str]) -> list[Batch]:
        """The batch, if it is due: all that was gathered, in as few commands as hold it. `time_ns` is wall time."""
        if self._due_ns is None or now_ns < self._due_ns:
            return []
        return self.flush(store, time_ns=time_ns, new_id=new_id)

    def flush(self, store: Store, *, time_ns: int, new_id: Callable[[], str]) -> list[Batch]:
        """The same, due or not."""
        reports, self._reports = self._reports, []
        self._count, self._bytes, self._due_ns = 0, 0, None
        number, self._number = self._number, self._number + 1
        return [self._batch(number, store, part, time_ns, new_id) for part in _parts(reports)]

    def _batch(
        self, number: int, store: Store, reports: list[Report], time_ns: int, new_id: Callable[[], str]
    ) -> Batch:
        own, strange = only_own(store, reports)
        return Batch(number, merged(store, own, time_ns, new_id), strange)


def _parts(reports: list[Report]) -> Iterable[list[Report]]:
    part: list[Report] = []
    count = size = 0
    for report in reports:
        if part and (count + report.count > BATCH_IDS or size + len(report.client) > BATCH_BYTES):
            yield part
            part, count, size = [], 0, 0
        part.append(report)
        count += report.count
        size += len(report.client)
    if part:
        yield part


def only_own(state: Store, reports: list[Report]) -> tuple[list[Report], dict[str, int]]:
    """The reports without what they say about allocations of other nodes, and how much of that each node said.

    What this server does not know (yet) is left in: writing it changes nothing, unless it is placed before that.
    """
    slots = state.allocations.find(words_of(b"".join(report.ids for report in reports)))
    is_known = slots >= 0
    homes = state.allocations.columns.read(slots[is_known])["node"]
    speakers = np.repeat([_slot_of(state, report) for report in reports], [report.count for report in reports])
    is_strange = np.zeros(len(slots), dtype=np.bool_)
    is_strange[is_known] = homes != speakers[is_known]
    if not is_strange.any():
        return reports, {}
    kept: list[Report] = []
    dropped: dict[str, int] = {}
    start = 0
    for report in reports:
        strange = is_strange[start : start + report.count]
        start += report.count
        if strange.any():
            dropped[report.node_id] = dropped.get(report.node_id, 0) + int(strange.sum())
            report = _without(report, strange)
        kept.append(report)
    return kept, dropped


def _slot_of(state: State, report: Report) -> int:
    row = state.nodes.get(report.node_id)
    return NO_SLOT if row is None else row.slot


def _without(report: Report, dropped: NDArray[np.bool_]) -> Report:
    """A report without some of its updates."""
    kept = np.flatnonzero(~dropped).tolist()
    details = unpack(report.client, report.client_sizes)
    client, client_sizes = pack(details[at] for at in kept) if details else (b"", b"")
    return Report(
        report.node_id,
        b"".join(report.ids[16 * at : 16 * at + 16] for at in kept),
        bytes(report.statuses[at] for at in kept),
        bytes(report.healths[at] for at in kept) if report.healths else b"",
        client,
        client_sizes,
    )


def merged(store: Store, reports: list[Report], time_ns: int, new_id: Callable[[], str]) -> AllocStatusUpdate:
    """One command for many reports, with the evaluations that follow from them."""
    ids = b"".join(report.ids for report in reports)
    statuses = b"".join(report.statuses for report in reports)
    healths = client_sizes = b""
    if any(report.healths for report in reports):
        healths = b"".join(report.healths or bytes(report.count) for report in reports)
    if any(report.client_sizes for report in reports):
        client_sizes = b"".join(report.client_sizes or bytes(4 * report.count) for report in reports)
    evaluations, orphans = consequences(store, ids, statuses, time_ns, new_id)
    return AllocStatusUpdate(
        ids=ids,
        statuses=statuses,
        healths=healths,
        client=b"".join(report.client for report in reports),
        client_sizes=client_sizes,
        synced_nodes=_synced(store, reports),
        stopped=orphans,
        evaluations=tuple(evaluation_write(one) for one in evaluations),
    )


def _synced(state: State, reports: list[Report]) -> tuple[str, ...]:
    """The nodes of which this is the first word since they were missed."""
    found = []
    for node_id in dict.fromkeys(report.node_id for report in reports):
        row = state.nodes.get(node_id)
        if row is not None and row.missed_heartbeat_index > row.alloc_update_index:
            found.append(node_id)
    return tuple(found)


def consequences(
    store: Store, ids: bytes, statuses: bytes, time_ns: int, new_id: Callable[[], str]
) -> tuple[list[Evaluation], bytes]:
    """The evaluations that updates call for, one per job, and the ids of allocations whose job is gone.

    Of interest are updates that end an allocation, and those about one that was unknown so far.
    """
    if not ids:
        return [], b""
    slots = store.allocations.find(words_of(ids))
    is_known = slots >= 0
    slots = slots[is_known]
    now = np.frombuffer(statuses, dtype=np.uint8)[is_known]
    rows = store.allocations.columns.read(slots)
    was = rows["client_status"]
    interesting = np.flatnonzero(CLIENT_TERMINAL[now] | (was == UNKNOWN))
    if not len(interesting):
        return [], b""
    slots, now, was, refs = slots[interesting], now[interesting], was[interesting], rows["origin"][interesting]
    triggers: dict[tuple[str, str], tuple[Trigger, OriginRow]] = {}
    orphans: list[Slots] = []
    policies: dict[tuple[object, ...], ReschedulePolicy | None] = {}
    for ref in np.unique(refs).tolist():
        origin = store.allocations.origins.get(ref)
        assert origin is not None
        mine = refs == ref
        if store.jobs.row(*origin.job_key) is None:
            orphans.append(slots[mine])
            triggers[origin.job_key] = (Trigger.JOB_DEREGISTER, origin)
        elif bool((mine & (was == UNKNOWN)).any()):
            triggers[origin.job_key] = (Trigger.RECONNECT, origin)
        elif origin.job_key not in triggers:
            failed = slots[mine & (now == FAILED) & (was != FAILED)]
            if len(failed) and _any_may_be_replaced(store, policies, origin, failed, time_ns):
                triggers[origin.job_key] = (Trigger.ALLOC_FAILURE, origin)
    evaluations = [
        _evaluation(store, trigger, origin, time_ns, new_id) for _, (trigger, origin) in sorted(triggers.items())
    ]
    return evaluations, _ids_of(store, orphans)


def may_reschedule(policy: ReschedulePolicy | None, tracker: RescheduleTracker | None, failed_ns: int) -> bool:
    """Whether a policy allows one more replacement of what failed at this time."""
    return next_due(policy, tracker.events if tracker is not None else (), failed_ns).is_eligible


def _any_may_be_replaced(
    store: Store,
    policies: dict[tuple[object, ...], ReschedulePolicy | None],
    origin: OriginRow,
    failed: Slots,
    time_ns: int,
) -> bool:
    key = (*origin.job_key, origin.group)
    if key not in policies:
        job = store.jobs.get(*origin.job_key)
        group = job.group(origin.group) if job is not None else None
        policies[key] = group.reschedule_policy if group is not None else None
    policy = policies[key]
    if policy is None or not (policy.unlimited or policy.attempts):
        return False
    for slot in failed.tolist():
        record = store.allocations.records(np.array([slot], dtype=np.int64))[0]
        if not record.followup_eval_id and may_reschedule(policy, record.reschedule_tracker, time_ns):
            return True
    return False


def _evaluation(
    state: State, trigger: Trigger, origin: OriginRow, time_ns: int, new_id: Callable[[], str]
) -> Evaluation:
    kind, priority = job_type_of(state, origin)
    row = state.jobs.row(*origin.job_key)
    return Evaluation(
        id=new_id(),
        namespace=origin.namespace,
        priority=priority,
        type=kind,
        triggered_by=trigger.value,
        job_id=origin.job_id,
        job_modify_index=row.job_modify_index if row is not None else 0,
        status=EvaluationStatus.PENDING,
        create_time_ns=time_ns,
        modify_time_ns=time_ns,
    )


def _ids_of(store: Store, batches: list[Slots]) -> bytes:
    if not batches:
        return b""
    rows: Rows = store.allocations.columns.read(np.unique(np.concatenate(batches)))
    return rows["id"].astype(">u8").tobytes()
