"""A stream between a websocket and its socket, which keeps two promises the websocket library does not.

- What is read ahead stays bounded: between two messages handed on, only so many bytes are let through. Endless empty
  fragments, or a large message before the peer is admitted, wait in the kernel's buffer instead of in ours.
- Many messages leave in one write: between `cork` and `uncork`, what is sent gathers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

UNSENT_BYTES_MAX: Final = 64 * 1024
"""What may gather beside a write under way (pongs, a close) before its sender waits too."""


class GateStream(trio.abc.Stream):
    """Wraps the stream of one websocket."""

    def __init__(self, stream: trio.abc.Stream, allowance: int) -> None:
        self._stream = stream
        self._allowance = allowance
        self._passed = 0
        self._opened = trio.lowlevel.ParkingLot()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._is_corked = False
        self._is_sending = False
        self._sent = trio.lowlevel.ParkingLot()
        self.closed = trio.Event()
        self.on_sent: Callable[[], None] | None = None
        """Called when everything that was given to `send_all` is written."""

    # ---- reading

    def allow(self, allowance: int) -> None:
        """Raise (or lower) how much may pass between two messages."""
        if allowance > self._allowance:
            self._opened.unpark_all()
        self._allowance = allowance

    def delivered(self) -> None:
        """A message was handed on."""
        self._passed = 0
        self._opened.unpark_all()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        while self._passed >= self._allowance:
            await self._opened.park()
        room = self._allowance - self._passed
        data = await self._stream.receive_some(room if max_bytes is None else min(max_bytes, room))
        self._passed += len(data)
        return data

    # ---- writing

    def cork(self) -> None:
        """Let what is sent gather until `uncork`."""
        self._is_corked = True

    async def uncork(self) -> None:
        """Write all that gathered, in one go."""
        self._is_corked = False
        await self._send_gathered()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._unsent.append(bytes(data))
        self._unsent_bytes += len(data)
        if self._is_corked or self._is_sending:
            while self._is_sending and self._unsent_bytes > UNSENT_BYTES_MAX:
                await self._sent.park()
            return
        await self._send_gathered()

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        self.closed.set()
        self._sent.unpark_all()
        self._opened.unpark_all()
        self._allowance = max(self._allowance, self._passed + 1)  # a reader let through finds the stream closed
        await self._stream.aclose()

    async def _send_gathered(self) -> None:
        if self._is_sending:
            return  # whoever is at it takes these along
        self._is_sending = True
        try:
            while self._unsent:
                data = b"".join(self._unsent)
                self._unsent.clear()
                self._unsent_bytes = 0
                await self._stream.send_all(data)
                self._sent.unpark_all()
            if self.on_sent is not None:
                self.on_sent()
        finally:
            self._is_sending = False
            self._sent.unpark_all()
