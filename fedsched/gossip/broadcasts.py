"""News on its way out: what rides along on packets, each piece a limited number of times.

The least told goes first, and of those the newest. News about a member replaces older news about it; several members
may accuse the same one, and each accusation is kept, because their number counts. What a member says of itself (its
joining, leaving and refuting) is in a tier of its own that always goes first: in large pools a farewell would otherwise
stand in line behind everybody else's.

Departure from memberlist: within a tier the newest that fits is taken, not the largest. That needs no sorting, and a
packet holds eight full announcements or forty small claims either way.
"""

from __future__ import annotations

from typing import Final

from fedsched.gossip.messages import Alive, Dead, Gossip, Suspect, UserEvent
from fedsched.gossip.wire import size_bound

MISFITS_MAX: Final = 8
"""How many that do not fit are passed over before a packet counts as full."""
SMALLEST: Final = 13
"""No message is smaller: a packet with less room is full."""
KEPT_MIN: Final = 4096


class Broadcasts:
    """The queue, in tiers by how often a piece was sent."""

    def __init__(self) -> None:
        self._tiers: list[dict[str, tuple[Gossip, int]]] = []
        self._own: dict[str, tuple[Gossip, int, int]] = {}
        self._tier_of: dict[str, int] = {}
        self._accusers: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._tier_of) + len(self._own)

    def add(self, message: Gossip, *, own: bool = False, members: int = 0) -> None:
        """Queue a piece of news. `members`: the size of the pool, for the bound on the queue."""
        key = self._key(message)
        self._drop(key)
        size = size_bound(message)
        if own:
            self._own[key] = (message, size, 0)
            return
        self._put(key, message, size, 0)
        if len(self._tier_of) > max(KEPT_MIN, 2 * members):
            self._prune()

    def forget(self, node: str) -> None:
        """Nothing queued about this member matters any more."""
        self._drop(node)
        for key in self._accusers.pop(node, ()):
            self._drop(key)

    def take(self, room: int, limit: int) -> list[Gossip]:
        """What goes along on a packet with this much room; each piece at most `limit` times in all."""
        taken: list[Gossip] = []
        if self._own:
            room = self._take_own(taken, room, limit)
        if not self._tier_of:
            return taken
        moved: list[tuple[str, Gossip, int, int]] = []
        for tier, waiting in enumerate(self._tiers):
            if room < SMALLEST:
                break
            misfits = 0
            picked: list[str] = []
            for key in reversed(waiting):
                message, size = waiting[key]
                if size > room:
                    misfits += 1
                    if misfits >= MISFITS_MAX:
                        break
                    continue
                room -= size
                picked.append(key)
                moved.append((key, message, size, tier + 1))
                if room < SMALLEST:
                    break
            for key in picked:
                del waiting[key]
                del self._tier_of[key]
        for key, message, size, tier in reversed(moved):
            taken.append(message)
            if tier < limit:
                self._put(key, message, size, tier)
        return taken

    def _take_own(self, taken: list[Gossip], room: int, limit: int) -> int:
        for key, (message, size, sent) in list(self._own.items()):
            if size <= room:
                room -= size
                taken.append(message)
                if sent + 1 < limit:
                    self._own[key] = (message, size, sent + 1)
                else:
                    del self._own[key]
        return room

    def _put(self, key: str, message: Gossip, size: int, tier: int) -> None:
        while len(self._tiers) <= tier:
            self._tiers.append({})
        self._tiers[tier][key] = (message, size)
        self._tier_of[key] = tier

    def _drop(self, key: str) -> None:
        self._own.pop(key, None)
        tier = self._tier_of.pop(key, None)
        if tier is not None:
            del self._tiers[tier][key]

    def _key(self, message: Gossip) -> str:
        """What a message replaces. Names hold no slash (`wire` refuses it), so the keys cannot be mistaken."""
        match message:
            case Suspect(_, node, by):
                key = f"{node}/{by}"
                self._drop(node)
                accusers = self._accusers.setdefault(node, [])
                if key not in accusers:
                    accusers.append(key)
                return key
            case Alive(_, node) | Dead(_, node):
                self.forget(node)
                return node
            case UserEvent(ltime, name, payload):
                # Two members may say different things at the same time of their clocks: neither replaces the other.
                return f"/{ltime}/{name}/{payload.hex()}"

    def _prune(self) -> None:
        """Drop the most told, oldest first."""
        for waiting in reversed(self._tiers):
            if waiting:
                key = next(iter(waiting))
                self._drop(key)
                return
