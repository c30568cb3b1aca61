"""A region's servers as gossip knows them, and the set that votes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fedsched.model.record import EMPTY, DurationText, InJson, Record, StringMap, TimeText


class MemberStatus(StrEnum):
    ALIVE = "alive"
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"
    NONE = "none"


class ServerMember(Record):
    """One server as gossip knows it; the tags say where its other ports are and which region it serves."""

    name: Annotated[str, "`<server>.<region>`."]
    addr: str = ""
    port: Annotated[int, "The gossip port."] = 0
    tags: StringMap = EMPTY
    status: MemberStatus = MemberStatus.ALIVE
    protocol_min: int = 1
    protocol_max: int = 5
    protocol_cur: int = 2
    delegate_min: int = 2
    delegate_max: int = 5
    delegate_cur: int = 4

    @property
    def region(self) -> str:
        return self.tags.get("region", "")

    @property
    def server_id(self) -> str:
        return self.tags.get("id", "")


class ListedMember(ServerMember):
    """A server with what whoever lists it knows of the way there; Nomad's form has none of this."""

    is_suspect: Annotated[bool, "It did not answer lately, and has a little time left to do so."] = False
    round_trip_ms: Annotated[float | None, "From the server that answers and back; null until it was measured."] = None


class Region(Record):
    """A region and its servers."""

    name: str
    members: tuple[ServerMember, ...] = ()


class RaftServer(Record):
    """One member of the raft set."""

    id: str
    node: str = ""
    address: str = ""
    leader: bool = False
    voter: bool = False
    raft_protocol: str = "3"


class RaftConfiguration(Record):
    """The raft set, as of one index."""

    servers: Annotated[tuple[RaftServer, ...], InJson.KEEP_EMPTY] = ()
    index: int = 0


class ServerHealth(Record):
    """How autopilot sees one server."""

    last_contact_s: DurationText = 0.0
    id: str
    name: str = ""
    address: str = ""
    serf_status: MemberStatus = MemberStatus.NONE
    version: str = ""
    leader: bool = False
    last_term: int = 0
    last_index: int = 0
    healthy: bool = False
    voter: bool = False
    stable_since_ns: TimeText = 0


class RegionHealth(Record):
    """How autopilot sees the whole set."""

    healthy: bool = False
    failure_tolerance: Annotated[int, "Servers that may fail before the region stops writing."] = 0
    servers: tuple[ServerHealth, ...] = ()
    leader: str = ""
    voters: tuple[str, ...] = ()
