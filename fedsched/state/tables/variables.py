"""Variables: small maps of settings and secrets under a path. The store never sees what is in them.

Items come sealed and leave sealed (see `server.sealing`): nothing here could read them, nor does it need to. Whoever
writes may say which version they expect to replace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import msgspec

from fedsched.state.fields import Command, Count, Id
from fedsched.state.past import Keeper, Past
from fedsched.state.result import Result, refused
from fedsched.state.table import Key, Row, Table, TableReader

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

VARIABLES: Final = "variables"
SEALED_MAX: Final = 128 * 1024
"""Bytes of sealed items: what people may write, and what sealing adds to it."""


class VariableRow(Row):
    """One variable."""

    table: ClassVar[str] = VARIABLES

    namespace: str
    path: str
    sealed: bytes = b""
    create_index: int = 0
    create_time_ns: int = 0
    modify_index: int = 0
    modify_time_ns: int = 0

    @property
    def key(self) -> Key:
        return (self.namespace, self.path)


class VariablesReader:
    """Variables, live or as a snapshot saw them."""

    def __init__(self, rows: TableReader[VariableRow]) -> None:
        self.rows = rows

    def get(self, namespace: str, path: str) -> VariableRow | None:
        return self.rows.get(namespace, path)

    def under(self, namespace: str, prefix: str) -> Iterator[VariableRow]:
        """All whose path begins like this, by path."""
        for row in self.rows.scan(namespace, start=(namespace, prefix)):
            if not row.path.startswith(prefix):
                return
            yield row


class Variables(VariablesReader):
    """The live ones."""

    def __init__(self, keeper: Keeper) -> None:
        self.table: Table[VariableRow] = Table(keeper, VariableRow)
        super().__init__(self.table)

    def view(self, past: Past) -> VariablesReader:
        return VariablesReader(self.table.view(past))


class VariablePut(Command):
    """Store a variable."""

    namespace: Id
    path: Id
    sealed: Annotated[bytes, msgspec.Meta(max_length=SEALED_MAX)]
    check_and_set: bool = False
    check_index: Count = 0
    """With `check_and_set`: what it was last changed at; 0 for one that must not be there."""


class VariableDelete(Command):
    """Forget a variable; one that is not there is gone already."""

    namespace: Id
    path: Id
    check_and_set: bool = False
    check_index: Count = 0


def apply_put(tx: Transaction, command: VariablePut) -> Result:
    if tx.store.places.namespaces.get(command.namespace) is None:
        return refused(
            tx.index,
            "not_found",
            f"namespace {command.namespace!r} not found",
            hint="`fedsched namespace apply` makes one",
        )
    table = tx.store.variables.table
    known = table.get(command.namespace, command.path)
    changed_since = _changed_since(tx, command, known)
    if changed_since is not None:
        return changed_since
    row = VariableRow(
        namespace=command.namespace,
        path=command.path,
        sealed=command.sealed,
        create_index=known.create_index if known else tx.index,
        create_time_ns=known.create_time_ns if known else tx.time_ns,
        modify_index=tx.index,
        modify_time_ns=tx.time_ns,
    )
    tx.put(table, row)
    return tx.done()


def apply_delete(tx: Transaction, command: VariableDelete) -> Result:
    table = tx.store.variables.table
    changed_since = _changed_since(tx, command, table.get(command.namespace, command.path))
    if changed_since is not None:
        return changed_since
    gone = tx.delete(table, command.namespace, command.path)
    return tx.done(removed=gone is not None)


def _changed_since(tx: Transaction, command: VariablePut | VariableDelete, known: VariableRow | None) -> Result | None:
    index = known.modify_index if known else 0
    if not command.check_and_set or command.check_index == index:
        return None
    return refused(
        tx.index,
        "conflict",
        f"variable {command.path!r} is at index {index}, not at {command.check_index}",
        hint="read it again and repeat the change on what is there now",
    )
