"""A supervisor reduced to what isolation needs, run as a program: one thread, no trio, nothing inherited from pytest.

Told on standard input what to run as JSON; says on standard output what came of it. The task writes to its own pipe.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from typing import Any

from fedsched.drivers.isolation import enter, frozen

MAX_OUTPUT = 1 << 20


def main() -> None:
    frozen.become_unwritable()
    told = json.load(sys.stdin)
    if told["user"]:
        _become_ordinary(told["user"])
    else:
        os.setgroups([4, 24])  # as an agent's own user may be in some
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        jail = enter.prepare(told["isolation"])
        if jail.keeper:
            with open(f"/proc/{jail.keeper}/status") as file:
                told["keeper"] = file.read()
        told |= _run(told, jail)
        _end(jail)
        enter.release(jail)  # a second time does no harm
    except enter.IsolationFailed as failure:
        told["failure"] = str(failure)
    told.pop("isolation")
    json.dump(told, sys.stdout)


def _become_ordinary(user: int) -> None:
    """As if an ordinary user had started this program."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a program started by that user could be looked into by them


def _run(told: dict[str, Any], jail: enter.Jail) -> dict[str, Any]:
    isolation, found = told["isolation"], []
    os.set_inheritable(os.open("/", os.O_RDONLY), True)  # what a careless supervisor leaves open
    task, reading = _start(told["argv"], lambda: enter.isolate(isolation, jail))
    if told["commands"]:
        ready = os.read(reading, 1)  # the task says something when it is up
        for argv in told["commands"]:
            pid, output = _start(argv, lambda: enter.enter_running(isolation, jail, task))
            found.append([_status(pid), _drain(output)])
        os.kill(task, 9)
        return {"status": _status(task), "output": ready.decode() + _drain(reading), "found": found}
    for number in told["signals"]:
        os.read(reading, 1)
        os.kill(task, number)
    status = _status(task)
    _end(jail)  # or whoever the task left behind would keep the pipe open
    return {"status": status, "output": _drain(reading), "pid": task}


def _end(jail: enter.Jail) -> None:
    keeper = jail.keeper
    enter.release(jail)
    if keeper:
        os.waitpid(keeper, 0)


def _start(argv: list[str], become: Any) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        become()
        os.execve(argv[0], argv, {"PATH": "/usr/bin:/bin", "LC_ALL": "C"})
    except BaseException as error:
        os.write(writing, f"failed: {error}".encode())
    finally:
        os._exit(127)


def _status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _drain(reading: int) -> str:
    found = b""
    while len(found) < MAX_OUTPUT and (piece := os.read(reading, 65536)):
        found += piece
    os.close(reading)
    return found.decode(errors="replace")


if __name__ == "__main__":
    main()
