"""Namespaces and node pools: sets of jobs and sets of nodes. Some of each are always there."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import structs

from fedsched.state.fields import Command, Id, Text
from fedsched.state.past import Keeper, Past
from fedsched.state.result import Result, refused
from fedsched.state.table import Key, Row, Table, TableReader

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

BUILT_IN_NAMESPACES: Final = ("default",)
BUILT_IN_POOLS: Final = ("all", "default")


class NamespaceRow(Row):
    """A set of jobs."""

    table: ClassVar[str] = "namespaces"

    name: str
    description: str = ""
    body: bytes = b""
    create_index: int = 0
    modify_index: int = 0

    @property
    def key(self) -> Key:
        return (self.name,)


class NodePoolRow(Row):
    """A set of nodes."""

    table: ClassVar[str] = "node_pools"

    name: str
    description: str = ""
    body: bytes = b""
    create_index: int = 0
    modify_index: int = 0

    @property
    def key(self) -> Key:
        return (self.name,)


class PlacesReader:
    """Namespaces and node pools, live or as a snapshot saw them."""

    def __init__(self, namespaces: TableReader[NamespaceRow], node_pools: TableReader[NodePoolRow]) -> None:
        self.namespaces = namespaces
        self.node_pools = node_pools


class Places(PlacesReader):
    """The live ones."""

    def __init__(self, keeper: Keeper) -> None:
        self.namespace_table: Table[NamespaceRow] = Table(keeper, NamespaceRow)
        self.pool_table: Table[NodePoolRow] = Table(keeper, NodePoolRow)
        super().__init__(self.namespace_table, self.pool_table)

    def begin(self) -> None:
        """What every store starts with."""
        for name in BUILT_IN_NAMESPACES:
            self.namespace_table.put(NamespaceRow(name=name, create_index=1, modify_index=1))
        for name in BUILT_IN_POOLS:
            self.pool_table.put(NodePoolRow(name=name, create_index=1, modify_index=1))

    def view(self, past: Past) -> PlacesReader:
        return PlacesReader(self.namespace_table.view(past), self.pool_table.view(past))


class NamespaceUpsert(Command):
    """Store a namespace."""

    name: Id
    description: Text = ""
    body: bytes = b""


class NamespaceDelete(Command):
    """Forget a namespace that has no jobs."""

    name: Id


class NodePoolUpsert(Command):
    """Store a node pool."""

    name: Id
    description: Text = ""
    body: bytes = b""


class NodePoolDelete(Command):
    """Forget a node pool that has no nodes."""

    name: Id


def apply_namespace_upsert(tx: Transaction, command: NamespaceUpsert) -> Result:
    table = tx.store.places.namespace_table
    known = table.get(command.name)
    created = known.create_index if known else tx.index
    tx.put(table, NamespaceRow(**structs.asdict(command), create_index=created, modify_index=tx.index))
    return tx.done()


def apply_namespace_delete(tx: Transaction, command: NamespaceDelete) -> Result:
    job = next(tx.store.jobs.scan(command.name), None)
    if command.name in BUILT_IN_NAMESPACES:
        return refused(tx.index, "bad_request", f"namespace {command.name!r} is always there")
    if job is not None:
        return refused(
            tx.index,
            "conflict",
            f"namespace {command.name!r} still has jobs, {job.id!r} for one",
            hint="stop them with -purge first",
        )
    variable = next(tx.store.variables.rows.scan(command.name), None)
    if variable is not None:
        return refused(
            tx.index,
            "conflict",
            f"namespace {command.name!r} still has variables, {variable.path!r} for one",
            hint="purge them first: `fedsched var purge`",
        )
    if tx.delete(tx.store.places.namespace_table, command.name) is None:
        return refused(tx.index, "not_found", f"no namespace {command.name!r}")
    return tx.done()


def apply_pool_upsert(tx: Transaction, command: NodePoolUpsert) -> Result:
    if command.name in BUILT_IN_POOLS:
        return refused(tx.index, "bad_request", f"node pool {command.name!r} is built in and cannot be changed")
    table = tx.store.places.pool_table
    known = table.get(command.name)
    created = known.create_index if known else tx.index
    tx.put(table, NodePoolRow(**structs.asdict(command), create_index=created, modify_index=tx.index))
    return tx.done()


def apply_pool_delete(tx: Transaction, command: NodePoolDelete) -> Result:
    if command.name in BUILT_IN_POOLS:
        return refused(tx.index, "bad_request", f"node pool {command.name!r} is always there")
    node = next(tx.store.nodes.rows.by("pool", command.name), None)
    if node is not None:
        return refused(
            tx.index,
            "conflict",
            f"node pool {command.name!r} still has nodes, {node.id!r} for one",
            hint="move or remove its nodes first",
        )
    job = next(tx.store.jobs.rows.by("pool", command.name), None)
    if job is not None:
        return refused(
            tx.index,
            "conflict",
            f"node pool {command.name!r} is still asked for by jobs, {job.id!r} for one",
            hint="stop them, or let them ask for another pool",
        )
    if tx.delete(tx.store.places.pool_table, command.name) is None:
        return refused(tx.index, "not_found", f"no node pool {command.name!r}")
    return tx.done()
