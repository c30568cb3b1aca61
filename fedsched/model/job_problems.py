"""Whether a canonical job makes sense on its own: no state is asked, so the same answer everywhere.

Each rule is a small generator over one record; to add one, write it and name it where its kind is listed. What needs
the state (does the namespace exist?) belongs to admission.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator

from fedsched.model import ids
from fedsched.model.constraint_problems import placement_problems
from fedsched.model.group import TaskGroup
from fedsched.model.job import MAX_PRIORITY, Job, JobType, PeriodicConfig
from fedsched.model.network_problems import network_problems
from fedsched.model.policy_problems import (
    disconnect_problems,
    migrate_problems,
    reschedule_problems,
    restart_problems,
    update_problems,
)
from fedsched.model.problem import Problem, one_of
from fedsched.model.record import Record, fields_of
from fedsched.model.service_problems import service_problems
from fedsched.model.task_problems import task_problems
from fedsched.model.text_checks import GRAMMAR, TextChecks
from fedsched.model.units import fits_64_bits
from fedsched.model.volume_problems import volume_problems

MAX_COUNT = 50_000
"""All groups of a job together; Nomad's default for job_max_count."""

MAX_TEXT = 1000
"""Characters of a description."""

Found = Iterator[Problem]


def problems(
    job: Job,
    *,
    max_priority: int = MAX_PRIORITY,
    max_count: int = MAX_COUNT,
    texts: TextChecks = GRAMMAR,
    own_types: Container[str] = (),
) -> list[Problem]:
    """Give everything that is wrong with a job, in the order of its parts.

    `texts` says who judges patterns, versions and cron lines: those who will run them, where they are at hand.
    `own_types` has the types that are not built in and yet served; it is asked only about such a one.
    """
    found = [problem for rule in _JOB_RULES for problem in rule(job, texts)]
    if any(problem.path == "Type" for problem in found) and job.type in own_types:
        found = [problem for problem in found if problem.path != "Type"]
    if not 1 <= job.priority <= max_priority:
        hint = f"{job.priority} is outside"
        found.append(Problem("Priority", f"job priority must be between [1, {max_priority}]", hint=hint))
    total = sum(max(group.count, 0) for group in job.task_groups)
    if total > max_count:
        found.append(
            Problem("TaskGroups", f"total count was greater than configured job_max_count: {total} > {max_count}")
        )
    return found


def _identity(job: Job, _: TextChecks) -> Found:
    if not job.region and job.multiregion is None:
        yield Problem("Region", "Missing job region")
    if not job.id:
        yield Problem("ID", "Missing job ID")
    elif " " in job.id:
        yield Problem("ID", "Job ID contains a space", hint=f'"{job.id.replace(" ", "-")}" would do')
    elif "\0" in job.id:
        yield Problem("ID", "Job ID contains a null character")
    if not job.name:
        yield Problem("Name", "Missing job name")
    elif "\0" in job.name:
        yield Problem("Name", "Job Name contains a null character")
    if not job.namespace:
        yield Problem("Namespace", "Job must be in a namespace")
    elif not ids.is_namespace_name(job.namespace):
        yield Problem("Namespace", f"invalid namespace {job.namespace!r}: only letters, digits and dashes, at most 128")
    if not ids.is_node_pool_name(job.node_pool):
        yield Problem("NodePool", f"invalid node pool {job.node_pool!r}: only letters, digits, - and _, at most 128")


def _kind(job: Job, _: TextChecks) -> Found:
    if job.type not in set(JobType):
        yield Problem("Type", f'Invalid job type: "{job.type}"', hint=one_of(job.type, JobType))
    one_shot = job.type in (JobType.BATCH, JobType.SYSBATCH)
    if job.periodic is not None and not one_shot:
        yield Problem("Periodic", "Periodic can only be used with batch or sysbatch jobs")
    if job.parameterized_job is not None and not one_shot:
        yield Problem("ParameterizedJob", "Parameterized job can only be used with batch or sysbatch jobs")
    if job.type == JobType.SYSTEM and job.affinities:
        yield Problem("Affinities", "System jobs may not have an affinity block")
    if job.type == JobType.SYSTEM and job.spreads:
        yield Problem("Spreads", "System jobs may not have a spread block")


