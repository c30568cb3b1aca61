"""Runs one gossip member: a UDP socket for packets, a TCP listener on the same port for exchanges, a file for what must
not be forgotten. What is said and believed is decided in `core`.

Everything that arrives goes through one bounded queue to one child, which tells the core and performs what it asks for
in order: an incarnation is on disk before the packet that uses it leaves. When the queue is full packets are dropped,
as a network would; whoever opened a stream waits.

A stream is a length and a body each way, then it is closed. Whatever cannot be read is counted and answered by silence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from fedsched.env.env import Env
from fedsched.gossip.asked import (
    AnswerStream,
    ChangeTags,
    Effect,
    EventNews,
    ForceLeave,
    Gone,
    Input,
    Join,
    JoinEnded,
    KeepIncarnation,
    Leave,
    LookAt,
    MemberNews,
    OpenStream,
    Packet,
    Publish,
    RoundTripSeen,
    SendFailed,
    SendPacket,
    StreamAnswered,
    StreamAsked,
    StreamFailed,
    Warn,
)
from fedsched.gossip.core import GossipCore
from fedsched.gossip.durable_file import write_durably
from fedsched.gossip.keyring import NONCE_BYTES, SEAL_OVERHEAD, Keyring, Unreadable, label_header, strip_label
from fedsched.gossip.members import Member, encode_tags
from fedsched.gossip.messages import VERSIONS_NOW, Address, Alive, Message, UserEvent
from fedsched.gossip.profiles import FED, Profile
from fedsched.gossip.seeking import GiveUp, Pause, Places, Seeking
from fedsched.gossip.snapshot import BadSnapshot, Snapshot, decode_snapshot, encode_snapshot, first_incarnation
from fedsched.gossip.sockets import bind, exactly, family_of, resolve
from fedsched.gossip.wire import STREAM_LIMITS, BadPacket, decode_packet, decode_stream, encode
from fedsched.model.errors import FedschedError
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry, counter, gauge

QUEUE_MAX: Final = 1_024
STREAMS_MAX: Final = 64
"""Streams that others may hold open here; more are closed at once."""
DATAGRAM_MAX: Final = 65_536
HEAD_BYTES: Final = 4
KEEP_S: Final = 10.0
"""How often what is known of others is written down, if it changed."""
MAYBE_AFTER_S: Final = 2.0
"""Places that nobody called gossip come last: servers that greet one another there tell each other the right ones."""
PAUSE_S: Final = 0.02
"""After a failed receive: a network that is down must not keep the processor busy."""
FILE: Final = "gossip.snapshot"

RECEIVED: Final = counter("gossip.packets_received", "packets taken")
SENT: Final = counter("gossip.packets_sent", "packets sent")
REFUSED: Final = counter("gossip.packets_refused", "packets that could not be read, or came when too many were waiting")
MEMBERS: Final = gauge("gossip.members_up", "members that are believed to be up, this one included")


@dataclass(frozen=True, slots=True)
class GossipSettings:
    """Of one member."""

    name: str
    tags: Mapping[str, str]
    directory: Path
    """Where its file is kept; it has to be there."""
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    advertise: str = ""
    """The address that others are told; empty: the one it listens on."""
    join: tuple[str, ...] = ()
    """host or host:port of members to enter by, beside those remembered."""
    maybe: tuple[str, ...] = ()
    """The same, but nobody is sure that gossip is spoken there: they are tried, and not missed if nobody answers."""
    retry_max: int = 0
    """Attempts to enter before giving up; 0: never."""
    profile: Profile = FED
    label: bytes = b""
    keys: tuple[bytes, ...] = ()
    """Empty: packets travel in the clear."""


class GossipRunner:
    """A member of the pool. `on_member` and `on_event` are called on the event loop and must not wait."""

    def __init__(
        self,
        settings: GossipSettings,
        *,
        env: Env,
        log: Logger,
        metrics: Registry,
        on_member: Callable[[MemberNews], None] = lambda _: None,
        on_event: Callable[[UserEvent], None] = lambda _: None,
        on_round_trip: Callable[[Member, float], None] = lambda _member, _s: None,
    ) -> None:
        self.settings = settings
        self._env = env
        self._log = log
        self._on_member = on_member
        self._on_event = on_event
        self._on_round_trip = on_round_trip
        self.keyring = Keyring(settings.keys, settings.label) if settings.keys else None
        """What packets are sealed with; it may change while this member runs."""
        self._send_input, self._inputs = trio.open_memory_channel[Input](QUEUE_MAX)
        self._streams: dict[int, trio.SocketStream] = {}
        self._answers: dict[int, tuple[trio.Event, list[Message]]] = {}
        self._next_stream = 0
        self._joins: dict[int, tuple[trio.Event, list[JoinEnded]]] = {}
        self._next_join = 0
        self._is_refused = False
        """Our name is another server's, as the last that we asked said."""
        self._kept_at = -KEEP_S
        self._has_news = False
        self._is_gone = trio.Event()
        self._received, self._sent = metrics.counter(RECEIVED), metrics.counter(SENT)
        self._refused, self._up = metrics.counter(REFUSED), metrics.gauge(MEMBERS)
        self._nursery: trio.Nursery
        self._udp: trio.socket.SocketType
        self.core: GossipCore
        self.address: Address

    # ---- life -----------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be a member until cancelled or gone; `started` when the port is bound."""
        self._udp, listener = await bind(self.settings.host, self.settings.port)
        try:
            host, port = self._udp.getsockname()[:2]
            self.address = (self.settings.advertise or host, port)
            kept = await trio.to_thread.run_sync(self._read_kept)
            self._make_core(kept)
            await self._live(kept, listener, task_status)
        finally:
            self._udp.close()
            listener.socket.close()

    async def _live(
        self, kept: Snapshot | None, listener: trio.SocketListener, task_status: trio.TaskStatus[None]
    ) -> None:
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._receive)
                nursery.start_soon(trio.serve_listeners, self._serve, [listener])
                nursery.start_soon(self._pump)
                nursery.start_soon(self._seek, kept)
                task_status.started()
                await self._is_gone.wait()
                nursery.cancel_scope.cancel("gone")
        finally:
            with trio.CancelScope(shield=True):
                await self._keep(force=True)

    def _make_core(self, kept: Snapshot | None) -> None:
        settings = self.settings
        inc = first_incarnation(kept.inc if kept else None, self._env.wall())
        me = Alive(inc, settings.name, self.address, encode_tags(settings.tags), VERSIONS_NOW)
        overhead = len(label_header(settings.label)) + (SEAL_OVERHEAD if self.keyring else 0)
        self.core = GossipCore(
            settings.profile,
            me,
            self._env.rng("gossip"),
            trio.current_time(),
            remembered=kept,
            overhead=overhead,
        )

    async def _seek(self, kept: Snapshot | None) -> None:
        """Look for the pool by those we are told of and those we remember; after a farewell only by the former."""
        settings = self.settings
        remembered = kept.addresses() if kept and not kept.has_left else ()
        if not (settings.join or settings.maybe or remembered):
            return
        seeking = Seeking(
            self.address,
            self._env.rng("gossip-seeking"),
            retry_max=settings.retry_max if settings.join else 0,
            was_in=any(address != self.address for address in remembered),
            reclaim_s=settings.profile.reclaim_s,
        )
        if not settings.join and not remembered:
            await trio.sleep(MAYBE_AFTER_S)
        while True:
            if self.core.members.up > 1 and not self._is_refused:
                seeking.met()
            whom = seeking.whom(await self._places(), self.members)
            if remembered and self.core.members.up <= 1:
                whom = tuple(dict.fromkeys((*(whom or ()), *remembered)))
            if whom is None:
                verdict: Pause | GiveUp = seeking.rested()
            else:
                ended = await self._join(whom)
                is_alone = self.core.members.up <= 1
                verdict = seeking.asked(ended.reached, ended.taken, trio.current_time(), is_alone=is_alone)
            if isinstance(verdict, GiveUp):
                raise verdict.why
            await trio.sleep(verdict.seconds)

    async def _places(self) -> Places:
        """Where the configured names lead now."""
        family = family_of(self.settings.host)
        names = dict.fromkeys((*self.settings.join, *self.settings.maybe))
        return {name: await resolve(name, family, self._log) for name in names}

    async def _join(self, addresses: tuple[Address, ...]) -> JoinEnded:
        """Enter by way of these; what came of it."""
        self._next_join = op = self._next_join + 1
        done, ended = self._joins[op] = (trio.Event(), [])
        try:
            await self._send_input.send(Join(addresses, retry=False, op=op))
            await done.wait()
        finally:
            del self._joins[op]
        return ended[0]

    # ---- what is asked --------------------------------------------------------------------------------------

    @property
    def members(self) -> Iterable[Member]:
        """Everybody who is known, this member included."""
        return tuple(self.core.members)

    async def join(self, text: str) -> JoinEnded:
        """Enter by way of this place, which may be a name with several addresses; what came of it."""
        found = await resolve(text, family_of(self.settings.host), self._log)
        return await self._join(found) if found else JoinEnded(0)

    async def leave(self) -> None:
        """Say farewell; returns when it has had time to get around."""
        await self._send_input.send(Leave())
        await self._is_gone.wait()

    async def change_tags(self, tags: Mapping[str, str]) -> None:
        await self._send_input.send(ChangeTags(encode_tags(tags)))

    async def publish(self, name: str, payload: bytes, *, coalesce: bool = False) -> None:
        """Announce something to everybody."""
        await self._send_input.send(Publish(name, payload, coalesce))

    async def force_leave(self, name: str, *, prune: bool = False) -> None:
        await self._send_input.send(ForceLeave(name, prune))

    def look_at(self, name: str) -> None:
        """A link to this member failed: probe it now. Never waits; a busy member has other evidence soon."""
        with suppress(trio.WouldBlock):
            self._send_input.send_nowait(LookAt(name))

    # ---- the core -------------------------------------------------------------------------------------------

    async def _pump(self) -> None:
        while True:
            given: Input | None = None
            with trio.move_on_at(self.core.wake_at()):
                given = await self._inputs.receive()
            effects: list[Effect] = []
            if given is not None:
                try:
                    effects += self.core.handle(given, trio.current_time())
                except FedschedError as error:  # something we were asked to say cannot be said
                    self._log.warn("gossip_refused", why=str(error))
            effects += self.core.wake(trio.current_time())
            for effect in effects:
                await self._perform(effect)
            await self._keep()

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case SendPacket(to, messages):
                await self._send(to, messages)
            case OpenStream():
                self._nursery.start_soon(self._ask, effect)
            case AnswerStream(stream, messages):
                waiting = self._answers.pop(stream, None)
                if waiting is not None:
                    waiting[1].extend(messages)
                    waiting[0].set()
            case KeepIncarnation():
                await self._keep(force=True)
            case MemberNews(kind, member):
                self._has_news = True
                self._up.set(self.core.members.up)
                self._log.info("gossip_member", what=kind.value, member=member.name)
                self._on_member(effect)
            case EventNews(event):
                self._on_event(event)
            case Warn(code, about):
                self._log.warn("gossip_warning", code=code, about=about)
            case JoinEnded(reached, op, taken):
                self._log.info("gossip_joined", reached=reached, refused=taken is not None)
                self._is_refused = taken is not None and not reached
                if op in self._joins:
                    self._joins[op][1].append(effect)
                    self._joins[op][0].set()
            case RoundTripSeen(name, round_trip_s):
                target = self.core.members.get(name)
                if target is not None:
                    self._on_round_trip(target, round_trip_s)
            case Gone():
                self._is_gone.set()

    async def _send(self, to: Address, messages: Iterable[Message]) -> None:
        try:
            await self._udp.sendto(self._sealed(encode(messages)), to)
            self._sent.add()
        except OSError:
            with suppress(trio.WouldBlock):
                self._send_input.send_nowait(SendFailed(to))

    def _sealed(self, data: bytes) -> bytes:
        if self.keyring is None:
            return label_header(self.settings.label) + data
        return self.keyring.seal(data, os.urandom(NONCE_BYTES))

    def _opened(self, data: bytes) -> bytes:
        if self.keyring is None:
            return strip_label(data, self.settings.label)
        return self.keyring.open(data)

    # ---- packets and streams --------------------------------------------------------------------------------

    async def _receive(self) -> None:
        while True:
            try:
                data, source = await self._udp.recvfrom(DATAGRAM_MAX)
            except OSError as error:  # what an earlier packet met, or a network that is down: probes will notice
                self._log.debug("gossip_receive_failed", why=str(error))
                await trio.sleep(PAUSE_S)
                continue
            try:
                messages = tuple(decode_packet(self._opened(data)))
                self._send_input.send_nowait(Packet((source[0], source[1]), messages))
                self._received.add()
            except (BadPacket, Unreadable, trio.WouldBlock):
                self._refused.add()

    async def _serve(self, stream: trio.SocketStream) -> None:
        """Answer somebody who opened a stream."""
        if len(self._streams) >= STREAMS_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._next_stream = number = self._next_stream + 1
        self._streams[number] = stream
        try:
            with trio.move_on_after(self.settings.profile.stream_timeout_s):
                messages = await self._read(stream)
                answered, answer = self._answers[number] = (trio.Event(), [])
                source = stream.socket.getpeername()
                await self._send_input.send(StreamAsked(number, (source[0], source[1]), tuple(messages)))
                await answered.wait()
                await self._write(stream, answer)
        except (BadPacket, Unreadable):
            self._refused.add()
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # whoever asked is gone, and asks again if it has to
        finally:
            del self._streams[number]
            self._answers.pop(number, None)
            await trio.aclose_forcefully(stream)

    async def _ask(self, wanted: OpenStream) -> None:
        """Open a stream, say something, tell the core what came of it."""
        given: Input = StreamFailed(wanted.op)
        try:
            with trio.move_on_at(wanted.deadline):
                async with await trio.open_tcp_stream(*wanted.to) as stream:
                    await self._write(stream, wanted.messages)
                    given = StreamAnswered(wanted.op, tuple(await self._read(stream)))
        except (OSError, trio.BrokenResourceError, BadPacket, Unreadable):
            given = StreamFailed(wanted.op)
        await self._send_input.send(given)

    async def _read(self, stream: trio.SocketStream) -> list[Message]:
        length = int.from_bytes(await exactly(stream, HEAD_BYTES), "big")
        if length > STREAM_LIMITS.bytes_max:
            raise BadPacket(f"a stream of {length} bytes; {STREAM_LIMITS.bytes_max} is the most")
        return decode_stream(self._opened(await exactly(stream, length)))

    async def _write(self, stream: trio.SocketStream, messages: Iterable[Message]) -> None:
        body = self._sealed(encode(messages))
        await stream.send_all(len(body).to_bytes(HEAD_BYTES, "big") + body)

    # ---- the file -------------------------------------------------------------------------------------------

    def _read_kept(self) -> Snapshot | None:
        try:
            return decode_snapshot((self.settings.directory / FILE).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, BadSnapshot) as error:
            self._log.warn("gossip_snapshot_unusable", why=str(error), hint="this member starts as a new one")
            return None

    async def _keep(self, *, force: bool = False) -> None:
        now = trio.current_time()
        if not force and not (self._has_news and now - self._kept_at >= KEEP_S):
            return
        self._has_news, self._kept_at = False, now
        data = encode_snapshot(self.core.snapshot())
        try:
            await trio.to_thread.run_sync(write_durably, self.settings.directory / FILE, data)
        except OSError as error:
            # Without the file a member that returns begins with the clock, and others tell it the number to beat. What
            # a failing disk means for a server is not decided here.
            self._log.warn("gossip_snapshot_not_written", why=str(error))
