"""What simulated tasks do: a script made from their job, once for a whole fleet.

Tasks of `mock_driver` follow their own settings: `run_for`, `exit_code`, `exit_signal`, `start_error`,
`start_error_recoverable`, `start_block_for`, `kill_after`. Tasks of other drivers, and mock tasks that do not say how
long, run for ever in a service or system job and end well after a while in a batch job. Restarts on the spot are part
of the script: a task that is restarted still runs, and when the attempts are used up its allocation has failed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from fedsched.codec import from_bytes
from fedsched.model.errors import FedschedError
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.policies import HealthCheck, RestartPolicy
from fedsched.model.task import Task
from fedsched.model.units import parse_duration
from fedsched.rpc.methods.node_frames import WatchOrigin
from fedsched.rpc.node_watch import FRAME_LIMITS, JOB_LIMITS

BATCH_S: Final = 30.0
"""How long batch tasks run that do not say it."""
KEPT_MAX: Final = 4_096
"""Job versions and origins remembered by a fleet."""
MOCK: Final = "mock_driver"
ENDING: Final = ("batch", "sysbatch")

VersionKey = tuple[str, str, int, int]
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Script:
    """What becomes of each allocation of one group, in seconds."""

    starts_after_s: float = 0.0
    fails_at_start: bool = False
    runs_for_s: float = math.inf
    """From its start, restarts included."""
    fails: bool = False
    stops_after_s: float = 0.0
    """How long it goes on after it was asked to stop."""
    healthy_after_s: float = math.inf
    """From its start; infinite if nobody asks for its health."""

    @property
    def is_watched(self) -> bool:
        """Whether its health is reported."""
        return self.healthy_after_s < math.inf


FOR_EVER: Final = Script()


class Scripts:
    """The scripts of a fleet. What many nodes are sent alike is decoded once."""

    def __init__(self, batch_s: float = BATCH_S) -> None:
        self._batch_s = batch_s
        self._seen: dict[bytes, None] = {}
        self._jobs: dict[VersionKey, Job] = {}
        self._origins: dict[bytes, tuple[int, Script]] = {}
        self.decoded = 0

    def learn(self, data: bytes) -> None:
        """A version of a job, as it was sent."""
        if data not in self._seen:
            job = from_bytes(data, Job, JOB_LIMITS)
            self.decoded += 1
            _keep(self._seen, data, None, KEPT_MAX)
            _keep(self._jobs, (job.namespace, job.id, job.create_index, job.version), job, KEPT_MAX)

    def origin(self, data: bytes) -> tuple[int, Script]:
        """The number of an origin, and what its allocations do."""
        known = self._origins.get(data)
        if known is not None:
            return known
        one = from_bytes(data, WatchOrigin, FRAME_LIMITS)
        self.decoded += 1
        job = self._jobs.get((one.namespace, one.job_id, one.job_create_index, one.job_version))
        if job is None:
            return one.ref, FOR_EVER  # it is gone, and what is left of it will be stopped
        found = (one.ref, script_of(job, one.group, bool(one.deployment_id), self._batch_s))
        _keep(self._origins, data, found, KEPT_MAX)
        return found


def _keep(kept: dict[K, V], key: K, value: V, limit: int) -> None:
    """Remember something, and forget the oldest beyond the limit."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > limit:
        del kept[next(iter(kept))]


def script_of(job: Job, group_name: str, is_deployed: bool, batch_s: float = BATCH_S) -> Script:
    """What allocations of a group do. Settings that a driver could not read make them fail at their start."""
    group = job.group(group_name)
    mains = [task for task in group.tasks if task.lifecycle is None] if group is not None else []
    if group is None or not mains:
        return FOR_EVER
    healthy_after_s = _healthy_after(job, group, is_deployed)
    try:
        ends = [_end(task, task.restart_policy or group.restart_policy, job.type, batch_s) for task in mains]
        blocked_s = max(_seconds(_knobs(task), "start_block_for", 0.0) for task in mains)
        kill_s = max(_seconds(_knobs(task), "kill_after", 0.0) for task in mains)
    except (FedschedError, ValueError, TypeError):
        return Script(fails_at_start=True, healthy_after_s=healthy_after_s)
    if any(fails and at_s <= 0 for at_s, fails in ends):
        return Script(starts_after_s=blocked_s, fails_at_start=True, healthy_after_s=healthy_after_s)
    leads = [end for task, end in zip(mains, ends, strict=True) if task.leader]
    over_s = max(at_s for at_s, _ in leads or ends)
    failed_s = min((at_s for at_s, fails in ends if fails), default=math.inf)
    return Script(
        starts_after_s=blocked_s,
        runs_for_s=min(over_s, failed_s),
        fails=failed_s <= over_s and failed_s < math.inf,
        stops_after_s=kill_s,
        healthy_after_s=healthy_after_s,
    )


def _end(task: Task, policy: RestartPolicy | None, job_type: str, batch_s: float) -> tuple[float, bool]:
    """When a task is over for good, and whether it has failed then."""
    knobs = _knobs(task)
    has_error = bool(knobs.get("start_error"))
    is_bad = has_error or bool(int(knobs.get("exit_code") or 0)) or bool(int(knobs.get("exit_signal") or 0))
    default_s = 0.0 if is_bad else batch_s if job_type in ENDING else math.inf
    runs_s = 0.0 if has_error else _seconds(knobs, "run_for", default_s)
    if has_error and not knobs.get("start_error_recoverable"):
        return 0.0, True
    is_restarted = is_bad or job_type not in ENDING
    if not is_restarted or math.isinf(runs_s):
        return runs_s, is_bad
    if policy is None:
        return runs_s, is_bad
    if policy.mode == "delay":
        return math.inf, False
    again_s = policy.attempts * (runs_s + policy.delay_s)
    if again_s > policy.interval_s:
        return math.inf, False  # the first attempts are forgotten before the last is used up
    return again_s + runs_s, True


def _healthy_after(job: Job, group: TaskGroup, is_deployed: bool) -> float:
    """A deployment waits for health; so does a drain that moves a service."""
    strategy = group.update if is_deployed else group.migrate if job.type == "service" else None
    if strategy is None or strategy.health_check == HealthCheck.MANUAL:
        return math.inf
    return strategy.min_healthy_time_s


def _knobs(task: Task) -> Mapping[str, Any]:
    return task.config if task.driver == MOCK else {}


def _seconds(knobs: Mapping[str, Any], name: str, default: float) -> float:
    value = knobs.get(name)
    if value is None or value == "":
        return default
    return max(0.0, parse_duration(value) if isinstance(value, str) else float(value))
