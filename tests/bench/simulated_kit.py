"""Jobs for simulated nodes to run, and virtual time to run a story in."""

from __future__ import annotations

from typing import Any

import trio
from msgspec import structs
from trio.testing import MockClock

from fedsched.model.job import Job
from fedsched.model.policies import MigrateStrategy, ReschedulePolicy, RestartPolicy, UpdateStrategy
from tests.builders import a_group, a_job, a_task

NEVER_AGAIN = RestartPolicy(attempts=0, mode="fail")
AT_ONCE = ReschedulePolicy(unlimited=True, delay_s=0.05, max_delay_s=0.05, delay_function="constant", attempts=0)
QUICK = UpdateStrategy(min_healthy_time_s=0.05, healthy_deadline_s=20.0, progress_deadline_s=30.0, max_parallel=4)


def a_batch(job_id: str, count: int = 1, *, reschedule: ReschedulePolicy | None = None, **knobs: Any) -> Job:
    task = a_task(config=knobs, restart_policy=NEVER_AGAIN, cpu=50, memory_mb=20)
    policy = reschedule or ReschedulePolicy(attempts=0, unlimited=False, interval_s=3600.0, delay_s=5.0)
    group = a_group(count=count, tasks=[task], restart_policy=NEVER_AGAIN, update=None, migrate=None)
    return a_job(job_id, region="", type="batch", groups=[structs.replace(group, reschedule_policy=policy)])


def a_service(job_id: str = "web", count: int = 2, *, env: str = "", **fields: Any) -> Job:
    task = a_task(config={}, env={"V": env} if env else {}, cpu=50, memory_mb=20, restart_policy=NEVER_AGAIN)
    fields.setdefault("update", QUICK)
    fields.setdefault("migrate", MigrateStrategy(min_healthy_time_s=0.05, max_parallel=4))
    group = a_group(count=count, tasks=[task], reschedule_policy=AT_ONCE, **fields)
    return a_job(job_id, region="", groups=[group])


def by_hand(story: Any) -> None:
    trio.run(story, clock=MockClock(autojump_threshold=0))