def _datacenters(job: Job, _: TextChecks) -> Found:
    if not job.datacenters and job.multiregion is None:
        yield Problem("Datacenters", "Missing job datacenters")
    if any(not name for name in job.datacenters):
        yield Problem("Datacenters", "job datacenter must be non-empty string")


def _periodic(job: Job, texts: TextChecks) -> Found:
    periodic = job.periodic
    if periodic is None or not periodic.enabled:
        return
    if periodic.spec and periodic.specs:
        yield Problem("Periodic", "Only cron or crons may be used")
    if not periodic.spec and not periodic.specs:
        yield Problem("Periodic.Specs", "Must specify a spec", hint='such as crons = ["@daily"]')
    if periodic.spec_type != "cron":
        yield Problem("Periodic.SpecType", f'Unknown periodic specification type "{periodic.spec_type}"')
    elif not (periodic.spec and periodic.specs):
        yield from _cron_lines(periodic, texts)
    wrong = texts.time_zone(periodic.time_zone)
    if wrong:
        yield Problem("Periodic.TimeZone", f"Invalid time zone: {wrong}", hint='a name such as "Europe/Berlin"')


def _cron_lines(periodic: PeriodicConfig, texts: TextChecks) -> Found:
    lines = [("Periodic.Spec", periodic.spec)] if periodic.spec else []
    lines += [(f"Periodic.Specs[{i}]", line) for i, line in enumerate(periodic.specs)]
    causes = tuple(
        Problem(path, f'Invalid cron spec "{line}": {wrong}', hint="minute, hour, day, month, day of week")
        for path, line in lines
        if (wrong := texts.cron(line))
    )
    if causes:
        yield Problem("Periodic", "", causes)


def _parameterized(job: Job, _: TextChecks) -> Found:
    config = job.parameterized_job
    if config is None:
        return
    if config.payload not in ("optional", "required", "forbidden"):
        hint = one_of(config.payload, ("optional", "required", "forbidden"))
        yield Problem("ParameterizedJob.Payload", f'Unknown payload requirement: "{config.payload}"', hint=hint)
    both = sorted(set(config.meta_required) & set(config.meta_optional))
    if both:
        yield Problem("ParameterizedJob", f"Required and optional meta keys should be disjoint: {', '.join(both)}")


def _placement(job: Job, texts: TextChecks) -> Found:
    return placement_problems("", job.constraints, job.affinities, job.spreads, texts=texts)


def _durations(job: Job, _: TextChecks) -> Found:
    """A duration that JSON's 64 bits cannot carry could be stored, but never shown again."""
    for path in _unspeakable(job, ""):
        yield Problem(path, "duration is out of range: the longest is about 292 years")


def _unspeakable(record: Record, path: str) -> Iterator[str]:
    for info in fields_of(type(record)):
        value = getattr(record, info.name)
        where = f"{path}.{info.api_name}" if path else info.api_name
        if isinstance(value, float) and info.unit is not None and not fits_64_bits(value):
            yield where
        elif isinstance(value, Record):
            yield from _unspeakable(value, where)
        elif isinstance(value, (tuple, dict)):
            pairs = enumerate(value) if isinstance(value, tuple) else value.items()
            for key, item in pairs:
                if isinstance(item, Record):
                    yield from _unspeakable(item, f"{where}[{key!r}]")


def _texts(job: Job, _: TextChecks) -> Found:
    if job.ui is not None and len(job.ui.description) > MAX_TEXT:
        yield Problem("UI.Description", f"UI description must be under {MAX_TEXT} characters")
    if job.payload and not job.dispatched:
        yield Problem("Payload", "Job can't be submitted with a payload, only dispatched")


