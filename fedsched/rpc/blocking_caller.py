"""Asks for methods from a one-shot command: blocking, without trio, and, on plain values, without the records.

`call_plain` takes and gives plain dicts with the internal field names (`{"JobID": "web"}`): it loads neither the model
nor msgspec, which together cost more CPU than the rest of a command. `call` is the typed form for those who have them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from fedsched.codec.cbor import CodecError, Limits, dumps, loads
from fedsched.rpc.errors import error_of
from fedsched.wire.blocking_link import BlockingCall, BlockingLink
from fedsched.wire.call_state import Flow
from fedsched.wire.errors import RemoteError

if TYPE_CHECKING:
    from fedsched.model.declare import Record
    from fedsched.rpc.context import CallMeta, ReplyMeta
    from fedsched.rpc.method import Method

    Q = TypeVar("Q", bound=Record)
    R = TypeVar("R", bound=Record)

REPLY_LIMITS: Final = Limits(bytes_max=64 * 1024 * 1024, nodes_max=2_000_000)
NOTHING: Final[Mapping[str, Any]] = {}


class BlockingCaller:
    """Asks the agent at the other end of a blocking link. Use as a context manager."""

    def __init__(self, link: BlockingLink) -> None:
        self._link = link

    def call_plain(
        self,
        method: str,
        request: Mapping[str, Any] = NOTHING,
        meta: Mapping[str, Any] = NOTHING,
        timeout_s: float = math.inf,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ask by name, in plain values; gives the reply and what is said beside it."""
        reply_meta, reply = self._ask(method, dict(meta), dumps(dict(request)), timeout_s)
        return _a_map(loads(reply, REPLY_LIMITS)), reply_meta

    def call(
        self, method: Method[Q, R], request: Q, meta: CallMeta | None = None, timeout_s: float = math.inf
    ) -> tuple[R, ReplyMeta]:
        """Ask, in records."""
        from fedsched.codec.records import from_builtins, from_bytes, to_builtins, to_bytes
        from fedsched.rpc.context import ReplyMeta

        plain_meta = {} if meta is None else to_builtins(meta)
        reply_meta, reply = self._ask(method.name, plain_meta, to_bytes(request), timeout_s)
        return from_bytes(reply, method.reply, REPLY_LIMITS), from_builtins(reply_meta, ReplyMeta)

    def open_stream(
        self,
        method: str,
        flow: Flow,
        request: Mapping[str, Any] = NOTHING,
        meta: Mapping[str, Any] = NOTHING,
        timeout_s: float = math.inf,
    ) -> BlockingStream:
        """Ask for a streaming method; items are bytes."""
        payload = dumps([dict(meta), dumps(dict(request))])
        return BlockingStream(self._link.open_call(method, payload, flow, timeout_s))

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, method: str, meta: dict[str, Any], request: bytes, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        with _errors_as_raised():
            payload = self._link.call(method, dumps([meta, request]), timeout_s)
        return _open(payload)


class BlockingStream:
    """A streaming call under way. Leaving it as a context manager cancels what is not done."""

    def __init__(self, call: BlockingCall) -> None:
        self._call = call

    def send(self, item: bytes) -> bool:
        """Stream one item up; false if the call was answered already."""
        with _errors_as_raised():
            return self._call.send(item)

    def end_items(self) -> None:
        """No more items from here."""
        self._call.end_items()

    def items(self) -> Iterator[bytes]:
        """What the agent streams, until its end."""
        with _errors_as_raised():
            yield from self._call.items()

    def wait_reply(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Wait for the end of the call: the reply, and what is said beside it."""
        with _errors_as_raised():
            meta, reply = _open(self._call.wait_reply())
        return _a_map(loads(reply, REPLY_LIMITS)), meta

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call.cancel()


def _open(payload: bytes) -> tuple[dict[str, Any], bytes]:
    value = loads(payload, REPLY_LIMITS)
    if not isinstance(value, list) or len(value) < 2 or not isinstance(value[1], bytes):
        raise CodecError("the agent's answer is not in the form of one")
    return _a_map(value[0]), value[1]


def _a_map(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CodecError(f"the agent answered with a {type(value).__name__} where a map belongs")
    return value


@contextmanager
def _errors_as_raised() -> Iterator[None]:
    try:
        yield
    except RemoteError as error:
        raise error_of(error.failure) from None
