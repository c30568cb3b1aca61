"""Tells readers that a file may have grown: one inotify descriptor for all followers of a client, and no polling.

A bell is hung into a directory before its reader looks, and rings for every change of a file whose name begins in a
certain way. It stays rung until somebody waits for it, so that nothing is missed between looking and waiting. Where
inotify is not to be had (its limits are per user of the host), bells ring four times a second instead.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import Final

import trio

from fedsched.telemetry.log import Logger
from fedsched.wire.waker import Waker

IN_MODIFY: Final = 0x002
IN_MOVED_FROM: Final = 0x040
IN_MOVED_TO: Final = 0x080
IN_CREATE: Final = 0x100
IN_DELETE: Final = 0x200
IN_DELETE_SELF: Final = 0x400
IN_Q_OVERFLOW: Final = 0x4000
IN_IGNORED: Final = 0x8000
CHANGES: Final = IN_MODIFY | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF
_EVENT: Final = Struct("iIII")
READ_BYTES: Final = 64 * 1024
PACE_S: Final = 0.01
"""Events gather for so long: a busy writer wakes its readers a hundred times a second, not once per line."""
POLL_S: Final = 0.25

_LIBC: Final = ctypes.CDLL(None, use_errno=True)


class Bell(Waker):
    """What one reader waits for."""

    __slots__ = ("prefix",)

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self.prefix = prefix


class FileWakes:
    """All bells of a client. `run` must be running for any of them to ring."""

    def __init__(self, log: Logger, *, use_inotify: bool = True) -> None:
        self._log = log
        self._fd = _open_inotify(log) if use_inotify else -1
        self._bells: dict[int, list[Bell]] = {}
        """By watch."""
        self._polled: list[Bell] = []
        self._news = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ring until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._poll)
                if self._fd >= 0:
                    nursery.start_soon(self._listen)
                task_status.started()
        finally:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)

    @contextmanager
    def bell(self, directory: int, prefix: str) -> Iterator[Bell]:
        """A bell for files of a directory (given by a descriptor) whose names begin so."""
        bell = Bell(prefix)
        watch = self._watch(directory)
        if watch < 0:
            self._polled.append(bell)
            self._news.set()
        else:
            self._bells.setdefault(watch, []).append(bell)
        try:
            yield bell
        finally:
            self._take_down(watch, bell)

    def _watch(self, directory: int) -> int:
        if self._fd < 0:
            return -1
        path = f"/proc/self/fd/{directory}".encode()  # this very directory, whatever its name leads to by now
        watch = int(_LIBC.inotify_add_watch(self._fd, path, CHANGES))
        if watch < 0:
            self._log.warn("inotify_watch_refused", why=os.strerror(ctypes.get_errno()), poll_s=POLL_S)
        return watch

    def _take_down(self, watch: int, bell: Bell) -> None:
        if bell in self._polled:
            self._polled.remove(bell)
            return
        bells = self._bells.get(watch, [])
        if bell in bells:
            bells.remove(bell)
            if not bells:
                del self._bells[watch]
                if self._fd >= 0:
                    _LIBC.inotify_rm_watch(self._fd, watch)

    async def _poll(self) -> None:
        while True:
            if not self._polled:
                self._news = trio.Event()
                await self._news.wait()
            await trio.sleep(POLL_S)
            for bell in self._polled:
                bell.ring()

    async def _listen(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._fd)
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                continue
            self._ring(data)
            await trio.sleep(PACE_S)

    def _ring(self, data: bytes) -> None:
        for watch, mask, name in events_in(data):
            if mask & IN_Q_OVERFLOW:
                for bells in self._bells.values():
                    for bell in bells:
                        bell.ring()
            for bell in self._bells.get(watch, ()):
                if not name or name.startswith(bell.prefix):
                    bell.ring()
            if mask & IN_IGNORED:  # the directory is gone: whoever waits looks at it four times a second from here on
                self._polled += self._bells.pop(watch, [])
                self._news.set()


def events_in(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Watch, mask and name of each event the kernel wrote."""
    at = 0
    while at + _EVENT.size <= len(data):
        watch, mask, _, size = _EVENT.unpack_from(data, at)
        at += _EVENT.size
        yield watch, mask, os.fsdecode(data[at : at + size].rstrip(b"\0"))
        at += size


def _open_inotify(log: Logger) -> int:
    if not hasattr(_LIBC, "inotify_init1"):
        return -1
    fd = int(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        why = errno.errorcode.get(ctypes.get_errno(), "unknown")
        log.warn("inotify_not_available", why=why, poll_s=POLL_S)
    return fd
