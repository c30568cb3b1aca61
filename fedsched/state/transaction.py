"""One command on its way into the store: where it stands in the log, what time it is there, and what it changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fedsched.state.changes import AllocChange, Change, Changes
from fedsched.state.result import Result
from fedsched.state.table import Row, Table

if TYPE_CHECKING:
    from fedsched.state.store import Store

R = TypeVar("R", bound=Row)


class Transaction:
    """Handed to whatever carries a command out. Check first, then write: nothing is ever rolled back."""

    __slots__ = ("changes", "index", "store", "time_ns")

    def __init__(self, store: Store, index: int, time_ns: int) -> None:
        self.store = store
        self.index = index
        self.time_ns = time_ns
        """Time as the log has it: stamped by the proposer, never going back."""
        self.changes = Changes(index)

    def put(self, table: Table[R], row: R) -> None:
        table.put(row)
        self.changes.rows.append(Change(table.name, row.key, self.index))

    def delete(self, table: Table[R], *key: Any) -> R | None:
        row = table.delete(*key)
        if row is not None:
            self.changes.rows.append(Change(table.name, key, self.index))
            self.changes.shrunk.add(table.name)
        return row

    def changed(self, change: AllocChange) -> None:
        self.changes.allocs.append(change)

    def done(self, **value: Any) -> Result:
        return Result(index=self.index, value=value)
