"""This server among the servers of all regions: gossip tells who is there, the directory remembers it.

One pool holds every server of every region. What gossip says is never trusted for anything but where to try: whoever is
asked decides for itself whether it leads, and each region's members are those of its own log.
"""

from __future__ import annotations

from typing import Final

import trio

from fedsched import __version__
from fedsched.codec import cbor
from fedsched.env.env import Env
from fedsched.federation.directory import ROLES, Directory, LeaderHint
from fedsched.gossip.asked import MemberNews, NewsKind
from fedsched.gossip.keyring_file import KeyStore
from fedsched.gossip.members import Member
from fedsched.gossip.messages import Address, State, UserEvent
from fedsched.gossip.runner import GossipRunner, GossipSettings
from fedsched.model.region import MemberStatus, ServerMember
from fedsched.raft.membership import ServerInfo
from fedsched.raft.runner import RaftRunner
from fedsched.rpc.relay import hop_of
from fedsched.server.clocks import ClockWatch
from fedsched.server.leader.reconcile_core import Seen, Standing
from fedsched.server.peers import PeerLinks
from fedsched.server.pool_keys import PoolKeys
from fedsched.server.settings import GossipOptions, ServerOptions, is_loopback_host
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry
from fedsched.wire.address import split_host_port

LEADER: Final = "leader"
"""The name of what a new leader announces."""
PAUSE_S: Final = 0.1
"""Many who come together are told together."""
AGAIN_S: Final = 5.0
"""An announcement is told a few times to members picked by chance, and may miss one; a missing hint costs a hop."""
MEET_AGAIN_S: Final = 5.0
FORGOTTEN_MAX: Final = 64
MET_MAX: Final = 64
"""Servers of our own region that are looked up in gossip at once; far more than a region has."""
HINT_LIMITS: Final = cbor.Limits(bytes_max=512, depth_max=2, nodes_max=8)
STATUS: Final = {
    State.ALIVE: MemberStatus.ALIVE,
    State.SUSPECT: MemberStatus.ALIVE,
    State.DEAD: MemberStatus.FAILED,
    State.LEFT: MemberStatus.LEFT,
}


STANDING: Final = {
    State.ALIVE: Standing.UP,
    State.SUSPECT: Standing.UP,
    State.DEAD: Standing.FAILED,
    State.LEFT: Standing.LEFT,
}


