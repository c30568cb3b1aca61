"""`fedsched bench fanout`: one server and thousands of client connections.

What a connection costs that says nothing: the server's memory with all of them, less its memory with a few, shared out.
The nodes are registered before either is measured, so that what is counted is the connection and its stream.

How fast news reach everybody: a system job is started and stopped again, which concerns every node at once, and the
time is taken from the first client that hears of it to the last. Beside it, in the same run and with as many bytes to
as many sockets, a plain loop of `send` calls.
"""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

import trio

from fedsched.agent.process import ServerProcess, server_processes
from fedsched.bench.frame import BenchOptions, BenchResult
from fedsched.bench.simulated_nodes import Shape, dial_websocket, make_nodes
from fedsched.model.errors import Unavailable
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.node import Node
from fedsched.model.resources import Resources
from fedsched.model.task import Task
from fedsched.rpc.caller import LinkCaller
from fedsched.rpc.methods.job import JOB_DEREGISTER, JOB_REGISTER, JobDeregisterRequest, JobRegisterRequest
from fedsched.rpc.methods.node import NODE_REGISTER, NODE_UPDATE_STATUS, NodeRegisterRequest, NodeStatusRequest
from fedsched.sdk.connect import connect

COUNT: Final = 5_000
FEW: Final = 200
"""Connections with which memory is measured first, so that what is only loaded once is not counted."""
ROUNDS: Final = 4
AT_ONCE: Final = 32
UP_S: Final = 30.0
SETTLE_S: Final = 4.0
LIMITS: Final = "[limits]\nrpc_max_conns_per_client = {0}\nhttp_max_conns_per_client = {0}\nhalf_open_max = 4096\n"


def run(options: BenchOptions) -> BenchResult:
    count = options.count or COUNT
    _allow_files(4 * count + 1024)
    nodes = make_nodes(Shape(count=count, seed=options.seed))
    (server,) = server_processes(["fanout"], options.directory, region="bench", extra=LIMITS.format(2 * count + 1024))
    server.start()
    try:
        trio.run(_register_all, server, nodes)
        options.say(f"{count} nodes are registered")
        return _measure(options, server, nodes)
    finally:
        server.stop()


def _measure(options: BenchOptions, server: ServerProcess, nodes: list[Node]) -> BenchResult:
    count = len(nodes)
    few = min(FEW, count // 2)
    with ClientsProcess(server.rpc_port, nodes) as clients:
        clients.ask(do="open", count=few)
        clients.ask(do="idle", for_s=SETTLE_S)
        before = memory_bytes(server.pid)
        clients.ask(do="open", count=count - few)
        clients.ask(do="idle", for_s=SETTLE_S)
        each = (memory_bytes(server.pid) - before) / (count - few)
        options.say(f"{count} connections: {each:,.0f} bytes each")
        rounds = []
        for number in range(ROUNDS):
            trio.run(_beat_all, server, nodes)
            clients.ask(do="idle", for_s=1.0)
            rounds.append(_push(server, clients, number))
    push = median(one["took_s"] for one in rounds)
    size = round(median(one["bytes"] for one in rounds) / count)
    options.say(f"told to all in {push:.3f} s, {size} bytes each")
    plain = median(_plain_rounds(nodes, size))
    figures = {
        "bytes_per_connection": round(each),
        "push_per_s": count / push,
        "plain_push_per_s": count / plain,
        "push_ratio_sockets": plain / push,
        "connections": count,
        "frame_bytes": size,
    }
    rows = [{"round": number, "push_s": one["took_s"], "missed": one["missed"]} for number, one in enumerate(rounds)]
    return BenchResult(figures=figures, rows=rows)


# ---- the server ---------------------------------------------------------------------------------------------------


async def _register_all(server: ServerProcess, nodes: list[Node]) -> None:
    """Make all nodes known and ready."""
    await _wait_up(server)

    async def register(caller: LinkCaller, node: Node) -> None:
        await caller.call(NODE_REGISTER, NodeRegisterRequest(node=node))
        await _beat(caller, node)

    await _for_all(server, nodes, register)


async def _beat_all(server: ServerProcess, nodes: list[Node]) -> None:
    """A sign of life of every node: the connections that are measured give none."""
    await _for_all(server, nodes, _beat)


async def _beat(caller: LinkCaller, node: Node) -> None:
    await caller.call(NODE_UPDATE_STATUS, NodeStatusRequest(node_id=node.id, secret_id=node.secret_id))


async def _for_all(server: ServerProcess, nodes: list[Node], do: Callable[[LinkCaller, Node], Awaitable[None]]) -> None:
    """Over one link, a few at a time."""
    async with dial_websocket(server.address) as link, trio.open_nursery() as nursery:
        caller = LinkCaller(link)
        waiting = iter(nodes)

        async def work() -> None:
            for node in waiting:
                await do(caller, node)

        for _ in range(AT_ONCE):
            nursery.start_soon(work)


async def _wait_up(server: ServerProcess) -> None:
    with trio.move_on_after(UP_S):
        while server.exit_code is None:
            try:
                async with dial_websocket(server.address):
                    return
            except (Unavailable, ExceptionGroup):
                await trio.sleep(0.1)
    raise Unavailable(f"the server did not come up: {' | '.join(server.last_lines())}")


def memory_bytes(pid: int) -> int:
    """A process's own part of the machine's memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise Unavailable(f"process {pid} does not say how much memory it has")


def _push(server: ServerProcess, clients: ClientsProcess, number: int) -> dict[str, Any]:
    """One change that concerns every node: a system job starts, or ends."""
    clients.tell(do="round")
    clients.hear()  # it listens
    with connect(server.address) as client:
        if number % 2:
            client.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="everywhere"))
        else:
            client.call(JOB_REGISTER, JobRegisterRequest(job=_job()))
    return clients.hear()


def _job() -> Job:
    task = Task(name="t", driver="mock_driver", config={"run_for": "1h"}, resources=Resources(cpu=1, memory_mb=10))
    return Job(id="everywhere", name="everywhere", type="system", task_groups=(TaskGroup(name="g", tasks=(task,)),))


# ---- the clients --------------------------------------------------------------------------------------------------


class ClientsProcess:
    """The process that holds the connections."""

    def __init__(self, port: int, nodes: list[Node], *, plain: bool = False) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedsched.bench.fanout_clients", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        known = [(node.id, node.secret_id) for node in nodes]
        self._write({"host": "127.0.0.1", "port": port, "nodes": known, "plain": plain})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, **wish: Any) -> dict[str, Any]:
        self.tell(**wish)
        return self.hear()

    def tell(self, **wish: Any) -> None:
        self._write(wish)

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable("the process with the clients has ended", hint="see what it wrote above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _write(self, value: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()


def _plain_rounds(nodes: list[Node], size: int) -> list[float]:
    """The same number of bytes to the same number of sockets, as plainly as it can be done."""
    took = []
    with (
        socket.create_server(("127.0.0.1", 0), backlog=1024) as listener,
        ClientsProcess(listener.getsockname()[1], nodes, plain=True) as clients,
    ):
        clients.tell(do="open", count=len(nodes))
        sockets = [listener.accept()[0] for _ in nodes]
        clients.hear()
        for one in sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        payload = bytes(size)
        for _ in range(ROUNDS):
            clients.tell(do="round")
            clients.hear()
            time.sleep(0.1)  # until it listens
            for one in sockets:
                one.send(payload)
            took.append(clients.hear()["took_s"])
        for one in sockets:
            one.close()
    return took


def _allow_files(wanted: int) -> None:
    """Let this process and those it starts have so many sockets open, as far as the machine allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
