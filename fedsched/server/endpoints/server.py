"""Servers meeting, joining and leaving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from fedsched.federation.directory import Directory, state_of
from fedsched.model.errors import BadRequest, Conflict
from fedsched.model.region import ListedMember, MemberStatus, ServerMember
from fedsched.raft.membership import Config, ServerInfo
from fedsched.rpc.method import Empty, Method
from fedsched.rpc.methods import server as methods
from fedsched.rpc.methods import status as status_methods
from fedsched.rpc.methods.raft import PeerRequest
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.desk import Desk
from fedsched.server.members import Members
from fedsched.server.server_set import admission, removal, request_name, settled_config
from fedsched.state.tables.meta import COMMAND_VERSION

FarMembers = Callable[[], tuple[ServerMember, ...]]
Greet = Callable[[methods.ServerHello], methods.ServerHello]


class ServerEndpoint:
    """Answers `Server.*`, `Region.*` and `Status.*`."""

    def __init__(self, desk: Desk, members: Members, greet: Greet, directory: Directory, far: FarMembers) -> None:
        """`far` are the servers of other regions."""
        self._directory = directory
        self._far = far
        self._desk = desk
        self._members = members
        self._greet = greet

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.REGION_LIST: self.regions,
            methods.SERVER_MEMBERS: self.members,
            methods.SERVER_HELLO: self.hello,
            methods.SERVER_JOIN: self.join,
            methods.SERVER_LEAVE: self.leave,
            status_methods.STATUS_LEADER: self.leader,
            status_methods.STATUS_PEERS: self.peers,
            status_methods.STATUS_CLOCK: self.clock,
        }

    async def members(self, request: Empty, context: CallContext) -> methods.ServerMembersReply:
        return methods.ServerMembersReply(
            server_name=self._desk.me.name,
            server_region=self._desk.region,
            server_dc=self._desk.datacenter,
            members=tuple(self._measured(member) for member in (*self._members.listed(self._desk.raft), *self._far())),
        )

    def _measured(self, member: ServerMember) -> ListedMember:
        """With what is known of the way to it."""
        listed = ListedMember(**structs.asdict(member))
        known = self._directory.server(member.server_id)
        if known is None:
            return listed
        return structs.replace(listed, is_suspect=known.is_suspect, round_trip_ms=_ms(known.round_trip_s))

    async def regions(self, request: Empty, context: CallContext) -> methods.RegionListReply:
        names = {*self._directory.all_regions(), self._desk.region}
        return methods.RegionListReply(regions=tuple(self._region(name) for name in sorted(names)))

    def _region(self, name: str) -> methods.RegionRow:
        """Our own region as its log has it, another one as gossip has it; clocks and ways as they were measured."""
        seen = self._directory.summary(name)
        if name != self._desk.region:
            return methods.RegionRow(
                name=name,
                state=seen.state.value,
                servers_up=seen.alive,
                servers=seen.known,
                leader=seen.leader,
                builds=seen.builds,
                round_trip_ms=_ms(seen.round_trip_s),
                skew_ms=_ms(seen.skew_s),
                is_skewed=seen.is_skewed,
            )
        members = self._members.listed(self._desk.raft)
        up = sum(member.status is MemberStatus.ALIVE for member in members)
        return methods.RegionRow(
            name=name,
            state=state_of(up, len(members), len(members)).value,
            servers_up=up,
            servers=len(members),
            leader=next((one.name for one in members if one.tags.get("leader") == "true"), ""),
            builds=tuple(sorted({one.tags["build"] for one in members if one.tags.get("build")})),
            is_own=True,
            skew_ms=_ms(seen.skew_s),
            is_skewed=seen.is_skewed,
        )

    async def hello(self, request: methods.ServerHello, context: CallContext) -> methods.ServerHello:
        return self._greet(request)

    async def join(self, request: methods.ServerJoinRequest, context: CallContext) -> methods.ServerJoinReply:
        """Take a server in as a learner; autopilot lets it vote once it has caught up and stayed healthy."""
        raft = self._desk.raft
        if request.version_max < COMMAND_VERSION:
            raise BadRequest(
                f"server {request.name} understands commands up to version {request.version_max}, "
                f"this region uses {COMMAND_VERSION}",
                hint="upgrade it first",
            )
        server = ServerInfo(request.id, request.name, request.address)
        config = await settled_config(raft)
        self._retire_former(config, server)
        self._members.left.pop(request.id, None)
        change = admission(config, server)
        if change is not None:
            await raft.change_config(change)
            known = config.server(server.id)
            event = "server_moved" if known else "server_joined"
            was = known.address if known else ""
            self._desk.log.info(event, server=server.name, server_id=server.id, address=server.address, was=was)
        index = raft.core.history.index
        context.reply_meta = structs.replace(context.reply_meta, index=index)
        return methods.ServerJoinReply(
            cluster_id=raft.transport.cluster_id, index=index, is_voter=raft.core.config.is_voter(server.id)
        )

    async def leave(self, request: methods.ServerLeaveRequest, context: CallContext) -> methods.ServerLeaveReply:
        """Let a server go for good; the set of voters shrinks by one."""
        raft = self._desk.raft
        wanted = removal(await settled_config(raft), PeerRequest(id=request.id), request_name(context.meta))
        index = raft.core.history.index
        if wanted.change is not None:
            leaving = wanted.server
            self._members.say_goodbye(leaving.id)
            index = await raft.change_config(wanted.change)
            self._members.left.pop(leaving.id, None)
            self._desk.log.info("server_left", server=leaving.name, server_id=leaving.id)
        context.reply_meta = structs.replace(context.reply_meta, index=index)
        return methods.ServerLeaveReply(index=index)

    async def leader(self, request: Empty, context: CallContext) -> status_methods.LeaderReply:
        raft = self._desk.raft
        leader = raft.core.config.server(raft.role.leader) if raft.role.leader else None
        if leader is None:
            return status_methods.LeaderReply(term=raft.core.term)
        return status_methods.LeaderReply(leader=leader.address, id=leader.id, name=leader.name, term=raft.core.term)

    async def clock(self, request: Empty, context: CallContext) -> status_methods.ClockReply:
        return status_methods.ClockReply(wall_s=self._desk.env.wall())

    async def peers(self, request: Empty, context: CallContext) -> status_methods.PeersReply:
        config = self._desk.raft.core.config
        voters = (server.address for server in config.servers if config.is_voter(server.id))
        return status_methods.PeersReply(peers=tuple(sorted(voters)))

    def _retire_former(self, config: Config, server: ServerInfo) -> None:
        """A wiped server comes back with a new id at its old address: its former self is gone for good.

        The same name at another address is somebody's mistake and is refused.
        """
        for other in config.servers:
            if other.id == server.id:
                continue
            if other.address == server.address:
                self._members.say_goodbye(other.id)
                self._desk.log.warn("server_was_wiped", server=server.name, former_id=other.id, new_id=server.id)
            elif other.name == server.name:
                raise Conflict(
                    f"there is a server named {server.name!r} already, with id {other.id} at {other.address}",
                    hint=f"give the new one another name, or `fedsched operator raft remove-peer -peer-id {other.id}`",
                )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)
