"""What hooks and runners of one client share, and what they may know about their allocation and task."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import trio

from fedsched.client.dynamic_users import DynamicUsers
from fedsched.client.network.plan import GroupNetwork
from fedsched.client.service_book import ServiceBook
from fedsched.client.start_gate import StartGate
from fedsched.drivers.driver import Driver, DriverNetwork, TaskDirs
from fedsched.env.env import Env
from fedsched.model.alloc import Allocation
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.network import AllocNetworkStatus
from fedsched.model.node import Node
from fedsched.model.task import Task
from fedsched.model.task_state import TaskEvent, TaskState
from fedsched.rpc.caller import Caller
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry

if TYPE_CHECKING:
    from fedsched.client.check_book import CheckBook
    from fedsched.client.disk_process import DiskProcess
    from fedsched.client.network.networks import Networks
    from fedsched.client.settings import ClientSettings
    from fedsched.client.task_env import TaskEnvironment


class Servers(Protocol):
    """The way to the region's servers, over whichever link is up."""

    async def caller(self) -> Caller:
        """Somebody to ask; waits while no server is reached (set a deadline)."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def last_contact(self) -> float:
        """When a heartbeat was answered last, by `env.now()`; the agent's start plus 50 s before the first."""


@dataclass(frozen=True, slots=True)
class ClientParts:
    """What all of one client share."""

    settings: ClientSettings
    env: Env
    log: Logger
    metrics: Registry
    node: Callable[[], Node]
    """The node as it was registered last."""
    region: str
    servers: Servers
    drivers: Callable[[str], Driver]
    """By name; raises `DriverError` for one that is not here."""
    checks: CheckBook
    """Results of service checks."""
    has_contact: trio.Event
    """Set once servers have confirmed what should run here."""
    other_alloc: Callable[[str], AllocContext | None]
    """Another allocation of this host, by id: the one before a replacement."""
    now_ns: Callable[[], int]
    """Wall clock."""
    secret_id: str = ""
    """What this node proves itself with to servers. In nothing else that anybody is shown."""
    networks: Networks | None = None
    """Networks of groups; None: all of them have the host's."""
    services: ServiceBook = field(default_factory=ServiceBook)
    """What the allocations of this host offer."""
    host_env: Mapping[str, str] | None = None
    """What tasks see of the agent's own environment; None: read when it is needed."""
    users: DynamicUsers = field(default_factory=DynamicUsers)
    """Users that exist for one task only."""
    starts: StartGate = field(default_factory=StartGate)
    """How many allocations are prepared at a time."""
    disk: DiskProcess | None = None
    """Makes and removes directories; None: threads do."""


class AllocContext:
    """One allocation on this host, as hooks see it. `alloc` changes when it is updated in place."""

    def __init__(self, parts: ClientParts, alloc: Allocation, root: Path) -> None:
        self.parts = parts
        self.alloc = alloc
        self.root = root
        """`<alloc_dir>/<alloc id>`."""
        self.tasks: dict[str, TaskContext] = {}
        self.network: GroupNetwork | None = None
        """What its tasks are started with; None until that is ready."""
        self.keep_network: Callable[[AllocNetworkStatus], Awaitable[None]] = _no_network_kept
        """Have the status on disk and told to servers. Its runner sets it."""
        self._group: tuple[Allocation, TaskGroup] | None = None
        """The group, and the allocation it was looked up for."""
        self.fresh_tasks: set[str] = set()
        """Those whose directories were made with the allocation's and have not been used yet."""
        self.terminal = trio.Event()
        """All its tasks are over for good."""

    @property
    def job(self) -> Job:
        assert self.alloc.job is not None
        return self.alloc.job

    @property
    def group(self) -> TaskGroup:
        known = self._group
        if known is None or known[0] is not self.alloc:
            group = next(group for group in self.job.task_groups if group.name == self.alloc.task_group)
            known = self._group = (self.alloc, group)
        return known[1]


class TaskActions(Protocol):
    """What a hook may ask of its task's runner. None of them waits for the outcome."""

    def emit(self, event: TaskEvent) -> None:
        """Add an event; the time is filled in."""

    def restart(self, reason: str, *, is_failure: bool = False) -> None:
        """Start it again; a failure counts by its restart policy."""

    def signal(self, signal: str, reason: str) -> None: ...

    def kill(self, reason: str, *, is_failure: bool = False) -> None: ...


class TaskContext:
    """One task of an allocation, as hooks see it."""

    def __init__(self, alloc: AllocContext, name: str, dirs: TaskDirs, driver: Driver, actions: TaskActions) -> None:
        self.alloc = alloc
        self.name = name
        self.dirs = dirs
        self.driver = driver
        self.actions = actions
        self.task_id = ""
        """What the driver calls it while it is started, else empty."""
        self.dynamic_user = ""
        """The number of the user that exists for this task alone, if it has one."""
        self.state = TaskState()
        """As it was reported last."""
        self.hook_env: Mapping[str, str] = {}
        """What hooks have added so far in this start."""
        self.template_env: Mapping[str, str] = {}
        self.network: DriverNetwork | None = None
        """Where the driver said that it is reached, if it gave it an address of its own."""
        self._task: tuple[TaskGroup, Task] | None = None
        self._environment: tuple[tuple[object, ...], TaskEnvironment] | None = None
        """The last one, and what it was made from."""

    @property
    def parts(self) -> ClientParts:
        return self.alloc.parts

    @property
    def task(self) -> Task:
        group = self.alloc.group
        known = self._task
        if known is None or known[0] is not group:
            known = self._task = (group, next(task for task in group.tasks if task.name == self.name))
        return known[1]

    def environment(self) -> TaskEnvironment:
        """The environment as it is now, with all that hooks have added so far."""
        from fedsched.client.task_env import task_environment

        sources = (self.alloc.alloc, self.parts.node(), self.hook_env, self.template_env)
        known = self._environment
        if known is None or any(one is not other for one, other in zip(sources, known[0], strict=True)):
            known = self._environment = (sources, task_environment(self))
        return known[1]


async def _no_network_kept(status: AllocNetworkStatus) -> None:
    raise AssertionError(f"nobody keeps the network's status {status}")
