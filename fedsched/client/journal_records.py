"""What a client keeps about its allocations on its own disk, so that the next agent goes on where this one ended.

Each record is written before anything it speaks of can be seen by servers. Times are wall clock: monotonic ones mean
nothing to the next process.
"""

from __future__ import annotations

from fedsched.drivers.driver import TaskHandle
from fedsched.model.alloc import Allocation, AllocDeploymentStatus, ClientStatus
from fedsched.model.declare import EMPTY, Record, StringMap, TimeNs
from fedsched.model.network import AllocNetworkStatus
from fedsched.model.task_state import TaskState


class RestartState(Record):
    """How much of its restart policy a task has used up."""

    count: int = 0
    """Ends counted in this interval."""
    interval_start_ns: TimeNs = 0
    """0: nothing was counted yet."""


class StoredNetwork(Record):
    """Where a driver said that its task is reached."""

    ip: str = ""
    port_map: dict[str, int] = EMPTY
    auto_advertise: bool = False


class StoredMount(Record):
    """A path of the host inside a task, as a hook asked for it."""

    host_path: str = ""
    task_path: str = ""
    is_read_only: bool = False


class StoredResult(Record):
    """What a hook added to its task; kept for hooks that are not run again."""

    env: StringMap = EMPTY
    template_env: StringMap = EMPTY
    mounts: tuple[StoredMount, ...] = ()


class TaskLocal(Record):
    """One task, as only its client needs to know it."""

    hooks: dict[str, StringMap] = EMPTY
    """What each hook wants to be told again, by its name."""
    hooks_done: tuple[str, ...] = ()
    """Hooks that are not run again for this task, however often it or the agent is restarted."""
    results: dict[str, StoredResult] = EMPTY
    """What the hooks that are done have added."""
    intended_id: str = ""
    """The id under which a start was about to be asked for. Written before the driver is asked: whatever the driver
    may have begun under it is found again, or known to be gone, before the task is started anew."""
    handle: TaskHandle | None = None
    """Written as soon as the driver has started it; gone again once its end is known."""
    leftover: TaskHandle | None = None
    """An ended start whose remains the driver still has to remove."""
    network: StoredNetwork | None = None
    is_complete: bool = False
    """It will not run again, unless somebody restarts the whole allocation."""
    is_stopped: bool = False
    """Its stop hooks are done."""
    is_killed: bool = False
    """Somebody asked for its end; it must not be started again."""
    kill_fails: bool = False
    """And for a reason that makes the task a failed one."""
    restart_at_ns: TimeNs = 0
    """When it is to be started again, while it waits for that."""
    restarts: RestartState = RestartState()


class AllocReport(Record):
    """What a client tells servers about one allocation."""

    client_status: ClientStatus = ClientStatus.PENDING
    client_description: str = ""
    task_states: dict[str, TaskState] = EMPTY
    deployment_status: AllocDeploymentStatus | None = None
    network_status: AllocNetworkStatus | None = None


class AllocLocal(Record):
    """One allocation, as only its client needs to know it."""

    deployment_status: AllocDeploymentStatus | None = None
    decided_for: str = ""
    """The deployment (or `migration`) that `deployment_status` was decided for."""
    network_status: AllocNetworkStatus | None = None
    acked: AllocReport | None = None
    """What servers acknowledged last."""
    first_start_ns: TimeNs = 0
    """When its pre-run hooks were done for the first time: `max_run_duration` counts from here."""
    is_stopping: bool = False
    """Its tasks are to be killed, whoever asked."""
    stop_reason: str = ""
    skips_poststop: bool = False
    """Poststop tasks that have not been started are not."""
    was_unknown: bool = False
    """Servers called it unknown when it was last heard of; the next contact is a reconnection."""
    is_over: bool = False
    """All tasks are over and its post-run hooks are done."""


class StoredAlloc(Record):
    """All that is kept of one allocation."""

    alloc: Allocation
    local: AllocLocal = AllocLocal()
    tasks: dict[str, tuple[TaskLocal, TaskState]] = EMPTY
