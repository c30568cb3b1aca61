"""`fedsched demo`: a region of three servers on this machine, shown by the commands a person would type.

Real processes, real sockets, real disks: the leader is killed with SIGKILL and the region goes on. Everything lives in
a temporary directory, listens on loopback only, and is gone afterwards.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fedsched.agent.process import ServerProcess, server_processes

NAMES: Final = ("eu-1", "eu-2", "eu-3")
PATIENCE_S: Final = 30.0
JOB: Final[dict[str, Any]] = {
    "Job": {
        "ID": "hello",
        "Type": "service",
        "Datacenters": ["dc1"],
        "TaskGroups": [
            {
                "Name": "web",
                "Count": 2,
                "Tasks": [{"Name": "server", "Driver": "raw_exec", "Config": {"command": "/bin/date"}}],
            }
        ],
    }
}


class DemoFailed(Exception):
    """What the demo wanted to show did not happen."""


class Demo:
    """The tour, step by step."""

    def __init__(self, directory: Path) -> None:
        self.servers = server_processes(NAMES, directory, region="eu")
        self._job_file = directory / "hello.json"
        self._job_file.write_text(json.dumps(JOB, indent=2))

    def run(self) -> None:
        say("Three servers form a region named eu (real processes, on loopback).")
        for server in self.servers:
            server.start()
        leader = self.wait_leader(self.servers)
        self.show(leader, "server members")
        self.show(leader, "operator raft list-peers")

        say("A job registered through one server can be read from any other.")
        followers = [server for server in self.servers if server is not leader]
        self.show(followers[0], f"job run -detach {self._job_file}", hidden=str(self._job_file.parent))
        self.show(followers[1], "job status")

        say(f"The leader, {leader.name}, is killed with SIGKILL.")
        killed_at = time.monotonic()
        pid = leader.pid
        leader.kill()
        print(f"    killed process {pid}")
        self.wait_write(followers)
        print(f"    the next write was acknowledged {time.monotonic() - killed_at:.1f} s later")
        successor = self.wait_leader(followers)
        self.show(successor, "operator raft list-peers")
        self.show(successor, "job status hello")

        say(f"{leader.name} comes back and catches up.")
        leader.start()
        self.wait_ready(leader)
        self.show(leader, "job status")
        say("There is no node here, so the job waits. Next: fedsched dev, then fedsched bench nodes --count 20")

    def wait_leader(self, servers: Sequence[ServerProcess]) -> ServerProcess:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for server in servers:
                done = run_fedsched(server, "operator raft list-peers -json")
                rows = json.loads(done.stdout)["Servers"] if done.returncode == 0 else []
                for row in rows:
                    for candidate in servers:
                        if row["Leader"] and row["Node"] == candidate.name:
                            return candidate
            time.sleep(0.1)
        raise DemoFailed(f"no leader within {PATIENCE_S:.0f} s")

    def wait_write(self, servers: Sequence[ServerProcess]) -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for server in servers:
                if run_fedsched(server, f"job run -detach {self._job_file}").returncode == 0:
                    return
        raise DemoFailed(f"no write was acknowledged within {PATIENCE_S:.0f} s")

    def wait_ready(self, server: ServerProcess) -> None:
        until = time.monotonic() + PATIENCE_S
        while run_fedsched(server, "job status").returncode:
            if time.monotonic() > until:
                raise DemoFailed(f"{server.name} did not come back within {PATIENCE_S:.0f} s")
            time.sleep(0.1)

    def show(self, server: ServerProcess, words: str, hidden: str = "") -> None:
        typed = words.replace(f"{hidden}/", "") if hidden else words
        print(f"\n  {server.name} $ fedsched {typed}")
        done = run_fedsched(server, words)
        for line in (done.stdout + done.stderr).rstrip().splitlines():
            print(f"    {line}")
        if done.returncode:
            raise DemoFailed(f"`fedsched {typed}` ended with {done.returncode}")


def run_fedsched(server: ServerProcess, words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedsched", *shlex.split(words)]
    environment = {**os.environ, "FEDSCHED_ADDR": server.address, "NO_COLOR": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def say(text: str) -> None:
    print(f"\n==> {text}", flush=True)


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="fedsched-demo-") as directory:
        demo = Demo(Path(directory))
        try:
            demo.run()
        except DemoFailed as why:
            print(f"\ndemo: {why}", file=sys.stderr)
            for server in demo.servers:
                lines = "\n".join(server.last_lines()) or "(no log)"
                print(f"--- last lines of {server.name}:\n{lines}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            for server in demo.servers:
                server.stop()
    return 0
