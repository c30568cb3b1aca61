"""Puts one server's Raft together from its data directory: log store, snapshots, core, transport, runner.

Starting is a matter of order. The log is recovered and checked first, then the newest usable snapshot is loaded into
the state machine, and only then is there a core: from its first tick on it may vote and acknowledge, and must know all
that it ever promised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

import trio

from fedsched.env.env import Env
from fedsched.raft.core import RaftCore
from fedsched.raft.datadir import DataDir
from fedsched.raft.disk_errors import failing
from fedsched.raft.in_thread import InThread, in_thread
from fedsched.raft.machine import Machine
from fedsched.raft.membership import ServerInfo
from fedsched.raft.messages import Restored
from fedsched.raft.restoring import FetchImage
from fedsched.raft.runner import HoldOffice, RaftRunner, RunnerSettings
from fedsched.raft.settings import CoreSettings
from fedsched.raft.snapshots import SnapshotStore
from fedsched.raft.snapshotter import FetchSnapshot
from fedsched.raft.storage import LogStore
from fedsched.raft.store_thread import StoreThread
from fedsched.raft.transport import Dial, Transport
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry

IMAGES_KEPT: Final = 4
"""A server that is this many restores behind finds nobody any more who has the image it needs next."""


class NewStore(Protocol):
    """Makes what runs the log store beside the event loop: `StoreThread` itself, or a simulator's stand-in."""

    def __call__(
        self,
        store: LogStore,
        on_done: Callable[[int], None],
        on_failed: Callable[[BaseException], None],
        /,
        *,
        post: Callable[[Callable[[], None]], None],
    ) -> StoreThread:
        """`on_done` and `on_failed` are for the event loop; `post` takes them there."""


@dataclass(frozen=True, slots=True)
class OpenedDisk:
    """What the data directory held."""

    data_dir: DataDir
    log_store: LogStore
    snapshots: SnapshotStore
    images: SnapshotStore
    """Saved states that a restore has brought, until a snapshot makes them superfluous."""
    restored: Restored
    problems: tuple[str, ...]
    """Newer snapshots that could not be used, one sentence each."""

    def close(self) -> None:
        self.log_store.close()
        self.data_dir.close()


def open_disk(data_dir: DataDir) -> OpenedDisk:
    """Recover the log and find the snapshot to start from. Blocks; raises `DamagedStore` and the like."""
    data_dir.log_path.parent.mkdir(parents=True, exist_ok=True)
    log_store = LogStore(data_dir.log_path)
    restored = log_store.recover()
    try:
        with failing(f"looking for snapshots in {data_dir.path}"):
            snapshots = SnapshotStore(data_dir.snapshots_path, cluster_id=data_dir.cluster_id)
            images = SnapshotStore(data_dir.images_path, keep=IMAGES_KEPT, by_arrival=True)
            usable = snapshots.usable(restored.prev_index)
    except BaseException:
        log_store.close()
        raise
    restored = replace(restored, snapshot=usable.meta)
    return OpenedDisk(data_dir, log_store, snapshots, images, restored, usable.problems)


def load_snapshot(disk: OpenedDisk, machine: Machine) -> None:
    """Bring the state machine to where the newest usable snapshot left off. Blocks; nothing else runs yet."""
    meta = disk.restored.snapshot
    if meta is None:
        return
    loader = machine.load()
    with disk.snapshots.open(meta.id) as reader:
        for chunk in reader.chunks():
            loader.feed(chunk)
    loader.finish()


def make_runner(
    disk: OpenedDisk,
    machine: Machine,
    *,
    me: ServerInfo,
    dial: Dial,
    fetch_snapshot: FetchSnapshot,
    fetch_image: FetchImage,
    hold_office: HoldOffice,
    core_settings: CoreSettings,
    settings: RunnerSettings,
    env: Env,
    log: Logger,
    metrics: Registry | None = None,
    in_thread: InThread = in_thread,
    new_store: NewStore = StoreThread,
) -> RaftRunner:
    """A runner that is ready to `run`; must be called inside trio, because store completions return to this loop."""
    data_dir = disk.data_dir
    dice = env.rng("election")
    core = RaftCore(data_dir.server_id, disk.restored, core_settings, lambda n: dice.randrange(0, n))
    token = trio.lowlevel.current_trio_token()
    runner: RaftRunner
    store = new_store(
        disk.log_store,
        lambda number: runner.store_done(number),
        lambda error: runner.store_failed(error),
        post=token.run_sync_soon,
    )
    transport = Transport(
        me,
        dial=dial,
        env=env,
        log=log,
        on_unreachable=lambda server_id: runner.peer_unreachable(server_id),
        on_messages=lambda messages: runner.deliver(messages),
        adopt_cluster=_adopter(disk, core, lambda cluster_id: runner.join_cluster(cluster_id)),
        cluster_id=data_dir.cluster_id,
    )
    runner = RaftRunner(
        core,
        store=store,
        disk=data_dir,
        snapshots=disk.snapshots,
        machine=machine,
        transport=transport,
        images=disk.images,
        fetch_snapshot=fetch_snapshot,
        fetch_image=fetch_image,
        hold_office=hold_office,
        settings=settings,
        env=env,
        log=log,
        metrics=metrics,
        in_thread=in_thread,
    )
    return runner


def _adopter(
    disk: OpenedDisk, core: RaftCore, join: Callable[[str], Awaitable[None]]
) -> Callable[[str], Awaitable[bool]]:
    async def adopt(cluster_id: str) -> bool:
        """A server without a region takes part in the first one that calls it by its id; later ones are refused."""
        if disk.data_dir.cluster_id or core.log.last:
            return disk.data_dir.cluster_id == cluster_id
        await join(cluster_id)
        return True

    return adopt
