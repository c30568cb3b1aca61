"""What an observer of all servers and disks knows, and what every invariant is made of."""

from __future__ import annotations

from collections.abc import Callable

from fedsched.raft.core import RaftCore
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import Config, decode_config
from fedsched.raft.messages import Effects, Message, SnapshotMeta
from fedsched.sim.cores import SimServer
from fedsched.sim.machine import Outcome
from fedsched.sim.verdict import Broken


class Truth:
    """What the observer knows and the servers may not."""

    def __init__(self, find: Callable[[str], SimServer | None]) -> None:
        self.find = find
        self.committed: dict[int, int] = {}
        """Index -> term of every entry that any server has known to be committed."""
        self.commit_max = 0
        self.commit_by_term: dict[int, int] = {}
        """Term of a commit -> the highest index committed in it."""
        self.entry_terms_committed: set[int] = set()
        self.votes: dict[tuple[str, int], str] = {}
        """(voter, term) -> candidate, for every vote that left a server."""


class Invariant:
    """Base: an invariant overrides the hooks it needs."""

    name = ""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth

    def require(self, holds: bool, what: str, *servers: str) -> None:
        if not holds:
            raise Broken(self.name, what, *servers)

    def started(self, server: SimServer, core: RaftCore) -> None:
        """A process came up."""

    def took(self, server: SimServer, core: RaftCore, effects: Effects) -> None:
        """A set of effects was taken and is about to be performed."""

    def sent(self, server: SimServer, message: Message) -> None:
        """A message leaves a server."""

    def applied(self, server: SimServer, entry: Entry, outcome: Outcome | None) -> None:
        """An entry was applied."""

    def made(self, server: SimServer, meta: SnapshotMeta) -> None:
        """A server cut a snapshot of its state."""

    def installed(self, server: SimServer, meta: SnapshotMeta) -> None:
        """A snapshot took the place of the state."""

    def after(self, server: SimServer, core: RaftCore) -> None:
        """An event of this server is over."""


def config_of(core: RaftCore) -> Config:
    """The config in force on a server, found by reading its log: the newest, committed or not."""
    log = core.log
    for entry in reversed(log.slice(log.first, log.last)):
        if entry.kind is EntryKind.CONFIG:
            return decode_config(entry.payload)
    return Config() if core.snapshot is None else core.snapshot.config


def config_text(config: Config) -> str:
    """A config in few words, the same on every machine."""
    groups = {"voters": config.voters, "outgoing": config.outgoing, "learners": config.learners}
    return "; ".join(f"{name} {' '.join(sorted(ids))}" for name, ids in groups.items() if ids) or "no config"


def holds(server: SimServer, index: int, term: int) -> bool:
    durable = server.disk.durable
    return index <= durable.prev_index or durable.term_at(index) == term
