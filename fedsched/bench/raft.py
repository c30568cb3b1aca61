"""`fedsched bench raft`: three servers on loopback, real disks and sockets, one of them killed over and over.

Proposers run inside the leader's process, so the figure is Raft's own and not a client protocol's. There are two
baselines, both measured just before on the same disk: a loop of fdatasync, and a bare quorum of three processes that
only send, sync and answer (see `bare_quorum`). One proposal at a time cannot be faster than the second.
"""

from __future__ import annotations

import json
import random
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from fedsched.bench.bare_quorum import rounds_per_s
from fedsched.bench.frame import BenchOptions, BenchResult
from fedsched.bench.machine import fdatasync_per_s
from fedsched.env.ports import free_ports
from fedsched.model.errors import Unavailable

SERVERS: Final = 3
OUTSTANDING: Final = (1, 16, 64, 256)
SIZES: Final = (100, 24 * 1024)
"""Beside the 1 KiB that the headline figures use: a heartbeat-sized entry and a plan of some hundred allocations."""
ENTRY_BYTES: Final = 1024
SECONDS: Final = 3.0
FAILOVERS: Final = 5
PATIENCE_S: Final = 30.0


class Server:
    """One server process and the line of questions to it."""

    def __init__(self, name: str, servers: list[dict[str, str]], directory: Path) -> None:
        self.name = name
        options = {"id": name, "servers": servers, "dir": str(directory / name)}
        self._command = [sys.executable, "-m", "fedsched.bench.raft_server", json.dumps(options)]
        self._log = directory / f"{name}.log"
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        self.put(do, **more)
        return self.get()

    def put(self, do: str, **more: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()

    def get(self, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(patience_s) else ""
        if not line:
            last = self._log.read_text(errors="replace")[-400:]
            raise Unavailable(f"bench server {self.name} did not answer", hint=f"its last words: {last}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> float:
        self._process.kill()
        at = time.monotonic()
        self._process.wait()
        self._close_pipes()
        return at

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(10)
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def run(options: BenchOptions) -> BenchResult:
    seconds = min(options.duration_s / 12, SECONDS) if options.duration_s else SECONDS
    syncs = fdatasync_per_s(options.directory, 1.0)
    options.say("three bare processes, for comparison ...")
    rounds = rounds_per_s(options.directory, seconds / 2)
    names = [f"s{number}" for number in range(1, SERVERS + 1)]
    servers_at = [
        {"id": name, "address": f"127.0.0.1:{port}"} for name, port in zip(names, free_ports(SERVERS), strict=True)
    ]
    with ExitStack() as stack:
        servers = []
        for name in names:
            servers.append(Server(name, servers_at, options.directory))
            stack.callback(servers[-1].stop)
        rows, stall_ms = _loads(options, servers, seconds)
        rows += _reads(options, servers, seconds)
        failovers = _failovers(options, servers, options.count or FAILOVERS)
    per_s = {row["outstanding"]: row["per_s"] for row in rows if row.get("size") == ENTRY_BYTES}
    figures: dict[str, float] = {f"commits_per_s_{width}": round(per_s[width], 1) for width in OUTSTANDING}
    figures |= {
        "fdatasync_per_s": round(syncs, 1),
        "bare_rounds_per_s": round(rounds, 1),
        "ratio_1": round(per_s[1] / syncs, 3),
        "ratio_1_bare_rounds": round(per_s[1] / rounds, 3),
        "ratio_bare_rounds": round(rounds / syncs, 3),
        "failover_p50_s": round(failovers[len(failovers) // 2], 3),
        "failover_max_s": round(failovers[-1], 3),
        "longest_stall_ms": round(stall_ms, 2),
    }
    rows.append({"what": "failover", "seconds": [round(one, 3) for one in failovers]})
    return BenchResult(figures, rows)


def _loads(options: BenchOptions, servers: list[Server], seconds: float) -> tuple[list[Mapping[str, Any]], float]:
    rows: list[Mapping[str, Any]] = []
    stall_ms = 0.0
    leader = _leader(servers)
    leader.ask("load", outstanding=16, size=ENTRY_BYTES, seconds=0.5)  # warm the links, the disk and the interpreter
    cases = [(width, ENTRY_BYTES) for width in OUTSTANDING] + [(16, size) for size in SIZES]
    for width, size in cases:
        options.say(f"{width} outstanding proposals of {size} bytes ...")
        report = leader.ask("load", outstanding=width, size=size, seconds=seconds)
        stall_ms = max(stall_ms, report["longest_lag_ms"])
        rows.append({"what": "commits", "outstanding": width, "size": size, **_rounded(report)})
    return rows, stall_ms


def _reads(options: BenchOptions, servers: list[Server], seconds: float) -> list[Mapping[str, Any]]:
    options.say("linearizable reads ...")
    leader = _leader(servers)
    report = leader.ask("reads", outstanding=256, seconds=seconds / 2)
    return [{"what": "reads", "outstanding": 256, **_rounded(report)}]


def _failovers(options: BenchOptions, servers: list[Server], count: int) -> list[float]:
    """Seconds from killing the leader until one of the others has committed an entry, sorted."""
    took: list[float] = []
    dice = random.Random(options.seed)
    for number in range(count):
        leader = _leader(servers)
        time.sleep(dice.uniform(0, 0.1))  # not always at the same moment after a heartbeat
        options.say(f"failover {number + 1} of {count}: killing {leader.name} ...")
        killed_at = leader.kill()
        others = [server for server in servers if server is not leader]
        for server in others:
            server.put("commit")
        took.append(_first_commit(others) - killed_at)
        leader.start()
    return sorted(took)


def _first_commit(servers: list[Server]) -> float:
    """When the first of these committed; the rest is drained once a leader is there for all of them."""
    with selectors.DefaultSelector() as selector:
        for server in servers:
            assert server._process.stdout is not None
            selector.register(server._process.stdout, selectors.EVENT_READ, server)
        ready = selector.select(PATIENCE_S)
    if not ready:
        raise Unavailable(f"no commit within {PATIENCE_S:.0f} s after the leader was killed")
    first: Server = ready[0][0].data
    at = float(first.get()["at"])
    for server in servers:
        if server is not first:
            server.stop()
            server.start()
    return at


def _leader(servers: list[Server]) -> Server:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        for server in servers:
            if server.ask("status")["is_ready"]:
                return server
        time.sleep(0.02)
    raise Unavailable(f"no leader within {PATIENCE_S:.0f} s")


def _rounded(report: Mapping[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in report.items()}
