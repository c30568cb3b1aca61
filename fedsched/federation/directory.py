"""Who the servers of all regions are, as gossip tells it, and how well each region seems to be.

Pure: the gossip runner says what it learned, everybody else asks. Membership says who exists and who answers; round
trips and clock differences are measured by links; who leads is a hint that a new leader announces, with its term, and
that may be wrong: whoever is asked because of it checks for itself. Nothing here has to be right for anything to be
safe. What has to be right is in each region's log.

Servers that failed stay listed: they count for "how many should there be" and for version checks, and they may be back
any moment. Those that left do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from fedsched.model.region import MemberStatus, ServerMember

ROLES: Final = frozenset({"fedsched", "nomad"})
"""What servers call themselves in their tags; anything else in the pool is none."""
SMOOTHING: Final = 0.25
"""The weight of a new round trip: a few samples outweigh one bad one."""
SKEW_MAX_S: Final = 5.0
"""Clocks this far apart are worth a warning: token expiry and deadlines are compared across regions."""


class RegionState(StrEnum):
    """How well a region seems to be, from outside."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    """Some server does not answer; a majority does."""
    AT_RISK = "at risk"
    """No majority of its known voters answers: reads that may be stale, at best."""
    FAILED = "failed"
    """No server answers."""


@dataclass(frozen=True, slots=True)
class Server:
    """One server of some region."""

    id: str
    name: str
    """As gossip has it, `<server>.<region>`: unique among all regions."""
    region: str
    rpc: str
    """Address and port for calls."""
    http: str = ""
    datacenter: str = ""
    build: str = ""
    is_voter: bool = True
    is_alive: bool = True
    is_suspect: bool = False
    round_trip_s: float | None = None
    skew_s: float | None = None
    """Its clock minus ours."""


@dataclass(frozen=True, slots=True)
class LeaderHint:
    """Who said last to lead a region."""

    region: str
    term: int
    server_id: str


@dataclass(frozen=True, slots=True)
class RegionSummary:
    """One line of `operator federation status`."""

    name: str
    state: RegionState
    alive: int
    known: int
    leader: str
    """The name of the server that is believed to lead; empty if none is."""
    round_trip_s: float | None
    """To the nearest of its servers."""
    skew_s: float | None
    """The largest difference of clocks, with its sign."""
    builds: tuple[str, ...]

    @property
    def is_skewed(self) -> bool:
        return self.skew_s is not None and abs(self.skew_s) > SKEW_MAX_S


class Directory:
    """The servers of all regions."""

    def __init__(self, my_region: str) -> None:
        self.my_region = my_region
        self._servers: dict[str, Server] = {}
        """By gossip name."""
        self._hints: dict[str, LeaderHint] = {}

    def member_seen(self, member: ServerMember, *, is_suspect: bool = False) -> bool:
        """A member joined, changed, failed or left; whether that is news for anybody who routes."""
        server = server_of(member, is_suspect=is_suspect)
        before = self._servers.get(member.name)
        if server is None:
            return self.member_gone(member.name)
        if before is not None and before.id == server.id:
            server = replace(server, round_trip_s=before.round_trip_s, skew_s=before.skew_s)
        for other in self.servers(server.region):
            if other.id == server.id and other.name != server.name:  # the same server under a new name
                del self._servers[other.name]
        self._servers[member.name] = server
        return server != before

    def member_gone(self, name: str) -> bool:
        """A member left, or was dead for so long that it is forgotten."""
        gone = self._servers.pop(name, None)
        if gone is not None and self._hint_of(gone.region) == gone.id:
            del self._hints[gone.region]
        return gone is not None

    def leader_told(self, hint: LeaderHint) -> bool:
        """A leader announced itself; an older term than the known one says nothing."""
        before = self._hints.get(hint.region)
        if before is not None and before.term >= hint.term:
            return False
        self._hints[hint.region] = hint
        return True

    def leader_denied(self, region: str, server_id: str) -> None:
        """Whoever was asked because of a hint does not lead: the hint is not worth another hop."""
        if self._hint_of(region) == server_id:
            self._hints[region] = replace(self._hints[region], server_id="")

    def round_trip_seen(self, server_id: str, round_trip_s: float) -> None:
        """A link or a probe measured the way to a server and back."""
        for server in [one for one in self._servers.values() if one.id == server_id]:
            before = server.round_trip_s
            smooth = round_trip_s if before is None else before + SMOOTHING * (round_trip_s - before)
            self._servers[server.name] = replace(server, round_trip_s=smooth)

    def skew_seen(self, server_id: str, skew_s: float) -> None:
        """A link compared clocks."""
        for server in [one for one in self._servers.values() if one.id == server_id]:
            self._servers[server.name] = replace(server, skew_s=skew_s)

    def servers(self, region: str) -> tuple[Server, ...]:
        """All that are known of a region, by name, also those that do not answer."""
        return tuple(one for _, one in sorted(self._servers.items()) if one.region == region)

    def server(self, server_id: str) -> Server | None:
        """One of them by its id; None if nobody has that."""
        return next((one for one in self._servers.values() if server_id and one.id == server_id), None)

    def leader(self, region: str) -> Server | None:
        """Who is believed to lead."""
        wanted = self._hint_of(region)
        return next((one for one in self.servers(region) if wanted and one.id == wanted), None)

    def regions(self) -> tuple[str, ...]:
        """Regions with a server that answers, and our own: those that can be asked."""
        alive = {one.region for one in self._servers.values() if one.is_alive}
        return tuple(sorted({self.my_region} | alive))

    def all_regions(self) -> tuple[str, ...]:
        """Regions that are known, also those of which nobody answers."""
        return tuple(sorted({self.my_region} | {one.region for one in self._servers.values()}))

    def summary(self, region: str) -> RegionSummary:
        """How a region seems to be."""
        servers = self.servers(region)
        alive = [one for one in servers if one.is_alive]
        leader = self.leader(region)
        trips = [one.round_trip_s for one in alive if one.round_trip_s is not None]
        skews = [one.skew_s for one in alive if one.skew_s is not None]
        return RegionSummary(
            name=region,
            state=_state(servers),
            alive=len(alive),
            known=len(servers),
            leader=leader.name if leader is not None and leader.is_alive else "",
            round_trip_s=min(trips, default=None),
            skew_s=max(skews, key=abs, default=None),
            builds=tuple(sorted({one.build for one in servers if one.build})),
        )

    def summaries(self) -> tuple[RegionSummary, ...]:
        """Every known region, by name."""
        return tuple(self.summary(region) for region in self.all_regions())

    def _hint_of(self, region: str) -> str:
        hint = self._hints.get(region)
        return hint.server_id if hint is not None else ""


def server_of(member: ServerMember, *, is_suspect: bool = False) -> Server | None:
    """What a member's tags say; None if it is no server of a region, or has left."""
    tags = member.tags
    if tags.get("role") not in ROLES or not member.region or not member.server_id:
        return None
    if member.status in (MemberStatus.LEFT, MemberStatus.NONE):
        return None
    return Server(
        id=member.server_id,
        name=member.name,
        region=member.region,
        rpc=_address(tags, member.addr),
        http=tags.get("http", ""),
        datacenter=tags.get("dc", ""),
        build=tags.get("build", ""),
        is_voter=tags.get("nonvoter") != "1",
        is_alive=member.status in (MemberStatus.ALIVE, MemberStatus.LEAVING),
        is_suspect=is_suspect or member.status is MemberStatus.LEAVING,
    )


def _address(tags: Mapping[str, str], gossip_host: str) -> str:
    host = tags.get("rpc_addr") or gossip_host
    return f"[{host}]:{tags.get('port', '')}" if ":" in host else f"{host}:{tags.get('port', '')}"


def _state(servers: Iterable[Server]) -> RegionState:
    listed = list(servers)
    up = sum(one.is_alive for one in listed)
    voters = [one for one in listed if one.is_voter]
    if up and 2 * sum(one.is_alive for one in voters) <= len(voters):
        return RegionState.AT_RISK
    return state_of(up, len(listed), len(voters))


def state_of(up: int, known: int, voters: int) -> RegionState:
    """How well a region of so many servers is if so many of them answer; all that do not are taken for voters."""
    if not up:
        return RegionState.FAILED
    if 2 * (voters - (known - up)) <= voters:
        return RegionState.AT_RISK
    return RegionState.HEALTHY if up == known else RegionState.DEGRADED
