"""The hooks around allocations and tasks, in the order in which they run; undone in reverse.

A hook may rely on everything above it. What adds to a task's environment comes before what reads it.
"""

from __future__ import annotations

from typing import Final

from fedsched.client.hooks.artifacts import ArtifactsHook
from fedsched.client.hooks.checks import ChecksHook
from fedsched.client.hooks.dirs import AllocDirHook, TaskDirHook
from fedsched.client.hooks.disk import DiskHook
from fedsched.client.hooks.dynamic_user import DynamicUserHook
from fedsched.client.hooks.hook import AllocHook, TaskHook
from fedsched.client.hooks.migrate import DiskMigrationHook, UpstreamHook
from fedsched.client.hooks.network import NetworkHook
from fedsched.client.hooks.payload import PayloadHook
from fedsched.client.hooks.services import GroupServicesHook, TaskServicesHook
from fedsched.client.hooks.templates import TemplatesHook
from fedsched.client.hooks.validate import ValidateHook
from fedsched.client.hooks.volumes import VolumesHook

ALLOC_HOOKS: Final[tuple[type[AllocHook], ...]] = (
    AllocDirHook,
    UpstreamHook,
    DiskMigrationHook,
    DiskHook,
    NetworkHook,
    GroupServicesHook,
    ChecksHook,
)

TASK_HOOKS: Final[tuple[type[TaskHook], ...]] = (
    ValidateHook,
    DynamicUserHook,
    TaskDirHook,
    PayloadHook,
    VolumesHook,
    ArtifactsHook,
    TemplatesHook,
    TaskServicesHook,
)
