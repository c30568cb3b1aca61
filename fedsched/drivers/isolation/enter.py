"""Carries out an isolation plan, inside a task's supervisor.

A process cannot move itself into a new pid namespace, only its children, and the first of these is the namespace's
init: killing it ends all others, and default actions of signals do not work on it. So the task is not the init. The
supervisor opens the namespace and forks twice: a *keeper*, which is pid 1, builds the private mounts and then sleeps,
and the task, pid 2. Both are the supervisor's own children, so exit codes and signals of the task need no translation,
and orphans are the keeper's, which ignores them. The keeper dies with the supervisor, and all of the task with it.

The calls, from a supervisor with one thread (`supervisor.launch` describes when):

    jail = prepare(isolation)            in the supervisor, before the task's fork; from here on its children are born
                                         in the task's pid namespace
    isolate(isolation, jail)             in the task's forked process, last thing before exec
    enter_running(isolation, jail, pid)  in a command's forked process, last thing before exec; pid is the task's
    release(jail)                        in the supervisor when the task has ended: nothing of it is left afterwards

What fails raises `IsolationFailed`; after that nothing but `_exit` is right in a forked process. `isolation` is what
`plan.IsolationPlan.encode` wrote: numbers, texts, lists and tables only.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NoReturn

from fedsched.drivers.isolation import frozen, kernel, mounts, sleeper
from fedsched.drivers.isolation.kernel import IsolationFailed

__all__ = ["IsolationFailed", "Jail", "enter_running", "isolate", "prepare", "release"]

Isolation = Mapping[str, Any]
READY = b"+"


class Jail:
    """What a supervisor keeps about its task's namespaces."""

    __slots__ = ("descriptor", "keeper")

    def __init__(self, keeper: int = 0, descriptor: int = -1) -> None:
        self.keeper = keeper
        """The pid namespace's first process; 0 if the task has none of its own."""
        self.descriptor = descriptor
        """Its pidfd: inside the namespace its number is another."""


def prepare(isolation: Isolation) -> Jail:
    """Open the task's namespaces in a keeper; none if it shares the host's processes. Once in a supervisor's life."""
    if (isolation["uid"] == 0 or isolation["is_rootless"]) and not frozen.is_unwritable():
        raise IsolationFailed("a task of this user could change the program that its supervisor runs from")
    if isolation["is_rootless"]:
        _enter_user_namespace()
    if not isolation["has_own_pids"]:
        return Jail()
    kernel.unshare(kernel.CLONE_NEWPID)
    keeper = _fork_keeper(isolation)
    return Jail(keeper, kernel.step("watch the task's keeper", os.pidfd_open, keeper))


def isolate(isolation: Isolation, jail: Jail) -> None:
    """Make this process the task: join or build its namespaces, then give up all rights it is not to have."""
    kernel.set_not_dumpable()  # until exec: others in there must not reach this process's descriptors and memory
    if jail.keeper:
        _join(jail.descriptor, isolation)
    else:
        _build(isolation)
    kernel.unshare(kernel.CLONE_NEWCGROUP)
    _give_up_rights(isolation)


def enter_running(isolation: Isolation, jail: Jail, pid: int) -> None:
    """Make this process one more of the running task `pid`, with the task's rights."""
    kernel.set_not_dumpable()
    descriptor = jail.descriptor if jail.keeper else kernel.step(f"find process {pid}", os.pidfd_open, pid)
    _join(descriptor, isolation)
    kernel.unshare(kernel.CLONE_NEWCGROUP)
    _give_up_rights(isolation)


def release(jail: Jail) -> None:
    """Kill whatever is left in the task's pid namespace; harmless a second time.

    Does not wait for it: the keeper's end is complete only when the supervisor has reaped all its children that were
    in the namespace, the commands of sessions too. The keeper itself is one more child to reap.
    """
    if not jail.keeper:
        return
    jail.keeper = 0
    with suppress(ProcessLookupError):  # somebody has killed and reaped it already
        signal.pidfd_send_signal(jail.descriptor, signal.SIGKILL)
    os.close(jail.descriptor)


def _fork_keeper(isolation: Isolation) -> int:
    """Fork the pid namespace's first process and wait until it has built the task's world."""
    reading, writing = os.pipe()
    keeper = os.fork()
    if not keeper:
        os.close(reading)
        _keep(isolation, writing)
    os.close(writing)
    try:
        said = _read_all(reading)
    finally:
        os.close(reading)
    if said != READY:
        os.waitpid(keeper, 0)
        raise IsolationFailed(said.decode(errors="replace") or "the task's keeper died before it was ready")
    return keeper


