"""The trio side of Raft: feeds the core its inputs and performs the effects it asks for.

    ticks, peers' messages, proposals, store completions --> core --> sends, disk writes, commits, role changes

All inputs enter the core on the one trio thread. After a batch of inputs the runner takes the effects once, so that
many messages and proposals share one disk write and one packet per peer. It holds no rules of Raft: if it needs to know
one, that belongs in the core. What it does own is *when*: the clock (one tick after a stall, never a burst), the order
of durable writes and the messages that wait for them, the pace of applying, and the leader-only scope.

Any error from the store ends `run` with that error; nothing is acknowledged after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from fedsched.env.env import Env
from fedsched.model.errors import FedschedError
from fedsched.raft.applier import Applier
from fedsched.raft.compaction import CompactionSettings
from fedsched.raft.core import RaftCore
from fedsched.raft.datadir import DataDir, Space
from fedsched.raft.disk_errors import StoreFailed
from fedsched.raft.disk_watch import DiskWatch
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.errors import DiskPressure, NoQuorumRead, OutcomeUnknown, ProposalRefused, refusal
from fedsched.raft.in_thread import InThread, in_thread
from fedsched.raft.machine import Machine
from fedsched.raft.membership import Config, ConfigChange, ServerInfo
from fedsched.raft.messages import Accepted, Effects, Message, Refused, RoleChange, SnapshotMeta
from fedsched.raft.meters import Meters
from fedsched.raft.restoring import FetchImage, Restoring
from fedsched.raft.snapshots import SnapshotStore
from fedsched.raft.snapshotter import FetchSnapshot, Snapshotter
from fedsched.raft.store_group import StoreWrite
from fedsched.raft.store_thread import StoreThread
from fedsched.raft.transport import Transport
from fedsched.raft.waiters import AppliedWaits, Promise, Proposals
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry

SLOW_DISK_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    """How the runner paces itself. One multiplier scales all of Raft's times by scaling the tick."""

    tick_s: float = 0.05
    lag_warning_s: float = 0.1
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    digest_every: int = 4_096
    """A state digest is noted at every index divisible by this; equal on all servers of a region."""
    slow_disk_s: float = SLOW_DISK_S
    """A leader whose syncs have taken longer than half an election time-out for this long hands over."""


@dataclass(frozen=True, slots=True)
class Office:
    """One term of established leadership: what leader-only services are handed, and what they propose with."""

    term: int
    epoch: int


TRANSFER_LOOK_TICKS: Final = 4
STORE_CLOSE_S: Final = 3.0
DISK_CHECK_S: Final = 2.0

HoldOffice = Callable[[Office], Awaitable[None]]


class RaftFailed(FedschedError):
    """This server must stop: its disk or its state can no longer be trusted."""

    code = "raft_failed"


@dataclass(slots=True)
class _PendingWrite:
    number: int
    after_store: list[Message]
    upto_index: int
    upto_term: int
    at_term: int


