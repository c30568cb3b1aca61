"""Facts about the machine that make a figure comparable: cores, speed of plain Python, durable writes, load."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LOOP_ROUNDS: Final = 300_000
SYNC_BYTES: Final = 1024
SYNC_FILE_BYTES: Final = 1024 * 1024
LOAD_PER_CORE_MAX: Final = 0.5
"""Above this, figures say more about the neighbours than about us."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the machine was like before the run."""

    cores: int
    processor: str
    python: str
    system: str
    loop_ns: float
    """One round of a fixed pure-Python loop, the best of five: the clock that other figures are read against."""
    fdatasync_per_s: float
    """Durable writes of 1 KiB into a zero-filled file on the disk that the bench uses."""
    load_before: float

    @property
    def is_busy(self) -> bool:
        return self.load_before > LOAD_PER_CORE_MAX * self.cores


@dataclass(slots=True)
class Spent:
    """Time between the two ends of a `with measured()`, this process and its finished children together."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


def look_at_machine(directory: Path, *, sync_s: float = 0.5) -> Machine:
    """Measure; takes about a second."""
    load = load_average()
    return Machine(
        cores=os.cpu_count() or 1,
        processor=_processor(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.release()}",
        loop_ns=min(_loop() for _ in range(5)) / LOOP_ROUNDS * 1e9,
        fdatasync_per_s=fdatasync_per_s(directory, sync_s),
        load_before=load,
    )


def load_average() -> float:
    """Give the one-minute load average; 0 where the system has none."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def fdatasync_per_s(directory: Path, seconds: float) -> float:
    """Write 1 KiB and sync, over and over, in one zero-filled file: what the disk allows a log of single entries."""
    path = directory / "fdatasync.bench"
    block = os.urandom(SYNC_BYTES)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, bytes(SYNC_FILE_BYTES))
        os.fsync(fd)
        count = 0
        start = now = time.perf_counter()
        while now - start < seconds:
            os.pwrite(fd, block, count * SYNC_BYTES % SYNC_FILE_BYTES)
            os.fdatasync(fd)
            count += 1
            now = time.perf_counter()
        return count / (now - start)
    finally:
        os.close(fd)
        path.unlink()


@contextmanager
def measured() -> Iterator[Spent]:
    """Fill in the wall and CPU time that the block took."""
    spent = Spent()
    wall, cpu = time.perf_counter(), _cpu_s()
    try:
        yield spent
    finally:
        spent.wall_s = time.perf_counter() - wall
        spent.cpu_s = _cpu_s() - cpu


def _cpu_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _loop() -> float:
    table: dict[int, int] = {}
    total = 0
    start = time.perf_counter()
    for number in range(LOOP_ROUNDS):
        total += number & 7
        table[number & 255] = total
    return time.perf_counter() - start


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
