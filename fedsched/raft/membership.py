"""Who belongs to a region's server set, and how that may change.

Quorum arithmetic is joint from the first day: while `outgoing` is not empty, every decision needs a majority of both
`voters` and `outgoing`. A config takes effect as soon as it is appended to the log, and `ConfigHistory` remembers the
earlier ones, so that cutting off a log's tail brings back the config that was in force before.

Every change of the voters passes through a joint config, also a change by one: one rule instead of two, for the price
of one more entry in something that happens a few times a year. Changes that touch only learners or addresses are
appended as they are.

A config also names the servers that left it last. Whoever does not know whether a removal was done can ask again, of
any leader, and is told that it was, instead of "no such server".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, assert_never

from fedsched.codec.cbor import CodecError, dumps, loads
from fedsched.model.errors import BadRequest
from fedsched.raft.entry import Entry, EntryKind

CONFIG_FORMAT: Final = 1
CONFIG_FORMAT_REMOVED: Final = 2
"""The same with the servers that left; a config that nobody has left yet is written in the first format."""
REMOVED_MAX: Final = 16
"""Of the servers that left the last so many are remembered: who asks again does so within minutes, not years."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """One server as the config knows it. The id is immutable; the address may change by an ordinary change."""

    id: str
    name: str
    address: str
    """host:port of its server port."""


@dataclass(frozen=True, slots=True)
class Removed:
    """A server that is not a member any more, or will not be once the joint config is left."""

    server: ServerInfo
    request: str = ""
    """Names the request that asked for it; empty if nobody in particular did."""


@dataclass(frozen=True, slots=True)
class Config:
    """One state of the membership."""

    voters: frozenset[str] = frozenset()
    outgoing: frozenset[str] = frozenset()
    """The voters being left behind; non-empty only in the joint state."""
    learners: frozenset[str] = frozenset()
    """Receive everything, decide nothing. A voter that is being demoted is here and in `outgoing`."""
    servers: tuple[ServerInfo, ...] = ()
    """Sorted by id; one for each id in the sets above."""
    removed: tuple[Removed, ...] = ()
    """The last that left, oldest first, each id once. One of them may have come back meanwhile."""

    @property
    def is_joint(self) -> bool:
        return bool(self.outgoing)

    @property
    def members(self) -> frozenset[str]:
        return self.voters | self.outgoing | self.learners

    def is_voter(self, server_id: str) -> bool:
        """Whether this server's vote counts now, in either set of a joint config."""
        return server_id in self.voters or server_id in self.outgoing

    def is_alone(self, server_id: str) -> bool:
        """Whether this server decides everything by itself: then it has nobody to wait for."""
        return self.voters == {server_id} and not self.outgoing

    def server(self, server_id: str) -> ServerInfo | None:
        return next((server for server in self.servers if server.id == server_id), None)


class BadChange(BadRequest):
    """A membership change that makes no sense for the config it meets."""

    code = "bad_membership_change"


@dataclass(frozen=True, slots=True)
class AddLearner:
    """A new server joins; it always starts by listening."""

    server: ServerInfo


@dataclass(frozen=True, slots=True)
class Promote:
    """A learner becomes a voter."""

    id: str


@dataclass(frozen=True, slots=True)
class Demote:
    """A voter becomes a learner."""

    id: str


@dataclass(frozen=True, slots=True)
class Remove:
    """A voter or learner leaves."""

    id: str
    request: str = ""
    """Remembered with it, see `Removed`."""


@dataclass(frozen=True, slots=True)
class Replace:
    """A voter leaves and a learner takes its seat, in one change: the number of voters never dips."""

    leaving: str
    joining: str
    request: str = ""


@dataclass(frozen=True, slots=True)
class Readdress:
    """A member's name or address changes; who votes does not."""

    server: ServerInfo


ConfigChange = AddLearner | Promote | Demote | Remove | Replace | Readdress


def first_config(servers: Iterable[ServerInfo]) -> Config:
    """The config a region is bootstrapped with: all of these vote. Equal on every server that is given equal ones."""
    ordered = tuple(sorted(servers, key=lambda server: server.id))
    return Config(voters=frozenset(server.id for server in ordered), servers=ordered)


def bootstrap_entry(config: Config) -> Entry:
    """The first record of a new region's log. All its servers write the very same one before they start."""
    return Entry(1, 1, EntryKind.CONFIG, encode_config(config))


def changed(config: Config, change: ConfigChange) -> Config:
    """The config to append next for this change: a joint one if the voters differ. Raises `BadChange`."""
    if config.is_joint:
        raise BadChange("a change of voters is still under way", hint="wait until it is done")
    match change:
        case AddLearner(server):
            if server.id in config.members:
                raise BadChange(f"server {server.id} is a member already", hint="use readdress to change its address")
            return _made(config, config.voters, frozenset(), config.learners | {server.id}, (*config.servers, server))
        case Readdress(server):
            _require(server.id in config.members, f"server {server.id} is not a member", config)
            others = tuple(known for known in config.servers if known.id != server.id)
            return _made(config, config.voters, frozenset(), config.learners, (*others, server))
        case Promote(server_id):
            _require(server_id in config.learners, f"server {server_id} is not a learner", config)
            return _revoted(config, config.voters | {server_id}, config.learners - {server_id})
        case Demote(server_id):
            _require(server_id in config.voters, f"server {server_id} is not a voter", config)
            return _revoted(config, config.voters - {server_id}, config.learners | {server_id})
        case Remove(server_id, request):
            _require(server_id in config.members, f"server {server_id} is not a member", config)
            left = _revoted(config, config.voters - {server_id}, config.learners - {server_id})
            return _remembering(left, config, server_id, request)
        case Replace(leaving, joining, request):
            _require(leaving in config.voters, f"server {leaving} is not a voter", config)
            _require(joining in config.learners, f"server {joining} is not a learner", config)
            left = _revoted(config, (config.voters - {leaving}) | {joining}, config.learners - {joining})
            return _remembering(left, config, leaving, request)
        case _:
            assert_never(change)


