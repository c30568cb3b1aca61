"""What tasks themselves say: each writes down its start and its end, whoever started it and whoever hears of it.

A line is appended with one write, so lines of many tasks never mix. What is written here is the truth that the
region's own story is compared with.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

SCRIPT = """\
echo "start $FEDSCHED_ALLOC_ID $FEDSCHED_TASK_NAME $$" >> "$LEDGER"
trap 'echo "usr1 $FEDSCHED_ALLOC_ID $FEDSCHED_TASK_NAME $$" >> "$LEDGER"' USR1
trap 'echo "end $FEDSCHED_ALLOC_ID $FEDSCHED_TASK_NAME 0" >> "$LEDGER"; exit 0' INT TERM
left=$1
while [ "$left" -gt 0 ]; do
    sleep 0.1 &
    wait $!
    left=$((left - 1))
done
echo "end $FEDSCHED_ALLOC_ID $FEDSCHED_TASK_NAME $2" >> "$LEDGER"
exit $2
"""
"""A task: runs for so many tenths of a second, then ends with the exit code it was given; says when it is signalled."""

FOR_EVER = 1_000_000


class Line(NamedTuple):
    what: str
    alloc_id: str
    task: str
    value: int
    """The pid of a start or a signal, the exit code of an end."""


def read(path: Path) -> list[Line]:
    """Everything written so far; a torn last line would be a bug of the ledger's own and fails here."""
    return parsed(path.read_text()) if path.exists() else []


def parsed(lines: str) -> list[Line]:
    found = []
    for text in lines.splitlines():
        what, alloc_id, task, value = text.split()
        found.append(Line(what, alloc_id, task, int(value)))
    return found


def starts(lines: list[Line]) -> Counter[tuple[str, str]]:
    """How often each task was started."""
    return Counter((line.alloc_id, line.task) for line in lines if line.what == "start")


def ends(lines: list[Line]) -> dict[tuple[str, str], int]:
    """With what each task that has ended by itself ended."""
    return {(line.alloc_id, line.task): line.value for line in lines if line.what == "end"}
