"""How agent, warm process and supervisors talk: a length and JSON. Peers that send nonsense are cut off.

Light: this is part of every supervisor.
"""

from __future__ import annotations

import sys

from fedsched.drivers.supervisor.bare import SO_PEERCRED, SOL_SOCKET, scan
from fedsched.drivers.supervisor.bare import encode as encode_json

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from typing import Any, Final

    from fedsched.drivers.supervisor.bare import socket

PROTOCOL: Final = 2
"""What a supervisor says it speaks. An agent talks to all that are in `SPOKEN`, also after an upgrade."""
SPOKEN: Final = frozenset({1, 2})
STAYS: Final = 1
"""Supervisors of this version stay when their task has ended, until they are told that it was acknowledged."""
MAX_REQUEST: Final = 4 << 20
"""A launch carries a whole environment; the kernel gives exec 2 MiB of it, JSON at worst six bytes for one."""
MAX_PENDING: Final = 256 << 10
"""Answers a peer may leave unread before it is cut off."""

HEAD: Final = 4


class BadFrame(Exception):
    """A peer sent something that is none of ours."""


def encode(message: dict[str, Any]) -> bytes:
    """One message as it travels."""
    body = to_json(message)
    return len(body).to_bytes(HEAD, "big") + body


def to_json(message: dict[str, Any]) -> bytes:
    """Plain ASCII; texts that are no UTF-8 (surrogates) survive."""
    return "".join(encode_json(message, 0)).encode("ascii")


def from_json(data: bytes) -> dict[str, Any]:
    """Raises `BadFrame` for anything but one table."""
    try:
        text = data.decode("ascii")
        message, end = scan(text, 0)
    except (ValueError, StopIteration, RecursionError, SystemError) as error:
        # The scanner's own error is a class of `json`; without that module it fails without saying how.
        raise BadFrame(f"not JSON: {error}") from None
    if not isinstance(message, dict) or end != len(text):
        raise BadFrame("not a table")
    return message


class Frames:
    """Puts messages together out of what a socket gives."""

    __slots__ = ("_bytes", "_limit")

    def __init__(self, limit: int = MAX_REQUEST) -> None:
        self._bytes = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """All messages that are complete now. Raises `BadFrame`."""
        self._bytes += data
        found = []
        while (message := self._next()) is not None:
            found.append(message)
        return found

    def _next(self) -> dict[str, Any] | None:
        if len(self._bytes) < HEAD:
            return None
        length = int.from_bytes(self._bytes[:HEAD], "big")
        if length > self._limit:
            raise BadFrame(f"a message of {length} bytes; {self._limit} is the most")
        if len(self._bytes) < HEAD + length:
            return None
        body = bytes(self._bytes[HEAD : HEAD + length])
        del self._bytes[: HEAD + length]
        return from_json(body)


def peer_uid(connection: socket) -> int:
    """Who is at the other end, by the kernel's word."""
    found = connection.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)
    return int.from_bytes(found[4:8], sys.byteorder)
