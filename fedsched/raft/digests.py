"""Compares the servers' state digests at fixed indexes.

Raft keeps logs equal; that the states are equal too is only true while applying is deterministic. Every server notes a
digest of its state at agreed indexes and sends the newest one with its heartbeat replies. The leader collects them:
whoever differs from what a majority of the voters has computed must stop. Without a majority (two against two) nobody
can say who is wrong; that is counted and shown, and nobody is stopped.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

from fedsched.raft.membership import Config
from fedsched.raft.quorum import majority

INDEXES_MAX = 8
"""How many indexes are remembered: slower servers report late, but not that late."""


class OwnDigests:
    """The digests this server computed itself, newest last."""

    def __init__(self) -> None:
        self._digests: OrderedDict[int, bytes] = OrderedDict()
        self.index = 0
        self.digest = b""

    def note(self, index: int, digest: bytes) -> None:
        self._digests[index] = digest
        self.index, self.digest = index, digest
        if len(self._digests) > INDEXES_MAX:
            self._digests.popitem(last=False)

    def differs(self, index: int, expected: bytes) -> bool:
        """Whether we are known to have computed something else there."""
        ours = self._digests.get(index)
        return ours is not None and ours != expected

    def items(self) -> list[tuple[int, bytes]]:
        return list(self._digests.items())


class DigestBook:
    """A leader's collection of everybody's digests during its term of office."""

    def __init__(self) -> None:
        self._by_index: OrderedDict[int, dict[str, bytes]] = OrderedDict()
        self.disagreement_at = 0
        """The newest index at which digests differed, whether or not a majority settled it."""

    def note(self, server_id: str, index: int, digest: bytes, config: Config) -> tuple[bytes, list[str]]:
        """Take in one digest. Answers with the majority's digest at that index and the servers known to differ.

        Empty when nothing is wrong or nobody can tell. A differing server is named each time anybody reports for that
        index, so that a lost message to it is made up for.
        """
        seen = self._by_index.setdefault(index, {})
        seen[server_id] = digest
        if len(self._by_index) > INDEXES_MAX:
            del self._by_index[min(self._by_index)]
        if all(theirs == digest for theirs in seen.values()):
            return b"", []
        self.disagreement_at = max(self.disagreement_at, index)
        votes = Counter(value for voter, value in seen.items() if voter in config.voters)
        for value, count in votes.items():
            if count >= majority(len(config.voters)):
                return value, sorted(server for server, theirs in seen.items() if theirs != value)
        return b"", []
