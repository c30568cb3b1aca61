"""What the allocations of one group in one plan have in common, kept once."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsched.state.columns import Slots
from fedsched.state.past import Keeper
from fedsched.state.table import Key, Row, Table
from fedsched.state.tables.alloc_scores import Scores


class OriginRow(Row):
    """Where a batch of allocations came from."""

    table: ClassVar[str] = "alloc_origins"

    ref: int
    namespace: str
    job_id: str
    job_create_index: int
    job_version: int
    group: str
    evaluation_id: str
    group_slot: int
    deployment_id: str = ""
    shared: bytes = b""
    """Encoded fields of the allocation record that are the same for all of them."""
    score_names: str = ""
    scores: bytes = b""
    """What each of them scored when it was placed, see `alloc_scores`."""

    def scores_at(self, position: int) -> dict[str, float]:
        """What the allocation at this position scored, by scorer; nothing if nobody noted it."""
        return Scores.of(self.score_names, self.scores).at(position)

    @property
    def key(self) -> Key:
        return (self.ref,)

    @property
    def job_key(self) -> tuple[str, str]:
        return (self.namespace, self.job_id)

    @property
    def group_key(self) -> tuple[str, str, int, str]:
        return (self.namespace, self.job_id, self.job_create_index, self.group)

    @property
    def version_key(self) -> tuple[str, str, int, int]:
        return (self.namespace, self.job_id, self.job_create_index, self.job_version)


class GroupRow(Row):
    """Where the counts of one group of one job stand."""

    table: ClassVar[str] = "alloc_groups"

    namespace: str
    job_id: str
    job_create_index: int
    """A job that was purged and registered again counts from zero."""
    group: str
    slot: int

    @property
    def key(self) -> Key:
        return (self.namespace, self.job_id, self.job_create_index, self.group)


class Origins:
    """Origins with a count of how many allocations still point to each; the last one to go takes it along."""

    def __init__(self, keeper: Keeper) -> None:
        self.rows: Table[OriginRow] = Table(
            keeper, OriginRow, {"version": lambda row: row.version_key, "group": lambda row: row.group_key}
        )
        self._uses: dict[int, int] = {}
        self._free: list[int] = []
        self._next = 0
        self._group_slots: NDArray[np.int64] = np.zeros(64, dtype=np.int64)
        self._job_keys: dict[int, tuple[str, str]] = {}

    def next_ref(self) -> int:
        """The lowest number that is free, so that it follows from the numbers in use."""
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def put(self, row: OriginRow, uses: int) -> None:
        self.rows.put(row)
        self._uses[row.ref] = uses
        self._note_job(row)

    def group_slots(self, refs: NDArray[np.int32]) -> Slots:
        """Where the counts of each origin's group stand."""
        return self._group_slots[refs]

    def jobs(self, refs: NDArray[np.int32]) -> tuple[tuple[str, str], ...]:
        """Namespace and id of every job among these origins, in order."""
        known = self._job_keys
        return tuple(sorted({known[ref] for ref in np.unique(refs).tolist()}))

    def use(self, ref: int, count: int) -> None:
        self._uses[ref] += count

    def unuse(self, refs: NDArray[np.int32]) -> Iterator[OriginRow]:
        """Count allocations out again; yields the origins that nobody needs any more, after they are gone."""
        numbers, counts = np.unique(refs, return_counts=True)
        for ref, count in zip(numbers.tolist(), counts.tolist(), strict=True):
            self._uses[ref] -= count
            if not self._uses[ref]:
                del self._uses[ref]
                del self._job_keys[ref]
                heapq.heappush(self._free, ref)
                row = self.rows.delete(ref)
                assert row is not None
                yield row

    def adopt(self, row: OriginRow) -> None:
        """Take in a row from an image, in ascending order; uses are counted as the allocations come."""
        self._free += range(self._next, row.ref)
        self._next = row.ref + 1
        self._uses[row.ref] = 0
        self._note_job(row)

    def uses(self) -> dict[int, int]:
        return dict(self._uses)

    def _note_job(self, row: OriginRow) -> None:
        while row.ref >= len(self._group_slots):
            self._group_slots = np.concatenate((self._group_slots, np.zeros_like(self._group_slots)))
        self._group_slots[row.ref] = row.group_slot
        self._job_keys[row.ref] = row.job_key
