"""Reads that wait for proof that nothing newer was acknowledged elsewhere (ReadIndex, dissertation 6.4).

The leader notes its commit index and proves that it still leads by one round of heartbeats; all reads that arrive while
a round is out share the next one. A follower asks the leader in the same manner: one question at a time, on behalf of
everybody who asked meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple


class Reader(NamedTuple):
    """Who asked: a server (or "" for this one) and its context number."""

    server_id: str
    ctx: int


class LeaderReads:
    """Reads waiting at a leader, for one term of office."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: list[Reader] = []
        self._round_readers: list[Reader] = []
        self._round_index = 0
        self.round = 0
        """The number every heartbeat carries; replies to it prove leadership after the round began."""

    @property
    def is_round_out(self) -> bool:
        return bool(self._round_readers)

    @property
    def can_start(self) -> bool:
        return bool(self._waiting) and not self._round_readers

    def add(self, reader: Reader) -> bool:
        """False when too many wait already."""
        if len(self._waiting) >= self._limit:
            return False
        self._waiting.append(reader)
        return True

    def start(self, commit: int) -> None:
        """Begin a round for everybody who waits; they will be answered with this commit index."""
        self.round += 1
        self._round_index = commit
        self._round_readers, self._waiting = self._waiting, []

    def confirmed(self) -> tuple[int, list[Reader]]:
        """A quorum answered the round: its index and who gets it."""
        readers, self._round_readers = self._round_readers, []
        return self._round_index, readers

    def drop(self) -> list[Reader]:
        """Leadership is gone: everybody who must ask again."""
        readers = self._round_readers + self._waiting
        self._round_readers, self._waiting = [], []
        return readers


class FollowerReads:
    """Reads of this server's callers that a leader elsewhere must answer."""

    def __init__(self, limit: int, first_question: int) -> None:
        self._limit = limit
        self._waiting: list[int] = []
        self._asked: list[int] = []
        self._question = first_question
        """Starts anywhere: a late answer to a question from before a restart must not fit a new one."""
        self._asked_at = 0

    @property
    def can_ask(self) -> bool:
        return bool(self._waiting) and not self._asked

    def add(self, ctx: int) -> bool:
        """False when too many wait already."""
        if len(self._waiting) >= self._limit:
            return False
        self._waiting.append(ctx)
        return True

    def ask(self, now: int) -> int:
        """The number of the question that is asked for everybody who waits."""
        self._question += 1
        self._asked, self._waiting = self._waiting, []
        self._asked_at = now
        return self._question

    def answered(self, question: int) -> list[int]:
        """Who gets the answer; nobody if it is to an older question."""
        if question != self._question:
            return []
        asked, self._asked = self._asked, []
        return asked

    def expired(self, now: int, ticks: int) -> list[int]:
        """Who waited for too long: question or answer got lost on the way."""
        if not self._asked or now - self._asked_at < ticks:
            return []
        return self.answered(self._question)

    def drop(self) -> list[int]:
        """The leader changed: everybody who must ask again."""
        everybody = self._asked + self._waiting
        self._asked, self._waiting = [], []
        return everybody
