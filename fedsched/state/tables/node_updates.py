"""What happens to a node after it is known: it registers again, goes silent, comes back, is emptied, is set aside.

Whatever servers say of a node stands in the row beside what its client said; so none of this touches the (large)
record of the host, and a thousand nodes lost at once are one entry of the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import structs

from fedsched.codec import STORED_LIMITS, CodecError, from_bytes, to_bytes
from fedsched.model.node import DrainMetadata, DrainStatus, DrainStrategy, Eligibility, NodeStatus
from fedsched.state.fields import Command, Count, Id, Name, Stored, Text
from fedsched.state.result import InvalidCommand, Result, refused
from fedsched.state.tables.alloc_columns import CLIENT_TERMINAL
from fedsched.state.tables.evaluations import store_evaluations
from fedsched.state.tables.namespaces import NodePoolRow
from fedsched.state.tables.node_events import NodeEventWrite, with_event
from fedsched.state.tables.nodes import KEPT, Evaluations, NodeRow
from fedsched.state.tables.services import silence_services

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

NS: Final = 1_000_000_000
SILENT: Final = (NodeStatus.DOWN.value, NodeStatus.DISCONNECTED.value)
ELIGIBLE: Final = Eligibility.ELIGIBLE.value
INELIGIBLE: Final = Eligibility.INELIGIBLE.value
NODES_MAX: Final = 50_000
Status = Literal["initializing", "ready", "down", "disconnected"]


class NodeRegister(Command):
    """A client says what its host is. What servers said of a known node (status, eligibility, drain) stays."""

    id: Id
    name: Name = ""
    datacenter: Name = ""
    node_pool: Name = "default"
    node_class: Name = ""
    computed_class: Name = ""
    status: Status = "initializing"
    """Only of a node that is new."""
    eligibility: Literal["eligible", "ineligible"] = "eligible"
    body: bytes = b""
    create_pool: bool = False
    """Make the node pool if there is none of that name."""
    secret_hash: Annotated[bytes, msgspec.Meta(max_length=64)] = b""
    """Of the secret that its client proves itself with; must stay the same once there is one."""
    event: NodeEventWrite | None = None
    evaluations: Evaluations = ()


class NodeStatusWrite(Stored):
    """A new status of one node."""

    id: Id
    status: Status
    description: Text = ""
    event: NodeEventWrite | None = None


class NodeStatusUpdate(Command):
    """New statuses of nodes, many at once."""

    updates: Annotated[tuple[NodeStatusWrite, ...], msgspec.Meta(max_length=NODES_MAX)]
    evaluations: Evaluations = ()


class NodeEligibilityUpdate(Command):
    """Let nodes take new allocations, or no more."""

    ids: Annotated[tuple[Id, ...], msgspec.Meta(max_length=NODES_MAX)]
    eligibility: Literal["eligible", "ineligible"]
    event: NodeEventWrite | None = None
    evaluations: Evaluations = ()


class NodeDrainWrite(Stored):
    """Begin, change or end the drain of one node."""

    id: Id
    strategy: bytes = b""
    """The encoded strategy; nothing ends the drain. With `is_complete`: only this very drain is ended."""
    mark_eligible: bool = False
    """With the end: whether it may take allocations again."""
    is_complete: bool = False
    """With the end: everything has left; else somebody called it off."""
    meta: dict[Name, Text] = msgspec.field(default_factory=dict)
    accessor_id: Name = ""
    event: NodeEventWrite | None = None
    as_of: Count = 0
    """With `is_complete`: when the node was seen empty (an index, 0 if not said); what came since is not gone."""


class NodeDrainUpdate(Command):
    """Drains of nodes begin, change or end."""

    updates: Annotated[tuple[NodeDrainWrite, ...], msgspec.Meta(max_length=NODES_MAX)]
    evaluations: Evaluations = ()


def apply_register(tx: Transaction, command: NodeRegister) -> Result:
    nodes, pools = tx.store.nodes, tx.store.places.pool_table
    known = nodes.get(command.id)
    if known is not None and known.secret_hash and known.secret_hash != command.secret_hash:
        return refused(
            tx.index,
            "bad_request",
            f"node {command.id!r} is known with another secret",
            hint="each client needs a data_dir of its own; forget the old node with `fedsched node purge`",
        )
    if command.create_pool and pools.get(command.node_pool) is None:
        tx.put(pools, NodePoolRow(name=command.node_pool, create_index=tx.index, modify_index=tx.index))
    slot = nodes.take_slot(command.id, command.name, tx.index)
    row = NodeRow(
        id=command.id,
        slot=slot,
        name=command.name,
        datacenter=command.datacenter,
        node_pool=command.node_pool,
        node_class=command.node_class,
        computed_class=command.computed_class,
        status=command.status,
        eligibility=command.eligibility,
        create_index=tx.index,
        modify_index=tx.index,
        body=command.body,
        status_updated_at_s=tx.time_ns // NS,
        secret_hash=command.secret_hash,
    )
    if known is not None:
        row = structs.replace(row, **{name: getattr(known, name) for name in _SAID_BY_SERVERS})
    events = with_event(row.events, command.event, index=tx.index, time_ns=tx.time_ns)
    tx.put(nodes.table, structs.replace(row, events=events))
    store_evaluations(tx, command.evaluations)
    return tx.done(slot=slot, is_new=known is None)


def apply_status(tx: Transaction, command: NodeStatusUpdate) -> Result:
    unknown = 0
    for update in command.updates:
        row = tx.store.nodes.get(update.id)
        if row is None:
            unknown += 1
            continue
        changed = structs.replace(
            row,
            status=update.status,
            status_description=update.description,
            status_updated_at_s=tx.time_ns // NS,
            events=with_event(row.events, update.event, index=tx.index, time_ns=tx.time_ns),
            modify_index=tx.index,
        )
        if update.status in SILENT and row.status not in SILENT:
            changed = structs.replace(changed, missed_heartbeat_index=tx.index)
            silence_services(tx, update.id)
        tx.put(tx.store.nodes.table, changed)
    store_evaluations(tx, command.evaluations)
    return tx.done(updated=len(command.updates) - unknown, unknown=unknown)


def apply_eligibility(tx: Transaction, command: NodeEligibilityUpdate) -> Result:
    rows = [tx.store.nodes.get(node_id) for node_id in dict.fromkeys(command.ids)]
    for node_id, row in zip(dict.fromkeys(command.ids), rows, strict=True):
        if row is None:
            return _no_node(tx, node_id)
        if row.draining and command.eligibility == ELIGIBLE:
            return refused(
                tx.index,
                "bad_request",
                f"node {node_id!r} is draining and cannot become eligible",
                hint="end the drain first: `fedsched node drain -disable`",
            )
    set_eligibility(tx, [row for row in rows if row is not None], command.eligibility, command.event)
    store_evaluations(tx, command.evaluations)
    return tx.done()


def set_eligibility(
    tx: Transaction, rows: list[NodeRow], eligibility: str, event: NodeEventWrite | None = None
) -> None:
    """Write the eligibility of these nodes where it differs."""
    for row in rows:
        if row.eligibility == eligibility:
            continue
        events = with_event(row.events, event, index=tx.index, time_ns=tx.time_ns)
        changed = structs.replace(row, eligibility=eligibility, events=events, modify_index=tx.index)
        tx.put(tx.store.nodes.table, changed)


def apply_drain(tx: Transaction, command: NodeDrainUpdate) -> Result:
    for update in command.updates:
        if tx.store.nodes.get(update.id) is None:
            return _no_node(tx, update.id)
        _check_strategy(update)
    for update in command.updates:
        row = tx.store.nodes.get(update.id)
        assert row is not None
        if not _is_outdated(tx, row, update):
            tx.put(tx.store.nodes.table, _drained(tx, row, update))
    store_evaluations(tx, command.evaluations)
    return tx.done()


def note_alloc_updates(tx: Transaction, node_ids: tuple[str, ...]) -> None:
    """These nodes' clients have told about their allocations since they were last missed."""
    for node_id in node_ids:
        row = tx.store.nodes.get(node_id)
        if row is not None:
            changed = structs.replace(row, alloc_update_index=tx.index, modify_index=tx.index)
            tx.put(tx.store.nodes.table, changed)


