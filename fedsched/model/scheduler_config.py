"""Settings that a region keeps in its own state: how to schedule, how autopilot acts."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fedsched.model.record import DurationText, Index, Record


class SchedulerAlgorithm(StrEnum):
    BINPACK = "binpack"
    SPREAD = "spread"
    BALANCED = "balanced"


class PreemptionConfig(Record):
    """Which schedulers may evict lower priorities."""

    system_scheduler_enabled: bool = True
    sys_batch_scheduler_enabled: bool = False
    batch_scheduler_enabled: bool = False
    service_scheduler_enabled: bool = False


class SchedulerConfiguration(Record):
    """How a region schedules."""

    scheduler_algorithm: SchedulerAlgorithm = SchedulerAlgorithm.BINPACK
    preemption_config: PreemptionConfig = PreemptionConfig()
    memory_oversubscription_enabled: bool = False
    reject_job_registration: bool = False
    pause_eval_broker: bool = False
    node_limit_for_feasibility_checks: Annotated[int, "Kept for compatibility; every node is looked at."] = 100
    create_index: Index = 0
    modify_index: Index = 0


class AutopilotConfiguration(Record):
    """When autopilot calls a server healthy, and what it does about dead ones."""

    cleanup_dead_servers: bool = True
    last_contact_threshold_s: DurationText = 0.2
    max_trailing_logs: int = 250
    min_quorum: int = 0
    server_stabilization_time_s: DurationText = 10.0
    enable_redundancy_zones: bool = False
    disable_upgrade_migration: bool = False
    enable_custom_upgrades: bool = False
    create_index: Index = 0
    modify_index: Index = 0
