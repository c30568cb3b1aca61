"""One simulated server: a disk that stays, and a daemon on it that is started, stopped and struck down.

The daemon is the real one: `make_runner`, the transport, the snapshotter. Only what it stands on is virtual: links,
disk, time, and the threads for blocking calls, which are pauses here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from fedsched.model.errors import FedschedError
from fedsched.raft.assemble import load_snapshot, make_runner
from fedsched.raft.compaction import CompactionSettings
from fedsched.raft.errors import OutcomeUnknown, ProposalLost
from fedsched.raft.membership import ServerInfo, first_config
from fedsched.raft.messages import Message, SnapshotMeta, SnapshotOffer
from fedsched.raft.runner import Office, RaftFailed, RaftRunner, RunnerSettings
from fedsched.raft.settings import CoreSettings
from fedsched.raft.storage import StoreFailed
from fedsched.sim.daemon_book import Book
from fedsched.sim.daemon_env import DaemonEnv, LogToBook
from fedsched.sim.daemon_links import PacketTap, Pieces
from fedsched.sim.daemon_machine import DaemonMachine
from fedsched.sim.daemon_plan import DaemonOptions
from fedsched.sim.machine import Command
from fedsched.sim.streams import stream
from fedsched.sim.verdict import Broken
from fedsched.sim.virtual_disk import PLANNED_FAILURE, VirtualDisk, VirtualStore
from fedsched.sim.virtual_net import VirtualNet, VirtualStream
from fedsched.telemetry.log import Hub

T = TypeVar("T")

CLUSTER = "simulated"
TICK_S = 0.05
CORE = CoreSettings(election_ticks=10)
PIECE_BYTES = 150
"""Of a snapshot on its way: small, so that fetches can be cut in the middle."""
UNWOUND_S = 0.001
"""When this much virtual time has passed, whoever was cancelled has had its turn."""
WEATHER = (FedschedError, OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)


class Gone(Exception):
    """The process this call ran in has ended; nobody knows what came of the call."""


class Region:
    """What the hosts of one run share."""

    def __init__(self, options: DaemonOptions, book: Book, nursery: trio.Nursery) -> None:
        self.options = options
        self.book = book
        self.nursery = nursery
        """Where daemons and disks live: nothing here belongs to another daemon."""
        self.net = VirtualNet(options, stream(options.seed, "daemon-net"), book.counts)
        self.hub = Hub(wall=trio.current_time)
        self.hub.configure(level="debug", sink=LogToBook(book))
        names = [f"s{number}" for number in range(1, options.servers + options.spares + 1)]
        self.infos = {name: ServerInfo(name, name, name) for name in names}
        self.founders = tuple(self.infos[name] for name in names[: options.servers])
        self.hosts = {name: Host(info, self) for name, info in self.infos.items()}
        self._attempts = 0

    def new_attempt(self) -> int:
        self._attempts += 1
        return self._attempts

    def leader(self) -> Host | None:
        """The host whose daemon leads in the newest term, as far as it knows itself."""
        leading = [host for host in self.hosts.values() if host.daemon is not None and host.daemon.runner.is_leader]
        return max(leading, key=lambda host: host.running.runner.role.term, default=None)


class Host:
    """One server through all lives of its daemon."""

    def __init__(self, info: ServerInfo, region: Region) -> None:
        options = region.options
        self.info = info
        self.region = region
        self.disk = VirtualDisk(
            info.id,
            stream(options.seed, f"daemon-disk-{info.id}"),
            sync_s=options.sync_s,
            keep_unsynced=options.keep_unsynced,
        )
        self.daemon: Daemon | None = None
        self.lives = 0

    @property
    def running(self) -> Daemon:
        assert self.daemon is not None, f"{self.info.id} is down"
        return self.daemon

    def start(self) -> None:
        """Start a daemon if there is none."""
        if self.daemon is None:
            self.lives += 1
            self.region.book.note(self.info.id, "start", str(self.lives))
            self.region.net.host_back(self.info.id)
            self.daemon = Daemon(self)
            self.region.nursery.start_soon(self.daemon.run)

    def crash(self, *, silently: bool) -> None:
        """The daemon is no more from this moment on; what still unwinds of it can touch nothing."""
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            self.region.book.note(self.info.id, "crash", "silently" if silently else "")
            self.region.book.counts["crashes"] += 1
            self.region.net.host_gone(self.info.id, silently=silently)
            daemon.die()

    async def stop(self) -> None:
        """An orderly end, as SIGTERM brings it."""
        daemon = self.daemon
        if daemon is not None:
            self.region.book.note(self.info.id, "stop", "")
            self.region.book.counts["stops"] += 1
            daemon.stop()
            await daemon.has_ended.wait()


class Daemon:
    """One life of a daemon."""

    def __init__(self, host: Host) -> None:
        region = host.region
        self.host = host
        self.region = region
        self.name = host.info.id
        self.scope = trio.CancelScope()
        self.has_ended = trio.Event()
        self.is_dead = False
        self.is_accepting = False
        self.connections = 0
        """Connections that others have opened to this daemon."""
        self._calls: dict[trio.CancelScope, None] = {}
        self._chance = stream(region.options.seed, f"daemon-{self.name}-{host.lives}")
        self._nursery: trio.Nursery
        self._store: VirtualStore
        disk = host.disk.opened()
        self.machine = DaemonMachine(self.name, region.book)
        load_snapshot(disk, self.machine)
        options = region.options
        self.runner: RaftRunner = make_runner(
            disk,
            self.machine,
            me=host.info,
            dial=self._dial,
            fetch_snapshot=self._fetch_snapshot,
            fetch_image=self._fetch_image,
            hold_office=self._hold_office,
            core_settings=CORE,
            settings=RunnerSettings(
                tick_s=TICK_S,
                digest_every=8,
                slow_disk_s=2.0,
                compaction=CompactionSettings(
                    snapshot_entries=options.snapshot_entries, snapshot_bytes=0, trailing_entries=3
                ),
            ),
            env=DaemonEnv(options, self.name, host.lives),
            log=region.hub.logger("raft", server=self.name),
            in_thread=self.in_thread,
            new_store=self._new_store,
        )

    def _new_store(
        self,
        store: Any,
        on_done: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
        /,
        *,
        post: Callable[[Callable[[], None]], None],
    ) -> Any:
        self._store = VirtualStore(
            self.host.disk,
            self.region.nursery,
            on_done,
            on_failed,
            lambda kind, detail: self.region.book.note(self.name, kind, detail),
        )
        return self._store

    @property
    def is_syncing(self) -> bool:
        return self._store.is_syncing

    # -------------------------------------------------------------------- life

    async def run(self) -> None:
        """Live until stopped, struck down, or failed by the disk; anything else that ends it ends the whole run."""
        try:
            with self.scope:
                await self._run()
        except* Gone:
            if not self.is_dead:
                raise
        except* (RaftFailed, StoreFailed) as group:
            if group.split(_is_planned)[1] is not None:
                raise
            self.region.book.counts["sync errors"] += 1
        finally:
            self._end_calls()
            if self.host.daemon is self:
                self.host.daemon = None
                self.region.net.host_gone(self.name, silently=False)
            self.is_accepting = False
        if self._store.is_started:
            await self._store.has_ended.wait()
        await trio.sleep(UNWOUND_S)
        self.has_ended.set()
        self.region.book.note(self.name, "ended", "dead" if self.is_dead else "")
        if self.runner.open_proposals:
            raise Broken("books empty", f"{self.runner.open_proposals} proposals outlived their daemon", self.name)

    async def _run(self) -> None:
        if self.host.info in self.region.founders:
            await self.runner.join_cluster(CLUSTER)
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self.runner.run)
            if self.host.info in self.region.founders:
                self.runner.bootstrap(first_config(self.region.founders))
            self.is_accepting = True
            nursery.start_soon(self._watch_role)

    def stop(self) -> None:
        self.is_accepting = False
        self._end_calls()
        self.scope.cancel()

    def die(self) -> None:
        self.is_dead = True
        self._store.power_cut()
        self.stop()

    async def _watch_role(self) -> None:
        while True:
            role = await self.runner.wait_role_change()
            self.region.book.role_moved(self.name, role.role, role.term, self.region.options.closing_s)
            if role.role != "leader" and self.runner.open_proposals:
                raise Broken("ends once", f"{self.runner.open_proposals} proposals outlived the leadership", self.name)

    # ------------------------------------------------------------------- calls

    async def call(self, handler: Callable[[Daemon], Awaitable[T]]) -> T:
        """Do something inside this process, as a request handler would. Raises `Gone` when the process ends first."""
        scope = trio.CancelScope()
        if self.is_dead or not self.is_accepting:
            raise Gone
        self._calls[scope] = None
        try:
            with scope:
                return await handler(self)
        finally:
            del self._calls[scope]
        raise Gone

    def cancel_calls(self) -> None:
        """Everybody who waits for this daemon gives up at once."""
        self._end_calls()

    def _end_calls(self) -> None:
        for scope in self._calls:
            scope.cancel()

    async def propose(self, command: Command, epoch: int | None = None) -> tuple[int, Any]:
        """Propose, and hold the runner to what it says came of it."""
        book, attempt = self.region.book, command.attempt
        book.proposed(attempt, self.name)
        try:
            index, outcome = await self.runner.propose(command.encode(), epoch=epoch)
        except ProposalLost:
            book.ended(attempt, "lost")
            raise
        except OutcomeUnknown:
            book.ended(attempt, "unknown")
            raise
        except FedschedError:
            book.ended(attempt, "refused")
            raise
        except BaseException:
            book.ended(attempt, "unknown")
            raise
        book.ended(attempt, "committed", index, outcome)
        return index, outcome

    # ------------------------------------------------------------------ office

    async def _hold_office(self, office: Office) -> None:
        """A leader's service: proposes now and then under its epoch, and takes its time to close."""
        held = self.region.book.office_opened(self.name, office.term)
        if not self.runner.core.is_established:
            raise Broken("office opens late", f"term {office.term} has applied nothing of its own yet", self.name)
        try:
            number = 0
            while True:
                await trio.sleep(0.3 + self._chance.random())
                number += 1
                await self._do_duty(office, number)
        finally:
            if self.region.options.closing_s and not self.is_dead:
                with trio.move_on_after(self.region.options.closing_s * self._chance.random(), shield=True):
                    await trio.sleep_forever()
            self.region.book.office_closed(held)

    async def _do_duty(self, office: Office, number: int) -> None:
        command = Command(
            f"office-{office.term}", number, self.region.new_attempt(), "put", "duty", 0, f"{office.term}.{number}"
        )
        try:
            index, _ = await self.propose(command, office.epoch)
        except FedschedError:
            return
        term = self.region.book.applied[index].term
        if term != office.term:
            raise Broken("office proposes in its term", f"term {office.term} proposed into {term}", self.name)

    # ----------------------------------------------------------------- threads

    async def in_thread(
        self,
        sync_fn: Callable[..., T],
        /,
        *args: Any,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """A blocking call as a pause: like a thread it cannot be cancelled half way, but dies with the process."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if limiter is not None:
            async with limiter:
                return await self._pause_and_call(sync_fn, *args)
        return await self._pause_and_call(sync_fn, *args)

    async def _pause_and_call(self, sync_fn: Callable[..., T], *args: Any) -> T:
        with trio.CancelScope(shield=True):
            await trio.sleep(self.region.options.thread_s * self._chance.random())
            if self.is_dead:
                raise Gone
            result = sync_fn(*args)
            await trio.sleep(self.region.options.thread_s * self._chance.random())
        if self.is_dead:
            raise Gone
        return result

    # ------------------------------------------------------------------- links

    async def _dial(self, peer: ServerInfo) -> trio.abc.Stream:
        ours = await self._connect(peer.id, lambda daemon, stream: daemon._serve(stream))
        ours.tap = PacketTap(self._sending)
        return ours

    def _sending(self, message: Message) -> None:
        if not self.is_dead:
            self.region.book.sending(message, self.host.disk.log)

    async def _connect(self, to: str, serve: Callable[[Daemon, VirtualStream], Awaitable[None]]) -> VirtualStream:
        await self.region.net.knock(self.name, to)
        daemon = self.region.hosts[to].daemon
        if daemon is None or not daemon.is_accepting:
            raise ConnectionRefusedError(f"nobody listens at {to}")
        ours, theirs = self.region.net.connect(self.name, to)
        daemon._nursery.start_soon(daemon._guarded, serve, theirs)
        return ours

    async def _guarded(self, serve: Callable[[Daemon, VirtualStream], Awaitable[None]], stream: VirtualStream) -> None:
        """What goes wrong on one connection ends that connection."""
        self.connections += 1
        try:
            await serve(self, stream)
        except WEATHER as why:
            self.region.book.note(self.name, "unserve", type(why).__name__)
        finally:
            self.connections -= 1
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: VirtualStream) -> None:
        await self.runner.transport.serve(stream)

    @asynccontextmanager
    async def _fetch_snapshot(self, offer: SnapshotOffer, offset: int) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._fetching(offer.sender, "snapshots", offer.meta, offset) as pieces:
            yield pieces

    @asynccontextmanager
    async def _fetch_image(
        self, server: ServerInfo, meta: SnapshotMeta, offset: int
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self._fetching(server.id, "images", meta, offset) as pieces:
            yield pieces

    @asynccontextmanager
    async def _fetching(self, to: str, what: str, meta: SnapshotMeta, offset: int) -> AsyncIterator[Pieces]:
        if offset:
            self.region.book.counts["fetches resumed"] += 1

        async def send(daemon: Daemon, stream: VirtualStream) -> None:
            reader = await daemon.in_thread(daemon.host.disk.files[what].open, meta.id)
            at = offset
            while data := await daemon.in_thread(reader.read, at, PIECE_BYTES):
                at += len(data)
                await stream.send_all(data)

        stream = await self._connect(to, send)
        try:
            yield Pieces(stream)
        finally:
            await trio.aclose_forcefully(stream)


def _is_planned(error: BaseException) -> bool:
    """The disk failed as it was told to; the store says so to whoever comes after the failure, too."""
    return PLANNED_FAILURE in str(error)
