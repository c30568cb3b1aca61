"""A block of lines that is drawn over itself, for people who watch; files and pipes never see it."""

from __future__ import annotations

from typing import Final

from fedsched.verbs.terminal import Terminal
from fedsched.verbs.view import width

SPINNER: Final = "|/-\\"
UP_AND_CLEAR: Final = "\x1b[{lines}A\x1b[J"
COLUMNS: Final = 80
"""Taken for the width of a terminal that does not say."""


class LiveBlock:
    """What stands at the bottom of the screen until it is settled."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._lines = 0
        self._turn = 0

    @staticmethod
    def suits(terminal: Terminal) -> bool:
        """Whether there is a screen that can be drawn over."""
        return terminal.out.isatty() and terminal.environ.get("TERM") != "dumb"

    def spinner(self) -> str:
        """One character that differs from the last one: it is alive."""
        self._turn += 1
        return SPINNER[self._turn % len(SPINNER)]

    def draw(self, text: str) -> None:
        """Show this instead of what was shown last."""
        self.clear()
        self._terminal.write(text)
        self._terminal.out.flush()
        self._lines = sum(max(1, -(-width(line) // self._columns())) for line in text.splitlines())

    def clear(self) -> None:
        if self._lines:
            self._terminal.write(UP_AND_CLEAR.format(lines=self._lines))
            self._lines = 0

    def _columns(self) -> int:
        from shutil import get_terminal_size

        return get_terminal_size((COLUMNS, 24)).columns or COLUMNS
