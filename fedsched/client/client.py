"""One client: the owner of everything that runs on a host for its region.

    journal, identity -> drivers -> a look at the host -> allocations of the last run -> link to servers
                                                                                          |
    servers want this (frames) -> desired core -> runners, one per allocation <-----------+
    runners have changed -> reports core -> link

Start order is the order above: tasks of an earlier run are found again before servers can say anything about them, and
servers hear of the node when all of it is known. Stopping leaves tasks running, unless this is a development agent.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import trio
from msgspec import structs

from fedsched import __version__
from fedsched.client.access import ClientAccess
from fedsched.client.alloc_dirs import sweep
from fedsched.client.check_book import CheckBook
from fedsched.client.context import AllocContext, ClientParts
from fedsched.client.dialling import Dial
from fedsched.client.disk_process import DiskProcess
from fedsched.client.driver_messages import hear_drivers
from fedsched.client.dynamic_users import DynamicUsers, claim_stored
from fedsched.client.fingerprint.found import Fingerprinter, Host
from fedsched.client.fingerprint.group_networks import GroupNetworks
from fedsched.client.fingerprint.runner import ALL, FingerprintRunner, chosen
from fedsched.client.gc import GarbageCollector
from fedsched.client.identity import NodeIdentity, id_of_host, open_identity
from fedsched.client.journal import Journal
from fedsched.client.network.networks import Networks
from fedsched.client.node_meta import JOURNAL_NAME, applied, from_journal, merged, to_journal
from fedsched.client.paths import scatter
from fedsched.client.reports_core import ReportsCore
from fedsched.client.runners import MakeRunner, Runner, Runners
from fedsched.client.server_list import ServerList
from fedsched.client.settings import ClientSettings
from fedsched.client.strays import end_strays
from fedsched.client.task_env import host_environment
from fedsched.client.uplink import Uplink, UplinkEnds
from fedsched.client.usage_metrics import UsageMetrics
from fedsched.codec import CodecError
from fedsched.drivers.isolation.users import is_known_id
from fedsched.drivers.registry import BUILT_IN, DriverHost, Drivers, open_drivers
from fedsched.env.env import Env
from fedsched.model.errors import FedschedError
from fedsched.model.node import DrainStrategy, Node
from fedsched.rpc.methods.node import NODE_DRAIN, NodeDrainRequest
from fedsched.rpc.methods.node_calls import NodeMetaReply
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry

IDENTITY: Final = "identity"
STOP_DEV_S: Final = 20.0
"""How long a development agent waits for its tasks to end before it leaves them."""
DRAIN_GRACE_S: Final = 5.0
"""What a drain may take beyond its deadline."""
ASK_S: Final = 15.0
NS: Final = 1_000_000_000


class Client:
    """A running client."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        env: Env,
        log: Logger,
        metrics: Registry,
        dial: Dial,
        make_runner: MakeRunner | None = None,
        looks: list[Fingerprinter] | None = None,
        built_in: Mapping[str, str] = BUILT_IN,
    ) -> None:
        self.settings = settings
        self._env = env
        self._log = log
        self._metrics = metrics
        self._dial = dial
        self._make_runner = make_runner or _alloc_runner()
        self._looks = looks
        self._built_in = built_in
        self._journal = Journal(settings.state_dir, log)
        self._disk = DiskProcess(settings.state_dir, log)
        self.parts: ClientParts
        self.identity: NodeIdentity
        self.uplink: Uplink
        self.drivers: Drivers
        self.networks: Networks
        self._runners: Runners
        self._fingerprints: FingerprintRunner
        self._gc: GarbageCollector
        self._shown: tuple[Node, Node]
        self._moved = trio.Event()
        self._meta_lock = trio.Lock()
        self._is_told = trio.Event()
        """The first picture of this host is complete."""

    # ---- life -----------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be this node until cancelled; `started` when tasks of the last run are taken up again."""
        self.settings.alloc_dir.mkdir(parents=True, exist_ok=True, mode=0o711)
        scatter(self.settings.alloc_dir)
        await trio.to_thread.run_sync(self._journal.open)
        try:
            await trio.to_thread.run_sync(sweep, self.settings.alloc_dir)
            self.identity = self._open_identity()
            self._make()
            async with trio.open_nursery() as nursery:
                await self._start(nursery)
                task_status.started()
            self.networks.close_claim()
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._journal.close)

    async def _start(self, nursery: trio.Nursery) -> None:
        await nursery.start(self._disk.run)
        await nursery.start(self.drivers.run, self._log)
        await nursery.start(self._fingerprints.run)
        await self._fingerprints.has_looked.wait()
        access = ClientAccess(self)
        await nursery.start(access.run)
        await self._journal.put_node(IDENTITY, self.identity.to_bytes())
        self.uplink.serve(access.calls)

        def remove(alloc_id: str) -> None:
            nursery.start_soon(self._gc.remove, alloc_id)

        drivers = [self.drivers.get(name) for name in self.drivers.names]
        await end_strays(drivers, self._journal.load(), self._log)
        await self.networks.start(self._journal.load())
        await self._runners.start(self.parts, self.uplink, nursery, self._runners_moved, remove)
        nursery.start_soon(hear_drivers, drivers, self.runner, self._log)
        nursery.start_soon(self._gc.run)
        if self.settings.publish_allocation_metrics or self.settings.publish_node_metrics:
            nursery.start_soon(UsageMetrics(self.parts, self._contexts).run)
        nursery.start_soon(self._stay_in_touch)
        self._log.info("client_started", node_id=self.identity.node_id, allocations=len(self._runners.all))

    async def _stay_in_touch(self) -> None:
        await self._is_told.wait()
        await self.uplink.run()

    async def stop(self, *, leave: bool = False) -> None:
        """Get ready to be cancelled. Tasks stay, unless the node leaves for good or this is a development agent."""
        if leave and self.settings.drain_on_shutdown is not None:
            await self._drain()
        if self.settings.is_dev:
            with trio.move_on_after(STOP_DEV_S):
                await self._runners.end_all()

    async def wait_registered(self) -> None:
        """Wait until servers take this node for ready."""
        await self.uplink.is_registered.wait()

    # ---- for others in this process -------------------------------------------------------------------------

    def runner(self, alloc_id: str) -> Runner | None:
        """The runner of an allocation that is on this host, running or over."""
        return self._runners.get(alloc_id)

    @property
    def runners(self) -> Mapping[str, Runner]:
        return self._runners.all

    async def collect_garbage(self, alloc_id: str = "") -> int:
        """Remove one finished allocation, or all of them; how many it were."""
        return await self._gc.collect(alloc_id)

    def node(self) -> Node:
        """This host as it is known now, without its secret."""
        latest = self._fingerprints.picture.latest()
        if self._shown[0] is not latest:
            self._shown = (latest, structs.replace(latest, secret_id=""))
        return self._shown[1]

    def meta(self) -> NodeMetaReply:
        """This node's metadata, and where it comes from."""
        dynamic = self._fingerprints.picture.dynamic_meta
        static = self.settings.meta
        return NodeMetaReply(meta=merged(static, dynamic), dynamic=dict(dynamic), static=dict(static))

    async def apply_meta(self, change: Mapping[str, str | None]) -> None:
        """Change this node's metadata; returns when that survives the agent. Servers hear of it a moment later."""
        async with self._meta_lock:
            after = applied(self.settings.meta, self._fingerprints.picture.dynamic_meta, change)
            await self._journal.put_node(JOURNAL_NAME, to_journal(after))
            self._fingerprints.set_meta(after)

    def reload(self, settings: ClientSettings) -> None:
        """Take over what may change while a client runs: static metadata and host volumes."""
        self.settings = replace(self.settings, meta=settings.meta, host_volumes=settings.host_volumes)
        self._fingerprints.reload(self.settings)

    # ---- making ---------------------------------------------------------------------------------------------

    def _open_identity(self) -> NodeIdentity:
        kept = self._journal.node.get(IDENTITY, b"")
        host_id = "" if self.settings.no_host_uuid else id_of_host()
        return open_identity(self.settings.state_dir, self._env.new_id, self._log, kept=kept, host_id=host_id)

    def _kept_meta(self) -> dict[str, str | None]:
        kept = self._journal.node.get(JOURNAL_NAME, b"")
        try:
            return from_journal(kept) if kept else {}
        except CodecError as error:
            self._log.error("node_meta_unreadable", why=str(error), hint="apply it again: it was not taken over")
            return {}

    def _make(self) -> None:
        settings, log, env, metrics = self.settings, self._log, self._env, self._metrics
        self.drivers = open_drivers(
            self._driver_host,
            log=log,
            is_dev=settings.is_dev,
            allowed=settings.driver_allowlist,
            denied=settings.driver_denylist,
            built_in=self._built_in,
        )
        self.networks = Networks(settings, self.identity.node_id, log)
        self._fingerprints = FingerprintRunner(
            Host(settings, version=__version__),
            self.identity,
            self.drivers,
            env=env,
            log=log,
            on_change=self._node_changed,
            looks=self._looks_at_host() if self._looks is None else self._looks,
            dynamic_meta=self._kept_meta(),
        )
        first = self._fingerprints.picture.node
        self._shown = (first, structs.replace(first, secret_id=""))
        runners = self._runners = Runners(
            self._make_runner,
            self._journal,
            node_id=self.identity.node_id,
            node_name=settings.name,
            log=log,
            metrics=metrics,
        )
        self.uplink = Uplink(
            ServerList(settings.servers),
            self._dial,
            UplinkEnds(
                node=lambda: self._fingerprints.picture.node,
                take_frame=runners.take_frame,
                report_of=runners.report_of,
                live=runners.live,
                save_acked=runners.save_acked,
            ),
            ReportsCore({one.alloc.id: one.local.acked for one in self._journal.load() if one.local.acked}),
            env=env,
            log=log,
            metrics=metrics,
            is_dev=settings.is_dev,
        )
        self._gc = GarbageCollector(
            settings,
            count=lambda: len(runners.all),
            finished=runners.finished,
            destroy=runners.destroy,
            log=log,
            metrics=metrics,
        )
        self.parts = ClientParts(
            settings=settings,
            env=env,
            log=log,
            metrics=metrics,
            node=self.node,
            region=settings.region,
            servers=self.uplink,
            drivers=self.drivers.get,
            checks=CheckBook(),
            has_contact=trio.Event(),
            other_alloc=runners.other,
            now_ns=lambda: round(env.wall() * NS),
            secret_id=self.identity.secret_id,
            networks=self.networks,
            host_env=host_environment(os.environ, settings.env_denylist),
            disk=self._disk,
            users=DynamicUsers(settings.dynamic_user_min, settings.dynamic_user_max, exists=is_known_id),
        )
        claim_stored(self.parts.users, self._journal.load())

    def _looks_at_host(self) -> list[Fingerprinter]:
        return chosen(self.settings, (*ALL, lambda: GroupNetworks(self.networks.offer)))

    def _driver_host(self, name: str) -> DriverHost:
        settings = self.settings
        return DriverHost(
            state_dir=settings.state_dir / "drivers" / name,
            settings=settings.driver_settings(name),
            env=self._env,
            log=self._log,
            metrics=self._metrics,
            node_id=self.identity.node_id,
            cgroup_parent=settings.cgroup_parent,
            is_dev=settings.is_dev,
            chroot_env=settings.chroot_env,
            denied_users=settings.user_denylist if name in settings.user_checked_drivers else (),
        )

    def _contexts(self) -> list[AllocContext]:
        return [runner.context for runner in self._runners.all.values()]

    def _runners_moved(self) -> None:
        self._gc.poke()
        self._moved.set()

    def _node_changed(self, node: Node) -> None:
        self._is_told.set()
        self.uplink.node_changed()

    # ---- leaving --------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Ask servers to move everything elsewhere, and wait until nothing runs here any more."""
        wanted = self.settings.drain_on_shutdown
        assert wanted is not None
        deadline_s = -1.0 if wanted.force else wanted.deadline_s
        strategy = DrainStrategy(deadline_s=deadline_s, ignore_system_jobs=wanted.ignore_system_jobs)
        request = NodeDrainRequest(node_id=self.identity.node_id, drain_strategy=strategy)
        try:
            with trio.fail_after(ASK_S):
                caller = await self.uplink.caller()
                await caller.call(NODE_DRAIN, request)
        except (FedschedError, trio.TooSlowError) as error:
            self._log.warn("drain_not_asked_for", why=str(error))
            return
        self._log.info("draining_before_leaving", deadline_s=wanted.deadline_s)
        limit_s = max(0.0, deadline_s) + DRAIN_GRACE_S if deadline_s else math.inf
        with trio.move_on_after(limit_s):
            while self._left(ignore_system=wanted.ignore_system_jobs) or self._has_more_to_say:
                self._moved = trio.Event()
                with trio.move_on_after(1.0):
                    await self._moved.wait()

    @property
    def _has_more_to_say(self) -> bool:
        """Servers that are there have not heard all yet; those that are gone are not waited for."""
        return self.uplink.is_connected and bool(self.uplink.unsaid)

    def _left(self, *, ignore_system: bool) -> int:
        """How many allocations are still to go, as far as this host can see."""
        live = [runner for runner in self._runners.all.values() if not runner.is_terminal]
        return sum(not (ignore_system and _is_system(runner)) for runner in live)


def _is_system(runner: Runner) -> bool:
    return runner.context.job.type in ("system", "sysbatch")


def _alloc_runner() -> MakeRunner:
    from fedsched.client.alloc_runner import AllocRunner

    return AllocRunner
