"""Comparing whole tables: joining, the periodic exchange, and the one that a differing digest calls for.

Gossip reaches nearly everybody; "nearly" is what these are for. Every ping and ack carries the digest of the sender's
table. If it differs from ours although nothing is on its way any more, the two tables are compared:

    Summary (hash, incarnation and state of each) -> Difference (newer rows, hashes of wanted ones) -> Rows

The periodic exchange begins with `Compare` and ends right there if the digests agree. Who joins sends all it has
(`PushPull`) and is sent all there is.

A death that stands in somebody's table is not believed at once: it counts as one accusation by that member, and the
accused gets its chance to refute. If nothing comes of a comparison (two servers that quarrel about a name would differ
for ever), the next one waits longer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from fedsched.gossip.asked import EventNews, Join, JoinEnded
from fedsched.gossip.members import Member, id_of, name_hash, odd_version
from fedsched.gossip.messages import (
    Address,
    Compare,
    Dead,
    Difference,
    Message,
    NameTaken,
    PushPull,
    Row,
    Rows,
    State,
    Summary,
    Suspect,
    UserEvent,
)
from fedsched.gossip.probing import Probing
from fedsched.gossip.wire import HASH_BYTES

JOIN_AT_ONCE: Final = 3
"""Whoever joins asks this many: one may be cut off itself."""
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
EXCHANGE_PAUSE_S: Final = 0.5
EXCHANGE_PAUSE_MAX_S: Final = 30.0
UNSETTLED_MAX_S: Final = 3.0
"""A pool that never comes to rest still compares tables this often."""

_LINE = struct.Struct(">8sIB")


class Entry:
    """One attempt to enter the pool."""

    __slots__ = ("left", "open", "reached", "taken", "wanted")

    def __init__(self, wanted: Join, left: list[Address]) -> None:
        self.wanted = wanted
        self.left = left
        """Whom to ask if those that are being asked do not answer."""
        self.open = 0
        self.reached = 0
        self.taken: NameTaken | None = None


class Exchange(Probing):
    """Both ends of every exchange."""

    def _set_up_exchange(self) -> None:
        self._exchange_op: int | None = None
        self._exchange_after = self.now
        self._exchange_pause_s = EXCHANGE_PAUSE_S
        self._differs_since: float | None = None
        self._summary: tuple[int, bytes] = (-1, b"")
        self._elsewhere = False
        self._join_wanted: Join | None = None
        """What is tried until it works; a later one takes its place."""
        self._join_wait_s = RETRY_FIRST_S
        self._after(self.chance.random() * self.profile.push_pull_s(len(self.members)), self._push_pull_tick)

    # ------------------------------------------------------------------ joining

    def _join(self, wanted: Join) -> None:
        if wanted.retry:
            self._join_wanted = wanted
        others = sorted({address for address in wanted.addresses if address != self.addr})
        entry = Entry(wanted, sorted(others, key=lambda _: self.chance.random()))
        self._tell(self.me.claim(), own=True)
        for _ in range(min(JOIN_AT_ONCE, len(others))):
            self._join_next(entry)
        if not entry.open:
            self._out.append(JoinEnded(0, wanted.op))

    def _join_next(self, entry: Entry) -> None:
        if not entry.left:
            return
        entry.open += 1

        def answered(well: bool, taken: NameTaken | None) -> None:
            entry.open -= 1
            entry.reached += well
            entry.taken = entry.taken or taken
            if not well:
                self._join_next(entry)
            if not entry.open:
                self._join_ended(entry)

        self._introduce(entry.left.pop(), answered)

    def _introduce(self, to: Address, done: Callable[[bool, NameTaken | None], None] | None = None) -> None:
        """Send a member all we know, and take over what it knows."""

        def answered(messages: tuple[Message, ...] | None) -> None:
            first = messages[0] if messages else None
            if isinstance(first, PushPull):
                self._take_push_pull(first)
            taken = self._refused_by(messages or ())
            if done is not None:
                done(isinstance(first, PushPull) and taken is None, taken)

        self._ask(to, (self._push_pull(join=True),), answered, self.now + self.profile.stream_timeout_s)

    def _refused_by(self, messages: tuple[Message, ...]) -> NameTaken | None:
        for message in messages:
            if isinstance(message, NameTaken):
                self._on_name_taken(message)
                if message.node == self.name and message.addr != self.addr:
                    return message
        return None

    def _join_ended(self, entry: Entry) -> None:
        self._out.append(JoinEnded(entry.reached, entry.wanted.op, entry.taken))
        if entry.wanted is not self._join_wanted:
            return
        if entry.reached:
            self._join_wait_s = RETRY_FIRST_S
        elif not self.is_leaving:
            self._after(self._join_wait_s * (0.75 + 0.5 * self.chance.random()), self._join_retry, entry.wanted)
            self._join_wait_s = min(RETRY_MAX_S, 2 * self._join_wait_s)

    def _join_retry(self, wanted: Join) -> None:
        if wanted is self._join_wanted:
            self._join(wanted)

    def _push_pull(self, *, join: bool) -> PushPull:
        rows = tuple(member.row() for member in self.members)
        return PushPull(self.name, join, rows, self.events.clock.time, self.events.recent())

    def _take_push_pull(self, theirs: PushPull) -> bool:
        """Merge a whole table; False if somebody in it speaks a version that others do not."""
        odd = odd_version(theirs.rows, self.me.versions)
        if odd is not None:
            self._warn("gossip_version_refused", f"{odd}, from {theirs.source}")
            return False
        if self.members.up <= 1:
            self.events.begin_at(theirs.event_ltime)
        self.events.clock.witness(theirs.event_ltime - 1)
        self._merge(theirs.rows, theirs.source)
        for event in theirs.events:
            self._on_event(event)
        return True

    # ---------------------------------------------------------------- comparing

    def _push_pull_tick(self, _: object) -> None:
        if self.is_leaving:
            return
        self._after(self.profile.push_pull_s(self.members.up), self._push_pull_tick)
        self._elsewhere = not self._elsewhere
        self._compare_with_anybody()

    def _compare_with_anybody(self) -> None:
        """Every second time with another region."""
        region = self.me.region
        picked: list[Member] = []
        if self._elsewhere:
            picked = self._pick(1, lambda m: m.state is State.ALIVE and m.region != region)
        picked = picked or self._pick(1, lambda m: m.state is State.ALIVE)
        if picked and self._exchange_op is None:
            self._reach_by_stream(picked[0])

    def _reach_by_stream(self, member: Member) -> None:
        if self._exchange_op is not None:
            return

        def answered(messages: tuple[Message, ...] | None) -> None:
            self._exchange_op = None
            first = messages[0] if messages else None
            if isinstance(first, Compare):
                self.events.clock.witness(first.event_ltime - 1)
                if first.digest != self.members.digest:
                    self._compare(member.addr)

        compare = Compare(self.name, self.members.digest, self.events.clock.time)
        due = self.now + self.profile.stream_timeout_s
        self._exchange_op = self._ask(member.addr, (compare,), answered, due)

    def _note_digest(self, name: str, addr: Address, digest: int) -> None:
        """Somebody's table differs from ours: look closer, unless the news may still be on its way."""
        now = self.now
        if self._differs_since is None or now - self._differs_since > 2 * UNSETTLED_MAX_S:
            self._differs_since = now
        if self._exchange_op is not None or now < self._exchange_after or self.is_leaving:
            return
        if now - self._changed_at < self.profile.settle_s and now - self._differs_since < UNSETTLED_MAX_S:
            return
        self._compare(addr)

    def _compare(self, addr: Address) -> None:
        """Send a summary; what comes back is merged, and what is wanted is sent."""
        before = self.members.version

        def answered(messages: tuple[Message, ...] | None) -> None:
            self._exchange_op = None
            self._differs_since = None
            first = messages[0] if messages else None
            if not isinstance(first, Difference):
                self._pause_exchanges(useful=False)
                return
            self._merge(first.rows, first.source)
            rows = self._rows_wanted(first.wanted)
            if rows:
                due = self.now + self.profile.stream_timeout_s
                self._ask(addr, (Rows(self.name, rows),), lambda _: None, due)
            self._pause_exchanges(useful=bool(rows) or self.members.version != before)

        self.counters["comparisons"] += 1
        due = self.now + self.profile.stream_timeout_s
        self._exchange_op = self._ask(addr, (Summary(self.name, self._lines()),), answered, due)

    def _pause_exchanges(self, *, useful: bool) -> None:
        longer = EXCHANGE_PAUSE_S if useful else min(EXCHANGE_PAUSE_MAX_S, 2 * self._exchange_pause_s)
        self._exchange_pause_s = longer
        self._exchange_after = self.now + longer

    def _lines(self) -> bytes:
        version, lines = self._summary
        if version != self.members.version:
            lines = b"".join(_LINE.pack(name_hash(m.name), m.inc, m.state) for m in self.members)
            self._summary = (self.members.version, lines)
        return lines

    def _difference(self, summary: Summary) -> Difference:
        """What is newer here, and what is newer there. Dead ones that one side never heard of are let be."""
        rows: list[Row] = []
        wanted: list[bytes] = []
        named: set[str] = set()
        for hashed, inc, state in _LINE.iter_unpack(summary.lines):
            name = self.members.name_with_hash(hashed)
            member = self.members.get(name) if name is not None else None
            if member is None:
                if state <= State.SUSPECT:
                    wanted.append(hashed)
                continue
            named.add(member.name)
            if (member.inc, member.state) > (inc, state):
                rows.append(member.row())
            elif (member.inc, member.state) < (inc, state):
                wanted.append(hashed)
        rows += (m.row() for m in self.members if m.is_up and m.name not in named)
        return Difference(self.name, tuple(rows), b"".join(wanted))

    def _rows_wanted(self, wanted: bytes) -> tuple[Row, ...]:
        rows = []
        for at in range(0, len(wanted), HASH_BYTES):
            name = self.members.name_with_hash(wanted[at : at + HASH_BYTES])
            member = self.members.get(name) if name is not None else None
            if member is not None:
                rows.append(member.row())
        return tuple(rows)

    # ------------------------------------------------------------------ merging

    def _merge(self, rows: tuple[Row, ...], source: str) -> None:
        for claim, state in rows:
            if state is State.ALIVE:
                self._on_alive(claim)
            elif state is State.LEFT:
                self._on_dead(Dead(claim.inc, claim.node, claim.node))
            else:
                if state is State.SUSPECT and self.members.get(claim.node) is None:
                    self._on_alive(claim)
                self._on_suspect(Suspect(claim.inc, claim.node, source))

    def _on_event(self, event: UserEvent) -> None:
        if self.events.receive(event):
            self._tell(event)
            self._out.append(EventNews(event))

    def _stream_reply(self, message: Message) -> tuple[Message, ...]:
        """The answer to what somebody says on a stream."""
        match message:
            case PushPull():
                answer = self._push_pull(join=False)
                if not self._take_push_pull(message):
                    return (Rows(self.name, ()),)
                taken = self._name_taken_from(message) if message.join else None
                return (answer, taken) if taken is not None else (answer,)
            case Compare():
                self.events.clock.witness(message.event_ltime - 1)
                return (Compare(self.name, self.members.digest, self.events.clock.time),)
            case Summary():
                return (self._difference(message),)
            case Rows():
                self._merge(message.rows, message.source)
                return (Rows(self.name, ()),)
            case _:
                return ()

    def _name_taken_from(self, theirs: PushPull) -> NameTaken | None:
        """Who has the name of the one that asks us in, if that is another server."""
        claim = next((row.claim for row in theirs.rows if row.claim.node == theirs.source), None)
        owner = self.members.get(theirs.source)
        if claim is None or owner is None or owner.state is State.LEFT or owner.addr == claim.addr:
            return None
        return NameTaken(owner.name, owner.addr, owner.id) if owner.id != id_of(claim.meta) else None
