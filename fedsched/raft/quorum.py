"""Quorum arithmetic, joint from the start.

A decision needs a majority of `voters` and, while a membership change is under way, a majority of `outgoing` too. Votes
and acknowledgements are looked up by server id, so a repeated reply can never count twice and a server outside the
config never counts at all. An empty set of voters decides nothing: a server that knows no config must not lead.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum

from fedsched.raft.membership import Config


class Outcome(Enum):
    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(voters: int) -> int:
    """How many out of so many are a majority."""
    return voters // 2 + 1


def majority_reached(values: Sequence[int]) -> int:
    """The highest value that a majority has reached, given one value per voter; 0 without voters."""
    count = len(values)
    if count == 0:
        return 0
    return sorted(values)[count - majority(count)]


def has_quorum(config: Config, ids: AbstractSet[str]) -> bool:
    """Whether these servers can decide on behalf of all."""
    return _has_majority(config.voters, ids) and (not config.outgoing or _has_majority(config.outgoing, ids))


def vote_outcome(config: Config, granted: AbstractSet[str], refused: AbstractSet[str]) -> Outcome:
    """How a ballot stands: lost as soon as it can no longer be won."""
    if has_quorum(config, granted):
        return Outcome.WON
    for voters in (config.voters, config.outgoing):
        if voters and len(voters & refused) > len(voters) - majority(len(voters)):
            return Outcome.LOST
    return Outcome.PENDING


def _has_majority(voters: Collection[str], ids: AbstractSet[str]) -> bool:
    return bool(voters) and sum(1 for voter in voters if voter in ids) >= majority(len(voters))
