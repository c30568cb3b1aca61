"""What became of entries whose leader lost its office before they were committed.

That an entry was cut off *here* proves nothing: another server may still hold it, win a later election and commit it.
It is lost for certain only when a different entry is known to be committed in its place; then everything its leader
appended after it is lost as well, because a log that held those would hold it too.
"""

from __future__ import annotations

from fedsched.raft import rare
from fedsched.raft.log import RaftLog
from fedsched.raft.messages import Lost

KEPT_MAX = 16
"""Offices remembered; what is forgotten stays "unknown" to whoever asked, which is true."""


class Unsettled:
    """Ranges this server appended as leader and left uncommitted, one per term of office."""

    def __init__(self) -> None:
        self._ranges: list[Lost] = []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, first: int, last: int, term: int) -> None:
        if first <= last:
            self._ranges = [*self._ranges, Lost(first, last, term)][-KEPT_MAX:]

    def settle(self, log: RaftLog, commit: int) -> list[Lost]:
        """The ranges, or their ends, that are lost for certain now that `commit` is reached."""
        lost: list[Lost] = []
        still: list[Lost] = []
        for each in self._ranges:
            if each.first > commit:
                still.append(each)
                continue
            term = log.term(each.first)
            if term is None:
                continue  # a snapshot took its place: nobody here can tell
            if term != each.term:
                lost.append(each)
                continue
            rare.sometimes("overwritten_came_back")
            kept = min(log.last_of_term(each.term), each.last)
            if kept < commit and kept < each.last:
                lost.append(Lost(kept + 1, each.last, each.term))
            elif commit < each.last:
                still.append(Lost(commit + 1, each.last, each.term))
        self._ranges = still
        if lost:
            rare.sometimes("lost_is_certain")
        return lost
