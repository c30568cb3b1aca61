"""The latest result of every check on this host, and since when all that matter to an allocation have passed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from fedsched.model.check import CheckResult

NONE: Final[dict[str, CheckResult]] = {}


class CheckBook:
    """Results by allocation and check. Only what is entered counts: expected checks are entered as pending."""

    def __init__(self) -> None:
        self._results: dict[str, dict[str, CheckResult]] = {}
        self._passing_since: dict[str, int] = {}
        self._changed = trio.Event()

    def put(self, alloc_id: str, result: CheckResult) -> None:
        """Enter a result; the one before it is forgotten."""
        self._results.setdefault(alloc_id, {})[result.id] = result
        self._note(alloc_id, result.timestamp_ns)

    def expect(self, alloc_id: str, results: Iterable[CheckResult], now_ns: int) -> None:
        """From now on these are the checks of an allocation; a result that is known already stays."""
        known = self._results.get(alloc_id, NONE)
        self._results[alloc_id] = {one.id: known.get(one.id, one) for one in results}
        self._note(alloc_id, now_ns)

    def of(self, alloc_id: str) -> dict[str, CheckResult]:
        """The latest results of an allocation, by id."""
        return dict(self._results.get(alloc_id, NONE))

    def passing_since_ns(self, alloc_id: str) -> int | None:
        """Since when all checks that a deployment minds have passed without a break; None if not all do now.

        An allocation without checks has passed since ever: 0.
        """
        if alloc_id not in self._results:
            return 0
        return self._passing_since.get(alloc_id)

    def forget(self, alloc_id: str) -> None:
        """Drop all results of an allocation."""
        self._passing_since.pop(alloc_id, None)
        if self._results.pop(alloc_id, None) is not None:
            self._wake()

    @property
    def changed(self) -> trio.Event:
        """Set at the next change; ask again for the one after that."""
        return self._changed

    async def wait_changed(self) -> None:
        await self._changed.wait()

    def _note(self, alloc_id: str, now_ns: int) -> None:
        results = self._results[alloc_id].values()
        if not all(one.lets_pass for one in results):
            self._passing_since.pop(alloc_id, None)
        elif alloc_id not in self._passing_since:
            minded = any(one.on_update != "ignore" for one in results)
            self._passing_since[alloc_id] = now_ns if minded else 0
        self._wake()

    def _wake(self) -> None:
        event, self._changed = self._changed, trio.Event()
        event.set()
