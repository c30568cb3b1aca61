"""One task's supervisor: launches it, keeps its output, and stays until how it ended is on disk and was told.

One thread, one poll loop, nothing that waits. The order that everything rests on: the state file says that a task runs
before anybody is told, and how it ended before anybody is told. Peers come and go; none of them can stop it, block it
or make it grow.

    launching -> running -> ending (the task's process is gone; what it left is killed, its pipes are drained)
              -> ended (the state file has the result, cgroups are gone, whoever listens was told)

The state file stays until an agent has acknowledged it, and needs nobody to keep it. So a supervisor is free when its
task has ended: if it is still what a new one would be, it offers itself for the next task to the agent it works for,
which costs neither of them a fork; else it exits.

Light: every task has one of these.
"""

from __future__ import annotations

import os
import sys
from select import POLLIN, POLLOUT, poll
from time import monotonic, time_ns

from fedsched.drivers.supervisor import processes, state_file
from fedsched.drivers.supervisor.bare import SIGCHLD, SIGKILL, set_wakeup_fd, signal
from fedsched.drivers.supervisor.child import LaunchFailed, launch_task
from fedsched.drivers.supervisor.connections import MAX_CONNECTIONS, Connection, accept, listen
from fedsched.drivers.supervisor.frames import PROTOCOL
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.output import Output
from fedsched.drivers.supervisor.sessions import Sessions
from fedsched.drivers.supervisor.task_groups import make_group, oom_kills, remove_group, set_value, try_value

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Final

    from fedsched.drivers.isolation.enter import Jail
    from fedsched.drivers.supervisor.bare import socket

DRAIN_S: Final = 2.0
VANISH_S: Final = 15.0
"""How long after a SIGKILL processes may take to be gone (a disk may hold them)."""
AGAIN_S: Final = 0.02
STORE_AGAIN_S: Final = 0.5
LEAVE_S: Final = 2.0
"""How long peers that do not read have to hear the end: the state file has it too."""
FOREVER: Final = float("inf")


