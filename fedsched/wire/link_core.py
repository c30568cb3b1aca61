"""Decides what happens on a link: many calls and streams over one connection, in both directions. Sans-IO.

Theory. Two ends exchange frames over something that keeps their order or breaks. Each end greets the other first; the
runner then admits the peer, or closes. After that either end may open calls. A call is *live* from its `Call` frame
until its first `Reply`, `Error`, `Cancel`, expiry, or the end of the link, and it ends exactly once at each end. Frames
that arrive for a call that has ended here crossed our last frame on the way: they are ignored. Frames for a call that
never was are a violation, like everything else the other end could only do by a mistake or on purpose: the link then
says why and closes.

What is bounded, whatever the peer does:

- calls served at once and the request bytes they hold (the next one is answered `busy`);
- what lies unread in each stream: the peer has been granted that much and no more;
- what waits to be written: runners wait for `has_room` before they call, reply or stream; answers the peer provokes
  without reading them (pongs, refusals) end the link when they pile up.

Time is an argument. There is one deadline for all calls (the earliest), looked up again only when it has passed, so a
call costs no timer. `wake_at` says when `wake` next has something to do.
"""

from __future__ import annotations

import math
from typing import Final

from fedsched.model.errors import BadRequest, Busy, TooLarge, Unavailable
from fedsched.wire import frames
from fedsched.wire.call_state import CallState, Flow, cost
from fedsched.wire.effects import Closed, Draining, Effect, Ended, Greeted, Readable, Serve, Writable
from fedsched.wire.errors import Failure, LinkClosed, ProtocolViolation
from fedsched.wire.frames import DRAIN, METHOD_BYTES_MAX, Frame, Parts
from fedsched.wire.limits import CREDIT_MAX, DATA_BYTES_MAX, FRAME_OVERHEAD_MAX, VERSION, ByteBudget, LinkLimits

CONTROL_BYTES_MAX: Final = 256 * 1024
"""How far small answers may go beyond a full outbox: some thousands of them."""
TIMEOUT_S_MAX: Final = 1e9
"""Thirty years: no deadline in all but name."""
TAKE_BYTES: Final = 1024 * 1024
"""One write of the runner; enough to make system calls cheap, small enough to keep memory even."""


