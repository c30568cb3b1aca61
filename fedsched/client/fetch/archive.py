"""Which kind of archive a file is, and unpacking it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Final

from fedsched.client.fetch.limits import Budget, FetchFailed, FetchLimits
from fedsched.client.fetch.members import Content, Member, MemberKind
from fedsched.client.fetch.tar_members import tar_members
from fedsched.client.fetch.tree import STRANGERS, TreeRules, write_tree
from fedsched.client.fetch.unpacking import open_stream
from fedsched.client.fetch.zip_members import zip_members


@dataclass(frozen=True, slots=True)
class ArchiveKind:
    container: str
    """`tar`, `zip`, or nothing: one compressed file."""
    compression: str


KINDS: Final = {
    "tar": ArchiveKind("tar", ""),
    "tar.gz": ArchiveKind("tar", "gz"),
    "tgz": ArchiveKind("tar", "gz"),
    "tar.bz2": ArchiveKind("tar", "bz2"),
    "tbz2": ArchiveKind("tar", "bz2"),
    "tar.xz": ArchiveKind("tar", "xz"),
    "txz": ArchiveKind("tar", "xz"),
    "zip": ArchiveKind("zip", ""),
    "gz": ArchiveKind("", "gz"),
    "bz2": ArchiveKind("", "bz2"),
    "xz": ArchiveKind("", "xz"),
}
UNKNOWN: Final = ("tar.zst", "tzst", "zst", "7z", "rar")
"""Archives that we know for what they are and cannot unpack; better said than left lying as a file."""


def archive_kind(name: str, option: str) -> tuple[str, ArchiveKind] | None:
    """The kind of an artifact by its `archive` option, else by its file name; None if it is to be left as it is."""
    if option in ("false", "0"):
        return None
    if option and option not in ("true", "1"):
        kind = KINDS.get(option.lstrip("."))
        if kind is None:
            raise FetchFailed(f"archive = {option[:40]!r} is unknown; known: {', '.join(KINDS)}, false")
        return option.lstrip("."), kind
    lower = name.lower()
    for suffix in sorted((*KINDS, *UNKNOWN), key=len, reverse=True):
        if lower.endswith(f".{suffix}"):
            if suffix not in KINDS:
                raise FetchFailed(
                    f"{name[:200]!r}: {suffix} archives cannot be unpacked here; say archive = false to keep it"
                )
            return suffix, KINDS[suffix]
    return None


def unpack(
    file: BinaryIO, kind: ArchiveKind, name: str, root: int, limits: FetchLimits, rules: TreeRules = STRANGERS
) -> None:
    """Unpack a file into an empty directory of ours. `name` is what a single compressed file becomes."""
    write_tree(root, _members(file, kind, name, limits), rules)


def _members(file: BinaryIO, kind: ArchiveKind, name: str, limits: FetchLimits) -> Iterator[Member]:
    budget = Budget(limits)
    if kind.container == "zip":
        return zip_members(file, os.fstat(file.fileno()).st_size, budget, limits.entries)
    stream = open_stream(file, kind.compression, budget)
    if kind.container == "tar":
        return tar_members(stream, budget)
    return iter([Member(name, MemberKind.FILE, data=Content(stream, None, name))])
