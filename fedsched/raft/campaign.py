"""One ballot: a round of prevotes or of votes, collected by voter."""

from __future__ import annotations

from fedsched.raft.membership import Config
from fedsched.raft.quorum import Outcome, vote_outcome


class Campaign:
    """Who has answered and how. The first answer of a server stands; a repeated one changes nothing."""

    def __init__(self) -> None:
        self._granted: set[str] = set()
        self._refused: set[str] = set()

    def note(self, voter: str, granted: bool) -> None:
        if voter not in self._granted and voter not in self._refused:
            (self._granted if granted else self._refused).add(voter)

    def outcome(self, config: Config) -> Outcome:
        return vote_outcome(config, self._granted, self._refused)