def _namespaces(isolation: Isolation) -> int:
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS
    if isolation["has_own_ipc"]:
        flags |= kernel.CLONE_NEWIPC
    if isolation["network"]:
        flags |= kernel.CLONE_NEWNET
    return flags


def _build(isolation: Isolation) -> None:
    """New namespaces for this very process, and the private mounts in them."""
    network = isolation["network"]
    if network:
        descriptor = kernel.step(f"open network namespace {network}", os.open, network, os.O_RDONLY | os.O_CLOEXEC)
        kernel.setns(descriptor, kernel.CLONE_NEWNET)
        os.close(descriptor)
    kernel.unshare(_namespaces(isolation) & ~kernel.CLONE_NEWNET)
    if isolation.get("hostname"):
        kernel.set_hostname(isolation["hostname"])
    mounts.build(isolation)


def _join(descriptor: int, isolation: Isolation) -> None:
    kernel.setns(descriptor, _namespaces(isolation))
    os.chdir("/")


def _keep(isolation: Isolation, writing: int) -> NoReturn:
    """Be the task's pid 1: build its world, then only live until the supervisor dies or lets go."""
    try:
        try:
            # Ignored SIGCHLD has the kernel reap orphans by itself; of the rest a keeper wants none.
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                signal.signal(number, signal.SIG_IGN)
            _build(isolation)
            kernel.drop_all_capabilities()
            kernel.forbid_new_privileges()
            if not isolation["is_rootless"]:  # else the task, which has no rights outside, could not join
                kernel.set_not_dumpable()
            kernel.die_with_parent()
        except Exception as failure:
            os.write(writing, (str(failure) or repr(failure)).encode())
        else:
            os.write(writing, READY)  # fails if the supervisor died before die_with_parent
            _sleep(isolation, writing)
    finally:
        os._exit(1)


def _sleep(isolation: Isolation, writing: int) -> None:
    """Let go of all that came from the supervisor, its memory at last, and do nothing more.

    The supervisor waits until `writing` is closed, which is when nothing is left to do.
    """
    program = sleeper.open_program()
    kernel.close_all_descriptors_except([writing, program])
    if isolation["seccomp"]:  # a keeper is one of the task's processes and shall be no way around its filter
        kernel.filter_system_calls(bytes.fromhex(isolation["seccomp"]))
    if program >= 0:
        with suppress(OSError):  # a host may forbid programs from memory: then the interpreter sleeps
            os.execve(program, ["keeper"], {})
    kernel.close_all_descriptors_except([])
    kernel.sleep_for_ever()


def _give_up_rights(isolation: Isolation) -> None:
    uid, gid = isolation["uid"], isolation["gid"]
    for number in range(3):
        _own_pipe(number, uid, gid)
    kernel.close_on_exec_from(3)
    kernel.forbid_core_dumps()
    kernel.become(uid, gid, isolation["bounding"], isolation["ambient"], is_rootless=isolation["is_rootless"])
    kernel.die_with_parent()  # a change of user has undone it if it was so before
    kernel.change_directory(isolation["work_dir"] or "/")
    kernel.forbid_new_privileges()
    if isolation["landlock"]:
        kernel.restrict_writing(isolation["landlock"])
    if isolation["seccomp"]:
        kernel.filter_system_calls(bytes.fromhex(isolation["seccomp"]))


def _own_pipe(number: int, uid: int, gid: int) -> None:
    """Give pipes and terminals to the task, so that it can open /dev/stdout. Never a file or a device of the host."""
    status = kernel.step(f"look at descriptor {number}", os.fstat, number)
    if stat.S_ISFIFO(status.st_mode) or (stat.S_ISCHR(status.st_mode) and 136 <= os.major(status.st_rdev) <= 143):
        kernel.step(f"give descriptor {number} to the task", os.fchown, number, uid, gid)


def _enter_user_namespace() -> None:
    """Rights over new namespaces for somebody who is not root; the same user and group as outside, and only these."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        kernel.step(f"write {name} of the user namespace", _write, f"/proc/self/{name}", text)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> bytes:
    pieces = []
    while piece := os.read(descriptor, 4096):
        pieces.append(piece)
    return b"".join(pieces)
