"""Lets a bounded number of allocations be prepared at a time, so that a thousand that come together do not all hold
directories and mounts while they wait for their turn to be launched.

One that takes long (a download, a slow image) no longer counts after a while: it must not keep others from starting.
"""

from __future__ import annotations

from typing import Final

import trio

AT_ONCE: Final = 256
"""Launches are ten times fewer at a time; the rest are waiting for the disk."""
PATIENCE_S: Final = 2.0


class StartGate:
    """First come, first served."""

    def __init__(self, at_once: int = AT_ONCE, patience_s: float = PATIENCE_S) -> None:
        self._at_once = at_once
        self._patience_s = patience_s
        self._turn = trio.StrictFIFOLock()
        self._inside: dict[str, float] = {}
        """Since when, by allocation; the longest first."""
        self._left = trio.Event()

    async def enter(self, alloc_id: str) -> None:
        """Wait for room. Calling `leave` makes room for the next, whether this one was let in or not."""
        async with self._turn:
            while len(self._inside) >= self._at_once:
                oldest, since = next(iter(self._inside.items()))
                self._left = trio.Event()
                with trio.move_on_at(since + self._patience_s):
                    await self._left.wait()
                if trio.current_time() >= since + self._patience_s:
                    self._inside.pop(oldest, None)
            self._inside[alloc_id] = trio.current_time()

    def leave(self, alloc_id: str) -> None:
        """It has started, or never will. No effect if it is not inside."""
        if self._inside.pop(alloc_id, None) is not None:
            self._left.set()
