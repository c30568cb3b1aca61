"""What can be wrong with the volumes that a group asks for and with where its tasks mount them."""

from __future__ import annotations

from collections.abc import Iterator

from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, JobType
from fedsched.model.problem import Problem, one_of
from fedsched.model.task import Task
from fedsched.model.volume import VolumeRequest

HOST = "host"
CSI = "csi"
EXTERNAL = "external"
TYPES = frozenset({HOST, CSI, EXTERNAL})
READERS_ONLY = "single-node-reader-only"
HOST_ACCESS = frozenset(
    {"", READERS_ONLY, "single-node-writer", "single-node-single-writer", "single-node-multi-writer"}
)
ATTACHMENTS = frozenset({"", "file-system", "block-device"})
PROPAGATIONS = frozenset({"", "private", "host-to-task", "bidirectional"})
SELINUX_LABELS = frozenset({"", "z", "Z"})

Found = Iterator[Problem]


def volume_problems(group: TaskGroup, job: Job, path: str) -> Found:
    """Check the volumes of a group."""
    for name, volume in sorted(group.volumes.items()):
        where = f"{path}.Volumes[{name!r}]"
        causes = tuple(_volume(volume, group, job, where))
        if causes:
            yield Problem(where, f"Task group volume validation for {name} failed", causes)


def _volume(volume: VolumeRequest, group: TaskGroup, job: Job, path: str) -> Found:
    if not volume.source:
        yield Problem(f"{path}.Source", "volume has an empty source", hint="name the volume on the node")
    if volume.type in (CSI, EXTERNAL):
        yield Problem(f"{path}.Type", f"volume type {volume.type} is not served here", hint='use type = "host"')
    if volume.type == HOST and volume.access_mode not in HOST_ACCESS:
        hint = one_of(volume.access_mode, HOST_ACCESS - {""})
        yield Problem(f"{path}.AccessMode", f'volume has an unknown access mode "{volume.access_mode}"', hint=hint)
    if volume.attachment_mode not in ATTACHMENTS:
        hint = one_of(volume.attachment_mode, ATTACHMENTS - {""})
        text = f'volume has an unknown attachment mode "{volume.attachment_mode}"'
        yield Problem(f"{path}.AttachmentMode", text, hint=hint)
    if volume.access_mode == READERS_ONLY and not volume.read_only:
        yield Problem(f"{path}.ReadOnly", f"{READERS_ONLY} volumes must be read-only", hint="say read_only = true")
    if volume.per_alloc:
        yield from _per_alloc(volume, group, job, f"{path}.PerAlloc")


def _per_alloc(volume: VolumeRequest, group: TaskGroup, job: Job, path: str) -> Found:
    """One volume per allocation needs allocations with stable numbers."""
    if job.type in (JobType.SYSTEM, JobType.SYSBATCH):
        yield Problem(path, f"volume cannot be per_alloc for {job.type} jobs")
    if group.update is not None and group.update.canary > 0:
        yield Problem(path, "volume cannot be per_alloc when canaries are in use")
    if volume.sticky:
        yield Problem(path, "volume cannot be both per_alloc and sticky")


def mount_problems(task: Task, group: TaskGroup, path: str) -> Found:
    """Check where a task mounts its group's volumes."""
    for i, mount in enumerate(task.volume_mounts):
        where = f"{path}.VolumeMounts[{i}]"
        if not mount.volume:
            yield Problem(f"{where}.Volume", f"Volume Mount {i} has no volume")
        elif mount.volume not in group.volumes or group.volumes[mount.volume].type not in TYPES:
            text = f"Volume Mount ({i}) references undefined volume {mount.volume}"
            yield Problem(f"{where}.Volume", text, hint=_known(mount.volume, group))
        if not mount.destination:
            yield Problem(f"{where}.Destination", f"Volume Mount ({i}) has no destination")
        if mount.propagation_mode not in PROPAGATIONS:
            hint = one_of(mount.propagation_mode, PROPAGATIONS - {""})
            text = f'Volume Mount ({i}) has an invalid propagation mode: "{mount.propagation_mode}"'
            yield Problem(f"{where}.PropagationMode", text, hint=hint)
        if mount.selinux_label not in SELINUX_LABELS:
            text = f'Volume Mount ({i}) has an invalid SELinux label: "{mount.selinux_label}"'
            yield Problem(f"{where}.SELinuxLabel", text, hint='"z" shares it, "Z" keeps it to the task')


def _known(name: str, group: TaskGroup) -> str:
    if name in group.volumes:
        return f'a volume of type "{group.volumes[name].type}" cannot be mounted'
    return one_of(name, group.volumes) if group.volumes else f'give the group a volume "{name}" block'
