"""Letting jobs in: defaults filled in, everything that is wrong named at once, and what may not change checked."""

from __future__ import annotations

from typing import Final

from msgspec import structs

from fedsched.drivers.content_checks import CONTENT
from fedsched.model.errors import BadRequest, NotFound
from fedsched.model.job import Job
from fedsched.model.job_defaults import canonicalise, with_implied_constraints
from fedsched.model.job_problems import problems
from fedsched.model.job_warnings import warnings
from fedsched.model.problem import InvalidJob
from fedsched.state.store import State

ANY_NAMESPACE: Final = "*"


def admitted(state: State, job: Job, *, namespace: str, region: str, now_ns: int, lacking: str = "") -> Job:
    """The job as it will be stored; `InvalidJob` with every problem, or another refusal.

    `lacking` says what would have to be done so that some server takes jobs of this type; empty if one does.
    """
    if namespace and namespace != ANY_NAMESPACE and job.namespace in ("", "default"):
        job = structs.replace(job, namespace=namespace)
    if job.dispatched or job.payload:
        raise BadRequest(f"job {job.id!r} says that it was dispatched", hint="leave Dispatched and Payload out")
    job = with_implied_constraints(canonicalise(job, region=region))
    found = problems(job, texts=CONTENT, own_types=() if lacking else (job.type,))
    if found:
        raise InvalidJob(found, hint=lacking if any(one.path == "Type" for one in found) else "")
    _check_places(state, job)
    _check_unchanged(state, job)
    return structs.replace(job, submit_time_ns=now_ns)


def with_counts_of(job: Job, current: Job | None) -> Job:
    """The job with the counts that its groups have now."""
    if current is None or current.stop:
        return job
    counts = {group.name: group.count for group in current.task_groups}
    groups = tuple(structs.replace(group, count=counts.get(group.name, group.count)) for group in job.task_groups)
    return structs.replace(job, task_groups=groups)


def with_resources_of(job: Job, current: Job | None) -> Job:
    """The job with the resources that its tasks have now."""
    if current is None or current.stop:
        return job
    known = {(group.name, task.name): task.resources for group in current.task_groups for task in group.tasks}
    groups = tuple(
        structs.replace(
            group,
            tasks=tuple(
                structs.replace(task, resources=known.get((group.name, task.name), task.resources))
                for task in group.tasks
            ),
        )
        for group in job.task_groups
    )
    return structs.replace(job, task_groups=groups)


def _check_places(state: State, job: Job) -> None:
    if state.places.namespaces.get(job.namespace) is None:
        raise NotFound(f"namespace {job.namespace!r} does not exist", hint="`default` always does")
    if state.places.node_pools.get(job.node_pool) is None:
        pools = ", ".join(row.name for row in list(state.places.node_pools.scan())[:10])
        raise BadRequest(f"node pool {job.node_pool!r} does not exist", hint=f"there are {pools}")


def _check_unchanged(state: State, job: Job) -> None:
    """Type, periodic-ness and parameterized-ness stay what they were when a job was first registered."""
    current = state.jobs.get(job.namespace, job.id)
    if current is None:
        return
    if current.type != job.type:
        raise BadRequest(
            f"job {job.id!r} is a {current.type} job and cannot become a {job.type} job",
            hint="give the new one another id, or purge the old one",
        )
    for is_one, was_one, word in (
        (job.is_periodic, current.is_periodic, "periodic"),
        (job.parameterized_job is not None, current.parameterized_job is not None, "parameterized"),
    ):
        if is_one != was_one:
            change = "become" if is_one else "stop being"
            raise BadRequest(
                f"job {job.id!r} cannot {change} {word}", hint="give the new one another id, or purge the old one"
            )


def warnings_of(job: Job) -> tuple[str, ...]:
    """What is unwise about a job as it was submitted."""
    return tuple(one.text for one in warnings(job))
