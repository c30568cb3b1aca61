"""Plain values to CBOR bytes and back; the only module that names the format's library.

The values are the plain ones: None, bool, int (64 bits), float, str, bytes, list, dict with text or byte keys. Left to
itself the library would also follow tags into cycles, regular expressions and dates, ignore trailing bytes, and turn
one megabyte of empty arrays into seventy. Here:

- tags, indefinite lengths and the unassigned simple values are refused, in both directions;
- size, nesting and number of nodes are checked before anything is built;
- trailing bytes and repeated map keys are refused;
- only `CodecError` comes out, whatever the bytes.

How the bounds stay cheap: with definite lengths CBOR is one flat row of heads, so a loop that hops from head to head
counts nodes and sees every tag without keeping a stack (50 ns a node). Short inputs rarely need even that: if none of
the refused head bytes occurs anywhere in them (1 ns a byte), none can occur as a head.

Map order is the order of insertion: records have their fields in one order, so equal records make equal bytes. Where a
dict's history must not show (a digest), use `dumps_sorted`. What will be kept and read again for ever (the log) is
made by `dumps_stored`: a stored value that nobody can read would stop a whole region.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any, Final, NamedTuple, NoReturn

import cbor2

from fedsched.model.errors import FedschedError


class CodecError(FedschedError):
    """Bytes or values that may not pass: damaged, hostile, or over a limit."""

    code = "codec"
    http_status = 400


class Limits(NamedTuple):
    """What one decoded message may cost at most."""

    bytes_max: int = 1024 * 1024
    depth_max: int = 32
    nodes_max: int = 131_072
    """Counts every value, key and container. An empty container costs 72 bytes: this many cost 9 MB and 20 ms."""


DEFAULT_LIMITS: Final = Limits()
STORED_LIMITS: Final = Limits(bytes_max=16 * 1024 * 1024, depth_max=64, nodes_max=4_000_000)
"""For what the servers keep. Wider than what any wire lets in, so that wrapping a request in a command cannot push it
over the edge."""
UNLIMITED_NODES: Final = 1 << 62


def dumps(value: object) -> bytes:
    """The bytes of a plain value, maps in insertion order; `CodecError` if it holds anything but plain values."""
    return _dump(value, canonical=False)


def dumps_sorted(value: object) -> bytes:
    """The same bytes for equal values, however their maps were filled. Two to three times the cost of `dumps`."""
    return _dump(value, canonical=True)


def dumps_stored(value: object) -> bytes:
    """As `dumps`, read back before it is handed out: whoever may read `STORED_LIMITS` can read this."""
    data = dumps(value)
    loads(data, STORED_LIMITS)
    return data


def loads(data: bytes | bytearray | memoryview, limits: Limits = DEFAULT_LIMITS) -> Any:
    """The one value these bytes hold; containers come back as fresh lists and dicts."""
    if len(data) > limits.bytes_max:
        raise CodecError(f"{len(data)} bytes to decode, at most {limits.bytes_max} are allowed here")
    if not isinstance(data, bytes):
        data = bytes(data)
    _check_heads(data, limits.nodes_max)
    source = BytesIO(data)
    try:
        value = _decoder(source, limits.depth_max).decode()
        end = source.tell()
    except Exception as error:  # whatever the library may raise on hostile bytes is a refusal of those bytes
        raise CodecError(f"not a readable value: {error}") from error
    if end != len(data):
        raise CodecError(f"{len(data) - end} bytes left over after a value of {end} bytes")
    return value


def _dump(value: object, *, canonical: bool) -> bytes:
    try:
        data = cbor2.dumps(value, canonical=canonical)
    except Exception as error:  # a value of the wrong kind, a lone surrogate, a cycle: all are refusals of the value
        raise CodecError(f"cannot encode this value: {error}") from error
    _check_heads(data, UNLIMITED_NODES)
    return data


def _decoder(source: BytesIO, depth_max: int) -> cbor2.CBORDecoder:
    return cbor2.CBORDecoder(
        source,
        tag_hook=_refuse_tag,
        semantic_decoders=_EVERY_TAG,
        max_depth=depth_max,  # counts containers with something in them
        allow_indefinite=False,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    )


def _refuse_tag(*_: object) -> NoReturn:
    raise CodecError("tagged values are not part of the wire format")


class _EveryTag(dict[int, Any]):
    """Asked for the decoder of any tag, known to the library or not, this answers: the one that refuses."""

    def __missing__(self, tag: int) -> Any:
        return _refuse_tag


_EVERY_TAG: Final = _EveryTag()
_decoder(BytesIO(), 1)  # a library older than version 6 lacks these options and must fail here, at import

_SHORT: Final = 4096
"""Up to here the search for refused bytes is cheaper than the loop over heads; and a node is at least one byte."""

_INDEFINITE: Final = (0x5F, 0x7F, 0x9F, 0xBF)
_REFUSED: Final = bytes([*_INDEFINITE, *range(0xC0, 0xE0), *range(0xE0, 0xF4), 0xF7, 0xF8])


def _step(head: int) -> int:
    """How far it is from this head byte to the next; 0 where that needs a look (long strings, refused heads)."""
    if head in _REFUSED:
        return 0
    major, low = head >> 5, head & 31
    is_string = major in (2, 3)
    if low < 24:
        return 1 + low if is_string else 1
    if low < 28:
        return 0 if is_string else 1 + (1 << (low - 24))
    return 1  # reserved: the library refuses it where it stands


_STEPS: Final = [_step(head) for head in range(256)]


def _check_heads(data: bytes, nodes_max: int) -> None:
    """Refuse tags, indefinite lengths, unassigned simple values, and more nodes than allowed."""
    end = len(data)
    if end <= _SHORT and end <= nodes_max and len(data.translate(None, _REFUSED)) == end:
        return
    steps = _STEPS
    at = nodes = 0
    while at < end:
        nodes += 1
        step = steps[data[at]]
        if step:
            at += step
        else:
            at = _look_closer(data, at)
        if nodes > nodes_max:
            raise CodecError(f"more than {nodes_max} values in one message")


def _look_closer(data: bytes, at: int) -> int:
    """Where the head after this long string stands; a refused head ends here."""
    head = data[at]
    if head in _REFUSED:
        if 0xC0 <= head < 0xE0:
            _refuse_tag()
        kind = "indefinite lengths are" if head in _INDEFINITE else "undefined and unassigned simple values are"
        raise CodecError(f"{kind} not part of the wire format (byte {at})")
    width = 1 << ((head & 31) - 24)
    return at + 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "big")
