"""Raft messages between servers: one outgoing connection per peer, owned by one child.

Each server dials every other and only ever *sends* on what it dialled; what it hears arrives on connections the others
dialled. So a message is written by exactly one child, a broken link concerns one direction, and no two servers ever
race to open "the" connection. Everything pending for a peer leaves in one send.

Nothing waits for a slow peer: its outbox is bounded, and what does not fit is dropped. Raft repeats whatever matters.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

import trio

from fedsched import __version__
from fedsched.codec import cbor
from fedsched.env.env import Env
from fedsched.model.errors import FedschedError
from fedsched.raft.membership import ServerInfo
from fedsched.raft.messages import Message
from fedsched.raft.wire import BadMessage, decode_message, encode_message
from fedsched.telemetry.log import Logger
from fedsched.wire.groups import open_plain_nursery

PROTOCOL: Final = 1
OUTBOX_BYTES_MAX: Final = 32 * 1024 * 1024
"""Eight full windows: a peer that is this far behind is better served by a fresh probe."""
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
HELLO_BYTES_MAX: Final = 4 * 1024
HANDSHAKE_S: Final = 5.0
SEND_STALL_S: Final = 5.0
"""A send that makes no progress for this long is a dead link (half-open TCP): drop it and dial again."""
REDIAL_S: Final = (0.05, 1.0)
"""First and largest pause between two dials: a restarted peer is heard within a heartbeat, a dead one costs little."""

CALLERS_MAX: Final = 32
"""Servers that dialled us and may be dialled back without being in the config; far more than a region has."""

BUILD_LENGTH_MAX: Final = 32
NO_FD: Final = -1

_LENGTH = struct.Struct(">I")

Dial = Callable[[ServerInfo], Awaitable[trio.abc.Stream]]


class LinkRefused(FedschedError):
    """The other side would not speak Raft with us; the message says why."""

    code = "link_refused"


class OutgoingLink:
    """Keeps one peer told: dials, says hello, sends what gathers in the outbox, and starts over when it breaks."""

    def __init__(self, peer: ServerInfo, transport: Transport) -> None:
        self.peer = peer
        self._transport = transport
        self._outbox: list[bytes] = []
        self._outbox_bytes = 0
        self._filled = trio.Event()
        self._is_up = False
        self._idle_fd = NO_FD
        self.scope = trio.CancelScope()
        self.dropped = 0

    @property
    def is_up(self) -> bool:
        return self._is_up

    def put(self, packet: bytes) -> None:
        """Queue one message; dropped when the link is down or the outbox is full."""
        if not self._is_up or self._outbox_bytes + len(packet) > OUTBOX_BYTES_MAX:
            self.dropped += 1
            return
        self._outbox.append(_LENGTH.pack(len(packet)))
        self._outbox.append(packet)
        self._outbox_bytes += len(packet)

    def push(self) -> None:
        """Let the outbox leave: at once if the connection is idle and takes it, else by the link's own child.

        A child that is woken first costs a turn of the event loop on each side of every commit.
        """
        if not self._outbox:
            return
        if self._idle_fd != NO_FD:
            data = b"".join(self._outbox)
            try:
                sent = os.write(self._idle_fd, data)
            except OSError:  # full, or broken: the child will see which
                sent = 0
            self._outbox = [data[sent:]] if sent < len(data) else []
            self._outbox_bytes = len(data) - sent
        if self._outbox:
            self._filled.set()

    async def run(self) -> None:
        pause_s = REDIAL_S[0]
        with self.scope:
            while True:
                try:
                    async with await self._dial() as stream:
                        pause_s = REDIAL_S[0]
                        await self._feed(stream)
                except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as weather:
                    self._went_down(repr(weather), level="debug")
                except LinkRefused as refused:
                    self._went_down(str(refused), level="warn")
                    pause_s = REDIAL_S[1]
                except FedschedError as weather:
                    self._went_down(str(weather), level="debug")
                await trio.sleep(pause_s * (0.5 + self._transport.chance.random()))
                pause_s = min(pause_s * 2, REDIAL_S[1])

    async def _dial(self) -> trio.abc.Stream:
        with trio.fail_after(HANDSHAKE_S):
            stream = await self._transport.dial(self.peer)
            try:
                await say_hello(stream, self._transport.cluster_id, self._transport.me, self.peer.id)
            except BaseException:
                await trio.aclose_forcefully(stream)
                raise
        return stream

    async def _feed(self, stream: trio.abc.Stream) -> None:
        self._outbox.clear()
        self._outbox_bytes = 0
        self._is_up = True
        self._transport.log.info("raft_link_up", peer=self.peer.name, address=self.peer.address)
        async with open_plain_nursery() as nursery:
            nursery.start_soon(_hear_its_end, stream, nursery.cancel_scope)
            await self._send_what_gathers(stream)
        raise trio.BrokenResourceError("the other end closed the link")

    async def _send_what_gathers(self, stream: trio.abc.Stream) -> None:
        fd = stream.socket.fileno() if isinstance(stream, trio.SocketStream) else NO_FD
        try:
            while True:
                self._idle_fd = fd
                await self._filled.wait()
                self._idle_fd = NO_FD
                self._filled = trio.Event()
                data = b"".join(self._outbox)
                self._outbox.clear()
                self._outbox_bytes = 0
                with trio.fail_after(SEND_STALL_S):
                    await stream.send_all(data)
        finally:
            self._idle_fd = NO_FD

    def _went_down(self, why: str, *, level: str) -> None:
        was_up, self._is_up = self._is_up, False
        if was_up:
            self._transport.log.info("raft_link_down", peer=self.peer.name, why=why)
            self._transport.on_unreachable(self.peer.id)
        elif level == "warn":
            self._transport.log.warn("raft_link_refused", peer=self.peer.name, why=why)


async def _hear_its_end(stream: trio.abc.Stream, link: trio.CancelScope) -> None:
    """The peer never speaks on a link that we dialled: what can be read there is its end.

    Without listening for it a peer that restarted while we had nothing to say would be noticed only by losing what is
    said next, and between followers that is a vote request: an election time-out for nothing.
    """
    with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.receive_some(1)
    link.cancel("the other end closed the link")


class Transport:
    """All outgoing links of one server, and the reading side of those the others dialled."""

    def __init__(
        self,
        me: ServerInfo,
        *,
        dial: Dial,
        env: Env,
        log: Logger,
        on_unreachable: Callable[[str], None],
        on_messages: Callable[[list[Message]], None],
        adopt_cluster: Callable[[str], Awaitable[bool]],
        cluster_id: str = "",
    ) -> None:
        self.me = me
        self.cluster_id = cluster_id
        self.dial = dial
        self.log = log
        self.chance = env.rng("raft-redial")
        self.on_unreachable = on_unreachable
        self._on_messages = on_messages
        self._adopt_cluster = adopt_cluster
        self._members: dict[str, ServerInfo] = {}
        self._callers: dict[str, ServerInfo] = {}
        """Servers that dialled us, whether or not our config knows them: whoever asks for a vote gets an answer."""
        self._hearing: dict[str, trio.CancelScope] = {}
        self.builds: dict[str, str] = {me.id: __version__}
        """Version of each server that has dialled us, and our own."""
        self._links: dict[str, OutgoingLink] = {}
        self._nursery: trio.Nursery | None = None
        self.foreign_messages = 0

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the outgoing links until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for link in self._links.values():
                    nursery.start_soon(link.run)
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None  # whoever is still being greeted gets no link back any more

    def set_peers(self, servers: Iterable[ServerInfo]) -> None:
        """Keep a link to each of these (but ourselves), and to whoever else talks to us."""
        self._members = {server.id: server for server in servers}
        self._adjust()

    def _adjust(self) -> None:
        wanted = {**self._callers, **self._members}
        wanted.pop(self.me.id, None)
        for server_id, link in list(self._links.items()):
            if wanted.get(server_id) != link.peer:
                link.scope.cancel()
                del self._links[server_id]
        for server_id, server in wanted.items():
            if server_id not in self._links:
                link = self._links[server_id] = OutgoingLink(server, self)
                if self._nursery is not None:
                    self._nursery.start_soon(link.run)

    def send(self, messages: Iterable[Message]) -> None:
        told: dict[str, OutgoingLink] = {}
        for message in messages:
            link = self._links.get(message.to)
            if link is not None and link.is_up:
                link.put(encode_message(message, self.cluster_id))
                told[message.to] = link
        for link in told.values():
            link.push()

    def known(self, server_id: str) -> ServerInfo | None:
        """Where a server is: as the config says, or as it said itself when it dialled us."""
        return self._members.get(server_id) or self._callers.get(server_id)

    def links_up(self) -> dict[str, bool]:
        return {server_id: link.is_up for server_id, link in self._links.items()}

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Hear one peer out on a connection it dialled. Returns or raises when that connection is over."""
        reader = PacketReader(stream)
        with trio.fail_after(HANDSHAKE_S):
            caller = await self._greet(stream, reader)
        if len(self._callers) < CALLERS_MAX:
            self._callers[caller.id] = caller
            self._adjust()
        scope = trio.CancelScope()
        earlier, self._hearing[caller.id] = self._hearing.get(caller.id), scope
        if earlier is not None:
            earlier.cancel()  # a server keeps one link to us: this one is dead, though nobody told us
        try:
            with scope:
                await self._hear_out(reader, caller.id)
        finally:
            if self._hearing.get(caller.id) is scope:
                del self._hearing[caller.id]
            if self._callers.get(caller.id) is caller:
                del self._callers[caller.id]
                self._adjust()

    async def _hear_out(self, reader: PacketReader, sender: str) -> None:
        while True:
            packets = await reader.receive(MESSAGE_BYTES_MAX)
            if not packets:
                return
            messages: list[Message] = []
            for packet in packets:
                cluster_id, message = decode_message(packet)
                if cluster_id != self.cluster_id or message.to != self.me.id or message.sender != sender:
                    self.foreign_messages += 1
                else:
                    messages.append(message)
            self._on_messages(messages)

    async def _greet(self, stream: trio.abc.Stream, reader: PacketReader) -> ServerInfo:
        """Check who calls; answer yes, or no with the reason."""
        caller = ServerInfo("", "", "")
        packets = await reader.receive(HELLO_BYTES_MAX, one=True)
        if not packets:
            raise BadMessage("the connection closed before its hello")
        match cbor.loads(packets[0]):
            case [int(protocol), str(cluster_id), str(to), str(server_id), str(name), str(address), str(build)]:
                caller = ServerInfo(server_id, name, address)
                if len(self.builds) < CALLERS_MAX or server_id in self.builds:
                    self.builds[server_id] = build[:BUILD_LENGTH_MAX]
                why = await self._why_not(protocol, cluster_id, to)
            case other:
                why = f"that is no hello: {str(other)[:60]}"
        await _send_packet(stream, cbor.dumps(why))
        if why:
            raise LinkRefused(why)
        return caller

    async def _why_not(self, protocol: int, cluster_id: str, to: str) -> str:
        if protocol != PROTOCOL:
            return f"raft protocol {protocol} is not spoken here, only {PROTOCOL}"
        if to != self.me.id:
            return f"server {to} is not here; this is {self.me.id} (its data directory may have been wiped)"
        if cluster_id != self.cluster_id and not (cluster_id and await self._adopt_cluster(cluster_id)):
            return f"cluster {cluster_id!r} is not ours ({self.cluster_id or 'none yet'!r})"
        return ""


