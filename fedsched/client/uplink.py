"""The one link that a client keeps to one server of its region, and everything that goes over it.

    dial -> register -> "ready" and a stream -> frames down: what should run   (desired)
                     -> signs of life, each when due                           (heartbeat_core)
                     -> reports up: what became of it                          (reports_core)
                     -> calls of servers, served by whoever is given as handler

The link stays with its server until it is lost, or until that server has failed twice in a row to pass on what the
client says; then the others are tried in random order (server_list). Nothing here is lost with a link: what was not
confirmed is said again, and a new stream begins with everything that should run.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from fedsched.client.dialling import Dial
from fedsched.client.heartbeat_core import Do, HeartbeatCore, Refusal
from fedsched.client.journal_records import AllocReport
from fedsched.client.report_columns import encode_report
from fedsched.client.reports_core import ReportsCore
from fedsched.client.server_list import ServerList
from fedsched.codec import CodecError
from fedsched.env.env import Env
from fedsched.model.errors import FedschedError, NotFound, Unavailable
from fedsched.model.node import Node, NodeStatus
from fedsched.rpc.body import Body
from fedsched.rpc.caller import Caller, LinkCaller, RawStream
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.node import (
    NODE_REGISTER,
    NODE_UPDATE_STATUS,
    NODE_WATCH,
    NodeRegisterRequest,
    NodeStatusRequest,
    NodeUpdateReply,
    NodeWatchRequest,
)
from fedsched.rpc.methods.node_frames import WatchFrame
from fedsched.rpc.node_watch import FrameReader
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry, counter, gauge, histogram
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.link import Handler

ACKS_S: Final = 0.5
"""Between two writes of what was acknowledged: a task that is over soon after it began needs one of them, not two."""
BEAT_TIME: Final = histogram("client.heartbeat", "time until a sign of life was answered")
CLOCK_GAP: Final = gauge("client.clock_difference", "the leader's clock less this host's", unit="seconds")
LINKS: Final = counter("client.links", "links opened to servers")
UNSAID: Final = gauge("client.reports_unconfirmed", "allocations whose newest state servers have not confirmed")
CALL_S: Final = 15.0
"""For one call to servers; they try for 10 s themselves."""
WATCH_AGAIN_S: Final = 1.0
"""Between two streams over the same link."""
ROOM_S: Final = 0.05
"""Until the stream is tried again when it had no room for a report."""
NS: Final = 1_000_000_000

TakeFrame = Callable[[WatchFrame], None]
ReportOf = Callable[[str], AllocReport | None]
SaveAcked = Callable[[dict[str, AllocReport]], Awaitable[None]]

_BROKEN = (CarrierClosed, OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)


class StreamOver(FedschedError):
    """The server has ended this node's stream."""

    code = "stream_over"


@dataclass(frozen=True, slots=True)
class UplinkEnds:
    """What the uplink is connected to on this side."""

    node: Callable[[], Node]
    """With id and secret."""
    take_frame: TakeFrame
    """Heeds a frame; never waits."""
    report_of: ReportOf
    live: Callable[[], list[str]]
    """Allocations that servers must hear of when they have missed this node."""
    save_acked: SaveAcked


