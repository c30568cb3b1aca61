"""The process that downloads: started for one artifact, restricted before it looks at anything, gone afterwards.

It is told what to do in one line of JSON on its standard input (never on its command line, which everybody can read)
and answers with one line on its standard output. Its input stays open as long as the agent lives: when the agent dies,
the kernel ends this process, too.
"""

from __future__ import annotations

import codecs
import ctypes
import fcntl
import hashlib
import json
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from fedsched.client.fetch.archive import archive_kind, unpack
from fedsched.client.fetch.http_source import HttpRules, download
from fedsched.client.fetch.landlock import READ, restrict
from fedsched.client.fetch.limits import FetchFailed, FetchLimits
from fedsched.client.fetch.sources import checksum_from, read_checksum
from fedsched.client.fetch.tree import TreeRules

REQUEST_MAX: Final = 1 << 20
LISTING_MAX: Final = 1 << 20
PIECE: Final = 256 * 1024
MEMORY_MAX: Final = 1 << 30
HANDLES_MAX: Final = 128
CPU_S: Final = 3600
PR_SET_DUMPABLE: Final = 4
READABLE: Final = dict.fromkeys(
    (
        "/etc/ssl",
        "/etc/pki",
        "/etc/ca-certificates",
        "/usr/share/ca-certificates",
        "/usr/lib/ssl",
        "/etc/resolv.conf",
        "/run/systemd/resolve",
        "/etc/hosts",
        "/etc/nsswitch.conf",
        "/etc/gai.conf",
        "/etc/host.conf",
        "/etc/services",
        "/lib",
        "/lib64",
        "/usr/lib",
    ),
    READ,
)
"""What looking names up and checking certificates needs."""

ENCODINGS: Final = ("ascii", "latin-1", "utf-8", "idna", "cp437")
"""What headers, host names and zip files are written in. Python loads them from disk when they are first asked for."""

DOWNLOAD: Final = "download"
TREE: Final = "tree"


