"""The warm process of a host: it exists to be forked, so that starting a task costs a fork and no interpreter.

It is started once, apart from any agent, by `python -I -S -E`, imports next to nothing, and freezes its heap so that
its children share it. An agent that wants a task sends it one byte and the end of a socket pair; whatever else is to be
said, the forked supervisor reads from that socket itself. So this process parses nothing, waits for nobody, and has
nothing to lose: killed, it is simply started again, and supervisors do not notice.
"""

from __future__ import annotations

import gc
import os
import sys
from select import POLLIN, poll
from time import monotonic

from fedsched import __version__
from fedsched.drivers.supervisor import child, processes
from fedsched.drivers.supervisor.bare import (
    CMSG_LEN,
    MSG_CMSG_CLOEXEC,
    SIG_IGN,
    SIGCHLD,
    SIGHUP,
    SIGINT,
    SIGTERM,
    prctl,
    signal,
    socket,
)
from fedsched.drivers.supervisor.child import LaunchFailed
from fedsched.drivers.supervisor.connections import READ, Connection, accept, listen
from fedsched.drivers.supervisor.frames import PROTOCOL, BadFrame, Frames, encode
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.rehearsal import rehearse
from fedsched.drivers.supervisor.supervise import Supervisor

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from typing import Final, NoReturn

VERSION: Final = f"{PROTOCOL}/{__version__}/{sys.version_info[0]}.{sys.version_info[1]}"
"""An agent that finds another one retires this process and starts its own."""
NAME: Final = "warm.sock"
LAUNCH: Final = b"L"
RETIRE: Final = b"R"
IDLE_MS: Final = 5_000
"""How often a process that nobody is connected to looks whether anybody can be."""
SPEC_S: Final = 10.0
"""How long a supervisor waits to be told what to launch."""
FREE_S: Final = 2.0
"""How long one that is free again waits for its agent to give it another task. In a burst they come at once."""
MAX_TASKS: Final = 50
"""One after the other, for one supervisor: whatever could pile up in a process does not."""
MAX_ERRORS: Final = 1 << 20
OOM_SCORE: Final = -500
PR_SET_CHILD_SUBREAPER: Final = 36
"""Orphans below a supervisor become its children, and not init's. Not inherited; not needed where a cgroup has them."""


def main(directory: str) -> None:
    """Become the warm process of `directory`: the caller made sure that there is none. Returns in the process that was
    started, once the warm one, which is nobody's child, listens."""
    if os.path.lexists(f"{directory}/{NAME}"):
        os.unlink(f"{directory}/{NAME}")
    listener = listen(directory, NAME)
    if os.fork():
        return
    os.setsid()
    _settle_down(directory)
    boot_id = processes.boot_id()
    rehearse(directory, boot_id, _read_spec)
    Warm(listener, f"{directory}/{NAME}", boot_id).run()


