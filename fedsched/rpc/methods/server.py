"""Servers: who belongs to the region, and how one joins and leaves it."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record
from fedsched.model.region import ListedMember
from fedsched.rpc.method import Empty, Method, RunsAt, declare


class ServerMembersReply(Record):
    server_name: Annotated[str, "Who answered."] = ""
    server_region: str = ""
    server_dc: str = ""
    members: tuple[ListedMember, ...] = ()


class ServerHello(Record):
    """What one server says of itself before the region is formed; the reply is the other's own."""

    id: str
    name: str
    address: Annotated[str, "host:port of its server port."]
    region: str
    bootstrap_expect: int = 0
    has_log: Annotated[bool, "Whether it has been part of a region."] = False
    cluster_id: Annotated[str, "Empty until it belongs to a region."] = ""
    seen: Annotated[tuple[str, ...], "Ids of the servers it has heard from lately, its own included."] = ()
    others: Annotated[tuple[ServerAddress, ...], "Where those are, so that everybody meets everybody."] = ()
    version_min: int = 1
    version_max: int = 1
    gossip: Annotated[str, "host:port of its gossip; empty if it takes no part."] = ""


class ServerAddress(Record):
    """A server, and where to reach it."""

    id: str
    name: str
    address: str


class ServerJoinRequest(Record):
    """A server asks the leader to take it in."""

    id: str
    name: str
    address: str
    version_min: Annotated[int, "Oldest command set it understands."] = 1
    version_max: Annotated[int, "Newest command set it understands."] = 1


class ServerJoinReply(Record):
    cluster_id: str = ""
    index: Annotated[int, "Index of the configuration that has it."] = 0
    is_voter: Annotated[bool, "False while it still catches up."] = False


class ServerLeaveRequest(Record):
    """A server leaves for good; empty means the one that asks."""

    id: str = ""


class ServerLeaveReply(Record):
    index: int = 0


class RegionRow(Record):
    """One region, as seen from the server that answers."""

    name: str
    state: Annotated[str, "healthy, degraded, at risk or failed; as gossip has it, for other regions."] = ""
    servers_up: int = 0
    servers: Annotated[int, "All that are known, those that do not answer included."] = 0
    leader: Annotated[str, "Who is believed to lead; empty if that is not known."] = ""
    builds: tuple[str, ...] = ()
    is_own: Annotated[bool, "Whether the server that answers belongs to it."] = False
    round_trip_ms: Annotated[float | None, "To the nearest of its servers and back; null until it was measured."] = None
    skew_ms: Annotated[
        float | None, "How far its clocks are ahead of those of the server that answers; of all its servers, the worst."
    ] = None
    is_skewed: Annotated[bool, "Whether that is worth a warning."] = False


class RegionListReply(Record):
    regions: tuple[RegionRow, ...] = ()


REGION_LIST = declare(
    Method(
        "Region.List",
        Empty,
        RegionListReply,
        RunsAt.ANY_SERVER,
        needs="node:read",
        needs_quorum=False,
        doc="All regions that are known, also those of which no server answers.",
    )
)
SERVER_MEMBERS = declare(
    Method(
        "Server.Members",
        Empty,
        ServerMembersReply,
        RunsAt.ANY_SERVER,
        needs="node:read",
        needs_quorum=False,
        doc="The servers this one knows, with address, state and version.",
    )
)
SERVER_HELLO = declare(
    Method(
        "Server.Hello",
        ServerHello,
        ServerHello,
        RunsAt.THIS_AGENT,
        needs="server",
        doc="Two servers tell each other who they are.",
    )
)
SERVER_JOIN = declare(
    Method(
        "Server.Join",
        ServerJoinRequest,
        ServerJoinReply,
        RunsAt.LEADER,
        needs="server",
        writes=True,
        doc="Take a server into the region.",
    )
)
SERVER_LEAVE = declare(
    Method(
        "Server.Leave",
        ServerLeaveRequest,
        ServerLeaveReply,
        RunsAt.LEADER,
        needs="server",
        writes=True,
        doc="Let a server out of the region.",
    )
)
