"""Frames over memory channels: for tests, and for several daemons in one process."""

from __future__ import annotations

import trio

from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.frames import Parts

BATCHES_MAX = 16
"""Writes that may be on the way; the next one waits, as it would for a socket."""


class MemoryCarrier:
    """One end of a pair. Frames are joined and copied, so the two ends share nothing."""

    def __init__(
        self,
        peer: str,
        sender: trio.MemorySendChannel[list[bytes]],
        receiver: trio.MemoryReceiveChannel[list[bytes]],
    ) -> None:
        self.peer = peer
        self._sender = sender
        self._receiver = receiver

    async def send(self, frames: list[Parts]) -> None:
        try:
            await self._sender.send([head + payload for head, payload in frames])
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise CarrierClosed("the other end is gone") from error

    async def receive(self, bytes_max: int) -> list[bytes]:
        try:
            return await self._receiver.receive()  # sizes are judged by the core: nothing is saved by refusing here
        except (trio.EndOfChannel, trio.ClosedResourceError) as error:
            raise CarrierClosed("the other end closed") from error

    async def aclose(self) -> None:
        self._sender.close()
        self._receiver.close()
        await trio.lowlevel.checkpoint()


def memory_pair(names: tuple[str, str] = ("opener", "acceptor")) -> tuple[MemoryCarrier, MemoryCarrier]:
    """Two carriers, each the other's far end; `names` says who sits where."""
    to_right = trio.open_memory_channel[list[bytes]](BATCHES_MAX)
    to_left = trio.open_memory_channel[list[bytes]](BATCHES_MAX)
    left = MemoryCarrier(names[1], to_right[0], to_left[1])
    right = MemoryCarrier(names[0], to_left[0], to_right[1])
    return left, right
