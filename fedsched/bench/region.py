"""`fedsched bench region`: jobs of a thousand allocations, from submission to the clients' reports.

Three servers and the simulated nodes are processes of their own; this one submits the jobs and watches. Everything
shares the machine's cores, and the report says how much of them the servers used. Nothing really runs on the nodes: see
`simulated_nodes`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from typing import Any, Final

from fedsched.agent.process import server_processes
from fedsched.bench.frame import BenchOptions, BenchResult
from fedsched.bench.region_processes import MeasuredServer, NodesProcess
from fedsched.model.constraint import Constraint
from fedsched.model.errors import FedschedError, Unavailable
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.policies import EphemeralDisk
from fedsched.model.resources import Resources
from fedsched.model.task import Task
from fedsched.rpc.methods.evaluation import EVAL_GET, EvaluationRequest
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest
from fedsched.sdk.client import Client
from fedsched.sdk.connect import connect

SERVERS: Final = 3
NODES: Final = 5_000
PER_JOB: Final = 1_000
JOBS: Final = 1_000
SECONDS: Final = 300.0
"""A thousand jobs of a thousand, or as many of them as fit in this time."""
DRIVERS: Final = 4
"""Jobs submitted at the same time."""
BACKLOG: Final = 60_000
"""Allocations placed and not yet reported as running, at most: what is measured is a rate that can be kept up."""
PATIENCE_S: Final = 60.0
SETTLE_S: Final = 10.0
CLASSES: Final = 5
SETTINGS: Final = "[telemetry]\ncpu_shares = true\n"
CAPACITY: Final = {"cpu": 64_000, "memory_mb": 128_000, "disk_mb": 400_000_000}
"""Room for some six hundred small allocations per node."""


def a_job(number: int, count: int) -> Job:
    """Small allocations, kept to one class of nodes."""
    task = Task(name="t", driver="mock_driver", config={"run_for": "1h"}, resources=Resources(cpu=100, memory_mb=64))
    kind = Constraint(l_target="${node.class}", operand="=", r_target=f"class-{number % CLASSES}")
    group = TaskGroup(
        name="g", count=count, constraints=(kind,), tasks=(task,), ephemeral_disk=EphemeralDisk(size_mb=110)
    )
    return Job(id=f"bench-{number}", name=f"bench-{number}", type="batch", datacenters=("*",), task_groups=(group,))


class Load:
    """Submits jobs until time is up, each followed until its evaluation is over."""

    def __init__(self, addresses: list[str], fleet: NodesProcess, seconds: float, count: int) -> None:
        self._addresses = addresses
        self._fleet = fleet
        self._running_before: int = fleet.tally["running"]
        self._seconds = seconds
        self._count = count
        self._lock = threading.Lock()
        self._next = 0
        self._placed = 0
        self.full_at = 0.0
        """When the backlog was full for the first time; until then more is placed than can be kept up."""
        self.placed: list[tuple[float, int]] = []
        """When evaluations ended, and how many allocations each had placed."""
        self.latencies: list[float] = []
        self.errors: list[str] = []

    def run(self) -> None:
        self.began = time.monotonic()
        threads = [threading.Thread(target=self._drive, args=(number,)) for number in range(DRIVERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _drive(self, number: int) -> None:
        with connect(self._addresses[number % len(self._addresses)]) as client:
            while time.monotonic() - self.began < self._seconds:
                if self._backlog() > BACKLOG:
                    self.full_at = self.full_at or time.monotonic() - self.began
                    time.sleep(0.02)
                    continue
                with self._lock:
                    self._next, job = self._next + 1, self._next
                if job >= JOBS:
                    return
                try:
                    self._one(client, job)
                except FedschedError as error:
                    self.errors.append(str(error))
                    return

    def _backlog(self) -> int:
        """Allocations that clients have not reported on yet."""
        running: int = self._fleet.tally["running"]
        return self._placed - (running - self._running_before)

    def _one(self, client: Client, number: int) -> None:
        began = time.monotonic()
        reply = client.call(JOB_REGISTER, JobRegisterRequest(job=a_job(number, self._count)))
        index = 0
        while True:
            answer = client.call(
                EVAL_GET, EvaluationRequest(eval_id=reply.eval_id), stale=True, min_index=index, max_wait_s=10.0
            ).evaluation
            if answer.status.is_terminal:
                break
            if time.monotonic() - began > PATIENCE_S:
                raise Unavailable(f"evaluation {reply.eval_id} of job {number} is {answer.status.value} for too long")
            index = client.last.index
        placed = self._count - sum(answer.queued_allocations.values())
        with self._lock:
            self.latencies.append(time.monotonic() - began)
            self.placed.append((time.monotonic() - self.began, placed))
            self._placed += placed


def run(options: BenchOptions) -> BenchResult:
    """Start a region, fill it, and say how fast that was."""
    seconds = options.duration_s or SECONDS
    nodes = options.count or NODES
    with ExitStack() as stack:
        servers = _start(stack, options)
        stack.enter_context(_last_words(servers))
        addresses = [server.address for server in servers]
        shape = {"count": nodes, "classes": CLASSES, "seed": options.seed, **CAPACITY}
        fleet = NodesProcess([server.rpc_address for server in servers], shape)
        stack.callback(fleet.stop)
        options.say(f"{nodes:,} nodes register ...")
        if not fleet.wait("registered", nodes, PATIENCE_S + nodes / 50):
            raise Unavailable(
                f"only {fleet.tally['registered']} of {nodes} nodes registered: {fleet.tally['last_error']}"
            )
        options.say(f"{JOBS:,} jobs of {PER_JOB:,}, or as many as fit in {seconds:.0f} s ...")
        before = _Measured(servers, fleet)
        load = Load(addresses, fleet, seconds, PER_JOB)
        load.run()
        took = time.monotonic() - load.began
        placed = sum(count for _, count in load.placed)
        fleet.wait("running", before.tally["running"] + placed, SETTLE_S)
        settled = time.monotonic() - load.began
        after = _Measured(servers, fleet)
    return _result(load, took, settled, before, after)


def _start(stack: ExitStack, options: BenchOptions) -> list[MeasuredServer]:
    names = [f"s{number}" for number in range(1, SERVERS + 1)]
    processes = server_processes(names, options.directory, region="bench", extra=SETTINGS)
    for process in processes:
        process.start()
        stack.callback(process.stop)
    return [MeasuredServer(process) for process in processes]


@contextmanager
def _last_words(servers: list[MeasuredServer]) -> Iterator[None]:
    """Whatever fails because a server is gone is told with what that server said at its end."""
    try:
        yield
    except FedschedError as error:
        gone = [words for server in servers if (words := server.last_words())]
        if not gone:
            raise
        raise Unavailable(f"{error}; {'; '.join(gone)}") from error


class _Measured:
    """What servers and nodes say at one moment."""

    def __init__(self, servers: list[MeasuredServer], fleet: NodesProcess) -> None:
        self.cpu = [server.cpu_s() for server in servers]
        self.nodes_cpu_s = fleet.cpu_s()
        figures = [server.figures() for server in servers]
        self.stalls = [stall for stall, _ in figures]
        self.samples = [samples for _, samples in figures]
        self.memory = [server.memory_mib() for server in servers]
        self.tally = dict(fleet.tally)


def _result(load: Load, took: float, settled: float, before: _Measured, after: _Measured) -> BenchResult:
    placed = sum(count for _, count in load.placed)
    if not placed:
        raise Unavailable(f"nothing was placed: {load.errors[0] if load.errors else 'no evaluation ended in time'}")
    cpu = [now - was for now, was in zip(after.cpu, before.cpu, strict=True)]
    latencies = sorted(load.latencies)
    figures = {
        "placed_per_s": round(placed / took, 1),
        "received_per_s": round((after.tally["received"] - before.tally["received"]) / settled, 1),
        "reported_per_s": round((after.tally["running"] - before.tally["running"]) / settled, 1),
        "last_over_first_decile": round(deciles(load.placed, load.full_at, took), 3),
        "server_cpu_us_per_alloc": round(sum(cpu) / placed * 1e6, 1),
        "nodes_cpu_us_per_alloc": round((after.nodes_cpu_s - before.nodes_cpu_s) / placed * 1e6, 1),
        "bytes_per_alloc": round(sum(after.memory) / len(after.memory) * (1 << 20) / placed, 1),
        "longest_stall_ms": round(max(after.stalls), 2),
        "job_p50_s": round(latencies[len(latencies) // 2], 3),
        "job_max_s": round(latencies[-1], 3),
    }
    rows: list[dict[str, Any]] = [
        {
            "what": "server",
            "number": number,
            "cpu_s": round(used, 2),
            "stall_ms": round(stall, 2),
            "registering_stall_ms": round(earlier, 2),
            "rss_mib": round(mib),
        }
        for number, (used, stall, earlier, mib) in enumerate(
            zip(cpu, after.stalls, before.stalls, after.memory, strict=True), 1
        )
    ]
    rows += [
        {"what": "processor", "part": part, "us_per_alloc": round(used_s / placed * 1e6, 2)}
        for part, used_s in by_part(cpu, before.samples, after.samples)
    ]
    rows += [{"what": "placed", "from_s": at, "per_s": rate} for at, rate in rates(load.placed, 0.0, took)]
    tally = {name: after.tally[name] for name in ("registered", "received", "running", "errors")}
    rows.append({"what": "nodes", **tally})
    notes = tuple(load.errors[:3])
    return BenchResult(figures, rows, notes)


def by_part(cpu: list[float], before: list[dict[str, float]], after: list[dict[str, float]]) -> list[tuple[str, float]]:
    """Processor time of all servers by part, the largest first: each server's own, by its samples."""
    found: dict[str, float] = {}
    for used_s, was, now in zip(cpu, before, after, strict=True):
        counts = {part: count - was.get(part, 0.0) for part, count in now.items()}
        total = sum(counts.values())
        for part, count in counts.items():
            found[part] = found.get(part, 0.0) + (used_s * count / total if total else 0.0)
    return sorted(found.items(), key=lambda one: -one[1])


