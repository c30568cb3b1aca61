"""A simulated pool: the real gossip core, ten to ten thousand times over, on one event heap in virtual time.

Messages travel as objects; every so many packets one goes through the real encoding, and its size is held against the
limit. Hosts can be killed, restarted with or without their disk, paused (their packets wait, as a stopped process's
do), and slow (everything they do happens late). A pool starts *formed*, everybody knowing everybody, on one shared
table; or empty, to watch it come together.

It is built for speed, because only large pools and long hours show what is rare: no closures, no event objects, one
tuple per event.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from fedsched.gossip.asked import (
    AnswerStream,
    Effect,
    EventNews,
    Gone,
    Input,
    Join,
    KeepIncarnation,
    Leave,
    MemberNews,
    NewsKind,
    OpenStream,
    Packet,
    SendPacket,
    StreamAnswered,
    StreamAsked,
    StreamFailed,
)
from fedsched.gossip.core import GossipCore
from fedsched.gossip.members import EMPTY_GROUND, Ground, Member, Members, encode_tags
from fedsched.gossip.messages import VERSIONS_NOW, Address, Alive, Message, State, UserEvent
from fedsched.gossip.profiles import FED, Profile
from fedsched.gossip.snapshot import EPOCH_S, Snapshot, first_incarnation
from fedsched.gossip.wire import decode_packet, decode_stream, encode, size_bound
from fedsched.sim.gossip_net import GossipNet, NetOptions
from fedsched.sim.streams import stream

SAMPLE_EVERY: Final = 499
"""One packet of so many is really encoded."""
UNIX_START_S: Final = EPOCH_S + 50_000_000.0

WAKE, PACKET, ASKED, ANSWERED, FAILED, CALL = range(6)
Event = tuple[float, int, int, "Host | None", Any]
MakeCore = Callable[..., GossipCore]


class WorldBroken(AssertionError):
    """Something happened that must not; the message says what, the seed repeats it."""


class Host:
    """A machine with one member on it, or none at the moment."""

    __slots__ = (
        "addr", "core", "disk_inc", "id", "index", "is_paused", "name", "parked", "process", "region", "slow_s",
        "snapshot", "wake_at",
    )  # fmt: skip

    def __init__(self, index: int, region: int) -> None:
        self.index = index
        self.region = region
        self.name = f"s{index}.r{region}"
        self.id = f"id-{index}"
        self.addr: Address = (f"10.{index >> 16}.{(index >> 8) & 255}.{index & 255}", 4648)
        self.core: GossipCore | None = None
        self.process = 0
        """Rises with each restart: what was meant for the old process is lost."""
        self.disk_inc: int | None = None
        self.snapshot: Snapshot | None = None
        self.is_paused = False
        self.parked: list[Event] = []
        self.slow_s = 0.0
        self.wake_at = math.inf

    def claim(self, inc: int) -> Alive:
        tags = {"id": self.id, "region": f"r{self.region}", "role": "fedsched", "rpc_addr": self.addr[0]}
        return Alive(inc, self.name, self.addr, encode_tags(tags), VERSIONS_NOW)


class GossipWorld:
    """All hosts, the network between them, and what is due."""

    def __init__(
        self,
        seed: int,
        count: int,
        *,
        profile: Profile = FED,
        regions: int = 3,
        net: NetOptions | None = None,
        formed: bool = True,
        make_core: MakeCore = GossipCore,
    ) -> None:
        self.seed = seed
        self.profile = profile
        self.regions = regions
        self.now = 0.0
        self.net = GossipNet(stream(seed, "net"), net or NetOptions())
        self.hosts = [Host(index, index % regions) for index in range(count)]
        self.by_addr = {host.addr: host for host in self.hosts}
        self.by_name = {host.name: host for host in self.hosts}
        self.counts: Counter[str] = Counter()
        self.failures: list[tuple[float, str, str]] = []
        """Every report of a death: when, by whom, of whom."""
        self.delivered: Counter[tuple[int, int, UserEvent]] = Counter()
        self.after_step: Callable[[Host], None] | None = None
        self._make_core = make_core
        self._heap: list[Event] = []
        self._pushed = 0
        self._streams: dict[int, tuple[Host, int, int]] = {}
        self._ground = self._formed_ground() if formed else EMPTY_GROUND
        if formed:
            for host in self.hosts:
                self.boot(host, ground=self._ground)

    def _formed_ground(self) -> Ground:
        table = Members()
        for host in self.hosts:
            host.disk_inc = first_incarnation(None, UNIX_START_S)
            claim = host.claim(host.disk_inc)
            table.put(Member(host.name, host.addr, claim.inc, State.ALIVE, claim.meta, claim.versions, 0.0))
        return table.as_ground()

    # ------------------------------------------------------------- what is done

    def add_host(self) -> Host:
        """One more machine, with nothing on it yet."""
        host = Host(len(self.hosts), len(self.hosts) % self.regions)
        self.hosts.append(host)
        self.by_addr[host.addr] = self.by_name[host.name] = host
        return host

    def boot(self, host: Host, *, ground: Ground = EMPTY_GROUND, join: tuple[Address, ...] = ()) -> None:
        """Start a member on this host. On `ground` it is the one that stands there already; else a new process."""
        if ground is EMPTY_GROUND:
            host.disk_inc = first_incarnation(host.disk_inc, UNIX_START_S + self.now)
        assert host.disk_inc is not None
        host.process += 1
        host.is_paused, host.parked, host.wake_at = False, [], math.inf
        chance = stream(self.seed, f"{host.name}/{host.process}")
        claim = host.claim(host.disk_inc)
        host.core = self._make_core(self.profile, claim, chance, self.now, ground=ground, remembered=host.snapshot)
        self._arm(host)
        addresses = join or (host.snapshot.addresses() if host.snapshot is not None else ())
        if addresses:
            self.tell(host, Join(addresses))

    def kill(self, host: Host, *, keep_disk: bool = True) -> None:
        """The process ends without a word."""
        if host.core is not None and keep_disk:
            host.snapshot = host.core.snapshot()
        if not keep_disk:
            host.snapshot, host.disk_inc = None, None
        host.core = None
        host.process += 1
        host.parked = []

    def leave(self, host: Host) -> None:
        self.tell(host, Leave())

    def pause(self, host: Host) -> None:
        host.is_paused = True

    def resume(self, host: Host) -> None:
        """Go on: what waited comes in its old order, deadlines that passed are noticed late."""
        host.is_paused = False
        parked, host.parked = host.parked, []
        for _, _, kind, _, what in parked:
            self._push(self.now, kind, host, what)
        host.wake_at = math.inf
        self._arm(host)

    def tell(self, host: Host, what: Input) -> None:
        if host.core is not None:
            self._perform(host, host.core.handle(what, self.now))

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Have something done at that time."""
        self._push(when, CALL, None, call)

    # ------------------------------------------------------------ what is known

    def state_of(self, host: Host, name: str) -> State | None:
        """What this host believes of that member."""
        member = host.core.members.get(name) if host.core is not None else None
        return member.state if member is not None else None

    def running(self) -> list[Host]:
        return [host for host in self.hosts if host.core is not None]

    def all_hold(self, name: str, *states: State | None) -> bool:
        """Do all running members but the one itself believe one of these?"""
        return all(self.state_of(host, name) in states for host in self.running() if host.name != name)

    # ----------------------------------------------------------------- the loop

    def run(self, until: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until:
            event = heapq.heappop(heap)
            self.now = event[0]
            self._happen(event)
        self.now = until

    def run_until(self, is_done: Callable[[], bool], limit: float, step_s: float = 0.05) -> float:
        """How long it took; infinity if it was not done within `limit` seconds."""
        start = self.now
        while self.now < start + limit:
            self.run(self.now + step_s)
            if is_done():
                return self.now - start
        return math.inf

    def _happen(self, event: Event) -> None:
        _, _, kind, host, what = event
        if host is None:
            what()
            return
        core = host.core
        if kind == WAKE:
            if core is None or host.is_paused or what != host.process or self.now < host.wake_at:
                return
            host.wake_at = math.inf
            self._perform(host, core.wake(self.now))
            return
        if core is None:
            return
        if host.is_paused:
            host.parked.append(event)
            return
        process, given = what
        if process and process != host.process:
            return
        self._perform(host, core.handle(given, self.now))

    def _push(self, when: float, kind: int, host: Host | None, what: Any) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (when, self._pushed, kind, host, what))

    def _arm(self, host: Host) -> None:
        core = host.core
        if core is not None:
            due = core.wake_at() + host.slow_s
            if due < host.wake_at:
                host.wake_at = due
                self._push(max(due, self.now), WAKE, host, host.process)

    # ------------------------------------------------------------------ effects

    def _perform(self, host: Host, effects: list[Effect]) -> None:
        for effect in effects:
            kind = type(effect)
            if kind is SendPacket:
                self._send(host, effect)  # type: ignore[arg-type]
            else:
                self._perform_rare(host, effect)
        self._arm(host)
        if self.after_step is not None and host.core is not None:
            self.after_step(host)

    def _perform_rare(self, host: Host, effect: Effect) -> None:
        match effect:
            case OpenStream():
                self._open(host, effect)
            case AnswerStream(number, messages):
                self._answer(host, number, messages)
            case KeepIncarnation(inc):
                host.disk_inc = inc
            case MemberNews(kind, member):
                if kind is NewsKind.FAILED:
                    self.failures.append((self.now, host.name, member.name))
            case EventNews(event):
                self.delivered[host.index, host.process, event] += 1
            case Gone():
                host.snapshot, host.core = None, None
                host.process += 1
            case _:
                self.counts[type(effect).__name__] += 1

    def _send(self, host: Host, packet: SendPacket) -> None:
        counts, net = self.counts, self.net
        counts["packets"] += 1
        size = 1 + sum(map(size_bound, packet.messages))
        counts["bytes"] += size
        if size > self.profile.packet_bytes_max:
            raise WorldBroken(f"{host.name} sends a packet of {size} bytes")
        if counts["packets"] % SAMPLE_EVERY == 0:
            self._check_encoding(packet.messages, self.profile.packet_bytes_max)
        target = self.by_addr.get(packet.to)
        if target is None or net.is_lost() or net.is_cut(host.index, target.index, host.region, target.region):
            return
        what = (0, Packet(host.addr, packet.messages))
        near = host.region == target.region
        late = host.slow_s + target.slow_s
        self._push(self.now + late + net.delay_s(near), PACKET, target, what)
        if net.is_doubled():
            self._push(self.now + late + 3 * net.delay_s(near), PACKET, target, what)

    def _open(self, host: Host, ask: OpenStream) -> None:
        self._count_stream(ask.messages)
        self._push(ask.deadline, FAILED, host, (host.process, StreamFailed(ask.op)))
        target = self.by_addr.get(ask.to)
        if target is None or target.core is None or self._is_severed(host, target):
            return
        self._pushed += 1
        self._streams[self._pushed] = (host, host.process, ask.op)
        delay = self.net.stream_delay_s(host.region == target.region, 3) + host.slow_s + target.slow_s
        self._push(
            self.now + delay, ASKED, target, (target.process, StreamAsked(self._pushed, host.addr, ask.messages))
        )

    def _answer(self, host: Host, number: int, messages: tuple[Message, ...]) -> None:
        asker, process, op = self._streams.pop(number)
        self._count_stream(messages)
        if self._is_severed(host, asker):
            return
        delay = self.net.stream_delay_s(host.region == asker.region, 1) + host.slow_s + asker.slow_s
        self._push(self.now + delay, ANSWERED, asker, (process, StreamAnswered(op, messages)))

    def _is_severed(self, one: Host, other: Host) -> bool:
        cut = self.net.is_cut
        return cut(one.index, other.index, one.region, other.region) or cut(
            other.index, one.index, other.region, one.region
        )

    def _count_stream(self, messages: tuple[Message, ...]) -> None:
        self.counts["streams"] += 1
        self.counts["stream_bytes"] += sum(map(size_bound, messages))

    def _check_encoding(self, messages: tuple[Message, ...], limit: int) -> None:
        data = encode(messages)
        if len(data) > limit or tuple(decode_packet(data)) != messages or tuple(decode_stream(data)) != messages:
            raise WorldBroken(f"{messages} does not survive its encoding of {len(data)} bytes")
