"""The story of a run: a hash over every event, and the last events kept for whoever has to read them.

Two runs are the same run exactly when their hashes are equal. The hash covers time, server, kind and payload of every
event; readable lines are only made when somebody asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from operator import attrgetter
from typing import Any
from zlib import crc32

from fedsched.raft.messages import Append, Message, SnapshotOffer

KEPT = 2_000
"""Enough to find the last 200 events of each server concerned."""

_fields: dict[type, Callable[[Any], Any]] = {}


def describe(message: Message) -> str:
    """One message as short text: its kind and every field that matters, the same on every machine."""
    kind = type(message)
    getter = _fields.get(kind)
    if getter is None:
        names = ("sender", "to", "term", *(name for name in kind.__slots__ if name not in ("entries", "meta")))
        getter = _fields[kind] = attrgetter(*names)
    text = f"{kind.__name__}{getter(message)}"
    if kind is Append and message.entries:  # type: ignore[attr-defined]
        text += "".join(f" {e.index}@{e.term}:{crc32(e.payload):x}" for e in message.entries)  # type: ignore[attr-defined]
    elif kind is SnapshotOffer:
        meta = message.meta  # type: ignore[attr-defined]
        text += f" {meta.id} {meta.index}@{meta.term}"
    return text


class Trace:
    """Hash and memory of one run."""

    def __init__(self, echo: Callable[[str], None] | None = None) -> None:
        self.number = 0
        self._hash = blake2b(digest_size=16)
        self._recent: deque[tuple[int, int, str, str, str]] = deque(maxlen=KEPT)
        self._echo = echo

    def note(self, time_us: int, server: str, kind: str, detail: str) -> None:
        """One event happened."""
        self.number += 1
        self._hash.update(f"{time_us} {server} {kind} {detail}\n".encode())
        self._recent.append((self.number, time_us, server, kind, detail))
        if self._echo is not None:
            self._echo(line(self._recent[-1]))

    def remark(self, time_us: int, server: str, what: str) -> None:
        """Something worth reading that is no event of its own (a role change, a commit)."""
        self._recent.append((self.number, time_us, server, "  *", what))
        if self._echo is not None:
            self._echo(line(self._recent[-1]))

    def hash(self) -> str:
        return self._hash.hexdigest()

    def last(self, servers: frozenset[str], count: int = 200) -> list[str]:
        """The last events of these servers (of all when empty), oldest first, ready to print."""
        lines = [event for event in self._recent if not servers or event[2] in servers or event[2] == ""]
        return [line(event) for event in lines[-count:]]


def line(event: tuple[int, int, str, str, str]) -> str:
    number, time_us, server, kind, detail = event
    return f"{number:>7} {time_us / 1e6:>11.6f}s {server:<5} {kind:<9} {detail}"