def _multiregion(job: Job, _: TextChecks) -> Found:
    if job.multiregion is None:
        return
    names = [region.name for region in job.multiregion.regions]
    if not names:
        yield Problem("Multiregion.Regions", "multiregion needs at least one region")
    for name, count in Counter(names).items():
        if count > 1:
            yield Problem("Multiregion.Regions", f'multiregion names region "{name}" {count} times')
        if not name:
            yield Problem("Multiregion.Regions", "multiregion has a region without a name")
    strategy = job.multiregion.strategy
    if strategy is not None and strategy.on_failure not in ("", "fail_all", "fail_local"):
        yield Problem("Multiregion.Strategy.OnFailure", f'unknown on_failure "{strategy.on_failure}"')


def _foreign(job: Job, _: TextChecks) -> Found:
    """Blocks that only a foreign or closed system can serve are refused rather than ignored."""
    for i, group in enumerate(job.task_groups):
        if group.consul is not None:
            yield Problem(f"TaskGroups[{i}].Consul", f"Group {group.name} asks for Consul, which is not served here")
        for j, task in enumerate(group.tasks):
            path = f"TaskGroups[{i}].Tasks[{j}]"
            if task.vault is not None:
                cluster = task.vault.get("Cluster") or "default"
                yield Problem(f"{path}.Vault", f'Vault "{cluster}" not enabled but used in the job')
            if task.consul is not None:
                yield Problem(f"{path}.Consul", f"Task {task.name} asks for Consul, which is not served here")
            if task.csi_plugin_config is not None:
                yield Problem(f"{path}.CSIPluginConfig", f"Task {task.name} is a CSI plugin, which is not served here")
            if task.schedule is not None:
                yield Problem(f"{path}.Schedule", f"Task {task.name} has a schedule, which is not served here")


def _groups(job: Job, texts: TextChecks) -> Found:
    if not job.task_groups:
        yield Problem("TaskGroups", "Missing job task groups", hint="a job runs what its groups say")
    first: dict[str, int] = {}
    for number, group in enumerate(job.task_groups, 1):
        path = f"TaskGroups[{number - 1}]"
        if not group.name:
            yield Problem(f"{path}.Name", f"Job task group {number} missing name")
        elif group.name in first:
            yield Problem(
                f"{path}.Name", f"Job task group {number} redefines '{group.name}' from group {first[group.name]}"
            )
        else:
            first[group.name] = number
        if job.type in (JobType.SYSTEM, JobType.SYSBATCH) and group.count > 1:
            yield Problem(
                f"{path}.Count",
                f"Job task group {group.name} has count {group.count}. Count cannot exceed 1 with {job.type} scheduler",
            )
    for index, group in enumerate(job.task_groups):
        causes = tuple(group_problems(group, job, f"TaskGroups[{index}]", texts))
        if causes:
            yield Problem(f"TaskGroups[{index}]", f"Task group {group.name} validation failed", causes)


def group_problems(group: TaskGroup, job: Job, path: str, texts: TextChecks = GRAMMAR) -> Found:
    """Give what is wrong with one group."""
    if not group.name:
        yield Problem(f"{path}.Name", "Missing task group name")
    elif "\0" in group.name:
        yield Problem(f"{path}.Name", "Task group name contains null character")
    if group.count < 0:
        yield Problem(f"{path}.Count", "Task group count can't be negative", hint=f"got {group.count}; 0 runs none")
    if job.type == JobType.SYSTEM and group.affinities:
        yield Problem(f"{path}.Affinities", "System jobs may not have an affinity block")
    if job.type == JobType.SYSTEM and group.spreads:
        yield Problem(f"{path}.Spreads", "System jobs may not have a spread block")
    yield from placement_problems(f"{path}.", group.constraints, group.affinities, group.spreads, texts=texts)
    yield from _policies(group, job, path)
    if group.ephemeral_disk.size_mb < 10:
        yield Problem(f"{path}.EphemeralDisk.SizeMB", f"minimum disk value is 10; got {group.ephemeral_disk.size_mb}")
    if group.shutdown_delay_s is not None and group.shutdown_delay_s < 0:
        yield Problem(f"{path}.ShutdownDelay", "shutdown_delay must not be negative")
    yield from _max_run_duration(group, job, path)
    yield from _scaling(group, job, path)
    yield from network_problems(group, path)
    yield from volume_problems(group, job, path)
    yield from _tasks(group, job, path, texts)
    yield from service_problems(group, path)


