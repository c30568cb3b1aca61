"""When a periodic job is due: its cron lines and its time zone, put together."""

from __future__ import annotations

from datetime import tzinfo

from fedsched.model.cron import Cron, earliest_after, load_zone, parse
from fedsched.model.job import Job


def is_launched_by_time(job: Job) -> bool:
    """Whether it is periodic, switched on, not stopped, and no template for dispatches at the same time."""
    return job.periodic is not None and job.periodic.enabled and not job.stop and not job.is_parameterized


def next_launch(job: Job, after_ns: int) -> int | None:
    """When this job is due next after a moment, in Unix nanoseconds; None if it never is."""
    if not is_launched_by_time(job):
        return None
    return earliest_after(schedule_of(job), after_ns, zone_of(job))


def schedule_of(job: Job) -> tuple[Cron, ...]:
    """The job's cron lines; `BadCron` if one cannot be read."""
    periodic = job.periodic
    if periodic is None:
        return ()
    return tuple(parse(text) for text in (*periodic.specs, *((periodic.spec,) if periodic.spec else ())))


def zone_of(job: Job) -> tzinfo:
    return load_zone(job.periodic.time_zone if job.periodic is not None else "")
