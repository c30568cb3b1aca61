"""Syncs that fail and disks that are full: no acknowledgement afterwards, nothing lost, and a restart works.

The failing sync is made by a small library put in front of the C library's, compiled on the spot; where there is no C
compiler those tests are skipped, and `test_storage.py` still covers the same promise with a failing connection.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.sizes import size

COMPILER = shutil.which("cc") or shutil.which("gcc")

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
static long countdown = -1;
long syncs_seen = 0;
void fail_sync_after(long n) { countdown = n; syncs_seen = 0; }
static int fails(void) { syncs_seen++; return countdown >= 0 && countdown-- == 0; }
int fsync(int fd) {
    static int (*real)(int); if (!real) real = dlsym(RTLD_NEXT, "fsync");
    if (fails()) { errno = EIO; return -1; }
    return real(fd);
}
int fdatasync(int fd) {
    static int (*real)(int); if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    if (fails()) { errno = EIO; return -1; }
    return real(fd);
}
"""

PRELUDE = textwrap.dedent(
    """
    import ctypes, os, resource, shutil, signal, sys, tempfile
    from pathlib import Path
    from fedsched.raft.entry import Entry, EntryKind
    from fedsched.raft.storage import LogStore, StoreFailed, StoreWrite

    base = Path(sys.argv[1])

    def entry(index):
        return Entry(index, 1, EntryKind.COMMAND, b"payload %d" % index * 30)

    def write_until_failure(store, limit, first=1):
        # Entries acknowledged before the first error; every attempt after it must fail too.
        acked = first - 1
        for index in range(first, limit):
            try:
                store.write([StoreWrite(index, None, None, (entry(index),))])
                store.tidy(is_idle=False)
            except StoreFailed as error:
                for attempt in range(3):
                    try:
                        store.write([StoreWrite(index, None, None, (entry(index),))])
                    except StoreFailed:
                        continue
                    raise AssertionError("acknowledged after a failure")
                return acked, error
            acked = index
        return acked, None

    def found_in_copy(directory):
        # A poisoned store keeps its file; the next process is played by a copy.
        copy = base / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(directory, copy)
        store = LogStore(copy / "log.db", recycle_wal=False)
        try:
            return store.recover()
        finally:
            store.close()
    """
)

FAILING_SYNCS = PRELUDE + textwrap.dedent(
    """
    shim = ctypes.CDLL(None)
    failed = 0
    for n in range(0, 200, int(sys.argv[2])):
        directory = base / f"n{n}"
        directory.mkdir()
        store = LogStore(directory / "log.db", wal_bytes_max=20_000, recycle_wal=False)
        store.recover()
        shim.fail_sync_after(n)
        acked, error = write_until_failure(store, 260)
        shim.fail_sync_after(-1)
        store.close()
        if error is None:
            raise AssertionError(f"sync {n} of {ctypes.c_long.in_dll(shim, 'syncs_seen').value} never failed")
        found = found_in_copy(directory)
        assert len(found.entries) in (acked, acked + 1), (n, acked, len(found.entries))
        assert all(e == entry(e.index) for e in found.entries)
        shutil.rmtree(directory)
        failed += 1
    print("failed", failed)
    """
)

FAILING_START = PRELUDE + textwrap.dedent(
    """
    shim = ctypes.CDLL(None)
    directory = base / "start"
    directory.mkdir()
    store = LogStore(directory / "log.db", wal_bytes_max=20_000)
    store.recover()
    acked, _ = write_until_failure(store, 50)
    store.close()
    refused = 0
    for n in range(12):
        shutil.copytree(directory, base / f"again{n}")
        store = LogStore(base / f"again{n}" / "log.db", wal_bytes_max=20_000)
        shim.fail_sync_after(n)
        try:
            store.recover()
        except StoreFailed:
            refused += 1
        shim.fail_sync_after(-1)
        store.close()
        assert len(found_in_copy(base / f"again{n}").entries) == acked
    assert refused > 2, refused
    print("refused", refused)
    """
)

FILE_SIZE_LIMIT = PRELUDE + textwrap.dedent(
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    acked = 0
    directory = base / "limited"
    directory.mkdir()
    for cycle in range(30):
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store = LogStore(directory / "log.db", wal_bytes_max=1 << 20, recycle_wal=False)
        found = store.recover()
        assert len(found.entries) in (acked, acked + 1), (cycle, acked, len(found.entries))
        wal = directory / "log.db-wal"
        room = (wal.stat().st_size if wal.exists() else 0) + 9_000 + 700 * cycle
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        acked, error = write_until_failure(store, 100_000, first=len(found.entries) + 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert error is not None and "failed while" in str(error)
        store.close()
        following = base / f"limited{cycle}"
        shutil.copytree(directory, following)
        shutil.rmtree(directory)
        directory = following
    print("entries", acked)
    """
)

FULL_DISK = PRELUDE + textwrap.dedent(
    """
    def one_life(cycle, acked):
        store = LogStore(base / "log.db", wal_bytes_max=30_000, recycle_wal=False)
        found = store.recover()
        assert len(found.entries) in (acked, acked + 1), (cycle, acked, len(found.entries))
        with (base / "filler").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)) == 4096:
                    pass
            except OSError:
                pass
            file.truncate(max(0, file.tell() - 12_000 - 1024 * cycle))
        acked, error = write_until_failure(store, 100_000, first=len(found.entries) + 1)
        assert error is not None and "full" in error.hint, error
        (base / "filler").unlink()
        return acked

    acked = 0
    for cycle in range(30):
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(writer, str(one_life(cycle, acked)).encode())
                os._exit(0)
            except BaseException as error:
                print(error, file=sys.stderr, flush=True)
                os._exit(1)
        os.close(writer)
        _, status = os.waitpid(pid, 0)
        assert status == 0, cycle
        acked = int(os.read(reader, 20))
        os.close(reader)
    print("entries", acked)
    """
)


def run(script: str, base: Path, *more: str, **environment: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", script, str(base), *more],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> str:
    if COMPILER is None:
        pytest.skip("no C compiler here: the library that fails syncs cannot be made")
    directory = tmp_path_factory.mktemp("shim")
    (directory / "shim.c").write_text(SHIM)
    library = directory / "shim.so"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, directory / "shim.c", "-ldl"], check=True)
    return str(library)


@pytest.mark.processes
def test_a_failed_sync_is_the_end_of_acknowledgements_and_loses_none(shim: str, tmp_path: Path) -> None:
    """The first 200 syncs of a life fail in their turn (every third of them, unless it is a long run), those of
    checkpoints included.
    """
    every = size(3, 1)
    assert run(FAILING_SYNCS, tmp_path, str(every), LD_PRELOAD=shim) == f"failed {len(range(0, 200, every))}\n"


@pytest.mark.processes
def test_a_sync_that_fails_during_the_start_fails_the_start_and_no_data(shim: str, tmp_path: Path) -> None:
    assert run(FAILING_START, tmp_path, LD_PRELOAD=shim).startswith("refused")


@pytest.mark.processes
def test_a_write_that_finds_no_room_ends_the_store_and_the_next_start_goes_on(tmp_path: Path) -> None:
    """Thirty lives, each ended by a file size limit somewhere in the middle of a write."""
    assert int(run(FILE_SIZE_LIMIT, tmp_path).split()[1]) > 30


@pytest.mark.processes
def test_a_full_disk_is_named_and_a_start_with_room_goes_on(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, check=False, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        assert int(run(FULL_DISK, disk).split()[1]) > 10
    finally:
        subprocess.run(["umount", disk], check=True)
