"""What the driver says about its tasks while it works, for whoever listens."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from typing import Final

import trio

from fedsched.drivers.driver import DriverMessage

KEPT: Final = 256
"""Unread ones; the oldest go first, for the newest say most."""


class Messages:
    """One reader at a time is expected; without any, old words are forgotten."""

    def __init__(self) -> None:
        self._waiting: deque[DriverMessage] = deque(maxlen=KEPT)
        self._added = trio.Event()

    def add(self, message: DriverMessage) -> None:
        self._waiting.append(message)
        self._added.set()

    async def read(self) -> AsyncIterator[DriverMessage]:
        while True:
            while self._waiting:
                yield self._waiting.popleft()
            self._added = trio.Event()
            await self._added.wait()
