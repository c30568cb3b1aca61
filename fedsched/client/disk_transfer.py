"""Taking over an ephemeral disk from another host: its archive comes through the servers, and is nobody's friend.

It is written to a file first, bounded by the disk that the group asked for, and then unpacked by our own reader (see
`fetch.tree`) next to where it belongs. Only `alloc/data` and each task's `local` are taken from it, in one step each.
Owners and modes are kept (less setuid and its like), symlinks stay what the tasks made them: whoever opens a path here
does it through `open_beneath`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import trio

from fedsched.client.alloc_dirs import AllocDirs, make_whole
from fedsched.client.context import AllocContext
from fedsched.client.fetch.limits import Budget, FetchFailed, FetchLimits
from fedsched.client.fetch.members import Member
from fedsched.client.fetch.tar_members import tar_members
from fedsched.client.fetch.tree import TreeRules, write_tree
from fedsched.client.fetch.unpacking import open_stream
from fedsched.client.paths import directory, open_beneath, remove_tree
from fedsched.model.errors import FedschedError
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.alloc_access import FS_SNAPSHOT, SNAPSHOT_ERROR, FsRequest

STAGING: Final = ".migration"
ARCHIVE: Final = "archive"
TREE: Final = "tree"
ENTRIES_MAX: Final = 1_000_000
DEPTH_MAX: Final = 210
TRANSFER_S: Final = 3600.0
MB: Final = 1 << 20
OVERHEAD: Final = 16 * MB
"""What headers and padding may take beyond the files."""


class TransferFailed(FedschedError):
    """The disk of the allocation before cannot be had."""

    code = "transfer_failed"


async def fetch_disk(alloc: AllocContext, previous: str, tasks: list[str]) -> None:
    """Bring the lasting directories of another host's allocation here. `TransferFailed` says why not."""
    limit = alloc.group.ephemeral_disk.size_mb * MB
    await trio.to_thread.run_sync(_prepare, alloc.root)
    try:
        with trio.move_on_after(TRANSFER_S) as patience:
            await _receive(alloc, previous, limit + OVERHEAD)
        if patience.cancelled_caught:
            raise TransferFailed(f"the disk of {previous} did not arrive within {TRANSFER_S:g} s")
        dirs = AllocDirs(alloc.root)
        await dirs.build_lasting(tasks)
        await trio.to_thread.run_sync(_unpack, alloc.root, limit, tasks)
        await dirs.take_over(alloc.root / STAGING / TREE, tasks)
    finally:
        with trio.CancelScope(shield=True):
            # Bounded by what was received.
            await trio.to_thread.run_sync(remove_tree, alloc.root, STAGING)


def _prepare(root: Path) -> None:
    remove_tree(root, STAGING)
    with directory(root) as fd:
        make_whole(fd, STAGING, 0o700)


async def _receive(alloc: AllocContext, previous: str, bytes_max: int) -> None:
    """Write the archive to disk as it comes."""
    caller = await alloc.parts.servers.caller()
    request, meta = FsRequest(alloc_id=previous), CallMeta(namespace=alloc.alloc.namespace)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    fd = open_beneath(alloc.root, f"{STAGING}/{ARCHIVE}", flags, 0o600, follow=False)
    total = 0
    try:
        async with caller.open_stream(FS_SNAPSHOT, request, meta) as stream:
            async for piece in stream:
                total += len(piece)
                if total > bytes_max:
                    raise TransferFailed(
                        f"the disk of {previous} has more than {bytes_max} bytes", hint="ephemeral_disk"
                    )
                await trio.to_thread.run_sync(_write_all, fd, piece)
            await stream.wait_reply()
    finally:
        os.close(fd)


def _unpack(root: Path, bytes_max: int, tasks: list[str]) -> None:
    with directory(root, STAGING, follow=False) as staging:
        make_whole(staging, TREE, 0o700)
        fd = open_beneath(staging, ARCHIVE, os.O_RDONLY, follow=False)
        with os.fdopen(fd, "rb") as file, directory(staging, TREE, follow=False) as tree:
            limits = FetchLimits(extracted_bytes=bytes_max + OVERHEAD, entries=ENTRIES_MAX)
            rules = TreeRules(keeps_owners=os.geteuid() == 0, bits=0o777, checks_links=False, depth_max=DEPTH_MAX)
            try:
                write_tree(tree, _wanted(file, limits, tasks), rules)
            except FetchFailed as error:
                raise TransferFailed(f"the disk cannot be unpacked: {error}") from None


def _wanted(file: BinaryIO, limits: FetchLimits, tasks: list[str]) -> Iterator[Member]:
    """Only what may be taken over. An archive that could not be finished says so at its end."""
    budget = Budget(limits)
    places = ("alloc/data", *(f"{task}/local" for task in tasks))
    for member in tar_members(open_stream(file, "", budget), budget):
        if member.name == SNAPSHOT_ERROR:
            why = b"".join(member.data.pieces())[:1000] if member.data is not None else b""
            raise TransferFailed(f"the other host could not finish: {why.decode(errors='replace')}")
        name = member.name.rstrip("/")
        if name in places or name.startswith(tuple(f"{p}/" for p in places)):
            yield member


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
