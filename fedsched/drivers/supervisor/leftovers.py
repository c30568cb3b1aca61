"""What a dead supervisor may have left: processes, cgroups, files. Blocking; called in threads."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any, Final

from fedsched.drivers.supervisor import processes, state_file

VANISH_S: Final = 15.0


def clear(table: Mapping[str, Any]) -> bool:
    """Kill what is left of a task whose supervisor is dead: everything in its cgroup, and its process group if the
    task's process is still that very one. True if nothing is left."""
    if table.get("boot_id") != processes.boot_id():
        return True
    give_up = time.monotonic() + VANISH_S
    child, started = _process(table.get("child"))
    group = str(table.get("cgroup_kill") or "")
    while time.monotonic() < give_up:
        members = processes.group_pids(group) if group else []
        if group and not _write(f"{group}/cgroup.kill", b"1"):
            _write(f"{group}/pids.max", b"0")
        is_there = processes.is_running(child, started)
        if is_there:
            processes.send_group(child, signal.SIGKILL)
            processes.send(child, signal.SIGKILL)
        processes.kill_each(members)
        if not members and not is_there:
            return True
        time.sleep(0.01)
    return False


def remove(directory: str, key: str, table: Mapping[str, Any], spare: str = "") -> None:
    """Remove its cgroups and files. Processes must be gone. With `spare`, its state file is kept under that name."""
    for path in table.get("cgroups") or ():
        if not os.path.exists(path):
            continue  # a supervisor that lived to the end has seen to it
        for folder, _, _ in os.walk(path, topdown=False):
            try:
                os.rmdir(folder)
            except OSError:
                continue  # somebody is in it after all: left for people to see
    if spare:
        try:
            state_file.put_by(directory, key, spare)
        except FileNotFoundError:
            return
    else:
        state_file.remove(directory, key)


def _process(found: object) -> tuple[int, int]:
    match found:
        case [int(pid), int(started)]:
            return pid, started
        case _:
            return 0, 0


def _write(path: str, value: bytes) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, value)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
