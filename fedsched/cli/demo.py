"""`fedsched demo`: a region of three servers on this machine, shown by the commands a person would type.

Real processes, real sockets, real disks: the leader is killed with SIGKILL and the region goes on. Everything lives in
a temporary directory, listens on loopback only, and is gone afterwards.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from fedsched.env.ports import free_ports

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


class DemoServer:
    """One agent process of the demo."""

    def __init__(self, name: str, directory: Path, ports: tuple[int, int, int], peers: Sequence[str]) -> None:
        self.name = name
        self.http = f"http://127.0.0.1:{ports[0]}"
        self._directory = directory
        self._config = directory / f"{name}.toml"
        self._process: subprocess.Popen[bytes] | None = None
        self._config.write_text(
            f'name = "{name}"\nregion = "eu"\ndata_dir = "{directory / name}"\n'
            f"[ports]\nhttp = {ports[0]}\nrpc = {ports[1]}\nserf = {ports[2]}\n"
            f"[server]\nenabled = true\nbootstrap_expect = {len(NAMES)}\n"
            f'ballast_size = "0B"\ndisk_soft_limit = "0B"\n'
            f'[server.server_join]\nretry_join = {json.dumps(list(peers))}\nretry_interval = "1s"\n'
        )

    def start(self) -> None:
        with (self._directory / f"{self.name}.log").open("ab") as log:
            command = [sys.executable, "-m", "fedsched", "agent", "-config", str(self._config)]
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> int:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        return self._process.pid

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_words(self) -> str:
        log = self._directory / f"{self.name}.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else "(no log)"


class Demo:
    """The tour, step by step."""

    def __init__(self, directory: Path) -> None:
        ports = free_ports(3 * len(NAMES))
        triples = [(ports[3 * i], ports[3 * i + 1], ports[3 * i + 2]) for i in range(len(NAMES))]
        peers = [f"127.0.0.1:{triple[1]}" for triple in triples]
        self.servers = [DemoServer(name, directory, triple, peers) for name, triple in zip(NAMES, triples, strict=True)]
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
        pid = leader.kill()
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

    def wait_leader(self, servers: Sequence[DemoServer]) -> DemoServer:
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

    def wait_write(self, servers: Sequence[DemoServer]) -> None:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            for server in servers:
                if run_fedsched(server, f"job run -detach {self._job_file}").returncode == 0:
                    return
        raise DemoFailed(f"no write was acknowledged within {PATIENCE_S:.0f} s")

    def wait_ready(self, server: DemoServer) -> None:
        until = time.monotonic() + PATIENCE_S
        while run_fedsched(server, "job status").returncode:
            if time.monotonic() > until:
                raise DemoFailed(f"{server.name} did not come back within {PATIENCE_S:.0f} s")
            time.sleep(0.1)

    def show(self, server: DemoServer, words: str, hidden: str = "") -> None:
        typed = words.replace(f"{hidden}/", "") if hidden else words
        print(f"\n  {server.name} $ fedsched {typed}")
        done = run_fedsched(server, words)
        for line in (done.stdout + done.stderr).rstrip().splitlines():
            print(f"    {line}")
        if done.returncode:
            raise DemoFailed(f"`fedsched {typed}` ended with {done.returncode}")


def run_fedsched(server: DemoServer, words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedsched", *shlex.split(words)]
    environment = {**os.environ, "FEDSCHED_ADDR": server.http, "NO_COLOR": "1"}
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
                print(f"--- last lines of {server.name}:\n{server.last_words()}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            for server in demo.servers:
                server.stop()
    return 0