def _policies(group: TaskGroup, job: Job, path: str) -> Found:
    if group.restart_policy is not None:
        yield from restart_problems(group.restart_policy, f"{path}.RestartPolicy")
    if group.reschedule_policy is not None:
        if job.type in (JobType.SYSTEM, JobType.SYSBATCH):
            yield Problem(
                f"{path}.ReschedulePolicy", f"{job.type.capitalize()} jobs should not have a reschedule policy"
            )
        else:
            yield from reschedule_problems(group.reschedule_policy, f"{path}.ReschedulePolicy")
    if group.update is not None:
        if job.type in (JobType.BATCH, JobType.SYSBATCH):
            yield Problem(f"{path}.Update", f'Job type "{job.type}" does not allow update block')
        else:
            yield from update_problems(group.update, f"{path}.Update")
    if group.migrate is not None:
        if job.type in set(JobType) - {JobType.SERVICE}:
            yield Problem(f"{path}.Migrate", f'Job type "{job.type}" does not allow migrate block')
        else:
            yield from migrate_problems(group.migrate, f"{path}.Migrate")
    if group.disconnect is not None:
        yield from disconnect_problems(group.disconnect, job.type, f"{path}.Disconnect")


def _max_run_duration(group: TaskGroup, job: Job, path: str) -> Found:
    if group.max_run_duration_s is None:
        return
    if group.max_run_duration_s <= 0:
        yield Problem(f"{path}.MaxRunDuration", "max_run_duration must be greater than zero")
    if job.type not in (JobType.BATCH, JobType.SYSBATCH):
        yield Problem(f"{path}.MaxRunDuration", "max_run_duration can only be used with batch or sysbatch jobs")


def _scaling(group: TaskGroup, job: Job, path: str) -> Found:
    policy = group.scaling
    if policy is None:
        return
    if job.type in (JobType.SYSTEM, JobType.SYSBATCH):
        yield Problem(f"{path}.Scaling", f"Task groups with job type {job.type} do not support scaling blocks")
    if policy.min < 0:
        yield Problem(f"{path}.Scaling.Min", "Scaling: minimum count must be non-negative")
    if policy.max < policy.min:
        yield Problem(f"{path}.Scaling.Max", "Scaling: maximum count must not be less than minimum count")
    elif group.count < policy.min:
        yield Problem(f"{path}.Count", "Scaling: task group count must not be less than minimum count")
    elif group.count > policy.max:
        yield Problem(f"{path}.Count", "Scaling: task group count must not be greater than maximum count")


def _tasks(group: TaskGroup, job: Job, path: str, texts: TextChecks) -> Found:
    if not group.tasks:
        yield Problem(f"{path}.Tasks", "Missing tasks for task group")
        return
    first: dict[str, int] = {}
    for number, task in enumerate(group.tasks, 1):
        if not task.name:
            yield Problem(f"{path}.Tasks[{number - 1}].Name", f"Task {number} missing name")
        elif task.name in first:
            text = f"Task {number} redefines '{task.name}' from task {first[task.name]}"
            yield Problem(f"{path}.Tasks[{number - 1}].Name", text)
        else:
            first[task.name] = number
    if sum(task.leader for task in group.tasks) > 1:
        yield Problem(f"{path}.Tasks", "Only one task may be marked as leader")
    if all(task.lifecycle is not None for task in group.tasks):
        yield Problem(f"{path}.Tasks", "Task group must have at least one main task: all tasks have a lifecycle block")
    for index, task in enumerate(group.tasks):
        where = f"{path}.Tasks[{index}]"
        causes = tuple(task_problems(task, group, job, where, texts))
        if causes:
            yield Problem(where, f"Task {task.name} validation failed", causes)


_JOB_RULES: Iterable[Callable[[Job, TextChecks], Found]] = (
    _identity,
    _kind,
    _datacenters,
    _placement,
    _multiregion,
    _groups,
    _foreign,
    _periodic,
    _parameterized,
    _durations,
    _texts,
)