def settled(config: Config) -> Config:
    """The config that ends a joint one."""
    return _made(config, config.voters, frozenset(), config.learners, config.servers)


def encode_config(config: Config) -> bytes:
    """Plain lists in sorted order: equal configs have equal bytes."""
    plain: list[object] = [
        CONFIG_FORMAT_REMOVED if config.removed else CONFIG_FORMAT,
        sorted(config.voters),
        sorted(config.outgoing),
        sorted(config.learners),
        [[server.id, server.name, server.address] for server in config.servers],
    ]
    if config.removed:
        plain.append([[one.server.id, one.server.name, one.server.address, one.request] for one in config.removed])
    return dumps(plain)


def decode_config(payload: bytes) -> Config:
    """The config of a CONFIG entry; raises `CodecError` for anything that `encode_config` would not have written."""
    plain = loads(payload)
    try:
        version, voters, outgoing, learners, servers, *more = plain
        if version not in (CONFIG_FORMAT, CONFIG_FORMAT_REMOVED):
            raise CodecError(f"membership record has format {version!r}; this version knows {CONFIG_FORMAT_REMOVED}")
        infos = tuple(ServerInfo(*map(_text, each)) for each in servers)
        removed = tuple(_removed(*map(_text, each)) for each in (more[0] if more else ()))
        config = _made(Config(removed=removed), _ids(voters), _ids(outgoing), _ids(learners), infos)
    except (TypeError, ValueError) as why:
        raise CodecError(f"membership record does not have the expected shape: {why}") from why
    if encode_config(config) != payload:
        raise CodecError("membership record is not in the form it is written in")
    return config


class ConfigHistory:
    """Configs by the index that brought them, from the one in force where the log begins up to the newest."""

    def __init__(self, config: Config = Config(), index: int = 0) -> None:
        self._indexes = [index]
        self._configs = [config]
        self.current = config
        self.index = index

    def push(self, index: int, config: Config) -> None:
        self._indexes.append(index)
        self._configs.append(config)
        self.current, self.index = config, index

    def note(self, entries: Sequence[Entry]) -> bool:
        """Take in the configs among freshly appended entries; True if there were any."""
        found = False
        for entry in entries:
            if entry.kind is EntryKind.CONFIG:
                self.push(entry.index, decode_config(entry.payload))
                found = True
        return found

    def truncate(self, first: int) -> bool:
        """The log lost `first` and all that follows; True if that changed the config in force."""
        keep = bisect_right(self._indexes, first - 1)
        if keep == len(self._indexes):
            return False
        assert keep > 0, f"no config is known for a log cut at {first}"
        del self._indexes[keep:]
        del self._configs[keep:]
        self.current, self.index = self._configs[-1], self._indexes[-1]
        return True

    def compact(self, upto: int) -> None:
        """Nobody will ask again for a config that was replaced at or before `upto`."""
        gone = bisect_right(self._indexes, upto) - 1
        if gone > 0:
            del self._indexes[:gone]
            del self._configs[:gone]

    def at(self, index: int) -> tuple[Config, int]:
        """The config in force at `index`, and the index that brought it."""
        position = max(bisect_right(self._indexes, index) - 1, 0)
        return self._configs[position], self._indexes[position]


def _revoted(config: Config, voters: frozenset[str], learners: frozenset[str]) -> Config:
    if voters == config.voters:
        return _made(config, voters, frozenset(), learners, config.servers)
    if not voters:
        raise BadChange("a region cannot be left without voters", hint="promote another server first")
    return _made(config, voters, config.voters, learners, config.servers)


def _made(
    before: Config,
    voters: frozenset[str],
    outgoing: frozenset[str],
    learners: frozenset[str],
    servers: tuple[ServerInfo, ...],
) -> Config:
    members = voters | outgoing | learners
    kept = tuple(sorted((server for server in servers if server.id in members), key=lambda server: server.id))
    return Config(voters, outgoing, learners, kept, before.removed)


def _remembering(config: Config, before: Config, server_id: str, request: str) -> Config:
    server = before.server(server_id)
    assert server is not None
    others = tuple(one for one in before.removed if one.server.id != server_id)
    return replace(config, removed=(*others, Removed(server, request))[-REMOVED_MAX:])


def _removed(server_id: str, name: str, address: str, request: str) -> Removed:
    return Removed(ServerInfo(server_id, name, address), request)


def _require(holds: bool, message: str, config: Config) -> None:
    if not holds:
        members = ", ".join(sorted(config.members)) or "none"
        raise BadChange(message, hint=f"members: {members}")


def _ids(values: Iterable[object]) -> frozenset[str]:
    return frozenset(map(_text, values))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {value!r}")
    return value
