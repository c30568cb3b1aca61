"""Hosts that run tasks: real client agents beside a region of real servers, started, killed and looked at by tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsched.env.ports import free_ports
from fedsched.model.alloc import Allocation, AllocListStub
from fedsched.model.errors import FedschedError
from fedsched.model.node import NodeStatus
from fedsched.rpc.methods.alloc import ALLOC_GET, ALLOC_LIST, AllocListRequest, AllocRequest
from fedsched.rpc.methods.node import NODE_LIST, NodeListRequest
from tests.e2e.region import HOST, Region, Server
from tests.kills.left_behind import MARK, cgroups, mounts, processes

READY_S = 60.0
STOP_S = 20.0


@dataclass
class HostAgent:
    """One client agent process, or the place where one was and will be again."""

    name: str
    directory: Path
    servers: list[str]
    http_port: int
    mark: str
    """Carried by the agent, and by everything it starts, in the environment."""
    region: str = "test"
    extra: str = ""
    """More lines for the `[client]` table."""
    tables: str = "[client.plugin.raw_exec]\nenabled = true\n[client.plugin.mock_driver]\nenabled = true\n"
    program: list[str] = field(default_factory=lambda: ["-m", "fedsched"])
    environ: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def log(self) -> Path:
        return self.directory / "agent.log"

    @property
    def alloc_dir(self) -> Path:
        return self.directory / "data" / "alloc"

    @property
    def cgroup_parent(self) -> str:
        return f"fedsched-test-{self.mark}.slice"

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def config_text(self) -> str:
        rpc, serf = free_ports(2)
        return (
            f'name = "{self.name}"\nregion = "{self.region}"\n'
            f'data_dir = "{self.directory / "data"}"\nbind_addr = "{HOST}"\n'
            f"[ports]\nhttp = {self.http_port}\nrpc = {rpc}\nserf = {serf}\n"
            f"[client]\nenabled = true\nservers = {json.dumps(self.servers)}\n"
            f'network_interface = "lo"\ncgroup_parent = "{self.cgroup_parent}"\n{self.extra}\n{self.tables}'
        )

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "agent.toml"
        config.write_text(self.config_text())
        command = [sys.executable, *self.program, "agent", "-config", str(config)]
        environ = {**os.environ, MARK: self.mark, **self.environ}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, start_new_session=True
            )
        self.starts += 1

    def kill(self) -> None:
        """As a power cut would, but for the tasks."""
        assert self.process is not None, f"{self.name} was never started"
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if not self.is_alive:
            return
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def answers(self) -> bool:
        """Whether its own port accepts."""
        try:
            socket.create_connection((HOST, self.http_port), 1).close()
        except OSError:
            return False
        return True

    def tail(self, lines: int = 25) -> str:
        text = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"--- {self.name}", *text[-lines:]])


@contextmanager
def running_host(region: Region, directory: Path, name: str = "host1", **fields: Any) -> Iterator[HostAgent]:
    """A client agent that knows all servers of the region; at the end nothing that it started is left."""
    mark = f"{os.getpid()}-{time.monotonic_ns() & 0xFFFFFF:x}"
    servers = [f"{HOST}:{server.rpc_port}" for server in region.servers.values()]
    host = HostAgent(name, directory / name, servers, free_ports(1)[0], mark, region=region.name, **fields)
    host.start()
    try:
        yield host
    finally:
        host.stop()
        clear_away(host)


def clear_away(host: HostAgent) -> None:
    """End everything that the host's agents started, by pid, and take down its mounts and cgroups."""
    for _ in range(3):  # a supervisor may start something between two looks
        for pid in processes(host.mark, host.directory):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    for point in sorted(mounts(host.directory), reverse=True):
        subprocess.run(["umount", "-l", point], check=True)
    for group in sorted(cgroups(host.cgroup_parent), reverse=True):
        with suppress(OSError):  # somebody in it is just dying
            os.rmdir(group)
    for pattern in (host.cgroup_parent, f"*/{host.cgroup_parent}"):
        for parent in Path("/sys/fs/cgroup").glob(pattern):
            with suppress(OSError):
                os.rmdir(parent)


class Asker:
    """Questions about the region, to any of its servers that answers."""

    def __init__(self, region: Region) -> None:
        self._region = region

    def ask(self, method: Any, request: Any, *, namespace: str = "default") -> Any:
        from fedsched.sdk.connect import connect  # a fresh connection each: servers come and go in these tests

        last: FedschedError | None = None
        for server in self._alive():
            try:
                with connect(server.address) as client:
                    return client.call(method, request, namespace=namespace)
            except FedschedError as error:
                last = error
                if error.http_status < 500:
                    raise
        raise last or AssertionError("no server is up")

    def _alive(self) -> list[Server]:
        return [server for server in self._region.servers.values() if server.is_alive and not server.is_paused]

    def allocs(self, job_id: str = "") -> list[Allocation]:
        """All allocations, whole."""
        wanted = [stub for stub in self.stubs() if not job_id or stub.job_id == job_id]
        return [self.ask(ALLOC_GET, AllocRequest(alloc_id=stub.id)).alloc for stub in wanted]

    def stubs(self) -> list[AllocListStub]:
        """All allocations in short, page by page."""
        found: list[AllocListStub] = []
        token = ""
        while True:
            reply = self.ask(ALLOC_LIST, AllocListRequest(next_token=token, task_states=False))
            found += reply.allocs
            if not (token := reply.next_token):
                return found

    def statuses(self, job_id: str) -> Mapping[str, str]:
        return {stub.id: stub.client_status.value for stub in self.stubs() if stub.job_id == job_id}

    def ready_nodes(self) -> list[str]:
        nodes = self.ask(NODE_LIST, NodeListRequest()).nodes
        return [node.name for node in nodes if node.status is NodeStatus.READY]


def until(what: str, is_true: Callable[[], bool], within_s: float, *hosts: HostAgent, poll_s: float = 0.1) -> None:
    """Poll until true; the failure names what was waited for and shows the end of the hosts' logs."""
    deadline = time.monotonic() + within_s
    while not is_true():
        if time.monotonic() > deadline:
            raise AssertionError("\n".join([f"not within {within_s:g} s: {what}", *(host.tail() for host in hosts)]))
        time.sleep(poll_s)
