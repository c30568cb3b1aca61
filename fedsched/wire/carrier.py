"""What a link needs from whatever carries its frames."""

from __future__ import annotations

from typing import Protocol

from fedsched.wire.frames import Parts


class CarrierClosed(Exception):
    """The carrier broke or the other end closed it; the text says which. Weather, for the link to translate."""


class Carrier(Protocol):
    """Takes and gives whole frames, in order. One child sends, one receives, either may be waiting at any time."""

    @property
    def peer(self) -> str:
        """Who is at the other end, for logs."""

    async def send(self, frames: list[Parts]) -> None:
        """Write all of these; raises `CarrierClosed`."""

    async def receive(self, bytes_max: int) -> list[bytes]:
        """Wait for at least one frame; more if they are here already.

        Raises `CarrierClosed` at the end, and `ProtocolViolation` instead of holding a frame over `bytes_max`.
        """

    async def aclose(self) -> None:
        """Let go of the connection; may wait a moment for a polite end."""
