"""Deciding how the server set and the gossip pool are brought into line. A core: both go in, deeds come out.

What gossip says is a hint. It is acted upon only where a deed is safe whoever said it: a server is *greeted*, and joins
by itself or is let in after it has said who it is; an address is corrected after the server has answered there. And
what a link shows beats what gossip says: a server that Raft talks to is there, and is where Raft talks to it.

| gossip says | the set has | what follows |
| --- | --- | --- |
| alive | nothing | it is invited; if it belonged here and nobody asked for its removal, it is let in again |
| alive, elsewhere | another address | corrected, if nobody answers at the old one |
| left, or forgotten | a member | autopilot is told that it left, and removes it if a quorum remains |
| failed, for a minute | a member | autopilot is told that it failed; whether it is removed is autopilot's business |
| another server with its name | a member | as if it had left: names are given once, so this one lost its disk |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from fedsched.raft.autopilot import FAILED, LEFT
from fedsched.raft.membership import Config, ServerInfo

SETTLE_S: Final = 3.0
"""News of one event comes by two ways, and the slower one is no contradiction. A server that leaves is out of the set
first and out of the pool a moment later."""
FAILED_AFTER_S: Final = 60.0
"""A restart, a reboot even, is no reason to change the set."""
LOOK_SOON_S: Final = 1.0
LOOK_S: Final = 60.0


class Standing(StrEnum):
    UP = "up"
    FAILED = "failed"
    LEFT = "left"


class Seen(NamedTuple):
    """A server of this region, as gossip has it."""

    server: ServerInfo
    standing: Standing
    since: float
    """When that changed last."""


class Invite(NamedTuple):
    """Greet this server, which the set does not have."""

    server: ServerInfo
    may_return: bool
    """Let it in if it says that it belongs here: nobody asked for its removal."""


class Correct(NamedTuple):
    """Ask at the new address; if it is this server, enter it."""

    server: ServerInfo
    was: str


Deed = Invite | Correct


class ReconcileCore:
    """For one term of office."""

    def __init__(self, me: str) -> None:
        self._me = me
        self._differs: dict[tuple[str, str], float] = {}
        """Since when the set and the pool disagree on a server at an address."""
        self._asked: dict[str, tuple[float, float]] = {}
        """When a server may be asked again, and the pause after that."""

    def decide(self, now: float, config: Config, links: Mapping[str, bool], pool: Iterable[Seen]) -> list[Deed]:
        """What to do now, at most one deed for each server."""
        up = sorted((one for one in pool if one.standing is Standing.UP), key=lambda one: one.server.id)
        differing = [one for one in up if self._is_odd(one, config, links)]
        keys = {(one.server.id, one.server.address) for one in differing}
        self._differs = {key: self._differs.get(key, now) for key in sorted(keys)}
        ids = {server_id for server_id, _ in keys}
        self._asked = {one: pause for one, pause in self._asked.items() if one in ids}
        asked_out = {one.server.id for one in config.removed if one.request}
        deeds: list[Deed] = []
        for server, _, _ in differing:
            if not self._may_ask(server.id, now):
                continue
            has_settled = now - self._differs[server.id, server.address] >= SETTLE_S
            known = config.server(server.id)
            if known is None:
                deeds.append(Invite(server, has_settled and server.id not in asked_out))
            elif has_settled:
                deeds.append(Correct(server, known.address))
        return deeds

    def wait_s(self) -> float:
        """How long until another look, if there is no news."""
        return LOOK_SOON_S if self._differs else LOOK_S

    def _is_odd(self, one: Seen, config: Config, links: Mapping[str, bool]) -> bool:
        server = one.server
        if server.id == self._me or not server.id or not server.address:
            return False
        known = config.server(server.id)
        return known is None or (known.address != server.address and not links.get(server.id, False))

    def _may_ask(self, server_id: str, now: float) -> bool:
        """Often at first, then less and less: who is not to be had is not pestered."""
        due, pause_s = self._asked.get(server_id, (now, SETTLE_S))
        if now < due:
            return False
        self._asked[server_id] = (now + pause_s, min(2 * pause_s, LOOK_S))
        return True


def verdicts(
    now: float, config: Config, links: Mapping[str, bool], pool: Iterable[Seen], forgotten: Iterable[str]
) -> dict[str, str]:
    """Members of the set that gossip holds for gone, by id: what autopilot is told of them."""
    seen = {one.server.id: one for one in pool}
    settled = [one for one in seen.values() if now - one.since >= SETTLE_S]
    owners = {one.server.name: one.server.id for one in settled if one.standing is Standing.UP}
    left = {one.server.id for one in settled if one.standing is Standing.LEFT}
    left |= set(forgotten) - set(seen)
    left |= {one.id for one in config.servers if one.id not in seen and owners.get(one.name, one.id) != one.id}
    failed = {
        one.server.id for one in seen.values() if one.standing is Standing.FAILED and now - one.since >= FAILED_AFTER_S
    }
    silent = [server.id for server in config.servers if not links.get(server.id, False)]
    return {one: LEFT if one in left else FAILED for one in silent if one in left or one in failed}