class Wan:
    """Feeds the directory; announces this server when it leads."""

    def __init__(
        self,
        options: ServerOptions,
        gossip: GossipOptions,
        me: ServerInfo,
        directory: Directory,
        raft: RaftRunner,
        *,
        peers: PeerLinks,
        env: Env,
        log: Logger,
        metrics: Registry,
    ) -> None:
        self._region = options.region
        self._me = me
        self._directory = directory
        self._raft = raft
        self._has_news = trio.Event()
        """Another role, or somebody who has not heard yet who leads."""
        self._log = log
        self._nursery: trio.Nursery | None = None
        self._met: dict[str, float] = {}
        self._news, self._news_count = trio.Event(), 0
        self._forgotten: dict[str, None] = {}
        settings = GossipSettings(
            name=hop_of(me.name, options.region),
            tags=_tags(options, me),
            directory=options.data_dir,
            host=gossip.host,
            port=gossip.port,
            advertise=gossip.advertise,
            join=gossip.join,
            maybe=gossip.maybe,
            retry_max=gossip.retry_max,
            profile=gossip.profile,
            keys=gossip.keys,
        )
        self.gossip = GossipRunner(
            settings,
            env=env,
            log=log,
            metrics=metrics,
            on_member=self._member,
            on_event=self._event,
            on_round_trip=lambda member, round_trip_s: directory.round_trip_seen(member.id, round_trip_s),
        )
        ring = self.gossip.keyring
        self.keys = PoolKeys(
            KeyStore(options.data_dir, ring) if ring is not None else None,
            directory,
            me.id,
            members_up=lambda: [one.name for one in self.gossip.members if one.is_up],
            is_private=peers.has_tls or is_loopback_host(options.rpc_host),
            peers=peers,
            log=log,
        )
        self._clocks = ClockWatch(directory, me.id, peers=peers, env=env, log=log)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; `started` when the gossip port is bound."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.gossip.run)
            for member in self.gossip.members:
                self._directory.member_seen(_listed(member))
            nursery.start_soon(self._watch_role)
            nursery.start_soon(self._announce)
            nursery.start_soon(self._clocks.run)
            nursery.start_soon(self.keys.run)
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def far_members(self) -> tuple[ServerMember, ...]:
        """The servers of other regions, also those that do not answer."""
        listed = (_listed(member) for member in self.gossip.members if member.region != self._region)
        return tuple(sorted(listed, key=lambda one: one.name))

    def neighbours(self) -> tuple[str, ...]:
        """Server ports of the other servers of this region that gossip knows and that answer."""
        servers = self._directory.servers(self._region)
        return tuple(one.rpc for one in servers if one.is_alive and one.id != self._me.id)

    @property
    def gossip_address(self) -> str:
        """Where others can join us; empty until we listen."""
        return place_text(self.gossip.address) if self._nursery is not None else ""

    def meet(self, address: str) -> None:
        """A server of our region, which greeted us, has its gossip here: be in one pool with it. Never waits."""
        nursery, now = self._nursery, trio.current_time()
        if nursery is None or any(one.is_up and place_text(one.addr) == address for one in self.gossip.members):
            return
        self._met = {place: at for place, at in self._met.items() if now - at < MEET_AGAIN_S}
        if address not in self._met and len(self._met) < MET_MAX:
            self._met[address] = now
            nursery.start_soon(self.gossip.join, address)

    def own_servers(self) -> tuple[Seen, ...]:
        """The servers of this region that gossip knows, whatever has become of them."""
        found = (server_seen(one) for one in self.gossip.members if one.region == self._region)
        return tuple(one for one in found if one is not None)

    def forgotten(self) -> frozenset[str]:
        """Ids of servers of this region that were dropped for having been gone for long."""
        return frozenset(self._forgotten)

    @property
    def news_count(self) -> int:
        """How often something was heard of a member."""
        return self._news_count

    async def wait_news(self, after: int) -> None:
        """Until something more has been heard."""
        while self._news_count <= after:
            await self._news.wait()

    async def leave(self) -> None:
        """Say farewell to all regions; returns when it has had time to get around."""
        await self.gossip.leave()

    async def _announce(self) -> None:
        """Tell all regions that this server leads its own: it saves them a hop. Said again to those who come later."""
        while True:
            term = self._raft.core.status().term
            leader_id = self._raft.role.leader
            if self._raft.is_leader:
                await self.gossip.publish(LEADER, cbor.dumps([self._region, term, self._me.id]))
            elif leader_id is not None:
                self._directory.leader_told(LeaderHint(self._region, term, leader_id))
            await trio.sleep(PAUSE_S)
            with trio.move_on_after(AGAIN_S):
                await self._has_news.wait()
            self._has_news = trio.Event()

    async def _watch_role(self) -> None:
        while True:
            await self._raft.wait_role_change()
            self._has_news.set()

    def _member(self, news: MemberNews) -> None:
        self._note_forgotten(news)
        self._news_count += 1
        self._news.set()
        self._news = trio.Event()
        if news.kind in (NewsKind.LEAVE, NewsKind.REAP):
            self._directory.member_gone(news.member.name)
        else:
            self._directory.member_seen(_listed(news.member), is_suspect=news.member.state is State.SUSPECT)
        if news.kind is NewsKind.JOIN:
            self._has_news.set()
            self.keys.member_came()

    def _note_forgotten(self, news: MemberNews) -> None:
        member = news.member
        self._forgotten.pop(member.id, None)
        if news.kind is NewsKind.REAP and member.region == self._region and member.id:
            self._forgotten[member.id] = None
            if len(self._forgotten) > FORGOTTEN_MAX:
                del self._forgotten[next(iter(self._forgotten))]

    def _event(self, event: UserEvent) -> None:
        if event.name != LEADER:
            return
        try:
            region, term, server_id = cbor.loads(event.payload, HINT_LIMITS)
        except (cbor.CodecError, ValueError, TypeError) as error:
            self._log.info("leader_hint_unreadable", why=str(error))
            return
        if isinstance(region, str) and type(term) is int and isinstance(server_id, str):
            self._directory.leader_told(LeaderHint(region, term, server_id))


def _tags(options: ServerOptions, me: ServerInfo) -> dict[str, str]:
    host, port = split_host_port(me.address, 0)
    return {
        "role": "fedsched",
        "region": options.region,
        "dc": options.datacenter,
        "id": me.id,
        "rpc_addr": host,
        "port": str(port),
        "build": __version__,
        "raft_vsn": "3",
        "expect": str(options.bootstrap_expect),
    }


def place_text(address: Address) -> str:
    """An address as people write it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def server_seen(member: Member) -> Seen | None:
    """A member as one that may be in the server set; None if it does not say enough of itself."""
    tags = member.tags
    port = tags.get("port", "")
    if tags.get("role") not in ROLES or not member.id or not (port.isascii() and port.isdigit()):
        return None
    address = place_text((tags.get("rpc_addr") or member.addr[0], int(port)))
    server = ServerInfo(member.id, member.name.removesuffix(f".{member.region}"), address)
    return Seen(server, STANDING[member.state], member.changed_at)


def _listed(member: Member) -> ServerMember:
    host, port = member.addr
    return ServerMember(name=member.name, addr=host, port=port, tags=dict(member.tags), status=STATUS[member.state])
