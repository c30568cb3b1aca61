"""Which part of an agent uses the processor: asked a few hundred times per second of processor time.

The kernel interrupts the process after every few milliseconds of work; the innermost function that belongs to a known
part then says whose work it was. It costs a few microseconds each time and needs no clock in the parts themselves. Work
in threads (the log's disk) is seen as what the main thread is then: waiting.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from fedsched.telemetry.metrics import Registry, counter

SAMPLES: Final = counter("process.cpu_samples", "samples of processor time, by what was at work", labels=("part",))
EVERY_S: Final = 0.005
DEPTH_MAX: Final = 60
WAITING: Final = "threads"
OTHERS: Final = "event loop"

PARTS: Final = (
    ("agent/collecting.py", "garbage collection"),
    ("server/uplinks.py", "frames out"),
    ("server/uplink_frames.py", "frames out"),
    ("server/reports.py", "status in"),
    ("server/leader/client_updates", "status in"),
    ("state/tables/alloc_updates.py", "status apply"),
    ("server/fleet_feed.py", "fleet"),
    ("server/leader/plan", "plans"),
    ("server/leader/rejections.py", "plans"),
    ("server/workers.py", "evaluation and placement"),
    ("server/work_source.py", "evaluation and placement"),
    ("server/leader/broker", "broker"),
    ("server/leader/blocked", "broker"),
    ("server/leader/unblocking.py", "broker"),
    ("server/leader/work.py", "broker"),
    ("server/leader/", "leader services"),
    ("server/endpoints/job", "submit"),
    ("server/admission.py", "submit"),
    ("server/endpoints/", "other calls"),
    ("server/machine.py", "apply"),
    ("raft/", "log and replication"),
    ("server/dispatch.py", "calls"),
    ("rpc/", "calls"),
    ("wire/", "links"),
)
"""By file, first match counts. Files that are not here work for whoever called them."""
_IDLE: Final = ("_io_epoll.py", "_io_kqueue.py", "selectors.py")


class CpuShares:
    """Counts samples in a registry while it is on."""

    def __init__(self, registry: Registry) -> None:
        self._samples = registry.counters(SAMPLES)
        self._known: dict[str, str] = {}

    @contextmanager
    def sampling(self, every_s: float = EVERY_S) -> Iterator[None]:
        """Sample until the block ends. Only one at a time, and only in the main thread: that is how signals are."""
        before = signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, every_s, every_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def _sample(self, number: int, frame: FrameType | None) -> None:
        self._samples.labels(self.part_of(frame)).add()

    def part_of(self, frame: FrameType | None) -> str:
        """Whose work this stack is."""
        if frame is not None and frame.f_code.co_filename.endswith(_IDLE):
            return WAITING
        for _ in range(DEPTH_MAX):
            if frame is None:
                break
            part = self._part_of_file(frame.f_code.co_filename)
            if part:
                return part
            frame = frame.f_back
        return OTHERS

    def _part_of_file(self, name: str) -> str:
        known = self._known.get(name)
        if known is None:
            _, _, inside = name.rpartition("fedsched/")
            known = next((part for prefix, part in PARTS if inside.startswith(prefix)), "")
            self._known[name] = known
        return known
