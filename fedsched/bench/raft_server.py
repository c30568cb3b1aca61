"""One bare Raft server for `fedsched bench raft`: the real core, log store, runner and sockets, and next to no state.

Speaks JSON lines with the bench on its standard input and output:

    {"do": "status"}                                   -> role, term, longest lag of the event loop
    {"do": "load", "outstanding": 16, "size": 1024, "seconds": 5}   -> commits per second, latency percentiles
    {"do": "commit"}                                   -> waits until an entry commits here, and says when
    {"do": "reads", "outstanding": 256, "seconds": 3}  -> linearizable reads per second
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from fedsched.env.real import RealEnv
from fedsched.model.errors import FedschedError, Unavailable
from fedsched.raft.assemble import load_snapshot, make_runner, open_disk
from fedsched.raft.datadir import SpaceLimits, open_data_dir
from fedsched.raft.entry import Entry
from fedsched.raft.membership import ServerInfo, first_config
from fedsched.raft.messages import SnapshotMeta, SnapshotOffer
from fedsched.raft.runner import Office, RaftRunner, RunnerSettings
from fedsched.raft.settings import CoreSettings
from fedsched.telemetry.log import get_logger


class CountingMachine:
    """Counts entries and chains their checksums: enough to compare servers, cheap enough not to be measured."""

    schema_version = 1

    def __init__(self) -> None:
        self.count = 0
        self._chain = 0

    def apply(self, entry: Entry) -> int:
        self.count += 1
        self._chain = zlib.crc32(entry.payload, self._chain)
        return self.count

    def after_apply(self, index: int) -> None:
        """Nobody waits on this state."""

    def image(self) -> Iterator[bytes]:
        yield self.digest()

    def load(self) -> _CountingLoader:
        return _CountingLoader(self)

    def load_restore(self, index: int) -> _CountingLoader:
        return _CountingLoader(self)

    def digest(self) -> bytes:
        return b"%d/%d" % (self.count, self._chain)


class _CountingLoader:
    def __init__(self, machine: CountingMachine) -> None:
        self._machine = machine
        self._data = b""

    def feed(self, chunk: bytes) -> None:
        self._data += chunk

    def finish(self) -> None:
        count, chain = self._data.split(b"/")
        self._machine.count, self._machine._chain = int(count), int(chain)


@asynccontextmanager
async def no_snapshots(offer: SnapshotOffer, offset: int) -> AsyncIterator[AsyncIterator[bytes]]:
    """The bench never runs long enough for a server to fall behind its log."""
    raise Unavailable(f"snapshot {offer.meta.id} is not served by the bench")
    yield  # type: ignore[unreachable]


@asynccontextmanager
async def no_images(server: ServerInfo, meta: SnapshotMeta, offset: int) -> AsyncIterator[AsyncIterator[bytes]]:
    """Nor does it restore anything."""
    raise Unavailable(f"image {meta.id} is not served by the bench")
    yield  # type: ignore[unreachable]


async def dial(peer: ServerInfo) -> trio.abc.Stream:
    host, port = peer.address.rsplit(":", 1)
    return await trio.open_tcp_stream(host, int(port))


async def hold_office(office: Office) -> None:
    await trio.sleep_forever()


class BenchServer:
    """Answers the bench's questions about one running server."""

    def __init__(self, runner: RaftRunner) -> None:
        self._runner = runner

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        match question["do"]:
            case "status":
                return self._status()
            case "load":
                return await self._load(question["outstanding"], question["size"], question["seconds"])
            case "reads":
                return await self._reads(question["outstanding"], question["seconds"])
            case "commit":
                return await self._commit()
        raise ValueError(f"the bench asked for {question!r}")

    def _status(self) -> dict[str, Any]:
        runner = self._runner
        return {
            "is_ready": runner.is_established,
            "term": runner.core.term,
            "applied": runner.applier.applied,
            "longest_lag_ms": runner.longest_lag_s * 1000,
            "cpu_s": time.process_time(),
        }

    async def _load(self, outstanding: int, size: int, seconds: float) -> dict[str, Any]:
        """Keep `outstanding` proposals open; each proposer sends its next entry when its last one is applied."""
        payload = os.urandom(size)
        latencies: list[float] = []
        until = time.perf_counter() + seconds

        async def proposer() -> None:
            while (started := time.perf_counter()) < until:
                await self._runner.propose(payload)
                latencies.append(time.perf_counter() - started)

        self._runner.longest_lag_s = 0.0
        began, cpu = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            for _ in range(outstanding):
                nursery.start_soon(proposer)
        return _report(latencies, time.perf_counter() - began, time.process_time() - cpu, self._runner)

    async def _reads(self, outstanding: int, seconds: float) -> dict[str, Any]:
        latencies: list[float] = []
        until = time.perf_counter() + seconds

        async def reader() -> None:
            while (started := time.perf_counter()) < until:
                await self._runner.read_barrier()
                latencies.append(time.perf_counter() - started)

        began, cpu = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            for _ in range(outstanding):
                nursery.start_soon(reader)
        return _report(latencies, time.perf_counter() - began, time.process_time() - cpu, self._runner)

    async def _commit(self) -> dict[str, Any]:
        """Try until an entry commits through this server; the moment is comparable between processes of one machine."""
        while True:
            try:
                await self._runner.propose(b"after a failure")
                return {"at": time.monotonic()}
            except FedschedError:
                await trio.sleep(0.005)


def _report(latencies: list[float], seconds: float, cpu_s: float, runner: RaftRunner) -> dict[str, Any]:
    latencies.sort()
    count = len(latencies)
    return {
        "per_s": count / seconds,
        "p50_ms": latencies[count // 2] * 1000 if count else None,
        "p99_ms": latencies[min(count - 1, count * 99 // 100)] * 1000 if count else None,
        "leader_cpu_us": cpu_s / max(1, count) * 1e6,
        "longest_lag_ms": runner.longest_lag_s * 1000,
    }


async def serve_questions(server: BenchServer) -> None:
    stdin = trio.lowlevel.FdStream(os.dup(0))
    buffer = b""
    async with stdin:
        async for data in stdin:
            buffer += data
            while b"\n" in buffer:
                line, buffer = buffer.split(b"\n", 1)
                answer = await server.answer(json.loads(line))
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()


async def run_server(options: dict[str, Any]) -> None:
    env = RealEnv()
    me = options["id"]
    servers = [ServerInfo(one["id"], one["id"], one["address"]) for one in options["servers"]]
    data_dir = open_data_dir(options["dir"], lambda: me, ballast_bytes=0, limits=SpaceLimits(0, 0, 0, 0))
    disk = open_disk(data_dir)
    machine = CountingMachine()
    load_snapshot(disk, machine)
    runner = make_runner(
        disk,
        machine,
        me=next(one for one in servers if one.id == me),
        dial=dial,
        fetch_snapshot=no_snapshots,
        fetch_image=no_images,
        hold_office=hold_office,
        core_settings=CoreSettings(),
        settings=RunnerSettings(),
        env=env,
        log=get_logger("raft"),
    )
    await runner.join_cluster("bench")
    host, port = next(one.address for one in servers if one.id == me).rsplit(":", 1)
    gc.collect()
    gc.freeze()
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(int(port), host=host)
        nursery.start_soon(trio.serve_listeners, runner.transport.serve, listeners)
        await nursery.start(runner.run)
        runner.bootstrap(first_config(servers))
        await serve_questions(BenchServer(runner))
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(run_server, json.loads(sys.argv[1]))
