"""The processes that `fedsched bench region` measures: servers and the fleet of simulated nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from fedsched.agent.process import ServerProcess
from fedsched.model.errors import Unavailable
from fedsched.rpc.methods.agent import AGENT_METRICS, AgentMetricsRequest
from fedsched.sdk.connect import connect

TICKS: Final = os.sysconf("SC_CLK_TCK")
_SAMPLES: Final = re.compile(r'^fedsched_process_cpu_samples\w*\{[^}]*part="([^"]*)"[^}]*\} ([0-9.e+]+)', re.M)
_LAG: Final = re.compile(r"^fedsched_raft_longest_loop_lag_seconds(?:\{[^}]*\})? ([0-9.e+-]+)", re.M)


class MeasuredServer:
    """One server and what can be seen of it from outside."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.name = process.name
        self.address = process.address
        self.rpc_address = f"127.0.0.1:{process.rpc_port}"

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def memory_mib(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def figures(self) -> tuple[float, dict[str, float]]:
        """How late its event loop was at worst, in milliseconds, and samples of its processor time by part."""
        with connect(self.address) as client:
            text = client.call(AGENT_METRICS, AgentMetricsRequest(format="prometheus")).body.decode()
        lag = _LAG.search(text)
        if lag is None:
            raise Unavailable(f"server {self.name} does not say how late its event loop was")
        return float(lag[1]) * 1000, {part: float(count) for part, count in _SAMPLES.findall(text)}

    def last_words(self) -> str:
        """What it said when it ended by itself; nothing while it runs."""
        code = self.process.exit_code
        if code is None:
            return ""
        return f"server {self.name} ended with {code}: {' | '.join(self.process.last_lines()) or 'without a word'}"


def cpu_s(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class NodesProcess:
    """The simulated nodes, and their tally as it comes in."""

    def __init__(self, addresses: list[str], shape: dict[str, int]) -> None:
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

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

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
