"""Who leads, and who else is there: the first questions of every client."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record
from fedsched.rpc.method import Empty, Method, RunsAt, declare


class LeaderReply(Record):
    leader: Annotated[str, "Address of the leader's server port; empty while there is none."] = ""
    id: str = ""
    name: str = ""
    term: int = 0


class ClockReply(Record):
    wall_s: Annotated[float, "Seconds since 1970, as this server's clock has it."] = 0.0


class PeersReply(Record):
    peers: Annotated[tuple[str, ...], "Addresses of the voting servers."] = ()


STATUS_LEADER = declare(
    Method(
        "Status.Leader",
        Empty,
        LeaderReply,
        RunsAt.ANY_SERVER,
        needs="",
        needs_quorum=False,
        doc="The region's leader, if it has one.",
    )
)
STATUS_PEERS = declare(
    Method(
        "Status.Peers",
        Empty,
        PeersReply,
        RunsAt.ANY_SERVER,
        needs="",
        needs_quorum=False,
        doc="The region's voting servers.",
    )
)
STATUS_CLOCK = declare(
    Method(
        "Status.Clock",
        Empty,
        ClockReply,
        RunsAt.THIS_AGENT,
        needs="pool",
        doc="What time a server has, to compare clocks by.",
    )
)
