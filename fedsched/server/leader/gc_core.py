"""Decides what the region can forget: a table of ages, one rule for each kind of thing, and batches to delete in.

Pure: reads the state and is told the time. A pass over a large state takes longer than a leader may be busy in one go,
so every pass is a generator that gives a batch, or None for a moment to breathe, and works on one state throughout.

What depends on allocations is known from one look over the columns: which allocations have not ended, which may go, and
to which evaluation and deployment each belongs. Only allocations that failed are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.job import Job, JobStatus, JobType
from fedsched.model.node import NodeStatus
from fedsched.model.policies import ReschedulePolicy
from fedsched.server.leader.heartbeats_core import job_type_of
from fedsched.state.columns import Rows, Slots, groups
from fedsched.state.fields import Command
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import CLIENT_CODES, CLIENT_TERMINAL, DESIRED_CODES, RUN
from fedsched.state.tables.alloc_origins import OriginRow
from fedsched.state.tables.alloc_reader import SCAN_ROWS
from fedsched.state.tables.alloc_updates import JobName, Reap
from fedsched.state.tables.deployments import DeploymentRow
from fedsched.state.tables.evaluations import EvaluationRow
from fedsched.state.tables.job_rows import JobRow
from fedsched.state.tables.nodes import NodeDeregister, NodeRow
from fedsched.state.tables.rollouts import ENDED, JobPart, RolloutsReap

NS: Final = 1_000_000_000
IDS_MAX: Final = 7281
"""Ids in one entry of the log."""
JOBS_MAX: Final = 2048
BREATH_ROWS: Final = 256
"""Rows looked at between two moments to breathe: a few milliseconds."""
DEAD: Final = JobStatus.DEAD.value
ONE_SHOT: Final = (JobType.BATCH.value, JobType.SYSBATCH.value)
PENDING: Final = CLIENT_CODES[ClientStatus.PENDING]
RUNNING: Final = CLIENT_CODES[ClientStatus.RUNNING]
FAILED: Final = CLIENT_CODES[ClientStatus.FAILED]
STOP: Final = next(code for status, code in DESIRED_CODES.items() if status.value == "stop")


@dataclass(frozen=True, slots=True)
class GcSettings:
    """How old things have to be, and how often they are looked for."""

    evaluation_s: float = 3600.0
    batch_evaluation_s: float = 24 * 3600.0
    job_s: float = 4 * 3600.0
    node_s: float = 24 * 3600.0
    deployment_s: float = 3600.0
    acl_token_s: float = 3600.0
    every_s: float = 300.0
    one_time_token_every_s: float = 600.0


FORCED: Final = GcSettings(
    evaluation_s=0.0, batch_evaluation_s=0.0, job_s=0.0, node_s=0.0, deployment_s=0.0, acl_token_s=0.0
)
"""Somebody asked for it: everything that may go at all, however young."""

KINDS: Final = ("job", "evaluation", "deployment", "node", "rollout")
"""In the order of a pass: a job takes its evaluations and allocations along, and lets go of deployments and nodes."""


@dataclass(frozen=True, slots=True)
class ReapNodes:
    """Nodes to forget."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReapRows:
    """Everything else to forget, in one entry."""

    evaluations: tuple[str, ...] = ()
    allocs: bytes = b""
    deployments: tuple[str, ...] = ()
    jobs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ReapRollouts:
    """Rollouts and shares in them to forget, of jobs that are gone."""

    rollouts: tuple[str, ...] = ()
    shares: tuple[tuple[str, str], ...] = ()


GcEffect = ReapNodes | ReapRows | ReapRollouts


def command_of(effect: GcEffect, seen_index: int) -> Command:
    """The command that carries an effect out, unless something has changed since the state it was decided from."""
    match effect:
        case ReapNodes(ids):
            return NodeDeregister(ids=ids, seen_index=seen_index)
        case ReapRollouts(rollouts, shares):
            parts = tuple(JobPart(namespace=namespace, id=job_id) for namespace, job_id in shares)
            return RolloutsReap(rollouts=rollouts, shares=parts, seen_index=seen_index)
        case ReapRows(evaluations, allocs, deployments, jobs):
            names = tuple(JobName(namespace=namespace, id=job_id) for namespace, job_id in jobs)
            return Reap(
                evaluations=evaluations,
                allocs=allocs,
                deployments=deployments,
                jobs=names,
                seen_index=seen_index,
            )


