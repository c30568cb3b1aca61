"""Service and batch jobs: the whole job, group by group, and its deployment."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from fedsched.model.alloc import ClientStatus
from fedsched.model.deployment import Deployment, DeploymentStatus
from fedsched.model.evaluation import Evaluation
from fedsched.model.job import Job, JobType
from fedsched.scheduler.pieces import Pieces, at_once
from fedsched.scheduler.reconcile.deployments import Deployments, Draft, standing
from fedsched.scheduler.reconcile.group import reconcile_group
from fedsched.scheduler.reconcile.held import FAILED, PENDING, RUN, RUNNING, Held, Mask, Roster, Taint, Taints, Where
from fedsched.scheduler.reconcile.scene import Scene, calm_mask
from fedsched.scheduler.reconcile.updates import CanStay, Comparer, JobAt
from fedsched.scheduler.reconcile.wanted import LOST, NOT_NEEDED, GroupWanted, Stop, Wanted

NOWHERE: Where = np.zeros(0, dtype=np.int64)


class Ground(NamedTuple):
    """What a reconciler decides from."""

    evaluation: Evaluation
    job: Job | None
    """None: purged, which is the same as stopped."""
    roster: Roster
    taints: Taints
    """A `Taint` per node slot."""
    deployment: Deployment | None
    """The job's latest, if its type has any."""
    now_ns: int
    new_id: Callable[[], str]
    can_stay: CanStay
    job_at: JobAt
    deployments: Deployments


def reconcile(ground: Ground) -> Wanted:
    """Compare a service or batch job with its allocations."""
    return at_once(reconcile_in_pieces(ground))


def reconcile_in_pieces(ground: Ground) -> Pieces[Wanted]:
    """The same with pauses, for jobs with thousands of allocations of which some need a closer look."""
    job, roster = ground.job, ground.roster
    wanted = Wanted()
    taint = roster.taint(ground.taints)
    wanted.gone = stopped_and_gone(roster, taint)
    now = standing(job, ground.deployment, ground.now_ns)
    wanted.deployment_updates += now.updates
    by_group = roster.by_group()
    if job is None or job.stop:
        for name, where in by_group.items():
            wanted.groups[name] = stop_all(roster, name, where, taint)
        return wanted
    draft = Draft(now, job, ground.evaluation, ground.new_id)
    scene = _scene(ground, job, taint, draft)
    are_done = True
    for group in job.task_groups:
        outcome = yield from reconcile_group(scene, group, by_group.pop(group.name, NOWHERE))
        wanted.groups[group.name] = outcome.wanted
        are_done = are_done and outcome.is_done
    for name, where in by_group.items():
        if not now.is_waiting:  # else a group that is not wanted any more stays until it is this region's turn
            wanted.groups[name] = stop_all(roster, name, where, taint)
    finish(wanted, draft, are_done, ground.now_ns)
    wanted.dropped_evaluations = list(dict.fromkeys(scene.dropped_evaluations))
    if _has_left_failures(ground, wanted):
        return (yield from _after_success(ground, wanted))
    return wanted


def _has_left_failures(ground: Ground, wanted: Wanted) -> bool:
    """Whether a deployment ends well here although something of it has failed after it was healthy."""
    if not any(update.status is DeploymentStatus.SUCCESSFUL for update in wanted.deployment_updates):
        return False
    rows = ground.roster.rows
    return bool(((rows["desired"] == RUN) & (rows["client_status"] == FAILED)).any())


def _after_success(ground: Ground, wanted: Wanted) -> Pieces[Wanted]:
    """Look again without the deployment: as long as it was active, it alone decided about what failed of it."""
    assert ground.deployment is not None
    over = replace(ground.deployment, status=DeploymentStatus.SUCCESSFUL)
    again = yield from reconcile_in_pieces(ground._replace(deployment=over))
    again.deployment_updates = wanted.deployment_updates + again.deployment_updates
    again.dropped_evaluations = list(dict.fromkeys(wanted.dropped_evaluations + again.dropped_evaluations))
    return again


def _scene(ground: Ground, job: Job, taint: Taints, draft: Draft) -> Scene:
    roster, version = ground.roster, (job.create_index, job.version)
    current = roster.with_version(version)
    is_batch = job.type == JobType.BATCH.value
    return Scene(
        job=job,
        evaluation=ground.evaluation,
        roster=roster,
        taint=taint,
        now_ns=ground.now_ns,
        new_id=ground.new_id,
        can_stay=ground.can_stay,
        job_at=ground.job_at,
        deployments=ground.deployments,
        draft=draft,
        comparer=Comparer(job, ground.job_at),
        is_batch=is_batch,
        current=current,
        older=roster.older_than(version),
        earlier=roster.of_earlier_job(job.create_index),
        ended=roster.client_terminal(),
        calm=calm_mask(roster, taint, current, is_batch=is_batch),
    )


def finish(wanted: Wanted, draft: Draft, are_done: bool, now_ns: int) -> None:
    """Write down what the groups made of the deployment."""
    wanted.deployment = draft.changed(now_ns)
    completion = draft.completion(are_done, now_ns)
    if completion is not None:
        wanted.deployment_updates.append(completion)


def stop_all(roster: Roster, name: str, where: Where, taint: Taints) -> GroupWanted:
    """Nothing of the group is wanted: what lives is stopped, and lost where its node is gone."""
    wanted = GroupWanted(name, None)
    rows = roster.rows
    live = where[(rows["desired"][where] == RUN) & ~roster.client_terminal()[where]]
    for held in roster.held(live):
        if Taint(int(taint[held.at])).is_gone:
            wanted.stops.append(Stop(held, LOST, ClientStatus.LOST))
        else:
            wanted.stops.append(Stop(held, NOT_NEEDED))
    wanted.tally.stop = len(live)
    return wanted


def stopped_and_gone(roster: Roster, taint: Taints) -> list[Held]:
    """Told to stop, still thought to be alive, on nodes from which no report will come."""
    rows = roster.rows
    client = rows["client_status"]
    gone: Mask = (rows["desired"] != RUN) & ((client == PENDING) | (client == RUNNING))
    gone &= (taint == Taint.MISSING) | (taint == Taint.DOWN)
    return roster.held(np.flatnonzero(gone))
