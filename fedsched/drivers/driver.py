"""What a driver is: it starts tasks, finds them again after an agent's restart, and tells how they ended.

A driver sees nothing of the client beside what is declared here. It is made once per agent; `run` is its nursery, and
everything it keeps in memory can be lost at any moment: what it needs to find a task again is in the `TaskHandle` that
the client stores.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, runtime_checkable

import trio

from fedsched.drivers.task_schema import TaskSchema
from fedsched.model.declare import Record
from fedsched.model.errors import FedschedError

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class DriverError(FedschedError):
    """A driver could not do what it was asked; `is_recoverable` says whether trying again may help."""

    code = "driver"

    def __init__(self, message: str, *, hint: str = "", is_recoverable: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.is_recoverable = is_recoverable


class TaskUnknown(DriverError):
    """No such task is known here: it was never started, or was destroyed."""

    code = "task_unknown"


class Health(StrEnum):
    UNDETECTED = "undetected"
    UNHEALTHY = "unhealthy"
    HEALTHY = "healthy"


@dataclass(frozen=True, slots=True)
class DriverFingerprint:
    """What a driver finds on this host. Attributes are full names, `driver.exec.cgroups`."""

    health: Health
    description: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


class FsIsolation(StrEnum):
    NONE = "none"
    CHROOT = "chroot"
    IMAGE = "image"


class NetIsolation(StrEnum):
    """Whose network a task can have."""

    HOST = "host"
    GROUP = "group"
    TASK = "task"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Capabilities:
    send_signals: bool = True
    exec: bool = True
    fs_isolation: FsIsolation = FsIsolation.NONE
    default_kill_signal: str = "SIGINT"
    """Empty: the driver knows better (an image's own stop signal)."""
    takes_host_env: bool = True
    """Tasks see the agent's own environment, less what is denied."""
    collects_logs: bool = True
    dynamic_workload_users: bool = False
    """A task that names no user gets one that exists for it alone."""
    net_isolation_modes: tuple[NetIsolation, ...] = (NetIsolation.HOST, NetIsolation.GROUP)


@dataclass(frozen=True, slots=True)
class TaskDirs:
    """Where a task's files are on this host."""

    alloc: Path
    """`<alloc_dir>/<alloc id>`."""
    shared: Path
    """`<alloc>/alloc`."""
    task: Path
    """`<alloc>/<task>`."""
    local: Path
    secrets: Path
    private: Path
    logs: Path
    """`<alloc>/alloc/logs`."""


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """What the task was given."""

    cpu_mhz: int = 0
    cores: tuple[int, ...] = ()
    memory_mb: int = 0
    memory_max_mb: int = 0
    """0: no more than `memory_mb`. Below 0: no hard limit."""
    total_mhz: int = 0
    """What the whole host has."""
    pids_max: int = 0


@dataclass(frozen=True, slots=True)
class LogLimits:
    max_files: int = 10
    max_file_bytes: int = 10 << 20
    is_disabled: bool = False


@dataclass(frozen=True, slots=True)
class Mount:
    """A path of the host at a place inside the task."""

    host_path: Path
    task_path: str
    is_read_only: bool = False


@dataclass(frozen=True, slots=True)
class TaskPort:
    label: str
    host_ip: str
    host_port: int
    to: int = 0
    """Inside the task's network; 0 is the same."""


@dataclass(frozen=True, slots=True)
class TaskConfig:
    """Everything a driver is told about a task it should start."""

    id: str
    """`<alloc id>/<task>/<short random>`: new for every start."""
    alloc_id: str
    namespace: str
    job_id: str
    group: str
    task: str
    node_id: str
    dirs: TaskDirs
    job_name: str = ""
    node_name: str = ""
    parent_job_id: str = ""
    config: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    """The task's own settings, interpolated and checked against the driver's schema."""
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    limits: TaskLimits = TaskLimits()
    logs: LogLimits = LogLimits()
    mounts: tuple[Mount, ...] = ()
    ports: tuple[TaskPort, ...] = ()
    network_namespace: Path | None = None
    """The group's own, which the task is to be started in; None: the host's."""
    network_files: tuple[Mount, ...] = ()
    """/etc/resolv.conf and the like, for tasks that see a file system of their own."""
    hostname: str = ""
    """What the group is called in its own network; empty: as the host."""


class TaskHandle(Record):
    """What finds a task again. Stored by the client as soon as the task was started."""

    driver: str
    task_id: str
    version: int = 1
    state: bytes = b""


@dataclass(frozen=True, slots=True)
class DriverNetwork:
    """Where a task is reached, if the driver gives it an address of its own."""

    ip: str = ""
    port_map: Mapping[str, int] = field(default_factory=dict)
    auto_advertise: bool = False


@dataclass(frozen=True, slots=True)
class Started:
    handle: TaskHandle
    network: DriverNetwork | None = None


class ExitResult(Record):
    """How a task ended."""

    exit_code: int = 0
    signal: int = 0
    oom_killed: bool = False
    error: str = ""
    finished_at_ns: int = 0

    @property
    def is_success(self) -> bool:
        return not (self.exit_code or self.signal or self.error)


class RunState(StrEnum):
    UNKNOWN = "unknown"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class TaskInspection:
    state: RunState
    started_at_ns: int = 0
    finished_at_ns: int = 0
    exit: ExitResult | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)


