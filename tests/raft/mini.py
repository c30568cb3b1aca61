"""A region of bare Raft servers inside one test: real files, real sockets on loopback, quick ticks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from fedsched.env.real import RealEnv
from fedsched.raft.assemble import OpenedDisk, load_snapshot, make_runner, open_disk
from fedsched.raft.compaction import CompactionSettings
from fedsched.raft.datadir import SpaceLimits, open_data_dir
from fedsched.raft.entry import Entry
from fedsched.raft.membership import ServerInfo, first_config
from fedsched.raft.messages import SnapshotMeta, SnapshotOffer
from fedsched.raft.runner import Office, RaftRunner, RunnerSettings
from fedsched.raft.settings import CoreSettings
from fedsched.telemetry.log import get_logger

TICK_S = 0.01
SETTINGS = RunnerSettings(
    tick_s=TICK_S,
    digest_every=8,
    compaction=CompactionSettings(snapshot_entries=20, snapshot_bytes=0, trailing_entries=5),
)


class ListMachine:
    """Remembers every payload, in order."""

    schema_version = 1

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.fails_on: bytes | None = None

    def apply(self, entry: Entry) -> int:
        if entry.payload == self.fails_on:
            raise RuntimeError("planted")
        self.items.append(entry.payload)
        return len(self.items)

    def after_apply(self, index: int) -> None:
        """Nobody waits on this state."""

    def image(self) -> Iterator[bytes]:
        return iter([b"items", *self.items])

    def load(self) -> _ListLoader:
        return _ListLoader(self)

    def load_restore(self, index: int) -> _ListLoader:
        return _ListLoader(self)

    def digest(self) -> bytes:
        return b"%d" % hash(tuple(self.items))


class _ListLoader:
    def __init__(self, machine: ListMachine) -> None:
        self._machine = machine
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def finish(self) -> None:
        assert self._chunks[0] == b"items"
        self._machine.items = self._chunks[1:]


class MiniServer:
    """One server; can be stopped and started again on the same directory."""

    def __init__(self, name: str, region: MiniRegion) -> None:
        self.name = name
        self.region = region
        self.machine = ListMachine()
        self.offices: list[Office] = []
        self.is_in_office = False
        self.scope = trio.CancelScope()
        self.runner: RaftRunner
        self.disk: OpenedDisk
        self.failure: BaseException | None = None
        self._stopped = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        region = self.region
        self.scope = trio.CancelScope()
        self._stopped = trio.Event()
        self.machine = ListMachine()
        data_dir = open_data_dir(
            region.directory / self.name, lambda: self.name, ballast_bytes=0, limits=SpaceLimits(0, 0, 0, 0)
        )
        self.disk = open_disk(data_dir)
        load_snapshot(self.disk, self.machine)
        self.runner = make_runner(
            self.disk,
            self.machine,
            me=next(info for info in region.infos if info.id == self.name),
            dial=region.dial,
            fetch_snapshot=region.fetch,
            fetch_image=region.fetch_image,
            hold_office=self._hold_office,
            core_settings=CoreSettings(),
            settings=SETTINGS,
            env=RealEnv(),
            log=get_logger("raft"),
        )
        if not data_dir.cluster_id:
            await self.runner.join_cluster("mini")
        try:
            with self.scope:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.runner.run)
                    listener = region.listeners[self.name]
                    nursery.start_soon(trio.serve_listeners, self._hear, [listener])
                    task_status.started()
        except* Exception as group:
            self.failure = group
        finally:
            self.disk.close()
            self._stopped.set()

    async def stop(self) -> None:
        self.scope.cancel()
        await self._stopped.wait()

    async def wait_stopped(self) -> None:
        await self._stopped.wait()

    async def _hear(self, stream: trio.SocketStream) -> None:
        try:
            await self.runner.transport.serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await stream.aclose()

    async def _hold_office(self, office: Office) -> None:
        self.offices.append(office)
        self.is_in_office = True
        try:
            await trio.sleep_forever()
        finally:
            self.is_in_office = False


class MiniRegion:
    """Some servers that know each other."""

    def __init__(self, directory: Path, count: int) -> None:
        self.directory = directory
        self.servers = [MiniServer(f"s{number}", self) for number in range(1, count + 1)]
        self.listeners: dict[str, trio.SocketListener] = {}
        self.infos: list[ServerInfo] = []
        self.nursery: trio.Nursery

    async def start(self, server: MiniServer) -> None:
        address = next(info.address for info in self.infos if info.id == server.name)
        port = int(address.rsplit(":", 1)[1])
        self.listeners[server.name] = (await trio.open_tcp_listeners(port, host="127.0.0.1"))[0]
        await self.nursery.start(server.run)

    async def dial(self, peer: ServerInfo) -> trio.abc.Stream:
        host, port = peer.address.rsplit(":", 1)
        return await trio.open_tcp_stream(host, int(port))

    @asynccontextmanager
    async def fetch(self, offer: SnapshotOffer, offset: int) -> AsyncIterator[AsyncIterator[bytes]]:
        sender = next(server for server in self.servers if server.name == offer.sender)

        async def chunks() -> AsyncIterator[bytes]:
            with sender.disk.snapshots.open(offer.meta.id) as reader:
                at = offset
                while data := reader.read(at, 1000):
                    at += len(data)
                    yield data
                    await trio.lowlevel.checkpoint()

        yield chunks()

    @asynccontextmanager
    async def fetch_image(
        self, server: ServerInfo, meta: SnapshotMeta, offset: int
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        holder = next(one for one in self.servers if one.name == server.id)

        async def chunks() -> AsyncIterator[bytes]:
            with holder.disk.images.open(meta.id) as reader:
                yield reader.read(offset, 10_000_000)

        yield chunks()

    async def leader(self) -> MiniServer:
        """Wait until one of the servers holds office."""
        with trio.fail_after(10):
            while True:
                for server in self.servers:
                    if server.is_in_office and server.runner.is_established:
                        return server
                await trio.sleep(TICK_S)

    async def settled(self, items: int) -> None:
        """Wait until every running server has applied this many items."""
        with trio.fail_after(10):
            while not all(
                len(server.machine.items) >= items for server in self.servers if not server._stopped.is_set()
            ):
                await trio.sleep(TICK_S)


@asynccontextmanager
async def open_region(directory: Path, count: int = 3) -> AsyncIterator[MiniRegion]:
    region = MiniRegion(directory, count)
    for server in region.servers:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        region.listeners[server.name] = listener
        region.infos.append(ServerInfo(server.name, server.name, f"127.0.0.1:{listener.socket.getsockname()[1]}"))
    async with trio.open_nursery() as nursery:
        region.nursery = nursery
        for server in region.servers:
            await nursery.start(server.run)
        for server in region.servers:
            server.runner.bootstrap(first_config(region.infos))
        yield region
        for server in region.servers:
            server.scope.cancel()
