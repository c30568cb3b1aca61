"""One simulated server: the real Raft core and everything a runner does around it, on a modelled disk and clock.

The order of duties is the real runner's: sends that need no disk leave first, then the write is handed over, and what
depends on it leaves when it and all earlier writes are durable. Between any two of these steps the process may die; a
fault arms the place (`crash_at`), and the next time the server passes it with something in hand, it is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import Any, Protocol

from fedsched.raft.core import RaftCore
from fedsched.raft.entry import EntryKind
from fedsched.raft.messages import Accepted, Effects, Message, Refused, SnapshotMeta, SnapshotOffer
from fedsched.raft.settings import CoreSettings
from fedsched.sim.clock import Clock
from fedsched.sim.disk import Damaged, Disk, SnapshotFile, Transaction
from fedsched.sim.machine import Outcome, SimMachine
from fedsched.sim.options import Options
from fedsched.sim.world import Event, World

CRASH_POINTS = (
    "before_sends",
    "half_sends",
    "before_write",
    "after_write",
    "after_sync",
    "half_replies",
    "after_apply",
)
DIGEST_EVERY = 8
Answer = Callable[[str, Any], None]
"""How a server answers a client: a word (see `workloads`) and what goes with it."""


class _Died(Exception):
    """Unwinds whatever the process was doing when it was killed."""


class Watcher(Protocol):
    """What the checkers get to see of a server."""

    def started(self, server: SimServer) -> None: ...

    def took(self, server: SimServer, effects: Effects) -> None: ...

    def sent(self, server: SimServer, message: Message) -> None: ...

    def applied(self, server: SimServer, entry: Any, outcome: Outcome | None) -> None: ...

    def made(self, server: SimServer, meta: SnapshotMeta) -> None: ...

    def installed(self, server: SimServer, meta: SnapshotMeta) -> None: ...

    def fatal(self, server: SimServer, why: str) -> None: ...


class SimServer:
    """A process that can be started, killed and started again on the same disk."""

    def __init__(
        self,
        server_id: str,
        world: World,
        options: Options,
        *,
        send: Callable[[Message], None],
        find: Callable[[str], SimServer | None],
        watcher: Watcher,
        new_machine: Callable[[], SimMachine],
    ) -> None:
        self.id = server_id
        self.incarnation = 0
        self.is_paused = False
        self.parked: list[Event] = []
        self.core: RaftCore | None = None
        self.machine = new_machine()
        self.applied = 0
        self.is_damaged = False
        """Refused to start: its disk does not hold what was written."""
        self.is_clone = False
        """Runs on a copied disk beside the real one; the others refuse to talk to it."""
        self.crash_at = ""
        self.on_death: Callable[[SimServer], None] = lambda server: None
        self.is_open: Callable[[str, str], bool] = lambda sender, to: True
        self.disk = Disk(world, self, world.stream(f"disk/{server_id}"), options.sync_us, options.keep_unsynced)
        self.disk.on_durable = self._durable
        self.disk.on_failure = self._disk_failed
        self.clock = Clock(world, self)
        self._world = world
        self._options = options
        self._send = send
        self._find = find
        self._watcher = watcher
        self._new_machine = new_machine
        self._rng = world.stream(f"server/{server_id}")
        self._batches = options.has("batching")
        self._applies_slowly = options.has("slow_apply")
        self._clear()

    def _clear(self) -> None:
        """Everything a process loses when it ends."""
        self._writes_out = 0
        self._flush_due: Event | None = None
        self._commit = 0
        self._apply_due: Event | None = None
        self._installing: SnapshotMeta | None = None
        self._open: dict[int, tuple[int, Answer]] = {}
        self._reads: dict[int, tuple[str, Answer]] = {}
        self._ready_reads: list[tuple[int, str, Answer]] = []
        self._next_ctx = 1
        self._fetching: SnapshotOffer | None = None
        self._snapshots_made = 0
        self._is_making = False

    @property
    def is_up(self) -> bool:
        return self.core is not None

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Come up from what is on disk, or refuse to."""
        if self.core is not None or self.is_damaged:
            return
        try:
            restored, snapshot = self.disk.recover()
        except Damaged as why:
            self.is_damaged = True
            self._world.trace.remark(self._world.now, self.id, f"refuses to start: {why}")
            return
        self._clear()
        options = self._options
        settings = CoreSettings(
            heartbeat_ticks=options.heartbeat_ticks,
            election_ticks=options.election_ticks,
            message_bytes=options.message_bytes_max,
            window_messages=options.window_messages,
            uncommitted_bytes=options.uncommitted_bytes,
        )
        self.machine = self._new_machine()
        self.applied = 0
        if snapshot is not None:
            self.machine.restore(snapshot.data)
            self.applied = snapshot.meta.index
        self.core = RaftCore(self.id, restored, settings, self._rng.randrange)
        self._watcher.started(self)
        self.clock.start(self._rng.random())
        self._guarded(self._nothing)

    def crash(self) -> None:
        """Kill the process: nothing it held in memory remains."""
        if self.core is None:
            return
        self._world.trace.remark(self._world.now, self.id, "is killed")
        self.core = None
        self.incarnation += 1
        self.is_paused = False
        self.parked.clear()
        self.crash_at = ""
        self.disk.crash()
        self.on_death(self)

    def _disk_failed(self, why: str) -> None:
        """Any error of the store is the end of the process: nothing may be promised after it."""
        self._world.trace.remark(self._world.now, self.id, why)
        self.crash()

    def _pass(self, point: str) -> None:
        """The place called `point`: die here if that was arranged."""
        if self.crash_at == point:
            self.crash()
            raise _Died

    # --- inputs -------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self.core is not None:
            self._guarded(self.core.tick)

    def receive(self, message: Message) -> None:
        if self.core is not None:
            self._guarded(self.core.step, message)

    def peer_unreachable(self, peer_id: str) -> None:
        if self.core is not None:
            self._guarded(self.core.peer_unreachable, peer_id)

    def propose(self, payload: bytes, answer: Answer) -> None:
        """A client's write. Answers "refused", "committed" or "lost"; or not at all, which means unknown."""
        if self.core is not None:
            self._guarded(self._propose, payload, answer)

    def change_config(self, change: Any, based_on: int | None, answer: Answer) -> None:
        if self.core is not None:
            core = self.core
            self._guarded(lambda: self._await_commit(core.propose_config(change, based_on), answer))

    def transfer(self, target: str | None) -> None:
        if self.core is not None:
            self._guarded(self.core.transfer_leadership, target)

    def read(self, key: str, answer: Answer) -> None:
        """A client's linearizable read. Answers "read" or "refused"."""
        if self.core is not None:
            self._guarded(self._read, key, answer)

    def _propose(self, payload: bytes, answer: Answer) -> None:
        assert self.core is not None
        epoch = self.core.epoch if self._options.has("epoch") else None
        if epoch is not None and self._rng.random() < 0.1:
            stale = self.core.propose((payload,), epoch - 1)
            assert isinstance(stale, Refused), f"a proposal of epoch {epoch - 1} was taken in {epoch}"
        self._await_commit(self.core.propose((payload,), epoch), answer)

    def _await_commit(self, taken: Accepted | Refused, answer: Answer) -> None:
        if isinstance(taken, Refused):
            answer("refused", taken)
        else:
            answer("accepted", taken)
            self._open[taken.first] = (taken.term, answer)

    def _read(self, key: str, answer: Answer) -> None:
        assert self.core is not None
        ctx, self._next_ctx = self._next_ctx, self._next_ctx + 1
        self._reads[ctx] = (key, answer)
        self.core.read_index(ctx)

    def _nothing(self) -> None:
        """No input; only the effects are wanted."""

    def _guarded(self, call: Callable[..., Any], *args: Any) -> None:
        """Give the core one input and take what it asks for, unless the process dies on the way."""
        try:
            call(*args)
            if self._batches and self._rng.random() < 0.5:
                if self._flush_due is None or self._flush_due.is_off:
                    delay_us = int(self._rng.random() * self._options.batch_us)
                    self._flush_due = self._world.after(delay_us, self, "flush", self._flush)
            else:
                self._pump()
        except _Died:
            return

    def _flush(self) -> None:
        try:
            self._pump()
        except _Died:
            return

    # --- effects ------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        core = self.core
        while core is not None and core.has_effects:
            self._perform(core.take_effects())
            core = self.core

    def _perform(self, effects: Effects) -> None:
        if effects.fatal:
            self._watcher.fatal(self, effects.fatal)
            self.crash()
            raise _Died
        self._watcher.took(self, effects)
        if effects.role is not None:
            role = effects.role
            self._world.trace.remark(self._world.now, self.id, f"{role.role} term {role.term} leader {role.leader}")
        if effects.send_now:
            self._send_all(effects.send_now, "before_sends", "half_sends")
        if effects.needs_store or effects.after_store:
            self._write(effects)
        for lost in effects.lost:
            self._settle_lost(lost.first, lost.last, lost.term)
        for ready in effects.reads:
            self._read_ready(ready.ctx, ready.index)
        if effects.fetch is not None:
            self._fetch(effects.fetch)
        if effects.install is not None:
            self._install(effects.install)
        if effects.commit_to:
            self._commit = max(self._commit, effects.commit_to)
            self._apply_soon()

    def _send_all(self, messages: list[Message], before: str, halfway: str) -> None:
        if self.crash_at:
            self._pass(before)
            half = (len(messages) + 1) // 2
            for message in messages[:half]:
                self._let_go(message)
            self._pass(halfway)
            messages = messages[half:]
        for message in messages:
            self._let_go(message)

    def _let_go(self, message: Message) -> None:
        if message.to == self.id:
            if self.core is not None:
                self.core.step(message)
            return
        self._watcher.sent(self, message)
        self._send(message)

    def _write(self, effects: Effects) -> None:
        if not effects.needs_store and not self._writes_out:
            self._send_all(effects.after_store, "before_sends", "half_replies")
            return
        if self.crash_at:
            self._pass("before_write")
        self._writes_out += 1
        done = partial(self._write_done, effects.after_store, effects.last_index, effects.last_term, effects.at_term)
        self.disk.submit(
            Transaction(hard_state=effects.hard_state, reset=effects.reset, append=effects.append, done=done)
        )
        if self.core is None:  # the disk had no room
            raise _Died
        if self.crash_at:
            self._pass("after_write")

    def _durable(self, finished: list[Transaction]) -> None:
        """The store reports writes as durable."""

        def take_note() -> None:
            if self.crash_at:
                self._pass("after_sync")
            for write in finished:
                if write.done is not None:
                    write.done()

        if self.core is not None:
            self._guarded(take_note)

    def _write_done(self, after_store: list[Message], upto_index: int, upto_term: int, at_term: int) -> None:
        assert self.core is not None
        self._writes_out -= 1
        self.core.stored(upto_index, upto_term, at_term)
        if after_store:
            self._send_all(after_store, "before_sends", "half_replies")

    # --- applying -----------------------------------------------------------------------------------------------------

    def _apply_soon(self) -> None:
        if not self._applies_slowly:
            self._apply(self._commit)
        elif self._apply_due is None or self._apply_due.is_off:
            delay_us = int(self._rng.random() * self._options.apply_us)
            self._apply_due = self._world.after(delay_us, self, "apply", self._apply_slice)

    def _apply_slice(self) -> None:
        upto = min(self._commit, self.applied + 1 + self._rng.randrange(6))
        try:
            self._apply(upto)
            if self.applied < self._commit:
                self._apply_soon()
            self._pump()
        except _Died:
            return

    def _apply(self, upto: int) -> None:
        core = self.core
        if core is None or self._installing is not None or self.applied >= upto:
            return
        for entry in core.entries(self.applied + 1, upto):
            assert entry.index == self.applied + 1, f"entry {entry.index} after {self.applied}"
            outcome = self.machine.apply(entry.index, entry.payload) if entry.kind is EntryKind.COMMAND else None
            self.applied = entry.index
            self._watcher.applied(self, entry, outcome)
            if entry.index % DIGEST_EVERY == 0:
                core.note_digest(entry.index, self.machine.digest())
            waiting = self._open.pop(entry.index, None)
            if waiting is not None:
                term, answer = waiting
                answer(*(("committed", (entry.index, outcome)) if term == entry.term else ("lost", None)))
        core.applied(self.applied)
        self._serve_reads()
        if self.crash_at:
            self._pass("after_apply")

    def _settle_lost(self, first: int, last: int, term: int) -> None:
        for index in range(first, last + 1):
            waiting = self._open.get(index)
            if waiting is not None and waiting[0] == term:
                del self._open[index]
                waiting[1]("lost", None)

    def _read_ready(self, ctx: int, index: int) -> None:
        waiting = self._reads.pop(ctx, None)
        if waiting is None:
            return
        key, answer = waiting
        if not index:
            answer("refused", None)
            return
        answer("confirmed", index)
        self._ready_reads.append((index, key, answer))
        self._serve_reads()

    def _serve_reads(self) -> None:
        if self._ready_reads:
            ready = [read for read in self._ready_reads if read[0] <= self.applied]
            self._ready_reads = [read for read in self._ready_reads if read[0] > self.applied]
            for _, key, answer in ready:
                answer("read", self.machine.read(key))

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def make_snapshot(self, keep: int) -> None:
        """Cut a snapshot of the state as it is now; when it is safe, forget the log but for `keep` entries."""
        core, index = self.core, self.applied
        if core is None or self._is_making or index == 0 or self._installing is not None:
            return
        mark = self.disk.ahead.mark
        if mark is not None and mark.index >= index:
            return
        self._snapshots_made += 1
        config, config_index = core.config_at(index)
        data = self.machine.image()
        meta = SnapshotMeta(
            id=f"{self.id}.{self.incarnation}.{self._snapshots_made}",
            index=index,
            term=core.term_at(index),
            config=config,
            config_index=config_index,
            size=len(data),
            digest=blake2b(data, digest_size=16).digest(),
        )
        self._watcher.made(self, meta)
        self._is_making = True
        self._file_steps(self.disk.create(meta, data), partial(self._made, meta, keep))

    def _file_steps(self, file: SnapshotFile, finished: Callable[[], None]) -> None:
        """Sync, rename, sync the directory, each some time after the other; then go on."""
        at = 0
        for step in self.disk.steps(file):
            at += 200 + int(self._rng.random() * self._options.sync_us) + self.disk.slow_us
            self._world.after(at, self, "file", step, detail=file.meta.id)
        self._world.after(at + 1, self, "filed", finished, detail=file.meta.id)

    def _made(self, meta: SnapshotMeta, keep: int) -> None:
        core = self.core
        if core is None:
            return
        self._is_making = False
        upto = meta.index - keep
        if upto < core.status().first_index:
            upto = 0

        def note() -> None:
            core.snapshot_made(meta, upto)
            self._pump()
            self.disk.submit(Transaction(compact_to=upto, mark=meta))
            self.disk.tidy()

        self._guarded(note)

    def _fetch(self, offer: SnapshotOffer) -> None:
        """Fetch what a leader offers; a repeated offer changes nothing, another one replaces it."""
        now = self._fetching
        if now is not None and now.meta.id == offer.meta.id and now.sender == offer.sender:
            return
        self._fetching = offer
        delay_us = int((0.2 + self._rng.random()) * self._options.transfer_us)
        self._world.after(delay_us, self, "fetched", self._fetched, offer, detail=offer.meta.id)

    def _fetched(self, offer: SnapshotOffer) -> None:
        if self._fetching is not offer:
            return
        source = self._find(offer.sender)
        theirs = source.disk.snapshot(offer.meta.id) if source is not None and source.is_up else None
        is_reachable = self.is_open(offer.sender, self.id) and self.is_open(self.id, offer.sender)
        if theirs is None or not is_reachable:
            self._fetching = None
            if self.core is not None:
                self._guarded(self.core.snapshot_failed, offer.meta)
            return
        if self.disk.snapshot(offer.meta.id) is not None:
            self._received(offer)
        else:
            self._file_steps(self.disk.create(offer.meta, theirs.data), partial(self._received, offer))

    def _received(self, offer: SnapshotOffer) -> None:
        if self._fetching is offer and self.core is not None:
            self._fetching = None
            self._guarded(self.core.snapshot_received, offer.meta)

    def _install(self, meta: SnapshotMeta) -> None:
        """Replace the state; nothing is applied meanwhile."""
        self._installing = meta
        if self._applies_slowly:
            delay_us = int(self._rng.random() * self._options.apply_us)
            self._world.after(delay_us, self, "install", self._installed, meta, detail=meta.id)
        else:
            self._install_now(meta)

    def _installed(self, meta: SnapshotMeta) -> None:
        if self._installing is meta:
            self._guarded(self._install_now, meta)

    def _install_now(self, meta: SnapshotMeta) -> None:
        file = self.disk.snapshot(meta.id)
        assert file is not None, f"snapshot {meta.id} is to be installed but is not on disk"
        assert self.core is not None
        self._installing = None
        self.machine.restore(file.data)
        self.applied = meta.index
        self._watcher.installed(self, meta)
        for index in [index for index in self._open if index <= meta.index]:
            del self._open[index]  # whether it was ours is not known here: the client keeps waiting
        self.core.applied(meta.index)
        self._serve_reads()
        if self._commit > self.applied:
            self._apply_soon()