def rates(placed: list[tuple[float, int]], since: float, took: float) -> list[tuple[float, float]]:
    """Allocations per second in each tenth of the time."""
    width = (took - since) / 10
    found = []
    for tenth in range(10):
        start = since + tenth * width
        count = sum(count for at, count in placed if start <= at < start + width)
        found.append((round(start, 1), round(count / width, 1)))
    return found


def deciles(placed: list[tuple[float, int]], since: float, took: float) -> float:
    """The rate in the last tenth of the time over that in the first, from when the backlog was full.

    Clients report in waves a second apart, and what is placed follows them: counting between two moments would measure
    where in a wave those fall. So the rate is the slope of the line through everything placed in between.
    """
    width = (took - since) / 10
    first, last = _slope(placed, since, since + width), _slope(placed, took - width, took)
    return last / first if first > 0 else 0.0


def _slope(placed: list[tuple[float, int]], start: float, end: float) -> float:
    inside = [one for one in sorted(placed) if start <= one[0] < end]
    if len(inside) < 2:
        return 0.0
    times = [at for at, _ in inside]
    totals = list(accumulate(count for _, count in inside))
    middle = sum(times) / len(times)
    spread = sum((at - middle) ** 2 for at in times)
    return sum((at - middle) * total for at, total in zip(times, totals, strict=True)) / spread if spread else 0.0
