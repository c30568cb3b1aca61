"""What servers of one region say to each other, and what a core asks its runner to do.

Plain frozen records. `wire.py` maps messages to bytes; the core only ever sees these. Every message names its sender,
its receiver and a term; replies are matched to servers by id and collected in sets, never counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fedsched.raft.entry import Entry
from fedsched.raft.membership import Config

ServerID = str


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What all messages share. `term` is the sender's, except where a class says otherwise."""

    sender: ServerID
    to: ServerID
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVote(Message):
    """Would you vote for me? `term` is the one the sender would campaign in; nobody records anything."""

    last_index: int
    last_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PreVoteReply(Message):
    """`term` is the request's when granted, the replier's own when refused."""

    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote(Message):
    """Vote for me in `term`. `force` marks a leadership transfer: a live leader is no reason to ignore it."""

    last_index: int
    last_term: int
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VoteReply(Message):
    granted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Append(Message):
    """Entries that follow (prev_index, prev_term); with none it probes or spreads the commit index."""

    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendReply(Message):
    """`ok`: `index` is the highest *verified* index, prev + number of entries, never the replier's own last one.

    Refused: `index` echoes the refused prev index; the hint lets the leader skip a whole term at a time.
    """

    ok: bool
    index: int
    hint_index: int = 0
    hint_term: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Message):
    """`commit` is capped at what the receiver is known to match; `round` confirms leadership for waiting reads."""

    commit: int
    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply(Message):
    """Echoes `round`; carries the state digest the replier last computed, so that the leader can compare."""

    round: int
    digest_index: int = 0
    digest: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOffer(Message):
    """The log no longer reaches back to you; fetch this snapshot (over a connection of its own)."""

    meta: SnapshotMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDone(Message):
    """How a fetch of an offered snapshot ended. After `ok` an ordinary AppendReply at its index follows too."""

    index: int
    ok: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutNow(Message):
    """You are level with me: campaign at once (leadership transfer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndex(Message):
    """A follower asks for an index at which a read is linearizable."""

    ctx: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadIndexReply(Message):
    """`index` 0 means: not the leader, or not yet able to say; ask again."""

    ctx: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverged(Message):
    """The majority's state digest at `index` differs from yours: you must stop."""

    index: int
    expected: bytes


@dataclass(frozen=True, slots=True)
class HardState:
    """What must be durable before a vote or an acknowledgement leaves. `commit` is a hint for restarts only."""

    term: int = 0
    vote: ServerID | None = None
    commit: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """Names one snapshot: the state after applying `index`, and the config in force there."""

    id: str
    index: int
    term: int
    config: Config
    config_index: int
    size: int = 0
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Restored:
    """What the log store found on disk at start."""

    hard_state: HardState = field(default_factory=HardState)
    entries: tuple[Entry, ...] = ()
    """Contiguous; the first one follows `snapshot.index` or is older (the log keeps a tail from before it)."""
    snapshot: SnapshotMeta | None = None
    prev_index: int = 0
    """Index and term of the entry just before `entries[0]`."""
    prev_term: int = 0


@dataclass(frozen=True, slots=True)
class Accepted:
    """Appended to the leader's log, outcome open: watch for commit at these indexes in this term."""

    first: int
    last: int
    term: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Never appended; trying again is safe. `reason` is one of the REFUSED_* words below."""

    reason: str
    leader: ServerID | None = None
    detail: str = ""
    """What exactly was wrong, for the operator."""


REFUSED_NOT_LEADER = "not leader"
REFUSED_BUSY = "busy"
REFUSED_TOO_LARGE = "too large"
REFUSED_TRANSFERRING = "transferring leadership"
REFUSED_STALE_EPOCH = "stale epoch"
REFUSED_CONFIG_IN_FLIGHT = "another membership change is in flight"
REFUSED_CONFIG_CHANGED = "membership changed since the caller looked"
REFUSED_NOT_ESTABLISHED = "leader has not committed in its own term yet"
REFUSED_BAD_CHANGE = "impossible membership change"
REFUSED_NO_TARGET = "nobody to hand leadership to"


@dataclass(frozen=True, slots=True)
class ReadReady:
    """A read asked for by `ctx` may be served once `index` is applied; index 0: it failed, ask again."""

    ctx: int
    index: int


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Who leads, as this server knows it. `epoch` rises with every change, so that old work can be told apart."""

    role: str
    """follower, precandidate, candidate or leader."""
    term: int
    leader: ServerID | None
    epoch: int


@dataclass(frozen=True, slots=True)
class Lost:
    """Entries [first, last] proposed in `term` were overwritten: definitely not committed."""

    first: int
    last: int
    term: int


@dataclass(slots=True)
class Effects:
    """What the runner must do next. Sets are numbered; the store completes them in order.

    The order of duties within one set: `send_now` may leave at once; `hard_state`, `truncate_from`/`append` and
    `reset` go to the store as one write; `after_store` leaves when that write *and all writes of earlier sets* are
    durable (a set without a write still queues behind earlier ones). `commit_to` never passes what is durable here.
    """

    number: int = 0
    hard_state: HardState | None = None
    reset: SnapshotMeta | None = None
    """Replace the whole log by this snapshot (it is on disk already) before anything in `append`."""
    append: tuple[Entry, ...] = ()
    """Write these; whatever the disk holds from the first one's index on is cut off first."""
    send_now: list[Message] = field(default_factory=list)
    after_store: list[Message] = field(default_factory=list)
    """May include messages to this server itself (its own vote): hand them to `step`."""
    commit_to: int = 0
    """Entries up to here may be applied; 0 when nothing new. Always preceded by `install` if both are set."""
    install: SnapshotMeta | None = None
    """Hand this received snapshot to the state machine."""
    fetch: SnapshotOffer | None = None
    """Start (or go on) fetching this snapshot from its sender; report with `snapshot_received` or `snapshot_failed`."""
    reads: list[ReadReady] = field(default_factory=list)
    role: RoleChange | None = None
    lost: list[Lost] = field(default_factory=list)
    config: Config | None = None
    """The config now in force (it changed): whom to keep links to."""
    fatal: str = ""
    """A broken promise: stop the process at once and say this. A set with it holds nothing else."""
    at_term: int = 0
    """The core's term when this set was taken; pass it to `stored` when the write is durable."""
    last_index: int = 0
    """Where the log ended when this set was taken: what to pass to `stored`, also when only `hard_state` was written.
    Writes complete in order, so everything up to here is durable then."""
    last_term: int = 0

    @property
    def needs_store(self) -> bool:
        return self.hard_state is not None or bool(self.append) or self.reset is not None