def collect(state: State, kind: str, now_ns: int, settings: GcSettings) -> Iterator[GcEffect | None]:
    """One pass over everything of one of the `KINDS`. None is a moment to breathe.

    The state must not change under it: give it a snapshot, and a new one for each kind.
    """
    match kind:
        case "job":
            yield from _jobs(state, now_ns, settings)
        case "evaluation":
            yield from _evaluations(state, now_ns, settings)
        case "deployment":
            yield from _deployments(state, now_ns, settings)
        case "node":
            yield from _nodes(state, now_ns, settings)
        case "rollout":
            yield from _rollouts(state, now_ns, settings)
        case _:
            raise ValueError(f"nothing of the kind {kind!r} is ever collected")


@dataclass(slots=True)
class Census:
    """One look over all allocations."""

    of_evaluation: dict[str, list[tuple[OriginRow, Slots]]] = field(default_factory=dict)
    """The allocations that each evaluation made."""
    living_deployments: set[str] = field(default_factory=set)
    """Those with an allocation that is not terminal."""

    def take(self, state: State) -> Iterator[None]:
        allocations = state.allocations
        by_ref: dict[int, list[Slots]] = {}
        living: set[int] = set()
        for start in range(0, allocations.columns.high, SCAN_ROWS):
            slots = allocations.columns.in_use(start, start + SCAN_ROWS)
            rows = allocations.columns.read(slots)
            for ref, where in groups(rows["origin"]):
                by_ref.setdefault(ref, []).append(slots[where])
            living.update(np.unique(rows["origin"][~_is_terminal(rows)]).tolist())
            yield
        for at, (ref, parts) in enumerate(by_ref.items()):
            if at % BREATH_ROWS == BREATH_ROWS - 1:
                yield
            origin = allocations.origins.get(ref)
            assert origin is not None
            self.of_evaluation.setdefault(origin.evaluation_id, []).append((origin, np.concatenate(parts)))
            if ref in living and origin.deployment_id:
                self.living_deployments.add(origin.deployment_id)


def _jobs(state: State, now_ns: int, settings: GcSettings) -> Iterator[GcEffect | None]:
    cutoff = _cutoff(now_ns, settings.job_s)
    batch = _Batch()
    for at, row in enumerate(state.jobs.scan()):
        if at % BREATH_ROWS == BREATH_ROWS - 1:
            yield None
        if not is_job_collectible(row, cutoff) or _has_tag(state, row):
            continue
        evaluations = list(state.evaluations.of_job(row.namespace, row.id))
        if not all(_is_old_end(one, cutoff) for one in evaluations):
            continue
        slots = state.allocations.slots_of_job(row.namespace, row.id)
        if len(slots) != len(collectible(state, slots, row, cutoff, now_ns)):
            continue
        yield from batch.add(
            state, evaluations=[one.id for one in evaluations], slots=slots, job=(row.namespace, row.id)
        )
    yield from batch.rest(state)


def _evaluations(state: State, now_ns: int, settings: GcSettings) -> Iterator[GcEffect | None]:
    census = Census()
    yield from census.take(state)
    batch = _Batch()
    made = census.of_evaluation
    for at, row in enumerate(state.evaluations.rows.scan()):
        if at % BREATH_ROWS == BREATH_ROWS - 1:
            yield None
        goes, slots = judge_evaluation(state, row, made.pop(row.id, []), _age(row.type, now_ns, settings), now_ns)
        if goes or len(slots):
            yield from batch.add(state, evaluations=[row.id] if goes else [], slots=slots)
    for _, parts in sorted(made.items()):  # allocations whose evaluation is not known (any more)
        for origin, slots in parts:
            kind, _ = job_type_of(state, origin)
            _, good = _judge_allocs(state, [(origin, slots)], kind, _age(kind, now_ns, settings), now_ns)
            if len(good):
                yield from batch.add(state, evaluations=[], slots=good)
    yield from batch.rest(state)


def _deployments(state: State, now_ns: int, settings: GcSettings) -> Iterator[GcEffect | None]:
    census = Census()
    yield from census.take(state)
    cutoff = _cutoff(now_ns, settings.deployment_s)
    gone = []
    for at, row in enumerate(state.deployments.rows.scan()):
        if at % BREATH_ROWS == BREATH_ROWS - 1:
            yield None
        if is_deployment_collectible(row, census.living_deployments, cutoff):
            gone.append(row.id)
    for start in range(0, len(gone), IDS_MAX):
        yield ReapRows(deployments=tuple(gone[start : start + IDS_MAX]))


def _nodes(state: State, now_ns: int, settings: GcSettings) -> Iterator[GcEffect | None]:
    cutoff = _cutoff(now_ns, settings.node_s)
    gone = []
    for at, row in enumerate(state.nodes.rows.by("status", NodeStatus.DOWN.value)):
        if at % BREATH_ROWS == BREATH_ROWS - 1:
            yield None
        if is_node_collectible(state, row, cutoff):
            gone.append(row.id)
    for start in range(0, len(gone), IDS_MAX):
        yield ReapNodes(tuple(gone[start : start + IDS_MAX]))