class PacketReader:
    """Length-prefixed packets from a stream, several per read where several have arrived."""

    def __init__(self, stream: trio.abc.Stream, chunk_bytes: int = 256 * 1024) -> None:
        self._stream = stream
        self._chunk_bytes = chunk_bytes
        self._buffer = bytearray()

    async def receive(self, packet_bytes_max: int, *, one: bool = False) -> list[bytes]:
        """All whole packets at hand, at least one; an empty list at the end of the stream."""
        while True:
            packets = self._cut(packet_bytes_max, one)
            if packets:
                return packets
            chunk = await self._stream.receive_some(self._chunk_bytes)
            if not chunk:
                if self._buffer:
                    raise BadMessage(f"the stream ended inside a packet, after {len(self._buffer)} bytes of it")
                return []
            self._buffer += chunk

    def _cut(self, packet_bytes_max: int, one: bool) -> list[bytes]:
        packets: list[bytes] = []
        at, buffer = 0, self._buffer
        while len(buffer) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if length > packet_bytes_max:
                raise BadMessage(f"a packet of {length} bytes is over the limit of {packet_bytes_max}")
            end = at + _LENGTH.size + length
            if len(buffer) < end:
                break
            packets.append(bytes(memoryview(buffer)[at + _LENGTH.size : end]))
            at = end
            if one:
                break
        if at:
            del buffer[:at]
        return packets


async def say_hello(stream: trio.abc.Stream, cluster_id: str, me: ServerInfo, to: str) -> None:
    """Introduce ourselves to the server `to`; raises `LinkRefused` with its reason if it will not listen."""
    await _send_packet(stream, cbor.dumps([PROTOCOL, cluster_id, to, me.id, me.name, me.address, __version__]))
    packets = await PacketReader(stream).receive(HELLO_BYTES_MAX, one=True)
    if not packets:
        raise trio.BrokenResourceError("closed during the hello")
    why = cbor.loads(packets[0])
    if why:
        raise LinkRefused(str(why)[:200])


async def _send_packet(stream: trio.abc.Stream, packet: bytes) -> None:
    await stream.send_all(_LENGTH.pack(len(packet)) + packet)
