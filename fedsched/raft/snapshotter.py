"""Cuts snapshots, fetches offered ones, and installs them; all beside the Raft messages, never in front of them.

A snapshot is encoded in steps of a few milliseconds from an immutable view of the state and written by a worker thread.
A fetch runs over a connection of its own and can be resumed. Only one install, and only one fetch, goes on at a time:
a newer offer replaces an older fetch, and a repeated offer of the same snapshot changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar

import trio

from fedsched.env.env import Env
from fedsched.model.errors import FedschedError
from fedsched.raft.applier import Applier
from fedsched.raft.compaction import CompactionSettings, compact_to, should_snapshot
from fedsched.raft.core import RaftCore
from fedsched.raft.disk_errors import failing
from fedsched.raft.in_thread import InThread, in_thread
from fedsched.raft.machine import Machine
from fedsched.raft.messages import SnapshotMeta, SnapshotOffer
from fedsched.raft.snapshots import SnapshotStore, SnapshotWriter
from fedsched.raft.store_thread import StoreThread
from fedsched.telemetry.log import Logger

T = TypeVar("T")

CHECK_EVERY_S: Final = 5.0
"""Between two looks at the policy, jittered so that the servers of a region do not all cut at once."""
FETCH_IDLE_S: Final = 30.0
"""A fetch that brings nothing for this long has failed; the leader will offer again."""
FILE_LIMITER_THREADS: Final = 2
ABORT_S: Final = 1.0
WEATHER: Final = (FedschedError, OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)

FetchSnapshot = Callable[[SnapshotOffer, int], AbstractAsyncContextManager[AsyncIterator[bytes]]]
"""Open the bytes of an offered snapshot, from an offset on."""


class Snapshotter:
    """Keeps the log short and the laggards fed."""

    def __init__(
        self,
        core: RaftCore,
        *,
        machine: Machine,
        snapshots: SnapshotStore,
        store: StoreThread,
        applier: Applier,
        settings: CompactionSettings,
        fetch: FetchSnapshot,
        flush: Callable[[], None],
        env: Env,
        log: Logger,
        in_thread: InThread = in_thread,
    ) -> None:
        self._core = core
        self._machine = machine
        self._snapshots = snapshots
        self._store = store
        self._applier = applier
        self._settings = settings
        self._fetch = fetch
        self._flush = flush
        self._log = log
        self._chance = env.rng("snapshot-jitter")
        self._now = env.now
        self._threads = in_thread
        self._files = trio.CapacityLimiter(FILE_LIMITER_THREADS)
        self._wanted = trio.Event()
        self._making = trio.Lock()
        self._offer: SnapshotOffer | None = None
        self._fetch_scope: trio.CancelScope | None = None
        self._nursery: trio.Nursery | None = None
        self.last: SnapshotMeta | None = snapshots.latest()
        self.made = 0
        self.installed = 0
        self.last_duration_s = 0.0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self._offer is not None:
                nursery.start_soon(self._fetch_offered, self._offer)
            while True:
                with trio.move_on_after(CHECK_EVERY_S * (0.5 + self._chance.random())):
                    await self._wanted.wait()
                is_wanted, self._wanted = self._wanted.is_set(), trio.Event()
                if is_wanted or self._is_due():
                    await self.make()

    def want(self) -> None:
        """Cut a snapshot soon, whatever the policy says."""
        self._wanted.set()

    async def make(self) -> SnapshotMeta:
        """Cut a snapshot of the state as it is now and let the log behind it go."""
        async with self._making:
            await self._applier.wait_released()
            started = self._now()
            index, image = self._applier.applied, self._machine.image()
            bytes_at_start = self._applier.bytes_since_snapshot
            config, config_index = self._core.config_at(index)
            term, schema = self._core.term_at(index), self._machine.schema_version
            with failing(f"writing a snapshot to {self._snapshots.directory}"):
                writer = await self._in_thread(self._snapshots.create, index, term, config, config_index, schema)
                meta = await self._written(writer, image)
            self.made += 1
            if self.last is not None and self.last.index > index:
                return meta  # a newer one was installed meanwhile, and the log begins after that
            self._applier.bytes_since_snapshot -= bytes_at_start
            self.last = meta
            self.last_duration_s = self._now() - started
            self._log.info("snapshot_made", index=index, size=meta.size, seconds=round(self.last_duration_s, 3))
            self._compact(meta)
            return meta

    async def _written(self, writer: SnapshotWriter, image: Iterable[bytes]) -> SnapshotMeta:
        try:
            for chunk in image:
                await self._in_thread(writer.write, chunk)
            return await self._in_thread(writer.finish)
        except BaseException:
            with trio.move_on_after(ABORT_S, shield=True):
                await self._in_thread(writer.abort)
            raise

    def start_fetch(self, offer: SnapshotOffer) -> None:
        """Begin (or go on) fetching what a leader offers."""
        if self._offer is not None and self._offer.meta.id == offer.meta.id and self._offer.sender == offer.sender:
            return
        if self._fetch_scope is not None:
            self._fetch_scope.cancel()
        self._offer = offer
        if self._nursery is not None:
            self._nursery.start_soon(self._fetch_offered, offer)

    def install(self, meta: SnapshotMeta) -> None:
        """Replace the state by a snapshot that lies on our disk; applying waits until that is done."""
        assert self._nursery is not None
        self._applier.hold()
        self._nursery.start_soon(self._install, meta)

    def _is_due(self) -> bool:
        status = self._core.status()
        return should_snapshot(
            self._settings,
            entries_since=self._applier.applied - (self.last.index if self.last else 0),
            bytes_since=self._applier.bytes_since_snapshot,
            log_bytes=status.log_bytes,
            last_size=self.last.size if self.last else 0,
        )

    def _compact(self, meta: SnapshotMeta) -> None:
        status = self._core.status()
        upto = compact_to(
            self._settings,
            snapshot_index=meta.index,
            first_index=status.first_index,
            log_bytes=status.log_bytes,
            log_entries=status.last - status.first_index + 1,
            live_matches=[peer.match for peer in status.peers if peer.is_active],
        )
        self._core.snapshot_made(meta, upto)
        self._flush()
        self._store.truncate_prefix(upto, meta)

    async def _fetch_offered(self, offer: SnapshotOffer) -> None:
        with trio.CancelScope() as scope:
            self._fetch_scope = scope
            ok = False
            try:
                await self._receive(offer)
                ok = True
            except WEATHER as why:
                stalled = f"nothing came for {FETCH_IDLE_S:.0f} s" if isinstance(why, trio.TooSlowError) else str(why)
                self._log.warn("snapshot_fetch_failed", index=offer.meta.index, sender=offer.sender, why=stalled)
            if self._offer is offer:
                self._offer = None
            if ok:
                self._core.snapshot_received(offer.meta)
            else:
                self._core.snapshot_failed(offer.meta)
            self._flush()

    async def _receive(self, offer: SnapshotOffer) -> None:
        receiver = await self._in_thread(self._snapshots.receive, offer.meta)
        try:
            with trio.fail_after(FETCH_IDLE_S) as patience:
                async with self._fetch(offer, receiver.offset) as chunks:
                    async for chunk in chunks:
                        await self._in_thread(receiver.write, chunk)
                        patience.deadline = trio.current_time() + FETCH_IDLE_S
            await self._in_thread(receiver.finish)
        finally:
            receiver.close()
        self._log.info("snapshot_received", index=offer.meta.index, size=offer.meta.size)

    async def _install(self, meta: SnapshotMeta) -> None:
        async def load() -> None:
            loader = self._machine.load()
            reader = await self._in_thread(self._snapshots.open, meta.id)
            try:
                chunks = reader.chunks()
                while (chunk := await self._in_thread(next, chunks, None)) is not None:
                    loader.feed(chunk)
                loader.finish()
            finally:
                reader.close()

        await self._applier.replace_state(meta.index, load)
        self.last = meta
        self.installed += 1
        self._log.info("snapshot_installed", index=meta.index)
        self._flush()

    async def _in_thread(self, fn: Callable[..., T], *args: Any) -> T:
        return await self._threads(fn, *args, limiter=self._files)