def _rollouts(state: State, now_ns: int, settings: GcSettings) -> Iterator[GcEffect | None]:
    """What is known of rollouts of jobs that are gone here. Of other jobs the newest record stays, and the share."""
    cutoff = _cutoff(now_ns, settings.job_s)
    records: list[str] = []
    for at, row in enumerate(state.rollouts.rows.scan()):
        if at % BREATH_ROWS == BREATH_ROWS - 1:
            yield None
        if row.is_over and row.modify_time_ns <= cutoff and state.jobs.row(row.namespace, row.job_id) is None:
            records.append(row.id)
    shares: list[tuple[str, str]] = []
    for at, share in enumerate(state.rollouts.share_rows.scan()):
        if at % BREATH_ROWS == BREATH_ROWS - 1:
            yield None
        is_old = share.status in ENDED and share.modify_time_ns <= cutoff
        if is_old and state.jobs.row(share.namespace, share.job_id) is None:
            shares.append((share.namespace, share.job_id))
    for start in range(0, max(len(records), len(shares)), JOBS_MAX):
        yield ReapRollouts(tuple(records[start : start + JOBS_MAX]), tuple(shares[start : start + JOBS_MAX]))


def is_job_collectible(row: JobRow, cutoff_ns: int) -> bool:
    """Whether a job's own state lets it go: dead, and either stopped or of a kind that ends by itself.

    A service job that is dead but was never stopped stays: it is wanted. So does a template that was not stopped.
    """
    if row.status != DEAD or row.submit_time_ns > cutoff_ns:
        return False
    return row.stop or (row.type in ONE_SHOT and not row.is_template)


def judge_evaluation(
    state: State, row: EvaluationRow, made: list[tuple[OriginRow, Slots]], cutoff_ns: int, now_ns: int
) -> tuple[bool, Slots]:
    """Whether an evaluation goes, and which of the allocations that it made.

    The ended allocations of a batch job say that its work is done. Without them it would be done again, so they stay
    while the job may be evaluated; only those of older versions go.
    """
    if not _is_old_end(row, cutoff_ns):
        return False, _NONE
    if not made:
        job = state.jobs.row(row.namespace, row.job_id)
        return not _is_result_needed(row.type, job), _NONE
    return _judge_allocs(state, made, row.type, cutoff_ns, now_ns)


def _judge_allocs(
    state: State, made: list[tuple[OriginRow, Slots]], kind: str, cutoff_ns: int, now_ns: int
) -> tuple[bool, Slots]:
    """Whether all of these allocations of one job may go, and which."""
    job = state.jobs.row(*made[0][0].job_key)
    if job is not None and _is_result_needed(kind, job):
        old = [_ended(state, slots) for origin, slots in made if _is_older(origin, job)]
        return False, np.concatenate(old) if old else _NONE
    found = [(slots, collectible(state, slots, job, cutoff_ns, now_ns)) for _, slots in made]
    return all(len(good) == len(slots) for slots, good in found), np.concatenate([good for _, good in found])


def _is_result_needed(kind: str, job: JobRow | None) -> bool:
    """Whether the work of a batch job would be done again if its allocations were forgotten."""
    return kind in ONE_SHOT and job is not None and not (job.status == DEAD and job.stop)


def collectible(state: State, slots: Slots, job: JobRow | None, cutoff_ns: int, now_ns: int) -> Slots:
    """Those of these allocations that may go."""
    rows = state.allocations.columns.read(slots)
    good = _is_terminal(rows) & ~_may_run(state, rows) & (rows["modify_time"] <= cutoff_ns)
    if job is not None and not job.stop and job.status != DEAD:
        asking = good & (rows["client_status"] == FAILED) & (rows["desired"] != STOP)
        whole = state.jobs.of_row(job) if bool(asking.any()) else None
        for at in np.flatnonzero(asking).tolist():
            record = state.allocations.records(slots[at : at + 1])[0]
            good[at] = is_failure_settled(record, _policy(whole, record.task_group), now_ns)
    found: Slots = slots[good]
    return found


def is_failure_settled(alloc: Allocation, policy: ReschedulePolicy | None, now_ns: int) -> bool:
    """Whether the scheduler needs to know nothing more of a failed allocation of a live job.

    What it still needs is the story of earlier attempts, until that went on to a replacement or is too old to count.
    """
    if policy is None or not (policy.unlimited or policy.attempts):
        return True
    if alloc.next_allocation:
        return True
    events = alloc.reschedule_tracker.events if alloc.reschedule_tracker is not None else ()
    if policy.unlimited or not events:
        return False
    return now_ns - events[-1].reschedule_time_ns > round(policy.interval_s * NS)


