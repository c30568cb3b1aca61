"""What the process itself costs: memory, CPU, open files, threads, and how long garbage collection held it up."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from fedsched.telemetry.metrics import Registry, gauge, histogram

RESIDENT: Final = gauge("process.resident_bytes", "memory held in RAM", unit="bytes")
CPU: Final = gauge("process.cpu_seconds", "processor time used since the start, user and system", unit="seconds")
OPEN_FILES: Final = gauge("process.open_files", "file descriptors in use")
THREADS: Final = gauge("process.threads", "threads alive")
GC_PAUSE: Final = histogram("process.gc_pause", "how long one garbage collection stopped everything else")


class ProcessMetrics:
    """Keeps the process figures of one registry fresh between `with` and its end."""

    def __init__(self, registry: Registry) -> None:
        self._resident = registry.gauge(RESIDENT)
        self._cpu = registry.gauge(CPU)
        self._open_files = registry.gauge(OPEN_FILES)
        self._threads = registry.gauge(THREADS)
        self._gc_pause = registry.histogram(GC_PAUSE)
        self._gc_started = 0.0
        registry.before_showing(self.refresh)

    def __enter__(self) -> Self:
        gc.callbacks.append(self._on_gc)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        gc.callbacks.remove(self._on_gc)

    def refresh(self) -> None:
        used = os.times()
        self._cpu.set(used.user + used.system)
        self._threads.set(threading.active_count())
        self._resident.set(resident_bytes())
        self._open_files.set(_open_files())

    def _on_gc(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase == "start":
            self._gc_started = time.perf_counter()
        else:
            self._gc_pause.observe(time.perf_counter() - self._gc_started)


def resident_bytes() -> int:
    """Give this process's memory in RAM; 0 where the system has no /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
