"""Which server answers a request for a region, and who is tried next when one does not.

Pure: the time and a source of chance are handed in, the runner dials. One `Router` per server remembers who failed
lately; one `Route` per request says whom to try, until somebody answers, no one is left, or the time is up.

Order: whoever is believed to lead, then of two picked by chance the nearer one, then the others in the same manner;
suspected servers after those, servers that failed lately last. A server that failed rests: it is not dialled at all for
a second, then two, then four, up to half a minute; when its rest is over, one request tries it and all others leave it
alone meanwhile. So a killed server costs one request the time of one dial, once, and a region that is gone costs
nothing: when all of its servers rest, requests for it fail at once and say who was tried, when, and with what outcome.

What was sent may have been carried out. Such a request is tried elsewhere only if it may be repeated (a read, or a
write that carries a request id); for any other its outcome is unknown, and that is said.

Loops: every server that passes a request on leaves its name in it. A request that comes to a server it has passed, or
has passed four, is refused; and nobody is picked who is on the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fedsched.federation.directory import Directory, Server
from fedsched.model.errors import DeadlineExceeded, FedschedError, Unavailable
from fedsched.raft.errors import OutcomeUnknown
from fedsched.rpc.context import HOPS_MAX

TRIES_MAX: Final = 3
"""Servers for one request: a region of five that keeps its majority has lost two."""
DIAL_S: Final = 1.0
"""For a connection: across an ocean it takes a third of that, and a dead machine never answers."""
REST_MIN_S: Final = 1.0
REST_MAX_S: Final = 30.0
FORGET_S: Final = 60.0
"""A server that has not failed for this long is like any other again."""

Chance = Callable[[], float]
"""A number in [0, 1)."""


class Outcome(Enum):
    """How one try went wrong."""

    NOT_SENT = "not sent"
    """No connection: nothing has happened there."""
    NO_ANSWER = "no answer"
    """It was sent and then the link broke or fell silent: it may have happened."""
    DECLINED = "declined"
    """The server lives and cannot serve it now (no leader, busy): nothing has happened."""


class NoPath(Unavailable):
    """Nobody in the region can be reached."""

    code = "no_path_to_region"
    http_status = 500


class ForwardingLoop(FedschedError):
    """The request was here already, or has been passed on too often."""

    code = "forwarding_loop"
    http_status = 508


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request, as far as routing is concerned."""

    region: str
    deadline: float
    """In the time of the caller's clock; nobody works for a caller that has gone."""
    hops: tuple[str, ...] = ()
    may_repeat: bool = True
    """A read, or a write that carries a request id."""
    wants_leader: bool = True
    """False if any server of the region will do; the leader is then one of many."""


@dataclass(frozen=True, slots=True)
class Try:
    """Dial this server until then; once it is connected, wait for the answer up to the deadline."""

    server: Server
    dial_until: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Tried:
    """One server that did not answer."""

    server: Server
    outcome: Outcome
    error: str


@dataclass(slots=True)
class _Trouble:
    """What is remembered of a server that failed."""

    failures: int
    failed_at: float
    rests_until: float
    error: str


class Router:
    """Remembers who failed lately, for all requests of this server."""

    def __init__(self, directory: Directory, me: Sequence[str]) -> None:
        self._directory = directory
        self._me = frozenset(name for name in me if name)
        """Our own id and gossip name: whatever hop lists may call us."""
        self._troubles: dict[str, _Trouble] = {}

    def route(self, wanted: Wanted, now: float, chance: Chance) -> Route:
        """Begin to route a request; `ForwardingLoop` if it was here before."""
        check_hops(wanted.hops, self._me)
        self._forget(now)
        return Route(self, wanted, self._ordered(wanted, now, chance))

    def rests(self, server_id: str, now: float) -> bool:
        """Whether a server failed so recently that nobody should dial it."""
        trouble = self._troubles.get(server_id)
        return trouble is not None and now < trouble.rests_until

    def failed(self, server: Server, error: str, now: float) -> None:
        """A server could not be reached, or fell silent. Gossip should probe it at once."""
        before = self._troubles.get(server.id)
        failures = before.failures + 1 if before is not None else 1
        rest_s = min(REST_MIN_S * 2 ** min(failures - 1, 10), REST_MAX_S)
        self._troubles[server.id] = _Trouble(failures, now, now + rest_s, error)

    def answered(self, server_id: str) -> None:
        """A server answered, a request or gossip's probe: it is like any other again."""
        self._troubles.pop(server_id, None)

    def try_begins(self, server: Server, now: float) -> None:
        """Somebody dials a server that failed before: all others leave it alone until that is known."""
        trouble = self._troubles.get(server.id)
        if trouble is not None:
            trouble.rests_until = max(trouble.rests_until, now + DIAL_S)

    def no_path(self, region: str, tried: Sequence[Tried], now: float) -> NoPath:
        """The error of a region that nobody answers for, with everything that is known about why."""
        servers = self._directory.servers(region)
        if not servers:
            known = ", ".join(self._directory.all_regions())
            return NoPath(f"No path to region {region!r}", hint=f"known regions: {known}")
        words = [f"{one.server.name}: {one.error or one.outcome.value}" for one in tried]
        seen = {one.server.id for one in tried}
        words += [self._why_not(one, now) for one in servers if one.id not in seen]
        hint = "it is asked again by itself within seconds of a server's return"
        return NoPath(f"No path to region {region!r}: {'; '.join(words)}", hint=hint)

    def _why_not(self, server: Server, now: float) -> str:
        trouble = self._troubles.get(server.id)
        if not server.is_alive:
            return f"{server.name}: failed, says gossip"
        if trouble is not None:
            return f"{server.name}: {trouble.error or 'no answer'} {max(now - trouble.failed_at, 0):.0f} s ago"
        return f"{server.name}: not tried"

    def _forget(self, now: float) -> None:
        for server_id in [one for one, trouble in self._troubles.items() if now - trouble.failed_at > FORGET_S]:
            del self._troubles[server_id]

    def _ordered(self, wanted: Wanted, now: float, chance: Chance) -> list[Server]:
        """Everybody who may be tried, best first."""
        passed = {*wanted.hops, *self._me}
        usable = [
            one
            for one in self._directory.servers(wanted.region)
            if one.is_alive and not passed & {one.id, one.name} and not self.rests(one.id, now)
        ]
        leader = self._directory.leader(wanted.region) if wanted.wants_leader else None
        ranks: dict[int, list[Server]] = {}
        for one in usable:
            is_leader = leader is not None and leader.id == one.id
            rank = 3 if one.id in self._troubles else 2 if one.is_suspect else 0 if is_leader else 1
            ranks.setdefault(rank, []).append(one)
        return [one for rank in sorted(ranks) for one in nearer_of_two(ranks[rank], chance)]


