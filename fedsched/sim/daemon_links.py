"""What travels between simulated daemons: Raft packets that are read along, and the pieces of a fetched file."""

from __future__ import annotations

from collections.abc import Callable

from fedsched.raft.messages import Message
from fedsched.raft.wire import decode_message
from fedsched.sim.virtual_net import VirtualStream


class PacketTap:
    """Reads along what a daemon sends to a peer."""

    def __init__(self, hear: Callable[[Message], None]) -> None:
        self._hear = hear
        self._buffer = bytearray()
        self._has_greeted = False

    def __call__(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        while len(buffer) >= 4 and len(buffer) >= 4 + (size := int.from_bytes(buffer[:4], "big")):
            packet = bytes(buffer[4 : 4 + size])
            del buffer[: 4 + size]
            if self._has_greeted:
                _, message = decode_message(packet)
                self._hear(message)
            self._has_greeted = True


class Pieces:
    """What arrives on a stream until it ends."""

    def __init__(self, stream: VirtualStream) -> None:
        self._stream = stream

    def __aiter__(self) -> Pieces:
        return self

    async def __anext__(self) -> bytes:
        data = await self._stream.receive_some()
        if not data:
            raise StopAsyncIteration
        return data
