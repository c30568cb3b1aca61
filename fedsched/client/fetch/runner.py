"""One fetch from the agent's side: a staging directory, a child that fills it, and the move to the destination."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trio

from fedsched.client.alloc_dirs import make_whole
from fedsched.client.beneath import PathEscapes, open_beneath
from fedsched.client.fetch.child import TREE, Order
from fedsched.client.fetch.limits import FetchFailed, FetchLimits
from fedsched.client.fetch.place import place_file, place_tree
from fedsched.client.fetch.sources import Source, checksum_from, read_checksum
from fedsched.client.paths import Owner, directory, remove_tree
from fedsched.client.settings import ArtifactLimits
from fedsched.client.task_paths import refuse_reserved
from fedsched.drivers.driver import TaskDirs

STAGING: Final = ".fetch"
FETCH_UID: Final = 79_999
"""A user that nobody else is: just below the range that tasks are given users from (80000 to 89999)."""
ANSWER_MAX: Final = 64 * 1024
CHECKSUMS_MAX: Final = 1 << 20
KILL_S: Final = 5.0
FETCHES: Final = trio.CapacityLimiter(16)
"""Downloads of one agent at a time, over all tasks: each is a process and a share of the line."""
START: Final = (
    "import sys; sys.path.insert(0, sys.argv[1]); from fedsched.client.fetch.child import main; sys.exit(main())"
)
PACKAGE_ROOT: Final = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True, slots=True)
class Fetch:
    """What is to be fetched, and where to."""

    source: Source
    dirs: TaskDirs
    destination: str
    """Relative to the allocation's directory."""
    file_base: str = ""
    """What a `file` source is relative to: the task's directory, relative to the allocation's."""
    mode: str = "any"
    headers: dict[str, str] = field(default_factory=dict)
    insecure: bool = False
    owner: Owner | None = None


async def fetch(wanted: Fetch, settings: ArtifactLimits) -> None:
    """Fetch one artifact. `FetchFailed` says why not; nothing is at the destination then that was not there before,
    unless the disk fails while the result is moved.
    """
    async with FETCHES, _staging(wanted.dirs) as staging_fd:
        with _source_file(wanted) as source_fd:
            order = await trio.to_thread.run_sync(_order, wanted, settings, staging_fd, source_fd)
            with trio.move_on_after(order.limits.timeout_s) as limit:
                await _run_child(order, settings)
            if limit.cancelled_caught:
                raise FetchFailed(
                    f"{wanted.source.shown} took longer than {order.limits.timeout_s:g} s", is_recoverable=True
                )
        await trio.to_thread.run_sync(_place, wanted, staging_fd)


def remove_leftovers(dirs: TaskDirs) -> None:
    """Remove staging directories that an agent which was killed has left behind."""
    prefix = _prefix(dirs)
    with suppress(FileNotFoundError), directory(dirs.alloc) as root:
        for name in os.listdir(root):
            if name.startswith(prefix):
                remove_tree(root, name)


@asynccontextmanager
async def _staging(dirs: TaskDirs) -> AsyncIterator[int]:
    """A directory of its own for one fetch: no two ever share a half-done file."""
    name = f"{_prefix(dirs)}{os.urandom(8).hex()}"
    with directory(dirs.alloc) as root:
        make_whole(root, name, 0o700, Owner(FETCH_UID, FETCH_UID))
        fd = open_beneath(root, name, os.O_RDONLY | os.O_DIRECTORY, follow=False)
    try:
        yield fd
    finally:
        os.close(fd)
        with trio.CancelScope(shield=True):
            # Removing what one bounded fetch wrote takes no longer than writing it did.
            await trio.to_thread.run_sync(remove_tree, dirs.alloc, name)


def _prefix(dirs: TaskDirs) -> str:
    return f"{STAGING}-{dirs.task.name}-"


@contextmanager
def _source_file(wanted: Fetch) -> Iterator[int]:
    """An open file for a source inside the allocation; -1 for one elsewhere."""
    if wanted.source.scheme != "file":
        yield -1
        return
    fd = _open_inside(wanted, wanted.source.location)
    try:
        yield fd
    finally:
        os.close(fd)


