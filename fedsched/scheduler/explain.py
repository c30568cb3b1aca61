"""Why a job, an allocation or a node is as it is: the shortest true explanation first, one idea per line.

Everything is read from the state and the fleet as they are now. What a group would come to is asked of the very
scheduler, in a dry run; what keeps it off the nodes, and what would help, comes from `explain_change`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

import numpy as np

from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.deployment import Deployment, DeploymentStatus
from fedsched.model.evaluation import EvaluationStatus, Trigger
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, JobType
from fedsched.model.units import format_time
from fedsched.model.why import AllocWhy, Candidate, Change, GroupWhy, JobWhy, NodeGroupWhy, NodeWhyNot
from fedsched.scheduler.choose import Chooser
from fedsched.scheduler.dry_run import DRY_ID, DryRun, dry_run, dry_run_in_pieces
from fedsched.scheduler.explain_change import Judge, least_node, name_of, roster_of
from fedsched.scheduler.field import JobField
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.pieces import Pieces
from fedsched.scheduler.schedule import BUILT_IN, MakeScheduling
from fedsched.scheduler.settings import config_of
from fedsched.state.store import State, Store
from fedsched.state.tables.alloc_reader import GroupCounts
from fedsched.state.tables.evaluations import EvaluationRow

ON_EVERY_NODE: Final = frozenset({JobType.SYSTEM.value, JobType.SYSBATCH.value})
RUNS_TO_AN_END: Final = frozenset({JobType.BATCH.value, JobType.SYSBATCH.value})
AHEAD_MAX: Final = 10_000
"""Waiting evaluations that are looked at, the oldest first."""
NS: Final = 1_000_000_000
NO_COUNTS: Final = GroupCounts(0, 0, 0, 0, 0, 0, 0, 0)

_WAITS_FOR: Final = {
    Trigger.ALLOC_FAILURE.value: "reschedule delay",
    Trigger.ALLOC_RESCHEDULE.value: "reschedule delay",
    Trigger.FAILED_FOLLOW_UP.value: "another try after one that failed",
    Trigger.MAX_DISCONNECT_TIMEOUT.value: "a client that is cut off may come back until then",
}


class Said(NamedTuple):
    """A line and the one word that it makes of the job, if it is the first to say one."""

    verdict: str
    words: str


def job_why(
    state: State,
    fleet: Fleet,
    job: Job,
    now_ns: int,
    group: str = "",
    *,
    schedulers: Mapping[str, MakeScheduling] = BUILT_IN,
    lacking: str = "",
) -> JobWhy:
    """Why a job is as it is; of one group if it is named.

    `schedulers` are those that can be asked here. `lacking` says what to do so that some server takes jobs of this
    type; empty if one does.
    """
    found = None if _is_idle(state, job) else dry_run(state, fleet, job, now_ns, schedulers)
    return _job_why(state, fleet, job, now_ns, group, found, lacking)


def job_why_in_pieces(
    store: Store,
    fleet: Fleet,
    job: Job,
    now_ns: int,
    group: str = "",
    *,
    schedulers: Mapping[str, MakeScheduling] = BUILT_IN,
    lacking: str = "",
) -> Pieces[JobWhy]:
    """The same with pauses if it will be long."""
    found = None if _is_idle(store, job) else (yield from dry_run_in_pieces(store, fleet, job, now_ns, schedulers))
    return _job_why(store, fleet, job, now_ns, group, found, lacking)


def _is_idle(state: State, job: Job) -> bool:
    return any(True for _ in _without_placing(state, job))


def _job_why(
    state: State, fleet: Fleet, job: Job, now_ns: int, group: str, found: DryRun | None, lacking: str
) -> JobWhy:
    said = list(_without_placing(state, job))
    groups: tuple[GroupWhy, ...] = ()
    if found is not None:
        groups = tuple(_groups_why(state, fleet, job, found, group))
        is_short = any(one.unplaced for one in groups)
        has_room = any(one.place for one in found.annotations.desired_tg_updates.values())
        said = [
            *_scheduler(job, found, lacking),
            *_placing(groups),
            *_deployment(state, job),
            *(() if lacking else _evaluations(state, job, now_ns, is_short=is_short, has_room=has_room)),
            *(_settled(job, groups, found) if found.is_tried else _present(job, groups)),
        ]
    return JobWhy(
        job_id=job.id,
        namespace=job.namespace,
        verdict=next((one.verdict for one in said if one.verdict), "idle"),
        words=tuple(one.words for one in said),
        groups=groups,
    )


def node_why_not(state: State, fleet: Fleet, slot: int, job: Job, group: str = "") -> NodeWhyNot:
    """Why a job is not on a node, group by group."""
    node = fleet.node(state, slot)
    assert node is not None
    scene = _Scene(state, fleet, job)
    groups = tuple(scene.node_group(one, slot) for one in job.task_groups if group in ("", one.name))
    return NodeWhyNot(node_id=node.id, node_name=name_of(node), job_id=job.id, groups=groups)


def alloc_why(state: State, alloc: Allocation, now_ns: int) -> AllocWhy:
    """Why an allocation is in its state and on its node."""
    metric = alloc.metrics
    candidates = _stored_candidates(state, metric) if metric is not None else ()
    words = (*_alloc_state(alloc), *_alloc_story(state, alloc, now_ns), *_alloc_place(alloc, candidates, metric))
    return AllocWhy(alloc_id=alloc.id, name=alloc.name, words=words, candidates=candidates)


# ------------------------------------------------------------------------- jobs


def _without_placing(state: State, job: Job) -> Iterator[Said]:
    """What explains a job that nothing is placed for."""
    if job.stop:
        yield Said("stopped", "The job is stopped.")
        live = sum(one.live for one in state.allocations.group_counts(job.namespace, job.id, job.create_index).values())
        if live:
            yield Said("", f"{_counted(live, 'allocation')} still to end.")
    elif job.is_periodic:
        yield Said("idle", "The job is periodic: it launches children at its times and places nothing itself.")
    elif job.is_parameterized:
        yield Said("idle", "The job is parameterized: it places nothing until it is dispatched.")


def _scheduler(job: Job, found: DryRun, lacking: str) -> Iterator[Said]:
    """Whether anybody looks at jobs of this type."""
    if lacking:
        yield Said("waiting", f'No server takes jobs of type "{job.type}", so nothing of it is placed or changed.')
        yield Said("", f"To have it looked at: {lacking}.")
    elif not found.is_tried:
        yield Said("", f'Jobs of type "{job.type}" have a scheduler of their own, which cannot be tried here.')


def _placing(groups: tuple[GroupWhy, ...]) -> Iterator[Said]:
    for one in groups:
        if one.unplaced:
            yield Said("blocked", f'Group "{one.group}": {_counted(one.unplaced, "allocation")} without a place.')
            if one.changes:
                what = "One more" if one.unplaced > 1 else "It"
                yield Said("", f"{what} {one.changes[0].words}.")


def _deployment(state: State, job: Job) -> Iterator[Said]:
    row = state.deployments.latest(job.namespace, job.id, job.create_index)
    if row is None or row.job_version != job.version:
        return
    known = row.deployment()
    name = f"Deployment {known.id[:8]}"
    match known.status:
        case DeploymentStatus.PAUSED:
            yield Said("waiting", f"{name} is paused: it goes on with `fedsched deployment resume`.")
        case DeploymentStatus.FAILED:
            yield Said("failed", f"{name} failed: {known.status_description.removeprefix('failed: ')}.")
        case DeploymentStatus.PENDING | DeploymentStatus.BLOCKED | DeploymentStatus.INITIALIZING:
            yield Said("waiting", f"{name} is {known.status.value}: it waits for other regions.")
        case DeploymentStatus.RUNNING:
            yield from _progress(known, name)


def _progress(known: Deployment, name: str) -> Iterator[Said]:
    for group, far in sorted(known.task_groups.items()):
        waits = far.desired_canaries > 0 and not far.promoted
        wanted = far.desired_canaries if waits else far.desired_total
        if far.healthy_allocs < wanted:
            text = f'{name} waits for health: {far.healthy_allocs} of {wanted} of group "{group}" are healthy.'
            yield Said("waiting", text)
        elif waits and not far.auto_promote:
            text = f'{name} waits for promotion of group "{group}": `fedsched deployment promote {known.id[:8]}`.'
            yield Said("waiting", text)


def _evaluations(state: State, job: Job, now_ns: int, *, is_short: bool, has_room: bool) -> Iterator[Said]:
    rows = list(state.evaluations.of_job(job.namespace, job.id))
    if not rows:
        yield Said("waiting", "The job was never evaluated: `fedsched job eval` has it looked at.")
        return
    for row in rows:
        if row.status == EvaluationStatus.PENDING.value:
            yield Said("waiting", _pending(state, row, rows, now_ns))
    blocked = [row for row in rows if row.status == EvaluationStatus.BLOCKED.value]
    for row in blocked[-1:]:
        what = "for room" if is_short else f"for a change of the nodes{', though there is room now' * has_room}"
        yield Said("blocked", f"Evaluation {row.id[:8]} is blocked: it waits {what}.")
    newest = max(rows, key=lambda row: row.modify_index)
    if newest.status == EvaluationStatus.FAILED.value and not blocked:
        yield Said("failed", f"The last evaluation {newest.id[:8]} failed: {newest.status_description}.")


def _pending(state: State, row: EvaluationRow, of_job: list[EvaluationRow], now_ns: int) -> str:
    name = f"Evaluation {row.id[:8]}"
    if row.wait_until_ns > now_ns:
        why = _WAITS_FOR.get(row.triggered_by, row.triggered_by)
        return f"{name} waits until {_when(row.wait_until_ns)} ({why})."
    mine = [one for one in of_job if one.status == row.status and one.create_index < row.create_index]
    if any(one.wait_until_ns <= now_ns for one in mine):
        return f"{name} is queued behind another one of this job."
    ahead = seen = 0
    for other in islice(state.evaluations.with_status(row.status), AHEAD_MAX):
        seen += 1
        is_due = other.wait_until_ns <= now_ns
        ahead += is_due and (-other.priority, other.create_index) < (-row.priority, row.create_index)
    if seen == AHEAD_MAX:
        return f"{name} is queued behind {_counted(ahead, 'other')} or more."
    return f"{name} is queued behind {_counted(ahead, 'other')}." if ahead else f"{name} is next to be looked at."


def _settled(job: Job, groups: tuple[GroupWhy, ...], found: DryRun) -> Iterator[Said]:
    """What there is to say when nothing is missing, or when it would be placed if only somebody looked."""
    missing = {name: one.place for name, one in found.annotations.desired_tg_updates.items() if one.place}
    for one in groups:
        fits = missing.get(one.group, 0) - one.unplaced
        if fits > 0:
            yield Said("waiting", f'Group "{one.group}": {_counted(fits, "allocation")} would be placed now.')
    if any(one.unplaced or missing.get(one.group) for one in groups):
        return
    yield from _ended(job, groups)
    yield from _present(job, groups)


def _present(job: Job, groups: tuple[GroupWhy, ...]) -> Iterator[Said]:
    running, starting = sum(one.running for one in groups), sum(one.starting for one in groups)
    unknown = sum(one.unknown for one in groups)
    if starting:
        yield Said("waiting", f"{_counted(starting, 'allocation')} placed, and yet to start on the client.")
    if unknown:
        yield Said("waiting", f"{_counted(unknown, 'allocation')} on clients that are cut off.")
    if running:
        is_all = not starting and not unknown and not any(_short(job, one) for one in groups)
        yield Said("running", f"{'All ' if is_all else ''}{_counted(running, 'allocation')} running.")


def _short(job: Job, group: GroupWhy) -> int:
    """How many allocations of the group are neither there nor done; unknown for jobs that run on every node."""
    if job.type in ON_EVERY_NODE:
        return 0
    done = group.complete if job.type in RUNS_TO_AN_END else 0
    return max(0, group.wanted - group.running - group.starting - group.unknown - done)


def _ended(job: Job, groups: tuple[GroupWhy, ...]) -> Iterator[Said]:
    """What is no longer there though nothing is to be placed, and what is done."""
    for one in groups:
        short = _short(job, one)
        if short and one.failed:
            text = f"{short} of {one.wanted} ended, and its reschedule policy lets none be replaced now."
            yield Said("failed", f'Group "{one.group}": {text}')
        elif short:
            yield Said("waiting", f'Group "{one.group}": {short} of {one.wanted} missing, and none to be placed now.')
    if any(one.running or one.starting or one.unknown or _short(job, one) for one in groups):
        return
    if job.type in RUNS_TO_AN_END and any(one.complete for one in groups):
        yield Said("complete", "All that the job had to do has been done.")
    elif job.type in ON_EVERY_NODE:
        yield Said("idle", "There is no node that the job runs on.")
    else:
        yield Said("idle", "The job asks for no allocations.")


def _groups_why(state: State, fleet: Fleet, job: Job, found: DryRun, only: str) -> Iterator[GroupWhy]:
    counts = state.allocations.group_counts(job.namespace, job.id, job.create_index)
    scene = _Scene(state, fleet, job)
    for group in job.task_groups:
        if only in ("", group.name):
            yield scene.group_why(group, counts.get(group.name, NO_COUNTS), found.failed.get(group.name))


class _Scene:
    """A job, the fleet, and what is needed to judge nodes for it."""

    def __init__(self, state: State, fleet: Fleet, job: Job) -> None:
        self.state, self.fleet, self.job = state, fleet, job
        self.field = JobField(state, fleet, job, config_of(state, job))
        self.roster = roster_of(state, job.namespace, job.id)

    def judge(self, group: TaskGroup) -> Judge:
        field = self.field.group(group)
        chooser = Chooser(self.field, self.roster, DRY_ID)
        return Judge(chooser, field, self.roster, one_per_node=self.job.type in ON_EVERY_NODE)

    def group_why(self, group: TaskGroup, counts: GroupCounts, metric: AllocMetric | None) -> GroupWhy:
        unplaced = metric.coalesced_failures + 1 if metric is not None else 0
        changes: tuple[Change, ...] = ()
        words: tuple[str, ...] = ()
        if metric is not None:
            changes = self.judge(group).changes()
            words = tuple(failure_words(metric))
            if not changes:
                words += (f"Fits if a node joins that has {least_node(self.field.group(group).ask)} free.",)
        return GroupWhy(
            group=group.name,
            wanted=group.count,
            running=counts.running,
            starting=counts.starting,
            complete=counts.complete,
            failed=counts.failed,
            unknown=counts.unknown,
            unplaced=unplaced,
            words=words,
            changes=changes,
            candidates=self.candidates(group) if self.job.type not in ON_EVERY_NODE else (),
        )

    def candidates(self, group: TaskGroup, only: int | None = None) -> tuple[Candidate, ...]:
        """Nodes that one more allocation could go to, best first."""
        field = self.field.group(group)
        where = np.array([only], dtype=np.int64) if only is not None else None
        chooser = Chooser(self.field, self.roster, DRY_ID)
        try:
            chosen = chooser.choose(field, [0], only=where)
        finally:
            chooser.close()
        return _stored_candidates(self.state, chosen.metric) if not chosen.unplaced else ()

    def node_group(self, group: TaskGroup, slot: int) -> NodeGroupWhy:
        judge = self.judge(group)
        obstacles, here = judge.obstacles(slot), judge.here(slot)
        words = [f"{_counted(here, 'allocation')} of the group already there."] if here else []
        if obstacles:
            words += [f"{one.words}." for one in obstacles]
            if all(one.change for one in obstacles):
                words.append("Fits if " + " and ".join(one.change for one in obstacles) + ".")
            return NodeGroupWhy(group=group.name, here=here, words=tuple(words), obstacles=obstacles)
        mine = self.candidates(group, only=slot)
        best = self.candidates(group)
        score = mine[0].score if mine else None
        words.append("One more allocation fits here." if here else "The group fits here.")
        if best and mine and best[0].node_id != mine[0].node_id:
            words.append(f"Node {best[0].node_name} scores better: {best[0].score:.3f} against {mine[0].score:.3f}.")
        return NodeGroupWhy(
            group=group.name, fits=True, here=here, words=tuple(words), score=score, best=best[0] if best else None
        )


def failure_words(metric: AllocMetric) -> Iterator[str]:
    """What stood in the way, counted over all nodes."""
    if not metric.nodes_in_pool:
        yield f'Node pool "{metric.node_pool}" has no node that is ready.'
    elif not metric.nodes_evaluated:
        names = ", ".join(sorted(metric.nodes_available))
        yield f"No node is ready in the job's datacenters ({names})." if names else "No node is ready."
    for reason, count in sorted(metric.constraint_filtered.items(), key=lambda item: -item[1]):
        yield f'{_nodes(count)} ruled out by "{reason.strip()}".'
    for dimension, count in sorted(metric.dimension_exhausted.items(), key=lambda item: -item[1]):
        yield f'{_nodes(count)} without enough "{dimension}".'


def _stored_candidates(state: State, metric: AllocMetric) -> tuple[Candidate, ...]:
    found = []
    for one in metric.score_meta_data:
        row = state.nodes.get(one.node_id)
        name = row.node().name if row is not None else ""
        found.append(
            Candidate(
                node_id=one.node_id, node_name=name or one.node_id[:8], score=one.norm_score, scores=dict(one.scores)
            )
        )
    return tuple(found)


# ------------------------------------------------------------------ allocations


def _alloc_state(alloc: Allocation) -> Iterator[str]:
    told = f": {alloc.client_description}" if alloc.client_description else ""
    where = alloc.node_name or alloc.node_id[:8]
    if alloc.is_server_terminal:
        why = f": {alloc.desired_description}" if alloc.desired_description else ""
        yield f"It is to {alloc.desired_status.value}{why}."
    match alloc.client_status:
        case ClientStatus.PENDING:
            yield f"It is placed on {where}, and its client has not started it yet{told}."
        case ClientStatus.UNKNOWN:
            yield f"Its client is cut off: nobody knows how it is{told}."
        case status:
            yield f"It is {status.value}{told}."
    for name, task in sorted(alloc.task_states.items()):
        if task.failed and task.events:
            last = task.events[-1]
            yield f"Task {name} failed: {last.display_message or last.message or last.type}."


def _alloc_story(state: State, alloc: Allocation, now_ns: int) -> Iterator[str]:
    """What it waits for, what it replaced, what replaced it."""
    follow_up = state.evaluations.row(alloc.followup_eval_id) if alloc.followup_eval_id else None
    if follow_up is not None and follow_up.is_open and follow_up.wait_until_ns > now_ns and not alloc.next_allocation:
        why = _WAITS_FOR.get(follow_up.triggered_by, follow_up.triggered_by)
        yield f"Its replacement waits until {_when(follow_up.wait_until_ns)} ({why})."
    if alloc.next_allocation:
        yield f"Allocation {alloc.next_allocation[:8]} replaced it."
    if alloc.preempted_by_allocation:
        yield f"It made room for allocation {alloc.preempted_by_allocation[:8]} of a higher priority."
    if alloc.previous_allocation:
        yield f"It replaced allocation {alloc.previous_allocation[:8]}."
    if alloc.preempted_allocations:
        yield f"{_counted(len(alloc.preempted_allocations), 'allocation')} made room for it."
    if alloc.is_canary:
        yield "It is a canary: it becomes an ordinary one when its deployment is promoted."
    health = alloc.deployment_status.healthy if alloc.deployment_status is not None else None
    if alloc.deployment_id and not alloc.is_terminal and health is None:
        yield f"Deployment {alloc.deployment_id[:8]} waits for its health."
    elif health is False:
        yield "Its deployment counts it as unhealthy."


def _alloc_place(alloc: Allocation, candidates: tuple[Candidate, ...], metric: AllocMetric | None) -> Iterator[str]:
    if metric is None:
        return
    where = alloc.node_name or alloc.node_id[:8]
    mine = next((one for one in candidates if one.node_id == alloc.node_id), None)
    if mine is not None:
        place = candidates.index(mine) + 1
        rank = "the best" if place == 1 else f"number {place}"
        yield f"Node {where} scored {mine.score:.3f}, {rank} of {metric.nodes_evaluated} looked at."
        if place == 1 and any(one.score > mine.score for one in candidates):
            yield "The other nodes are shown as they were before any of its plan was placed."
    else:
        yield f"Node {where} was chosen of {metric.nodes_evaluated} looked at."
    yield from failure_words(metric) if metric.nodes_evaluated else ()


# ---------------------------------------------------------------------- helping


def _when(ns: int) -> str:
    """A moment for people: nobody waits for nanoseconds."""
    return format_time(-(-ns // NS) * NS)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _nodes(count: int) -> str:
    return f"{_counted(count, 'node')} {'is' if count == 1 else 'are'}"
