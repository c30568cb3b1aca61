"""The scheduler's settings as the region keeps them, with what a job's node pool says otherwise."""

from __future__ import annotations

from msgspec.structs import replace

from fedsched.codec import STORED_LIMITS, from_builtins, from_bytes
from fedsched.model.job import Job
from fedsched.model.node_pool import NodePool
from fedsched.model.scheduler_config import SchedulerConfiguration
from fedsched.state.store import State
from fedsched.state.tables.meta import SCHEDULER_CONFIG


def config_of(state: State, job: Job | None) -> SchedulerConfiguration:
    """What holds for this job."""
    stored = state.meta.config(SCHEDULER_CONFIG)
    config = from_builtins(stored, SchedulerConfiguration) if stored else SchedulerConfiguration()
    row = state.places.node_pools.get(job.node_pool) if job is not None else None
    own = (
        from_bytes(row.body, NodePool, STORED_LIMITS).scheduler_configuration if row is not None and row.body else None
    )
    if own is None:
        return config
    if own.scheduler_algorithm is not None:
        config = replace(config, scheduler_algorithm=own.scheduler_algorithm)
    if own.memory_oversubscription_enabled is not None:
        config = replace(config, memory_oversubscription_enabled=own.memory_oversubscription_enabled)
    return config
