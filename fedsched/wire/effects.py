"""What a link core asks its runner to do, in the order in which it happened."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from fedsched.wire.call_state import CallState
from fedsched.wire.frames import Hello


class Greeted(NamedTuple):
    """The peer said who it is. Feed nothing more before `admit` or `close`."""

    hello: Hello


class Serve(NamedTuple):
    """The peer wants this; answer with `reply` or `fail`."""

    call: CallState
    payload: bytes


class Ended(NamedTuple):
    """The call is over: ours with a reply or failure, the peer's because nobody waits for the answer any more."""

    call: CallState


class Readable(NamedTuple):
    """An item, or the end of the items, arrived."""

    call: CallState


class Writable(NamedTuple):
    """The peer granted more."""

    call: CallState


class Draining(NamedTuple):
    """The peer takes no new calls; those under way go on."""

    message: str


class Closed(NamedTuple):
    """Nothing more will happen. Write what is left, then close the carrier."""

    code: str
    message: str


Effect: TypeAlias = Greeted | Serve | Ended | Readable | Writable | Draining | Closed
