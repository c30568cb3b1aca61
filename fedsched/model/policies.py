"""The policies of a group: restart, reschedule, update, migrate, disconnect, ephemeral disk.

The class defaults are those of a service job; `job_defaults` knows what the other types get.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fedsched.model.record import InDiff, MaybeSeconds, Record, Seconds, UpdateClass

MINUTE = 60.0
HOUR = 3600.0
DAY = 86400.0


class RestartMode(StrEnum):
    FAIL = "fail"
    DELAY = "delay"


class RestartPolicy(Record):
    """How often a client restarts a task on the spot before giving up."""

    attempts: int = 2
    interval_s: Seconds = 30 * MINUTE
    delay_s: Seconds = 15.0
    mode: Annotated[str, "`fail` gives up for good, `delay` until the interval ends."] = "fail"
    render_templates: Annotated[bool, UpdateClass.DESTRUCTIVE] = False


class DelayFunction(StrEnum):
    CONSTANT = "constant"
    EXPONENTIAL = "exponential"
    FIBONACCI = "fibonacci"


class ReschedulePolicy(Record):
    """How often servers replace a failed allocation by one elsewhere."""

    attempts: int = 0
    interval_s: Seconds = 0.0
    delay_s: Seconds = 30.0
    delay_function: str = "exponential"
    max_delay_s: Seconds = HOUR
    unlimited: bool = True


class HealthCheck(StrEnum):
    CHECKS = "checks"
    TASK_STATES = "task_states"
    MANUAL = "manual"


class UpdateStrategy(Record):
    """How one job version replaces another."""

    stagger_s: Annotated[Seconds, InDiff.NEVER, "Legacy, kept."] = 30.0
    max_parallel: Annotated[int, "How many at a time; 0 is all, without a deployment."] = 1
    health_check: str = "checks"
    min_healthy_time_s: Seconds = 10.0
    healthy_deadline_s: Seconds = 5 * MINUTE
    progress_deadline_s: Annotated[Seconds, "0 fails the deployment at the first unhealthy allocation."] = 10 * MINUTE
    auto_revert: bool = False
    auto_promote: bool = False
    canary: int = 0


NO_UPDATE = UpdateStrategy(
    stagger_s=0.0,
    max_parallel=0,
    health_check="",
    min_healthy_time_s=0.0,
    healthy_deadline_s=0.0,
    progress_deadline_s=0.0,
)
"""All zero: what a job whose type knows no updates shows."""


class MigrateStrategy(Record):
    """How allocations leave a draining node."""

    max_parallel: int = 1
    health_check: str = "checks"
    min_healthy_time_s: Seconds = 10.0
    healthy_deadline_s: Seconds = 5 * MINUTE


class ReconcileOption(StrEnum):
    BEST_SCORE = "best_score"
    KEEP_ORIGINAL = "keep_original"
    KEEP_REPLACEMENT = "keep_replacement"
    LONGEST_RUNNING = "longest_running"


class DisconnectStrategy(Record):
    """What happens to allocations whose client is cut off."""

    lost_after_s: Annotated[Seconds, "How long they stay unknown before they count as lost."] = 0.0
    stop_on_client_after_s: Annotated[MaybeSeconds, "After how long alone the client stops them itself."] = None
    replace: Annotated[bool | None, "False: never a second copy while cut off."] = None
    reconcile: Annotated[str, "Which copy stays when the client is back."] = ""


class EphemeralDisk(Record):
    """The scratch space that all tasks of an allocation share."""

    sticky: Annotated[bool, UpdateClass.DESTRUCTIVE] = False
    size_mb: Annotated[int, UpdateClass.DESTRUCTIVE] = 300
    migrate: Annotated[bool, UpdateClass.DESTRUCTIVE] = False
