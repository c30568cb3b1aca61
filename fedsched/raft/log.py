"""The part of the log that is kept in memory: every entry since the last compaction.

Positions are found by arithmetic and terms by bisection, so nothing here takes longer because the log is long:

    prev_index   first .............. durable ....... handed to store ....... last
    (compacted)  [---- on disk --------][-- being written --][-- not yet handed --]

Beside the entries runs a list of byte counts (what all records up to this one take), which gives the size of any range,
and how many records fit into a message, without walking them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from fedsched.raft.entry import RECORD_OVERHEAD, Entry


class RaftLog:
    """Entries `first..last`; (`prev_index`, `prev_term`) name the one just before them."""

    def __init__(self, prev_index: int = 0, prev_term: int = 0, entries: Sequence[Entry] = ()) -> None:
        self.prev_index = prev_index
        self.prev_term = prev_term
        self.last = prev_index
        self.last_term = prev_term
        self.durable = prev_index
        """Everything up to here has survived a sync, as far as we were told."""
        self.handed = prev_index
        """Everything up to here was given to the store."""
        self._entries: list[Entry] = []
        self._ends: list[int] = [0]
        """`_ends[k]`: bytes of all records up to the k-th entry, counted from some fixed point in the past."""
        self._run_terms: list[int] = []
        self._run_starts: list[int] = []
        """Terms only rise along a log: where each one begins."""
        for entry in entries:
            self.append(entry)
        self.durable = self.handed = self.last

    @property
    def first(self) -> int:
        return self.prev_index + 1

    @property
    def bytes(self) -> int:
        return self._ends[-1] - self._ends[0]

    def term(self, index: int) -> int | None:
        """The term at `index`; None where the log does not reach."""
        if index == self.last:
            return self.last_term
        if index == self.prev_index:
            return self.prev_term
        if self.prev_index < index < self.last:
            return self._entries[index - self.prev_index - 1].term
        return None

    def matches(self, index: int, term: int) -> bool:
        return self.term(index) == term

    def is_current(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends there is at least as complete as this one (paper 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last)

    def slice(self, first: int, last: int) -> list[Entry]:
        """Entries `first..last`, as far as they are here; nothing if the first one is gone."""
        if first <= self.prev_index:
            return []
        base = self.prev_index + 1
        return self._entries[first - base : last - base + 1]

    def fitting(self, first: int, limit_bytes: int) -> int:
        """The last index of the longest run from `first` (which must be here) within the limit; at least `first`."""
        base = self.prev_index
        stop = bisect_right(self._ends, self._ends[first - base - 1] + limit_bytes, first - base)
        return max(first, base + stop - 1)

    def bytes_between(self, after: int, upto: int) -> int:
        """Bytes of the records in (after, upto]; what was compacted counts for nothing."""
        base = self.prev_index
        return self._ends[upto - base] - self._ends[max(after - base, 0)]

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last + 1, f"entry {entry.index} does not follow {self.last}"
        assert entry.term >= self.last_term, f"entry {entry.index} of term {entry.term} after term {self.last_term}"
        if entry.term != self.last_term or not self._run_terms:
            self._run_terms.append(entry.term)
            self._run_starts.append(entry.index)
        self._entries.append(entry)
        self._ends.append(self._ends[-1] + RECORD_OVERHEAD + len(entry.payload))
        self.last = entry.index
        self.last_term = entry.term

    def truncate(self, first: int) -> None:
        """Drop `first` and all that follows; what the disk holds of it no longer counts."""
        keep = first - self.prev_index - 1
        del self._entries[keep:]
        del self._ends[keep + 1 :]
        while self._run_starts and self._run_starts[-1] >= first:
            self._run_starts.pop()
            self._run_terms.pop()
        self.last = first - 1
        self.last_term = self._entries[-1].term if self._entries else self.prev_term
        self.durable = min(self.durable, self.last)
        self.handed = min(self.handed, self.last)

    def compact(self, upto: int) -> None:
        """Forget everything up to and including `upto`; a snapshot stands for it."""
        drop = upto - self.prev_index
        if drop <= 0:
            return
        term = self.term(upto)
        assert term is not None, f"cannot compact to {upto}: the log ends at {self.last}"
        del self._entries[:drop]
        del self._ends[:drop]
        gone = bisect_right(self._run_starts, upto) - 1
        del self._run_starts[:gone]
        del self._run_terms[:gone]
        if not self._entries:
            self._run_starts.clear()
            self._run_terms.clear()
        self.prev_index, self.prev_term = upto, term

    def take_unsaved(self) -> tuple[Entry, ...]:
        """What the store has not been given yet; it counts as given from now on."""
        if self.handed == self.last:
            return ()
        entries = tuple(self.slice(self.handed + 1, self.last))
        self.handed = self.last
        return entries

    def skip_back(self, index: int, term: int) -> tuple[int, int]:
        """(index, term) of the last entry at or before `index` whose term is at most `term`.

        Nothing newer than that can be common with a log whose entry at `index` has `term`, so both sides of a refusal
        leave out a whole term at a time. Answers with the compaction point if the log does not reach back far enough.
        """
        index = min(index, self.last)
        if index <= self.prev_index:
            return self.prev_index, self.prev_term
        found = self.term(index)
        assert found is not None
        if found <= term:
            return index, found
        run = bisect_right(self._run_terms, term)  # the first run that is too new; `index` lies in it or after it
        before = self._run_starts[run] - 1
        if before <= self.prev_index:
            return self.prev_index, self.prev_term
        return before, self._run_terms[run - 1]

    def last_of_term(self, term: int) -> int:
        """The last index whose entry has `term` or an older one."""
        run = bisect_right(self._run_terms, term)
        return self._run_starts[run] - 1 if run < len(self._run_starts) else self.last
