"""The latest things that happened to a node, kept with it."""

from __future__ import annotations

from fedsched.codec import STORED_LIMITS, from_builtins, loads, to_bytes
from fedsched.model.node import MAX_NODE_EVENTS, NodeEvent
from fedsched.state.fields import Name, ShortText, Stored, Text


class NodeEventWrite(Stored):
    """Something that happened to a node, inside a command."""

    message: Text
    subsystem: ShortText = "Cluster"
    meta_key: Name = ""
    meta_value: Text = ""
    """One detail, if there is one to give."""


def read_events(data: bytes) -> tuple[NodeEvent, ...]:
    """The events, oldest first."""
    if not data:
        return ()
    return from_builtins(loads(data, STORED_LIMITS), tuple[NodeEvent, ...])


def with_event(data: bytes, event: NodeEventWrite | None, *, index: int, time_ns: int) -> bytes:
    """The events with one more at the end; the oldest goes when there are too many."""
    if event is None:
        return data
    added = NodeEvent(
        message=event.message,
        subsystem=event.subsystem,
        details={event.meta_key: event.meta_value} if event.meta_key else {},
        timestamp_ns=time_ns,
        create_index=index,
    )
    return to_bytes([*read_events(data), added][-MAX_NODE_EVENTS:])