class RaftRunner:
    """Runs one server's share of its region's Raft."""

    def __init__(
        self,
        core: RaftCore,
        *,
        store: StoreThread,
        disk: DataDir,
        snapshots: SnapshotStore,
        images: SnapshotStore,
        machine: Machine,
        transport: Transport,
        fetch_snapshot: FetchSnapshot,
        fetch_image: FetchImage,
        hold_office: HoldOffice,
        settings: RunnerSettings,
        env: Env,
        log: Logger,
        metrics: Registry | None = None,
        in_thread: InThread = in_thread,
    ) -> None:
        self.core = core
        self.settings = settings
        self.transport = transport
        self.snapshots = snapshots
        self.store = store
        self._disk = disk
        self._env = env
        self._log = log
        self._in_thread = in_thread
        self._hold_office = hold_office
        self._pending: deque[_PendingWrite] = deque()
        self._proposals = Proposals()
        self._waits = AppliedWaits()
        self._reads: dict[int, Promise[int]] = {}
        self._next_ctx = 1
        self._shared_read: Promise[int] | None = None
        self._flush_due = trio.Event()
        self._commit_untold = False
        self._company = 0
        """How many proposals were answered together last: whoever was alone then need not wait for others now."""
        self._meters = Meters(metrics or Registry())
        self._joining = trio.Lock()
        self._is_over = False
        self._failed: Promise[None] = Promise()
        self._role = RoleChange("follower", core.term, None, 0)
        self._role_changed = trio.Event()
        self._office: trio.CancelScope | None = None
        self._office_open_for = 0
        self._next_office: Office | None = None
        self._office_due = trio.Event()
        self.is_short_of_space = False
        self.longest_lag_s = 0.0
        self.loop_lag_s = 0.0
        self.restoring = Restoring(
            core, images=images, machine=machine, fetch=fetch_image, log=log, in_thread=in_thread
        )
        self.applier = Applier(
            core,
            machine,
            on_applied=self._on_applied,
            restore=self._restore,
            digest_every=settings.digest_every,
            clock=env.now,
        )
        self.snapshotter = Snapshotter(
            core,
            machine=machine,
            snapshots=snapshots,
            store=store,
            applier=self.applier,
            settings=settings.compaction,
            fetch=fetch_snapshot,
            flush=self._flush,
            env=env,
            log=log,
            in_thread=in_thread,
        )

    # ------------------------------------------------------------------ life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take part until cancelled; raises `RaftFailed` when this server must not go on."""
        self.store.start()
        try:
            await self._run(task_status)
        finally:
            self._is_over = True  # writes that are still finished have no effects any more: there is no store for them
            with trio.move_on_after(STORE_CLOSE_S, shield=True):
                await self._in_thread(self.store.close, STORE_CLOSE_S, abandon_on_cancel=True)

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.transport.run)
            self.transport.set_peers(self.core.config.servers)
            nursery.start_soon(self.applier.run)
            nursery.start_soon(self.snapshotter.run)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._pump)
            nursery.start_soon(self._offices)
            nursery.start_soon(self._watch_disk)
            self._flush()
            task_status.started()
            await self._failed.wait()

    def fail(self, why: str, cause: BaseException | None = None) -> None:
        """Stop for good: no acknowledgement or vote leaves after this."""
        if not self._failed.is_settled:
            self._log.error("raft_failed", why=why)
            failure = RaftFailed(f"raft stopped: {why}", hint="see the log; the disk or the data needs attention")
            failure.__cause__ = cause
            self._proposals.leadership_lost()
            self._failed.fail(failure)

    # ---------------------------------------------------------------- inputs

    def deliver(self, messages: Sequence[Message]) -> None:
        """A peer's messages, as many as arrived together."""
        for message in messages:
            self.core.step(message)
        self._flush(spread_commit=False)

    def peer_unreachable(self, server_id: str) -> None:
        self.core.peer_unreachable(server_id)
        self._flush_soon()

    def store_done(self, number: int) -> None:
        """The store made every write up to `number` durable."""
        self._meters.sync.observe(self.store.statistics().sync_last_s)
        pending = self._pending
        while pending and pending[0].number <= number:
            write = pending.popleft()
            self.core.stored(write.upto_index, write.upto_term, write.at_term)
            self._post(write.after_store)
        self._flush(spread_commit=False)

    def store_failed(self, error: BaseException) -> None:
        self._pending.clear()
        self.fail(f"the log store failed: {error}", error)

    async def propose(
        self,
        payload: bytes,
        *,
        epoch: int | None = None,
        kind: EntryKind = EntryKind.COMMAND,
        is_essential: bool = False,
        on_appended: Callable[[int], None] | None = None,
    ) -> tuple[int, Any]:
        """Replicate one entry; returns its index and the state machine's result once applied *here*.

        `on_appended` is told the index as soon as the entry has its place in this leader's log: whatever is proposed
        from then on comes after it, or not at all.

        Raises a refusal (never appended), `ProposalLost` (never happened) or `OutcomeUnknown` (may have happened;
        cancelling the wait means the same). `is_essential` entries are taken even when the disk runs short.
        """
        if self.is_short_of_space and not is_essential:
            raise DiskPressure(
                "the disk under the data directory is nearly full; new writes are refused",
                hint="free space on the server's disk; writes resume by themselves",
            )
        answer = self.core.propose((payload,), epoch, kind)
        if on_appended is not None and isinstance(answer, Accepted):
            on_appended(answer.first)
        return await self._settle(answer)

    async def change_config(self, change: ConfigChange, based_on: int | None = None) -> int:
        """Change the membership; returns the index once the change is committed and applied here."""
        index, _ = await self._settle(self.core.propose_config(change, based_on))
        return index

    async def _settle(self, answer: Accepted | Refused) -> tuple[int, Any]:
        if isinstance(answer, Refused):
            raise refusal(answer)
        if self._failed.is_settled or self._is_over:
            raise OutcomeUnknown("this server is stopping", hint="ask another server, with the same request id")
        promise = self._proposals.open(answer.first, answer.term)
        if self._company > 1 or len(self._proposals) > 1:
            self._flush_soon()
        else:
            self._flush()
        began, outcome = trio.current_time(), "abandoned"
        try:
            result = await promise.wait()
            outcome = "committed"
            self._meters.commit.observe(trio.current_time() - began)
            return result
        except FedschedError as ended:
            outcome = ended.code
            raise
        finally:
            self._meters.ended.labels(outcome).add()
            self._proposals.forget(answer.first, promise)

    async def restore(self, meta: SnapshotMeta) -> int:
        """Replace the whole state by an image that a quorum holds (see `restoring`); returns the entry's index."""
        payload = self.restoring.payload(meta)
        index, _ = await self._settle(self.core.propose((payload,), None, EntryKind.RESTORE))
        return index

    async def transfer_leadership(self, target: str | None = None) -> None:
        """Hand over to `target` (or the most caught-up voter) and wait until somebody else leads.

        The core gives up after one election time-out and leads on; that is `ProposalRefused`.
        """
        refused = self.core.transfer_leadership(target)
        if refused is not None:
            raise refusal(refused)
        self._flush()
        while self.is_leader:
            with trio.move_on_after(TRANSFER_LOOK_TICKS * self.settings.tick_s):
                await self._role_changed.wait()
            office = self.core.office
            if office is not None and office.transfer_to is None:
                raise ProposalRefused("the other server did not take over in time", hint="this one leads on; try again")
        while self._role.leader is None:
            await self._role_changed.wait()

    async def read_barrier(self) -> int:
        """Wait until this server's state is at least as new as everything acknowledged before the call.

        Callers that arrive while a barrier has not left yet share it. Raises `NoQuorumRead` when no leader confirms.
        """
        promise = self._shared_read
        if promise is None:
            ctx, self._next_ctx = self._next_ctx, self._next_ctx + 1
            promise = self._shared_read = self._reads[ctx] = Promise()
            self.core.read_index(ctx)
            self._flush_soon()
        began = trio.current_time()
        index = await promise.wait()
        await self.wait_applied(index)
        self._meters.read.observe(trio.current_time() - began)
        return index

    async def wait_applied(self, index: int) -> None:
        """Wait until the state machine has applied `index`."""
        if self.applier.applied < index:
            await self._waits.add(index).wait()

    def bootstrap(self, config: Config) -> bool:
        """Found a region with this first config; False if this server already has a log."""
        done = self.core.bootstrap(config)
        self._flush()
        return done

    async def join_cluster(self, cluster_id: str) -> None:
        """Belong to this cluster from now on, durably."""
        async with self._joining:  # we may be founding it while another founder already calls us into it
            await self._in_thread(self._disk.join_cluster, cluster_id)
        self.transport.cluster_id = self.snapshots.cluster_id = cluster_id
        self._log.info("cluster_joined", cluster_id=cluster_id)

    # --------------------------------------------------------------- looking

    @property
    def servers(self) -> tuple[ServerInfo, ...]:
        """All servers of the region, as far as this one knows."""
        return self.core.config.servers

    @property
    def is_leader(self) -> bool:
        return self._role.role == "leader"

    @property
    def open_proposals(self) -> int:
        return len(self._proposals)

    @property
    def open_reads(self) -> int:
        return len(self._reads)

    @property
    def role(self) -> RoleChange:
        return self._role

    @property
    def is_established(self) -> bool:
        """Whether this server leads *and* has applied an entry of its own term."""
        return self.is_leader and self._office_open_for == self._role.term

    async def wait_role_change(self) -> RoleChange:
        await self._role_changed.wait()
        return self._role

    # --------------------------------------------------------------- effects

    def _flush_soon(self) -> None:
        self._flush_due.set()

    async def _pump(self) -> None:
        """Take effects on behalf of proposals and reads: everybody who asked in the same round shares them.

        A commit is told to followers here too, a moment after it was applied: whoever was waiting for it has had its
        turn by then, and the news rides on the entries it proposed next.
        """
        while True:
            await self._flush_due.wait()
            self._flush_due = trio.Event()
            await trio.lowlevel.checkpoint()
            self._flush()

    def _flush(self, *, spread_commit: bool = True) -> None:
        self._shared_read = None
        is_due = self.core.has_effects or (spread_commit and self._commit_untold)
        while is_due and not self._is_over and not self._failed.is_settled:
            effects = self.core.take_effects(spread_commit=spread_commit)
            if spread_commit:
                self._commit_untold = False
            elif effects.commit_to and self.is_leader:
                self._commit_untold = True
            self._perform(effects)
            is_due = self.core.has_effects

    def _perform(self, effects: Effects) -> None:
        if effects.fatal:
            self.fail(effects.fatal)
            return
        if effects.role is not None:
            self._role_moved(effects.role)
        if effects.config is not None:
            self.transport.set_peers(effects.config.servers)
        if effects.send_now:
            self.transport.send(effects.send_now)
        if effects.needs_store or effects.after_store:
            self._write(effects)
            if self._failed.is_settled:
                return
        for lost in effects.lost:
            self._proposals.lost(lost.first, lost.last, lost.term)
        for ready in effects.reads:
            self._read_answered(ready.ctx, ready.index)
        if effects.fetch is not None:
            self.snapshotter.start_fetch(effects.fetch)
        if effects.install is not None:
            self.snapshotter.install(effects.install)
        if effects.commit_to:
            self.applier.commit_to(effects.commit_to)

    def _write(self, effects: Effects) -> None:
        if not effects.needs_store and not self._pending:
            self._post(effects.after_store)
            return
        self._pending.append(
            _PendingWrite(effects.number, effects.after_store, effects.last_index, effects.last_term, effects.at_term)
        )
        write = StoreWrite(effects.number, effects.hard_state, effects.reset, effects.append)
        try:
            self.store.submit(write)
        except StoreFailed as error:  # it may have failed a moment ago, with the news still on its way to us
            self.store_failed(error)

    def _post(self, messages: Sequence[Message]) -> None:
        """Let messages leave; those to ourselves are inputs."""
        others = []
        for message in messages:
            if message.to == self.core.server_id:
                self.core.step(message)
            else:
                others.append(message)
        if others:
            self.transport.send(others)

    def _read_answered(self, ctx: int, index: int) -> None:
        promise = self._reads.pop(ctx, None)
        if promise is None:
            return
        if index:
            promise.keep(index)
        else:
            promise.fail(NoQuorumRead("no leader could confirm the read", hint="try again, or ask with -stale"))

    def _role_moved(self, change: RoleChange) -> None:
        was_leader = self.is_leader
        before, self._role = self._role, change
        if was_leader and (change.role != "leader" or change.term != before.term):
            if self._office is not None:
                self._office.cancel()
            unknown = self._proposals.leadership_lost()
            self._log.info("leadership_lost", term=before.term, open_proposals=unknown)
        if change.role == "leader" and not was_leader:
            self._log.info("leadership_won", term=change.term)
        elif change.leader != before.leader and change.leader is not None:
            self._log.info("leader_found", leader=change.leader, term=change.term)
        event, self._role_changed = self._role_changed, trio.Event()
        event.set()

    def _on_applied(self, first: int, terms_and_results: Sequence[tuple[int, object]]) -> None:
        """A slice of entries starting at `first` was applied."""
        index = first
        were_open = len(self._proposals)
        for term, result in terms_and_results:
            self._proposals.applied(index, term, result)
            index += 1
        self._company = were_open - len(self._proposals)
        self._waits.reached(index - 1)
        if self._commit_untold or self.core.has_effects:
            self._flush_soon()
        role = self._role
        if role.role == "leader" and self._office_open_for != role.term and terms_and_results[-1][0] == role.term:
            self._office_open_for = role.term
            self._next_office = Office(role.term, role.epoch)
            self._office_due.set()

    async def _restore(self, entry: Entry) -> None:
        await self.restoring.apply(entry)
        self.snapshotter.want()  # until there is one, a restart needs the image again

    async def _offices(self) -> None:
        """Run the leader-only services, one term of office at a time.

        Closing may take a while. What was won and lost again meanwhile is never opened.
        """
        while True:
            await self._office_due.wait()
            self._office_due = trio.Event()
            office = self._next_office
            if office is None or not self.is_leader or self._role.term != office.term:
                continue
            with trio.CancelScope() as scope:
                self._office = scope
                self._log.info("office_opened", term=office.term)
                await self._hold_office(office)
            self._office = None
            self._log.info("office_closed", term=office.term)

    async def _tick(self) -> None:
        """The core's only clock. After a stall it gets one tick; queued messages are then heard before the next."""
        tick_s = self.settings.tick_s
        due = trio.current_time() + tick_s
        while True:
            await trio.sleep_until(due)
            now = trio.current_time()
            self.loop_lag_s = now - due
            self._meters.lag.observe(self.loop_lag_s)
            if self.loop_lag_s > self.longest_lag_s:
                self.longest_lag_s = self.loop_lag_s
            if self.loop_lag_s > self.settings.lag_warning_s:
                self._log.warn("event_loop_lag", lag_ms=round(self.loop_lag_s * 1000))
            self.core.tick()
            self._flush()
            due = max(due + tick_s, now + tick_s / 2)

    async def _watch_disk(self) -> None:
        """Stop taking writes before the disk is full, and hand over when it is nearly so, or too slow to lead with."""
        patience_s = self.settings.slow_disk_s
        half_election_s = self.settings.tick_s * self.core.settings.election_ticks / 2
        watch = DiskWatch(slow_s=half_election_s, patience_s=patience_s)
        space = Space.OK
        while True:
            await trio.sleep(min(DISK_CHECK_S, patience_s / 5))
            before, space = space, await self._in_thread(self._disk.space)
            if space is not before:
                await self._space_changed(space)
            why = watch.handover(trio.current_time(), space, self.store.statistics())
            if why and self.is_leader:
                refused = self.core.transfer_leadership()
                self._log.warn("handing_over", why=why, refused=refused.reason if refused else "")
                self._flush()

    async def _space_changed(self, space: Space) -> None:
        self.is_short_of_space = space is not Space.OK
        self._log.warn("disk_space", state=space.value)
        if space is Space.OK:
            await self._in_thread(self._disk.take_ballast)  # a start on a full disk may have given it away
