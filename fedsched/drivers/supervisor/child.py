"""From a supervisor to a task: fork, everything that must be so before exec, exec; or the reason why not.

Light: this is part of every supervisor.
"""

from __future__ import annotations

import os

from fedsched.drivers.supervisor.bare import (
    SIG_DFL,
    SIG_SETMASK,
    SIGCHLD,
    SIGHUP,
    SIGINT,
    SIGKILL,
    SIGPIPE,
    SIGTERM,
    SIGXFSZ,
    pthread_sigmask,
    signal,
)
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.own_groups import NoWayBack, spawn_inside
from fedsched.drivers.supervisor.own_groups import enter as enter_group
from fedsched.drivers.supervisor.processes import send

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Final, NoReturn

    from fedsched.drivers.isolation.enter import Jail

Streams = tuple[int, int, int]
MAX_REASON: Final = 4096
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNSET: Final = (SIGPIPE, SIGXFSZ, SIGCHLD, SIGTERM, SIGINT, SIGHUP)
"""What Python or the supervisor ignores or catches, and a task should not."""


INHERITED_OOM_SCORE = 0
"""How much less eagerly the kernel kills a supervisor, and what a task must not inherit. Set by the warm process."""


class LaunchFailed(Exception):
    """The task's process could not be made; the text says why."""


def launch_task(spec: LaunchSpec, streams: Streams, jail: Jail | None) -> int:
    """Start the task in a session of its own; returns its pid once exec has succeeded. Raises `LaunchFailed`."""
    if spec.isolation is None and spec.uid is None and not spec.limits and not spec.netns:
        pid = _spawn_in_groups(spec, streams) if spec.cgroups else _spawn(spec, streams)
        if pid is not None:
            return pid

    def enter() -> None:
        if spec.isolation is None:
            _become(spec)
        else:
            from fedsched.drivers.isolation import enter as isolation

            assert jail is not None
            isolation.isolate(spec.isolation, jail)

    return fork_exec(spec, spec.argv, spec.env, streams, enter)


def launch_command(
    spec: LaunchSpec, jail: Jail | None, pid: int, argv: list[str], env: dict[str, str], streams: Streams, is_tty: bool
) -> int:
    """Start a command inside the task whose process is `pid`; the same promises."""

    def enter() -> None:
        if is_tty:
            _take_terminal()
        if spec.isolation is None:
            _become(spec)
        else:
            from fedsched.drivers.isolation import enter as isolation

            assert jail is not None
            isolation.enter_running(spec.isolation, jail, pid)

    return fork_exec(spec, argv, env, streams, enter)


def fork_exec(
    spec: LaunchSpec, argv: list[str], env: dict[str, str], streams: Streams, enter: Callable[[], None]
) -> int:
    """Fork; the child does what every process of the task needs, calls `enter`, and executes `argv`."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        _child(spec, argv, env, streams, enter, writing)
    os.close(writing)
    try:
        reason = _read_all(reading)
    finally:
        os.close(reading)
    if reason:
        os.waitpid(pid, 0)
        raise LaunchFailed(reason)
    return pid


def _child(
    spec: LaunchSpec, argv: list[str], env: dict[str, str], streams: Streams, enter: Callable[[], None], writing: int
) -> NoReturn:
    try:
        os.setsid()
        for path in spec.cgroups:
            enter_group(path)
        for number in UNSET:
            signal(number, SIG_DFL)
        pthread_sigmask(SIG_SETMASK, ())
        _place(streams)
        if spec.limits:
            import resource
        for name, (soft, hard) in spec.limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (soft, hard))
        _set_oom_score(spec.oom_score_adj)
        os.umask(spec.umask)
        if spec.netns:
            _join_network(spec.netns)
        enter()
        _execute(argv, env)
    except BaseException as error:  # the only way out of a forked process is _exit, whatever it was
        os.write(writing, _reason(error, argv).encode(errors="backslashreplace")[:MAX_REASON])
    finally:
        os._exit(127)


def _spawn_in_groups(spec: LaunchSpec, streams: Streams) -> int | None:
    """The same in the task's cgroups; None where only a copy of this process can go there."""
    if any(path.endswith("/pids.max") and value == "1" for path, value in spec.cgroup_files):
        return None  # there is room for the task alone
    begun: list[int] = []

    def spawn() -> int:
        begun.append(_spawn(spec, streams))
        return begun[0]

    try:
        return spawn_inside(spec.cgroups, spawn)
    except (OSError, NoWayBack) as error:
        for pid in begun:
            send(pid, SIGKILL)
            os.waitpid(pid, 0)
        raise LaunchFailed(_reason(error, spec.argv)) from None


def _spawn(spec: LaunchSpec, streams: Streams) -> int:
    """The same without a copy of this process, for tasks that need nothing between fork and exec."""
    path = find_executable(spec.argv[0], spec.env)
    mask = os.umask(spec.umask)
    try:
        os.chdir(spec.cwd)
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(streams)]
        pid = os.posix_spawn(
            path, spec.argv, spec.env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=UNSET
        )
    except OSError as error:
        raise LaunchFailed(_reason(error, spec.argv)) from None
    finally:
        os.umask(mask)
        os.chdir("/")
    if spec.oom_score_adj or INHERITED_OOM_SCORE:
        _set_oom_score(spec.oom_score_adj, str(pid))
    return pid


def find_executable(name: str, env: dict[str, str]) -> str:
    """Where a command is: a path as it is, else the first that PATH has. Raises `LaunchFailed`."""
    if "/" in name:
        return name
    for folder in env.get("PATH", DEFAULT_PATH).split(":"):
        path = f"{folder or '.'}/{name}"
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    raise LaunchFailed(f"{name}: not found in PATH")


def _execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    os.execve(find_executable(argv[0], env), argv, env)


def _become(spec: LaunchSpec) -> None:
    if spec.uid is not None:
        if spec.groups is not None:
            os.setgroups(spec.groups)
        if spec.gid is not None:
            os.setresgid(spec.gid, spec.gid, spec.gid)
        os.setresuid(spec.uid, spec.uid, spec.uid)
    os.chdir(spec.cwd)


def _join_network(path: str) -> None:
    from fedsched.drivers.isolation import kernel  # only the few tasks with such a network pay for it

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    kernel.setns(fd, kernel.CLONE_NEWNET)
    os.close(fd)


def _place(streams: Streams) -> None:
    moved = [os.dup(fd) if fd <= 2 else fd for fd in streams]
    for target, fd in enumerate(moved):
        os.dup2(fd, target, inheritable=True)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _set_oom_score(value: int, pid: str = "self") -> None:
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, str(value).encode())
        finally:
            os.close(fd)
    except OSError:
        if value > 0 and pid == "self":
            raise  # more than we have may always be asked for; less than root gave us is not ours to give


def _read_all(fd: int) -> str:
    found = b""
    while data := os.read(fd, MAX_REASON):
        found += data
    return found.decode(errors="replace")


def _reason(error: BaseException, argv: list[str]) -> str:
    if isinstance(error, OSError) and error.strerror:
        where = error.filename if isinstance(error.filename, str) else argv[0]
        return f"{where}: {error.strerror}"
    return str(error) or type(error).__name__
