"""What an archive holds, as our own readers tell it: names are whatever the archive says, nothing is checked yet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from fedsched.client.fetch.limits import BadArchive
from fedsched.client.fetch.unpacking import PIECE, Reader


class MemberKind(Enum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"


@dataclass(frozen=True, slots=True)
class Member:
    name: str
    kind: MemberKind
    mode: int = 0o644
    target: str = ""
    """Of a link, as written."""
    owner: tuple[int, int] | None = None
    """Numbers of user and group, if the archive has them."""
    data: Content | None = None
    """Of a file; read it before the next member."""


class Content:
    """The bytes of one member."""

    def __init__(self, source: Reader, size: int | None, name: str) -> None:
        self._source = source
        self._left = size
        self._name = name

    def pieces(self) -> Iterator[bytes]:
        """All that is left of it; refuses a member that ends early."""
        while self._left is None or self._left > 0:
            wanted = PIECE if self._left is None else min(PIECE, self._left)
            data = self._source.read(wanted)
            if not data:
                if self._left is None:
                    return
                raise BadArchive(f"the archive is cut off inside {self._name[:200]!r}")
            if self._left is not None:
                self._left -= len(data)
            yield data

    def skip(self) -> None:
        for _ in self.pieces():
            pass
