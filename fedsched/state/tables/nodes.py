"""Nodes: one row each, and a small number (the slot) by which allocations and plans refer to them.

A slot outlives its node until the last allocation on it is gone, so an allocation can always say where it ran. Because
a slot may be given to another node later, a plan says from which index on it knew the fleet, and a placement on a slot
that is younger than that is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Final

import msgspec
import numpy as np
from msgspec import structs

from fedsched.codec import STORED_LIMITS, from_bytes, to_bytes
from fedsched.model.node import DrainMetadata, DrainStrategy, Eligibility, Node, NodeStatus
from fedsched.state.columns import Columns, ColumnsReader, Slots
from fedsched.state.fields import Command, Count, Id, Name, ShortText
from fedsched.state.past import Keeper, Past
from fedsched.state.result import Result, refused
from fedsched.state.table import Key, Row, Table, TableReader, WideRow
from fedsched.state.tables.evaluations import EvaluationWrite, store_evaluations
from fedsched.state.tables.node_events import read_events
from fedsched.state.tables.services import silence_services

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

READY: Final = NodeStatus.READY.value
ELIGIBLE: Final = Eligibility.ELIGIBLE.value
Evaluations = Annotated[tuple[EvaluationWrite, ...], msgspec.Meta(max_length=100_000)]

NODE_SLOT_DTYPE: Final = np.dtype(
    [
        ("used", "<u1"),
        ("departed", "<u1"),
        ("spare", "<u2"),
        ("head", "<i4"),
        ("tail", "<i4"),
        ("spare2", "<u4"),
        ("create_index", "<i8"),
    ]
)


class NodeRow(WideRow):
    """A host's record: what is asked for often, and all of it encoded."""

    table: ClassVar[str] = "nodes"

    id: str
    slot: int
    name: str = ""
    datacenter: str = ""
    node_pool: str = ""
    node_class: str = ""
    computed_class: str = ""
    status: str = ""
    eligibility: str = ""
    draining: bool = False
    create_index: int = 0
    modify_index: int = 0
    body: bytes = b""
    """What the client said of its host when it last registered."""
    status_description: str = ""
    status_updated_at_s: int = 0
    drain: bytes = b""
    """The encoded drain strategy while it is emptied."""
    last_drain: bytes = b""
    events: bytes = b""
    """The latest events, encoded (see `node_events`)."""
    missed_heartbeat_index: int = 0
    """When it last went down or was cut off."""
    alloc_update_index: int = 0
    """When its client first told about its allocations after that."""
    secret_hash: bytes = b""

    @property
    def key(self) -> Key:
        return (self.id,)

    @property
    def is_ready(self) -> bool:
        """Whether something new may be placed on it."""
        return self.status == READY and self.eligibility == ELIGIBLE and not self.draining

    def node(self) -> Node:
        """The whole record: what the client said, and over it what servers say."""
        whole = from_bytes(self.body, Node, STORED_LIMITS)
        strategy = from_bytes(self.drain, DrainStrategy, STORED_LIMITS) if self.drain else whole.drain_strategy
        return structs.replace(
            whole,
            status=NodeStatus(self.status) if self.status else whole.status,
            status_description=self.status_description or whole.status_description,
            status_updated_at_s=self.status_updated_at_s or whole.status_updated_at_s,
            scheduling_eligibility=Eligibility(self.eligibility) if self.eligibility else whole.scheduling_eligibility,
            drain_strategy=strategy if self.draining else None,
            last_drain=from_bytes(self.last_drain, DrainMetadata, STORED_LIMITS) if self.last_drain else None,
            events=read_events(self.events),
            last_missed_heartbeat_index=self.missed_heartbeat_index,
            last_alloc_update_index=self.alloc_update_index,
            create_index=self.create_index,
            modify_index=self.modify_index,
        )


class NodeSlotRow(Row):
    """Which node a slot stands for."""

    table: ClassVar[str] = "node_slots"

    slot: int
    node_id: str
    name: str = ""
    create_index: int = 0
    departed: bool = False

    @property
    def key(self) -> Key:
        return (self.slot,)


KEPT: Final = ("secret_hash", "last_drain", "events", "missed_heartbeat_index", "alloc_update_index")
"""What a node's record holds that no registration changes."""


class NodesReader:
    """Nodes, live or as a snapshot saw them."""

    def __init__(self, rows: TableReader[NodeRow], slot_rows: TableReader[NodeSlotRow], slots: ColumnsReader) -> None:
        self.rows = rows
        self.slot_rows = slot_rows
        self.slots = slots

    def get(self, node_id: str) -> NodeRow | None:
        return self.rows.get(node_id)

    def of_slot(self, slot: int) -> NodeRow | None:
        """The node that has this slot; None if it has left or there never was one."""
        known = self.slot_rows.get(slot)
        return self.rows.get(known.node_id) if known and not known.departed else None

    def with_status(self, status: str) -> Iterator[NodeRow]:
        return self.rows.by("status", status)

    def slot_of(self, node_id: str) -> int | None:
        """The slot of a node, also of one that has left but whose allocations are still known."""
        row = next(self.slot_rows.by("node", node_id), None)
        return row.slot if row else None

    def at(self, slot: int) -> NodeSlotRow | None:
        """Which node has this slot."""
        return self.slot_rows.get(slot)


