"""Looks after the server set: who is healthy, who may vote, who is gone for good.

Pure: a leader's runner calls `review` about once a second with what the core and gossip know, and gets back a health
report and at most one membership change to propose, with the reason in words. One at a time, because only one config
can be in flight, and because each change makes a different next one sensible. One `Autopilot` serves one term of
office: how long a server has been healthy is only known from watching it.

The rules, in the order in which they are tried:

 1. A voter that gossip reports failed or left goes, if a quorum of the remaining voters is healthy (and of the present
    ones, or the change could not be committed) and at least `min_quorum` remain. If a stable learner is at hand, it
    takes the seat in the same change.
 2. A learner that gossip reports failed or left goes.
 3. A learner that has been healthy for the stabilization time becomes a voter, if that makes the number of voters odd
    or another one is ready to follow: four voters survive no more failures than three do.
 4. A live server that gossip knows and the config does not joins as a learner.
 5. A member whose address changed is entered with the new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from fedsched.raft.membership import AddLearner, Config, ConfigChange, Promote, Readdress, Remove, Replace, ServerInfo
from fedsched.raft.quorum import majority
from fedsched.raft.status import CoreStatus

ALIVE = "alive"
FAILED = "failed"
LEFT = "left"
UNKNOWN = "unknown"
"""Gossip has never heard of it, or has forgotten it: no proof of life, but no proof of death either."""

RECENT_MAX = 64


@dataclass(frozen=True, slots=True)
class AutopilotSettings:
    """Names and defaults as operators of such systems know them."""

    cleanup_dead_servers: bool = True
    last_contact_threshold_s: float = 0.2
    max_trailing_logs: int = 250
    server_stabilization_time_s: float = 10.0
    min_quorum: int = 0
    """Never clean up below so many voters."""
    tick_s: float = 0.05
    """How long a tick of the core is: contact is counted in ticks there."""


@dataclass(frozen=True, slots=True)
class Member:
    """A server of this region as gossip sees it."""

    server: ServerInfo
    status: str = ALIVE


@dataclass(frozen=True, slots=True)
class Action:
    """A membership change worth proposing, against the config it was thought up for."""

    change: ConfigChange
    reason: str
    based_on: int


@dataclass(frozen=True, slots=True)
class Deed:
    """An action that was tried, and how it went."""

    at: float
    action: Action
    outcome: str


@dataclass(frozen=True, slots=True)
class ServerHealth:
    id: str
    name: str
    address: str
    is_leader: bool
    is_voter: bool
    gossip: str
    last_contact_s: float
    last_index: int
    is_healthy: bool
    why_not: str
    """Empty when healthy."""
    stable_since: float | None
    """Since when it has been healthy without a break; None when it is not."""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The whole set at one glance."""

    is_healthy: bool
    failure_tolerance: int
    """How many more voters may fail before the region stops deciding."""
    leader: str
    servers: tuple[ServerHealth, ...]