class Route:
    """One request on its way: whom to try next. Never the same server twice, never past the deadline."""

    def __init__(self, router: Router, wanted: Wanted, candidates: Iterable[Server]) -> None:
        self._router = router
        self._wanted = wanted
        self._candidates = list(candidates)
        self._trying: Server | None = None
        self.tried: list[Tried] = []

    def next_try(self, now: float) -> Try:
        """Whom to try now; raises what the caller is to be told if there is nobody, or no time."""
        assert self._trying is None, "the last try has not been reported yet"
        if self.tried and self.tried[-1].outcome is Outcome.NO_ANSWER and not self._wanted.may_repeat:
            raise OutcomeUnknown(
                f"{self.tried[-1].server.name} was asked and did not answer: {self.tried[-1].error}",
                hint="it may have happened: look first",
            )
        if now >= self._wanted.deadline:
            names = ", ".join(one.server.name for one in self.tried) or "nobody yet"
            raise DeadlineExceeded(f"no answer from region {self._wanted.region!r} in time; asked {names}")
        while self._candidates and len(self.tried) < TRIES_MAX:
            server = self._candidates.pop(0)
            if self._router.rests(server.id, now):
                continue  # another request found out meanwhile
            self._router.try_begins(server, now)
            self._trying = server
            return Try(server, min(now + DIAL_S, self._wanted.deadline), self._wanted.deadline)
        raise self._router.no_path(self._wanted.region, self.tried, now)

    def failed(self, outcome: Outcome, error: str, now: float) -> None:
        """The server that was tried did not answer, or declined."""
        assert self._trying is not None, "nobody was tried"
        server, self._trying = self._trying, None
        self.tried.append(Tried(server, outcome, error))
        if outcome is Outcome.DECLINED:
            self._router.answered(server.id)
        else:
            self._router.failed(server, error, now)

    def answered(self) -> None:
        """The server that was tried answered, be it with a refusal."""
        assert self._trying is not None, "nobody was tried"
        server, self._trying = self._trying, None
        self._router.answered(server.id)

    def abandoned(self) -> None:
        """The caller went, or its time was up, while a server was at work: that says nothing of the server."""
        self._trying = None


def check_hops(hops: Sequence[str], me: Iterable[str]) -> None:
    """Refuse a request that has been here, or has been passed on too often."""
    if set(hops) & set(me):
        raise ForwardingLoop(
            f"a request that was passed on by {', '.join(hops)} came back",
            hint="the servers do not agree on who leads yet; try again",
        )
    if len(hops) >= HOPS_MAX:
        raise ForwardingLoop(
            f"a request was passed on {len(hops)} times, by {', '.join(hops)}",
            hint="the servers do not agree on who leads yet; try again",
        )


def nearer_of_two(servers: Sequence[Server], chance: Chance) -> list[Server]:
    """An order in which near servers come early and no single one gets everything.

    Of two picked by chance the nearer one is next, as long as there are any. Who has not been measured counts as near,
    so that it is.
    """
    left = list(servers)
    ordered = []
    while left:
        picks = {int(chance() * len(left)), int(chance() * len(left))}
        ordered.append(left.pop(min(picks, key=lambda at: (left[at].round_trip_s or 0.0, at))))
    return ordered