class Nodes(NodesReader):
    """The live nodes."""

    def __init__(self, keeper: Keeper) -> None:
        self.table: Table[NodeRow] = Table(
            keeper, NodeRow, {"pool": lambda row: (row.node_pool,), "status": lambda row: (row.status,)}
        )
        self.slot_table: Table[NodeSlotRow] = Table(keeper, NodeSlotRow, {"node": lambda row: (row.node_id,)})
        self.columns = Columns(keeper, NODE_SLOT_DTYPE)
        super().__init__(self.table, self.slot_table, self.columns)

    def view(self, past: Past) -> NodesReader:
        return NodesReader(self.table.view(past), self.slot_table.view(past), self.columns.view(past))

    def take_slot(self, node_id: str, name: str, index: int) -> int:
        """The slot this node had, or a free one."""
        slot = self.slot_of(node_id)
        if slot is None:
            slots = self.columns.claim(1)
            slot = int(slots[0])
            record = np.zeros(1, dtype=NODE_SLOT_DTYPE)
            record["used"], record["create_index"] = 1, index
            self.columns.write(slots, record)
            self.slot_table.put(NodeSlotRow(slot=slot, node_id=node_id, name=name, create_index=index))
            return slot
        known = self.slot_table.get(slot)
        assert known is not None
        if known.departed or known.name != name:
            self.slot_table.put(structs.replace(known, departed=False, name=name))
            self.columns.put(np.array([slot]), "departed", 0)
        return slot

    def leave_slot(self, slot: int) -> None:
        """The node is gone; its slot is freed now or with its last allocation."""
        known = self.slot_table.get(slot)
        assert known is not None
        self.slot_table.put(structs.replace(known, departed=True))
        slots = np.array([slot], dtype=np.int64)
        self.columns.put(slots, "departed", 1)
        self.free_empty(slots)

    def free_empty(self, slots: Slots) -> None:
        """Free those of these slots whose node has left and which hold no allocation any more."""
        records = self.columns.read(slots)
        done = slots[(records["departed"] != 0) & (records["head"] == 0)]
        for slot in done.tolist():
            self.slot_table.delete(slot)
        self.columns.release(done)


class NodeUpsert(Command):
    """A node says what it is. Everything a table needs to know stands beside the encoded record."""

    id: Id
    name: Name = ""
    datacenter: Name = ""
    node_pool: Name = "default"
    node_class: Name = ""
    computed_class: Name = ""
    status: ShortText = "initializing"
    eligibility: ShortText = "eligible"
    draining: bool = False
    body: bytes = b""


class NodeDeregister(Command):
    """Nodes that are not coming back."""

    ids: Annotated[tuple[Id, ...], msgspec.Meta(max_length=10_000)]
    evaluations: Evaluations = ()
    seen_index: Count = 0
    """The state in which somebody found them gone for good; one that has changed since stays. 0: all of them go."""


def node_upsert(node: Node) -> NodeUpsert:
    """The command that stores this node."""
    return NodeUpsert(
        id=node.id,
        name=node.name,
        datacenter=node.datacenter,
        node_pool=node.node_pool,
        node_class=node.node_class,
        computed_class=node.computed_class,
        status=str(node.status),
        eligibility=str(node.scheduling_eligibility),
        draining=node.drain_strategy is not None,
        body=to_bytes(structs.replace(node, create_index=0, modify_index=0)),
    )


def apply_upsert(tx: Transaction, command: NodeUpsert) -> Result:
    nodes = tx.store.nodes
    known = nodes.get(command.id)
    slot = nodes.take_slot(command.id, command.name, tx.index)
    row = NodeRow(
        **structs.asdict(command),
        slot=slot,
        create_index=known.create_index if known else tx.index,
        modify_index=tx.index,
    )
    if known is not None:
        row = structs.replace(row, **{name: getattr(known, name) for name in KEPT})
    tx.put(nodes.table, row)
    return tx.done(slot=slot)


def apply_deregister(tx: Transaction, command: NodeDeregister) -> Result:
    nodes = tx.store.nodes
    ids = dict.fromkeys(command.ids)
    if command.seen_index:
        known = ((node_id, nodes.get(node_id)) for node_id in ids)
        ids = dict.fromkeys(node_id for node_id, row in known if row and row.modify_index <= command.seen_index)
    unknown = [node_id for node_id in ids if nodes.get(node_id) is None]
    if unknown:
        return refused(tx.index, "not_found", f"no node {unknown[0]!r}", hint="`fedsched node status` lists them")
    for node_id in ids:
        row = tx.delete(nodes.table, node_id)
        assert row is not None
        nodes.leave_slot(row.slot)
        silence_services(tx, node_id)
    store_evaluations(tx, command.evaluations)
    return tx.done()
