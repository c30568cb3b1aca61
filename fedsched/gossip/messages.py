"""What members say to each other, and what a core is told and asks for.

Named tuples: tens of thousands of them are made per second in a simulated pool. `wire` maps the messages to bytes; the
core only sees these. Three of them are *claims* about a member (`Alive`, `Suspect`, `Dead`); `members` has the rule
which of two claims wins.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

Address: TypeAlias = tuple[str, int]
"""Host as text, and port."""

Versions: TypeAlias = tuple[int, int, int, int, int, int]
"""Protocol lowest, highest, spoken; then the same three of the application."""

VERSIONS_NOW: Versions = (1, 1, 1, 1, 1, 1)


class State(IntEnum):
    """What is believed of a member. A later one beats an earlier one at the same incarnation."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class Ping(NamedTuple):
    """Are you there? Names its target: whoever has the address now but another name does not answer."""

    seq: int
    target: str
    source: str
    source_addr: Address
    digest: int


class PingReq(NamedTuple):
    """Ask the target for me. `budget_ms`: how long an answer is of any use, so that a nack comes in time."""

    seq: int
    target: str
    target_addr: Address
    source: str
    source_addr: Address
    budget_ms: int


class Ack(NamedTuple):
    seq: int
    digest: int


class Nack(NamedTuple):
    """The helper is well, and heard nothing from the target."""

    seq: int


class Suspect(NamedTuple):
    inc: int
    node: str
    by: str


class Alive(NamedTuple):
    inc: int
    node: str
    addr: Address
    meta: bytes
    versions: Versions


class Dead(NamedTuple):
    """With `by == node` it is a farewell."""

    inc: int
    node: str
    by: str


class UserEvent(NamedTuple):
    """A small announcement. Nothing may depend on its arrival."""

    ltime: int
    name: str
    payload: bytes
    coalesce: bool


class NameTaken(NamedTuple):
    """To a newcomer whose name belongs to another server that answers."""

    node: str
    addr: Address
    id: str


class Row(NamedTuple):
    """One line of a member's table, as it travels in exchanges."""

    claim: Alive
    state: State


class PushPull(NamedTuple):
    """A whole table, sent by whoever joins and answered with the other one."""

    source: str
    join: bool
    rows: tuple[Row, ...]
    event_ltime: int
    events: tuple[UserEvent, ...]


class Compare(NamedTuple):
    """The periodic exchange begins with this, and ends with it if the digests are equal."""

    source: str
    digest: int
    event_ltime: int


class Summary(NamedTuple):
    """Of each member: 8 bytes of its name's hash, the incarnation, the state."""

    source: str
    lines: bytes


class Difference(NamedTuple):
    """The answer to a summary: what is newer here, and the hashes of what is newer there."""

    source: str
    rows: tuple[Row, ...]
    wanted: bytes


class Rows(NamedTuple):
    """What was wanted; and, empty, the receipt for anything that needs no other answer."""

    source: str
    rows: tuple[Row, ...]


Claim: TypeAlias = Alive | Suspect | Dead
Gossip: TypeAlias = Alive | Suspect | Dead | UserEvent
Message: TypeAlias = (
    Ping
    | PingReq
    | Ack
    | Nack
    | Suspect
    | Alive
    | Dead
    | UserEvent
    | NameTaken
    | PushPull
    | Compare
    | Summary
    | Difference
    | Rows
)
