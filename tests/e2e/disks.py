"""Disks that fail, stall, fill up or forget, under real agents."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.region import Server
from tests.raft.test_storage_faults import COMPILER

MIB = 1024 * 1024
BLOCK = 4096


class SyncShim:
    """A library before the C library's syncs, one set of controls per server. See `disk_shim.c`."""

    def __init__(self, directory: Path) -> None:
        if COMPILER is None:
            pytest.skip("no C compiler here: the library that fails and delays syncs cannot be made")
        self._directory = directory
        self._library = directory / "disk_shim.so"
        source = Path(__file__).with_name("disk_shim.c")
        subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", self._library, source, "-ldl"], check=True)

    def put_under(self, server: Server) -> None:
        """From its next start on, the server's syncs go through the shim."""
        self._controls(server).mkdir(exist_ok=True)
        server.prefix = ["env", f"LD_PRELOAD={self._library}", f"DISK_SHIM={self._controls(server)}"]

    def remove(self, server: Server) -> None:
        server.prefix = []

    def fail(self, server: Server) -> None:
        (self._controls(server) / "fail").touch()

    def failed_at(self, server: Server) -> float:
        """When the first sync failed, on the monotonic clock."""
        return float((self._controls(server) / "failed").read_text())

    def delay(self, server: Server, seconds: float) -> None:
        ready = self._controls(server) / "delay.new"
        ready.write_text(f"{seconds * 1000:.0f}")
        ready.rename(self._controls(server) / "delay")

    def _controls(self, server: Server) -> Path:
        return self._directory / f"shim-{server.name}"


class SmallDisk:
    """A file system of its own under one server's data directory, with a file that takes what room there is."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def free(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Take all room but so many bytes."""
        with self._filler.open("ab") as file:
            while (more := self.free - leave) >= BLOCK:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, more // BLOCK * BLOCK)

    def make_room(self) -> None:
        self._filler.unlink()

    @property
    def _filler(self) -> Path:
        return self.path / "somebody-elses-file"


@contextmanager
def small_disk(server: Server, size: int) -> Iterator[SmallDisk]:
    """Mount a memory file system as the server's data directory; the server must be gone when this ends."""
    server.data_dir.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", server.data_dir],
        capture_output=True,
        check=False,
        text=True,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(server.data_dir)
    finally:
        server.kill()
        subprocess.run(["umount", server.data_dir], check=True)


def flip_bit(path: Path, within: bytes = b"") -> None:
    """Flip one bit of a file: of these bytes, wherever there is a copy of them, or in the middle.

    A database keeps old copies in pages it no longer uses; damage there would prove nothing.
    """
    data = path.read_bytes()
    if within:
        assert within in data, f"{within!r} is not in {path}"
        path.write_bytes(data.replace(within, bytes([within[0] ^ 0x10]) + within[1:]))
    else:
        at = len(data) // 2
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
