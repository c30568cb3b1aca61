"""Source text and places in it: every problem in a job file points at a line and a column.

Tokens and tree nodes carry only two offsets; lines, columns and bytes are counted when a problem is shown. Columns
count what a reader sees as one character (a letter with its accents is one), as editors do.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from fedsched.jobspec.graphemes import count_graphemes


@dataclass(frozen=True, slots=True)
class Pos:
    """One place: line and column start at 1, `byte` at 0 in the UTF-8 form of the file."""

    line: int
    column: int
    byte: int


class Source:
    """One file (or one value given on a command line) and where its lines begin."""

    __slots__ = ("_base", "_line_starts", "filename", "text")

    def __init__(self, text: str, filename: str, *, base: Span | None = None) -> None:
        self.text = text
        self.filename = filename
        self._base = base
        self._line_starts: list[int] | None = None

    def pos(self, offset: int) -> Pos:
        """The place of a character; text that was taken out of another source counts from where it stood there."""
        starts = self._starts()
        line = bisect_right(starts, offset)
        start = starts[line - 1]
        pos = Pos(line, count_graphemes(self.text[start:offset]) + 1, len(self.text[:offset].encode()))
        if self._base is None:
            return pos
        origin = self._base.first
        column = origin.column + pos.column - 1 if line == 1 else pos.column
        return Pos(origin.line + line - 1, column, origin.byte + pos.byte)

    def line_text(self, line: int) -> str:
        """One line without its end; of the outermost source, so that a caret lands under what the reader wrote."""
        if self._base is not None:
            return self._base.source.line_text(line)
        starts = self._starts()
        if not 1 <= line <= len(starts):
            return ""
        end = starts[line] if line < len(starts) else len(self.text)
        return self.text[starts[line - 1] : end].rstrip("\r\n")

    def _starts(self) -> list[int]:
        if self._line_starts is None:
            starts = [0]
            at = self.text.find("\n")
            while at >= 0:
                starts.append(at + 1)
                at = self.text.find("\n", at + 1)
            self._line_starts = starts
        return self._line_starts


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A stretch of source: `start` is in it, `end` is not."""

    source: Source
    start: int
    end: int

    @property
    def first(self) -> Pos:
        return self.source.pos(self.start)

    @property
    def last(self) -> Pos:
        return self.source.pos(self.end)

    @property
    def filename(self) -> str:
        return self.source.filename

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    def to(self, other: Span) -> Span:
        """From the beginning of this one to the end of the other."""
        return Span(self.source, self.start, other.end)

    def at_start(self) -> Span:
        """The empty stretch before the first character: where something is missing."""
        return Span(self.source, self.start, self.start)

    def __str__(self) -> str:
        first = self.first
        return f"{self.filename}:{first.line}:{first.column}"
