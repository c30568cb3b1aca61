"""Lines of many logs on one screen: each whole, behind the name of where it is from."""

from __future__ import annotations

from typing import Final

from fedsched.verbs.log_follow import LogTarget
from fedsched.verbs.terminal import Terminal

LINE_MAX: Final = 64 * 1024
"""A longer line is shown in pieces: nobody's memory grows with somebody's output."""
COLOURS: Final = (36, 32, 33, 35, 34, 31, 96, 92, 93, 95)


class LinePrinter:
    """Prints what comes from several logs without mixing their lines."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._begun: dict[tuple[str, str, str], bytearray] = {}
        self._colours: dict[str, int] = {}

    def add(self, target: LogTarget, data: bytes) -> None:
        """Print the lines that are whole now, and keep the beginning of the next."""
        key = (target.alloc_id, target.task, target.kind)
        begun = self._begun.setdefault(key, bytearray())
        begun += data
        whole, newline, rest = bytes(begun).rpartition(b"\n")
        if len(rest) > LINE_MAX:
            whole, newline, rest = whole + newline + rest, b"", b""
        if whole or newline:
            self._print(target, whole)
            self._begun[key] = bytearray(rest)

    def finish(self) -> None:
        """Print what has no end of line and will get none."""
        for (alloc_id, task, kind), begun in self._begun.items():
            if begun:
                self._print(LogTarget(alloc_id, "", task, kind), bytes(begun))
        self._begun.clear()

    def _print(self, target: LogTarget, lines: bytes) -> None:
        prefix = self._prefix(target)
        shown = b"".join(prefix + line + b"\n" for line in lines.split(b"\n"))
        self._terminal.write_bytes(shown, to_err=False)

    def _prefix(self, target: LogTarget) -> bytes:
        name = f"{target.alloc_id[:8]} {target.task}" + (" stderr" if target.kind == "stderr" else "")
        if not self._terminal.is_colourful:
            return f"{name} | ".encode()
        colour = self._colours.setdefault(target.alloc_id, COLOURS[len(self._colours) % len(COLOURS)])
        return f"\x1b[{colour}m{name} |\x1b[0m ".encode()


def last_lines(data: bytes, count: int) -> bytes:
    """The last so many lines; one that has no end yet counts as one."""
    if count <= 0:
        return b""
    at = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(count):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return data
    return data[at + 1 :]
