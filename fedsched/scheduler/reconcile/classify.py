"""Sorting allocations by what their node and client can still be expected to do. The first rule that fits counts."""

from __future__ import annotations

from enum import Enum

from fedsched.scheduler.reconcile.disconnect import CutOff
from fedsched.scheduler.reconcile.held import FAILED, PENDING, RUNNING, STOP, UNKNOWN, Held, Taint


class Kind(Enum):
    """How an allocation is dealt with further on."""

    UNTAINTED = "as things stand it stays"
    MIGRATE = "somebody asked for it to move"
    LOST = "its node is gone"
    DISCONNECTING = "its client was cut off just now"
    RECONNECTING = "its client is back"
    IGNORE = "nothing is left to be done about it"
    EXPIRING = "its client was cut off for too long"


def classify(held: Held, cut_off: CutOff, taint: int, now_ns: int) -> Kind:
    """Sort one allocation that the group still has to think about."""
    if held.is_terminal:
        if not held.needs_reconnect:
            return _ended(held)
        if held.client == FAILED and not held.is_server_terminal:
            return Kind.RECONNECTING
    if held.client == UNKNOWN and cut_off.is_over(held.unknown_since_ns, now_ns):
        return Kind.EXPIRING
    if held.client == FAILED and held.desired == STOP:
        return Kind.IGNORE
    if taint == Taint.DISCONNECTED:
        return _cut_off(held, cut_off)
    if held.should_migrate:
        return Kind.MIGRATE
    if taint == Taint.NONE:
        return Kind.RECONNECTING if held.needs_reconnect else Kind.UNTAINTED
    if taint == Taint.MISSING:
        return Kind.LOST
    if taint == Taint.DOWN:
        return _node_down(held, cut_off)
    return Kind.UNTAINTED


def _ended(held: Held) -> Kind:
    if held.is_server_terminal:
        return Kind.UNTAINTED if held.needs_no_placement else Kind.IGNORE
    return Kind.MIGRATE if held.is_canary and held.should_migrate else Kind.UNTAINTED


def _cut_off(held: Held, cut_off: CutOff) -> Kind:
    if held.client == UNKNOWN:
        return Kind.UNTAINTED
    if held.client == PENDING or not cut_off.lost_after_ns:
        return Kind.LOST
    return Kind.DISCONNECTING


def _node_down(held: Held, cut_off: CutOff) -> Kind:
    if not cut_off.may_replace:
        if held.client == UNKNOWN:
            return Kind.UNTAINTED
        if held.client == RUNNING:
            return Kind.DISCONNECTING
    return Kind.LOST
