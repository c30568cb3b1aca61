"""How containers of fedsched are named and marked."""

from __future__ import annotations

import hashlib
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from fedsched.drivers.driver import DriverError, TaskConfig

ALLOC_ID: Final = "com.hashicorp.nomad.alloc_id"
_COMPATIBLE: Final = "com.hashicorp.nomad."
TASK_ID: Final = "fedsched.task_id"
NODE_ID: Final = "fedsched.node_id"
HANDLE: Final = "fedsched.handle"


class HandleState(msgspec.Struct, frozen=True):
    """What the driver must know about a container that it did not start itself in this life.

    It travels twice: in the handle that the client stores, and as a label of the container, for the case that an agent
    dies between the start and the storing.
    """

    task_id: str
    alloc_id: str
    task: str
    node_id: str
    logs_dir: str
    private_dir: str
    container_id: str = ""
    image_id: str = ""
    max_files: int = 10
    max_file_bytes: int = 10 << 20
    collects_logs: bool = True
    is_tty: bool = False

    def to_bytes(self) -> bytes:
        return msgspec.json.encode(self)


def handle_state_from(data: bytes | str) -> HandleState:
    try:
        found = msgspec.json.decode(data, type=HandleState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DriverError(f"the handle of a container cannot be read: {error}") from error
    if not found.task_id:
        raise DriverError("the handle of a container names no task")
    return found


def container_name(config: TaskConfig) -> str:
    """Engines take fewer characters than job files. A name that had to be changed gets a mark of what it was."""
    task = "".join(one if one.isascii() and (one.isalnum() or one in "_.-") else "_" for one in config.task)
    task = task.lstrip("_.-") or "task"
    if task != config.task:
        task += f"-{hashlib.sha256(config.task.encode()).hexdigest()[:6]}"
    return f"{task}-{config.alloc_id}"


def container_labels(config: TaskConfig, own: dict[str, str], extra: tuple[str, ...], handle: bytes) -> dict[str, str]:
    """A task's own labels, then ours: a task cannot pass for another's container."""
    known = {
        "job_id": config.job_id,
        "job_name": config.job_name or config.job_id,
        "task_group_name": config.group,
        "task_name": config.task,
        "namespace": config.namespace,
        "node_id": config.node_id,
        "node_name": config.node_name,
        "parent_job_id": config.parent_job_id,
    }
    asked = {
        _COMPATIBLE + name: value
        for name, value in known.items()
        if value and any(fnmatchcase(name, glob) or fnmatchcase(_COMPATIBLE + name, glob) for glob in extra)
    }
    ours = {ALLOC_ID: config.alloc_id, TASK_ID: config.id, NODE_ID: config.node_id, HANDLE: handle.decode()}
    return {**own, **asked, **ours}
