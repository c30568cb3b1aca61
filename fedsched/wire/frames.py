"""The frames of a link: `u16 header length | CBOR header | payload`.

The header is a short array, `[kind, field, ...]`; the payload is opaque here. Where a frame ends is the carrier's
business: a websocket message, or a length in front of it on a stream. Readers ignore header fields beyond those they
know, so frames may grow at the end; a kind they do not know is a violation, because it might have mattered.

Calls are numbered by whoever opens them: odd numbers by the end that opened the link, even ones by the other. So the
number alone says whose call a frame belongs to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from fedsched.codec.cbor import CodecError, Limits, dumps, loads
from fedsched.codec.pieces import uint
from fedsched.wire.errors import Failure, ProtocolViolation

HEADER_LIMITS: Final = Limits(bytes_max=3072, depth_max=2, nodes_max=64)
TEXT_BYTES_MAX: Final = 1200
"""Longer messages and hints are cut: a header must fit the smallest frame limit."""
METHOD_BYTES_MAX: Final = 128

Parts: TypeAlias = tuple[bytes, bytes]
"""A frame as it leaves: header (with its length) and payload, joined only by the carrier."""


class Hello(NamedTuple):
    """First frame of both ends: what this one speaks and accepts. The payload says who it is."""

    version_min: int
    version_max: int
    frame_bytes_max: int
    calls_max: int
    payload: bytes = b""


class Call(NamedTuple):
    """Asks for a method. `flow` is a `Flow`; `credit` is what the callee may stream back before it is granted more."""

    id: int
    method: str
    timeout_ms: int
    """What is left until the caller's deadline; 0 for none. Never a time of day: clocks differ."""
    flow: int
    credit: int
    payload: bytes = b""


class Reply(NamedTuple):
    """The one good end of a call."""

    id: int
    payload: bytes = b""


class Error(NamedTuple):
    """The other end of a call; the payload carries details."""

    id: int
    code: str
    message: str
    hint: str
    http_status: int
    payload: bytes = b""


class Data(NamedTuple):
    """One item of a stream, in either direction."""

    id: int
    payload: bytes = b""


class Credit(NamedTuple):
    """The receiver of a stream has room for this many bytes more."""

    id: int
    amount: int
    payload: bytes = b""


class End(NamedTuple):
    """The sender has no more items; the call itself goes on until its reply."""

    id: int
    payload: bytes = b""


class Cancel(NamedTuple):
    """The caller has lost interest."""

    id: int
    payload: bytes = b""


class Ping(NamedTuple):
    """Asks for a sign of life."""

    number: int
    payload: bytes = b""


class Pong(NamedTuple):
    """Gives one."""

    number: int
    payload: bytes = b""


class Goaway(NamedTuple):
    """Code `drain`: open no new calls here. Any other: the link ends now, and this is why."""

    code: str
    message: str
    payload: bytes = b""


Frame: TypeAlias = Hello | Call | Reply | Error | Data | Credit | End | Cancel | Ping | Pong | Goaway

DRAIN: Final = "drain"

_KINDS: Final[tuple[type[Frame], ...]] = (Hello, Call, Reply, Error, Data, Credit, End, Cancel, Ping, Pong, Goaway)
"""In the order of their numbers on the wire; only ever appended to."""
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}
_TEXTS: Final = {"method", "code", "message", "hint"}
_SHAPES: Final = tuple(
    (kind, kind.__name__, tuple(str if name in _TEXTS else int for name in kind._fields[:-1])) for kind in _KINDS
)


_WIDTHS: Final = {(2, 0x18), (3, 0x19), (5, 0x1A)}
"""Bytes of a number, its head included, and that head."""


class FrameError(ProtocolViolation):
    """Bytes that are not a frame."""

    code: ClassVar[str] = "bad_frame"


_DATA: Final = b"\x82" + bytes((_NUMBERS[Data],))
"""How the header of a stream's item begins: a list of two, the first of them its kind."""


def encode(frame: Frame) -> Parts:
    """The two parts of a frame as they travel."""
    if type(frame) is Data:  # the many: put together by hand, a third of the cost
        header = _DATA + uint(frame.id)
        return bytes((0, len(header))) + header, frame.payload
    header = dumps([_NUMBERS[type(frame)], *frame[:-1]])
    return len(header).to_bytes(2, "big") + header, frame[-1]


def decode(message: bytes) -> Frame:
    """The frame in one carrier message; `FrameError` says what is wrong with it."""
    end = 2 + int.from_bytes(message[:2], "big")
    if end > len(message) or end < 3:
        raise FrameError(f"frame of {len(message)} bytes, its header alone would be {end}")
    if message.startswith(_DATA, 2):
        number = _short_number(message, 4, end)
        if number >= 0:
            return Data(number, message[end:])
    try:
        header = loads(message[2:end], HEADER_LIMITS)
    except CodecError as error:
        raise FrameError(f"frame header: {error.message}") from error
    kind, name, shape = _shape_of(header)
    fields: list[Any] = header[1 : 1 + len(shape)]
    if len(fields) < len(shape):
        raise FrameError(f"{name} frame with {len(fields)} of {len(shape)} fields")
    for value, expected in zip(fields, shape, strict=True):
        if type(value) is not expected or (type(value) is int and value < 0):
            raise FrameError(f"{name} frame with {type(value).__name__} where {expected.__name__} belongs")
    return kind(*fields, message[end:])


def _short_number(message: bytes, at: int, end: int) -> int:
    """The one number that is left of a header, if it is of the usual size; -1 leaves it to the real decoder."""
    width = end - at
    if width == 1:
        return message[at] if message[at] < 24 else -1
    if (width, message[at]) in _WIDTHS:
        return int.from_bytes(message[at + 1 : end], "big")
    return -1


def error_frame(call_id: int, failure: Failure) -> Error:
    """A failure as the frame that reports it, cut to what a header may hold."""
    return Error(
        call_id,
        failure.code[:64],
        cut_text(failure.message),
        cut_text(failure.hint),
        failure.http_status,
        failure.details,
    )


def cut_text(text: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """At most this many bytes of the text, never half a character."""
    data = text.encode("utf-8", "replace")
    if len(data) <= bytes_max:
        return data.decode()
    return data[: bytes_max - 3].decode("utf-8", "ignore") + "..."


def _shape_of(header: object) -> tuple[Callable[..., Frame], str, tuple[type, ...]]:
    if not isinstance(header, list) or not header:
        raise FrameError("frame header is not a list")
    number = header[0]
    if type(number) is not int or not 0 <= number < len(_SHAPES):
        raise FrameError(f"frame of unknown kind {str(number)[:32]!r}")
    return _SHAPES[number]
