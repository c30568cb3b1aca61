"""Gossip messages as bytes: a packet is one CBOR array of messages, a message an array that begins with its number.

Field names do not travel. New fields are added at the end and readers ignore what they do not know: surplus items, and
whole messages of unknown number. Anything else that is off refuses the packet with `BadPacket`; a stream uses the same
form within wider limits.

Every value is checked here, so that the core may believe the *shape* of what it is told: names are names, numbers are
in range, lists are bounded. Whether it is *true* is the core's business.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from fedsched.codec import cbor
from fedsched.gossip.messages import (
    Ack,
    Address,
    Alive,
    Compare,
    Dead,
    Difference,
    Message,
    Nack,
    NameTaken,
    Ping,
    PingReq,
    PushPull,
    Row,
    Rows,
    State,
    Summary,
    Suspect,
    UserEvent,
)
from fedsched.model.errors import FedschedError

NAME_MAX: Final = 128
META_MAX: Final = 512
EVENT_MAX: Final = 512
"""Name and payload of an announcement together."""
ID_MAX: Final = 64
INC_MAX: Final = 2**32 - 1
ROWS_MAX: Final = 2**20
LINE_BYTES: Final = 13
"""A line of a summary: hash 8, incarnation 4, state 1."""
HASH_BYTES: Final = 8
EVENTS_MAX: Final = 512

PACKET_LIMITS: Final = cbor.Limits(bytes_max=9 * 1024, depth_max=5, nodes_max=2048)
STREAM_LIMITS: Final = cbor.Limits(bytes_max=20 * 1024 * 1024, depth_max=7, nodes_max=16 * ROWS_MAX)

_NAME = re.compile(r"[A-Za-z0-9.\-]{1,128}", re.ASCII)


class BadPacket(FedschedError):
    """Bytes that are no gossip of ours."""

    code = "bad_gossip_packet"
    http_status = 400


def encode(messages: Iterable[Message]) -> bytes:
    """One packet. The caller keeps within the packet's size, with `size_bound`."""
    return cbor.dumps([_NUMBERS[type(message)][1](message) for message in messages])


def decode_packet(data: bytes) -> list[Message]:
    """What a datagram says; raises `BadPacket` and nothing else."""
    return _decode(data, PACKET_LIMITS)


def decode_stream(data: bytes) -> list[Message]:
    """What one side of an exchange says; raises `BadPacket` and nothing else."""
    return _decode(data, STREAM_LIMITS)


def size_bound(message: Message) -> int:
    """No fewer bytes than `encode` will make of it: cheap, because every queued message asks."""
    match message:
        case Alive(_, node, _, meta):
            return 49 + len(node) + len(meta)
        case Suspect(_, node, by) | Dead(_, node, by):
            return 11 + len(node) + len(by)
        case Ping(_, target, source):
            return 42 + len(target) + len(source)
        case PingReq(_, target, _, source):
            return 58 + len(target) + len(source)
        case UserEvent(_, name, payload):
            return 18 + len(name.encode()) + len(payload)
        case Ack():
            return 16
        case Nack():
            return 7
        case _:
            return len(encode([message]))


def _decode(data: bytes, limits: cbor.Limits) -> list[Message]:
    try:
        items = cbor.loads(data, limits)
    except cbor.CodecError as error:
        raise BadPacket(error.message) from error
    if type(items) is not list:
        raise BadPacket("a packet is an array of messages")
    messages: list[Message] = []
    for item in items:
        if type(item) is not list or not item or type(item[0]) is not int:
            raise BadPacket("a message is an array that begins with its number")
        read = _READERS.get(item[0])
        if read is None:
            continue  # of a later version: not for us
        try:
            messages.append(read(item))
        except IndexError as error:
            raise BadPacket(f"message {item[0]} is cut short") from error
    return messages


# ------------------------------------------------------------- checks of values


def is_name(value: Any) -> bool:
    return type(value) is str and _NAME.fullmatch(value) is not None


def _name(value: Any) -> str:
    if not is_name(value):
        raise BadPacket(f"not a member's name: {value!r:.80}")
    return str(value)


def _integer(value: Any, highest: int) -> int:
    if type(value) is not int or not 0 <= value <= highest:
        raise BadPacket(f"not a number up to {highest}: {value!r:.80}")
    return value


def _text(value: Any, longest: int) -> str:
    if type(value) is not str or len(value.encode()) > longest:
        raise BadPacket(f"not a text of up to {longest} bytes: {value!r:.80}")
    return value


def _bytes(value: Any, longest: int) -> bytes:
    if type(value) is not bytes or len(value) > longest:
        raise BadPacket(f"not a byte string of up to {longest}")
    return value


def _list(value: Any, longest: int) -> list[Any]:
    if type(value) is not list or len(value) > longest:
        raise BadPacket(f"not an array of up to {longest}")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise BadPacket(f"neither true nor false: {value!r:.80}")
    return value


def _address(host: Any, port: Any) -> Address:
    if type(host) is not bytes or len(host) not in (4, 16):
        raise BadPacket("an address has 4 or 16 bytes")
    return _unpack_host(host), _integer(port, 65535)


@lru_cache(maxsize=16384)
def _pack_host(host: str) -> bytes:
    return ipaddress.ip_address(host).packed


@lru_cache(maxsize=16384)
def _unpack_host(packed: bytes) -> str:
    return str(ipaddress.ip_address(packed))


# ------------------------------------------------------------------- the forms


def _alive_out(m: Alive) -> list[Any]:
    return [4, m.inc, m.node, _pack_host(m.addr[0]), m.addr[1], m.meta, list(m.versions)]


