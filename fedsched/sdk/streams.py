"""A streaming call from a plain thread, one of several at once if need be.

    frames = client.open_stream(ALLOC_LOGS, AllocLogsRequest(...))
    while not frames.is_over:
        while (frame := frames.take()) is not None:
            ...
        client.wait(1.0)
    reply = frames.reply()

Nothing is read ahead beyond the stream's credit: whoever does not take does not get.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fedsched.codec import from_bytes, to_bytes
from fedsched.model.declare import Record
from fedsched.rpc.method import Method
from fedsched.wire.blocking_link import BlockingCall
from fedsched.wire.errors import RemoteError

if TYPE_CHECKING:
    from fedsched.sdk.client import Client

R = TypeVar("R", bound=Record)


class Stream(Generic[R]):
    """One of them."""

    def __init__(self, client: Client, method: Method[Any, R], call: BlockingCall) -> None:
        self._client = client
        self._method = method
        self._call = call

    def take(self) -> Any | None:
        """The next item that has come, None if there is none yet."""
        item = self._call.take()
        if item is None or self._method.item is bytes:
            return item
        assert self._method.item is not None
        return from_bytes(item, self._method.item)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to take and nothing will come."""
        return self._call.is_over

    def try_send(self, item: Record | bytes) -> bool:
        """Stream one item up if there is room for it now; otherwise wait for the link and try again."""
        return self._call.try_send(item if isinstance(item, bytes) else to_bytes(item))

    def end_items(self) -> None:
        """No more items from here."""
        self._call.end_items()

    def reply(self) -> R:
        """Wait for the end of the call; the errors of the other side as they were raised."""
        from fedsched.sdk.client import as_raised

        try:
            return self._client.finish(self._method, self._call)
        except RemoteError as error:
            raise as_raised(error) from None

    def cancel(self) -> None:
        """Tell the other side that nobody wants more."""
        self._call.cancel()
