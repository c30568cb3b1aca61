"""What can be wrong with one task of a group."""

from __future__ import annotations

from collections.abc import Iterator

from fedsched.model.constraint_problems import placement_problems
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, JobType
from fedsched.model.policy_problems import restart_problems
from fedsched.model.problem import Problem
from fedsched.model.task import LifecycleHook, Task

RESERVED_NAME = "alloc"
"""A task's directory lies beside the shared one of that name."""

MIN_CPU_MHZ = 1
MIN_MEMORY_MB = 10

Found = Iterator[Problem]


def task_problems(task: Task, group: TaskGroup, job: Job, path: str) -> Found:
    """Give what is wrong with one task."""
    yield from _naming(task, path)
    if not task.driver:
        yield Problem(f"{path}.Driver", "Missing task driver")
    if task.kill_timeout_s < 0:
        yield Problem(f"{path}.KillTimeout", "KillTimeout must be a positive value")
    elif job.type == JobType.SERVICE and group.update and 0 < group.update.progress_deadline_s < task.kill_timeout_s:
        yield Problem(f"{path}.KillTimeout", "KillTimeout must not be longer than the group's progress deadline")
    if task.shutdown_delay_s < 0:
        yield Problem(f"{path}.ShutdownDelay", "ShutdownDelay must be a positive value")
    yield from _wrapped(f"{path}.Resources", _wrapped(f"{path}.Resources", _resources(task, path)))
    yield from _wrapped(f"{path}.LogConfig", _logs(task, group, path))
    if task.restart_policy is not None and task.restart_policy != group.restart_policy:
        yield from restart_problems(task.restart_policy, f"{path}.RestartPolicy")
    if task.lifecycle is not None and task.lifecycle.hook not in set(LifecycleHook):
        yield Problem(f"{path}.Lifecycle.Hook", f"invalid hook: {task.lifecycle.hook}")
    yield from placement_problems(f"{path}.", task.constraints, task.affinities, may_be_distinct=False)
    yield from _volume_mounts(task, group, path)


def _naming(task: Task, path: str) -> Found:
    if not task.name:
        yield Problem(f"{path}.Name", "Missing task name")
    elif "/" in task.name or "\\" in task.name:
        yield Problem(f"{path}.Name", "Task name cannot include slashes")
    elif "\0" in task.name:
        yield Problem(f"{path}.Name", "Task name cannot include null characters")
    elif task.name == RESERVED_NAME:
        yield Problem(f"{path}.Name", f"Task name cannot be {RESERVED_NAME!r}: that directory is the shared one")


def _resources(task: Task, path: str) -> Found:
    wanted = task.resources
    if wanted.cores > 0 and wanted.cpu > 0:
        yield Problem(f"{path}.Resources", "Task can only ask for 'cpu' or 'cores' resource, not both.")
    if wanted.cores < 0:
        yield Problem(f"{path}.Resources.Cores", f"minimum cores value is 0; got {wanted.cores}")
    if wanted.cores <= 0 and wanted.cpu < MIN_CPU_MHZ:
        yield Problem(f"{path}.Resources.CPU", f"minimum CPU value is {MIN_CPU_MHZ}; got {wanted.cpu}")
    if wanted.memory_mb < MIN_MEMORY_MB:
        yield Problem(
            f"{path}.Resources.MemoryMB", f"minimum MemoryMB value is {MIN_MEMORY_MB}; got {wanted.memory_mb}"
        )
    if wanted.memory_max_mb not in (-1, 0) and wanted.memory_max_mb < wanted.memory_mb:
        yield Problem(
            f"{path}.Resources.MemoryMaxMB",
            f"MemoryMaxMB value ({wanted.memory_max_mb}) should be larger than MemoryMB value ({wanted.memory_mb})",
        )
    if not 0 <= wanted.secrets_mb <= wanted.memory_mb:
        yield Problem(
            f"{path}.Resources.SecretsMB",
            f"SecretsMB value ({wanted.secrets_mb}) must be between 0 and MemoryMB value ({wanted.memory_mb})",
        )


def _logs(task: Task, group: TaskGroup, path: str) -> Found:
    logs = task.log_config
    if logs.disabled:
        return
    if logs.max_files < 1:
        yield Problem(f"{path}.LogConfig.MaxFiles", f"minimum number of files is 1; got {logs.max_files}")
    if logs.max_file_size_mb < 1:
        yield Problem(f"{path}.LogConfig.MaxFileSizeMB", f"minimum file size is 1MB; got {logs.max_file_size_mb}")
    used = logs.max_files * logs.max_file_size_mb
    if used >= group.ephemeral_disk.size_mb > 0:
        yield Problem(
            f"{path}.LogConfig",
            f"log storage ({used} MB) must be less than requested disk capacity ({group.ephemeral_disk.size_mb} MB)",
        )


def _volume_mounts(task: Task, group: TaskGroup, path: str) -> Found:
    for i, mount in enumerate(task.volume_mounts):
        if not mount.volume:
            yield Problem(f"{path}.VolumeMounts[{i}].Volume", f"Volume Mount {i} has no volume")
        elif mount.volume not in group.volumes:
            yield Problem(
                f"{path}.VolumeMounts[{i}].Volume", f"Volume Mount ({i}) references undefined volume {mount.volume}"
            )


def _wrapped(path: str, found: Found) -> Found:
    """Nomad reports the problems of a nested block as a list without a heading; its readers expect that shape."""
    causes = tuple(found)
    if causes:
        yield Problem(path, "", causes)
