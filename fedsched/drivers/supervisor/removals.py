"""Removing what ended tasks left, many at once: in a burst each of them would take a thread for three small calls."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

import trio

from fedsched.drivers.supervisor import leftovers, state_file

SPARES_MAX: Final = 64


class Removals:
    """The first who asks does it for all who ask meanwhile."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._spares: list[str] = []
        """Files that can be used again; see `state_file.put_by`."""
        self._numbers = itertools.count()
        self._asked: list[_Removal] = []
        self._is_busy = False

    def take_spare(self) -> str:
        """The name of a file that nobody else is given; empty if there is none."""
        return self._spares.pop() if self._spares else ""

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
                for removal in batch[: SPARES_MAX - len(self._spares)]:
                    removal.spare = f"{state_file.SPARE}{next(self._numbers)}"
                await trio.to_thread.run_sync(self._remove_all, batch)
                for removal in batch:
                    if removal.spare and removal.error is None:
                        self._spares.append(removal.spare)
                    removal.done.set()
        finally:
            self._is_busy = False

    def _remove_all(self, batch: list[_Removal]) -> None:
        for removal in batch:
            try:
                leftovers.remove(self._directory, removal.key, removal.table, removal.spare)
            except OSError as error:
                removal.error = error


class _Removal:
    __slots__ = ("done", "error", "key", "spare", "table")

    def __init__(self, key: str, table: Mapping[str, Any]) -> None:
        self.key = key
        self.table = table
        self.spare = ""
        self.done = trio.Event()
        self.error: OSError | None = None
