"""What each placement scored, in columns beside what its batch shares.

An allocation shows its own figures, and a thousand of them are placed at once: so the figures of a batch stay together
as they came, one column of 32-bit floats per scorer, in the batch's origin. The allocation's record has its position
there. Nothing is done per allocation until one is read.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsched.model.score_names import ALWAYS_LISTED, mean_of

DIGITS: Final = 6
SHOWN: Final = 5
"""Nodes listed with an allocation: its own and the best of those that it was chosen among."""

_FLOAT: Final = struct.Struct("<f")


class Scores(NamedTuple):
    """The figures of one batch."""

    names: tuple[str, ...]
    data: bytes
    """One column per name, one after the other."""

    @classmethod
    def of(cls, text: str, data: bytes) -> Scores:
        """Of names parted by commas, as they are stored."""
        return cls(tuple(text.split(",")) if text else (), data)

    @property
    def text(self) -> str:
        """The names as they are stored."""
        return ",".join(self.names)

    def fits(self, count: int) -> bool:
        """Whether there is one figure per scorer and allocation, or none at all."""
        return len(self.data) == 4 * count * len(self.names) and len(set(self.names)) == len(self.names)

    def columns(self) -> NDArray[np.float32]:
        """One line per name."""
        return np.frombuffer(self.data, dtype="<f4").reshape(len(self.names), -1)

    def only(self, which: NDArray[Any]) -> Scores:
        """Those of some of the allocations: a mask, or positions."""
        return Scores(self.names, self.columns()[:, which].tobytes()) if self.names else self

    def at(self, position: int) -> dict[str, float]:
        """The figures of one allocation, by scorer."""
        count = len(self.data) // (4 * len(self.names)) if self.names else 0
        if not 0 <= position < count:
            return {}
        found = dict.fromkeys(ALWAYS_LISTED, 0.0)
        for number, name in enumerate(self.names):
            start = 4 * (number * count + position)
            (value,) = _FLOAT.unpack_from(self.data, start)
            if math.isfinite(value):
                found[name] = round(value, DIGITS)
        return found


NO_SCORES: Final = Scores((), b"")


def joined(parts: Iterable[tuple[Scores, int]]) -> Scores:
    """The figures of several batches as one; each comes with its number of allocations.

    Where a batch has nothing from a scorer there is no number.
    """
    known = list(parts)
    names = tuple(dict.fromkeys(name for scores, _ in known for name in scores.names))
    if not names:
        return NO_SCORES
    if len(known) == 1:
        return known[0][0]
    table = np.full((len(names), sum(count for _, count in known)), np.nan, dtype="<f4")
    start = 0
    for scores, count in known:
        if scores.names:
            table[[names.index(name) for name in scores.names], start : start + count] = scores.columns()
        start += count
    return Scores(names, table.tobytes())


def with_own(metrics: Any, node_id: str, scores: dict[str, float]) -> dict[str, Any]:
    """A placement's stored metrics with its own figures first, then the nodes that its whole batch was shown."""
    known: dict[str, Any] = metrics if isinstance(metrics, dict) else {}
    listed = known.get("ScoreMetaData")
    own = {"NodeID": node_id, "Scores": scores, "NormScore": round(mean_of(scores), DIGITS)}
    others = [one for one in listed or () if isinstance(one, dict) and one.get("NodeID") != node_id]
    return {**known, "ScoreMetaData": [own, *others[: SHOWN - 1]]}
