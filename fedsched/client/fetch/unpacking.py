"""Streams that undo a compression, a bounded piece at a time: what comes out is counted before it is kept."""

from __future__ import annotations

import bz2
import lzma
import zlib
from typing import BinaryIO, Final, Protocol

from fedsched.client.fetch.limits import BadArchive, Budget

PIECE: Final = 128 * 1024
XZ_MEMORY_MAX: Final = 128 << 20
"""`xz -9` asks for 65 MiB to unpack; an archive that asks for more than this is not meant to be unpacked."""


class Reader(Protocol):
    """Where an archive's bytes come from."""

    def read(self, count: int, /) -> bytes:
        """At most so many bytes; none at the end."""


class Plain:
    """Bytes as they are, counted."""

    def __init__(self, source: BinaryIO, budget: Budget) -> None:
        self._source = source
        self._budget = budget

    def read(self, count: int) -> bytes:
        data = self._source.read(count)
        self._budget.take(len(data))
        return data


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def step(self, data: bytes, count: int) -> bytes:
        """Feed it, and take at most so many bytes out."""

    @property
    def wants_input(self) -> bool: ...


class _Gzip:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def wants_input(self) -> bool:
        return not self._inner.unconsumed_tail

    def step(self, data: bytes, count: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, count)


class _Other:
    """bz2 and xz have the same form."""

    def __init__(self, inner: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> None:
        self._inner = inner

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def wants_input(self) -> bool:
        return self._inner.needs_input

    def step(self, data: bytes, count: int) -> bytes:
        return self._inner.decompress(data, count)


class Decompressed:
    """What comes out of a compressed file; several streams one after another are one, as the tools have it."""

    def __init__(self, source: BinaryIO, kind: str, budget: Budget) -> None:
        self._source = source
        self._kind = kind
        self._budget = budget
        self._inner: _Decompressor = _new(kind)
        self._fed = 0
        self._ended = False
        budget.consumed = lambda: self._fed

    def read(self, count: int) -> bytes:
        while not self._ended:
            try:
                data = self._step(min(count, PIECE))
            except (zlib.error, OSError, lzma.LZMAError, ValueError) as error:
                raise BadArchive(f"the archive is not proper {self._kind}: {error}") from None
            if data:
                self._budget.take(len(data))
                return data
        return b""

    def _step(self, count: int) -> bytes:
        piece = b""
        if self._inner.eof:
            piece = self._inner.unused_data or self._next()
            if not piece.strip(b"\0"):
                # Zeroes behind the last stream are padding.
                if piece and self._next():
                    raise BadArchive(f"the archive is not proper {self._kind}: something follows its end")
                self._ended = True
                return b""
            self._inner = _new(self._kind)
        elif self._inner.wants_input:
            piece = self._next()
            if not piece:
                raise BadArchive(f"the archive is cut off inside its {self._kind} data")
        return self._inner.step(piece, count)

    def _next(self) -> bytes:
        piece = self._source.read(PIECE)
        self._fed += len(piece)
        return piece


def _new(kind: str) -> _Decompressor:
    match kind:
        case "gz":
            return _Gzip()
        case "bz2":
            return _Other(bz2.BZ2Decompressor())
        case "xz":
            return _Other(lzma.LZMADecompressor(memlimit=XZ_MEMORY_MAX))
        case _:
            raise BadArchive(f"there is nothing here that unpacks {kind!r}")


def open_stream(source: BinaryIO, kind: str, budget: Budget) -> Reader:
    """Bytes of a file behind its compression (`gz`, `bz2`, `xz`, or empty for none)."""
    return Decompressed(source, kind, budget) if kind else Plain(source, budget)


def read_exactly(source: Reader, count: int) -> bytes:
    """So many bytes, or fewer at the end."""
    pieces = []
    while count > 0 and (data := source.read(min(count, PIECE))):
        pieces.append(data)
        count -= len(data)
    return b"".join(pieces)
