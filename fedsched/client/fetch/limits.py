"""How much one fetch may take, and the words for what went wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

GB: Final = 1_000_000_000
FREE_BYTES: Final = 10 << 20
"""So much may come out of an archive before its ratio is looked at: small texts compress well."""
DEPTH_MAX: Final = 100
"""Directories inside one another."""
COMPONENT_BYTES_MAX: Final = 255


class FetchFailed(Exception):
    """The fetch did not work; `is_recoverable` says whether trying again may help."""

    def __init__(self, message: str, *, is_recoverable: bool = False) -> None:
        super().__init__(message)
        self.is_recoverable = is_recoverable


class BadArchive(FetchFailed):
    """An archive is broken, or means harm. It is not tried again: it will not become better."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    download_bytes: int = 10 * GB
    entries: int = 4096
    extracted_bytes: int = 20 * GB
    ratio: int = 200
    """What may come out for one byte that goes in. A bomb of zeroes has more than 1,000."""
    timeout_s: float = 1800.0
    stall_s: float = 60.0
    """Nothing at all is heard for so long: the other side is gone."""
    redirects: int = 5


class Budget:
    """Counts while an archive is unpacked, so that a bomb is noticed before the disk is full."""

    def __init__(self, limits: FetchLimits, consumed: Callable[[], int] | None = None) -> None:
        self._limits = limits
        self.consumed = consumed
        """How much of the compressed input was read so far; None: it is not compressed."""
        self.entries = 0
        self.bytes = 0

    def entry(self) -> None:
        self.entries += 1
        if self.entries > self._limits.entries:
            raise BadArchive(
                f"the archive has more than {self._limits.entries} entries (artifact.decompression_file_count_limit)"
            )

    def take(self, count: int) -> None:
        self.bytes += count
        if self.bytes > self._limits.extracted_bytes:
            raise BadArchive(
                f"the archive unpacks to more than {self._limits.extracted_bytes} bytes"
                " (artifact.decompression_size_limit)"
            )
        if self.consumed is None or self.bytes <= FREE_BYTES:
            return
        if self.bytes > self._limits.ratio * max(self.consumed(), 1):
            raise BadArchive(f"the archive unpacks to more than {self._limits.ratio} times its size")
