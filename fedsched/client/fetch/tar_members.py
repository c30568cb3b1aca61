"""Our own reader of tar archives: the forms of POSIX (ustar, pax) and GNU, as far as programs are shipped in them.

Python's own module is not used: its filters were got around more than once, and it reads extension headers of any size
into memory. Refused here: hard links, sparse files, devices, FIFOs, extension headers beyond `EXTENSION_MAX`, sizes
that cannot be, and anything whose checksum is wrong. What lies behind the end of the archive is read and thrown away:
only at the end of its compressed form does that form say whether it is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from fedsched.client.fetch.limits import BadArchive, Budget
from fedsched.client.fetch.members import Content, Member, MemberKind
from fedsched.client.fetch.unpacking import PIECE, Reader, read_exactly

BLOCK: Final = 512
EXTENSION_MAX: Final = 128 * 1024
"""A long name has 4 KiB; extended attributes come with it and are passed over."""
SIZE_MAX: Final = 1 << 62
_ENDS: Final = bytes(BLOCK)
_REFUSED: Final = {b"1": "a hard link", b"3": "a device", b"4": "a device", b"6": "a FIFO", b"S": "a sparse file"}
_KINDS: Final = {
    b"0": MemberKind.FILE,
    b"\0": MemberKind.FILE,
    b"7": MemberKind.FILE,
    b"2": MemberKind.SYMLINK,
    b"5": MemberKind.DIRECTORY,
}


@dataclass(slots=True)
class _Extension:
    """What extension headers say about the next member."""

    path: bytes | None = None
    link: bytes | None = None
    size: int | None = None
    records: dict[bytes, bytes] = field(default_factory=dict)


def tar_members(source: Reader, budget: Budget) -> Iterator[Member]:
    """The members of an archive, in its order. What of a member was not read is passed over."""
    extension = _Extension()
    while block := read_exactly(source, BLOCK):
        if len(block) < BLOCK:
            raise BadArchive("the archive is cut off inside a header")
        if block == _ENDS:
            _drain(source)
            return
        budget.entry()
        _check_sum(block)
        kind, size = block[156:157], _number(block[124:136], "size")
        if kind in b"xgLK":
            _extend(extension, kind, _read_extension(source, size))
            continue
        if kind == b"V":
            _skip(source, size)
            continue
        size = size if extension.size is None else extension.size
        member, content = _member(block, kind, size, extension, source)
        extension = _Extension()
        yield member
        if content is not None:
            content.skip()
            _skip_padding(source, size)


def _member(
    block: bytes, kind: bytes, size: int, extension: _Extension, source: Reader
) -> tuple[Member, Content | None]:
    name = _text(extension.path if extension.path is not None else _plain_name(block))
    if kind in _REFUSED or kind not in _KINDS:
        what = _REFUSED.get(kind, f"of an unknown kind {kind!r}")
        raise BadArchive(f"{name[:200]!r} in the archive is {what}; only files, directories and symlinks are unpacked")
    found = MemberKind.DIRECTORY if kind == b"\0" and name.endswith("/") else _KINDS[kind]
    mode = _number(block[100:108], "mode") & 0o7777
    owner = _number(block[108:116], "user"), _number(block[116:124], "group")
    if max(owner) >= 1 << 32:
        raise BadArchive(f"{name[:200]!r} in the archive has an impossible owner")
    if found is MemberKind.FILE:
        content = Content(source, size, name)
        return Member(name, found, mode, owner=owner, data=content), content
    link = extension.link if extension.link is not None else _cut(block[157:257])
    target = _text(link) if found is not MemberKind.DIRECTORY else ""
    return Member(name, found, mode, target, owner), None


def _plain_name(block: bytes) -> bytes:
    name = _cut(block[0:100])
    prefix = _cut(block[345:500]) if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _extend(extension: _Extension, kind: bytes, data: bytes) -> None:
    if kind == b"L":
        extension.path = _cut(data)
    elif kind == b"K":
        extension.link = _cut(data)
    else:
        _extend_pax(extension, _pax_records(data), is_global=kind == b"g")


def _extend_pax(extension: _Extension, records: dict[bytes, bytes], *, is_global: bool) -> None:
    if any(key.startswith(b"GNU.sparse") for key in records):
        raise BadArchive("the archive holds a sparse file; only files, directories and links are unpacked")
    if is_global:
        if {b"path", b"linkpath", b"size"} & set(records):
            raise BadArchive("the archive gives one name or size to all of its members")
        return
    extension.path = records.get(b"path", extension.path)
    extension.link = records.get(b"linkpath", extension.link)
    if (size := records.get(b"size")) is not None:
        if not size.isdigit() or len(size) > 19 or int(size) > SIZE_MAX:
            raise BadArchive(f"the archive names an impossible size {size[:40]!r}")
        extension.size = int(size)


def _pax_records(data: bytes) -> dict[bytes, bytes]:
    """`30 path=some/name\\n` and so on."""
    found = {}
    at = 0
    while at < len(data) and data[at] != 0:
        space = data.find(b" ", at, at + 20)
        digits = data[at:space]
        if space < 0 or not digits.isdigit():
            raise BadArchive("an extension header of the archive cannot be read")
        end = at + int(digits)
        if end > len(data) or end <= space + 1 or data[end - 1 : end] != b"\n":
            raise BadArchive("an extension header of the archive has a wrong length")
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise BadArchive("an extension header of the archive cannot be read")
        found[key] = value
        at = end
    return found


def _read_extension(source: Reader, size: int) -> bytes:
    if size > EXTENSION_MAX:
        raise BadArchive(f"an extension header of the archive has {size} bytes, at most {EXTENSION_MAX} are read")
    data = read_exactly(source, size)
    if len(data) < size:
        raise BadArchive("the archive is cut off inside a header")
    _skip_padding(source, size)
    return data


def _skip(source: Reader, size: int) -> None:
    Content(source, size, "a header").skip()
    _skip_padding(source, size)


def _skip_padding(source: Reader, size: int) -> None:
    if rest := -size % BLOCK:
        read_exactly(source, rest)


def _drain(source: Reader) -> None:
    """To the very end, within the budget: an archive that is cut off there is cut off, too."""
    while source.read(PIECE):
        pass


def _check_sum(block: bytes) -> None:
    told = _number(block[148:156], "checksum")
    rest = block[:148] + b" " * 8 + block[156:]
    signed = sum(byte - 256 if byte > 127 else byte for byte in rest)
    if told not in (sum(rest), signed):
        raise BadArchive("a header of the archive has a wrong checksum: it is damaged, or no tar at all")


def _number(field_: bytes, what: str) -> int:
    """Octal digits, or (GNU, for large ones) the number itself behind a set first bit."""
    if field_[0] & 0x80:
        value = int.from_bytes(bytes([field_[0] & 0x7F]) + field_[1:], "big")
    else:
        digits = field_.split(b"\0")[0].strip()
        if digits.strip(b"01234567"):
            raise BadArchive(f"a header of the archive has a {what} that is no number")
        value = int(digits or b"0", 8)
    if value > SIZE_MAX:
        raise BadArchive(f"the archive names an impossible {what} {value}")
    return value


def _cut(data: bytes) -> bytes:
    return data.split(b"\0", 1)[0]


def _text(name: bytes) -> str:
    return os.fsdecode(name)
