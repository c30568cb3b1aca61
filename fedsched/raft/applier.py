"""Feeds committed entries to the state machine, in index order, in slices short enough for the event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from fedsched.model.errors import FedschedError
from fedsched.raft.core import RaftCore
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.machine import Machine

SLICE_S: Final = 0.002
"""Longer would make heartbeats late; shorter would spend the time on switching."""

AT_ONCE_ENTRIES: Final = 8
AT_ONCE_BYTES: Final = 8 * 1024
"""Entries of at most this number and size altogether are applied as soon as they are committed."""


class ApplyFailed(FedschedError):
    """An entry that this code cannot carry out: going on would leave a state that nobody else has."""

    code = "apply_failed"


class Applier:
    """The one place where entries become state. Nothing else may call `machine.apply`."""

    def __init__(
        self,
        core: RaftCore,
        machine: Machine,
        *,
        on_applied: Callable[[int, Sequence[tuple[int, object]]], None],
        restore: Callable[[Entry], Awaitable[None]],
        digest_every: int,
        clock: Callable[[], float],
    ) -> None:
        self.applied = core.status().applied
        self.bytes_since_snapshot = 0
        self.longest_slice_s = 0.0
        self._core = core
        self._machine = machine
        self._on_applied = on_applied
        self._restore = restore
        self._digest_every = digest_every
        self._clock = clock
        self._commit = 0
        self._due = trio.Event()
        self._failure: ApplyFailed | None = None
        self._turn = trio.Lock()
        self._held = 0
        self._released = trio.Event()
        self._restore_scope = trio.CancelScope()

    def commit_to(self, index: int) -> None:
        """Entries up to `index` may be applied: small ones at once if nothing is under way, so that a lone write waits
        no turn. Large ones get a turn of their own, because this one may have had its share of work already."""
        self._commit = max(self._commit, index)
        if self._turn.locked() or self._failure is not None or not self._is_small():
            self._due.set()
            return
        try:
            self._apply_slice()
        except ApplyFailed as error:
            self._failure = error
        if self.applied < self._commit or self._failure is not None:
            self._due.set()

    async def run(self) -> None:
        while True:
            await self._due.wait()
            self._due = trio.Event()
            if self._failure is not None:
                raise self._failure
            while self.applied < self._commit and not self._held:
                async with self._turn:
                    restore = self._apply_slice()
                    if restore is not None:
                        with trio.CancelScope() as self._restore_scope:
                            await self._apply_restore(restore)
                await trio.lowlevel.checkpoint()

    def _is_small(self) -> bool:
        if self._commit - self.applied > AT_ONCE_ENTRIES:
            return False
        waiting = self._core.entries(self.applied + 1, self._commit)
        return sum(len(entry.payload) for entry in waiting) <= AT_ONCE_BYTES

    def hold(self) -> None:
        """Apply nothing more until a `replace_state` that is already on its way has been done.

        A restore under way is given up: the new state holds its outcome, and nobody may have its image any more.
        """
        if not self._held:
            self._released = trio.Event()
        self._held += 1
        self._restore_scope.cancel()

    async def wait_released(self) -> None:
        """Wait until no new state is on its way: until then the log need not reach back to what is applied."""
        while self._held:
            await self._released.wait()

    async def replace_state(self, index: int, load: Callable[[], Awaitable[None]]) -> None:
        """Put a whole new state in place, ending one `hold`. Applying waits; all else on the event loop goes on."""
        async with self._turn:
            await load()
            self.applied = index
            self.bytes_since_snapshot = 0
            self._core.applied(index)
            self._on_installed(index)
            self._held -= 1
            if not self._held:
                self._released.set()
            self._due.set()

    def _on_installed(self, index: int) -> None:
        self._machine.after_apply(index)
        self._on_applied(index, [(0, None)])

    async def _apply_restore(self, entry: Entry) -> None:
        """An entry that replaces the state. It may take long; heartbeats, votes and the log go on meanwhile."""
        await self._restore(entry)
        self.applied = entry.index
        self._core.applied(entry.index)
        self._machine.after_apply(entry.index)
        self._on_applied(entry.index, [(entry.term, None)])

    def _apply(self, entry: Entry) -> object:
        try:
            return self._machine.apply(entry)
        except Exception as error:
            raise ApplyFailed(
                f"entry {entry.index} (term {entry.term}) could not be applied: {error!r}",
                hint="every server meets the same entry: install a version that can apply it and start again",
            ) from error

    def _apply_slice(self) -> Entry | None:
        """Apply entries for a few milliseconds; returns the entry it stopped before, if that replaces the state."""
        if self.applied >= self._commit or self._held:
            return None  # a snapshot was installed while we waited for our turn
        restore: Entry | None = None
        started = self._clock()
        first = self.applied + 1
        results: list[tuple[int, object]] = []
        for entry in self._core.entries(first, self._commit):
            assert entry.index == self.applied + 1, f"entry {entry.index} after {self.applied}"
            if entry.kind is EntryKind.RESTORE:
                restore = entry
                break
            result = self._apply(entry) if entry.kind is EntryKind.COMMAND else None
            results.append((entry.term, result))
            self.applied = entry.index
            self.bytes_since_snapshot += len(entry.payload)
            if entry.index % self._digest_every == 0:
                self._core.note_digest(entry.index, self._machine.digest())
            if self._clock() - started > SLICE_S:
                break
        if not results:
            return restore
        self.longest_slice_s = max(self.longest_slice_s, self._clock() - started)
        self._core.applied(self.applied)
        self._machine.after_apply(self.applied)
        self._on_applied(first, results)
        return restore
