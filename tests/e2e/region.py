"""A region of real agents on this machine: start them, look at them, hurt them, and keep what they said.

Every server is a `fedsched agent` process with its own data directory, configuration file and log under one directory.
Ports are free ones of the loopback address, chosen before the start because peers and proxies must know them.
Processes are only ever signalled by the id of a process that was started here.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedsched.env.ports import free_ports

HOST = "127.0.0.1"
START_S = 30.0
"""A server on a crowded machine: interpreter, imports, recovery of the log, listening."""

LEADER_S = 30.0
STOP_S = 10.0


@dataclass
class Server:
    """One agent process, or the place where one was and will be again."""

    name: str
    directory: Path
    http_port: int
    rpc_port: int
    serf_port: int
    join: list[str] = field(default_factory=list)
    overrides: dict[str, str] = field(default_factory=dict)
    wan: list[str] = field(default_factory=list)
    """Gossip addresses of servers of other regions."""
    region: str = "test"
    bootstrap_expect: int = 3
    extra: str = ""
    """More lines for the `[server]` table."""
    top: str = ""
    """More lines before the first table."""
    host: str = HOST
    """Where this process reaches it; the agent itself listens on loopback in any case."""
    bind: str = HOST
    """Which of loopback's addresses it listens on."""
    prefix: list[str] = field(default_factory=list)
    """Words before the command, such as those that enter a network namespace."""
    program: list[str] = field(default_factory=lambda: ["-m", "fedsched"])
    """What the interpreter runs: another one for servers with a planted bug."""
    process: subprocess.Popen[bytes] | None = None
    is_paused: bool = False
    starts: int = 0

    @property
    def address(self) -> str:
        """Where people and programs reach it."""
        return f"{'https' if self.is_tls else 'http'}://{self.host}:{self.http_port}"

    @property
    def is_tls(self) -> bool:
        return "tls.cert_file" in self.top

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        return self.directory / "agent.log"

    @property
    def config(self) -> Path:
        return self.directory / "agent.toml"

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    def log_text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def write_config(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.config.write_text(self.config_text())

    def config_text(self) -> str:
        overrides = ", ".join(f'"{name}" = "{address}"' for name, address in sorted(self.overrides.items()))
        joins = ", ".join(f'"{address}"' for address in self.join)
        wan = ", ".join(f'"{address}"' for address in self.wan)
        lines = [
            f'name = "{self.name}"',
            f'region = "{self.region}"',
            f'data_dir = "{self.data_dir}"',
            f'bind_addr = "{self.bind}"',
            self.top,
            "[ports]",
            f"http = {self.http_port}",
            f"rpc = {self.rpc_port}",
            f"serf = {self.serf_port}",
            "[server]",
            "enabled = true",
            f"bootstrap_expect = {self.bootstrap_expect}",
            'ballast_size = "1MiB"',
            f"peer_address_overrides = {{ {overrides} }}" if overrides else "",
            self.extra,
            "[server.server_join]",
            f"retry_join = [{joins}]",
            f"retry_join_wan = [{wan}]" if wan else "",
            'retry_interval = "200ms"',
        ]
        return "\n".join(line for line in lines if line) + "\n"

    def start(self) -> None:
        """Start the process; returns at once. What it says goes to the end of its log."""
        assert not self.is_alive, f"{self.name} is running already"
        self.write_config()
        self.starts += 1
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, *self.program, "agent", "-config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"},
            )

    def kill(self) -> None:
        """kill -9, and wait until the process is gone (it may be paused: that does not help it)."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.is_paused = False

    def terminate(self, within_s: float = STOP_S) -> int:
        """SIGTERM; the exit code, or an error with the end of the log when it does not stop in time."""
        assert self.process is not None
        self.process.terminate()
        return self.wait_exit(within_s)

    def wait_exit(self, within_s: float) -> int:
        assert self.process is not None
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {within_s:g} s\n{self.tail()}") from None

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.is_paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.is_paused = False

    def wipe(self) -> None:
        """Lose the whole disk."""
        assert not self.is_alive
        shutil.rmtree(self.data_dir)

    def wait_listening(self, within_s: float = START_S) -> None:
        """Return when the HTTP port accepts; fail at once when the process has ended."""
        deadline = time.monotonic() + within_s
        while True:
            if not self.is_alive:
                code = None if self.process is None else self.process.returncode
                raise AssertionError(f"{self.name} ended with {code} before it listened\n{self.tail()}")
            try:
                socket.create_connection((self.host, self.http_port), 1).close()
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise AssertionError(f"{self.name} does not listen after {within_s:g} s\n{self.tail()}") from None
            time.sleep(0.05)

    def tail(self, lines: int = 30) -> str:
        return "\n".join(f"    {self.name}| {line}" for line in self.log_text().splitlines()[-lines:])


Route = Callable[[Server, Server], str]
"""The address under which the first server dials the second."""


def direct(_: Server, to: Server) -> str:
    return f"{HOST}:{to.rpc_port}"


@dataclass
class Region:
    """Servers that belong together. Use `running_region`, which stops them whatever happens."""

    directory: Path
    route: Route = direct
    extra: str = ""
    top: str = ""
    name: str = "test"
    wan: list[str] = field(default_factory=list)
    """Gossip addresses of servers of other regions, for all servers that are added from now on."""
    servers: dict[str, Server] = field(default_factory=dict)

    def add(self, name: str, *, bootstrap_expect: int, extra: str | None = None) -> Server:
        """Make a place for one more server; `wire` must follow before it starts."""
        http, rpc, serf = free_ports(3)
        server = Server(
            name,
            self.directory / name,
            http,
            rpc,
            serf,
            region=self.name,
            wan=list(self.wan),
            bootstrap_expect=bootstrap_expect,
            extra=self.extra if extra is None else extra,
            top=self.top,
        )
        self.servers[name] = server
        return server

    def wire(self) -> None:
        """Tell every server how to reach every other, by the region's route. A running one learns it when restarted."""
        for server in self.servers.values():
            others = [other for other in self.servers.values() if other is not server]
            routes = {other.name: self.route(server, other) for other in others if other.name not in server.overrides}
            server.join = [*server.join, *routes.values()]
            if self.route is not direct:
                server.overrides |= routes

    def start(self, names: Iterable[str] | None = None) -> None:
        chosen = [self.servers[name] for name in (names or list(self.servers))]
        for server in chosen:
            server.start()
        for server in chosen:
            server.wait_listening()

    def alive(self) -> list[Server]:
        return [server for server in self.servers.values() if server.is_alive and not server.is_paused]

    def others(self, name: str) -> list[str]:
        return [other for other in self.servers if other != name]

    def stop(self) -> dict[str, int]:
        """Ask all to stop, at once; whoever has not after a while is killed. Returns the exit codes."""
        running = [server for server in self.servers.values() if server.is_alive]
        for server in running:
            if server.is_paused:
                server.resume()
            assert server.process is not None
            server.process.terminate()
        codes = {}
        deadline = time.monotonic() + STOP_S
        for server in running:
            assert server.process is not None
            try:
                codes[server.name] = server.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                server.kill()
                codes[server.name] = -signal.SIGKILL
        return codes

    def kill(self) -> None:
        for server in self.servers.values():
            if server.is_alive:
                server.kill()

    def logs(self) -> Mapping[str, str]:
        return {name: server.log_text() for name, server in self.servers.items()}


@contextmanager
def running_region(
    directory: Path,
    count: int = 3,
    *,
    extra: str = "",
    top: str = "",
    route: Route = direct,
    start: bool = True,
    name: str = "test",
    wan: Iterable[str] = (),
) -> Iterator[Region]:
    """`count` servers s1, s2, ... of one region, started; killed at the end if the test has not stopped them."""
    region = Region(directory, route, extra, top, name, list(wan))
    for number in range(1, count + 1):
        region.add(f"s{number}", bootstrap_expect=count)
    region.wire()
    try:
        if start:
            region.start()
        yield region
    finally:
        region.kill()
