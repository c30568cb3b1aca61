"""How answers look: aligned columns, `Name = value` blocks, times, short ids.

Plain text with two spaces between columns, because that is what scripts cut and people scan. Only headings are bold,
and only on a terminal. Imported by every command: keep it cheap.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

NONE: Final = "<none>"
SHORT_ID: Final = 8

_UNITS: Final = (("y", 31_536_000), ("mo", 2_592_000), ("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


class Table(str):
    """A table as it is shown, which still knows its cells: so that those of several regions can become one."""

    __slots__ = ("head", "rows")

    head: tuple[str, ...]
    rows: list[list[str]]

    @classmethod
    def of(cls, head: Sequence[str], rows: list[list[str]]) -> Self:
        lines = [list(head), *rows]
        widths = [max(width(line[at]) for line in lines) for at in range(len(head))]
        table = cls(
            "".join(
                "  ".join(cell + " " * (pad - width(cell)) for cell, pad in zip(line, widths, strict=True)).rstrip()
                + "\n"
                for line in lines
            )
        )
        table.head, table.rows = tuple(head), rows
        return table


def columns(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Give a table: left-aligned, two spaces between columns, the empty cell as `<none>`."""
    return Table.of(head, [[_cell(value) for value in row] for row in rows])


def pairs(rows: Iterable[tuple[str, Any]]) -> str:
    """Give a block of `Name = value` lines, the signs under one another."""
    listed = [(name, _cell(value)) for name, value in rows]
    pad = max((width(name) for name, _ in listed), default=0)
    return "".join(f"{name}{' ' * (pad - width(name))} = {value}\n" for name, value in listed)


def as_json(value: Any) -> str:
    """Give the API object the way `-json` prints it."""
    import json

    return json.dumps(value, indent=4, ensure_ascii=False) + "\n"


def short(identifier: str, *, verbose: bool = False) -> str:
    return identifier if verbose else identifier[:SHORT_ID]


def moment(ns: int) -> str:
    """Give a time of a detail view: local, RFC 3339, or N/A for "never"."""
    if not ns:
        return "N/A"
    local = time.localtime(ns // 1_000_000_000)
    zone = time.strftime("%z", local)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", local)
    return f"{text}Z" if zone == "+0000" else f"{text}{zone[:3]}:{zone[3:]}"


def span(seconds: float) -> str:
    """Give a length of time in at most two units: `1m12s`, `3d2h`."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        amount, left = divmod(left, size)
        if amount or parts:
            parts.append(f"{amount}{unit}" if amount else "")
        if len(parts) == 2:
            break
    return "".join(parts) or "0s"


def ago(ns: int, now_ns: int) -> str:
    """Give a time of a table: how long ago it was."""
    return "N/A" if not ns else f"{span(max(0, now_ns - ns) / 1e9)} ago"


def quoted(text: str) -> str:
    """Give a word as a shell takes it; short because `shlex` costs an import of `re`."""
    is_plain = text and all(char.isalnum() or char in "-_./:=,@+" for char in text)
    return text if is_plain else "'" + text.replace("'", "'\\''") + "'"


def width(text: str) -> int:
    """Count the terminal cells a text takes: wide characters two, combining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def _cell(value: Any) -> str:
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    return text if text.isprintable() else text.encode("unicode_escape").decode()
