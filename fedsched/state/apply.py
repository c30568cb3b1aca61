"""Carries committed commands out: deterministic, total, the same on every server, for ever.

A refusal is a result. Bytes that are no command, and commands that no proposer of ours makes, change nothing and raise
an alarm, on all servers alike: one bad entry must never take a region down. Any other exception is a bug, leaves the
store in an unknown state, and has to stop the server.
"""

from __future__ import annotations

from typing import NamedTuple

from fedsched.codec import CodecError
from fedsched.state.changes import Changes
from fedsched.state.commands import COMMANDS, NAMES, Envelope, UnknownCommand, decode_command
from fedsched.state.result import InvalidCommand, Result, refused
from fedsched.state.store import Store
from fedsched.state.transaction import Transaction

NOT_UNDERSTOOD = "this entry is not a command that the region can carry out"
"""One sentence for bytes we cannot read and for commands not enabled yet: older and newer servers must answer alike."""


class ApplyResult(NamedTuple):
    """What became of one entry."""

    result: Result
    changes: Changes
    alarm: str = ""
    """Not empty if the entry should not have been there; to be logged and shown to the operator."""


def apply_bytes(store: Store, index: int, data: bytes) -> ApplyResult:
    """Carry out the command in a log entry, whatever the bytes are."""
    try:
        envelope = decode_command(data)
    except UnknownCommand as error:
        return _no_op(store, index, f"entry {index}: {error}")
    except CodecError as error:
        return _no_op(store, index, f"entry {index} is damaged or was never a command: {error}")
    return apply(store, index, envelope)


def apply(store: Store, index: int, envelope: Envelope) -> ApplyResult:
    """Carry out one command. Indexes only ever grow."""
    assert index > store.index, f"entry {index} was applied after entry {store.index}"
    kind = COMMANDS[NAMES[type(envelope.command)]]
    if kind.since > store.meta.enabled_version:
        return _no_op(store, index, f"entry {index}: {NAMES[kind.record]} before version {kind.since} was enabled")
    if envelope.request is not None:
        known = store.sessions.known_result(envelope.request, index)
        if known is not None:
            store.index = index
            return ApplyResult(known, Changes(index))
    store.keeper.begin()
    try:
        return _carry_out(store, index, envelope)
    finally:
        store.keeper.end()


def _carry_out(store: Store, index: int, envelope: Envelope) -> ApplyResult:
    store.time_ns = max(store.time_ns, envelope.time_ns)
    tx = Transaction(store, index, store.time_ns)
    alarm = ""
    try:
        result = COMMANDS[NAMES[type(envelope.command)]].apply(tx, envelope.command)
    except InvalidCommand as error:
        result = refused(index, "bad_request", NOT_UNDERSTOOD)
        alarm = f"entry {index}: {error}"
    if envelope.request is not None:
        store.sessions.remember(envelope.request, result, store.time_ns)
    for table in sorted(tx.changes.tables()):
        store.table_indexes[table] = index
    store.index = index
    return ApplyResult(result, tx.changes, alarm)


def _no_op(store: Store, index: int, alarm: str) -> ApplyResult:
    store.index = index
    return ApplyResult(refused(index, "bad_request", NOT_UNDERSTOOD), Changes(index), alarm)