class LinkCore:
    """One end of a link."""

    def __init__(
        self,
        *,
        is_opener: bool,
        now: float,
        limits: LinkLimits | None = None,
        budget: ByteBudget | None = None,
        greeting: bytes = b"",
    ) -> None:
        self.limits = (limits or LinkLimits()).checked()
        self._budget = budget or ByteBudget(self.limits.served_bytes_max)
        self.closed: Closed | None = None
        self.peer_drains = False
        self.is_draining = False
        self.outbox_bytes = 0
        self.serving = 0
        self.served_bytes = 0
        self.calling = 0
        self._outbox: list[Parts] = []
        self._calls: dict[int, CallState] = {}
        self._next_id = 1 if is_opener else 2
        self._peer_last_id = 0 if is_opener else -1
        self._is_greeted = self._is_admitted = False
        self._inbound_max = self.limits.greeting_bytes_max
        self._peer_frame_max = LinkLimits().frame_bytes_max
        self._peer_calls_max = self.limits.own_calls_max
        self._largest_frame = 0
        self._started = self._heard = now
        self._pinged_after = -math.inf
        self._pings = 0
        self._next_expiry = math.inf
        self._put(
            frames.Hello(VERSION, VERSION, self.limits.frame_bytes_max, self.limits.calls_max, greeting),
        )

    # ---- what the runner asks -------------------------------------------------------------------------------

    @property
    def inbound_max(self) -> int:
        """Largest message the carrier should accept now."""
        return self._inbound_max

    @property
    def has_room(self) -> bool:
        """Whether calls, replies and stream items may be put in without waiting."""
        return self.outbox_bytes < self.limits.outbox_bytes_max

    @property
    def heard_at(self) -> float:
        """When the last frame came."""
        return self._heard

    @property
    def has_output(self) -> bool:
        return bool(self._outbox)

    def take_output(self) -> list[Parts]:
        """Frames to write now, in order; about `TAKE_BYTES` at most."""
        outbox, self._outbox = self._outbox, []
        if self.outbox_bytes < TAKE_BYTES:
            self.outbox_bytes = 0
            return outbox
        size = at = 0
        while at < len(outbox) and size < TAKE_BYTES:
            head, payload = outbox[at]
            size += len(head) + len(payload)
            at += 1
        self._outbox = outbox[at:]
        self.outbox_bytes -= size
        return outbox[:at]

    def wake_at(self) -> float:
        """When `wake` next has something to do; infinity once closed."""
        if self.closed is not None:
            return math.inf
        if not self._is_greeted:
            return min(self._next_expiry, self._started + self.limits.greeting_s)
        is_asked = self._pinged_after == self._heard
        return min(self._next_expiry, self._heard + (self.limits.silence_s if is_asked else self.limits.keepalive_s))

    # ---- life of the link -----------------------------------------------------------------------------------

    def admit(self) -> None:
        """The peer is who it should be: from here on its calls and larger frames are taken."""
        self._is_admitted = True
        self._inbound_max = self.limits.frame_bytes_max

    def drain(self, message: str) -> list[Effect]:
        """Take no new calls; close when the last one is done."""
        if self.is_draining or self.closed is not None:
            return []
        self.is_draining = True
        self._put(frames.Goaway(DRAIN, frames.cut_text(message)))
        return self._close_if_drained()

    def close(self, code: str, message: str) -> list[Effect]:
        """End the link now and tell the peer why."""
        if self.closed is None:
            self._put(frames.Goaway(code, frames.cut_text(message)))
        return self._end_link(code, message)

    def lost(self, message: str) -> list[Effect]:
        """The carrier broke or the peer closed it."""
        return self._end_link(Unavailable.code, message)

    def wake(self, now: float) -> list[Effect]:
        """Let time pass: expire calls, ask a silent peer for a sign of life, give up on a dead one."""
        if self.closed is not None:
            return []
        if not self._is_greeted and now - self._started >= self.limits.greeting_s:
            return self.close(Unavailable.code, f"no greeting within {self.limits.greeting_s:g} s")
        silent_s = now - self._heard
        if silent_s >= self.limits.silence_s:
            return self.close(Unavailable.code, f"peer was silent for {silent_s:.0f} s")
        if self._is_greeted and silent_s >= self.limits.keepalive_s and self._pinged_after != self._heard:
            self._pinged_after = self._heard
            self._pings += 1
            self._put(frames.Ping(self._pings))
        return self._expire(now) if now >= self._next_expiry else []

    def ask_sign_of_life(self) -> None:
        """Have something come from a peer that is well, now rather than when the keep-alive time is over."""
        if self._is_greeted and self.closed is None:
            self._pings += 1
            self._put(frames.Ping(self._pings))

    # ---- calls ----------------------------------------------------------------------------------------------

    def call(self, method: str, payload: bytes, *, flow: Flow = Flow.NONE, deadline: float, now: float) -> CallState:
        """Open a call; raises if it cannot be sent. Whatever happens next, it ends exactly once."""
        self._check_may_call(method, payload)
        call = CallState(self._next_id, method, is_ours=True, flow=flow, deadline=deadline)
        self._next_id += 2
        self.calling += 1
        self._calls[call.id] = call
        if call.peer_may_send:
            call.granted = self.limits.window_bytes
        self._next_expiry = min(self._next_expiry, deadline)
        self._put(frames.Call(call.id, method, _timeout_ms(deadline - now), int(flow), call.granted, payload))
        return call

    def cancel(self, call: CallState) -> list[Effect]:
        """Our call is no longer wanted. Nothing if it has ended already."""
        if not call.is_live:
            return []
        self._put(frames.Cancel(call.id))
        return self._end(call, failure=Failure("cancelled", f"{call.method} was cancelled by its caller"))

    def reply(self, call: CallState, payload: bytes) -> list[Effect]:
        """Answer a call of the peer. Nothing if it has ended already."""
        if not call.is_live:
            return []
        if len(payload) > self._peer_frame_max - FRAME_OVERHEAD_MAX:
            message = f"the reply to {call.method} has {len(payload)} bytes, the peer takes {self._peer_frame_max}"
            return self.fail(call, Failure(TooLarge.code, message, "ask for less at once", TooLarge.http_status))
        self._put(frames.Reply(call.id, payload))
        return self._finish(call, reply=payload)

    def fail(self, call: CallState, failure: Failure) -> list[Effect]:
        """Answer a call of the peer with a failure. Nothing if it has ended already."""
        if not call.is_live:
            return []
        if len(failure.details) > self._peer_frame_max - FRAME_OVERHEAD_MAX:
            failure = failure._replace(details=b"")
        self._put(frames.error_frame(call.id, failure))
        return self._finish(call, failure=failure)

    # ---- streams --------------------------------------------------------------------------------------------

    def send_item(self, call: CallState, item: bytes) -> bool:
        """Stream one item to the peer; false if there is no credit for it yet (or the call has ended)."""
        if len(item) > DATA_BYTES_MAX:
            raise TooLarge(f"stream item of {len(item)} bytes, at most {DATA_BYTES_MAX} fit")
        price = cost(item)
        if not call.is_live or not call.we_may_send or price > call.credit:
            return False
        call.credit -= price
        self._put(frames.Data(call.id, item))
        return True

    def end_items(self, call: CallState) -> None:
        """No more items from us; the call itself goes on."""
        if call.is_live and call.we_may_send:
            call.we_may_send = False
            self._put(frames.End(call.id))

    def read_item(self, call: CallState) -> bytes | None:
        """The next item the peer sent, if there is one; grants more as the inbox empties."""
        if not call.has_items:
            return None
        item = call.take()
        if call.is_live and call.peer_may_send:
            call.unreturned += cost(item)
            if call.unreturned >= self.limits.window_bytes // 2:
                self._put(frames.Credit(call.id, call.unreturned))
                call.granted += call.unreturned
                call.unreturned = 0
        return item

    # ---- what arrives ---------------------------------------------------------------------------------------

    def receive(self, message: bytes, now: float) -> list[Effect]:
        """Take one message of the carrier."""
        if self.closed is not None:
            return []
        self._heard = now
        try:
            if len(message) > self._inbound_max:
                raise ProtocolViolation(f"frame of {len(message)} bytes, at most {self._inbound_max} are taken here")
            frame = frames.decode(message)
            effects = self._take(frame, now) if self._is_admitted else self._take_greeting(frame)
            if self.outbox_bytes > self.limits.outbox_bytes_max + self._largest_frame + CONTROL_BYTES_MAX:
                raise ProtocolViolation(f"{self.outbox_bytes} bytes of answers wait, and the peer does not read them")
        except ProtocolViolation as violation:
            return self.close(violation.code, violation.message)
        return effects

    def _take_greeting(self, frame: Frame) -> list[Effect]:
        if isinstance(frame, frames.Goaway):
            return self._take_goaway(frame)
        if self._is_greeted:
            raise ProtocolViolation(f"{type(frame).__name__} frame before the peer was admitted")
        if not isinstance(frame, frames.Hello):
            raise ProtocolViolation(f"{type(frame).__name__} frame before a greeting")
        if not frame.version_min <= VERSION <= frame.version_max:
            spoken = f"{frame.version_min} to {frame.version_max}"
            raise ProtocolViolation(f"the peer speaks versions {spoken} of the wire, this end {VERSION}")
        if frame.frame_bytes_max < DATA_BYTES_MAX + FRAME_OVERHEAD_MAX:
            raise ProtocolViolation(f"the peer takes frames of {frame.frame_bytes_max} bytes only")
        self._is_greeted = True
        self._peer_frame_max = frame.frame_bytes_max
        self._peer_calls_max = min(frame.calls_max, self.limits.own_calls_max)
        return [Greeted(frame)]

    def _take(self, frame: Frame, now: float) -> list[Effect]:
        match frame:
            case frames.Reply():
                call = self._ours(frame.id, frame)
                return [] if call is None else self._end(call, reply=frame.payload)
            case frames.Call():
                return self._take_call(frame, now)
            case frames.Data():
                return self._take_item(frame)
            case frames.Credit():
                return self._take_credit(frame)
            case frames.Error():
                call = self._ours(frame.id, frame)
                failure = Failure(frame.code, frame.message, frame.hint, frame.http_status, frame.payload)
                return [] if call is None else self._end(call, failure=failure)
            case frames.End():
                return self._take_end(frame)
            case frames.Cancel():
                return self._take_cancel(frame)
            case frames.Ping():
                self._put(frames.Pong(frame.number))
                return []
            case frames.Pong():
                return []
            case frames.Goaway():
                return self._take_goaway(frame)
            case _:  # the only one left: a greeting
                raise ProtocolViolation("a second greeting")

    def _take_call(self, frame: frames.Call, now: float) -> list[Effect]:
        if frame.id % 2 == self._next_id % 2 or frame.id <= self._peer_last_id:
            raise ProtocolViolation(f"call number {frame.id} after {self._peer_last_id}")
        self._peer_last_id = frame.id
        if frame.flow > Flow.BOTH or frame.credit > CREDIT_MAX or len(frame.method) > METHOD_BYTES_MAX:
            raise ProtocolViolation("a call out of shape")
        refusal = self._refusal(len(frame.payload))
        if refusal is not None:
            self._put(frames.error_frame(frame.id, refusal))
            return []
        deadline = now + frame.timeout_ms / 1000 if frame.timeout_ms else math.inf
        call = CallState(frame.id, frame.method, is_ours=False, flow=frame.flow, deadline=deadline)
        call.credit = frame.credit
        call.held_bytes = len(frame.payload)
        self._calls[call.id] = call
        self.serving += 1
        self.served_bytes += call.held_bytes
        self._next_expiry = min(self._next_expiry, deadline)
        if call.peer_may_send:
            call.granted = self.limits.window_bytes
            self._put(frames.Credit(call.id, call.granted))
        return [Serve(call, frame.payload)]

    def _refusal(self, payload_bytes: int) -> Failure | None:
        """Why the next call of the peer is not served; None if it is, and its bytes are then charged."""
        if self.is_draining:
            return Failure(Unavailable.code, "this link takes no new calls", "dial again", Unavailable.http_status)
        if self.serving >= self.limits.calls_max:
            reason = f"{self.serving} calls of this link are being served, that is the limit"
        elif self.served_bytes + payload_bytes > self.limits.served_bytes_max:
            reason = (
                f"the calls of this link hold {self.served_bytes} bytes, the limit is {self.limits.served_bytes_max}"
            )
        elif not self._budget.take(payload_bytes):
            reason = f"all calls together hold {self._budget.used} bytes, the limit is {self._budget.limit}"
        else:
            return None
        return Failure(Busy.code, reason, "wait for answers before asking more", Busy.http_status)

    def _take_item(self, frame: frames.Data) -> list[Effect]:
        call = self._known(frame.id, frame)
        if call is None:
            return []
        price = cost(frame.payload)
        if not call.peer_may_send:
            raise ProtocolViolation(f"data for {call.method} (call {call.id}), which expects none")
        if price > call.granted or len(frame.payload) > DATA_BYTES_MAX:
            raise ProtocolViolation(
                f"{len(frame.payload)} bytes of data for {call.method}, {call.granted} were granted"
            )
        call.granted -= price
        call.put(frame.payload)
        return [Readable(call)]

    def _take_credit(self, frame: frames.Credit) -> list[Effect]:
        call = self._known(frame.id, frame)
        if call is None:
            return []
        call.credit += frame.amount
        if call.credit > CREDIT_MAX:
            raise ProtocolViolation(f"{call.credit} bytes granted for {call.method}")
        return [Writable(call)]

    def _take_end(self, frame: frames.End) -> list[Effect]:
        call = self._known(frame.id, frame)
        if call is None or not call.peer_may_send:
            return []
        call.peer_may_send = False
        return [Readable(call)]

    def _take_cancel(self, frame: frames.Cancel) -> list[Effect]:
        call = self._known(frame.id, frame)
        if call is None:
            return []
        if call.is_ours:
            raise ProtocolViolation(f"the peer cancelled call {frame.id}, which is ours")
        return self._end(call, failure=Failure("cancelled", f"{call.method} was cancelled by its caller"))

    def _take_goaway(self, frame: frames.Goaway) -> list[Effect]:
        if frame.code != DRAIN:
            return self._end_link(frame.code, frame.message)
        self.peer_drains = True
        return [Draining(frame.message)]

    # ---- how calls end --------------------------------------------------------------------------------------

    def _ours(self, call_id: int, frame: Frame) -> CallState | None:
        call = self._known(call_id, frame)
        if call is not None and not call.is_ours:
            raise ProtocolViolation(f"the peer answered call {call_id}, which is its own")
        return call

    def _known(self, call_id: int, frame: Frame) -> CallState | None:
        """The live call of this number; None if it has ended here."""
        call = self._calls.get(call_id)
        if call is None:
            is_ours = call_id % 2 == self._next_id % 2
            if call_id >= self._next_id if is_ours else call_id > self._peer_last_id:
                raise ProtocolViolation(f"{type(frame).__name__} frame for call {call_id}, which was never opened")
        return call

    def _end(self, call: CallState, *, reply: bytes | None = None, failure: Failure | None = None) -> list[Effect]:
        return [Ended(call), *self._finish(call, reply=reply, failure=failure)]

    def _finish(self, call: CallState, *, reply: bytes | None = None, failure: Failure | None = None) -> list[Effect]:
        del self._calls[call.id]
        call.is_live = False
        call.reply, call.failure = reply, failure
        if call.is_ours:
            self.calling -= 1
        else:
            self.serving -= 1
            self.served_bytes -= call.held_bytes
            self._budget.give(call.held_bytes)
        return self._close_if_drained() if self.is_draining else []

    def _expire(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for call in [call for call in self._calls.values() if call.deadline <= now]:
            failure = Failure("deadline", f"{call.method} was not answered in time", http_status=504)
            self._put(frames.Cancel(call.id) if call.is_ours else frames.error_frame(call.id, failure))
            effects += self._end(call, failure=failure)
        self._next_expiry = min((call.deadline for call in self._calls.values()), default=math.inf)
        return effects

    def _close_if_drained(self) -> list[Effect]:
        return [] if self._calls else self.close(Unavailable.code, "drained")

    def _end_link(self, code: str, message: str) -> list[Effect]:
        if self.closed is not None:
            return []
        self.closed = Closed(code, message)
        status = Unavailable.http_status
        failure = Failure(code, f"link closed: {message}", "the call may or may not have been acted on", status)
        self.is_draining = False  # the calls below must not close it a second time
        effects: list[Effect] = []
        for call in list(self._calls.values()):
            effects += self._end(call, failure=failure)
        return [*effects, self.closed]

    def _check_may_call(self, method: str, payload: bytes) -> None:
        if self.closed is not None:
            raise LinkClosed(f"link closed: {self.closed.message}", hint="dial again")
        if self.peer_drains or self.is_draining:
            raise LinkClosed("the link is draining and takes no new calls", hint="dial again")
        if self.calling >= self._peer_calls_max:
            raise Busy(f"{self.calling} calls are in flight on this link, that is the limit", hint="wait for answers")
        if len(payload) > self._peer_frame_max - FRAME_OVERHEAD_MAX:
            raise TooLarge(f"a request of {len(payload)} bytes for {method}, the peer takes {self._peer_frame_max}")
        if len(method.encode()) > METHOD_BYTES_MAX:
            raise BadRequest(f"method name of {len(method)} characters, at most {METHOD_BYTES_MAX} are taken")

    def _put(self, frame: Frame) -> None:
        head, payload = parts = frames.encode(frame)
        size = len(head) + len(payload)
        self.outbox_bytes += size
        if size > self._largest_frame:
            self._largest_frame = size
        self._outbox.append(parts)


def _timeout_ms(left_s: float) -> int:
    """What is left until a deadline, as it travels: at least a moment; 0 for no deadline or one beyond all patience."""
    return 0 if left_s > TIMEOUT_S_MAX else math.ceil(max(left_s, 0.001) * 1000)
