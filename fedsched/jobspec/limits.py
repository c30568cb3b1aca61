"""How much a job file may ask for. Parsing runs on servers too, on whatever anybody sends.

Every bound is far above what job files hold (the largest seen in the field are some hundred KiB) and low enough that
reading a hostile one ends within seconds and tens of MiB.
"""

from __future__ import annotations

from fedsched.jobspec.problems import too_much
from fedsched.jobspec.source import Span

MAX_SOURCE_CHARS = 1 << 20
"""Nomad refuses to keep sources over 1 MB as well."""

MAX_TOKENS = 300_000
MAX_DEPTH = 64
"""Braces, brackets, calls and templates inside one another; each takes six frames of Python's thousand."""

MAX_VALUE_DEPTH = 64
"""Collections inside one another: deeper than syntax, because locals can build on locals."""

MAX_STRING_CHARS = 1 << 20
MAX_VALUE_SIZE = 8 << 20
"""Of one value with all that is inside it: characters, and 16 for every element. Sharing does not make it smaller."""

MAX_ELEMENTS = 50_000
"""Of one list, map, tuple, object or set."""

MAX_RANGE = 1024
"""Of one `range`, as in Nomad."""

MAX_NUMBER_DIGITS = 2048
MAX_NUMBER_EXPONENT = 2048
"""Decimal digits and powers of ten; larger integers would meet Python's own bound on printing them."""

MAX_STEPS = 500_000
"""Expressions evaluated and loop rounds, over one whole file."""

MAX_VOLUME = 32 << 20
"""Characters and elements that all expressions together may produce, and functions may look at."""

MAX_BLOCKS = 20_000
"""Blocks that `dynamic` may generate in one file."""

MAX_BCRYPT_COST = 13
"""Doubles the work with each step; 13 is about half a second."""

MAX_YAML_CHARS = 1 << 18
"""Of a text to decode; YAML is slow to read."""


class Budget:
    """What is left of the work that one file may cause; shared by all contexts made from one another."""

    __slots__ = ("_blocks", "_steps", "_volume")

    def __init__(self, steps: int = MAX_STEPS, volume: int = MAX_VOLUME, blocks: int = MAX_BLOCKS) -> None:
        self._steps = steps
        self._volume = volume
        self._blocks = blocks

    def step(self, span: Span | None) -> None:
        self._steps -= 1
        if self._steps < 0:
            raise too_much("the file's expressions take too many steps", span)

    def produce(self, amount: int, span: Span | None) -> None:
        """Account for a text or collection that was made."""
        self._volume -= amount
        if self._volume < 0:
            raise too_much("the file's expressions produce too much text or too many elements", span)

    def block(self, span: Span | None) -> None:
        self._blocks -= 1
        if self._blocks < 0:
            raise too_much(f"dynamic blocks may make {MAX_BLOCKS} blocks in one file", span)