class Uplink:
    """Keeps a client in touch with its region. Is the `Servers` of everything else in the client."""

    def __init__(
        self,
        servers: ServerList,
        dial: Dial,
        ends: UplinkEnds,
        reports: ReportsCore,
        *,
        env: Env,
        log: Logger,
        metrics: Registry,
        is_dev: bool = False,
    ) -> None:
        self.servers = servers
        self._dial = dial
        self._ends = ends
        self._reports = reports
        self._env = env
        self._chance = env.rng("uplink")
        self._log = log
        self._metrics = metrics
        self._handler: Handler | None = None
        self._beats = HeartbeatCore(env.now(), is_dev=is_dev)
        self._caller: LinkCaller | None = None
        self._stream: RawStream | None = None
        self._linked = trio.Event()
        self._beat_wanted = trio.Event()
        self._may_watch = trio.Event()
        self._report_wanted = trio.Event()
        self._acked: dict[str, AllocReport] = {}
        self._acks_wanted = trio.Event()
        self.is_registered = trio.Event()
        """Set once servers have taken the node for ready for the first time."""

    # ---- for the rest of the client -------------------------------------------------------------------------

    async def caller(self) -> Caller:
        """Somebody to ask; waits while no server is reached."""
        while self._caller is None:
            await self._linked.wait()
        return self._caller

    @property
    def is_connected(self) -> bool:
        return self._caller is not None

    @property
    def last_contact(self) -> float:
        return self._beats.last_ok

    @property
    def unsaid(self) -> int:
        """Allocations whose newest state servers have not confirmed."""
        return self._reports.unsaid

    def serve(self, handler: Handler) -> None:
        """What serves the calls of servers, from the next link on."""
        self._handler = handler

    def changed(self, alloc_id: str) -> None:
        """Something about an allocation is different: it is reported when the time has come."""
        self._reports.changed(alloc_id, self._env.now())
        self._report_wanted.set()

    def forget(self, alloc_id: str) -> None:
        """Nothing more will be said about it."""
        self._reports.forget(alloc_id)

    def node_changed(self) -> None:
        """The node's record is another one now."""
        self._beats.changed(self._env.now())
        self._beat_wanted.set()

    # ---- links ----------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Stay in touch until cancelled. Never gives up."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_acks)
            task_status.started()
            while True:
                await trio.sleep(self.servers.pause_s(self._chance.random()))
                address = self.servers.next([self._chance.random() for _ in self.servers.known])
                if not address:
                    await trio.sleep(1.0)
                    continue
                await self._link_to(address)

    async def _link_to(self, address: str) -> None:
        """One link, until it is over."""
        why = "closed"
        try:
            async with self._dial(address, self._handler) as link:
                self._metrics.counter(LINKS).add()
                await self._use(LinkCaller(link))
                why = str(link.closed.message) if link.closed else "another server is tried"
        except* (FedschedError, *_BROKEN) as group:
            why = str(_first(group))
        self.servers.failed()
        self._log.warn("server_lost", server=address, why=why)

    async def _use(self, caller: LinkCaller) -> None:
        self._caller = caller
        self._beats.linked(self._env.now())
        self._linked.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_registered, caller, nursery.cancel_scope)
                nursery.start_soon(self._keep_watching, caller)
                nursery.start_soon(self._keep_reporting)
                await caller.link.wait_closed()
                nursery.cancel_scope.cancel("the link is over")
        finally:
            self._caller = None
            self._linked = trio.Event()
            self._beats.unlinked()

    # ---- registration and signs of life ---------------------------------------------------------------------

    async def _keep_registered(self, caller: Caller, link_scope: trio.CancelScope) -> None:
        while True:
            self._beat_wanted = trio.Event()
            now = self._env.now()
            match self._beats.due(now):
                case Do.NOTHING:
                    with trio.move_on_after(max(0.0, self._beats.wake_at() - now)):
                        await self._beat_wanted.wait()
                case Do.REGISTER:
                    await self._attempt(self._register, caller)
                case Do.BEAT:
                    await self._attempt(self._beat, caller)
            if self._beats.wants_another_server:
                link_scope.cancel("this server does not pass on what it is told")

    async def _attempt(self, call: Callable[[Caller], Awaitable[None]], caller: Caller) -> None:
        try:
            with trio.fail_after(CALL_S):
                await call(caller)
        except (FedschedError, trio.TooSlowError) as error:
            why = _refusal(error)
            self._log.warn("servers_refused" if why is not Refusal.OTHER else "servers_silent", why=str(error))
            self._beats.failed(why, self._env.now(), self._chance.random())
        else:
            self.servers.settled()

    async def _register(self, caller: Caller) -> None:
        reply, _ = await caller.call(NODE_REGISTER, NodeRegisterRequest(node=self._ends.node()))
        self._heard(reply)
        self._beats.registered(reply.heartbeat_ttl_s, self._env.now())
        self._may_watch.set()

    async def _beat(self, caller: Caller) -> None:
        node = self._ends.node()
        began = self._env.now()
        request = NodeStatusRequest(node_id=node.id, secret_id=node.secret_id)
        reply, _ = await caller.call(NODE_UPDATE_STATUS, request)
        self._heard(reply)
        now = self._env.now()
        self._metrics.histogram(BEAT_TIME).observe(now - began)
        if reply.time_ns:
            self._metrics.gauge(CLOCK_GAP).set(reply.time_ns / NS - self._env.wall() + (now - began) / 2)
        is_ready = reply.status is NodeStatus.READY
        self._beats.beaten(reply.heartbeat_ttl_s, now, is_ready=is_ready)
        if is_ready:
            self.is_registered.set()
        else:
            self._reports.say_all(self._ends.live(), now)
            self._report_wanted.set()

    def _heard(self, reply: NodeUpdateReply) -> None:
        self.servers.learn(reply.servers)

    # ---- what should run ------------------------------------------------------------------------------------

    async def _keep_watching(self, caller: Caller) -> None:
        """One stream after the other, while servers know the node."""
        while True:
            await self._may_watch.wait()
            if self._beats.is_registered:
                try:
                    await self._watch(caller)
                except (StreamOver, NotFound) as error:
                    self._log.info("stream_over", why=str(error))
                    self._beats.failed(Refusal.UNKNOWN_NODE, self._env.now(), self._chance.random())
                    self._beat_wanted.set()
                except (CodecError, KeyError) as error:
                    self._log.error("frame_unreadable", why=repr(error))
                except FedschedError as error:
                    self._log.warn("stream_failed", why=str(error))
                    if _refusal(error) is Refusal.WRONG_SECRET:
                        self._beats.failed(Refusal.WRONG_SECRET, self._env.now(), self._chance.random())
                        self._beat_wanted.set()
                await trio.sleep(WATCH_AGAIN_S)
            else:
                self._may_watch = trio.Event()

    async def _watch(self, caller: Caller) -> None:
        node = self._ends.node()
        request = Body(NodeWatchRequest, record=NodeWatchRequest(node_id=node.id, secret_id=node.secret_id))
        frames = FrameReader()
        try:
            async with caller.open_raw(NODE_WATCH, request, CallMeta()) as stream:
                while True:
                    frame = frames.take(await stream.receive())
                    if frame is None:
                        continue
                    if self._stream is None:  # the first frame: the server has let us in
                        self._stream = stream
                        self._reports.opened(self._env.now())
                        self._report_wanted.set()
                    self._take(frame)
        except trio.EndOfChannel:
            raise StreamOver("the server has ended this node's stream") from None
        finally:
            self._stream = None
            self._reports.closed()

    def _take(self, frame: WatchFrame) -> None:
        now = self._env.now()
        if frame.pace_ms:
            self._reports.pace(frame.pace_ms / 1000)
        if frame.written:
            acked = self._reports.written(frame.written, now)
            if acked:
                self._acked |= acked
                self._acks_wanted.set()
                self._report_wanted.set()
        self._ends.take_frame(frame)

    # ---- what became of it ----------------------------------------------------------------------------------

    async def _keep_reporting(self) -> None:
        while True:
            self._report_wanted = trio.Event()
            now = self._env.now()
            wait_s = max(0.0, self._reports.wake_at() - now)
            if wait_s > 0 or not self._report(now):
                with trio.move_on_after(max(wait_s, ROOM_S) if wait_s < math.inf else math.inf):
                    await self._report_wanted.wait()
            else:
                await trio.lowlevel.checkpoint()

    def _report(self, now: float) -> bool:
        """Say what is due; false if there was no room for it, or nothing to say."""
        saying = self._reports.next(now, self._ends.report_of)
        self._metrics.gauge(UNSAID).set(self._reports.unsaid)
        if saying is None or self._stream is None:
            return False
        item, taken = encode_report(saying.number, saying.reports)
        if not self._stream.try_send(item):
            return False
        self._reports.sent(saying.number, taken, now)
        return True

    async def _keep_acks(self) -> None:
        """Write down what servers have acknowledged; what this misses is only said once more."""
        while True:
            await self._acks_wanted.wait()
            self._acks_wanted = trio.Event()
            acked, self._acked = self._acked, {}
            try:
                await self._ends.save_acked(acked)
            except FedschedError as error:
                self._log.warn("acks_not_saved", count=len(acked), why=str(error))
            await trio.sleep(ACKS_S)


def _refusal(error: Exception) -> Refusal:
    code = getattr(error, "code", "")
    if isinstance(error, NotFound):
        return Refusal.UNKNOWN_NODE
    if code == "not_allowed":
        return Refusal.WRONG_SECRET
    if code == "no_leader":
        return Refusal.NO_LEADER
    return Refusal.OTHER


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if str(error) else Unavailable(type(error).__name__)
