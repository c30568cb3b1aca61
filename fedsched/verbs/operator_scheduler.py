"""`operator scheduler ...` and `system ...`: how the region schedules, and cleaning up at once."""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from fedsched.model.record import to_api
from fedsched.model.scheduler_config import SchedulerAlgorithm, SchedulerConfiguration
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.operator import (
    SCHEDULER_GET_CONFIG,
    SCHEDULER_SET_CONFIG,
    SYSTEM_GC,
    SYSTEM_RECONCILE,
    SchedulerConfigSetRequest,
)
from fedsched.verbs.flags import BadUsage, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, Regions, Verbs
from fedsched.verbs.view import pairs

VERBS = Verbs()

SETTINGS: Final = (
    ("Scheduler Algorithm", "scheduler_algorithm"),
    ("Memory Oversubscription", "memory_oversubscription_enabled"),
    ("Reject Job Registration", "reject_job_registration"),
    ("Pause Eval Broker", "pause_eval_broker"),
)
PREEMPTION: Final = (
    ("Preemption System Scheduler", "preempt-system-scheduler", "system_scheduler_enabled"),
    ("Preemption Service Scheduler", "preempt-service-scheduler", "service_scheduler_enabled"),
    ("Preemption Batch Scheduler", "preempt-batch-scheduler", "batch_scheduler_enabled"),
    ("Preemption SysBatch Scheduler", "preempt-sysbatch-scheduler", "sys_batch_scheduler_enabled"),
)
SWITCHES: Final = (
    ("memory-oversubscription", "memory_oversubscription_enabled", "let tasks use more memory than they reserve"),
    ("reject-job-registration", "reject_job_registration", "take no jobs but from management tokens"),
    ("pause-eval-broker", "pause_eval_broker", "hand out no evaluations"),
)


@VERBS.verb(
    "operator scheduler get-config", "show how the region schedules", flags=(JSON, TEMPLATE), regions=Regions.EACH
)
def get_config(terminal: Terminal, given: Given) -> int:
    config = terminal.client.call(SCHEDULER_GET_CONFIG, Empty()).scheduler_config
    if terminal.formatted(given, lambda: to_api(config)):
        return OK
    terminal.write(pairs(_rows(config)))
    return OK


@VERBS.verb(
    "operator scheduler set-config",
    "change how the region schedules",
    doc="Changes the settings that are named and leaves the others as they are.",
    flags=(
        Flag("check-index", "only if the settings are still at this modify index", int, value="index"),
        Flag("scheduler-algorithm", "binpack, spread or balanced", value="name"),
        *(Flag(flag, doc, bool) for flag, _, doc in SWITCHES),
        *(Flag(flag, f"let {flag.split('-')[1]} jobs evict lower priorities", bool) for _, flag, _ in PREEMPTION),
        JSON,
    ),
)
def set_config(terminal: Terminal, given: Given) -> int:
    config = terminal.client.call(SCHEDULER_GET_CONFIG, Empty()).scheduler_config
    request = SchedulerConfigSetRequest(
        scheduler_config=_changed(config, given),
        check_and_set=True,
        check_index=config.modify_index if given["check-index"] is None else given["check-index"],
    )
    reply = terminal.client.call(SCHEDULER_SET_CONFIG, request)
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say("Scheduler configuration updated!")
    return OK


@VERBS.verb("system gc", "forget at once whatever nobody needs any more", flags=(JSON,))
def collect(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(SYSTEM_GC, Empty())
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say("Cleaned up")
    return OK


@VERBS.verb("system reconcile summaries", "count the summaries of all jobs anew", flags=(JSON,))
def reconcile(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(SYSTEM_RECONCILE, Empty())
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say("Summaries are right")
    return OK


def _rows(config: SchedulerConfiguration) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = [(title, getattr(config, name)) for title, name in SETTINGS]
    rows[0] = (SETTINGS[0][0], config.scheduler_algorithm.value)
    rows += [(title, getattr(config.preemption_config, name)) for title, _, name in PREEMPTION]
    return [*rows, ("Modify Index", config.modify_index)]


def _changed(config: SchedulerConfiguration, given: Given) -> SchedulerConfiguration:
    wanted: dict[str, Any] = {name: given[flag] for flag, name, _ in SWITCHES if given.was_said(flag)}
    if given.was_said("scheduler-algorithm"):
        names = [one.value for one in SchedulerAlgorithm]
        if given["scheduler-algorithm"] not in names:
            raise BadUsage(
                f"-scheduler-algorithm {given['scheduler-algorithm']!r} is not known",
                hint=f"there are {', '.join(names)}",
            )
        wanted["scheduler_algorithm"] = SchedulerAlgorithm(given["scheduler-algorithm"])
    evicting = {name: given[flag] for _, flag, name in PREEMPTION if given.was_said(flag)}
    if not wanted and not evicting:
        raise BadUsage("nothing to change was named", hint="-help lists the settings")
    return structs.replace(config, **wanted, preemption_config=structs.replace(config.preemption_config, **evicting))
