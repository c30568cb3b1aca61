"""Deciding when to look for the pool: at the start until somebody answers, and later whenever it seems to be lost.

Having joined once is not being joined: two halves of a pool that was cut in two, each sure that the other is dead,
forget each other after days. So the places that a person configured are looked at again as long as fewer than half of
them are members that answer. Names are looked up anew each time: what they lead to may have moved.

A place counts as present if a member that is up is there with its gossip or with its server port, because people write
either into the same list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from fedsched.gossip.foundation import Chance
from fedsched.gossip.members import Member
from fedsched.gossip.messages import Address, NameTaken
from fedsched.model.errors import Conflict, FedschedError, Unavailable

FIRST_S: Final = 1.0
LONGEST_S: Final = 30.0
AGAIN_S: Final = 60.0
"""How often somebody who is in looks whether enough of the configured places are."""
GRACE_RECLAIMS: Final = 2
"""A name is refused for so many times of its reclaim time before that is final: its owner may just have died, and be a
former self that lost its disk."""

Places = Mapping[str, tuple[Address, ...]]
"""What was configured, and where it leads at the moment."""


class Pause(NamedTuple):
    """Look again after so long."""

    seconds: float


class GiveUp(NamedTuple):
    """This member will not get in."""

    why: FedschedError


class Seeking:
    """Of one member. `was_in`: an earlier process of it was in the pool already."""

    def __init__(
        self, me: Address, chance: Chance, *, retry_max: int = 0, was_in: bool = False, reclaim_s: float = 30.0
    ) -> None:
        self._me = me
        self._chance = chance
        self._retry_max = retry_max
        self._grace_s = GRACE_RECLAIMS * reclaim_s
        self._is_in = was_in
        self._has_tried = False
        self._attempts = 0
        self._wait_s = FIRST_S
        self._refused_since: float | None = None

    def whom(self, places: Places, members: Iterable[Member]) -> tuple[Address, ...] | None:
        """Whom to ask now. None if there is no need; empty if there is, but no name leads anywhere."""
        others = {name: tuple(a for a in found if a != self._me) for name, found in places.items()}
        others = {name: found for name, found in others.items() if found or not places[name]}
        if others and not self._is_in:
            return _flat(others)  # also those we know: to know a member is not to be known
        up = {address for member in members if member.is_up for address in addresses_of(member)}
        missing = {name: found for name, found in others.items() if not up.intersection(found)}
        present = len(others) - len(missing)
        if not missing or (self._has_tried and 2 * present >= len(others)):
            return None
        return _flat(missing)

    def met(self) -> None:
        """Others found us, and let us in."""
        self._is_in = self._has_tried = True

    def rested(self) -> Pause:
        """Nobody had to be asked."""
        self._has_tried, self._wait_s = True, FIRST_S
        return Pause(AGAIN_S)

    def asked(self, reached: int, taken: NameTaken | None, now: float, *, is_alone: bool = True) -> Pause | GiveUp:
        """So many let us in; `taken` if our name is somebody else's. `is_alone`: we know of no member that is up, so
        nobody can have found us either."""
        self._has_tried = True
        if reached:
            self._is_in, self._refused_since, self._attempts = True, None, 0
            return self.rested()
        self._attempts += 1
        if taken is not None and not self._is_in:
            since = self._refused_since = now if self._refused_since is None else self._refused_since
            if now - since >= self._grace_s:
                return GiveUp(name_taken(taken))
        if self._retry_max and self._attempts >= self._retry_max and is_alone and not self._is_in:
            return GiveUp(
                Unavailable(
                    f"no member of the gossip pool answered in {self._attempts} attempts",
                    hint="check server_join.retry_join_wan, that they are up, and that UDP and TCP get through",
                )
            )
        wait_s, self._wait_s = self._wait_s, min(LONGEST_S, 2 * self._wait_s)
        return Pause(wait_s * (0.75 + 0.5 * self._chance.random()))


def _flat(places: Places) -> tuple[Address, ...]:
    return tuple(dict.fromkeys(address for found in places.values() for address in found))


def addresses_of(member: Member) -> tuple[Address, ...]:
    """Where a member can be found: its gossip, and its server port as its tags have it."""
    host, port = member.tags.get("rpc_addr", ""), member.tags.get("port", "")
    if host and port.isascii() and port.isdigit():
        return (member.addr, (host, int(port)))
    return (member.addr,)


def name_taken(taken: NameTaken) -> Conflict:
    """For whoever chose the name."""
    host, port = taken.addr
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return Conflict(
        f"gossip: the name {taken.node} is taken by {where}, id {taken.id or 'unknown'}",
        hint="two servers of one region need two names: set `name` of one of them",
    )