class Autopilot:
    """Watches one leader's server set."""

    def __init__(self, settings: AutopilotSettings) -> None:
        self.settings = settings
        self._healthy_since: dict[str, float] = {}
        self._recent: deque[Deed] = deque(maxlen=RECENT_MAX)

    def review(
        self, now: float, status: CoreStatus, members: Mapping[str, Member]
    ) -> tuple[list[Action], HealthReport]:
        """What to do (at most one thing) and how everybody is, from the leader's status and gossip's members by id."""
        servers = {each.id: each for each in self._examine(now, status, members)}
        report = _report(status, servers)
        if status.config.is_joint or status.config_index > status.commit:
            return [], report
        action = self._decide(now, status, members, servers)
        return ([action] if action is not None else []), report

    def record(self, now: float, action: Action, outcome: str) -> None:
        """Remember what came of an action, for the operator."""
        self._recent.append(Deed(now, action, outcome))

    @property
    def recent(self) -> tuple[Deed, ...]:
        return tuple(self._recent)

    # ------------------------------------------------------------------- health

    def _examine(self, now: float, status: CoreStatus, members: Mapping[str, Member]) -> list[ServerHealth]:
        peers = {peer.id: peer for peer in status.peers}
        healths: list[ServerHealth] = []
        for server_id in sorted(status.config.members):
            peer = peers.get(server_id)
            is_leader = server_id == status.server_id
            member = members.get(server_id)
            gossip = ALIVE if is_leader else member.status if member else UNKNOWN
            contact_s = peer.last_contact_ticks * self.settings.tick_s if peer else 0.0
            last_index = peer.match if peer else status.last
            why_not = self._why_not(gossip, contact_s, status.last - last_index)
            if why_not:
                self._healthy_since.pop(server_id, None)
            server = status.config.server(server_id)
            healths.append(
                ServerHealth(
                    id=server_id,
                    name=server.name if server else server_id,
                    address=server.address if server else "",
                    is_leader=is_leader,
                    is_voter=status.config.is_voter(server_id),
                    gossip=gossip,
                    last_contact_s=contact_s,
                    last_index=last_index,
                    is_healthy=not why_not,
                    why_not=why_not,
                    stable_since=None if why_not else self._healthy_since.setdefault(server_id, now),
                )
            )
        for gone in self._healthy_since.keys() - status.config.members:
            del self._healthy_since[gone]
        return healths

    def _why_not(self, gossip: str, contact_s: float, trailing: int) -> str:
        limits = self.settings
        if gossip != ALIVE:
            return f"gossip reports it {gossip}"
        if contact_s > limits.last_contact_threshold_s:
            return f"last contact {contact_s:.2f} s ago, more than {limits.last_contact_threshold_s:g} s"
        if trailing > limits.max_trailing_logs:
            return f"{trailing} entries behind, more than {limits.max_trailing_logs}"
        return ""

    # ---------------------------------------------------------------- decisions

    def _decide(
        self, now: float, status: CoreStatus, members: Mapping[str, Member], servers: Mapping[str, ServerHealth]
    ) -> Action | None:
        config = status.config
        ready = [server_id for server_id in sorted(config.learners) if self._is_stable(now, servers[server_id])]
        found: tuple[ConfigChange, str] | None = None
        if self.settings.cleanup_dead_servers:
            found = self._clean_up(config, servers, ready)
        found = found or self._promote(config, ready) or _join(config, members) or _move(config, members)
        return Action(found[0], found[1], status.config_index) if found else None

    def _is_stable(self, now: float, server: ServerHealth) -> bool:
        since = server.stable_since
        return since is not None and now - since >= self.settings.server_stabilization_time_s

    def _clean_up(
        self, config: Config, servers: Mapping[str, ServerHealth], ready: list[str]
    ) -> tuple[ConfigChange, str] | None:
        dead = [each for each in sorted(servers) if servers[each].gossip in (FAILED, LEFT)]
        for server_id in dead:
            what = f"gossip reports {_name(servers[server_id])} {servers[server_id].gossip}"
            if server_id not in config.voters:
                return Remove(server_id), f"{what}; it was a learner"
            if ready and self._may_lose(config, servers, server_id, gained=1):
                return Replace(server_id, ready[0]), f"{what}; {_name(servers[ready[0]])} is stable and takes its seat"
            if self._may_lose(config, servers, server_id, gained=0):
                return Remove(server_id), f"{what}; a quorum of the remaining voters is healthy"
        return None

    def _may_lose(self, config: Config, servers: Mapping[str, ServerHealth], leaving: str, gained: int) -> bool:
        """Whether both the present voters and the remaining ones (with a healthy newcomer, if any) can decide."""
        healthy = sum(servers[voter].is_healthy for voter in config.voters)
        remaining = len(config.voters - {leaving}) + gained
        return (
            remaining >= max(1, self.settings.min_quorum)
            and healthy >= majority(len(config.voters))
            and healthy + gained >= majority(remaining)
        )

    def _promote(self, config: Config, ready: list[str]) -> tuple[ConfigChange, str] | None:
        voters = len(config.voters)
        if ready and (voters % 2 == 0 or len(ready) > 1):
            stable = f"stable for {self.settings.server_stabilization_time_s:g} s"
            return Promote(ready[0]), f"{ready[0]} has been {stable}; {voters + 1} voters then"
        return None


def _join(config: Config, members: Mapping[str, Member]) -> tuple[ConfigChange, str] | None:
    for server_id, member in sorted(members.items()):
        if member.status == ALIVE and server_id not in config.members:
            return AddLearner(member.server), f"gossip found {member.server.name} at {member.server.address}"
    return None


def _move(config: Config, members: Mapping[str, Member]) -> tuple[ConfigChange, str] | None:
    for known in config.servers:
        member = members.get(known.id)
        if member is not None and member.status == ALIVE and member.server != known:
            return Readdress(member.server), f"{known.name} moved from {known.address} to {member.server.address}"
    return None


def _report(status: CoreStatus, servers: Mapping[str, ServerHealth]) -> HealthReport:
    voters = [each for each in servers.values() if each.is_voter]
    healthy = sum(each.is_healthy for each in voters)
    return HealthReport(
        is_healthy=all(each.is_healthy for each in servers.values()),
        failure_tolerance=max(0, healthy - majority(len(voters))),
        leader=status.server_id,
        servers=tuple(servers.values()),
    )


def _name(server: ServerHealth) -> str:
    return f"{server.name} ({server.id})" if server.name != server.id else server.id