def _open_inside(wanted: Fetch, path: str) -> int:
    host = f"{wanted.dirs.alloc}/"
    relative = path.removeprefix(host) if path.startswith(host) else f"{wanted.file_base}/{path}"
    try:
        if path.startswith("/") and not path.startswith(host):
            raise PathEscapes(f"path {path[:200]!r} is absolute")
        fd = open_beneath(wanted.dirs.alloc, relative, os.O_RDONLY)
    except PathEscapes as error:
        raise FetchFailed(f"file source: {error.message}; only files of the allocation can be taken") from None
    except OSError as error:
        raise FetchFailed(f"file source {path[:200]!r}: {error.strerror}", is_recoverable=True) from None
    try:
        refuse_reserved(fd, wanted.dirs.alloc)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FetchFailed(f"file source {path[:200]!r} is no file; a directory can be taken as an archive of it")
    except PathEscapes as error:
        os.close(fd)
        raise FetchFailed(f"file source: {error.message}") from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _order(wanted: Fetch, settings: ArtifactLimits, staging_fd: int, source_fd: int) -> Order:
    source = wanted.source
    _check_scheme(source, settings)
    return Order(
        staging_fd=staging_fd,
        source_fd=source_fd,
        url=source.location if source_fd < 0 else "",
        file_name=source.file_name,
        headers=wanted.headers,
        checksum=_checksum(wanted),
        archive=source.options.get("archive", ""),
        mode=wanted.mode,
        insecure=wanted.insecure,
        schemes=settings.schemes,
        allowed_networks=settings.allowed_networks,
        limits=FetchLimits(
            download_bytes=settings.http_max_bytes,
            entries=settings.decompression_file_count_limit,
            extracted_bytes=settings.decompression_size_limit_bytes,
            timeout_s=settings.http_read_timeout_s,
        ),
        uid=FETCH_UID if os.geteuid() == 0 else -1,
        is_restricted=not settings.disable_filesystem_isolation,
        checks_links=not settings.disable_artifact_inspection,
    )


def _check_scheme(source: Source, settings: ArtifactLimits) -> None:
    if source.scheme not in ("http", "https", "file"):
        raise FetchFailed(
            f"{source.shown[:200]}: artifacts cannot be had by {source.scheme[:20]!r} here;"
            " put an archive of it on a web server"
        )
    if source.scheme not in settings.schemes:
        raise FetchFailed(
            f"{source.shown[:200]}: this client does not fetch over {source.scheme} (client setting artifact.schemes)"
        )


def _checksum(wanted: Fetch) -> str:
    """The checksum as the child takes it; lists that are inside the allocation are read here."""
    text = wanted.source.options.get("checksum", "").strip()
    if not text:
        return ""
    kind, value = read_checksum(text)
    if kind != "file" or "://" in value:
        return text
    fd = _open_inside(wanted, value)
    with os.fdopen(fd, "rb") as file:
        listing = file.read(CHECKSUMS_MAX).decode(errors="replace")
    return ":".join(checksum_from(listing, wanted.source.file_name))


async def _run_child(order: Order, settings: ArtifactLimits) -> None:
    passed = [fd for fd in (order.staging_fd, order.source_fd) if fd >= 0]
    process = await trio.lowlevel.open_process(
        [sys.executable, "-I", "-c", START, PACKAGE_ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=passed,
        env=_environment(settings),
        start_new_session=True,
        cwd="/",
    )
    try:
        answer = await _converse(process, order)
    finally:
        with trio.move_on_after(KILL_S, shield=True):
            await _end(process)
    if not answer.get("ok"):
        raise FetchFailed(str(answer.get("error"))[:2000], is_recoverable=bool(answer.get("is_recoverable")))


async def _converse(process: trio.Process, order: Order) -> dict[str, Any]:
    """Say what is wanted and read one answer. The input stays open: its end would end the child."""
    assert process.stdin is not None
    with suppress(trio.BrokenResourceError):
        await process.stdin.send_all(json.dumps(dataclasses.asdict(order)).encode() + b"\n")
    said = {"out": b"", "err": b""}

    async def read(stream: Any, name: str) -> None:
        async for data in stream:
            said[name] = (said[name] + data)[:ANSWER_MAX]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, process.stdout, "out")
        nursery.start_soon(read, process.stderr, "err")
    code = await process.wait()
    try:
        answer = json.loads(said["out"])
        if not isinstance(answer, dict):
            raise ValueError("no table")
        return answer
    except ValueError:
        last = said["err"].decode(errors="replace").strip().rpartition("\n")[2]
        return {"error": f"the download process ended with {code}: {last[:300]}", "is_recoverable": True}


async def _end(process: trio.Process) -> None:
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()


def _environment(settings: ArtifactLimits) -> dict[str, str]:
    """Nothing of the agent's, but what the operator names."""
    return {name: os.environ[name] for name in settings.set_environment_variables if name in os.environ}


def _place(wanted: Fetch, staging_fd: int) -> None:
    try:
        with directory(staging_fd, TREE, follow=False) as tree:
            if wanted.mode == "file":
                place_file(tree, wanted.dirs, wanted.destination, wanted.owner)
            else:
                place_tree(tree, wanted.source.part, wanted.dirs, wanted.destination, wanted.owner)
    except PathEscapes as error:
        raise FetchFailed(f"destination: {error.message}") from None
    except OSError as error:
        raise FetchFailed(f"the result cannot be put in its place: {error}", is_recoverable=True) from None
