"""Runs a link core under trio over any carrier.

One child reads and watches the clock; one writes (everything pending leaves in one send), as long as there is much to
write: a server holds thousands of links that say nothing for minutes. Each call of the peer gets a child of its own;
how many of those there can be is the core's limit. A caller waits in its own child.

The caller sets the deadline with an ordinary cancel scope; what is left of it travels with the call, and the handler at
the other end runs under it. A handler that raises a `FedschedError` answers with it; any other exception is a bug, is
logged, and answers `internal`. Neither harms the link.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import trio

from fedsched.model.errors import FedschedError, NotFound, Unavailable
from fedsched.telemetry.log import get_logger
from fedsched.wire.call_state import CallState, Flow
from fedsched.wire.carrier import Carrier, CarrierClosed
from fedsched.wire.effects import Closed, Draining, Effect, Ended, Greeted, Readable, Serve, Writable
from fedsched.wire.errors import Failure, ProtocolViolation, failure_of
from fedsched.wire.frames import Hello
from fedsched.wire.groups import open_plain_nursery
from fedsched.wire.limits import ByteBudget, LinkLimits
from fedsched.wire.link_calls import OwnCall, ServedCall
from fedsched.wire.link_core import LinkCore
from fedsched.wire.waker import Latch, Waker

FLUSH_S: Final = 1.0
"""How long a closing link tries to get its last frames out: they say why it closed."""
WRITES_FEW: Final = 8
"""Writes since the last look at the clock below which the writer does not stay: its child costs 2 KB."""
STOP_FLUSH_S: Final = 0.25
"""The same when this end is being stopped: nobody reads any more, and a server with a bad disk has to be gone soon."""

Handler = Callable[[ServedCall], Awaitable[bytes]]
"""Serves one call: returns the reply, or raises."""

Authenticate = Callable[[Hello], Awaitable[Any]]
"""Says who the peer is (kept as `Link.identity`), or raises the `FedschedError` it is sent away with."""

_log = get_logger("wire")


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """For debugging."""

    peer: str
    calling: int
    serving: int
    served_bytes: int
    outbox_bytes: int
    is_closed: bool


class Link:
    """One end of a link. `run` must be running for anything else to make progress."""

    def __init__(
        self,
        carrier: Carrier,
        *,
        is_opener: bool,
        handler: Handler | None = None,
        authenticate: Authenticate | None = None,
        limits: LinkLimits | None = None,
        budget: ByteBudget | None = None,
        greeting: bytes = b"",
    ) -> None:
        self.carrier = carrier
        self.peer = carrier.peer
        self.identity: Any = None
        self._handler = handler or _no_handler
        self._authenticate = authenticate
        self._core = LinkCore(
            is_opener=is_opener, now=trio.current_time(), limits=limits, budget=budget, greeting=greeting
        )
        self._output = Waker()
        self._room: trio.lowlevel.ParkingLot | None = None
        self._greeted = Latch()
        self._closed = Latch()
        self._reading: trio.CancelScope | None = None
        self._written = Latch()
        self._has_writer = False
        self._writes = 0
        self._children: trio.Nursery | None = None

    # ---- for everybody --------------------------------------------------------------------------------------

    @property
    def closed(self) -> Closed | None:
        """Why the link is over; None while it is not."""
        return self._core.closed

    @property
    def may_call(self) -> bool:
        """Whether a new call would be sent."""
        return self._core.closed is None and not self._core.peer_drains and not self._core.is_draining

    @property
    def silent_s(self) -> float:
        """How long ago anything came from the peer; one that is well is heard within its keep-alive time."""
        return trio.current_time() - self._core.heard_at

    def ask_sign_of_life(self) -> None:
        """Have `silent_s` small soon, if the peer is well. Never waits."""
        self._core.ask_sign_of_life()
        self.flush()

    async def wait_ready(self) -> None:
        """Wait until the peer has greeted and been admitted, or the link is over."""
        await self._greeted.wait()

    async def wait_closed(self) -> None:
        await self._closed.wait()

    def drain(self, message: str = "going away") -> None:
        """Take no new calls; the link closes itself when those under way are done."""
        self._do(self._core.drain(message))

    def close(self, code: str = Unavailable.code, message: str = "closed") -> None:
        """End the link now, and tell the peer why."""
        self._do(self._core.close(code, message))

    def statistics(self) -> LinkStatistics:
        core = self._core
        return LinkStatistics(
            peer=self.peer,
            calling=core.calling,
            serving=core.serving,
            served_bytes=core.served_bytes,
            outbox_bytes=core.outbox_bytes,
            is_closed=core.closed is not None,
        )

    # ---- calling --------------------------------------------------------------------------------------------

    async def call(self, method: str, payload: bytes) -> bytes:
        """Ask the peer and wait for its answer, at most until the surrounding deadline.

        Raises `RemoteError` with what the peer (or the lost link) said, `Busy` with too many calls in flight,
        `LinkClosed` if the call was not sent at all.
        """
        call = await self._open(method, payload, Flow.NONE)
        try:
            return await call.wait_reply()
        finally:
            if call.state.is_live:
                call.cancel()

    @asynccontextmanager
    async def open_call(self, method: str, payload: bytes, flow: Flow) -> AsyncIterator[OwnCall]:
        """A call that streams; cancelled when the block is left before its reply was there."""
        call = await self._open(method, payload, flow)
        try:
            yield call
        finally:
            call.cancel()

    async def _open(self, method: str, payload: bytes, flow: Flow) -> OwnCall:
        await self.wait_room()
        await trio.lowlevel.checkpoint_if_cancelled()
        deadline = trio.current_effective_deadline()
        state = self._core.call(method, payload, flow=flow, deadline=deadline, now=trio.current_time())
        call = state.owner = OwnCall(self, state)
        self._ring_writer()
        return call

    async def wait_room(self) -> None:
        """Wait while the outbox is full: a peer that reads slowly slows only those who talk to it."""
        while not self._core.has_room and self._core.closed is None:
            if self._room is None:
                self._room = trio.lowlevel.ParkingLot()
            await self._room.park()

    # ---- for the calls of `link_calls` ----------------------------------------------------------------------

    @property
    def core(self) -> LinkCore:
        """For the calls of this link only."""
        return self._core

    def flush(self) -> None:
        """Let the writer know that there is something to write."""
        if self._core.has_output:
            self._ring_writer()

    def cancel_call(self, state: CallState) -> None:
        self._do(self._core.cancel(state))

    # ---- running --------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> Closed:
        """Run until the link is over, and say why it is. Never raises for anything the peer does."""
        flush_s = STOP_FLUSH_S
        try:
            async with trio.open_nursery() as children:
                self._children = children
                try:
                    self._ring_writer()
                    task_status.started()
                    await self._read()
                    with trio.move_on_after(FLUSH_S):
                        await self._written.wait()
                    children.cancel_scope.cancel("link closed")
                finally:
                    self._children = None  # a nursery that is being left takes in nobody new
            flush_s = FLUSH_S
        finally:
            self._do(self._core.close(Unavailable.code, "this end is stopping"))
            with trio.move_on_after(flush_s, shield=True):
                await self._flush_rest()
                await self.carrier.aclose()
        assert self._core.closed is not None
        return self._core.closed

    async def _read(self) -> None:
        """Read until the link is over, and let time pass meanwhile: keep-alive and silence.

        The deadlines of calls are watched by their own cancel scopes.
        """
        core = self._core
        while core.closed is None:
            with trio.CancelScope(deadline=core.wake_at()) as self._reading:
                await self._read_on()
            if core.closed is None:
                self._writes = 0
                self._do(core.wake(trio.current_time()))
                if self._has_writer:
                    self._output.ring()  # it may go now

    async def _read_on(self) -> None:
        core = self._core
        while core.closed is None:
            try:
                messages = await self.carrier.receive(core.inbound_max)
            except CarrierClosed as error:
                self._do(core.lost(str(error)))
                return
            except ProtocolViolation as violation:
                self._do(core.close(violation.code, violation.message))
                return
            now = trio.current_time()
            for message in messages:
                effects = core.receive(message, now)
                if effects and isinstance(effects[0], Greeted):
                    await self._admit(effects[0].hello)
                else:
                    self._perform(effects)
            self.flush()

    async def _admit(self, hello: Hello) -> None:
        assert self._reading is not None
        try:
            if self._authenticate is not None:
                self._reading.deadline = math.inf  # not to be cut off half way
                self.identity = await self._authenticate(hello)
                self._reading.deadline = self._core.wake_at()
        except FedschedError as refusal:
            self._do(self._core.close(refusal.code, str(refusal)))
            return
        self._core.admit()
        self._greeted.set()

    def _ring_writer(self) -> None:
        """Have what is pending written; somebody does it from now on if nobody did."""
        if self._has_writer:
            self._output.ring()
        elif self._children is not None:
            self._has_writer = True
            self._children.start_soon(self._write)

    async def _write(self) -> None:
        core = self._core
        try:
            while True:
                if core.has_output:
                    self._writes += 1
                    await self.carrier.send(core.take_output())
                    if self._room is not None:
                        self._room.unpark_all()
                elif core.closed is not None:
                    break
                elif self._writes < WRITES_FEW:
                    self._has_writer = False
                    return
                else:
                    await self._output.wait()
        except CarrierClosed as error:
            with trio.move_on_after(FLUSH_S):  # what the peer said before it went explains more than our failed write
                await self._closed.wait()
            self._do(core.lost(str(error)))
        self._written.set()

    async def _flush_rest(self) -> None:
        """After the writer is gone: the last frames, if there is still somebody to take them."""
        if not self._written.is_set():
            try:
                while self._core.has_output:
                    await self.carrier.send(self._core.take_output())
            except CarrierClosed as error:
                _log.debug("flush_failed", peer=self.peer, reason=str(error))

    def _do(self, effects: list[Effect]) -> None:
        self._perform(effects)
        self.flush()

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Serve(call=call, payload=payload):
                    assert self._children is not None
                    self._children.start_soon(self._serve, ServedCall(self, call, payload))
                case Ended(call=call):
                    owner, call.owner = call.owner, None  # a circle that nobody needs any more
                    owner.ended()
                case Readable(call=call):
                    call.owner.readable.ring()
                case Writable(call=call):
                    call.owner.writable.ring()
                case Draining(message=message):
                    _log.debug("peer_drains", peer=self.peer, reason=message)
                case Closed(code=code, message=message):
                    say = _log.debug if code == Unavailable.code else _log.warn
                    say("link_closed", peer=self.peer, code=code, reason=message)
                    self._end()

    def _end(self) -> None:
        self._closed.set()
        self._greeted.set()
        if self._reading is not None:
            self._reading.cancel("link closed")
        if self._room is not None:
            self._room.unpark_all()
        self._ring_writer()

    async def _serve(self, call: ServedCall) -> None:
        """Run the handler under the caller's deadline and send what comes of it."""
        state = call.state
        with call.scope:
            outcome = await self._outcome(call)
            if call.rest is not None and not isinstance(outcome, Failure):
                outcome = await self._outcome_of_rest(call, call.rest) or outcome
            await self.wait_room()
            effects = (
                self._core.fail(state, outcome) if isinstance(outcome, Failure) else self._core.reply(state, outcome)
            )
            self._do(effects)
        if state.is_live:  # its deadline passed in here
            self._do(self._core.wake(trio.current_time()))
        if not state.is_live:
            state.owner = None

    async def _outcome(self, call: ServedCall) -> bytes | Failure:
        try:
            return await self._handler(call)
        except Exception as error:
            return self._failure(call, error)

    async def _outcome_of_rest(self, call: ServedCall, rest: Callable[[], Awaitable[None]]) -> Failure | None:
        try:
            await rest()
        except Exception as error:
            return self._failure(call, error)
        return None

    def _failure(self, call: ServedCall, error: Exception) -> Failure:
        refusal = _refusal_in(error)
        if refusal is not None:
            return failure_of(refusal)
        _log.exception("handler_failed", error, method=call.method, peer=self.peer)
        return Failure("internal", f"{call.method} failed: {type(error).__name__}", "see the server's log", 500)


async def _no_handler(call: ServedCall) -> bytes:
    raise NotFound(f"this end serves no {call.method}", hint="it only calls")


def _refusal_in(error: Exception) -> FedschedError | None:
    """The refusal a handler's nursery wrapped up, if that is all there is in the group."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, FedschedError) else None


@asynccontextmanager
async def open_link(
    carrier: Carrier,
    *,
    is_opener: bool,
    handler: Handler | None = None,
    authenticate: Authenticate | None = None,
    limits: LinkLimits | None = None,
    budget: ByteBudget | None = None,
    greeting: bytes = b"",
) -> AsyncIterator[Link]:
    """A running link for the length of the block; closed when it is left."""
    link = Link(
        carrier,
        is_opener=is_opener,
        handler=handler,
        authenticate=authenticate,
        limits=limits,
        budget=budget,
        greeting=greeting,
    )
    async with open_plain_nursery() as nursery:
        nursery.start_soon(link.run)
        try:
            yield link
        finally:
            link.close(message="no longer needed")