def _is_outdated(tx: Transaction, row: NodeRow, update: NodeDrainWrite) -> bool:
    """Whether it says that a drain is done which was called off or changed before this could be written.

    The same goes for a node that is not empty any more: plans that were on their way when the drain began, or a client
    that came back and still runs what was thought lost.
    """
    if not update.is_complete:
        return False
    if not row.draining or (update.strategy and update.strategy != row.drain):
        return True
    there = tx.store.allocations.columns.read(tx.store.allocations.slots_of_node(row.slot))
    is_news = (there["modify_index"] > update.as_of) & ~CLIENT_TERMINAL[there["client_status"]]
    return bool(update.as_of) and bool(is_news.any())


def _drained(tx: Transaction, row: NodeRow, update: NodeDrainWrite) -> NodeRow:
    events = with_event(row.events, update.event, index=tx.index, time_ns=tx.time_ns)
    changed = structs.replace(row, events=events, modify_index=tx.index)
    known = from_bytes(row.last_drain, DrainMetadata, STORED_LIMITS) if row.last_drain else None
    if update.strategy and not update.is_complete:
        started = known.started_at_ns if known is not None and row.draining else tx.time_ns
        last = DrainMetadata(
            started_at_ns=started, updated_at_ns=tx.time_ns, accessor_id=update.accessor_id, meta=update.meta
        )
        return structs.replace(
            changed, drain=update.strategy, draining=True, eligibility=INELIGIBLE, last_drain=to_bytes(last)
        )
    changed = structs.replace(changed, drain=b"", draining=False)
    if update.mark_eligible:
        changed = structs.replace(changed, eligibility=ELIGIBLE)
    if row.draining and known is not None:
        status = DrainStatus.COMPLETE if update.is_complete else DrainStatus.CANCELLED
        last = structs.replace(known, status=status, updated_at_ns=tx.time_ns, meta=update.meta or known.meta)
        changed = structs.replace(changed, last_drain=to_bytes(last))
    return changed


def _check_strategy(update: NodeDrainWrite) -> None:
    try:
        if update.strategy:
            from_bytes(update.strategy, DrainStrategy, STORED_LIMITS)
    except CodecError as error:
        raise InvalidCommand(f"drain of node {update.id!r}: {error}") from error


def _no_node(tx: Transaction, node_id: str) -> Result:
    return refused(tx.index, "not_found", f"no node {node_id!r}", hint="`fedsched node status` lists them")


_SAID_BY_SERVERS: Final = (
    *(name for name in KEPT if name != "secret_hash"),
    *("status", "status_description", "status_updated_at_s"),
    *("eligibility", "draining", "drain", "create_index"),
)
