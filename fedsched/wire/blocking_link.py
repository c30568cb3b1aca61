"""Runs a link core on a plain socket, one call at a time: for one-shot commands. Imports no trio.

Whoever waits does the work: writes what is pending, reads what comes, feeds the core. Between calls nothing runs, so an
idle link is given up by the other end after its silence limit; a command does not live that long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from fedsched.model.errors import DeadlineExceeded
from fedsched.wire.address import Address
from fedsched.wire.blocking_websocket import BlockingWebSocket, closed_on_error, dial
from fedsched.wire.call_state import CallState, Flow
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.effects import Effect, Greeted, Serve
from fedsched.wire.errors import Failure, ProtocolViolation, RemoteError
from fedsched.wire.limits import DEFAULT_LIMITS, LinkLimits
from fedsched.wire.link_core import LinkCore
from fedsched.wire.packing import LENGTH_BYTES, batches, unpack
from fedsched.wire.tls import TlsOptions

RPC_PATH = "/v1/rpc"
MESSAGE_BYTES = 256 * 1024
CONNECT_S = 10.0
LOOK_S = 0.001
"""Long enough to see what lies in the socket's buffer."""
WRITE_S = 10.0
"""An agent that takes nothing for this long is gone; a write given up half way ends the link."""


class BlockingLink:
    """The opener's end of a link, in the caller's own thread. Use as a context manager."""

    def __init__(
        self, carrier: BlockingWebSocket, *, limits: LinkLimits = DEFAULT_LIMITS, greeting: bytes = b""
    ) -> None:
        self._carrier = carrier
        self.core = LinkCore(is_opener=True, now=time.monotonic(), limits=limits, greeting=greeting)
        self._flush()  # the greeting travels in a message of its own

    def call(self, method: str, payload: bytes, timeout_s: float = math.inf) -> bytes:
        """Ask and wait. `RemoteError` with what the peer said, `DeadlineExceeded` when the time is up."""
        return self.open_call(method, payload, Flow.NONE, timeout_s).wait_reply()

    def open_call(self, method: str, payload: bytes, flow: Flow, timeout_s: float = math.inf) -> BlockingCall:
        """A call that may stream."""
        now = time.monotonic()
        state = self.core.call(method, payload, flow=flow, deadline=now + timeout_s, now=now)
        self._flush()
        return BlockingCall(self, state)

    def close(self) -> None:
        """End the link."""
        if self.core.closed is None:
            self.core.close("unavailable", "the command is done")
            self._flush()
        self._carrier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, timeout_s: float, others: Sequence[int] = ()) -> list[int]:
        """Take in what has come for any of its calls; if nothing has, wait so long, or until one of these descriptors
        has something to read. Gives those that have."""
        from select import select  # only whoever talks to several at once needs it

        self._flush()
        core = self.core
        if core.closed is not None:
            return []
        until_s = 0.0 if self._carrier.has_more else max(0.0, min(timeout_s, core.wake_at() - time.monotonic()))
        readable, _, _ = select([self._carrier.fileno(), *others], [], [], until_s)
        if self._carrier.has_more or self._carrier.fileno() in readable:
            self.pump(limit_s=LOOK_S)
        else:
            self._take(core.wake(time.monotonic()))
            self._flush()
        return [fd for fd in readable if fd in others]

    def pump(self, limit_s: float = math.inf) -> None:
        """Do one round of reading and writing, for at most so long."""
        core = self.core
        self._flush()
        now = time.monotonic()
        if core.wake_at() == math.inf:
            return  # the link is over, and its calls with it
        wait_s = min(core.wake_at() - now, limit_s)
        try:
            self._carrier.set_timeout(max(wait_s, LOOK_S))
            messages, size = unpack(message := self._carrier.receive(), core.inbound_max)
            if not messages or size != len(message):
                raise ProtocolViolation("a message that is no row of frames")
        except DeadlineExceeded:
            self._take(core.wake(time.monotonic()))
            return
        except CarrierClosed as error:
            self._take(core.lost(str(error)))
            return
        except ProtocolViolation as violation:
            self._take(core.close(violation.code, violation.message))
            return
        now = time.monotonic()
        for frame in messages:
            self._take(core.receive(frame, now))
        if now >= core.wake_at():
            self._take(core.wake(now))

    def flush(self) -> None:
        """Write what is pending."""
        self._flush()

    def _take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Greeted():
                    self.core.admit()
                case Serve(call=call):
                    self.core.fail(call, Failure("not_found", "this end serves nothing", http_status=404))

    def _flush(self) -> None:
        try:
            self._carrier.set_timeout(WRITE_S)
            while self.core.has_output:
                for message in batches(self.core.take_output(), MESSAGE_BYTES):
                    self._carrier.send(message)
        except (CarrierClosed, DeadlineExceeded) as error:
            self._take(self.core.lost(str(error)))


class BlockingCall:
    """A call under way."""

    def __init__(self, link: BlockingLink, state: CallState) -> None:
        self._link = link
        self.state = state

    def send(self, item: bytes) -> bool:
        """Stream one item up, waiting for room; false if the call was answered already."""
        while self.state.is_live:
            if self._link.core.send_item(self.state, item):
                self._link.flush()
                return True
            self._link.pump()
        self._raise_failure()
        return False

    def try_send(self, item: bytes) -> bool:
        """Stream one item up if there is room for it now."""
        if not self._link.core.send_item(self.state, item):
            return False
        self._link.flush()
        return True

    def take(self) -> bytes | None:
        """The next item that has come, if there is one; never waits (see `BlockingLink.wait`)."""
        return self._link.core.read_item(self.state)

    @property
    def is_over(self) -> bool:
        """Whether no more items will come than `take` has left."""
        return not self.state.has_items and not (self.state.is_live and self.state.peer_may_send)

    def end_items(self) -> None:
        """No more items from here."""
        self._link.core.end_items(self.state)
        self._link.flush()

    def items(self) -> Iterator[bytes]:
        """What the peer streams, until its end."""
        state = self.state
        while True:
            item = self._link.core.read_item(state)
            if item is not None:
                yield item
            elif state.is_live and state.peer_may_send:
                self._link.pump()
            else:
                self._raise_failure()
                return

    def wait_reply(self) -> bytes:
        """Wait for the end of the call."""
        while self.state.is_live:
            self._link.pump()
        self._raise_failure()
        assert self.state.reply is not None
        return self.state.reply

    def cancel(self) -> None:
        """Tell the peer that nobody waits any more."""
        self._link.core.cancel(self.state)
        self._link.flush()

    def _raise_failure(self) -> None:
        failure = self.state.failure
        if failure is None:
            return
        if failure.code == DeadlineExceeded.code:
            raise DeadlineExceeded(failure.message, hint=failure.hint)
        raise RemoteError(failure)


def connect(
    address: Address,
    *,
    tls: TlsOptions | None = None,
    timeout_s: float = CONNECT_S,
    limits: LinkLimits = DEFAULT_LIMITS,
    greeting: bytes = b"",
) -> BlockingLink:
    """Dial an agent and shake hands; `Unavailable` if nobody is there."""
    connection = dial(address, tls or TlsOptions(), timeout_s)
    with closed_on_error(connection):
        message_bytes_max = max(limits.frame_bytes_max + LENGTH_BYTES, MESSAGE_BYTES)
        carrier = BlockingWebSocket(connection, address, path=RPC_PATH, message_bytes_max=message_bytes_max)
        return BlockingLink(carrier, limits=limits, greeting=greeting)