def is_deployment_collectible(row: DeploymentRow, living: set[str], cutoff_ns: int) -> bool:
    """Whether a deployment has ended, long enough ago, and none of its allocations goes on."""
    return not row.is_active and row.modify_time_ns <= cutoff_ns and row.id not in living


def is_node_collectible(state: State, row: NodeRow, cutoff_ns: int) -> bool:
    """Whether a node has been down for long enough, without an allocation that is not terminal."""
    if row.status != NodeStatus.DOWN.value or row.status_updated_at_s * NS > cutoff_ns:
        return False
    rows = state.allocations.columns.read(state.allocations.slots_of_node(row.slot))
    return bool(_is_terminal(rows).all())


def is_token_collectible(expires_ns: int, now_ns: int, age_s: float) -> bool:
    """Whether a token expired so long ago that even those who look for the reason of a refusal have seen it."""
    return 0 < expires_ns <= now_ns - round(age_s * NS)


def is_one_time_token_collectible(expires_ns: int, now_ns: int) -> bool:
    """Whether a one-time token can no longer be exchanged."""
    return 0 < expires_ns <= now_ns


class _Batch:
    """Gathers what goes into entries that are not too large; a job never goes before what belongs to it."""

    def __init__(self) -> None:
        self._evaluations: list[str] = []
        self._slots: list[Slots] = []
        self._jobs: list[tuple[str, str]] = []

    def add(
        self, state: State, *, evaluations: list[str], slots: Slots, job: tuple[str, str] | None = None
    ) -> Iterator[ReapRows]:
        self._evaluations += evaluations
        self._slots.append(slots)
        if job is not None:
            self._jobs.append(job)
        allocs = sum(len(part) for part in self._slots)
        if len(self._evaluations) >= IDS_MAX or allocs >= IDS_MAX or len(self._jobs) >= JOBS_MAX:
            yield from self.rest(state)

    def rest(self, state: State) -> Iterator[ReapRows]:
        evaluations, jobs = self._evaluations, self._jobs
        slots = np.concatenate(self._slots) if self._slots else _NONE
        self._evaluations, self._slots, self._jobs = [], [], []
        for start in range(0, max(len(evaluations), len(slots)), IDS_MAX):
            yield ReapRows(
                evaluations=tuple(evaluations[start : start + IDS_MAX]),
                allocs=_ids(state, slots[start : start + IDS_MAX]),
            )
        for start in range(0, len(jobs), JOBS_MAX):
            yield ReapRows(jobs=tuple(jobs[start : start + JOBS_MAX]))


_NONE: Final[Slots] = np.empty(0, dtype=np.int64)


def _cutoff(now_ns: int, age_s: float) -> int:
    return now_ns - round(age_s * NS)


def _age(kind: str, now_ns: int, settings: GcSettings) -> int:
    return _cutoff(now_ns, settings.batch_evaluation_s if kind in ONE_SHOT else settings.evaluation_s)


def _is_old_end(row: EvaluationRow, cutoff_ns: int) -> bool:
    return not row.is_open and row.modify_time_ns <= cutoff_ns


def _is_terminal(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    ended: np.ndarray[tuple[int], np.dtype[np.bool_]] = (rows["desired"] != RUN) | CLIENT_TERMINAL[
        rows["client_status"]
    ]
    return ended


def _may_run(state: State, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whose client has not said yet that it is over, or that it never began: its place is taken until then.

    A node that is forgotten has no places, and nobody left to say so.
    """
    status = rows["client_status"]
    unsaid: np.ndarray[tuple[int], np.dtype[np.bool_]] = (status == RUNNING) | (status == PENDING)
    for node in np.unique(rows["node"][unsaid]).tolist():
        known = state.nodes.at(node)
        if known is None or state.nodes.get(known.node_id) is None:
            unsaid &= rows["node"] != node
    return unsaid


def _is_older(origin: OriginRow, job: JobRow) -> bool:
    return (origin.job_create_index, origin.job_version) < (job.create_index, job.version)


def _ended(state: State, slots: Slots) -> Slots:
    rows = state.allocations.columns.read(slots)
    found: Slots = slots[_is_terminal(rows) & ~_may_run(state, rows)]
    return found


def _policy(job: Job | None, group: str) -> ReschedulePolicy | None:
    found = job.group(group) if job is not None else None
    return found.reschedule_policy if found is not None else None


def _has_tag(state: State, row: JobRow) -> bool:
    versions = state.jobs.version_rows.scan(row.namespace, row.id, row.create_index)
    return any(version.tag_name for version in versions)


def _ids(state: State, slots: Slots) -> bytes:
    return state.allocations.columns.read(slots)["id"].astype(">u8").tobytes() if len(slots) else b""
