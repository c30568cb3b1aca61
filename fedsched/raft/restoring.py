"""Replaces the state of a whole region by a saved one, through the log like any other change.

A saved state is far too large for an entry. So the leader first sees to it that a quorum holds the image on disk, and
then proposes an entry that only names it. Applying that entry loads the image; a server that does not have it fetches
it from one that has, and applies nothing further until then. An image stays on disk until a snapshot taken after the
entry makes it superfluous.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Final

import trio

from fedsched.model.errors import FedschedError, Unavailable
from fedsched.raft.core import RaftCore
from fedsched.raft.entry import Entry
from fedsched.raft.in_thread import InThread, in_thread
from fedsched.raft.machine import Machine
from fedsched.raft.membership import ServerInfo
from fedsched.raft.messages import SnapshotMeta
from fedsched.raft.quorum import has_quorum
from fedsched.raft.snapshots import SnapshotStore, inspect
from fedsched.raft.wire import meta_from_bytes, meta_to_bytes
from fedsched.telemetry.log import Logger

RETRY_S: Final = 1.0
COPY_BYTES: Final = 1024 * 1024
FETCH_IDLE_S: Final = 30.0
"""A fetch that brings nothing for this long has failed; another server, or another attempt, may do better."""

FetchImage = Callable[[ServerInfo, SnapshotMeta, int], AbstractAsyncContextManager[AsyncIterator[bytes]]]
"""Open the bytes of an image that another server holds, from an offset on."""
AskToFetch = Callable[[ServerInfo, SnapshotMeta], Awaitable[None]]
"""Have another server fetch an image from us and say when it is on its disk."""


class Restoring:
    """Images for restores: received, spread, and applied."""

    def __init__(
        self,
        core: RaftCore,
        *,
        images: SnapshotStore,
        machine: Machine,
        fetch: FetchImage,
        log: Logger,
        in_thread: InThread = in_thread,
    ) -> None:
        self.images = images
        self.restored = 0
        self._core = core
        self._machine = machine
        self._fetch = fetch
        self._log = log
        self._in_thread = in_thread

    async def take_in(self, path: Path) -> SnapshotMeta:
        """Check an uploaded file to its last byte and keep it among the images."""
        info = await self._in_thread(inspect, path)
        await self._in_thread(self._copy, path, info.meta)
        return info.meta

    async def spread(self, meta: SnapshotMeta, ask: AskToFetch) -> None:
        """Return once a quorum holds the image on disk; `Unavailable` if that cannot be reached."""
        config, me = self._core.config, self._core.server_id
        holders = {me}
        others = [server for server in config.servers if server.id != me]
        failed: list[str] = []

        async def one(server: ServerInfo) -> None:
            try:
                await ask(server, meta)
                holders.add(server.id)
            except FedschedError as why:
                failed.append(f"{server.name}: {why}")

        async with trio.open_nursery() as nursery:
            for server in others:
                nursery.start_soon(one, server)
        if not has_quorum(config, holders):
            raise Unavailable(
                f"only {len(holders)} of {len(config.voters)} servers could take the image: {'; '.join(failed)}",
                hint="nothing was changed; try again when the others are up",
            )

    async def fetch_from(self, server: ServerInfo, meta: SnapshotMeta) -> None:
        """Fetch an image from another server; durable and verified on return."""
        receiver = await self._in_thread(self.images.receive, meta)
        try:
            with trio.fail_after(FETCH_IDLE_S) as patience:
                async with self._fetch(server, meta, receiver.offset) as chunks:
                    async for chunk in chunks:
                        await self._in_thread(receiver.write, chunk)
                        patience.deadline = trio.current_time() + FETCH_IDLE_S
            await self._in_thread(receiver.finish)
        except trio.TooSlowError:
            raise Unavailable(f"{server.name} sent nothing of image {meta.id} for {FETCH_IDLE_S:.0f} s") from None
        finally:
            receiver.close()

    async def apply(self, entry: Entry) -> None:
        """Load the image an entry names; waits until some server can give it."""
        meta = meta_from_bytes(entry.payload)
        while not await self._in_thread(self._has, meta):
            await self._fetch_from_anybody(meta)
        reader = await self._in_thread(self.images.open, meta.id)
        loader = self._machine.load_restore(entry.index)
        try:
            chunks = reader.chunks()
            while (chunk := await self._in_thread(next, chunks, None)) is not None:
                loader.feed(chunk)
            loader.finish()
        finally:
            reader.close()
        self.restored += 1
        self._log.warn("state_restored", index=entry.index, image=meta.id)

    def payload(self, meta: SnapshotMeta) -> bytes:
        """What the entry that restores this image carries."""
        return meta_to_bytes(meta)

    async def _fetch_from_anybody(self, meta: SnapshotMeta) -> None:
        for server in self._core.config.servers:
            if server.id == self._core.server_id:
                continue
            try:
                await self.fetch_from(server, meta)
                return
            except (FedschedError, OSError, trio.BrokenResourceError) as why:
                self._log.warn("image_not_fetched", image=meta.id, server=server.name, why=str(why))
        await trio.sleep(RETRY_S)

    def _has(self, meta: SnapshotMeta) -> bool:
        return any(one.id == meta.id for one in self.images.list())

    def _copy(self, path: Path, meta: SnapshotMeta) -> None:
        receiver = self.images.receive(meta)
        try:
            with path.open("rb") as file:
                file.seek(receiver.offset)
                while data := file.read(COPY_BYTES):
                    receiver.write(data)
            receiver.finish()
        finally:
            receiver.close()