class Supervisor:
    """The whole of it; `run` returns when its task has ended and that was told."""

    def __init__(self, spec: LaunchSpec, boot_id: str, *, may_serve_again: bool = False) -> None:
        self.spec = spec
        self._may_serve_again = may_serve_again
        self.jail: Jail | None = None
        self.child = 0
        self.phase = "launching"
        self.pid = os.getpid()
        self.table: dict[str, Any] = {
            "version": PROTOCOL,
            "phase": self.phase,
            "boot_id": boot_id,
            "task_id": spec.task_id,
            "supervisor": [self.pid, processes.own_start_time()],
            "child": [0, 0],
            "started_at_ns": 0,
            "cgroups": spec.cgroups,
            "cgroup_kill": spec.cgroup_kill,
            "result": None,
            "state": spec.state,
        }
        self.output = Output(spec)
        self.sessions = Sessions(self)
        self.connections: dict[int, Connection] = {}
        self._poll = poll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._waiting: list[tuple[Connection, Any]] = []
        self._kill_at = FOREVER
        self._drain_until = FOREVER
        self._vanish_until = FOREVER
        self._again_at = FOREVER
        self._ooms = 0
        self._was_alone = False
        """Nobody was left when the task's own process had ended: nobody is there who could make anybody any more."""
        self._leave_at = FOREVER
        self._listener: socket | None = None
        self.is_free = False
        """The task has ended, and nothing of it is left in this process."""

    def launch(self) -> dict[str, Any]:
        """Claim the key and start the task. Raises `LaunchFailed`, with nothing left behind."""
        spec = self.spec
        state = state_file.claim(spec.directory, spec.key, self.table, spec.spare)
        if state is None:
            raise LaunchFailed(f"{spec.task_id} was started before, or is known to be gone")
        self._state = state
        try:
            are_new = [make_group(path) for path in spec.cgroups]
            for path, value in spec.cgroup_files:
                set_value(path, value)
            self._ooms = 0 if all(are_new) else oom_kills(spec.oom_files)
            self._wakeup = _watch_children()
            streams = self.output.open()
            try:
                if spec.isolation is not None:
                    from fedsched.drivers.isolation import enter

                    self.jail = enter.prepare(spec.isolation)
                self.child = launch_task(spec, streams, self.jail)
            finally:
                for fd in set(streams):
                    os.close(fd)
            self.phase = "running"
            child = [self.child, processes.start_time(self.child)]
            self._note({"phase": self.phase, "child": child, "started_at_ns": time_ns()})
        except Exception as error:
            self._give_up()
            raise error if isinstance(error, LaunchFailed) else LaunchFailed(_said(error)) from error
        return self.table

    def _note(self, news: dict[str, Any]) -> None:
        """Put it on disk, for everybody who asks later. Raises `OSError`."""
        self._state.add(news)
        self.table |= news

    def _give_up(self) -> None:
        """Undo a launch: nothing of it may be left."""
        if self.child:
            self._kill_all()
            os.waitpid(self.child, 0)
        self._release()
        for path in self.spec.cgroups:
            remove_group(path)
        self._state.close()
        state_file.remove(self.spec.directory, self.spec.key)

    def run(self, first: Connection) -> None:
        """Serve until the task has ended and everybody who listens was told, or does not read."""
        self.begin(first)
        while not self.is_over:
            self.step()
        self.end(first)

    def begin(self, first: Connection) -> None:
        """Listen to everybody."""
        first.is_attached = True
        if first.is_closed:
            self._open_door()
        else:
            self._add(first)
        self._watch(self._wakeup, self._on_child)
        for fd in self.output.pipes():
            self._watch(fd, lambda _, fd=fd: self._on_output(fd))  # type: ignore[misc]

    def step(self) -> None:
        """Wait for something to happen, and do what it asks for."""
        for fd, events in self._poll.poll(self._timeout_ms()):
            self._handle(fd, events)
        self._on_time(monotonic())

    @property
    def is_over(self) -> bool:
        """Has everything been said, or did nobody listen for long enough?"""
        if self.phase != "ended":
            return False
        return not any(one.wants_to_write for one in self.connections.values()) or monotonic() >= self._leave_at

    def end(self, first: Connection | None = None) -> None:
        """Let go of everything, but of the `first` connection if it was told that this process is free."""
        self._state.close()
        for connection in self.connections.values():
            if connection is not first or not self.is_free:
                connection.close()
        if self._listener is not None:
            self._listener.close()
        if not self.is_free:
            forget_children()
        # Without circles its memory is free at once: nothing collects garbage here.
        self._handlers.clear()
        self.sessions.end()

    def _handle(self, fd: int, events: int) -> None:
        handler = self._handlers.get(fd)
        if handler is None:
            return
        try:
            handler(events)
        except Exception:  # whatever a peer may bring about, its connection is the price, and not the task
            connection = self.connections.get(fd)
            if connection is None:
                raise
            sys.excepthook(*sys.exc_info())
            connection.close()
            self._settle(fd, connection)

    # Requests

    def _open_door(self) -> None:
        """Make the control socket. Only now: most tasks are started and ended over their first connection."""
        if self._listener is None:
            self._listener = listen(self.spec.directory, self.spec.key + state_file.SOCKET)
            self._watch(self._listener.fileno(), self._on_peer)

    def _on_peer(self, _: int) -> None:
        assert self._listener is not None
        connection = accept(self._listener)
        if connection is not None and len(self.connections) < MAX_CONNECTIONS:
            self._add(Connection(connection))
        elif connection is not None:
            connection.close()

    def _add(self, connection: Connection) -> None:
        fd = connection.fileno()
        self.connections[fd] = connection
        self._watch(fd, lambda events: self._on_connection(fd, connection, events))

    def _on_connection(self, fd: int, connection: Connection, events: int) -> None:
        if events & POLLOUT:
            connection.flush()
        if events & ~POLLOUT and not connection.is_closed:
            for request in connection.receive():
                self._serve(connection, request)
        self._settle(fd, connection)

    def _settle(self, fd: int, connection: Connection) -> None:
        if connection.is_closed:
            if self.connections.get(fd) is connection:
                del self.connections[fd]
                self._forget(fd)
            self._waiting = [waiting for waiting in self._waiting if waiting[0] is not connection]
            self.sessions.close(connection)
            if not self.connections and self.phase != "ended":
                self._open_door()
        else:
            self._poll.modify(fd, POLLIN | (POLLOUT if connection.wants_to_write else 0))

    def tell(self, connection: Connection, message: dict[str, Any]) -> None:
        """Send something that was not asked for just now."""
        fd = connection.fileno()
        if fd >= 0 and not connection.is_closed:
            connection.send(message)
            self._settle(fd, connection)

    def _serve(self, connection: Connection, request: dict[str, Any]) -> None:
        number = request.get("id")
        operation = OPERATIONS.get(str(request.get("op")))
        if operation is None:
            connection.send({"id": number, "error": f"unknown request {request.get('op')!r:.60}"})
            return
        try:
            answer = operation(self, connection, request)
        except (LookupError, TypeError, ValueError, OSError, LaunchFailed) as error:
            connection.send({"id": number, "error": _said(error)})
            return
        if answer is not None:
            connection.send({"id": number, "ok": answer})

    def _ping(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        return self.table | {"phase": self.phase, "output": self.output.report()}

    def _attach(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        connection.is_attached = True  # before anything else is sent: the answer comes first, then what happens
        return self._ping(connection, request)

    def _door(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self._open_door()
        return {}

    def _wait(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any] | None:
        if self.phase == "ended":
            return {"result": self.table["result"]}
        self._waiting.append((connection, request.get("id")))
        return None

    def _signal(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        number = int(request["signal"])
        if self.phase != "running":
            raise ValueError("the task has ended")
        processes.send(self.child, number)
        return {}

    def _stop(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any] | None:
        """Answered when all of it is gone. A second request ends no earlier, unless it says so."""
        kill_at = monotonic() + max(0.0, float(request.get("timeout", 0)))
        number = int(request.get("signal") or 0)
        if self.phase == "running":
            if self._kill_at == FOREVER or request.get("sooner"):
                self._kill_at = min(self._kill_at, kill_at)
            if number:
                processes.send(self.child, number)
        return self._wait(connection, request)

    def _update(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any]:
        self.output.set_limits(int(request["max_files"]), int(request["max_file_bytes"]))
        return {}

    def _exec(self, connection: Connection, request: dict[str, Any]) -> dict[str, Any] | None:
        if self.phase != "running":
            raise ValueError("the task has ended")
        return self.sessions.start(connection, request)

    # What happens

    def _on_output(self, fd: int) -> None:
        if not self.output.pump(fd):
            self._forget(fd)
            self.output.close_pipe(fd)
            if self.phase == "ending" and not self.output.is_open:
                self._again_at = min(self._again_at, monotonic())

    def _on_child(self, _: int) -> None:
        while True:
            try:
                os.read(self._wakeup, 4096)
            except BlockingIOError:
                break
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self.child and self.phase == "running":
                self._begin_end(status)
            else:
                self.sessions.ended(pid, status)

    def _begin_end(self, status: int) -> None:
        """The task's own process is gone: whatever it left behind goes too, then its output is complete."""
        code = os.waitstatus_to_exitcode(status)
        is_success = code == 0
        self.table["result"] = {
            "exit_code": code if code >= 0 else 128 - code,
            "signal": -code if code < 0 else 0,
            "oom_killed": not is_success and oom_kills(self.spec.oom_files) > self._ooms,
            "finished_at_ns": time_ns(),
            "error": "",
        }
        self.phase = "ending"
        now = monotonic()
        self._kill_at = FOREVER
        self._drain_until = now + DRAIN_S
        self._vanish_until = now + VANISH_S
        self._again_at = now
        self._was_alone = not processes.send_group(self.child, SIGKILL) and not self._is_anybody_left()
        if not self._was_alone:
            self._kill_all()
        self._release()

    def _kill_all(self) -> None:
        """Everything that belongs to the task, one pass. Orphans are our own children: no new session hides them."""
        processes.send_group(self.child, SIGKILL)
        group = self.spec.cgroup_kill
        members = []
        if group:
            if not try_value(f"{group}/cgroup.kill", "1"):
                try_value(f"{group}/pids.max", "0")  # nobody in it forks faster than it is killed
            members = processes.group_pids(group)
            processes.kill_each(members)
        if not members and self._has_children():
            processes.kill_each(processes.descendants(self.pid))

    def _release(self) -> None:
        if self.jail is not None:
            from fedsched.drivers.isolation import enter

            jail, self.jail = self.jail, None
            enter.release(jail)

    def _is_anybody_left(self) -> bool:
        """Of the task's processes. With a cgroup orphans are not our children, but they are in it."""
        group = self.spec.cgroup_kill
        return self._has_children() or bool(group and processes.group_pids(group))

    def _has_children(self) -> bool:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def _on_time(self, now: float) -> None:
        self.output.on_time(now)
        dropped = self.output.newly_dropped(now)
        if dropped:
            self._tell_all({"event": "dropped", "bytes": dropped})
        if self.phase == "running" and now >= self._kill_at:
            self._kill_at = FOREVER
            self._kill_all()
        if self.phase == "ending" and now >= self._again_at:
            self._try_to_end(now)

    def _try_to_end(self, now: float) -> None:
        self._on_child(0)
        is_anybody_left = not self._was_alone and self._is_anybody_left()
        if is_anybody_left and now < self._vanish_until:
            self._kill_all()
            self._again_at = now + AGAIN_S
            return
        if self.output.is_open and now < self._drain_until:
            self._again_at = self._drain_until
            return
        self._end(is_anybody_left=is_anybody_left)

    def _end(self, *, is_anybody_left: bool) -> None:
        for fd in self.output.pipes():
            self._forget(fd)
        self.output.close()
        result = self.table["result"]
        for path in self.spec.cgroups:
            remove_group(path)
        if is_anybody_left:
            result["error"] = f"processes of the task were still there {VANISH_S:.0f} s after they were killed"
        self.phase = "ended"
        try:
            self._note({"phase": self.phase, "result": result, "output": self.output.report()})
        except OSError:
            # What is not on disk is not told: a full disk may have room again.
            self.phase = "ending"
            self._again_at = monotonic() + STORE_AGAIN_S
            return
        self._again_at = FOREVER
        self._leave_at = monotonic() + LEAVE_S
        waiting, self._waiting = self._waiting, []
        for connection, number in waiting:
            self.tell(connection, {"id": number, "ok": {"result": result}})
        self.is_free = self._may_serve_again and self._is_as_new(result)
        self._tell_all({"event": "ended", "result": result, "is_free": self.is_free})

    def _is_as_new(self, result: dict[str, Any]) -> bool:
        """Would a fork of the warm process be any different? Only the plainest of lives leaves no doubt."""
        return (
            self.spec.isolation is None
            and self._listener is None
            and not result["error"]
            and len(self.connections) == 1
            and not any(one.wants_to_write or one.session for one in self.connections.values())
        )

    def _tell_all(self, message: dict[str, Any]) -> None:
        for connection in list(self.connections.values()):
            if connection.is_attached:
                self.tell(connection, message)

    # The loop's own

    def _watch(self, fd: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, POLLIN)

    def _forget(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            try:
                self._poll.unregister(fd)
            except KeyError:
                return

    def _timeout_ms(self) -> int | None:
        at = min(self._kill_at, self._again_at, self._leave_at, self.output.wake_at())
        if at == FOREVER:
            return None
        return max(0, int((at - monotonic()) * 1000) + 1)


OPERATIONS: Final[dict[str, Callable[[Supervisor, Connection, dict[str, Any]], dict[str, Any] | None]]] = {
    "ping": Supervisor._ping,
    "attach": Supervisor._attach,
    "door": Supervisor._door,
    "wait": Supervisor._wait,
    "signal": Supervisor._signal,
    "stop": Supervisor._stop,
    "update": Supervisor._update,
    "stats": Supervisor._ping,
    "exec": Supervisor._exec,
}


_wakeup = (0, -1, -1)
"""The process that hears of its children's ends, and the two ends of the pipe it hears by. Kept from one task to the
next."""


def _watch_children() -> int:
    """A descriptor that becomes readable when a child has ended."""
    global _wakeup
    if _wakeup[0] != os.getpid():
        reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal(SIGCHLD, _heard)
        _wakeup = os.getpid(), reading, writing
    return _wakeup[1]


def forget_children() -> None:
    """Hear of them no more; nothing if this process did not."""
    global _wakeup
    if _wakeup[0] == os.getpid():
        set_wakeup_fd(-1)
        for fd in _wakeup[1:]:
            os.close(fd)
        _wakeup = (0, -1, -1)


def _heard(*_: object) -> None:
    """Only so that the signal is not ignored: the wake-up descriptor has it."""


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if isinstance(error.filename, str) else error.strerror
    return str(error) or type(error).__name__
