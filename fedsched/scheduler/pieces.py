"""Long work in pieces: a generator that pauses every few milliseconds and hands back its answer at the end.

Whoever drives it decides what happens in the pauses. On an event loop others get their turn, so what the work looks at
must not change under it: it has a snapshot of the state and a fleet of its own. Without pauses it needs neither.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Pieces = Generator[None, None, T]


def at_once(work: Pieces[T]) -> T:
    """All of it without a pause."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            answer: T = done.value
            return answer
