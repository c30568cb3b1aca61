"""Keeps one record on disk up to date, and lets the world see it only when it is there.

Changes that come while a write is under way are written together afterwards. Whoever must not go on before its change
is safe waits for `settled`. A write that failed is tried again until it works; meanwhile nothing new is shown.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Generic, TypeVar

import trio

from fedsched.model.errors import FedschedError

T = TypeVar("T")

RETRY_S: Final = 5.0


class StateWriter(Generic[T]):
    """Writes what `take` gives, then hands it to `publish`."""

    def __init__(
        self,
        take: Callable[[], T],
        put: Callable[[T], Awaitable[None]],
        publish: Callable[[T], None],
        on_error: Callable[[FedschedError], None],
    ) -> None:
        self._take = take
        self._put = put
        self._publish = publish
        self._on_error = on_error
        self._changes = 0
        self._written = 0
        self._failed = 0
        self._error: FedschedError | None = None
        self._wanted = trio.Event()
        self._moved = trio.Event()

    def changed(self) -> None:
        """There is something new to write."""
        self._changes += 1
        self._wanted.set()

    @property
    def is_settled(self) -> bool:
        return self._written == self._changes

    async def settled(self) -> None:
        """Return when everything up to now is on disk; raise if writing it failed."""
        wanted = self._changes
        while self._written < wanted:
            if self._failed >= wanted and self._error is not None:
                raise self._error
            await self._moved.wait()

    async def wait_settled(self) -> None:
        """Return when everything is on disk, however long that takes."""
        while not self.is_settled:
            await self._moved.wait()

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            await self._write()

    async def _write(self) -> None:
        number, record = self._changes, self._take()
        try:
            await self._put(record)
        except FedschedError as error:
            self._failed, self._error = number, error
            self._on_error(error)
            self._wake()
            with trio.move_on_after(RETRY_S):
                await self._wanted.wait()
            self._wanted.set()
            return
        self._written = number
        self._publish(record)
        self._wake()

    def _wake(self) -> None:
        moved, self._moved = self._moved, trio.Event()
        moved.set()
