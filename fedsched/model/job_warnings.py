"""What is unwise about a job, or will surprise: told to whoever submits it, and no reason to refuse.

Give it the job as it was submitted, with its type's policies filled in but before the server's own defaults: a service
that names Consul can then still be told from one that names nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, JobType
from fedsched.model.job_defaults import CONSUL
from fedsched.model.network_problems import port_labels
from fedsched.model.problem import Problem
from fedsched.model.task import Task
from fedsched.model.volume_problems import TYPES

NETWORK_MODES = frozenset({"", "host", "bridge", "none"})
OLD_NETWORK = (
    "task network resources have been deprecated as of Nomad 0.12.0. "
    "Please configure networking via group network block."
)

Found = Iterator[Problem]


def warnings(job: Job) -> list[Problem]:
    """Give everything worth a warning, in the order of the job's parts."""
    return list(_job(job))


def warning_text(found: Iterable[Problem]) -> str:
    """Give the warnings as one text, in the form of Nomad's API; empty when there are none."""
    texts = [problem.text.rstrip("\n") for problem in found]
    if not texts:
        return ""
    count = "1 warning" if len(texts) == 1 else f"{len(texts)} warnings"
    return f"{count}:\n\n" + "\n".join(f"* {text}" for text in texts)


def _job(job: Job) -> Found:
    if job.periodic is not None and job.periodic.spec:
        yield Problem("Periodic.Spec", "cron is deprecated and may be removed in a future release. Use crons instead")
    canaries = [group.update for group in job.task_groups if group.update is not None and group.update.canary > 0]
    if any(update.auto_promote for update in canaries) and not all(update.auto_promote for update in canaries):
        yield Problem("TaskGroups", "auto_promote must be true for all groups to enable automatic promotion")
    for i, group in enumerate(job.task_groups):
        path = f"TaskGroups[{i}]"
        causes = tuple(_group(group, job, path))
        if causes:
            yield Problem(path, f'Group "{group.name}" has warnings', causes)
        if _lacks_delay(group):
            text = "defines services, but neither the group nor any of its tasks have shutdown_delay set"
            yield Problem(path, f'group "{group.name}" {text}', hint="without it, callers may still be sent to it")


def _lacks_delay(group: TaskGroup) -> bool:
    """Whether callers may be routed to tasks that have been told to stop."""
    has_services = bool(group.services) or any(task.services for task in group.tasks)
    has_delay = bool(group.shutdown_delay_s) or any(task.shutdown_delay_s for task in group.tasks)
    return has_services and not has_delay


def _group(group: TaskGroup, job: Job, path: str) -> Found:
    update = group.update
    if update is not None and job.type == JobType.SERVICE and 1 < group.count < update.max_parallel:
        text = (
            "Update max parallel count is greater than task group count "
            f"({update.max_parallel} > {group.count}). "
            "A destructive change would result in the simultaneous replacement of all allocations."
        )
        yield Problem(f"{path}.Update.MaxParallel", text)
    yield from _legacy_disconnect(group, path)
    yield from _networks(group, path)
    for name, volume in sorted(group.volumes.items()):
        if volume.type not in TYPES:
            text = f'volume "{name}" has the unknown type "{volume.type}": mounting it will fail'
            yield Problem(f"{path}.Volumes[{name!r}].Type", text)
    yield from _consul(group, path)
    for j, task in enumerate(group.tasks):
        causes = tuple(_task(task, f"{path}.Tasks[{j}]"))
        if causes:
            yield Problem(f"{path}.Tasks[{j}]", f'Task "{task.name}" has warnings', causes)


def _legacy_disconnect(group: TaskGroup, path: str) -> Found:
    said = {
        "StopAfterClientDisconnect": ("stop_after_client_disconnect", group.stop_after_client_disconnect_s is not None),
        "MaxClientDisconnect": ("max_client_disconnect", group.max_client_disconnect_s is not None),
        "PreventRescheduleOnLost": ("prevent_reschedule_on_lost", group.prevent_reschedule_on_lost),
    }
    for name, (key, is_said) in said.items():
        if is_said:
            now = (
                "is ignored beside a disconnect block" if group.disconnect else "is read as part of a disconnect block"
            )
            yield Problem(f"{path}.{name}", f"{key} is an old name and {now}", hint="write a disconnect block")


def _networks(group: TaskGroup, path: str) -> Found:
    for i, network in enumerate(group.networks):
        if network.mode not in NETWORK_MODES and not network.mode.startswith("cni/"):
            yield Problem(
                f"{path}.Networks[{i}].Mode", f'network mode "{network.mode}" is not known: tasks will not start'
            )
    if len(group.networks) > 1:
        yield Problem(f"{path}.Networks[1]", "only the first network block of a group is used for placement")
    labels = port_labels(group)
    for i, service in enumerate(group.services):
        label = service.port_label
        is_in_mesh = service.connect is not None and label.isdecimal()  # a port within the group, for its sidecar
        if label and label not in labels and "${" not in label and not is_in_mesh:
            text = f'service "{service.name}" names port "{label}", which no network of the group has'
            yield Problem(f"{path}.Services[{i}].PortLabel", text)


def _consul(group: TaskGroup, path: str) -> Found:
    places = [(f"{path}.Services[{i}]", service) for i, service in enumerate(group.services)]
    for j, task in enumerate(group.tasks):
        places += [(f"{path}.Tasks[{j}].Services[{i}]", service) for i, service in enumerate(task.services)]
    for where, service in places:
        if service.provider == CONSUL:
            yield Problem(
                f"{where}.Provider", f'service "{service.name}" asks for Consul; the built-in registry serves it'
            )


def _task(task: Task, path: str) -> Found:
    if task.resources.networks:
        yield Problem(f"{path}.Resources.Networks", OLD_NETWORK)
    if task.resources.disk_mb:
        yield Problem(f"{path}.Resources.DiskMB", "resources.disk has no effect", hint="use the group's ephemeral_disk")
