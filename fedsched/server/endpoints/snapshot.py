"""The region's state as a file: saved for a backup, restored from one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio
from msgspec import structs

from fedsched.model.errors import BadRequest, TooLarge, Unavailable
from fedsched.raft.membership import ServerInfo
from fedsched.raft.messages import SnapshotMeta
from fedsched.raft.wire import meta_to_bytes
from fedsched.rpc.method import Empty, Method
from fedsched.rpc.methods import snapshot as methods
from fedsched.rpc.methods.raft import RAFT_FETCH_IMAGE, FetchImageRequest
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.desk import Desk

CHUNK_BYTES: Final = 128 * 1024
UPLOAD_BYTES_MAX: Final = 64 * 1024**3
"""Far beyond any state; a stream without an end must not fill the disk."""
FETCH_S: Final = 600.0


class SnapshotEndpoint:
    """Answers `Snapshot.*`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._turn = trio.Lock()

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {methods.SNAPSHOT_SAVE: self.save, methods.SNAPSHOT_RESTORE: self.restore}

    async def save(self, request: Empty, context: CallContext) -> methods.SnapshotReply:
        """Cut a snapshot now and stream its file; its checksums go along and are checked by whoever receives it."""
        raft = self._desk.raft
        meta = await raft.snapshotter.make()
        reader = await trio.to_thread.run_sync(raft.snapshots.open, meta.id)
        offset = 0
        try:
            while data := await trio.to_thread.run_sync(reader.read, offset, CHUNK_BYTES):
                offset += len(data)
                if not await context.send(data):
                    break
        finally:
            reader.close()
        return methods.SnapshotReply(index=meta.index, size=offset)

    async def restore(self, request: Empty, context: CallContext) -> methods.SnapshotReply:
        """Check what is uploaded, have a quorum keep it, and only then let the log replace the state by it."""
        raft = self._desk.raft
        async with self._turn:
            path, size = await self._receive(context)
            try:
                meta = await raft.restoring.take_in(path)
            finally:
                await trio.to_thread.run_sync(path.unlink)
            await raft.restoring.spread(meta, self._have_fetched)
            await raft.restore(meta)
        index = self._desk.machine.store.index
        context.reply_meta = structs.replace(context.reply_meta, index=index)
        self._desk.log.warn("region_restored", image=meta.id, index=index, size=size)
        return methods.SnapshotReply(index=index, size=size)

    async def _receive(self, context: CallContext) -> tuple[Path, int]:
        fd, name = await trio.to_thread.run_sync(
            lambda: tempfile.mkstemp(suffix=".tmp", dir=self._desk.raft.restoring.images.directory)
        )
        size = 0
        try:
            async for chunk in context:
                size += len(chunk)
                if size > UPLOAD_BYTES_MAX:
                    raise TooLarge(f"more than {UPLOAD_BYTES_MAX} bytes were sent", hint="is this a saved state?")
                await trio.to_thread.run_sync(_write_all, fd, chunk)
            if not size:
                raise BadRequest("nothing was sent", hint="give the file that `operator snapshot save` wrote")
        except BaseException:
            os.unlink(name)
            raise
        finally:
            os.close(fd)
        return Path(name), size

    async def _have_fetched(self, server: ServerInfo, meta: SnapshotMeta) -> None:
        me = self._desk.me
        caller = await self._desk.peers.caller(server)
        request = FetchImageRequest(image=meta_to_bytes(meta), server_id=me.id, server_name=me.name, address=me.address)
        with trio.move_on_after(FETCH_S):
            await caller.call(RAFT_FETCH_IMAGE, request)
            return
        raise Unavailable(f"{server.name} has not fetched the image within {FETCH_S:g} s")


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
