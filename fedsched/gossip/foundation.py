"""What every part of the core stands on: the table, the clock as it was last told, deadlines, and the way out.

Deadlines are in one heap. One that is called off stays in it, empty, until it comes to the top.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

from fedsched.gossip.asked import Effect, KeepIncarnation, MemberNews, NewsKind, OpenStream, SendPacket, Warn
from fedsched.gossip.awareness import Awareness
from fedsched.gossip.broadcasts import SMALLEST, Broadcasts
from fedsched.gossip.events import EventRing
from fedsched.gossip.members import EMPTY_GROUND, Ground, Member, Members
from fedsched.gossip.messages import Address, Alive, Gossip, Message, State
from fedsched.gossip.profiles import Profile
from fedsched.gossip.wire import INC_MAX, size_bound

ARRAY_HEAD: Final = 3
"""What holding messages together costs a packet."""
HEARD_KEPT: Final = 16
"""Whom we heard lately is only ever counted up to a handful."""
SEQ_MASK: Final = 0xFFFFFFFF


class Chance(Protocol):
    """The only chance there is, handed in: `random.Random` has this."""

    def random(self) -> float: ...


class Timer:
    """Something due; `call` is None once it is called off or done."""

    __slots__ = ("arg", "call", "due")

    def __init__(self, due: float, call: Callable[[Any], None] | None, arg: Any) -> None:
        self.due = due
        self.call = call
        self.arg = arg


class Foundation:
    """State and small services."""

    def __init__(
        self,
        profile: Profile,
        me: Alive,
        chance: Chance,
        now: float,
        *,
        ground: Ground = EMPTY_GROUND,
        event_ltime: int = 1,
        overhead: int = 0,
    ) -> None:
        """`me`: what this member says of itself. `overhead`: bytes that label and seal add to a packet."""
        self.profile = profile
        self.name = me.node
        self.addr = me.addr
        self.now = now
        self.chance = chance
        self.members = Members(ground)
        self.broadcasts = Broadcasts()
        self.awareness = Awareness(profile.health_max)
        self.events = EventRing(event_ltime)
        self.is_leaving = False
        self.counters: Counter[str] = Counter()
        self._out: list[Effect] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._timers_made = 0
        self._room = profile.packet_bytes_max - overhead - ARRAY_HEAD
        self._seq = int(chance.random() * SEQ_MASK)
        self._ops: dict[int, Callable[[tuple[Message, ...] | None], None]] = {}
        self._heard: dict[str, float] = {}
        self._gossip_timer: Timer | None = None
        self._source: Address | None = None
        """Where the packet came from that is being handled."""
        self._changed_at = -math.inf
        """When the digest last changed."""
        own = self.members.get(me.node)
        if own is None or own.claim() != me:
            self.members.put(Member(me.node, me.addr, me.inc, State.ALIVE, me.meta, me.versions, now))

    # ------------------------------------------------------------------- myself

    @property
    def me(self) -> Member:
        own = self.members.get(self.name)
        assert own is not None, "a member always knows itself"
        return own

    def _speak_up(self, above: int, meta: bytes | None = None) -> None:
        """Say that we are alive, louder than `above`; durable before it is said."""
        own = self.me
        inc = min(INC_MAX, max(own.inc, above) + 1)
        self._put(own._replace(inc=inc, state=State.ALIVE, meta=own.meta if meta is None else meta))
        self._out.append(KeepIncarnation(inc))
        self._tell(self.me.claim(), own=True)

    # -------------------------------------------------------------------- table

    def _put(self, member: Member) -> None:
        before = self.members.digest
        self.members.put(member)
        if self.members.digest != before:
            self._changed_at = self.now

    def _news(self, kind: NewsKind, member: Member) -> None:
        self.counters[kind] += 1
        self._out.append(MemberNews(kind, member))

    def _warn(self, code: str, about: str) -> None:
        self.counters[code] += 1
        self._out.append(Warn(code, about))

    def _note_heard(self, name: str) -> None:
        heard = self._heard
        heard.pop(name, None)
        heard[name] = self.now
        if len(heard) > HEARD_KEPT:
            del heard[next(iter(heard))]

    def _within_reach(self, besides: str) -> int:
        since = self.now - 3 * self.profile.probe_interval_s
        return sum(1 for name, at in self._heard.items() if at >= since and name != besides)

    def _pick(self, count: int, fits: Callable[[Member], bool]) -> list[Member]:
        """Up to `count` different members at random, never ourselves. Bounded tries: in a pool of dead ones, fewer."""
        order = self.members.order
        size = len(order)
        picked: dict[str, Member] = {}
        for _ in range(3 * count + 12):
            name = order[int(self.chance.random() * size)]
            if name == self.name or name in picked:
                continue
            member = self.members.get(name)
            if member is not None and fits(member):
                picked[name] = member
                if len(picked) >= count:
                    break
        return list(picked.values())

    # ---------------------------------------------------------------- deadlines

    def _at(self, due: float, call: Callable[[Any], None], arg: Any = None) -> Timer:
        timer = Timer(due, call, arg)
        self._timers_made += 1
        heapq.heappush(self._timers, (due, self._timers_made, timer))
        return timer

    def _after(self, delay_s: float, call: Callable[[Any], None], arg: Any = None) -> Timer:
        return self._at(self.now + delay_s, call, arg)

    def wake_at(self) -> float:
        """When `wake` next has something to do; infinity if never."""
        timers = self._timers
        while timers:
            due, _, timer = timers[0]
            if timer.call is not None:
                return due
            heapq.heappop(timers)
        return math.inf

    # ------------------------------------------------------------------ way out

    def _send(self, to: Address, *messages: Message) -> None:
        """One packet, filled up with news."""
        if len(self.broadcasts):
            room = self._room - sum(map(size_bound, messages))
            if room >= SMALLEST:
                limit = self.profile.retransmit_limit(self.members.up)
                self._out.append(SendPacket(to, (*messages, *self.broadcasts.take(room, limit))))
                return
        self._out.append(SendPacket(to, messages))

    def _tell(self, message: Gossip, *, own: bool = False) -> None:
        """Have the pool know."""
        self.broadcasts.add(message, own=own, members=len(self.members))
        if self._gossip_timer is None:
            self._gossip_timer = self._after(self.chance.random() * self.profile.gossip_interval_s, self._gossip)

    def _gossip(self, _: object) -> None:
        """Send news to a few; an idle pool sends none at all."""
        profile = self.profile
        limit = profile.retransmit_limit(self.members.up)
        since = self.now - profile.dead_gossip_s
        for target in self._pick(profile.gossip_nodes, lambda m: m.is_up or _died_after(m, since)):
            notice = self._notice_to(target)
            room = self._room - sum(map(size_bound, notice))
            news = self.broadcasts.take(room, limit)
            if not news:
                break
            self._out.append(SendPacket(target.addr, (*notice, *news)))
        again = len(self.broadcasts) > 0
        self._gossip_timer = self._after(profile.gossip_interval_s, self._gossip) if again else None

    def _notice_to(self, member: Member) -> tuple[Message, ...]:
        """What is held against a member, to be put first into what it is sent: it can refute only what it hears."""
        raise NotImplementedError

    def _ask(
        self, to: Address, messages: tuple[Message, ...], done: Callable[[tuple[Message, ...] | None], None], due: float
    ) -> int:
        """Open a stream; `done` gets the answer, or None."""
        self._seq = op = (self._seq + 1) & SEQ_MASK
        self._ops[op] = done
        self._out.append(OpenStream(op, to, messages, due))
        return op


def _died_after(member: Member, since: float) -> bool:
    return member.state is State.DEAD and member.changed_at >= since
