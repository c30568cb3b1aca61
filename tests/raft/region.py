"""A region of cores with pretended disks and wires, stepped by hand.

Everything waits until told to go on: messages lie on the wire until delivered, writes lie in a queue until synced
(unless the disk runs freely, which is the default). Nothing is random. Tests and the text scripts use it; the simulator
has its own, much nastier world.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from fedsched.raft.core import RaftCore
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import Config, Removed, ServerInfo, bootstrap_entry, first_config
from fedsched.raft.messages import Effects, HardState, Message, Restored, SnapshotMeta, SnapshotOffer
from fedsched.raft.settings import CoreSettings

SMALL = CoreSettings(heartbeat_ticks=2, election_ticks=10)


def a_server(server_id: str) -> ServerInfo:
    return ServerInfo(server_id, f"server-{server_id}", f"127.0.0.1:{7000 + int(server_id)}")


def a_config(voters: str = "", learners: str = "", outgoing: str = "", removed: str = "") -> Config:
    """`a_config("123", learners="4")`: one character per server."""
    ids = sorted(set(voters) | set(learners) | set(outgoing))
    return Config(
        frozenset(voters),
        frozenset(outgoing),
        frozenset(learners),
        tuple(a_server(each) for each in ids),
        tuple(Removed(a_server(each)) for each in removed),
    )


def a_log(terms: Iterable[int], *, after: int = 0) -> tuple[Entry, ...]:
    """Command entries with these terms: `a_log([1, 1, 2])`."""
    return tuple(
        Entry(index, term, EntryKind.COMMAND, f"i{index}".encode()) for index, term in enumerate(terms, start=after + 1)
    )


@dataclass
class Disk:
    hard_state: HardState = field(default_factory=HardState)
    entries: list[Entry] = field(default_factory=list)
    prev: tuple[int, int] = (0, 0)
    snapshot: SnapshotMeta | None = None
    is_stalled: bool = False

    def write(self, effects: Effects) -> None:
        if effects.reset is not None:
            self.entries, self.prev = [], (effects.reset.index, effects.reset.term)
            self.snapshot = effects.reset
        if effects.append:
            first = effects.append[0].index
            kept = [entry for entry in self.entries if entry.index < first]
            assert (kept[-1].index if kept else self.prev[0]) == first - 1, "a gap on disk"
            self.entries = kept + list(effects.append)
        if effects.hard_state is not None:
            assert effects.hard_state.term >= self.hard_state.term, "the term fell"
            self.hard_state = effects.hard_state

    def compact(self, meta: SnapshotMeta, upto: int) -> None:
        self.snapshot = meta
        for entry in self.entries:
            if entry.index == upto:
                self.prev = (entry.index, entry.term)
        self.entries = [entry for entry in self.entries if entry.index > upto]

    def restored(self) -> Restored:
        return Restored(self.hard_state, tuple(self.entries), self.snapshot, *self.prev)


class Server:
    """One core, its disk, and the entries its state machine has applied."""

    def __init__(self, server_id: str, disk: Disk, settings: CoreSettings, draw: Callable[[int], int]) -> None:
        self.id = server_id
        self.disk = disk
        self.core = RaftCore(server_id, disk.restored(), settings, draw)
        self.writes: deque[Effects] = deque()
        self.applied: list[Entry] = []
        self.offered: SnapshotOffer | None = None
        self.is_up = True
        self.fatal = ""


class Region:
    """Servers by id, the messages between them, and a story of what was observed."""

    def __init__(
        self,
        voters: str = "123",
        *,
        learners: str = "",
        fresh: str = "",
        settings: CoreSettings = SMALL,
        draw: Callable[[int], int] = lambda n: n - 1,
        logs: dict[str, tuple[Entry, ...]] | None = None,
        hard: dict[str, HardState] | None = None,
    ) -> None:
        self.settings = settings
        self.draw = draw
        self.wire: deque[Message] = deque()
        self.cuts: set[tuple[str, str]] = set()
        self.snapshots: dict[str, list[Entry]] = {}
        self.story: list[str] = []
        self.servers: dict[str, Server] = {}
        first = bootstrap_entry(replace(first_config(map(a_server, voters + learners)), **_parts(voters, learners)))
        for server_id in voters + learners + fresh:
            disk = Disk()
            if server_id not in fresh:
                disk.entries = [first, *(logs or {}).get(server_id, ())]
            disk.hard_state = (hard or {}).get(server_id, HardState())
            self._start(server_id, disk)

    def _start(self, server_id: str, disk: Disk) -> None:
        server = self.servers[server_id] = Server(server_id, disk, self.settings, self.draw)
        if disk.snapshot is not None:
            server.applied = list(self.snapshots[disk.snapshot.id])
        self.pump(server_id)

    def core(self, server_id: str) -> RaftCore:
        return self.servers[server_id].core

    # ------------------------------------------------------------------ running

    def pump(self, server_id: str) -> None:
        """Take and perform effects until there are none."""
        server = self.servers[server_id]
        while server.core.has_effects and server.is_up:
            self._perform(server, server.core.take_effects())

    def _perform(self, server: Server, effects: Effects) -> None:
        if effects.fatal:
            server.fatal = effects.fatal
            server.is_up = False
            self._tell(server, f"stops: {effects.fatal}")
            return
        if effects.role is not None:
            led_by = f" leader={effects.role.leader}" if effects.role.role == "follower" and effects.role.leader else ""
            self._tell(server, f"{effects.role.role} term={effects.role.term}{led_by}")
        if effects.config is not None:
            self._tell(server, f"config {told_config(effects.config)}")
        self._post(effects.send_now)
        if effects.needs_store or effects.after_store:
            server.writes.append(effects)
        for lost in effects.lost:
            self._tell(server, f"lost {lost.first}..{lost.last} of term {lost.term}")
        for ready in effects.reads:
            self._tell(server, f"read {ready.ctx} at {ready.index}" if ready.index else f"read {ready.ctx} failed")
        if effects.fetch is not None:
            server.offered = effects.fetch
            self._tell(server, f"fetches snapshot {effects.fetch.meta.index} from {effects.fetch.sender}")
        if effects.install is not None:
            server.applied = list(self.snapshots[effects.install.id])
            self._tell(server, f"installs snapshot {effects.install.index}")
            server.core.applied(effects.install.index)
        if effects.commit_to:
            self._apply(server, effects.commit_to)
        if not server.disk.is_stalled:
            self.sync(server.id)

    def _apply(self, server: Server, upto: int) -> None:
        assert upto <= server.core.status().durable, "applied before it was durable"
        done = server.applied[-1].index if server.applied else 0
        entries = server.core.entries(done + 1, upto)
        assert len(entries) == upto - done, f"{server.id} cannot apply {done + 1}..{upto}"
        server.applied += entries
        server.core.applied(upto)

    def sync(self, server_id: str, count: int | None = None) -> None:
        """Let the disk finish its oldest writes (all of them unless told how many)."""
        server = self.servers[server_id]
        while server.writes and count != 0:
            effects = server.writes.popleft()
            server.disk.write(effects)
            if effects.needs_store:
                server.core.stored(effects.last_index, effects.last_term, effects.at_term)
            for message in effects.after_store:
                if message.to == server_id:
                    server.core.step(message)
            self._post([message for message in effects.after_store if message.to != server_id])
            count = None if count is None else count - 1
        self.pump(server_id)

    def _post(self, messages: Iterable[Message]) -> None:
        self.wire.extend(each for each in messages if (each.sender, each.to) not in self.cuts)

    def _tell(self, server: Server, what: str) -> None:
        self.story.append(f"{server.id} {what}")

    # ------------------------------------------------------------------- inputs

    def tick(self, server_id: str, times: int = 1) -> None:
        for _ in range(times):
            if self.servers[server_id].is_up:
                self.core(server_id).tick()
                self.pump(server_id)

    def step(self, message: Message) -> None:
        if message.to in self.servers and self.servers[message.to].is_up:
            self.core(message.to).step(message)
            self.pump(message.to)

    def deliver(self, wanted: Callable[[Message], bool] = lambda message: True) -> int:
        """Deliver what is on the wire, and what that causes, until nothing wanted is left. Returns how many."""
        count = 0
        while True:
            message = next((each for each in self.wire if wanted(each)), None)
            if message is None:
                return count
            self.wire.remove(message)
            self.step(message)
            count += 1
            assert count < 20_000, "the region does not calm down"

    def elect(self, server_id: str) -> None:
        """Let this server's patience run out, and deliver everything."""
        self.expire(server_id)
        core = self.core(server_id)
        assert self.servers[server_id].is_up, f"{server_id} is down"
        assert core.office is None, f"{server_id} leads already"
        asked, elected = core.counters["prevotes_asked"], core.counters["elections"]
        while (core.counters["prevotes_asked"], core.counters["elections"]) == (asked, elected):
            self.tick(server_id)
        self.deliver()

    def expire(self, *but: str) -> None:
        """So much time passes that no follower (but these) counts on its leader any more; nobody campaigns yet."""
        for other, server in self.servers.items():
            if other not in but and server.is_up and server.core.role == "follower":
                while server.core._elapsed < self.settings.election_ticks:
                    self.tick(other)

    def settle(self, ticks: int | None = None) -> None:
        """Time passes for everybody while all messages arrive."""
        for _ in range(ticks or self.settings.heartbeat_ticks * 2):
            for server_id in list(self.servers):
                self.tick(server_id)
            self.deliver()

    def propose(self, server_id: str, *payloads: str) -> object:
        answer = self.core(server_id).propose([each.encode() for each in payloads])
        self.pump(server_id)
        return answer

    # ------------------------------------------------------------------- faults

    def cut(self, *ids: str) -> None:
        """Nothing reaches or leaves these servers any more; what was on its way is gone."""
        for one in ids:
            for other in self.servers:
                self.cut_link(one, other)
                self.cut_link(other, one)

    def cut_link(self, sender: str, to: str) -> None:
        self.cuts.add((sender, to))
        self.drop(lambda each: (each.sender, each.to) == (sender, to))

    def heal(self) -> None:
        self.cuts.clear()

    def drop(self, unwanted: Callable[[Message], bool] = lambda message: True) -> int:
        before = len(self.wire)
        self.wire = deque(each for each in self.wire if not unwanted(each))
        return before - len(self.wire)

    def crash(self, server_id: str) -> None:
        """Power goes: unsynced writes are lost, and what was to be sent after them."""
        self.servers[server_id].is_up = False

    def restart(self, server_id: str) -> None:
        disk = self.servers[server_id].disk
        disk.is_stalled = False
        self._start(server_id, disk)

    def wipe(self, server_id: str) -> None:
        self._start(server_id, Disk())

    # ---------------------------------------------------------------- snapshots

    def snapshot(self, server_id: str, compact_to: int | None = None) -> SnapshotMeta:
        """Cut a snapshot of what the server has applied, and compact its log."""
        server = self.servers[server_id]
        last = server.applied[-1]
        config, config_index = server.core.config_at(last.index)
        meta = SnapshotMeta(f"{server_id}-{last.index}", last.index, last.term, config, config_index)
        self.snapshots[meta.id] = list(server.applied)
        upto = last.index if compact_to is None else compact_to
        server.disk.compact(meta, upto)
        server.core.snapshot_made(meta, upto)
        self.pump(server_id)
        return meta

    def fetched(self, server_id: str, *, ok: bool = True) -> None:
        """The snapshot a server was offered has arrived, or will not."""
        server = self.servers[server_id]
        assert server.offered is not None, f"{server_id} fetches nothing"
        meta, server.offered = server.offered.meta, None
        if ok:
            server.core.snapshot_received(meta)
        else:
            server.core.snapshot_failed(meta)
        self.pump(server_id)


def told_config(config: Config) -> str:
    """`123` or `123+23 learners=4` (joint)."""
    told = "".join(sorted(config.voters)) or "none"
    if config.outgoing:
        told += "+" + "".join(sorted(config.outgoing))
    if config.learners:
        told += " learners=" + "".join(sorted(config.learners))
    return told


def _parts(voters: str, learners: str) -> dict[str, frozenset[str]]:
    return {"voters": frozenset(voters), "learners": frozenset(learners)}
