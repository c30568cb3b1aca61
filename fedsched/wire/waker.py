"""Wakes one waiting child, again and again.

A `trio.Event` serves once and costs a parking lot; a link needs one such bell per call and per stream, so this is the
bare minimum: one waiter, and a ring that nobody heard is remembered.
"""

from __future__ import annotations

import trio


class Waker:
    """A bell for one child."""

    __slots__ = ("_is_rung", "_waiter")

    def __init__(self) -> None:
        self._is_rung = False
        self._waiter: trio.lowlevel.Task | None = None

    def ring(self) -> None:
        """Wake the waiter, or let the next one through."""
        waiter = self._waiter
        if waiter is None:
            self._is_rung = True
        else:
            self._waiter = None
            trio.lowlevel.reschedule(waiter)

    async def wait(self) -> None:
        """Wait for a ring since the last wait."""
        if self._is_rung:
            self._is_rung = False
            await trio.lowlevel.checkpoint()
            return
        if self._waiter is not None:
            raise trio.BusyResourceError("another child waits here already")
        self._waiter = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._waiter = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


class Latch:
    """Set once and for all, like a `trio.Event`; costs next to nothing until somebody waits for it."""

    __slots__ = ("_event", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._event: trio.Event | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        if self._is_set:
            await trio.lowlevel.checkpoint()
            return
        if self._event is None:
            self._event = trio.Event()
        await self._event.wait()