class Warm:
    """Accepts agents and forks supervisors for them."""

    def __init__(self, listener: socket, path: str, boot_id: str) -> None:
        self._listener = listener
        self._path = path
        self._agents: dict[int, socket] = {}
        self._poll = poll()
        self._poll.register(listener, POLLIN)
        self._boot_id = boot_id

    def run(self) -> None:
        """Serve until retired, or until there is no reason to stay: no agent is connected, and either none can come
        any more, because the socket's name is gone, or no supervisor lives that would make one come."""
        gc.collect()
        gc.disable()
        gc.freeze()
        while self._agents or os.path.lexists(self._path):
            happened = self._poll.poll(None if self._agents else IDLE_MS)
            if not happened and not self._agents and not _has_children():
                return
            for fd, _ in happened:
                if fd == self._listener.fileno():
                    self._greet()
                elif fd in self._agents and not self._serve(self._agents[fd]):
                    self._poll.unregister(fd)
                    self._agents.pop(fd).close()

    def _greet(self) -> None:
        agent = accept(self._listener)
        if agent is None:
            return
        agent.setblocking(False)
        try:
            agent.send(encode({"version": VERSION, "pid": os.getpid()}))
        except OSError:
            agent.close()
            return
        self._agents[agent.fileno()] = agent
        self._poll.register(agent, POLLIN)

    def _serve(self, agent: socket) -> bool:
        """One request; false if this agent is to be forgotten."""
        try:
            data, controls, _, _ = agent.recvmsg(1, CMSG_LEN(4), MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return True
        except OSError:
            return False
        fds = [int.from_bytes(found[:4], sys.byteorder) for _, _, found in controls]
        if data == LAUNCH and len(fds) == 1:
            self._fork(fds[0])
            return True
        for fd in fds:
            os.close(fd)
        if data == RETIRE:
            os._exit(0)
        return False

    def _fork(self, fd: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            connection = Connection(socket(fileno=fd))
            connection.send({"error": f"fork: {error.strerror}"})
            connection.close()
            return
        if pid:
            os.close(fd)
            return
        code = 70
        try:
            code = self._supervise(fd)
        except BaseException:  # a forked process leaves only by _exit
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def _supervise(self, fd: int) -> int:
        os.setsid()
        self._listener.close()
        for agent in self._agents.values():
            agent.close()
        control = socket(fileno=fd)
        for left in reversed(range(MAX_TASKS)):
            spec = _read_spec(control, SPEC_S if left == MAX_TASKS - 1 else FREE_S)
            if spec is None or not self._one_task(spec, control, may_serve_again=left > 0):
                break
        return 0

    def _one_task(self, spec: LaunchSpec, control: socket, *, may_serve_again: bool) -> bool:
        """A task's whole life; true if this process is as good as new afterwards, and its agent knows."""
        prctl(PR_SET_CHILD_SUBREAPER, 0 if spec.cgroup_kill else 1)
        supervisor = Supervisor(spec, self._boot_id, may_serve_again=may_serve_again)
        connection = Connection(control)
        try:
            table = supervisor.launch()
        except LaunchFailed as error:
            connection.send({"error": str(error)})
            return False
        connection.send({"started": table})
        supervisor.run(connection)
        return supervisor.is_free and not (connection.is_closed or connection.wants_to_write)


def _read_spec(control: socket, patience_s: float = SPEC_S) -> LaunchSpec | None:
    """What to launch, or None from an agent that is gone, slow, or talks nonsense."""
    frames = Frames()
    give_up = monotonic() + patience_s
    try:
        while (left := give_up - monotonic()) > 0:
            control.settimeout(left)
            data = control.recv(READ)
            if not data:
                return None
            for message in frames.feed(data):
                return LaunchSpec.from_table(message)
    except (OSError, BadFrame, TypeError):
        return None
    return None


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _settle_down(directory: str) -> None:
    """Let go of whoever started this process."""
    for number in (SIGINT, SIGTERM, SIGHUP, SIGCHLD):
        signal(number, SIG_IGN)  # a child that nobody waits for leaves no zombie
    path = f"{directory}/errors.log"
    errors = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if os.fstat(errors).st_size > MAX_ERRORS:
        os.ftruncate(errors, 0)
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for target, fd in enumerate((nothing, nothing, errors)):
        os.dup2(fd, target, inheritable=False)
    os.chdir("/")
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(OOM_SCORE))
    except OSError:
        return  # only root may; without it a task that eats all memory may take its supervisor along
    child.INHERITED_OOM_SCORE = OOM_SCORE


def start() -> NoReturn:
    """What `python -c` calls."""
    if sys.argv[2] == "isolating":
        # Now, so that tasks share it, and an upgrade cannot swap it under a running process.
        from fedsched.drivers.isolation import enter, frozen

        sys.modules.setdefault(enter.__name__, enter)
        frozen.become_unwritable()
    main(sys.argv[1])
    os._exit(0)
