"""A blocking client of one agent: typed calls, and the patience to get through bad weather.

    with connect("http://127.0.0.1:4646") as client:
        reply = client.call(JOB_LIST, JobListRequest(prefix="web"))

**What is retried.** Weather (no leader yet, link lost, server busy) is waited out until the caller's deadline, dialling
again if need be. A write whose outcome is unknown is sent again under the same request id (session and number), so the
region carries it out once and answers twice. Calls that are neither reads nor numbered writes (handing leadership over)
are sent once. Nobody listening at the very start is reported at once: then the address is wrong more often than not.

Whoever keeps account of attempts and request ids itself uses `ask`: one attempt, with exactly what is given beside it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, Self, TypeVar

from fedsched.codec import dumps, to_builtins, to_bytes
from fedsched.env.ids import uuid_text
from fedsched.model.declare import Record
from fedsched.model.errors import DeadlineExceeded, FedschedError, Unavailable
from fedsched.rpc.body import REPLY_LIMITS, unseal
from fedsched.rpc.context import CallMeta, ReplyMeta, RequestID
from fedsched.rpc.errors import error_of, meta_of
from fedsched.rpc.method import Method, RunsAt
from fedsched.sdk.target import Target
from fedsched.wire.blocking_link import BlockingCall
from fedsched.wire.call_state import Flow
from fedsched.wire.errors import RemoteError

if TYPE_CHECKING:
    from fedsched.sdk.streams import Stream

PATIENCE_S: Final = 30.0
"""An election takes seconds; a person waits half a minute before trying something else."""

WAIT_JITTER: Final = 17 / 16
"""A server waits up to a sixteenth longer than asked, so that waiters do not all come back at once."""
PAUSE_FIRST_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0
WEATHER_STATUS: Final = frozenset({429, 503})
UNKNOWN_CODES: Final = frozenset({"outcome_unknown", "deadline"})
"""The write may or may not have happened: only the same request id may be used again."""

FINAL_CODES: Final = frozenset({"disk_pressure", "rejected"})
"""Weather by status, but waiting does not help: somebody has to act."""

NO_META: Final = CallMeta()

Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)


class ClientLink(Protocol):
    """What a client needs of a link; `wire.blocking_link` has it."""

    def open_call(self, method: str, payload: bytes, flow: Flow, timeout_s: float = ...) -> BlockingCall:
        """Start a call."""

    def wait(self, timeout_s: float, others: Sequence[int] = ...) -> list[int]:
        """Take in what has come, or wait for it."""

    def close(self) -> None:
        """End the link."""


class Client:
    """One agent, from the caller's thread. Use as a context manager. Not for several threads at once."""

    def __init__(
        self,
        target: Target,
        dial: Callable[[], ClientLink],
        *,
        patience_s: float = PATIENCE_S,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.target = target
        self.last = ReplyMeta()
        """What came beside the last reply or refusal: its index, who answered.

        So a caller that finds nothing can wait for it: `call(..., min_index=client.last.index)`.
        """
        self._dial = dial
        self.patience_s = patience_s
        """How long a call goes on trying, unless it says otherwise."""
        self._now = now
        self._sleep = sleep
        self._link: ClientLink | None = None
        self._has_linked = False
        self._session = uuid_text(os.urandom(16))
        self._sequence = 0

    def call(
        self,
        method: Method[Q, R],
        request: Q,
        *,
        region: str | None = None,
        namespace: str | None = None,
        stale: bool = False,
        min_index: int = 0,
        max_wait_s: float = 0.0,
        patience_s: float | None = None,
    ) -> R:
        """Ask, and wait for the answer for `patience_s` at most (beyond `max_wait_s`, for a blocking query)."""
        meta = self._meta(method, region, namespace, stale, min_index, max_wait_s)
        payload = _sealed(meta, request)
        patience = self.patience_s if patience_s is None else patience_s
        deadline = self._now() + max_wait_s * WAIT_JITTER + patience
        pause = PAUSE_FIRST_S
        heard: FedschedError | None = None
        while True:
            try:
                return self._attempt(method, payload, deadline)
            except FedschedError as error:
                if heard is None or not isinstance(error, DeadlineExceeded):
                    heard = error  # a last attempt that had no time left says less than what was heard before
                self._judge(method, heard, deadline, pause)
            pause = self._pause(pause, deadline)

    def ask(
        self, method: Method[Q, R], request: Q, meta: CallMeta = NO_META, timeout_s: float = float("inf")
    ) -> tuple[R, ReplyMeta]:
        """Ask once, saying just this beside the request. Whatever goes wrong is raised; the next one dials anew."""
        try:
            reply = self._attempt(method, _sealed(meta, request), self._now() + timeout_s)
        except Unavailable:
            self.close()
            raise
        return reply, self.last

    def download(self, method: Method[Q, R], request: Q, *, stale: bool = False) -> Download[R]:
        """Ask for a stream of bytes; sent once, since its reader may have used what came before the weather."""
        payload = _sealed(self._meta(method, None, None, stale, 0, 0.0), request)
        return Download(self, method, self._open(method, payload, float("inf")))

    def open_stream(self, method: Method[Q, R], request: Q, *, namespace: str | None = None) -> Stream[R]:
        """Ask for a stream of records or bytes, and go on; `wait` takes in what comes. Sent once, as `download` is."""
        from fedsched.sdk.streams import Stream

        payload = _sealed(self._meta(method, None, namespace, False, 0, 0.0), request)
        return Stream(self, method, self._open(method, payload, float("inf")))

    def wait(self, timeout_s: float, others: Sequence[int] = ()) -> list[int]:
        """Take in what has come for open streams; if nothing has, wait so long, or until one of these descriptors has
        something to read. Gives those that have."""
        if self._link is not None:
            return self._link.wait(timeout_s, others)
        if others:
            from select import select

            return select(list(others), [], [], timeout_s)[0]
        self._sleep(timeout_s)
        return []

    def upload(self, method: Method[Q, R], request: Q, items: Iterable[bytes]) -> R:
        """Stream bytes to the agent and wait for its answer; sent once."""
        payload = _sealed(self._meta(method, None, None, False, 0, 0.0), request)
        call = self._open(method, payload, float("inf"))
        try:
            for item in items:
                if not call.send(item):
                    break
            call.end_items()
            return self._unseal(method, call.wait_reply())
        except RemoteError as error:
            raise as_raised(error) from None

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _meta(
        self,
        method: Method[Any, Any],
        region: str | None,
        namespace: str | None,
        stale: bool,
        min_index: int,
        max_wait_s: float,
    ) -> CallMeta:
        request_id = None
        if method.writes:
            self._sequence += 1
            request_id = RequestID(session=self._session, seq=self._sequence)
        return CallMeta(
            region=self.target.region if region is None else region,
            namespace=self.target.namespace if namespace is None else namespace,
            token=self.target.token,
            stale=stale,
            min_index=min_index,
            max_wait_s=max_wait_s,
            request_id=request_id,
        )

    def _open(self, method: Method[Any, Any], payload: bytes, deadline: float) -> BlockingCall:
        if self._link is None:
            self._link = self._dial()
            self._has_linked = True
        try:
            return self._link.open_call(method.name, payload, method.flow, max(0.0, deadline - self._now()))
        except Unavailable:
            self.close()
            raise

    def _attempt(self, method: Method[Any, R], payload: bytes, deadline: float) -> R:
        """One attempt; its errors as the agent raised them."""
        try:
            return self._unseal(method, self._open(method, payload, deadline).wait_reply())
        except RemoteError as raised:
            error = as_raised(raised)
            self.last = meta_of(error) or self.last
            raise error from None

    def _unseal(self, method: Method[Any, R], payload: bytes) -> R:
        self.last, reply = unseal(payload, ReplyMeta, method.reply, REPLY_LIMITS)
        return reply.record(REPLY_LIMITS)

    def _judge(self, method: Method[Any, Any], error: FedschedError, deadline: float, pause: float) -> None:
        """Return if trying again is right; raise otherwise."""
        is_weather = error.http_status in WEATHER_STATUS or error.code in UNKNOWN_CODES
        may_repeat = method.writes or method.runs_at in (RunsAt.ANY_SERVER, RunsAt.THIS_AGENT)
        if self._link is None and not self._has_linked:
            raise error
        if not is_weather or error.code in FINAL_CODES or not may_repeat:
            raise error
        if isinstance(error, Unavailable):
            self.close()  # it may have been the link; a fresh one costs next to nothing
        if self._now() + pause >= deadline:
            raise DeadlineExceeded(
                f"{method.name} was given up after {self.patience_s:.0f} s; last heard: {error.message}",
                hint=_what_now(method, error),
            ) from error

    def _pause(self, pause: float, deadline: float) -> float:
        jitter = 0.75 + os.urandom(1)[0] / 512
        self._sleep(min(pause * jitter, max(0.0, deadline - self._now())))
        return min(pause * 2, PAUSE_MAX_S)

    def finish(self, method: Method[Any, R], call: BlockingCall) -> R:
        """Take the reply at the end of a stream; for `Download`."""
        return self._unseal(method, call.wait_reply())


class Download(Generic[R]):
    """A stream of bytes on its way; iterate, then ask for the reply."""

    def __init__(self, client: Client, method: Method[Any, R], call: BlockingCall) -> None:
        self._client = client
        self._method = method
        self._call = call

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._call.items()
        except RemoteError as error:
            raise as_raised(error) from None

    def reply(self) -> R:
        """Wait for the end of the call; `Unavailable` and others if it did not end well."""
        try:
            return self._client.finish(self._method, self._call)
        except RemoteError as error:
            raise as_raised(error) from None


def as_raised(error: FedschedError) -> FedschedError:
    """Give the error as the agent raised it, if this process knows its class."""
    return error_of(error.failure) if isinstance(error, RemoteError) else error


def _sealed(meta: CallMeta, request: Record) -> bytes:
    """Encode as `rpc.body` does, but without the per-record encoders: they pay off in daemons, not in one call."""
    return dumps([to_builtins(meta), to_bytes(request)])


def _what_now(method: Method[Any, Any], error: FedschedError) -> str:
    if method.writes:
        return "it may still be carried out: look before you try again"
    return error.hint or "is a majority of the region's servers up?"
