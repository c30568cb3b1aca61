"""Raft messages as bytes: `u32 header length | u32 CRC of the header | CBOR header | raw records`.

The header is a short array whose first item is the protocol version; the version decides what every later position
means. Entries ride behind it as the exact records that lie in the log (see `entry.py`), never nested inside CBOR: the
bytes made by the proposer are the bytes every server stores, and each record brings its own CRC.

Whatever arrives is either a whole message of known shape within the limits, or `BadMessage`. Who it is for and which
cluster it belongs to is said, not judged: the receiver drops and counts what is foreign. Where a message ends is the
carrier's business (a stream frame, a websocket message).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from fedsched.codec import cbor
from fedsched.model.errors import FedschedError
from fedsched.raft.entry import DamagedRecord, Entry, pack, unpack
from fedsched.raft.membership import Config, decode_config, encode_config
from fedsched.raft.messages import (
    Append,
    AppendReply,
    Diverged,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    SnapshotDone,
    SnapshotMeta,
    SnapshotOffer,
    TimeoutNow,
    Vote,
    VoteReply,
)

VERSION: Final = 1
INTEGER_MAX: Final = 2**63 - 1
"""Terms and indexes: what a signed 64-bit column can keep."""
TEXT_MAX: Final = 255
DIGEST_BYTES_MAX: Final = 64

_PREFIX = struct.Struct(">II")


class BadMessage(FedschedError):
    """Bytes that are no message of ours: damaged, cut short, over a limit, or of a version not spoken here."""

    code = "bad_message"
    http_status = 400


@dataclass(frozen=True, slots=True)
class Limits:
    """What a receiver is ready to hold in memory for one message."""

    message_bytes_max: int = 16 * 1024 * 1024
    """Twice the largest record: one such record must always fit."""
    header_bytes_max: int = 64 * 1024
    """A snapshot offer carries a whole config; a few hundred servers fit."""


DEFAULT_LIMITS: Final = Limits()


def encode_message(message: Message, cluster_id: str) -> bytes:
    """The bytes of one message. Raises `TypeError` for a kind without a number: that is a bug, not weather."""
    kind = _KINDS_BY_CLASS.get(type(message))
    if kind is None:
        raise TypeError(f"{type(message).__name__} has no wire form")
    values = kind.values(message)
    header = cbor.dumps([VERSION, cluster_id, kind.number, message.sender, message.to, message.term, *values])
    prefix = _PREFIX.pack(len(header), zlib.crc32(header))
    if isinstance(message, Append) and message.entries:
        return b"".join([prefix, header, *map(pack, message.entries)])
    return prefix + header


def decode_message(data: bytes | memoryview, limits: Limits = DEFAULT_LIMITS) -> tuple[str, Message]:
    """The cluster id and the message in `data`, every byte accounted for; raises `BadMessage` and nothing else."""
    header, records = _split(data, limits)
    if len(header) < _COMMON or header[0] != VERSION:
        raise BadMessage(f"protocol version {header[0] if header else None!r}; this server speaks {VERSION}")
    _, cluster_id, number, sender, to, term = header[:_COMMON]
    kind = _KINDS_BY_NUMBER.get(number) if type(number) is int else None
    if kind is None:
        raise BadMessage(f"message kind {number!r} is not known")
    _text("cluster id", cluster_id)
    _text("sender", sender)
    _text("to", to)
    _integer("term", term)
    values = header[_COMMON:]
    if len(values) != len(kind.fields):
        raise BadMessage(f"{kind.cls.__name__} has {len(kind.fields)} fields of its own, not {len(values)}")
    fields = {name: check(name, value) for (name, check), value in zip(kind.fields, values, strict=True)}
    if kind.cls is Append:
        fields["entries"] = _entries(records, fields.pop("count"), fields["prev_index"], fields["prev_term"], term)
    elif len(records):
        raise BadMessage(f"{len(records)} bytes follow a {kind.cls.__name__}, which carries no records")
    return cluster_id, kind.cls(sender=sender, to=to, term=term, **fields)


def _split(data: bytes | memoryview, limits: Limits) -> tuple[list[Any], memoryview]:
    """The decoded header and the record bytes behind it."""
    view = memoryview(data)
    if len(view) > limits.message_bytes_max:
        raise BadMessage(f"message of {len(view)} bytes; the limit is {limits.message_bytes_max}")
    if len(view) < _PREFIX.size:
        raise BadMessage(f"message of {len(view)} bytes is shorter than its own prefix")
    length, crc = _PREFIX.unpack_from(view)
    stop = _PREFIX.size + length
    if length > limits.header_bytes_max or stop > len(view):
        raise BadMessage(
            f"header of {length} bytes; {len(view) - _PREFIX.size} are there, {limits.header_bytes_max} allowed"
        )
    raw = bytes(view[_PREFIX.size : stop])
    if zlib.crc32(raw) != crc:
        raise BadMessage("header fails its checksum")
    try:
        header = cbor.loads(raw)
    except cbor.CodecError as problem:
        raise BadMessage(f"header is not CBOR as we allow it: {problem}") from problem
    if type(header) is not list:
        raise BadMessage(f"header is a {type(header).__name__}, not an array")
    return header, view[stop:]


def _entries(records: memoryview, count: int, prev_index: int, prev_term: int, term: int) -> tuple[Entry, ...]:
    """The entries of an Append: as many as promised, without a gap, in terms that never fall."""
    try:
        entries = unpack(records)
    except DamagedRecord as problem:
        raise BadMessage(str(problem)) from problem
    if len(entries) != count:
        raise BadMessage(f"{count} records promised, {len(entries)} are there")
    expected, highest = prev_index, prev_term
    for entry in entries:
        expected += 1
        if entry.index != expected or not highest <= entry.term <= term:
            raise BadMessage(
                f"record ({entry.index}, term {entry.term}) cannot stand at index {expected}"
                f" between terms {highest} and {term}"
            )
        highest = entry.term
    return tuple(entries)


# --- field checks: each returns the value as the message holds it, or raises BadMessage -------------------------------

_Check = Callable[[str, Any], Any]


def _integer(name: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= INTEGER_MAX:
        raise BadMessage(f"{name}: {value!r:.80} is no integer from 0 to {INTEGER_MAX}")
    return value


def _flag(name: str, value: Any) -> bool:
    if type(value) is not bool:
        raise BadMessage(f"{name}: {value!r:.80} is neither true nor false")
    return value


def _text(name: str, value: Any) -> str:
    if type(value) is not str or len(value) > TEXT_MAX:
        raise BadMessage(f"{name}: {value!r:.80} is no text of at most {TEXT_MAX} characters")
    return value


def _digest(name: str, value: Any) -> bytes:
    if type(value) is not bytes or len(value) > DIGEST_BYTES_MAX:
        raise BadMessage(f"{name}: {value!r:.80} is no digest of at most {DIGEST_BYTES_MAX} bytes")
    return value


def _meta(name: str, value: Any) -> SnapshotMeta:
    if type(value) is not list or len(value) != len(_META_FIELDS):
        raise BadMessage(f"{name}: {value!r:.80} does not name a snapshot")
    fields = {field: check(field, item) for (field, check), item in zip(_META_FIELDS, value, strict=True)}
    return SnapshotMeta(**fields)


def _config(name: str, value: Any) -> Config:
    if type(value) is not bytes:
        raise BadMessage(f"{name}: {value!r:.80} is no encoded config")
    try:
        return decode_config(value)
    except cbor.CodecError as problem:
        raise BadMessage(f"{name}: {problem}") from problem


_META_FIELDS: Final[tuple[tuple[str, _Check], ...]] = (
    ("id", _text),
    ("index", _integer),
    ("term", _integer),
    ("config", _config),
    ("config_index", _integer),
    ("size", _integer),
    ("digest", _digest),
)


def meta_to_bytes(meta: SnapshotMeta) -> bytes:
    """A snapshot's name and config, as the log store and the snapshot transfer keep it."""
    return cbor.dumps(_meta_values(meta))


