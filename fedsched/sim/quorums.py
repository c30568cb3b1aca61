"""Quorums counted the slow and obvious way, for checkers that must not trust the core's arithmetic."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from functools import lru_cache
from itertools import combinations

from fedsched.raft.membership import Config


def has_quorum(config: Config, ids: AbstractSet[str]) -> bool:
    """Whether these servers are more than half of the voters, and of the outgoing ones if there are any."""
    sets = [voters for voters in (config.voters, config.outgoing) if voters]
    return bool(sets) and all(2 * len(voters & ids) > len(voters) for voters in sets)


def overlap(one: Config, other: Config) -> bool:
    """Whether every quorum of one config shares a server with every quorum of the other."""
    return _overlap(one.voters, one.outgoing, other.voters, other.outgoing)


@lru_cache(maxsize=4096)
def _overlap(v1: frozenset[str], o1: frozenset[str], v2: frozenset[str], o2: frozenset[str]) -> bool:
    """True unless some quorum of the first leaves a quorum of the second untouched."""
    everybody = sorted(v1 | o1 | v2 | o2)
    first, second = Config(voters=v1, outgoing=o1), Config(voters=v2, outgoing=o2)
    for size in range(1, len(everybody) + 1):
        for chosen in combinations(everybody, size):
            if has_quorum(first, frozenset(chosen)) and has_quorum(second, frozenset(everybody) - set(chosen)):
                return False
    return True