@dataclass(frozen=True, slots=True)
class Order:
    """What one child is to do."""

    staging_fd: int
    """The directory that is all it may write to."""
    file_name: str
    url: str = ""
    source_fd: int = -1
    """An open file in place of a URL."""
    headers: dict[str, str] = field(default_factory=dict)
    checksum: str = ""
    archive: str = ""
    mode: str = "any"
    insecure: bool = False
    schemes: tuple[str, ...] = ()
    allowed_networks: tuple[str, ...] = ()
    limits: FetchLimits = field(default_factory=FetchLimits)
    uid: int = -1
    """Whom to become; -1: nobody else."""
    is_restricted: bool = True
    checks_links: bool = True
    """Whether symlinks of an archive must lead to something inside it."""

    @classmethod
    def read(cls, line: str) -> Order:
        fields = json.loads(line)
        fields["limits"] = FetchLimits(**fields["limits"])
        for name in ("schemes", "allowed_networks"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


def main() -> int:
    """Read the order, give up what is not needed, do it, and say how it went."""
    try:
        order = Order.read(sys.stdin.buffer.readline(REQUEST_MAX).decode())
        die_with_agent()
        give_up(order)
        answer = {"ok": True, **carry_out(order)}
    except FetchFailed as error:
        answer = {"ok": False, "error": str(error), "is_recoverable": error.is_recoverable}
    except MemoryError:
        answer = {"ok": False, "error": "unpacking needs more memory than it may have", "is_recoverable": False}
    except OSError as error:
        answer = {"ok": False, "error": f"{error.strerror or error}", "is_recoverable": True}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    return 0


def die_with_agent() -> None:
    """Have the kernel end the whole process group when the other end of our input is closed."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)


def give_up(order: Order) -> None:
    """Limits, user, and the disk. In this order: a user without rights could not set the rest."""
    for name in ENCODINGS:
        codecs.lookup(name)
    most = max(order.limits.download_bytes, order.limits.extracted_bytes)
    for what, value in (
        (resource.RLIMIT_FSIZE, most + 1),
        (resource.RLIMIT_AS, MEMORY_MAX),
        (resource.RLIMIT_NOFILE, HANDLES_MAX),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_CORE, 0),
    ):
        _limit(what, value)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.umask(0o022)
    if order.uid >= 0:
        os.setgroups([])
        os.setresgid(order.uid, order.uid, order.uid)
        os.setresuid(order.uid, order.uid, order.uid)
        _limit(resource.RLIMIT_NPROC, 0)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    if order.is_restricted:
        try:
            restrict([order.staging_fd], READABLE)
        except OSError as error:
            raise FetchFailed(
                f"a download cannot be confined here ({error.strerror or error});"
                " the client setting artifact.disable_filesystem_isolation lets it run all the same"
            ) from None


def carry_out(order: Order) -> dict[str, Any]:
    """Download, check, unpack: the result is in `tree` below the staging directory."""
    os.mkdir(TREE, 0o755, dir_fd=order.staging_fd)
    size = _download(order)
    kind = archive_kind(order.file_name, order.archive)
    if kind is None:
        if order.mode == "dir":
            raise FetchFailed(f"{order.file_name[:200]!r} is no archive, and mode = dir needs one")
        _move_whole(order)
    else:
        _unpack(order, kind[0])
    if order.mode == "file":
        _check_lone_file(order)
    return {"bytes": size}


def _download(order: Order) -> int:
    wanted = _wanted_checksum(order)
    digest = hashlib.new(wanted[0], usedforsecurity=False) if wanted else None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(DOWNLOAD, flags, 0o600, dir_fd=order.staging_fd)

    def write(data: bytes) -> None:
        if digest is not None:
            digest.update(data)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    try:
        size = (
            _copy(order, write)
            if order.source_fd >= 0
            else download(order.url, order.headers, _rules(order), order.limits, write)
        )
    finally:
        os.close(fd)
    if wanted and digest is not None and digest.hexdigest() != wanted[1]:
        raise FetchFailed(
            f"{order.file_name[:200]!r} has the {wanted[0]} {digest.hexdigest()}, expected is {wanted[1]}",
            is_recoverable=True,
        )
    return size


def _copy(order: Order, write: Callable[[bytes], None]) -> int:
    total = 0
    while data := os.read(order.source_fd, PIECE):
        total += len(data)
        if total > order.limits.download_bytes:
            raise FetchFailed(f"{order.file_name[:200]!r} has more than {order.limits.download_bytes} bytes")
        write(data)
    return total


def _wanted_checksum(order: Order) -> tuple[str, str] | None:
    if not order.checksum:
        return None
    kind, value = read_checksum(order.checksum)
    if kind != "file":
        return kind, value
    pieces: list[bytes] = []
    limits = FetchLimits(download_bytes=LISTING_MAX, stall_s=order.limits.stall_s, redirects=order.limits.redirects)
    download(value, order.headers, _rules(order), limits, pieces.append)
    return checksum_from(b"".join(pieces).decode(errors="replace"), order.file_name)


def _rules(order: Order) -> HttpRules:
    return HttpRules(order.schemes, order.allowed_networks, order.insecure)


def _move_whole(order: Order) -> None:
    tree = os.open(TREE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=order.staging_fd)
    try:
        os.chmod(DOWNLOAD, 0o644, dir_fd=order.staging_fd)
        os.rename(DOWNLOAD, order.file_name, src_dir_fd=order.staging_fd, dst_dir_fd=tree)
    finally:
        os.close(tree)


def _unpack(order: Order, suffix: str) -> None:
    found = archive_kind(f"x.{suffix}", "")
    assert found is not None
    name = order.file_name[: -len(suffix) - 1] if order.file_name.lower().endswith(f".{suffix}") else order.file_name
    tree = os.open(TREE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=order.staging_fd)
    try:
        fd = os.open(DOWNLOAD, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=order.staging_fd)
        with os.fdopen(fd, "rb", buffering=PIECE) as file:
            unpack(
                file, found[1], name or order.file_name, tree, order.limits, TreeRules(checks_links=order.checks_links)
            )
    finally:
        os.close(tree)
    os.unlink(DOWNLOAD, dir_fd=order.staging_fd)


def _check_lone_file(order: Order) -> None:
    tree = os.open(TREE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=order.staging_fd)
    try:
        names = os.listdir(tree)
        is_file = len(names) == 1 and stat.S_ISREG(os.stat(names[0], dir_fd=tree, follow_symlinks=False).st_mode)
        if not is_file:
            raise FetchFailed(f"{order.file_name[:200]!r} holds more than one file, and mode = file needs one")
    finally:
        os.close(tree)


def _limit(what: int, value: int) -> None:
    _, hard = resource.getrlimit(what)
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(what, (most, most))
