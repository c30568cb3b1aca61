"""The gossip pool of a simulated federation: the real core for each server, on the federation's clock.

It is the pool of `gossip_world`, driven by one child of the federation's run: whatever is due is done when its time has
come. What a core tells its user goes to the server's real `Wan`, which takes this member for its gossip runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import trio

from fedsched.gossip.asked import Effect, EventNews, Input, Leave, LookAt, MemberNews, Publish, RoundTripSeen
from fedsched.gossip.core import GossipCore
from fedsched.gossip.members import Member, encode_tags
from fedsched.gossip.messages import VERSIONS_NOW, Alive, UserEvent
from fedsched.gossip.profiles import FED, Profile
from fedsched.sim.gossip_net import NetOptions
from fedsched.sim.gossip_world import GossipWorld, Host, MakeCore


class PoolHost(Host):
    """The machine of one server, as gossip sees it."""

    __slots__ = ("listener", "tags")

    def __init__(self, index: int, region: int, name: str, tags: Mapping[str, str]) -> None:
        super().__init__(index, region)
        self.name = name
        self.tags = dict(tags)
        self.listener: PoolMember | None = None

    def claim(self, inc: int) -> Alive:
        return Alive(inc, self.name, self.addr, encode_tags(self.tags), VERSIONS_NOW)


class Pool(GossipWorld):
    """All members, in the time of the federation."""

    def __init__(self, seed: int, *, net: NetOptions, profile: Profile = FED, make_core: MakeCore = GossipCore) -> None:
        super().__init__(seed, 0, profile=profile, regions=1, net=net, formed=False, make_core=make_core)
        self.now = trio.current_time()
        self._poked = trio.Event()

    def add_server(self, region: int, name: str, tags: Mapping[str, str]) -> PoolHost:
        host = PoolHost(len(self.hosts), region, name, tags)
        self.hosts.append(host)
        self.by_addr[host.addr] = self.by_name[host.name] = host
        return host

    def form(self) -> None:
        """Everybody is there and knows everybody."""
        ground = self._formed_ground()
        for host in self.hosts:
            self.boot(host, ground=ground)

    async def drive(self) -> None:
        """Do what is due, as long as the federation lives."""
        while True:
            self._poked = trio.Event()
            due = self._heap[0][0] if self._heap else float("inf")
            with trio.move_on_at(due):
                await self._poked.wait()
            self.run(trio.current_time())

    def end_process(self, host: PoolHost) -> None:
        """The server's process is gone; its disk stays."""
        self.now = trio.current_time()
        host.listener = None
        self.kill(host)

    def begin_process(self, host: PoolHost) -> None:
        """It is back, and finds the others by what it wrote down."""
        self.now = trio.current_time()
        self.boot(host)
        self.poke()

    def go_on(self, host: PoolHost) -> None:
        """A process that stood still goes on."""
        self.now = trio.current_time()
        self.resume(host)
        self.poke()

    def poke(self) -> None:
        """Something was asked for from outside."""
        self._poked.set()

    def ask(self, host: Host, what: Input) -> None:
        """A server asks its member for something."""
        self.now = trio.current_time()
        if not host.is_paused:
            self.tell(host, what)
        self.poke()

    def _perform_rare(self, host: Host, effect: Effect) -> None:
        super()._perform_rare(host, effect)
        listener = host.listener if isinstance(host, PoolHost) else None
        if listener is not None:
            listener.hear(effect)


class PoolMember:
    """What a server's `Wan` takes for its gossip runner."""

    def __init__(
        self,
        pool: Pool,
        host: PoolHost,
        on_member: Callable[[MemberNews], None],
        on_event: Callable[[UserEvent], None],
        on_round_trip: Callable[[Member, float], None],
    ) -> None:
        self._pool = pool
        self._host = host
        self._on_member = on_member
        self._on_event = on_event
        self._on_round_trip = on_round_trip

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._host.listener = self
        task_status.started()
        await trio.sleep_forever()

    def hear(self, effect: Effect) -> None:
        """The core tells something."""
        match effect:
            case MemberNews():
                self._on_member(effect)
            case EventNews(event):
                self._on_event(event)
            case RoundTripSeen(name, round_trip_s):
                member = self._host.core.members.get(name) if self._host.core is not None else None
                if member is not None:
                    self._on_round_trip(member, round_trip_s)
            case _:
                pass

    @property
    def members(self) -> Iterable[Member]:
        return tuple(self._host.core.members) if self._host.core is not None else ()

    async def publish(self, name: str, payload: bytes, *, coalesce: bool = False) -> None:
        self._pool.ask(self._host, Publish(name, payload, coalesce))

    async def leave(self) -> None:
        self._pool.ask(self._host, Leave())

    def look_at(self, name: str) -> None:
        self._pool.ask(self._host, LookAt(name))
