"""Services: who offers what, where. Clients enter what runs on their host; the end of an allocation takes it out.

One row per registration, and one per name that has any. The row of a name says when anything under it last changed, so
that somebody who waits for one service is not woken by others, and notices one that went as well as one that came.

A registration lives no longer than its allocation: one for an allocation that has ended, or is not there, is not taken,
and when an allocation ends (or its node falls silent or leaves) its registrations go in the same step. A client whose
node comes back enters them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import msgspec
import numpy as np
from msgspec import structs

from fedsched.codec import STORED_LIMITS, from_bytes, to_bytes
from fedsched.model.ids import is_uuid
from fedsched.model.service import ServiceRegistration
from fedsched.state.columns import Rows, picked
from fedsched.state.fields import Command, Count, Id, Name, Stored
from fedsched.state.past import Keeper, Past
from fedsched.state.result import Result, refused
from fedsched.state.table import Key, Row, Table, TableReader
from fedsched.state.tables.alloc_columns import CLIENT_TERMINAL, id_of

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

SERVICES: Final = "services"
SERVICE_NAMES: Final = "service_names"
WRITES_MAX: Final = 1000
"""Registrations in one command; more are split by whoever makes them."""
BODY_MAX: Final = 16 * 1024
"""Bytes of one registration."""


class ServiceRow(Row):
    """One allocation's entry."""

    table: ClassVar[str] = SERVICES

    id: str
    namespace: str
    name: str
    node_id: str = ""
    alloc_id: str = ""
    job_id: str = ""
    body: bytes = b""
    """The whole registration, encoded, without its indexes."""
    create_index: int = 0
    modify_index: int = 0

    @property
    def key(self) -> Key:
        return (self.id,)

    def registration(self) -> ServiceRegistration:
        """The record that callers know."""
        if not self.body:
            known = ServiceRegistration(id=self.id)
        else:
            known = from_bytes(self.body, ServiceRegistration, STORED_LIMITS)
        return structs.replace(known, create_index=self.create_index, modify_index=self.modify_index)


class ServiceNameRow(Row):
    """A name with at least one registration."""

    table: ClassVar[str] = SERVICE_NAMES

    namespace: str
    name: str
    count: int = 0
    create_index: int = 0
    modify_index: int = 0
    """When anything under it came, changed or went."""

    @property
    def key(self) -> Key:
        return (self.namespace, self.name)


class ServicesReader:
    """Services, live or as a snapshot saw them."""

    def __init__(self, rows: TableReader[ServiceRow], names: TableReader[ServiceNameRow]) -> None:
        self.rows = rows
        self.names = names

    def of_name(self, namespace: str, name: str) -> Iterator[ServiceRow]:
        """The registrations of one service, by id."""
        return self.rows.by("name", namespace, name)

    def of_alloc(self, alloc_id: str) -> Iterator[ServiceRow]:
        return self.rows.by("alloc", alloc_id)

    def of_node(self, node_id: str) -> Iterator[ServiceRow]:
        return self.rows.by("node", node_id)

    def of_job(self, namespace: str, job_id: str) -> Iterator[ServiceRow]:
        return self.rows.by("job", namespace, job_id)


class Services(ServicesReader):
    """The live ones."""

    def __init__(self, keeper: Keeper) -> None:
        self.table: Table[ServiceRow] = Table(
            keeper,
            ServiceRow,
            {
                "name": lambda row: (row.namespace, row.name),
                "alloc": lambda row: (row.alloc_id,),
                "node": lambda row: (row.node_id,),
                "job": lambda row: (row.namespace, row.job_id),
            },
        )
        self.name_table: Table[ServiceNameRow] = Table(keeper, ServiceNameRow)
        super().__init__(self.table, self.name_table)

    def view(self, past: Past) -> ServicesReader:
        return ServicesReader(self.table.view(past), self.name_table.view(past))


class ServiceWrite(Stored):
    """One registration as a client wants it."""

    id: Id
    name: Id
    namespace: Id
    node_id: Id
    alloc_id: Id
    job_id: Name = ""
    body: Annotated[bytes, msgspec.Meta(max_length=BODY_MAX)] = b""
    """The whole registration, encoded by whoever proposes it."""


class ServicesRegister(Command):
    """Enter or change registrations. Those of allocations that do not run on their node are passed over."""

    services: Annotated[tuple[ServiceWrite, ...], msgspec.Meta(max_length=WRITES_MAX)]


class ServicesDeregister(Command):
    """Take registrations out; those that are not there are passed over."""

    ids: Annotated[tuple[Id, ...], msgspec.Meta(max_length=WRITES_MAX)]
    node_id: Name = ""
    """Only those of this node; empty for anybody's."""


class ServiceDelete(Command):
    """Somebody takes one registration out by hand."""

    id: Id
    namespace: Id
    name: Id
    check_index: Count = 0


