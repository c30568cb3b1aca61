"""Carries out a run's plan of faults, each for as long as it says; at the end everything is mended at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import blake2b

import trio

from fedsched.model.errors import FedschedError
from fedsched.raft.datadir import Space
from fedsched.raft.membership import AddLearner, ConfigChange, Promote, Remove, ServerInfo
from fedsched.raft.messages import SnapshotMeta
from fedsched.sim.daemon_host import Daemon, Gone, Host, Region
from fedsched.sim.daemon_plan import Action
from fedsched.sim.streams import stream

MOMENTS = ("propose", "propose", "write", "write", "write", "synced", "send", "ended", "log", "role", "office")
ASKING_S = 8.0
"""How long an operator waits for what was asked for."""


class Faults:
    """The region's bad luck, and its operators."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._rng = stream(region.options.seed, "daemon-luck")
        self._hosts = list(region.hosts.values())

    async def run(self) -> None:
        """All of the plan, then no fault any more."""
        with trio.move_on_at(self.region.options.chaos_s):
            async with trio.open_nursery() as nursery:
                for action in self.region.options.plan:
                    await trio.sleep_until(action.at)
                    nursery.start_soon(self._do, action)
                await trio.sleep_forever()
        self.heal()

    def heal(self) -> None:
        self.region.book.note("", "heal", "")
        self.region.book.trap = None
        self.region.net.heal()
        for host in self._hosts:
            host.disk.heal()
            host.start()

    async def _do(self, action: Action) -> None:
        self.region.book.note("", "fault", f"{action.kind} {action.who} for {action.for_s}")
        self.region.book.counts[f"fault {action.kind}"] += 1
        host = self._hosts[action.who % len(self._hosts)]
        deed: Callable[[Host, float], Awaitable[None]] = getattr(self, f"_{action.kind}")
        await deed(host, action.for_s)

    def _leader_or(self, host: Host) -> Host:
        return self.region.leader() or host

    def _other_than(self, host: Host) -> Host:
        return self._rng.choice([other for other in self._hosts if other is not host])

    # --------------------------------------------------------------- processes

    async def _crash(self, host: Host, for_s: float) -> None:
        host.crash(silently=self._rng.random() < 0.5)
        await trio.sleep(for_s)
        host.start()

    async def _crash_leader(self, host: Host, for_s: float) -> None:
        await self._crash(self._leader_or(host), for_s)

    async def _crash_all(self, host: Host, for_s: float) -> None:
        for each in self._hosts:
            each.crash(silently=True)
        for each in self._hosts:
            await trio.sleep(for_s * self._rng.random() / len(self._hosts))
            each.start()

    async def _stop(self, host: Host, for_s: float) -> None:
        host = self._leader_or(host) if self._rng.random() < 0.5 else host
        await host.stop()
        await trio.sleep(for_s)
        host.start()

    async def _crash_at(self, host: Host, for_s: float) -> None:
        await self._spring(self._leader_or(host), for_s, lambda daemon: daemon.host.crash(silently=False))

    async def _stop_at(self, host: Host, for_s: float) -> None:
        await self._spring(self._leader_or(host), for_s, Daemon.stop)

    async def _spring(self, host: Host, for_s: float, what: Callable[[Daemon], None]) -> None:
        """Do something to a daemon in the middle of an event of its own, then start it again.

        Now and then the disk has to be at work as well: what waits for it and what comes after it then meet the end.
        """
        book, wanted, left = self.region.book, self._rng.choice(MOMENTS), self._rng.choice((1, 1, 4, 9))
        daemon, has_sprung, needs_sync = host.daemon, trio.Event(), self._rng.random() < 0.7

        def trap(server: str, kind: str) -> None:
            nonlocal left
            if kind == wanted and server == host.info.id and daemon is not None and host.daemon is daemon:
                left -= daemon.is_syncing or not needs_sync
                if left <= 0:
                    book.trap = None
                    book.counts[f"struck at {wanted}"] += 1
                    what(daemon)
                    has_sprung.set()

        book.trap = trap
        with trio.move_on_after(for_s):
            await has_sprung.wait()
        book.trap = None
        await trio.sleep(for_s)
        host.start()

    async def _cancel_calls(self, host: Host, for_s: float) -> None:
        for each in self._hosts:
            if each.daemon is not None:
                each.daemon.cancel_calls()

    # ------------------------------------------------------------------- links

    async def _cut(self, host: Host, for_s: float) -> None:
        await self._cut_off([(host, self._other_than(host))], for_s, both_ways=True)

    async def _one_way(self, host: Host, for_s: float) -> None:
        await self._cut_off([(host, self._other_than(host))], for_s, both_ways=False)

    async def _isolate_leader(self, host: Host, for_s: float) -> None:
        leader = self._leader_or(host)
        pairs = [(leader, other) for other in self._hosts if other is not leader]
        await self._cut_off(pairs, for_s, both_ways=self._rng.random() < 0.7)

    async def _cut_off(self, pairs: list[tuple[Host, Host]], for_s: float, *, both_ways: bool) -> None:
        net = self.region.net
        links = [(one.info.id, other.info.id) for one, other in pairs]
        if both_ways:
            links += [(other, one) for one, other in links]
        for one, other in links:
            net.cut(one, other)
        await trio.sleep(for_s)
        is_reset = self._rng.random() < 0.3
        for one, other in links:
            net.join(one, other)
            if is_reset:
                net.reset(one, other)

    async def _reset(self, host: Host, for_s: float) -> None:
        for other in self._hosts:
            if other is not host and self._rng.random() < 0.6:
                self.region.net.reset(host.info.id, other.info.id)

    async def _slow_link(self, host: Host, for_s: float) -> None:
        one, other = host.info.id, self._other_than(host).info.id
        self.region.net.slow[one, other] = self._rng.choice((0.05, 0.4))
        await trio.sleep(for_s)
        self.region.net.slow.pop((one, other), None)

    # ------------------------------------------------------------------- disks

    async def _slow_disk(self, host: Host, for_s: float) -> None:
        host.disk.slow_s = self._rng.choice((0.1, 0.6))
        await trio.sleep(for_s)
        host.disk.slow_s = 0.0

    async def _sync_error(self, host: Host, for_s: float) -> None:
        host.disk.fails_next_sync = True
        await trio.sleep(for_s)
        host.disk.fails_next_sync = False
        host.start()

    async def _short_disk(self, host: Host, for_s: float) -> None:
        host = self._leader_or(host)
        host.disk.room = self._rng.choice((Space.SOFT, Space.HARD))
        await trio.sleep(for_s + 2.0)
        host.disk.room = Space.OK

    # --------------------------------------------------------------- operators

    async def _transfer(self, host: Host, for_s: float) -> None:
        async def hand_over(there: Daemon) -> None:
            await there.runner.transfer_leadership(self._rng.choice((None, host.info.id)))

        await self._ask_leader(hand_over, for_s)

    async def _dance(self, host: Host, for_s: float) -> None:
        with trio.move_on_after(2 * for_s):
            while True:
                await self._transfer(self._rng.choice(self._hosts), for_s)
                await trio.sleep(0.4 * self._rng.random())

    async def _snapshot(self, host: Host, for_s: float) -> None:
        self._want_snapshots()

    def _want_snapshots(self) -> None:
        for each in self._hosts:
            if each.daemon is not None and self._rng.random() < 0.7:
                each.daemon.runner.snapshotter.want()

    async def _laggard(self, host: Host, for_s: float) -> None:
        """Away for so long that the others have let the log go: only a snapshot brings it back.

        Everybody keeps cutting snapshots of their own meanwhile, the one that takes another's in not excepted.
        """
        host.crash(silently=False)
        for _ in range(3):
            await trio.sleep(for_s / 3)
            self._want_snapshots()
        host.start()
        for _ in range(10):
            await trio.sleep(0.2 * self._rng.random())
            self._want_snapshots()

    async def _restore(self, host: Host, for_s: float) -> None:
        """Spread a saved state to a quorum, then have the log replace the state by it."""

        async def restore(there: Daemon) -> None:
            runner, region = there.runner, self.region

            async def ask(server: ServerInfo, meta: SnapshotMeta) -> None:
                daemon = region.hosts[server.id].daemon
                if daemon is None:
                    raise FedschedError(f"{server.id} is down")
                try:
                    await daemon.call(lambda them: them.runner.restoring.fetch_from(there.host.info, meta))
                except (OSError, trio.BrokenResourceError, Gone) as why:
                    raise FedschedError(f"{server.id}: {why!r}") from why

            writer = there.host.disk.files["images"].create(1, 1, runner.core.config, 0)
            for number in range(self._rng.randrange(1, 8)):
                writer.write(blake2b(f"{there.name}/{trio.current_time()}/{number}".encode()).digest() * 4)
            meta = writer.finish()
            await runner.restoring.spread(meta, ask)
            await runner.restore(meta)
            region.book.counts["restores"] += 1

        await self._ask_leader(restore, ASKING_S)

    async def _membership(self, host: Host, for_s: float) -> None:
        """The spare joins as a learner, is promoted, and leaves again; each step is for another occasion."""
        spare = self._hosts[-1].info

        async def change(there: Daemon) -> None:
            config = there.runner.core.config
            step: ConfigChange
            if spare.id not in config.members:
                step = AddLearner(spare)
            elif spare.id in config.learners:
                step = Promote(spare.id)
            elif len(config.voters) > self.region.options.servers - 1 and self._rng.random() < 0.5:
                step = Remove(self._rng.choice(sorted(config.voters)))
            else:
                step = Remove(spare.id)
            await there.runner.change_config(step)
            self.region.book.counts["membership changes"] += 1

        await self._ask_leader(change, ASKING_S)

    async def _ask_leader(self, what: Callable[[Daemon], Awaitable[None]], wait_s: float) -> None:
        leader = self.region.leader()
        if leader is None:
            return
        with trio.move_on_after(wait_s):
            try:
                await leader.running.call(what)
            except (FedschedError, Gone) as why:
                self.region.book.note(leader.info.id, "refused", type(why).__name__)
