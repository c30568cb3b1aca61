"""What a core is told (inputs) and what it asks for (effects).

Effects are performed in the order in which they stand: `KeepIncarnation` must be durable before anything behind it is
sent, or a member that restarts could speak with a number it has already used.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

from fedsched.gossip.members import Member
from fedsched.gossip.messages import Address, Message, NameTaken, UserEvent

# ----------------------------------------------------------------------- inputs


class Packet(NamedTuple):
    """A datagram arrived."""

    source: Address
    messages: tuple[Message, ...]


class StreamAsked(NamedTuple):
    """Somebody opened a stream and said this; `AnswerStream` with the same number answers."""

    stream: int
    source: Address
    messages: tuple[Message, ...]


class StreamAnswered(NamedTuple):
    """The answer to an `OpenStream` of ours."""

    op: int
    messages: tuple[Message, ...]


class StreamFailed(NamedTuple):
    """No connection, no answer by the deadline, or an answer that could not be read."""

    op: int


class SendFailed(NamedTuple):
    """A datagram could not leave this host: nobody else's fault."""

    to: Address


class Join(NamedTuple):
    """Enter the pool by way of any of these; with `retry` until one answers."""

    addresses: tuple[Address, ...]
    retry: bool = True
    op: int = 0
    """Comes back with what came of it."""


class Leave(NamedTuple):
    """Say farewell; `Gone` follows when it has had time to get around."""


class ChangeTags(NamedTuple):
    meta: bytes


class Publish(NamedTuple):
    name: str
    payload: bytes
    coalesce: bool = False


class ForceLeave(NamedTuple):
    """Take a failed member for one that left; with `prune` forget it at once."""

    name: str
    prune: bool = False


class LookAt(NamedTuple):
    """There is evidence against this member (a refused connection): probe it out of turn."""

    name: str


Input: TypeAlias = (
    Packet
    | StreamAsked
    | StreamAnswered
    | StreamFailed
    | SendFailed
    | Join
    | Leave
    | ChangeTags
    | Publish
    | ForceLeave
    | LookAt
)

# ---------------------------------------------------------------------- effects


class SendPacket(NamedTuple):
    to: Address
    messages: tuple[Message, ...]


class OpenStream(NamedTuple):
    op: int
    to: Address
    messages: tuple[Message, ...]
    deadline: float


class AnswerStream(NamedTuple):
    stream: int
    messages: tuple[Message, ...]


class KeepIncarnation(NamedTuple):
    """Make this durable before performing what follows."""

    inc: int


class NewsKind(StrEnum):
    JOIN = "join"
    UPDATE = "update"
    FAILED = "failed"
    LEAVE = "leave"
    REAP = "reap"


class MemberNews(NamedTuple):
    kind: NewsKind
    member: Member


class EventNews(NamedTuple):
    event: UserEvent


class Warn(NamedTuple):
    """For the log: a stable code and what it is about."""

    code: str
    about: str


class JoinEnded(NamedTuple):
    """How many of the asked let us in."""

    reached: int
    op: int = 0
    taken: NameTaken | None = None
    """Somebody refused us, because our name is another server's."""


class RoundTripSeen(NamedTuple):
    """A probe was answered by the member itself, after so long."""

    name: str
    round_trip_s: float


class Gone(NamedTuple):
    """The farewell is said; the runner may stop."""


Effect: TypeAlias = (
    SendPacket
    | OpenStream
    | AnswerStream
    | KeepIncarnation
    | MemberNews
    | EventNews
    | Warn
    | JoinEnded
    | RoundTripSeen
    | Gone
)
