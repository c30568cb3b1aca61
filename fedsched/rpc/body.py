"""Requests and replies, encoded as late and decoded as seldom as possible; and the envelope they travel in.

On the wire a call's payload is `[meta, request]`, a reply's `[meta, reply]`, where request and reply are byte strings
with their own encoding inside. So a server that passes a call on to the leader rewrites the meta and never looks at the
rest, and a call within one process is not encoded at all.
"""

from __future__ import annotations

from typing import Any, Final, Generic, NamedTuple, TypeVar

from fedsched.codec import CodecError, Limits, dumps, from_builtins, from_bytes, loads, to_bytes_sparse
from fedsched.model.declare import Record
from fedsched.model.plain_form import to_plain
from fedsched.rpc.context import CallMeta, ReplyMeta

T = TypeVar("T", bound=Record)
M = TypeVar("M", CallMeta, ReplyMeta)

REQUEST_LIMITS: Final = Limits(bytes_max=64 * 1024 * 1024)
"""The link's frame limit has bounded the bytes already; what counts here is how many values they turn into."""
REPLY_LIMITS: Final = Limits(bytes_max=64 * 1024 * 1024, nodes_max=2_000_000)
"""Replies come from servers we chose to ask, and lists may be long."""


class Body(Generic[T]):
    """A record, its bytes, or both; each made from the other on first need."""

    __slots__ = ("_data", "_record", "kind")

    def __init__(self, kind: type[T], *, record: T | None = None, data: bytes | None = None) -> None:
        self.kind = kind
        self._record = record
        self._data = data

    def record(self, limits: Limits = REQUEST_LIMITS) -> T:
        """The record; `CodecError` if the bytes do not hold one."""
        if self._record is None:
            assert self._data is not None
            self._record = from_bytes(self._data, self.kind, limits)
        return self._record

    @property
    def data(self) -> bytes:
        if self._data is None:
            self._data = to_bytes_sparse(self._record)
        return self._data


class Answer(NamedTuple):
    """What a call came to."""

    reply: Body[Any]
    meta: ReplyMeta


def seal(meta: CallMeta | ReplyMeta, body: Body[Any]) -> bytes:
    """The payload of a call or reply frame."""
    return dumps([to_plain(meta), body.data])


def unseal(
    payload: bytes, meta_kind: type[M], body_kind: type[T], limits: Limits = REQUEST_LIMITS
) -> tuple[M, Body[T]]:
    """The two halves of a payload; `CodecError` if it is none."""
    value = loads(payload, limits)
    if not isinstance(value, list) or len(value) < 2 or not isinstance(value[1], bytes):
        raise CodecError("expected what goes beside a message, and the message")
    return from_builtins(value[0], meta_kind), Body(body_kind, data=value[1])


def encode_item(item: object, kind: type | None) -> bytes:
    """One item of a stream as it travels."""
    if kind is bytes:
        if not isinstance(item, bytes):
            raise CodecError(f"a stream of bytes was given a {type(item).__name__}")
        return item
    return to_bytes_sparse(item)


def decode_item(data: bytes, kind: type | None) -> Any:
    """One item of a stream as its reader sees it."""
    if kind is bytes:
        return data
    assert kind is not None
    return from_bytes(data, kind)
