"""What is wrong with a job file: every problem with its place, the line it stands in, and what was meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from fedsched.jobspec.graphemes import count_graphemes
from fedsched.jobspec.source import Span
from fedsched.model.errors import FedschedError

MAX_PROBLEMS = 50
"""Past so many nobody reads on; a hostile file could hold one per character."""

_MAX_LINE_SHOWN = 160
_MAX_CANDIDATES = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. Without a span it concerns the file, or something given beside it."""

    summary: str
    detail: str = ""
    span: Span | None = None
    suggestion: str = ""
    """A word that may have been meant, or empty."""

    @property
    def message(self) -> str:
        """The words without the place, on one line."""
        text = self.summary
        if self.detail:
            text += f": {self.detail}"
        if self.suggestion:
            text += f" Did you mean {self.suggestion!r}?"
        return text

    def __str__(self) -> str:
        return f"{self.span}: {self.message}" if self.span is not None else self.message

    def render(self) -> str:
        """The message, then the line it is about with a caret below."""
        if self.span is None:
            return str(self)
        first, last = self.span.first, self.span.last
        line = self.span.source.line_text(first.line)
        width = last.column - first.column if last.line == first.line else count_graphemes(line) - first.column + 1
        shown, offset = _window(line, first.column)
        number = str(first.line)
        margin = " " * len(number)
        caret = " " * (first.column - 1 - offset) + "^" * max(1, min(width, len(shown) - (first.column - 1 - offset)))
        return f"{self}\n  {number} | {shown}\n  {margin} | {caret}"


class JobfileProblems(FedschedError):
    """A job file (or what was given with it) that cannot be read; `problems` holds everything found."""

    code = "bad_jobfile"
    http_status = 400

    def __init__(self, problems: Iterable[Problem], *, hint: str = "") -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        Exception.__init__(self)
        self.hint = hint

    @cached_property
    def message(self) -> str:  # type: ignore[override]
        """Every problem on its line; counted out only when asked for, since `try` may throw thousands away."""
        return "\n".join(str(problem) for problem in self.problems)

    def render(self) -> str:
        """Everything found, for a terminal."""
        return "\n".join(problem.render() for problem in self.problems)


class TooMuch(JobfileProblems):
    """A bound was met (size, depth, steps). Unlike other problems it cannot be caught by `try` or `can`."""

    code = "job_file_too_large"


def too_much(detail: str, span: Span | None = None) -> TooMuch:
    return TooMuch([Problem("Too large to evaluate", detail, span)])


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """By place, each once; what has no place comes last. Of a flood only the first part is looked at."""
    kept: dict[tuple[str, int, int, str], Problem] = {}
    for problem in islice(problems, 10 * MAX_PROBLEMS):
        span = problem.span
        key = (
            (span.filename, span.first.byte, span.last.byte, problem.message) if span else ("", -1, -1, problem.message)
        )
        kept.setdefault(key, problem)
    placed = [p for p in kept.values() if p.span is not None]
    placed.sort(key=lambda p: (p.span.first.line, p.span.first.column) if p.span else (0, 0))
    return [*placed, *(p for p in kept.values() if p.span is None)][:MAX_PROBLEMS]


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word within two slips of the one written (fewer for short ones), or an empty text."""
    limit = 1 if len(word) < 4 else 2
    best, best_distance = "", limit + 1
    for candidate in islice(sorted(known), _MAX_CANDIDATES):
        if abs(len(candidate) - len(word)) > limit:
            continue
        distance = _distance(word.lower(), candidate.lower(), limit)
        if distance < best_distance:
            best, best_distance = candidate, distance
    return best


def _distance(left: str, right: str, limit: int) -> int:
    """How many letters must be added, dropped, changed or swapped with a neighbour."""
    before: Sequence[int] = ()
    row: Sequence[int] = range(len(right) + 1)
    for i, a in enumerate(left, 1):
        next_row = [i]
        for j, b in enumerate(right, 1):
            cost = min(row[j] + 1, next_row[j - 1] + 1, row[j - 1] + (a != b))
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            next_row.append(cost)
        if min(next_row) > limit:
            return limit + 1
        before, row = row, next_row
    return row[-1]


def _window(line: str, column: int) -> tuple[str, int]:
    """The part of a long line around a column, and how many characters were left off before it."""
    line = line.replace("\t", " ")
    if len(line) <= _MAX_LINE_SHOWN:
        return line, 0
    offset = max(0, min(column - _MAX_LINE_SHOWN // 2, len(line) - _MAX_LINE_SHOWN))
    return line[offset : offset + _MAX_LINE_SHOWN], offset
