"""A task: one process (or container, or VM) that a group runs."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from fedsched.model.constraint import Affinity, Constraint
from fedsched.model.identity import WorkloadIdentity
from fedsched.model.policies import RestartPolicy
from fedsched.model.record import (
    EMPTY,
    FreeForm,
    InDiff,
    InJson,
    MaybeSeconds,
    Named,
    Record,
    Seconds,
    StringMap,
    UpdateClass,
    field,
)
from fedsched.model.resources import Resources, TaskLifecycle
from fedsched.model.scaling import ScalingPolicy
from fedsched.model.service import Service
from fedsched.model.volume import VolumeMount

__all__ = ["Task", "Template", "TaskArtifact", "LogConfig", "TaskLifecycle", "LifecycleHook"]

DESTRUCTIVE = UpdateClass.DESTRUCTIVE


class LifecycleHook(StrEnum):
    PRESTART = "prestart"
    POSTSTART = "poststart"
    POSTSTOP = "poststop"


class LogConfig(Record):
    """How much of a task's output is kept."""

    max_files: int = 10
    max_file_size_mb: int = 10
    disabled: Annotated[bool, DESTRUCTIVE] = False
    enabled: Annotated[bool | None, InJson.INPUT_ONLY, "Legacy opposite of disabled."] = None


class TaskArtifact(Record):
    """Something fetched into the task's directory before it starts."""

    getter_source: Annotated[str, DESTRUCTIVE] = ""
    getter_options: Annotated[StringMap, DESTRUCTIVE] = EMPTY
    getter_headers: Annotated[StringMap, DESTRUCTIVE] = EMPTY
    getter_mode: Annotated[str, DESTRUCTIVE, "`any`, `file` or `dir`."] = "any"
    getter_insecure: Annotated[bool, DESTRUCTIVE] = False
    relative_dest: Annotated[str, DESTRUCTIVE] = "local/"
    chown: Annotated[bool, DESTRUCTIVE] = False


class ChangeScript(Record):
    """A script run inside the task when a template changed."""

    command: Annotated[str, DESTRUCTIVE] = ""
    args: Annotated[tuple[str, ...], DESTRUCTIVE] = ()
    timeout_s: Annotated[Seconds, DESTRUCTIVE] = 5.0
    fail_on_error: Annotated[bool, DESTRUCTIVE] = False
    run_on_first_render: Annotated[bool, DESTRUCTIVE] = False


class WaitConfig(Record):
    """How long a template waits for its data to settle."""

    min_s: Annotated[MaybeSeconds, DESTRUCTIVE] = None
    max_s: Annotated[MaybeSeconds, DESTRUCTIVE] = None


class Template(Record):
    """A file rendered from variables, services and the environment."""

    source_path: Annotated[str, DESTRUCTIVE] = ""
    dest_path: Annotated[str, DESTRUCTIVE] = ""
    embedded_tmpl: Annotated[str, DESTRUCTIVE] = ""
    change_mode: Annotated[str, DESTRUCTIVE, "`restart`, `signal`, `script` or `noop`."] = "restart"
    change_signal: Annotated[str, DESTRUCTIVE] = ""
    change_script: Annotated[ChangeScript | None, DESTRUCTIVE] = None
    once: Annotated[bool, DESTRUCTIVE] = False
    splay_s: Annotated[Seconds, DESTRUCTIVE, "Random wait before acting on a change."] = 5.0
    perms: Annotated[str, DESTRUCTIVE] = "0644"
    uid: Annotated[int | None, DESTRUCTIVE] = None
    gid: Annotated[int | None, DESTRUCTIVE] = None
    left_delim: Annotated[str, DESTRUCTIVE] = "{{"
    right_delim: Annotated[str, DESTRUCTIVE] = "}}"
    envvars: Annotated[bool, DESTRUCTIVE] = False
    vault_grace_s: Annotated[Seconds, DESTRUCTIVE, "Legacy, kept."] = 0.0
    wait: Annotated[WaitConfig | None, DESTRUCTIVE] = None
    err_missing_key: Annotated[bool, DESTRUCTIVE] = False


class DispatchPayload(Record):
    """Where a dispatched job's payload is written."""

    file: str = ""


class Action(Record):
    """A command that may be run inside the task on demand."""

    name: str = ""
    command: str = ""
    args: tuple[str, ...] = ()


class Secret(Record):
    """Secrets fetched from a provider before the task starts."""

    name: Annotated[str, DESTRUCTIVE] = ""
    provider: Annotated[str, DESTRUCTIVE] = ""
    path: Annotated[str, DESTRUCTIVE] = ""
    config: Annotated[FreeForm, DESTRUCTIVE] = EMPTY
    env: Annotated[StringMap, DESTRUCTIVE] = EMPTY


class Task(Record):
    """One process (or container, or VM) that a task group runs.

    `vault`, `consul`, `csi_plugin_config` and `schedule` are kept as plain data, served back and not acted upon.
    """

    diff_key: ClassVar[str] = "name"

    name: str
    driver: Annotated[str, DESTRUCTIVE] = ""
    user: Annotated[str, DESTRUCTIVE] = ""
    config: Annotated[FreeForm, DESTRUCTIVE, "The driver's own settings."] = EMPTY
    env: Annotated[StringMap, DESTRUCTIVE] = EMPTY
    services: tuple[Service, ...] = ()
    vault: Annotated[FreeForm | None, DESTRUCTIVE] = None
    secrets: Annotated[tuple[Secret, ...], DESTRUCTIVE] = ()
    consul: Annotated[FreeForm | None, DESTRUCTIVE] = None
    templates: Annotated[tuple[Template, ...], DESTRUCTIVE] = ()
    constraints: tuple[Constraint, ...] = ()
    affinities: tuple[Affinity, ...] = ()
    resources: Annotated[Resources, DESTRUCTIVE] = Resources()
    restart_policy: Annotated[RestartPolicy | None, InDiff.CHANGES_ONLY, "The group's, the task's own on top."] = None
    dispatch_payload: DispatchPayload | None = None
    lifecycle: Annotated[TaskLifecycle | None, "None for a main task."] = None
    meta: Annotated[StringMap, DESTRUCTIVE] = EMPTY
    kill_timeout_s: Annotated[Seconds, "How long to wait between the polite signal and the final one."] = 5.0
    log_config: LogConfig = LogConfig()
    artifacts: Annotated[tuple[TaskArtifact, ...], DESTRUCTIVE, Named("Artifact")] = ()
    leader: Annotated[bool, "When it ends, the others are stopped."] = False
    shutdown_delay_s: Annotated[Seconds, "How long to wait between leaving the registry and the signal."] = 0.0
    volume_mounts: Annotated[tuple[VolumeMount, ...], DESTRUCTIVE] = ()
    scaling_policies: tuple[ScalingPolicy, ...] = ()
    kill_signal: str = ""
    kind: str = ""
    csi_plugin_config: FreeForm | None = field(default=None, name="CSIPluginConfig")
    identity: Annotated[WorkloadIdentity | None, DESTRUCTIVE] = None
    identities: Annotated[tuple[WorkloadIdentity, ...], DESTRUCTIVE, Named("Identity")] = ()
    actions: tuple[Action, ...] = ()
    schedule: FreeForm | None = None