def meta_from_bytes(data: bytes) -> SnapshotMeta:
    """The reverse of `meta_to_bytes`; raises `BadMessage`."""
    try:
        value = cbor.loads(data)
    except cbor.CodecError as problem:
        raise BadMessage(f"snapshot meta is not CBOR as we allow it: {problem}") from problem
    return _meta("snapshot meta", value)


def _meta_values(meta: SnapshotMeta) -> list[object]:
    config = encode_config(meta.config)
    return [meta.id, meta.index, meta.term, config, meta.config_index, meta.size, meta.digest]


# --- the table of kinds: numbers and positions are forever, a new field means a new protocol version ------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    number: int
    cls: type[Message]
    fields: tuple[tuple[str, _Check], ...]
    values: Callable[[Any], tuple[Any, ...]]
    """The class's own fields of a message, in header order."""


def _kind(number: int, cls: type[Message], **fields: _Check) -> _Kind:
    names = tuple(fields)
    values: Callable[[Any], tuple[Any, ...]]
    if cls is Append:
        values = lambda m: (m.prev_index, m.prev_term, m.commit, len(m.entries))  # noqa: E731
    elif cls is SnapshotOffer:
        values = lambda m: (_meta_values(m.meta),)  # noqa: E731
    elif len(names) > 1:
        values = attrgetter(*names)
    else:
        values = lambda m: tuple(getattr(m, name) for name in names)  # noqa: E731
    return _Kind(number, cls, tuple(fields.items()), values)


_COMMON: Final = 6
_KINDS: Final = (
    _kind(1, PreVote, last_index=_integer, last_term=_integer),
    _kind(2, PreVoteReply, granted=_flag),
    _kind(3, Vote, last_index=_integer, last_term=_integer, force=_flag),
    _kind(4, VoteReply, granted=_flag),
    _kind(5, Append, prev_index=_integer, prev_term=_integer, commit=_integer, count=_integer),
    _kind(6, AppendReply, ok=_flag, index=_integer, hint_index=_integer, hint_term=_integer),
    _kind(7, Heartbeat, commit=_integer, round=_integer),
    _kind(8, HeartbeatReply, round=_integer, digest_index=_integer, digest=_digest),
    _kind(9, SnapshotOffer, meta=_meta),
    _kind(10, SnapshotDone, index=_integer, ok=_flag),
    _kind(11, TimeoutNow),
    _kind(12, ReadIndex, ctx=_integer),
    _kind(13, ReadIndexReply, ctx=_integer, index=_integer),
    _kind(14, Diverged, index=_integer, expected=_digest),
)
_KINDS_BY_NUMBER: Final = {kind.number: kind for kind in _KINDS}
_KINDS_BY_CLASS: Final[dict[type[Message], _Kind]] = {kind.cls: kind for kind in _KINDS}
