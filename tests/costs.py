"""What a piece of work costs, counted instead of timed: the same figures on every machine, however busy it is.

    small, large = (cost_of(lambda: page(world(size))) for size in (1000, 2000))
    assert_flat(small, large)

Two things are counted. *Lines* of Python, every time one is run: that is what loops, calls and searches cost. And the
*bytes* that were in use on top of what was there before, at the highest: work inside C (a sort, a copy, an operation on
columns) runs no lines, but where it goes through all of something it nearly always makes something as large.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, NamedTuple

TOLERANCE: Final = 1.03
"""How much dearer work may become when what it must not grow with is doubled. A fifth would be allowed; but figures
that are counted do not waver, and a small share sees growth that a large fixed part would hide."""
NOISE_LINES: Final = 25
NOISE_BYTES: Final = 4096
"""A dict or a list that happens to be enlarged."""


class Cost(NamedTuple):
    """What a piece of work took."""

    lines: int
    bytes: int


def cost_of(work: Callable[[], object]) -> Cost:
    """Do it twice: once to count lines and once to count bytes. The work has to be repeatable."""
    return Cost(_lines_of(work), _bytes_of(work))


def assert_flat(small: Cost, large: Cost, *, is_vector: bool = False, tolerance: float = TOLERANCE) -> None:
    """The second may cost hardly more than the first; of work on columns only the lines are compared."""
    allowed = Cost(
        round(small.lines * tolerance) + NOISE_LINES,
        round(small.bytes * tolerance) + NOISE_BYTES,
    )
    assert large.lines <= allowed.lines, f"{large.lines} lines instead of {small.lines}"
    assert is_vector or large.bytes <= allowed.bytes, f"{large.bytes} bytes instead of {small.bytes}"


def _lines_of(work: Callable[[], object]) -> int:
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    gc.disable()  # a finaliser of somebody else's would be counted
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def _bytes_of(work: Callable[[], object]) -> int:
    gc.collect()
    tracemalloc.start()
    try:
        began, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        work()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - began
