"""`fedsched bench region`: jobs of a thousand allocations, from submission to the clients' reports.

Three servers and the simulated nodes are processes of their own; this one submits the jobs and watches. Everything
shares the machine's cores, and the report says how much of them the servers used. Nothing really runs on the nodes: see
`simulated_nodes`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from fedsched.bench.frame import BenchOptions, BenchResult
from fedsched.env.ports import free_ports
from fedsched.model.constraint import Constraint
from fedsched.model.errors import FedschedError, Unavailable
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.policies import EphemeralDisk
from fedsched.model.resources import Resources
from fedsched.model.task import Task
from fedsched.rpc.methods.agent import AGENT_METRICS, AgentMetricsRequest
from fedsched.rpc.methods.evaluation import EVAL_GET, EvaluationRequest
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest
from fedsched.sdk.client import Client
from fedsched.sdk.connect import connect

SERVERS: Final = 3
NODES: Final = 5_000
PER_JOB: Final = 1_000
SECONDS: Final = 40.0
DRIVERS: Final = 4
"""Jobs submitted at the same time."""
PATIENCE_S: Final = 60.0
SETTLE_S: Final = 10.0
CLASSES: Final = 5
CAPACITY: Final = {"cpu": 64_000, "memory_mb": 128_000, "disk_mb": 400_000_000}
"""Room for some six hundred small allocations per node."""
TICKS: Final = os.sysconf("SC_CLK_TCK")


class AgentProcess:
    """One server."""

    def __init__(self, name: str, directory: Path, ports: tuple[int, int, int], peers: list[str]) -> None:
        self.name = name
        self.address = f"http://127.0.0.1:{ports[0]}"
        config = directory / f"{name}.toml"
        self._log = directory / f"{name}.log"
        config.write_text(
            f'name = "{name}"\nregion = "bench"\ndata_dir = "{directory / name}"\nlog_level = "warn"\n'
            f"[ports]\nhttp = {ports[0]}\nrpc = {ports[1]}\nserf = {ports[2]}\n"
            f"[server]\nenabled = true\nbootstrap_expect = {SERVERS}\n"
            f'ballast_size = "0B"\ndisk_soft_limit = "0B"\n'
            f'[server.server_join]\nretry_join = {json.dumps(peers)}\nretry_interval = "1s"\n'
        )
        command = [sys.executable, "-m", "fedsched", "agent", "-config", str(config)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def memory_mib(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def stall_ms(self) -> float:
        """How late its event loop was at worst, as it says itself."""
        with connect(self.address) as client:
            body = json.loads(client.call(AGENT_METRICS, AgentMetricsRequest()).body)
        for gauge in body.get("Gauges", ()):
            if gauge["Name"].endswith("raft.longest_loop_lag_seconds"):
                return float(gauge["Value"]) * 1000
        raise Unavailable(f"server {self.name} does not say how late its event loop was")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class NodesProcess:
    """The simulated nodes, and their tally as it comes in."""

    def __init__(self, addresses: list[str], count: int, seed: int) -> None:
        shape = {"count": count, "classes": CLASSES, "seed": seed, **CAPACITY}
        options = json.dumps({"addresses": addresses, "shape": shape})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fedsched.bench.nodes", options], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.tally: dict[str, Any] = {"registered": 0, "received": 0, "running": 0, "errors": 0, "last_error": ""}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.tally = json.loads(line)

    def wait(self, what: str, count: int, patience_s: float) -> bool:
        until = time.monotonic() + patience_s
        while time.monotonic() < until:
            if self.tally[what] >= count:
                return True
            if self.process.poll() is not None:
                raise Unavailable(f"the simulated nodes ended with {self.process.returncode}")
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()


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

    def __init__(self, addresses: list[str], seconds: float, count: int) -> None:
        self._addresses = addresses
        self._seconds = seconds
        self._count = count
        self._lock = threading.Lock()
        self._next = 0
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
                with self._lock:
                    self._next, job = self._next + 1, self._next
                try:
                    self._one(client, job)
                except FedschedError as error:
                    self.errors.append(str(error))
                    return

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
            index = client.last.index
        placed = self._count - sum(answer.queued_allocations.values())
        with self._lock:
            self.latencies.append(time.monotonic() - began)
            self.placed.append((time.monotonic() - self.began, placed))


def run(options: BenchOptions) -> BenchResult:
    """Start a region, fill it, and say how fast that was."""
    seconds = options.duration_s or SECONDS
    nodes = options.count or NODES
    with ExitStack() as stack:
        servers = _start(stack, options)
        addresses = [server.address for server in servers]
        fleet = NodesProcess(addresses, nodes, options.seed)
        stack.callback(fleet.stop)
        options.say(f"{nodes:,} nodes register ...")
        if not fleet.wait("registered", nodes, PATIENCE_S + nodes / 50):
            raise Unavailable(
                f"only {fleet.tally['registered']} of {nodes} nodes registered: {fleet.tally['last_error']}"
            )
        options.say(f"jobs of {PER_JOB:,} for {seconds:.0f} s ...")
        before = [server.cpu_s() for server in servers]
        base = dict(fleet.tally)
        load = Load(addresses, seconds, PER_JOB)
        load.run()
        took = time.monotonic() - load.began
        placed = sum(count for _, count in load.placed)
        fleet.wait("running", base["running"] + placed, SETTLE_S)
        settled = time.monotonic() - load.began
        cpu = [server.cpu_s() - was for server, was in zip(servers, before, strict=True)]
        stalls = [server.stall_ms() for server in servers]
        memory = [server.memory_mib() for server in servers]
        tally = dict(fleet.tally)
    return _result(load, took, settled, base, tally, cpu, stalls, memory)


def _start(stack: ExitStack, options: BenchOptions) -> list[AgentProcess]:
    ports = free_ports(3 * SERVERS)
    triples = [(ports[3 * at], ports[3 * at + 1], ports[3 * at + 2]) for at in range(SERVERS)]
    peers = [f"127.0.0.1:{triple[1]}" for triple in triples]
    servers = []
    for number, triple in enumerate(triples, 1):
        servers.append(AgentProcess(f"s{number}", options.directory, triple, peers))
        stack.callback(servers[-1].stop)
    return servers


def _result(
    load: Load,
    took: float,
    settled: float,
    base: dict[str, Any],
    tally: dict[str, Any],
    cpu: list[float],
    stalls: list[float],
    memory: list[float],
) -> BenchResult:
    placed = sum(count for _, count in load.placed)
    if not placed:
        raise Unavailable(f"nothing was placed: {load.errors[0] if load.errors else 'no evaluation ended in time'}")
    received, reported = tally["received"] - base["received"], tally["running"] - base["running"]
    latencies = sorted(load.latencies)
    figures = {
        "placed_per_s": round(placed / took, 1),
        "received_per_s": round(received / settled, 1),
        "reported_per_s": round(reported / settled, 1),
        "last_over_first_decile": round(_deciles(load.placed, took), 3),
        "server_cpu_us_per_alloc": round(sum(cpu) / placed * 1e6, 1),
        "bytes_per_alloc": round(sum(memory) / len(memory) * (1 << 20) / placed, 1),
        "longest_stall_ms": round(max(stalls), 2),
        "job_p50_s": round(latencies[len(latencies) // 2], 3),
        "job_max_s": round(latencies[-1], 3),
    }
    rows: list[dict[str, Any]] = [
        {
            "what": "server",
            "number": number,
            "cpu_s": round(used, 2),
            "stall_ms": round(stall, 2),
            "rss_mib": round(mib),
        }
        for number, (used, stall, mib) in enumerate(zip(cpu, stalls, memory, strict=True), 1)
    ]
    rows.append({"what": "nodes", **{name: tally[name] for name in ("registered", "received", "running", "errors")}})
    notes = tuple(load.errors[:3]) + ((tally["last_error"],) if tally["last_error"] else ())
    return BenchResult(figures, rows, notes)


def _deciles(placed: list[tuple[float, int]], took: float) -> float:
    """The rate in the last tenth of the time over that in the first."""
    first = sum(count for at, count in placed if at < took / 10)
    last = sum(count for at, count in placed if at >= took * 9 / 10)
    return last / first if first else 0.0
