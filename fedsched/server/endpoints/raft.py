"""The server set, for operators; snapshots, for followers and for backups."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import trio
from msgspec import structs

from fedsched.model.errors import NotFound
from fedsched.model.region import RaftConfiguration, RaftServer, RegionHealth
from fedsched.raft.membership import ServerInfo
from fedsched.raft.snapshots import SnapshotReader
from fedsched.raft.wire import meta_from_bytes
from fedsched.rpc.method import Empty, Method
from fedsched.rpc.methods import autopilot as autopilot_methods
from fedsched.rpc.methods import raft as methods
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.desk import Desk
from fedsched.server.leader.autopilot import AutopilotService
from fedsched.server.server_set import Wanted, find, peer_change, removal, request_name, settled_config

LOG_ENTRIES_MAX: Final = 1_000
"""Headers in one answer; the newest ones if more were asked for."""
CHUNK_BYTES: Final = 128 * 1024


class RaftEndpoint:
    """Answers `Raft.*` and `Autopilot.*`."""

    def __init__(self, desk: Desk, autopilot: AutopilotService) -> None:
        self._desk = desk
        self._autopilot = autopilot

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.RAFT_LIST_PEERS: self.list_peers,
            methods.RAFT_REMOVE_PEER: self.remove_peer,
            methods.RAFT_CHANGE_PEER: self.change_peer,
            methods.RAFT_LOG: self.log,
            methods.RAFT_TRANSFER_LEADERSHIP: self.transfer_leadership,
            methods.RAFT_STATUS: self.status,
            methods.RAFT_SNAPSHOT_CHUNKS: self.snapshot_chunks,
            methods.RAFT_FETCH_IMAGE: self.fetch_image,
            autopilot_methods.AUTOPILOT_HEALTH: self.health,
        }

    async def list_peers(self, request: Empty, context: CallContext) -> RaftConfiguration:
        core = self._desk.raft.core
        leader = self._desk.raft.role.leader
        servers = tuple(
            RaftServer(
                id=server.id,
                node=server.name,
                address=server.address,
                leader=server.id == leader,
                voter=core.config.is_voter(server.id),
            )
            for server in sorted(core.config.servers, key=lambda one: one.name)
        )
        return RaftConfiguration(servers=servers, index=core.history.index)

    async def remove_peer(self, request: methods.PeerRequest, context: CallContext) -> methods.PeerReply:
        asked_by = request_name(context.meta)
        wanted = removal(await settled_config(self._desk.raft), request, asked_by)
        reply = await self._carry_out(wanted, context)
        if wanted.change is not None:
            self._desk.log.info("server_removed", server=wanted.server.name, server_id=reply.id, why="operator")
        return reply

    async def change_peer(self, request: methods.PeerChangeRequest, context: CallContext) -> methods.PeerReply:
        asked_by = request_name(context.meta)
        wanted = peer_change(await settled_config(self._desk.raft), request, asked_by)
        reply = await self._carry_out(wanted, context, request.config_index or None)
        if wanted.change is not None:
            self._desk.log.info("server_changed", change=request.change, server=wanted.server.name, why="operator")
        return reply

    async def _carry_out(self, wanted: Wanted, context: CallContext, based_on: int | None = None) -> methods.PeerReply:
        """Propose what is wanted; what was done before is left alone, whatever config the caller has seen."""
        raft, server, index = self._desk.raft, wanted.server, self._desk.raft.core.history.index
        if wanted.change is not None:
            index = await raft.change_config(wanted.change, based_on)
        context.reply_meta = structs.replace(context.reply_meta, index=index)
        already = wanted.change is None and not wanted.is_own
        return methods.PeerReply(id=server.id, address=server.address, index=index, already=already)

    async def log(self, request: methods.LogRequest, context: CallContext) -> methods.LogReply:
        log = self._desk.raft.core.log
        last = min(request.last or log.last, log.last)
        first = max(request.first or log.first, log.first, last - LOG_ENTRIES_MAX + 1)
        entries = tuple(
            methods.LogEntryHeader(index=one.index, term=one.term, kind=one.kind.name.lower(), size=len(one.payload))
            for one in log.slice(first, last)
        )
        return methods.LogReply(first=log.first, last=log.last, entries=entries)

    async def transfer_leadership(self, request: methods.PeerRequest, context: CallContext) -> methods.PeerReply:
        peer = find(self._desk.raft.core.config, request) if request.id or request.address else None
        await self._desk.raft.transfer_leadership(peer.id if peer else None)
        leader_id = self._desk.raft.role.leader
        leader = self._desk.raft.core.config.server(leader_id) if leader_id else None
        return methods.PeerReply(id=leader.id if leader else "", address=leader.address if leader else "")

    async def status(self, request: Empty, context: CallContext) -> methods.RaftStatusReply:
        raft, store = self._desk.raft, self._desk.machine.store
        status, tick_s = raft.core.status(), raft.settings.tick_s
        return methods.RaftStatusReply(
            server_id=status.server_id,
            cluster_id=raft.transport.cluster_id,
            role=status.role,
            term=status.term,
            leader=status.leader or "",
            commit=status.commit,
            applied=raft.applier.applied,
            last=status.last,
            last_term=status.last_term,
            durable=status.durable,
            first_index=status.first_index,
            log_bytes=status.log_bytes,
            snapshot_index=status.snapshot_index,
            config_index=status.config_index,
            state_index=store.index,
            state_digest=store.digest().hex(),
            last_contact_s=status.leader_contact_ticks * tick_s,
            is_established=raft.is_established,
            transferring_to=status.transferring_to or "",
            peers=tuple(
                methods.RaftPeerStatus(
                    id=peer.id,
                    match=peer.match,
                    next=peer.next,
                    mode=peer.mode,
                    inflight=peer.inflight,
                    inflight_bytes=peer.inflight_bytes,
                    last_contact_s=peer.last_contact_ticks * tick_s,
                    is_active=peer.is_active,
                )
                for peer in status.peers
            ),
            counters=dict(status.counters),
        )

    async def snapshot_chunks(
        self, request: methods.SnapshotChunksRequest, context: CallContext
    ) -> AsyncIterator[bytes]:
        """The bytes of a snapshot or image of ours, from an offset on; the receiver verifies them as a whole."""
        reader = await trio.to_thread.run_sync(self._open, request.snapshot_id)
        try:
            offset = request.offset
            while data := await trio.to_thread.run_sync(reader.read, offset, CHUNK_BYTES):
                offset += len(data)
                yield data
        finally:
            reader.close()

    async def fetch_image(self, request: methods.FetchImageRequest, context: CallContext) -> Empty:
        server = ServerInfo(request.server_id, request.server_name, request.address)
        await self._desk.raft.restoring.fetch_from(server, meta_from_bytes(request.image))
        return Empty()

    def _open(self, snapshot_id: str) -> SnapshotReader:
        try:
            return self._desk.raft.snapshots.open(snapshot_id)
        except NotFound:
            return self._desk.raft.restoring.images.open(snapshot_id)

    async def health(self, request: Empty, context: CallContext) -> RegionHealth:
        return self._autopilot.health()
