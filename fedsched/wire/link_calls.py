"""The two faces of a call under trio: the one who asked, and the one who serves.

Streams are rows of items. `send` waits for credit, `receive` for items; a slow reader slows its sender and nobody else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Self

import trio

from fedsched.wire.call_state import CallState
from fedsched.wire.errors import RemoteError
from fedsched.wire.waker import Waker

if TYPE_CHECKING:
    from fedsched.wire.link import Link


class LinkCall:
    """What both faces share: the streams. One child sends, one receives."""

    __slots__ = ("_link", "readable", "state", "writable")

    def __init__(self, link: Link, state: CallState) -> None:
        self._link = link
        self.state = state
        self.readable = Waker()
        self.writable = Waker()

    @property
    def method(self) -> str:
        return self.state.method

    def ended(self) -> None:
        """The link says that the call is over."""
        self.readable.ring()
        self.writable.ring()

    async def send(self, item: bytes) -> bool:
        """Stream one item, as soon as the other side has room for it.

        False if the call was answered already: nobody wants more. Raises `RemoteError` if it failed.
        """
        link, state = self._link, self.state
        while True:
            await link.wait_room()
            if not state.is_live:
                self._raise_failure()
                return False
            if not state.we_may_send:
                raise trio.ClosedResourceError(f"{state.method} streams no items this way (any more)")
            if link.core.send_item(state, item):
                link.flush()
                return True
            await self.writable.wait()

    def try_send(self, item: bytes) -> bool:
        """Stream one item if there is room for it now; false if there is not, or nobody wants more."""
        core, state = self._link.core, self.state
        if not core.has_room or not core.send_item(state, item):
            return False
        self._link.flush()
        return True

    def end_items(self) -> None:
        """No more items from here."""
        self._link.core.end_items(self.state)
        self._link.flush()

    async def receive(self) -> bytes:
        """The next item. `trio.EndOfChannel` after the last; `RemoteError` if the call failed before."""
        state = self.state
        while not state.has_items:
            if not state.is_live:
                self._raise_failure()
                raise trio.EndOfChannel
            if not state.peer_may_send:
                raise trio.EndOfChannel
            await self.readable.wait()
        item = self._link.core.read_item(state)
        assert item is not None
        self._link.flush()
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        try:
            return await self.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None

    def _raise_failure(self) -> None:
        if self.state.failure is not None:
            raise RemoteError(self.state.failure)


class OwnCall(LinkCall):
    """A call this end opened."""

    __slots__ = ()

    async def wait_reply(self) -> bytes:
        """Wait for the end of the call: its reply, or `RemoteError`. Items not yet received stay receivable."""
        state = self.state
        while state.is_live:
            await self.readable.wait()
        self._raise_failure()
        assert state.reply is not None
        return state.reply

    def cancel(self) -> None:
        """Tell the peer that nobody waits any more. Nothing if the call is over."""
        self._link.cancel_call(self.state)


class ServedCall(LinkCall):
    """A call of the peer, as its handler sees it."""

    __slots__ = ("payload", "rest", "scope")

    def __init__(self, link: Link, state: CallState, payload: bytes) -> None:
        super().__init__(link, state)
        self.payload = payload
        self.rest: Callable[[], Awaitable[None]] | None = None
        """What is to be done between the handler's return and its reply. A stream that lives for days keeps nothing of
        the way it came like this: a server holds thousands of them."""
        self.scope = trio.CancelScope(deadline=state.deadline)
        """Cancelled when the caller loses interest, its deadline passes, or the link ends."""
        state.owner = self

    @property
    def deadline(self) -> float:
        """In trio's time; infinity for none."""
        return self.state.deadline

    @property
    def link(self) -> Link:
        """The link it came over: who the peer is, and the way to call it back."""
        return self._link

    def ended(self) -> None:
        super().ended()
        self.scope.cancel("the caller no longer waits")