def service_write(registration: ServiceRegistration) -> ServiceWrite:
    """The write that stores this registration."""
    return ServiceWrite(
        id=registration.id,
        name=registration.service_name,
        namespace=registration.namespace,
        node_id=registration.node_id,
        alloc_id=registration.alloc_id,
        job_id=registration.job_id,
        body=to_bytes(structs.replace(registration, create_index=0, modify_index=0)),
    )


def apply_register(tx: Transaction, command: ServicesRegister) -> Result:
    table = tx.store.services.table
    passed_over: list[str] = []
    for write in command.services:
        known = table.get(write.id)
        if not _runs_there(tx, write) or (known is not None and known.node_id != write.node_id):
            passed_over.append(write.id)
            continue
        row = _row(tx, write, known)
        if known is not None and known.body == row.body:
            continue
        if known is not None and (known.namespace, known.name) != (row.namespace, row.name):
            _count(tx, known, -1)
        is_new_there = known is None or (known.namespace, known.name) != (row.namespace, row.name)
        tx.put(table, row)
        _count(tx, row, 1 if is_new_there else 0)
    return tx.done(passed_over=passed_over)


def apply_deregister(tx: Transaction, command: ServicesDeregister) -> Result:
    rows = [row for key in dict.fromkeys(command.ids) if (row := tx.store.services.table.get(key)) is not None]
    mine = [row for row in rows if command.node_id in ("", row.node_id)]
    _remove(tx, mine)
    return tx.done(removed=len(mine))


def apply_delete(tx: Transaction, command: ServiceDelete) -> Result:
    row = tx.store.services.table.get(command.id)
    if row is None or (row.namespace, row.name) != (command.namespace, command.name):
        return refused(
            tx.index,
            "not_found",
            f"service registration not found: {command.id!r} of {command.name!r}",
            hint=f"`fedsched service info {command.name}` shows them",
        )
    if command.check_index and command.check_index != row.modify_index:
        return refused(tx.index, "conflict", f"it is at index {row.modify_index}, not at {command.check_index}")
    _remove(tx, [row])
    return tx.done(removed=1)


def end_services(tx: Transaction, rows: Rows) -> None:
    """Allocations came to these states: those that have ended offer nothing any more."""
    if not len(tx.store.services.table):
        return
    _remove_of_allocs(tx, picked(rows, np.flatnonzero(CLIENT_TERMINAL[rows["client_status"]])))


def forget_services(tx: Transaction, rows: Rows) -> None:
    """These allocations are forgotten, whatever state they were in."""
    if len(tx.store.services.table):
        _remove_of_allocs(tx, rows)


def silence_services(tx: Transaction, node_id: str) -> None:
    """A node fell silent, or left: nobody should be sent there."""
    _remove(tx, list(tx.store.services.of_node(node_id)))


def _remove_of_allocs(tx: Transaction, rows: Rows) -> None:
    reader = tx.store.services
    for at in range(len(rows)):
        _remove(tx, list(reader.of_alloc(id_of(rows[at]))))


def _remove(tx: Transaction, rows: Iterable[ServiceRow]) -> None:
    for row in rows:
        tx.delete(tx.store.services.table, row.id)
        _count(tx, row, -1)


def _count(tx: Transaction, row: ServiceRow, by: int) -> None:
    """Something under this row's name changed; the name goes with its last registration."""
    table = tx.store.services.name_table
    known = table.get(row.namespace, row.name)
    count = (known.count if known else 0) + by
    if count <= 0:
        tx.delete(table, row.namespace, row.name)
        return
    created = known.create_index if known else tx.index
    named = ServiceNameRow(
        namespace=row.namespace, name=row.name, count=count, create_index=created, modify_index=tx.index
    )
    tx.put(table, named)


def _row(tx: Transaction, write: ServiceWrite, known: ServiceRow | None) -> ServiceRow:
    return ServiceRow(
        id=write.id,
        namespace=write.namespace,
        name=write.name,
        node_id=write.node_id,
        alloc_id=write.alloc_id,
        job_id=write.job_id,
        body=write.body,
        create_index=known.create_index if known else tx.index,
        modify_index=tx.index,
    )


def _runs_there(tx: Transaction, write: ServiceWrite) -> bool:
    """Whether the allocation is there, on that node, and has not ended."""
    allocations = tx.store.allocations
    slot = allocations.slot_of(write.alloc_id) if is_uuid(write.alloc_id) else -1
    if slot < 0:
        return False
    row = allocations.live.read(np.array([slot], dtype=np.int64))[0]
    node = tx.store.nodes.of_slot(int(row["node"]))
    return node is not None and node.id == write.node_id and not CLIENT_TERMINAL[row["client_status"]]
