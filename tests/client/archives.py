"""Archives for tests, hostile ones among them, written byte by byte where no tool would make them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass

BLOCK = 512


@dataclass
class Entry:
    name: str | bytes
    data: bytes = b""
    kind: bytes = b"0"
    target: str | bytes = b""
    mode: int = 0o644
    size: int | None = None
    """As the header says it, if that is not the truth."""
    magic: bytes = b"ustar\x0000"
    prefix: bytes = b""
    uid: int = 0
    gid: int = 0


def tar_header(entry: Entry) -> bytes:
    size = len(entry.data) if entry.size is None else entry.size
    told = f"{size:011o}\0".encode() if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    block = b"".join(
        (
            _bytes(entry.name)[:100].ljust(100, b"\0"),
            f"{entry.mode:07o}\0".encode(),
            f"{entry.uid:07o}\0{entry.gid:07o}\0".encode(),
            told,
            b"00000000000\0",
            b" " * 8,
            entry.kind,
            _bytes(entry.target)[:100].ljust(100, b"\0"),
            entry.magic,
            b"\0" * 80,
            entry.prefix.ljust(155, b"\0"),
        )
    ).ljust(BLOCK, b"\0")
    return block[:148] + f"{sum(block):06o}\0 ".encode() + block[156:]


def tar(entries: Iterable[Entry], *, ends: bool = True) -> bytes:
    out = io.BytesIO()
    for entry in entries:
        out.write(tar_header(entry))
        out.write(entry.data + b"\0" * (-len(entry.data) % BLOCK))
    return out.getvalue() + (b"\0" * 2 * BLOCK if ends else b"")


def pax(**records: str | bytes) -> Entry:
    """An extension header for the entry after it; names with a dot come as `GNU__sparse`."""
    body = b""
    for key, value in records.items():
        rest = b" " + key.replace("__", ".").encode() + b"=" + _bytes(value) + b"\n"
        length = len(rest)
        while len(str(length)) + len(rest) != length:
            length = len(str(length)) + len(rest)
        body += str(length).encode() + rest
    return Entry("pax", body, kind=b"x")


def packed(data: bytes, kind: str) -> bytes:
    return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "": bytes}[kind](data)


def zipped(entries: Iterable[tuple[str, bytes, int]], *, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Names, contents and (whole) modes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data, mode in entries:
            info = zipfile.ZipInfo("placeholder")
            info.filename = name
            info.orig_filename = name
            info.external_attr = mode << 16
            info.compress_type = compression
            archive.writestr(info, data)
    return out.getvalue()


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
