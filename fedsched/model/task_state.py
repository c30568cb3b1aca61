"""What a client reports about the tasks of an allocation."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fedsched.model.record import EMPTY, InJson, Record, Seconds, StringMap, TimeNs, TimeText
from fedsched.model.states import Moves

MAX_TASK_EVENTS = 10
"""A task keeps its latest events; older ones are dropped, as Nomad does."""


class TaskStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DEAD = "dead"


TASK_MOVES = Moves(
    TaskStatus,
    {
        TaskStatus.PENDING: {TaskStatus.RUNNING, TaskStatus.DEAD},
        TaskStatus.RUNNING: {TaskStatus.PENDING, TaskStatus.DEAD},
        # A dead task runs again when an operator restarts all tasks of an allocation.
        TaskStatus.DEAD: {TaskStatus.PENDING, TaskStatus.RUNNING},
    },
)


class TaskEvent(Record):
    """Something that happened to a task."""

    type: str = ""
    time_ns: TimeNs = 0
    message: str = ""
    display_message: str = ""
    details: Annotated[StringMap, InJson.KEEP_EMPTY] = EMPTY
    fails_task: bool = False
    restart_reason: str = ""
    setup_error: str = ""
    driver_error: str = ""
    exit_code: int = 0
    signal: int = 0
    kill_timeout_s: Seconds = 0.0
    kill_error: str = ""
    kill_reason: str = ""
    start_delay: Annotated[int, "Nanoseconds; Nomad keeps it as a plain number."] = 0
    download_error: str = ""
    validation_error: str = ""
    disk_limit: int = 0
    failed_sibling: str = ""
    vault_error: str = ""
    task_signal_reason: str = ""
    task_signal: str = ""
    driver_message: str = ""
    generic_source: str = ""


class TaskState(Record):
    """How one task of an allocation is doing."""

    state: TaskStatus = TaskStatus.PENDING
    failed: bool = False
    restarts: int = 0
    last_restart_ns: TimeText = 0
    started_at_ns: TimeText = 0
    finished_at_ns: TimeText = 0
    events: tuple[TaskEvent, ...] = ()
    paused: str = ""

    @property
    def is_successful(self) -> bool:
        return self.state is TaskStatus.DEAD and not self.failed
