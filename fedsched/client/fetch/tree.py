"""Writing what an archive holds into a directory, and never anywhere else.

The archive is an enemy: names may be absolute, climb with `..`, lead through links it made itself, name the same thing
twice in another kind, or point at what is not theirs. So: every name is taken apart and refused unless it is plainly
inside; every step goes through directory handles that follow no symlink; symlinks are made only when everything else is
there, and must then lead to something inside; hard links are not read at all. Modes lose what lets a file be more than
a file (setuid, setgid, sticky) and what lets strangers write.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from fedsched.client.beneath import PathEscapes, open_beneath
from fedsched.client.fetch.limits import COMPONENT_BYTES_MAX, DEPTH_MAX, BadArchive
from fedsched.client.fetch.members import Member, MemberKind

TARGET_BYTES_MAX: Final = 4095
NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
HANDLE: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class TreeRules:
    """What may differ for archives that come from our own hosts."""

    keeps_owners: bool = False
    bits: int = 0o755
    """What is left of a mode."""
    checks_links: bool = True
    """Whether symlinks must lead to something inside."""
    depth_max: int = DEPTH_MAX


STRANGERS: Final = TreeRules()


def write_tree(root: int, members: Iterable[Member], rules: TreeRules = STRANGERS) -> None:
    """Write all members below a directory that is empty and ours alone. `BadArchive` names the one that is refused."""
    tree = _Tree(root, rules)
    for member in members:
        tree.add(member)
    tree.finish()


def safe_parts(name: str, depth_max: int = DEPTH_MAX) -> list[str]:
    """The components of a member's name; none for the root itself. Refuses what is not plainly inside."""
    if "\0" in name or not _is_storable(name):
        raise BadArchive(f"the name {name[:200]!r} in the archive cannot be a file name")
    if name.startswith("/"):
        raise BadArchive(f"the name {name[:200]!r} in the archive is absolute")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadArchive(f"the name {name[:200]!r} in the archive climbs out with '..'")
    if len(parts) > depth_max:
        raise BadArchive(
            f"the name {name[:80]!r}... in the archive is {len(parts)} directories deep, {depth_max} at most"
        )
    for part in parts:
        if len(os.fsencode(part)) > COMPONENT_BYTES_MAX:
            raise BadArchive(f"the name {part[:80]!r}... in the archive is too long")
    return parts


def _is_storable(name: str) -> bool:
    """Zip files may name what no file system can store (lone surrogates)."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


class _Tree:
    def __init__(self, root: int, rules: TreeRules) -> None:
        self._root = root
        self._rules = rules
        self._links: dict[tuple[str, ...], str] = {}
        """Symlinks that are still to be made."""
        self._directories: dict[tuple[str, ...], Member] = {}
        """Their modes are set when all is written: a closed one could not be filled."""

    def add(self, member: Member) -> None:
        parts = tuple(safe_parts(member.name, self._rules.depth_max))
        if not parts:
            if member.kind is MemberKind.DIRECTORY:
                return
            raise BadArchive(f"the name {member.name[:200]!r} in the archive names nothing")
        try:
            self._add(parts, member)
        except OSError as error:
            if error.errno not in (errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG):
                raise
            raise BadArchive(
                f"{member.name[:200]!r} in the archive collides with another entry ({error.strerror})"
            ) from None

    def finish(self) -> None:
        """Make the symlinks, then look at every one of them: it must lead to something that is inside."""
        for parts, target in self._links.items():
            with _Directory(self._root, parts[:-1]) as parent:
                try:
                    os.symlink(target, parts[-1], dir_fd=parent)
                except FileExistsError:
                    raise BadArchive(f"{'/'.join(parts)[:200]!r} in the archive is a link and a directory") from None
        if self._rules.checks_links:
            self._check_links()
        for parts, member in sorted(self._directories.items(), key=lambda item: item[0], reverse=True):
            with _Directory(self._root, parts) as fd:
                self._give(fd, member, 0o700)

    def _check_links(self) -> None:
        for parts, target in self._links.items():
            path = "/".join(parts)
            try:
                os.close(open_beneath(self._root, path, os.O_PATH))
            except PathEscapes:
                raise BadArchive(f"the link {path[:200]!r} -> {target[:200]!r} leads out of the archive") from None
            except OSError as error:
                raise BadArchive(
                    f"the link {path[:200]!r} -> {target[:200]!r} leads nowhere ({error.strerror})"
                ) from None

    def _add(self, parts: tuple[str, ...], member: Member) -> None:
        with _Directory(self._root, parts[:-1], makes=True) as parent:
            match member.kind:
                case MemberKind.DIRECTORY:
                    self._directory(parent, parts, member)
                case MemberKind.FILE:
                    self._file(parent, parts, member)
                case MemberKind.SYMLINK:
                    self._symlink(parent, parts, member.target)

    def _directory(self, parent: int, parts: tuple[str, ...], member: Member) -> None:
        if parts in self._links:
            raise BadArchive(f"{'/'.join(parts)[:200]!r} in the archive is a link and a directory")
        with suppress(FileExistsError):
            os.mkdir(parts[-1], 0o755, dir_fd=parent)
        os.close(os.open(parts[-1], HANDLE, dir_fd=parent))
        self._directories[parts] = member

    def _file(self, parent: int, parts: tuple[str, ...], member: Member) -> None:
        self._replace(parent, parts)
        fd = os.open(parts[-1], NEW_FILE, 0o600, dir_fd=parent)
        try:
            for piece in member.data.pieces() if member.data is not None else ():
                view = memoryview(piece)
                while view:
                    view = view[os.write(fd, view) :]
            self._give(fd, member, 0o600)
        finally:
            os.close(fd)

    def _symlink(self, parent: int, parts: tuple[str, ...], target: str) -> None:
        if not target or "\0" in target or not _is_storable(target) or len(os.fsencode(target)) > TARGET_BYTES_MAX:
            raise BadArchive(f"the link {'/'.join(parts)[:200]!r} in the archive has an impossible target")
        if self._rules.checks_links and target.startswith("/"):
            raise BadArchive(f"the link {'/'.join(parts)[:200]!r} -> {target[:200]!r} leads out of the archive")
        self._replace(parent, parts)
        self._links[parts] = target

    def _give(self, fd: int, member: Member, least: int) -> None:
        if self._rules.keeps_owners and member.owner is not None:
            os.fchown(fd, *member.owner)
        os.fchmod(fd, member.mode & self._rules.bits | least)

    def _replace(self, parent: int, parts: tuple[str, ...]) -> None:
        """The later of two entries with the same name wins, unless one is a directory."""
        self._links.pop(parts, None)
        with suppress(FileNotFoundError):
            os.unlink(parts[-1], dir_fd=parent)


class _Directory:
    """A handle of a directory of the tree, reached step by step without following anything."""

    def __init__(self, root: int, parts: tuple[str, ...], *, makes: bool = False) -> None:
        self._root = root
        self._parts = parts
        self._makes = makes
        self._fd = -1

    def __enter__(self) -> int:
        if not self._parts:
            self._fd = os.dup(self._root)
            return self._fd
        path = "/".join(self._parts)
        try:
            self._fd = open_beneath(self._root, path, HANDLE, follow=False)
        except FileNotFoundError:
            if not self._makes:
                raise
            self._fd = self._made()
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _made(self) -> int:
        here = os.dup(self._root)
        for part in self._parts:
            try:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=here)
                inner = os.open(part, HANDLE, dir_fd=here)
            finally:
                os.close(here)
            here = inner
        return here