def _alive_in(v: list[Any]) -> Alive:
    versions = _list(v[6], 6)
    if len(versions) != 6:
        raise BadPacket("six version numbers are wanted")
    one, two, three, four, five, six = (_integer(number, 255) for number in versions)
    meta = _bytes(v[5], META_MAX)
    return Alive(_integer(v[1], INC_MAX), _name(v[2]), _address(v[3], v[4]), meta, (one, two, three, four, five, six))


def _event_out(m: UserEvent) -> list[Any]:
    return [8, m.ltime, m.name, m.payload, m.coalesce]


def _event_in(v: list[Any]) -> UserEvent:
    event = UserEvent(_integer(v[1], 2**63 - 1), _text(v[2], EVENT_MAX), _bytes(v[3], EVENT_MAX), _flag(v[4]))
    if len(event.name.encode()) + len(event.payload) > EVENT_MAX:
        raise BadPacket(f"an announcement of more than {EVENT_MAX} bytes")
    return event


def _rows_out(rows: tuple[Row, ...]) -> list[Any]:
    return [[int(row.state), _alive_out(row.claim)] for row in rows]


def _rows_in(value: Any) -> tuple[Row, ...]:
    rows = []
    for item in _list(value, ROWS_MAX):
        state_and_claim = _list(item, 8)
        claim = _alive_in(_list(state_and_claim[1], 16))
        rows.append(Row(claim, State(_integer(state_and_claim[0], 3))))
    return tuple(rows)


def _events_in(value: Any) -> tuple[UserEvent, ...]:
    return tuple(_event_in(_list(item, 16)) for item in _list(value, EVENTS_MAX))


def _ping_in(v: list[Any]) -> Ping:
    return Ping(_integer(v[1], INC_MAX), _name(v[2]), _name(v[3]), _address(v[4], v[5]), _integer(v[6], 2**64 - 1))


def _ping_req_in(v: list[Any]) -> PingReq:
    return PingReq(
        _integer(v[1], INC_MAX),
        _name(v[2]),
        _address(v[3], v[4]),
        _name(v[5]),
        _address(v[6], v[7]),
        _integer(v[8], 10**6),
    )


def _push_pull_in(v: list[Any]) -> PushPull:
    return PushPull(_name(v[1]), _flag(v[2]), _rows_in(v[3]), _integer(v[4], 2**63 - 1), _events_in(v[5]))


def _columns(value: Any, width: int) -> bytes:
    data = _bytes(value, ROWS_MAX * width)
    if len(data) % width:
        raise BadPacket(f"a column of {len(data)} bytes is no multiple of {width}")
    return data


def _host(address: Address) -> tuple[bytes, int]:
    return _pack_host(address[0]), address[1]


_FORMS: Final[list[tuple[int, type[Any], Callable[[Any], list[Any]], Callable[[list[Any]], Any]]]] = [
    (0, Ping, lambda m: [0, m.seq, m.target, m.source, *_host(m.source_addr), m.digest], _ping_in),
    (
        1,
        PingReq,
        lambda m: [1, m.seq, m.target, *_host(m.target_addr), m.source, *_host(m.source_addr), m.budget_ms],
        _ping_req_in,
    ),
    (2, Ack, lambda m: [2, m.seq, m.digest], lambda v: Ack(_integer(v[1], INC_MAX), _integer(v[2], 2**64 - 1))),
    (
        3,
        Suspect,
        lambda m: [3, m.inc, m.node, m.by],
        lambda v: Suspect(_integer(v[1], INC_MAX), _name(v[2]), _name(v[3])),
    ),
    (4, Alive, _alive_out, _alive_in),
    (5, Dead, lambda m: [5, m.inc, m.node, m.by], lambda v: Dead(_integer(v[1], INC_MAX), _name(v[2]), _name(v[3]))),
    (
        6,
        PushPull,
        lambda m: [6, m.source, m.join, _rows_out(m.rows), m.event_ltime, [_event_out(e) for e in m.events]],
        _push_pull_in,
    ),
    (8, UserEvent, _event_out, _event_in),
    (11, Nack, lambda m: [11, m.seq], lambda v: Nack(_integer(v[1], INC_MAX))),
    (
        14,
        NameTaken,
        lambda m: [14, m.node, *_host(m.addr), m.id],
        lambda v: NameTaken(_name(v[1]), _address(v[2], v[3]), _text(v[4], ID_MAX)),
    ),
    (
        15,
        Compare,
        lambda m: [15, m.source, m.digest, m.event_ltime],
        lambda v: Compare(_name(v[1]), _integer(v[2], 2**64 - 1), _integer(v[3], 2**63 - 1)),
    ),
    (
        16,
        Summary,
        lambda m: [16, m.source, m.lines],
        lambda v: Summary(_name(v[1]), _columns(v[2], LINE_BYTES)),
    ),
    (
        17,
        Difference,
        lambda m: [17, m.source, _rows_out(m.rows), m.wanted],
        lambda v: Difference(_name(v[1]), _rows_in(v[2]), _columns(v[3], HASH_BYTES)),
    ),
    (
        18,
        Rows,
        lambda m: [18, m.source, _rows_out(m.rows)],
        lambda v: Rows(_name(v[1]), _rows_in(v[2])),
    ),
]
"""Number on the wire, class, to a list, from a list. Numbers are never used again for something else."""

_NUMBERS: Final = {cls: (number, out) for number, cls, out, _ in _FORMS}
_READERS: Final = {number: read for number, _, _, read in _FORMS}
