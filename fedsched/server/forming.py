"""How servers that know nothing of each other become a region. A core: greetings in, a decision out.

Every server greets those it is told to join and learns of the others from their answers. A region is *founded* only
when exactly `bootstrap_expect` servers with empty logs see each other, and each says that it sees all of them: then
every one of them derives the same first config and the same cluster id from the same sorted ids, so it does not matter
who writes it first. As soon as anyone heard of has a log, there is a region already: it is *joined*, never founded
again.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass

from fedsched.raft.membership import Config, ServerInfo

SILENT_AFTER_S = 10.0
"""A greeting older than this no longer counts as seeing somebody."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What one server says of itself."""

    id: str
    name: str
    address: str
    region: str
    bootstrap_expect: int
    cluster_id: str
    """Empty until it belongs to a region."""
    seen: frozenset[str] = frozenset()
    """Ids of the servers it has heard lately, itself included."""

    @property
    def info(self) -> ServerInfo:
        return ServerInfo(self.id, self.name, self.address)


@dataclass(frozen=True, slots=True)
class Found:
    """Write this first config; every other founder writes the same one."""

    config: Config
    cluster_id: str


@dataclass(frozen=True, slots=True)
class Join:
    """A region is there: ask this server to take us in."""

    through: ServerInfo
    cluster_id: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet; `why` is for the log and for whoever asks why nothing happens."""

    why: str
    is_refusal: bool = False
    """It will not come by itself: somebody has to change a setting."""


class FormingCore:
    """Decides, for one server with an empty log, whether to found a region, join one, or wait."""

    def __init__(self, me: Greeting) -> None:
        self._me = me
        self._heard: dict[str, tuple[float, Greeting]] = {}

    def heard(self, greeting: Greeting, now: float) -> str:
        """Take in what another server says of itself; returns why it does not count, or nothing."""
        if greeting.id == self._me.id:
            return ""
        if greeting.region != self._me.region:
            return f"server {greeting.name} is of region {greeting.region!r}, we are of {self._me.region!r}"
        self._heard[greeting.id] = (now, greeting)
        return ""

    def seen(self, now: float) -> frozenset[str]:
        return frozenset([self._me.id, *(g.id for g in self._live(now))])

    def others(self, now: float) -> list[ServerInfo]:
        """Servers heard of lately: whom else to greet."""
        return [g.info for g in self._live(now)]

    def decide(self, now: float) -> Found | Join | Wait:
        live = self._live(now)
        for greeting in live:
            if greeting.cluster_id:
                return self._founded_with_us(greeting.cluster_id, live) or Join(greeting.info, greeting.cluster_id)
        expect = self._me.bootstrap_expect
        if expect == 0:
            return Wait("bootstrap_expect is 0: waiting for a region to join")
        odd = [g for g in live if g.bootstrap_expect != expect]
        if odd:
            said = ", ".join(f"{g.name} expects {g.bootstrap_expect}" for g in odd)
            why = f"this server expects {expect} servers but {said}: make bootstrap_expect the same everywhere"
            return Wait(why, is_refusal=True)
        founders = [self._me, *live]
        if len(founders) != expect:
            names = ", ".join(sorted(g.name for g in founders))
            return Wait(f"{len(founders)} of {expect} expected servers are here: {names}")
        ids = frozenset(g.id for g in founders)
        blind = sorted(g.name for g in live if not g.seen >= ids)
        if blind:
            return Wait(f"not everybody sees everybody yet: {', '.join(blind)}")
        return found([g.info for g in founders])

    def _founded_with_us(self, cluster_id: str, live: list[Greeting]) -> Found | None:
        """The founding of this cluster if we are one of its founders and only slower than the others.

        They cannot elect anybody without us, so asking to be let in would be answered by nobody. The cluster id is made
        of the founders' ids: if it fits, so does the config.
        """
        for others in itertools.combinations(live, max(0, self._me.bootstrap_expect - 1)):
            founding = found([self._me.info, *(g.info for g in others)])
            if founding.cluster_id == cluster_id:
                return founding
        return None

    def _live(self, now: float) -> list[Greeting]:
        live = [g for at, g in self._heard.values() if now - at <= SILENT_AFTER_S]
        return sorted(live, key=lambda g: g.id)


def found(servers: list[ServerInfo]) -> Found:
    """The first config of these servers and the cluster id that goes with it; the same for the same servers."""
    ordered = tuple(sorted(servers, key=lambda server: server.id))
    digest = hashlib.blake2b("\n".join(s.id for s in ordered).encode(), digest_size=16, person=b"fedsched-cluster")
    return Found(Config(voters=frozenset(s.id for s in ordered), servers=ordered), digest.hexdigest())
