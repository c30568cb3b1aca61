"""Removing what ended tasks left, many at once: in a burst each of them would take a thread for three small calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from fedsched.drivers.supervisor import leftovers


class Removals:
    """The first who asks does it for all who ask meanwhile."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._asked: list[_Removal] = []
        self._is_busy = False

    async def remove(self, key: str, table: Mapping[str, Any]) -> None:
        """Return when the files of this one are gone; raises `OSError`. Not called off once begun."""
        await trio.lowlevel.checkpoint_if_cancelled()
        removal = _Removal(key, table)
        self._asked.append(removal)
        with trio.CancelScope(shield=True):
            if self._is_busy:
                await removal.done.wait()
            else:
                await self._work()
        if removal.error is not None:
            raise removal.error

    async def _work(self) -> None:
        self._is_busy = True
        try:
            while self._asked:
                batch, self._asked = self._asked, []
                await trio.to_thread.run_sync(self._remove_all, batch)
                for removal in batch:
                    removal.done.set()
        finally:
            self._is_busy = False

    def _remove_all(self, batch: list[_Removal]) -> None:
        for removal in batch:
            try:
                leftovers.remove(self._directory, removal.key, removal.table)
            except OSError as error:
                removal.error = error


class _Removal:
    __slots__ = ("done", "error", "key", "table")

    def __init__(self, key: str, table: Mapping[str, Any]) -> None:
        self.key = key
        self.table = table
        self.done = trio.Event()
        self.error: OSError | None = None
