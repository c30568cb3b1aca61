"""The region's server set, for operators; and snapshots, for followers that have fallen behind."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import EMPTY, Record
from fedsched.model.region import RaftConfiguration
from fedsched.rpc.method import Empty, Method, RunsAt, declare
from fedsched.wire.call_state import Flow


class PeerRequest(Record):
    """Names one server, by id or by address."""

    id: str = ""
    address: str = ""


class PeerReply(Record):
    """The server that was meant, and the index at which it was done."""

    id: str = ""
    address: str = ""
    index: int = 0
    already: Annotated[bool, "Nothing was changed: the set was as asked for before."] = False


class RaftPeerStatus(Record):
    """Another server, as the leader sees it."""

    id: str
    match: int = 0
    next: int = 0
    mode: str = ""
    inflight: int = 0
    inflight_bytes: int = 0
    last_contact_s: float = 0.0
    is_active: bool = False


class RaftStatusReply(Record):
    """One server's view of consensus."""

    server_id: str
    cluster_id: str = ""
    role: str = ""
    term: int = 0
    leader: str = ""
    commit: int = 0
    applied: int = 0
    last: int = 0
    last_term: int = 0
    durable: int = 0
    first_index: int = 0
    log_bytes: int = 0
    snapshot_index: int = 0
    config_index: int = 0
    state_index: Annotated[int, "The last entry that changed the state, and its digest right after."] = 0
    state_digest: str = ""
    last_contact_s: float = 0.0
    is_established: bool = False
    transferring_to: str = ""
    peers: tuple[RaftPeerStatus, ...] = ()
    counters: dict[str, int] = EMPTY


class SnapshotChunksRequest(Record):
    """A follower asks for a snapshot it was offered, from where it stopped."""

    snapshot_id: str
    offset: int = 0


class SnapshotChunksReply(Record):
    size: Annotated[int, "Bytes of the whole snapshot."] = 0


class PeerChangeRequest(Record):
    """Asks for a change of who votes."""

    change: Annotated[str, "`promote`, `demote` or `replace`."]
    id: Annotated[str, "Id or name of the server to change; with `replace`, of the voter that leaves."]
    by: Annotated[str, "With `replace`: id or name of the learner that takes its seat."] = ""
    config_index: Annotated[int, "Only if the configuration is still the one of this index; 0: whatever it is."] = 0


class LogRequest(Record):
    """Asks what lies in this server's log."""

    first: Annotated[int, "0: from the oldest kept."] = 0
    last: Annotated[int, "0: to the newest."] = 0


class LogEntryHeader(Record):
    index: int
    term: int
    kind: str
    size: Annotated[int, "Bytes of the payload."] = 0


class LogReply(Record):
    first: Annotated[int, "The oldest entry kept; what came before is in a snapshot."] = 0
    last: int = 0
    entries: tuple[LogEntryHeader, ...] = ()


class FetchImageRequest(Record):
    """A leader asks a server to fetch a saved state from it, before the region is restored from that."""

    image: Annotated[bytes, "Names the image: its id, size and digest."]
    server_id: str
    server_name: str
    address: str


RAFT_CHANGE_PEER = declare(
    Method(
        "Raft.ChangePeer",
        PeerChangeRequest,
        PeerReply,
        RunsAt.LEADER,
        needs="operator:write",
        writes=True,
        doc="Let a learner vote, let a voter only listen, or put one in the place of another.",
    )
)
RAFT_LOG = declare(
    Method(
        "Raft.Log",
        LogRequest,
        LogReply,
        RunsAt.THIS_AGENT,
        needs="operator:read",
        doc="The entries in this server's log, without their content.",
    )
)
RAFT_FETCH_IMAGE = declare(
    Method(
        "Raft.FetchImage",
        FetchImageRequest,
        Empty,
        RunsAt.THIS_AGENT,
        needs="server",
        doc="Fetch a saved state from the leader and keep it on disk.",
    )
)
RAFT_LIST_PEERS = declare(
    Method(
        "Raft.ListPeers",
        Empty,
        RaftConfiguration,
        RunsAt.ANY_SERVER,
        needs="operator:read",
        doc="The members of the raft set, as of the newest configuration.",
    )
)
RAFT_REMOVE_PEER = declare(
    Method(
        "Raft.RemovePeer",
        PeerRequest,
        PeerReply,
        RunsAt.LEADER,
        needs="operator:write",
        writes=True,
        doc="Take a server out of the raft set.",
    )
)
RAFT_TRANSFER_LEADERSHIP = declare(
    Method(
        "Raft.TransferLeadership",
        PeerRequest,
        PeerReply,
        RunsAt.LEADER,
        needs="operator:write",
        doc="Hand the leadership to another server; to the best one if none is named.",
    )
)
RAFT_STATUS = declare(
    Method(
        "Raft.Status",
        Empty,
        RaftStatusReply,
        RunsAt.THIS_AGENT,
        needs="operator:read",
        doc="How this server sees consensus.",
    )
)
RAFT_SNAPSHOT_CHUNKS = declare(
    Method(
        "Raft.SnapshotChunks",
        SnapshotChunksRequest,
        SnapshotChunksReply,
        RunsAt.THIS_AGENT,
        needs="server",
        flow=Flow.DOWN,
        item=bytes,
        doc="The bytes of a snapshot, from an offset on.",
    )
)