class ResourceUse(Record):
    """A task's use of its host at one moment; only what `measured` names means something."""

    timestamp_ns: int = 0
    memory_rss: int = 0
    memory_cache: int = 0
    memory_swap: int = 0
    memory_usage: int = 0
    memory_max_usage: int = 0
    cpu_system_ns: int = 0
    """Since the task started; rates are the reader's business."""
    cpu_user_ns: int = 0
    throttled_periods: int = 0
    throttled_ns: int = 0
    pids: tuple[int, ...] = ()
    measured: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DriverMessage:
    """Something a driver tells about one task while it works (progress of a pull)."""

    task_id: str
    message: str
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecCommand:
    argv: tuple[str, ...]
    is_tty: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ExecOutput:
    """One piece of what a command inside a task wrote."""

    data: bytes
    is_stderr: bool = False


@dataclass(frozen=True, slots=True)
class ExecResult:
    exit_code: int
    signal: int = 0
    output: bytes = b""


class ExecSession(Protocol):
    """A command running inside a task, with its terminal or pipes."""

    async def send_input(self, data: bytes) -> None:
        """Write to its standard input; waits while it does not read."""

    async def close_input(self) -> None:
        """No more input."""

    async def resize(self, height: int, width: int) -> None:
        """The caller's terminal has another size now."""

    async def receive(self) -> ExecOutput:
        """The next piece of output; `trio.EndOfChannel` after the last."""

    async def wait(self) -> ExecResult:
        """How it ended (output is empty here: it came through `receive`)."""


class Driver(Protocol):
    """Starts and keeps track of tasks of one kind. All times are seconds, all signals names such as `SIGTERM`."""

    name: str
    capabilities: Capabilities
    task_schema: TaskSchema
    """What a task's `config` may hold; anything else is an error."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The driver's own children, until cancelled. Tasks run on."""

    def fingerprint(self) -> AsyncIterator[DriverFingerprint]:
        """What it finds, now and whenever that changes. Endless."""

    async def start_task(self, config: TaskConfig) -> Started:
        """Start a task; the same id twice is an error."""

    async def recover_task(self, handle: TaskHandle) -> None:
        """Find a task again; no effect if it is known. `TaskUnknown` if it is gone without a trace of its end.

        A handle with an empty `state` stands for a start that was asked for, by an agent that was killed before it
        could store the handle: the task is found by its id alone, or nothing of it runs and nothing will, and
        `TaskUnknown` says so.
        """

    async def wait_task(self, task_id: str) -> ExitResult:
        """How it ended, once it has. Any number may ask, also afterwards."""

    async def stop_task(self, task_id: str, timeout_s: float, signal: str) -> None:
        """Signal it, wait so long, then kill all that is left of it. Returns when it is dead."""

    async def destroy_task(self, task_id: str, *, force: bool = False) -> None:
        """Forget it and remove what is left. Refuses a running task unless forced. No effect if it is unknown."""

    async def inspect_task(self, task_id: str) -> TaskInspection: ...

    async def task_stats(self, task_id: str) -> ResourceUse: ...

    async def signal_task(self, task_id: str, signal: str) -> None: ...

    async def exec_task(self, task_id: str, command: ExecCommand, timeout_s: float) -> ExecResult:
        """Run a command inside the task to its end; output is stdout and stderr together, at most 64 KiB."""

    def exec_session(self, task_id: str, command: ExecCommand) -> AbstractAsyncContextManager[ExecSession]:
        """Run a command inside the task; leaving the block ends it."""

    def messages(self) -> AsyncIterator[DriverMessage]:
        """What it has to say about its tasks. Endless; ends at once for drivers that never say anything."""


@runtime_checkable
class FindsTasks(Protocol):
    """A driver that can list what runs on its host, whoever started it there."""

    async def found_tasks(self) -> list[str]:
        """Ids of all tasks that it finds, running or ended, destroyed ones apart."""
