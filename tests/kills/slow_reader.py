"""The third proof: a task writes 50 MB a second, a reader takes 1 KiB of it a second, and nobody's memory grows.

    python -m tests.kills.slow_reader --seconds 60

The reader follows the task's log over the real websocket of a server, through a line that carries so many bytes a
second (see `throttle`). Every second the resident memory of the agent, of the server and of the task's supervisor is
looked at. The files on the agent's disk are the only buffer there may be: they are rotated away under the reader.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsched.model.errors import FedschedError
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.policies import EphemeralDisk, ReschedulePolicy, RestartPolicy
from fedsched.model.resources import Resources
from fedsched.model.task import LogConfig, Task
from fedsched.rpc.methods.alloc_access import ALLOC_LOGS, AllocLogsRequest
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest
from fedsched.sdk.connect import connect
from tests.e2e.hosts import Asker, HostAgent, running_host, until
from tests.e2e.region import HOST, Server, running_region
from tests.kills.left_behind import processes
from tests.kills.throttle import throttled

GROWTH_MAX_MIB = 32.0
WARM_S = 3.0
"""The task writes for so long before anybody reads: what that costs is no growth."""
READ_SHARE = 0.5
"""Of what the line could carry, so much must come: else nothing was read, and nothing is shown."""
WRITE_SHARE = 0.5
"""Of what the task wants to write, so much must be written meanwhile; a busy machine takes its part of it."""
MIB = 1 << 20

WRITER = """\
import os, sys, time
rate, count = int(sys.argv[1]), sys.argv[2]
piece = (b"x" * 99 + b"\\n") * (rate // 100 // 100)
written, due = 0, time.monotonic()
while True:
    at = 0
    while at < len(piece):
        at += os.write(1, memoryview(piece)[at:])
    written += at
    with open(count + ".new", "w") as file:
        file.write(str(written))
    os.replace(count + ".new", count)
    due = max(due + 0.01, time.monotonic() - 0.1)
    time.sleep(max(0.0, due - time.monotonic()))
"""
"""Writes a hundredth of its rate every hundredth of a second, and how much it was."""


@dataclass
class Memory:
    """Resident memory of one process, from when somebody began to read."""

    first: int = 0
    most: int = 0

    def see(self, size: int) -> None:
        self.first = self.first or size
        self.most = max(self.most, size)

    @property
    def growth_mib(self) -> float:
        return (self.most - self.first) / MIB

    def text(self) -> str:
        return f"{self.first / MIB:.1f} + {self.growth_mib:.1f} MiB"


@dataclass
class Outcome:
    """What was measured, and what it was meant to be."""

    seconds: float = 0.0
    read_wanted: int = 0
    read: int = 0
    write_wanted: int = 0
    written: int = 0
    cuts: int = 0
    agent: Memory = field(default_factory=Memory)
    server: Memory = field(default_factory=Memory)
    supervisors: Memory = field(default_factory=Memory)

    def problems(self) -> list[str]:
        found = []
        for name, memory in (("agent", self.agent), ("server", self.server), ("supervisor", self.supervisors)):
            if memory.growth_mib >= GROWTH_MAX_MIB:
                found.append(f"the {name} grew by {memory.growth_mib:.1f} MiB, {GROWTH_MAX_MIB:g} at most are allowed")
        if self.read < READ_SHARE * self.read_wanted:
            found.append(f"only {self.read:,} bytes came through a line for {self.read_wanted:,}")
        if self.written < WRITE_SHARE * self.write_wanted:
            found.append(f"the task wrote {self.written:,} bytes of {self.write_wanted:,}")
        return found

    def text(self) -> str:
        seconds = max(self.seconds, 0.001)
        return (
            f"{self.seconds:.0f} s: written {self.written / seconds / 1e6:.1f} MB/s, "
            f"read {self.read / seconds:,.0f} B/s ({self.cuts} cuts); agent {self.agent.text()}, "
            f"server {self.server.text()}, task and supervisors {self.supervisors.text()}"
        )


class Trial:
    """A task that writes, whoever reads it or not."""

    def __init__(self, host: HostAgent, server: Server, alloc_id: str, count: Path, write_rate: int) -> None:
        self._host = host
        self._server = server
        self._alloc_id = alloc_id
        self._count = count
        self._write_rate = write_rate

    def read(
        self,
        seconds: float,
        bytes_per_s: int,
        say: Callable[[str], None],
        is_enough: Callable[[Outcome], bool] = lambda _: False,
    ) -> Outcome:
        """Read so slowly for so long, or until it is enough, and tell what it cost."""
        outcome = Outcome(read_wanted=int(seconds * bytes_per_s), write_wanted=int(seconds * self._write_rate))
        over = threading.Event()
        written, began = self._written(), time.monotonic()
        self._look(outcome)
        with throttled((HOST, self._server.http_port), bytes_per_s) as line:
            reader = threading.Thread(target=self._follow, args=(line.address, over, outcome), daemon=True)
            reader.start()
            while (gone := time.monotonic() - began) < seconds and not is_enough(outcome):
                time.sleep(min(1.0, seconds - gone))
                self._look(outcome)
                outcome.seconds = time.monotonic() - began
                outcome.read, outcome.written = line.passed, self._written() - written
                say(outcome.text())
            over.set()
        reader.join(10)
        return outcome

    def _follow(self, address: str, over: threading.Event, outcome: Outcome) -> None:
        """Read from the beginning of what there is, again and again if the line is cut."""
        while not over.is_set():
            try:
                with connect(address) as client:
                    stream = client.open_stream(ALLOC_LOGS, AllocLogsRequest(alloc_id=self._alloc_id, follow=True))
                    while not over.is_set() and not stream.is_over:
                        if stream.take() is None:
                            client.wait(0.2)
            except FedschedError:
                over.wait(0.2)
            outcome.cuts += not over.is_set()

    def _look(self, outcome: Outcome) -> None:
        assert self._host.process is not None, "the agent was never started"
        agent = self._host.process.pid
        outcome.agent.see(resident(agent))
        outcome.server.see(resident(self._server.pid))
        below = processes(self._host.mark, self._host.directory)
        outcome.supervisors.see(sum(resident(pid) for pid in below if pid != agent))

    def _written(self) -> int:
        return int(self._count.read_text())


def resident(pid: int) -> int:
    """Bytes of memory that a process holds; nothing if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def a_writer(rate: int, count: Path) -> Job:
    task = Task(
        name="task",
        driver="raw_exec",
        config={"command": sys.executable, "args": ["-c", WRITER, str(rate), str(count)]},
        resources=Resources(cpu=50, memory_mb=64),
        log_config=LogConfig(max_files=10, max_file_size_mb=10),
    )
    group = TaskGroup(
        name="group",
        count=1,
        tasks=(task,),
        ephemeral_disk=EphemeralDisk(size_mb=300),
        restart_policy=RestartPolicy(attempts=0, mode="fail"),
        reschedule_policy=ReschedulePolicy(attempts=0, unlimited=False),
    )
    return Job(id="writer", name="writer", type="service", task_groups=(group,))


@contextmanager
def running_trial(directory: Path, write_rate: int, **fields: Any) -> Iterator[Trial]:
    """A server, an agent, and a task on it that has been writing for a while."""
    count = directory / "written"
    with running_region(directory, 1) as region, running_host(region, directory, **fields) as host:
        asker = Asker(region)
        until("the node is ready", lambda: asker.ready_nodes() == ["host1"], 60.0, host)
        asker.ask(JOB_REGISTER, JobRegisterRequest(job=a_writer(write_rate, count)))
        until("it runs", lambda: "running" in asker.statuses("writer").values(), 60.0, host)
        (alloc_id,) = asker.statuses("writer")
        until("it writes", count.exists, 60.0, host)
        yield Trial(host, region.servers["s1"], alloc_id, count, write_rate)


def main() -> int:
    parser = argparse.ArgumentParser(description="a fast writer, a slow reader: memory must not grow")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--read", type=int, default=1024, help="bytes a second that reach the reader")
    parser.add_argument("--write", type=int, default=50_000_000, help="bytes a second that the task writes")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="fedsched-slow-reader-") as directory,
        running_trial(Path(directory), given.write) as trial,
    ):
        time.sleep(WARM_S)
        outcome = trial.read(given.seconds, given.read, lambda text: print(text, flush=True))
    problems = outcome.problems()
    print(f"{outcome.text()}: {'memory stays' if not problems else 'FAILED'}")
    for problem in problems:
        print(f"  {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
