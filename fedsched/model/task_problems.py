"""What can be wrong with one task of a group."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fedsched.model.constraint_problems import placement_problems
from fedsched.model.group import TaskGroup
from fedsched.model.identity import DEFAULT_IDENTITY
from fedsched.model.job import Job, JobType
from fedsched.model.policy_problems import restart_problems
from fedsched.model.problem import Problem, one_of
from fedsched.model.service_problems import task_service_problems
from fedsched.model.task import LifecycleHook, Task
from fedsched.model.task_file_problems import task_file_problems
from fedsched.model.text_checks import GRAMMAR, TextChecks
from fedsched.model.volume_problems import mount_problems

RESERVED_NAME = "alloc"
"""A task's directory lies beside the shared one of that name."""

MIN_CPU_MHZ = 1
MIN_MEMORY_MB = 10
NUMA_AFFINITIES = frozenset({"none", "prefer", "require"})
IDENTITY_MODES = frozenset({"", "noop", "restart", "signal"})
SECRET_NAME = re.compile(r"[A-Za-z0-9_]{1,128}")
ACTION_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")

Found = Iterator[Problem]


def task_problems(task: Task, group: TaskGroup, job: Job, path: str, texts: TextChecks = GRAMMAR) -> Found:
    """Give what is wrong with one task."""
    yield from _naming(task, path)
    if not task.driver:
        yield Problem(f"{path}.Driver", "Missing task driver", hint='such as driver = "exec"')
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
        hint = one_of(task.lifecycle.hook, LifecycleHook)
        yield Problem(f"{path}.Lifecycle.Hook", f"invalid hook: {task.lifecycle.hook}", hint=hint)
    if job.type == JobType.SYSTEM and task.affinities:
        yield Problem(f"{path}.Affinities", "System jobs may not have an affinity block")
    yield from placement_problems(f"{path}.", task.constraints, task.affinities, may_be_distinct=False, texts=texts)
    yield from _devices(task, path, texts)
    yield from mount_problems(task, group, path)
    yield from task_file_problems(task, path, texts)
    for wrong in texts.config(task.driver, task.config):
        yield Problem(f"{path}.Config", wrong)
    yield from task_service_problems(task, group, path)
    yield from _extras(task, path)


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


def _devices(task: Task, path: str, texts: TextChecks) -> Found:
    for i, device in enumerate(task.resources.devices):
        where = f"{path}.Resources.Devices[{i}]"
        parts = device.name.split("/")
        if not 1 <= len(parts) <= 3 or not all(parts):
            text = f'device name "{device.name}" is no type, vendor/type or vendor/type/model'
            yield Problem(f"{where}.Name", text, hint='such as "gpu" or "nvidia/gpu"')
        if device.count < 1:
            yield Problem(f"{where}.Count", f"device count must be at least 1; got {device.count}")
        yield from placement_problems(
            f"{where}.", device.constraints, device.affinities, may_be_distinct=False, texts=texts
        )
    numa = task.resources.numa
    if numa is not None and numa.affinity not in NUMA_AFFINITIES:
        hint = one_of(numa.affinity, NUMA_AFFINITIES)
        yield Problem(f"{path}.Resources.NUMA.Affinity", f'numa affinity "{numa.affinity}" is not known', hint=hint)


def _extras(task: Task, path: str) -> Found:
    yield from _actions(task, path)
    yield from _secrets(task, path)
    identities = [("Identity", task.identity)] if task.identity is not None else []
    identities += [(f"Identities[{i}]", identity) for i, identity in enumerate(task.identities)]
    seen: set[str] = set()
    for where, identity in identities:
        name = identity.name or DEFAULT_IDENTITY
        if name in seen:
            yield Problem(f"{path}.{where}", f"multiple identities with the same name: {name}")
        seen.add(name)
        if identity.change_mode not in IDENTITY_MODES:
            text = f'invalid change_mode "{identity.change_mode}" of identity {name}'
            yield Problem(f"{path}.{where}.ChangeMode", text, hint=one_of(identity.change_mode, IDENTITY_MODES - {""}))
        if identity.change_mode == "signal" and not identity.change_signal:
            yield Problem(f"{path}.{where}.ChangeSignal", f"identity {name} names no change_signal")
        if identity.ttl_s < 0:
            yield Problem(f"{path}.{where}.TTL", f"ttl of identity {name} must not be negative")
    for i, policy in enumerate(task.scaling_policies):
        if policy.min < 0 or policy.max < policy.min:
            text = f"Scaling: bounds {policy.min} to {policy.max} are no range from 0 up"
            yield Problem(f"{path}.ScalingPolicies[{i}]", text)


def _actions(task: Task, path: str) -> Found:
    names: set[str] = set()
    for i, action in enumerate(task.actions):
        where = f"{path}.Actions[{i}]"
        if not ACTION_NAME.fullmatch(action.name):
            text = f"action name {action.name!r} must be letters, digits, - and _, at most 128"
            yield Problem(f"{where}.Name", text)
        if action.name in names:
            yield Problem(f"{where}.Name", f'action "{action.name}" is defined twice')
        names.add(action.name)
        if not action.command:
            yield Problem(f"{where}.Command", f'action "{action.name}" has no command')


def _secrets(task: Task, path: str) -> Found:
    names: set[str] = set()
    for i, secret in enumerate(task.secrets):
        where = f"{path}.Secrets[{i}]"
        if not SECRET_NAME.fullmatch(secret.name):
            yield Problem(f"{where}.Name", f"secret name {secret.name!r} must be letters, digits and _")
        if secret.name in names:
            yield Problem(f"{where}.Name", f'secret "{secret.name}" is defined twice')
        names.add(secret.name)
        if not secret.provider:
            yield Problem(f"{where}.Provider", f'secret "{secret.name}" names no provider')
        if not secret.path:
            yield Problem(f"{where}.Path", f'secret "{secret.name}" has no path')


def _wrapped(path: str, found: Found) -> Found:
    """Nomad reports the problems of a nested block as a list without a heading; its readers expect that shape."""
    causes = tuple(found)
    if causes:
        yield Problem(path, "", causes)
