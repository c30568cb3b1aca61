"""A job in numbers: its groups' allocations by state, and its children's."""

from __future__ import annotations

from fedsched.model.job import Job
from fedsched.model.scaling import JobScaleStatus, TaskGroupScaleStatus
from fedsched.model.summary import JobChildrenSummary, JobSummary, TaskGroupSummary
from fedsched.state.store import State


def summary_of(state: State, job: Job) -> JobSummary:
    """The summary of a job, with all groups that it has or had allocations of."""
    counts = state.allocations.group_counts(job.namespace, job.id, job.create_index)
    children = state.jobs.child_counts(job.namespace, job.id)
    groups = {group.name: TaskGroupSummary() for group in job.task_groups}
    for name, one in counts.items():
        groups[name] = TaskGroupSummary(
            queued=one.queued,
            complete=one.complete,
            failed=one.failed,
            running=one.running,
            starting=one.starting,
            lost=one.lost,
            unknown=one.unknown,
        )
    return JobSummary(
        job_id=job.id,
        namespace=job.namespace,
        summary=groups,
        children=JobChildrenSummary(pending=children.pending, running=children.running, dead=children.dead),
        create_index=job.create_index,
        modify_index=max(job.modify_index, children.modify_index),
    )


def scale_status_of(state: State, job: Job) -> JobScaleStatus:
    """How far wish and reality are apart, group by group."""
    counts = state.allocations.group_counts(job.namespace, job.id, job.create_index)
    latest = state.deployments.latest(job.namespace, job.id, job.create_index)
    progress = latest.progress() if latest else {}
    events = {row.group: row.events() for row in state.jobs.scaling_events(job.namespace, job.id)}
    groups = {}
    for group in job.task_groups:
        one, far = counts.get(group.name), progress.get(group.name)
        groups[group.name] = TaskGroupScaleStatus(
            desired=0 if job.stop else group.count,
            placed=one.live if one else 0,
            running=one.running if one else 0,
            healthy=far.healthy if far else 0,
            unhealthy=far.unhealthy if far else 0,
            events=events.get(group.name, ()),
        )
    return JobScaleStatus(
        job_id=job.id,
        namespace=job.namespace,
        job_create_index=job.create_index,
        job_modify_index=job.job_modify_index,
        job_stopped=job.stop,
        task_groups=groups,
    )
