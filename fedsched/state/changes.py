"""What a command changed: the one thing that brokers, watchers, uplinks and blocking queries live on.

Rows are named one by one. Allocations come by the thousand and are named in bulk, by slot; a reader that wants them one
by one pays for that itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from fedsched.state.columns import Slots
from fedsched.state.table import Key

ALLOCATIONS = "allocations"
"""The table name under which allocations are waited for."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """One row was written or deleted at this index."""

    table: str
    key: Key
    index: int


class AllocChange(NamedTuple):
    """Allocations that a command placed, changed or removed."""

    slots: Slots
    node_slots: Slots
    """Where they are, in the same order."""
    jobs: tuple[tuple[str, str], ...]
    """Namespace and id of every job among them."""
    ids: bytes
    """Their ids in the same order, 16 bytes each."""
    removed: bool = False


class Changes:
    """Everything one command changed."""

    __slots__ = ("allocs", "index", "is_everything", "rows", "shrunk")

    def __init__(self, index: int, *, is_everything: bool = False) -> None:
        self.index = index
        self.rows: list[Change] = []
        self.shrunk: set[str] = set()
        """The tables from which a row was deleted."""
        self.allocs: list[AllocChange] = []
        self.is_everything = is_everything
        """The whole state was replaced: whoever waits for anything has to look again."""

    def __bool__(self) -> bool:
        return bool(self.rows or self.allocs or self.is_everything)

    def tables(self) -> set[str]:
        """The names of the tables that changed."""
        names = {change.table for change in self.rows}
        return names | {ALLOCATIONS} if self.allocs else names

    def keys(self, table: str) -> Iterator[Key]:
        """The keys that changed in one table of rows."""
        return (change.key for change in self.rows if change.table == table)

    def node_slots(self) -> Slots:
        """The slots of all nodes whose allocations changed, each once, ascending."""
        if not self.allocs:
            return np.empty(0, dtype=np.int64)
        return np.unique(np.concatenate([change.node_slots for change in self.allocs]))
