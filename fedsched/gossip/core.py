"""Membership as a pure state machine: inputs and the time in, effects out.

Theory
------

*Sources.* Das, Gupta, Motivala: "SWIM: Scalable Weakly-consistent Infection-style Process Group Membership Protocol"
(2002), for probes, indirect probes, suspicion and piggybacking. Dadgar, Phillips, Currey: "Lifeguard: Local Health
Awareness for More Accurate Failure Detection" (2018), for the health score, the dynamic suspicion time-out and telling
the accused first.

*States* of a member, as believed by one other:

    alive --a probe fails, or somebody says so--> suspect --time is up--> dead --forced, or long ago--> left, forgotten
      ^                                              |                      |
      +------ the member speaks up with a higher incarnation ---------------+        alive --farewell--> left

*Invariants*, whatever arrives in whatever order:

 1. The incarnation of a stored member never falls. Only the member itself raises its own; after a restart it starts
    above anything it has ever said (`KeepIncarnation` comes before the message that uses it).
 2. Nobody is dead before its suspicion has run out here, or somebody says that it has run out there.
 3. A member that is up and hears an accusation refutes it, unless it is leaving.
 4. What `left` is undone only by a higher incarnation.
 5. An announcement is delivered at most once.
 6. No packet is larger than the limit; no queue grows without bound.

The parts: `foundation` (table, deadlines, the way out), `claims` (what to believe), `probing`, `exchange` (comparing
tables), and here the life of a member: joining, leaving, finding lost ones again, forgetting.
"""

from __future__ import annotations

import heapq
import math
from typing import Final

from fedsched.gossip.asked import (
    AnswerStream,
    ChangeTags,
    Effect,
    EventNews,
    ForceLeave,
    Gone,
    Input,
    Join,
    Leave,
    LookAt,
    NewsKind,
    Packet,
    Publish,
    SendFailed,
    StreamAnswered,
    StreamAsked,
    StreamFailed,
)
from fedsched.gossip.events import LTIME_MAX
from fedsched.gossip.exchange import Exchange
from fedsched.gossip.foundation import Chance, Foundation
from fedsched.gossip.members import EMPTY_GROUND, Ground, Member
from fedsched.gossip.messages import (
    Ack,
    Alive,
    Dead,
    Message,
    Nack,
    NameTaken,
    Ping,
    PingReq,
    Rows,
    State,
    Suspect,
    UserEvent,
)
from fedsched.gossip.profiles import Profile
from fedsched.gossip.snapshot import Snapshot
from fedsched.gossip.wire import EVENT_MAX, META_MAX, size_bound
from fedsched.model.errors import BadRequest

FAREWELLS: Final = 8
"""Members that are told of a leave by stream, beside the gossip."""
REGION_RETRY_S: Final = 1.0


class GossipCore(Exchange):
    """One member of the pool. No method waits; none may be called from two threads."""

    def __init__(
        self,
        profile: Profile,
        me: Alive,
        chance: Chance,
        now: float,
        *,
        ground: Ground = EMPTY_GROUND,
        remembered: Snapshot | None = None,
        overhead: int = 0,
    ) -> None:
        """`remembered`: what an earlier process left on disk; it counts until the pool is found again."""
        ltime = remembered.event_ltime if remembered is not None else 1
        Foundation.__init__(self, profile, me, chance, now, ground=ground, event_ltime=ltime, overhead=overhead)
        self._remembered = remembered.members if remembered is not None else ()
        self._set_up_claims()
        self._set_up_probing()
        self._set_up_exchange()
        self._reconnects = 0
        self._is_reconnecting = False
        self._region_queue: list[str] = []
        self._after(profile.reap_interval_s, self._reap)

    # ------------------------------------------------------------------- stimuli

    def handle(self, what: Input, now: float) -> list[Effect]:
        """Something happened."""
        self.now = now
        match what:
            case Packet(source, messages):
                self._source = source
                for message in messages:
                    self._on_message(message)
                self._source = None
            case StreamAsked(stream, _, messages):
                self._out.append(AnswerStream(stream, self._on_stream(messages)))
            case StreamAnswered(op, messages):
                done = self._ops.pop(op, None)
                if done is not None:
                    for message in messages:
                        if isinstance(message, (Alive, Suspect, Dead)):
                            self._on_message(message)
                    done(messages)
            case StreamFailed(op):
                done = self._ops.pop(op, None)
                if done is not None:
                    done(None)
            case SendFailed():
                self._on_send_failed(what)
            case Join():
                self._join(what)
            case Leave():
                self._leave()
            case ChangeTags(meta):
                self._change_tags(meta)
            case Publish(name, payload, coalesce):
                self._publish(name, payload, coalesce)
            case ForceLeave(name, prune):
                self._force_leave(name, prune)
            case LookAt(name):
                member = self.members.get(name)
                if member is not None and member.is_up and name != self.name:
                    self._second_opinion(member)
        return self._take()

    def wake(self, now: float) -> list[Effect]:
        """Do what is due. Being called late is noticed, and held against nobody but ourselves."""
        due_at = self.wake_at()
        if now < due_at:
            return []
        self.now = now
        if now - due_at > self.profile.probe_timeout_s / 2:
            self.awareness.note_lag(now, self.profile.probe_interval_s)
            self.counters["lags"] += 1
        timers = self._timers
        while timers and timers[0][0] <= now:
            timer = heapq.heappop(timers)[2]
            call, timer.call = timer.call, None
            if call is not None:
                call(timer.arg)
        return self._take()

    def snapshot(self) -> Snapshot:
        """What is worth keeping on disk: enough to find the pool again, failed members included."""
        members = {m.name: (m.name, m.addr, m.is_up) for m in self.members if m.state is not State.LEFT}
        if self.members.up <= 1:
            # Not found yet. A process that dies before it is must not leave its successor with nobody to ask.
            members = {line[0]: line for line in self._remembered} | members
        return Snapshot(self.me.inc, self.events.clock.time, self.is_leaving, tuple(members.values()))

    def _take(self) -> list[Effect]:
        out, self._out = self._out, []
        return out

    def _on_message(self, message: Message) -> None:
        kind = type(message)
        if kind is Ping:
            self._answer_ping(message)  # type: ignore[arg-type]
        elif kind is Ack:
            self._on_ack(message)  # type: ignore[arg-type]
        else:
            self._on_rare_message(message)

    def _on_rare_message(self, message: Message) -> None:
        match message:
            case Alive():
                self._on_alive(message)
            case Suspect():
                self._on_suspect(message)
            case Dead():
                self._on_dead(message)
            case PingReq():
                self._on_ping_req(message)
            case Nack():
                self._on_nack(message)
            case UserEvent():
                self._on_event(message)
            case NameTaken():
                self._on_name_taken(message)
            case _:
                self.counters["misplaced"] += 1  # an exchange in a datagram

    def _on_stream(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Answer each thing said on a stream, claims included: refutations ride along."""
        answers: list[Message] = []
        for message in messages:
            if isinstance(message, Ping):
                ack = self._on_ping(message)
                if ack is not None:
                    answers.append(ack)
            elif isinstance(message, (Alive, Suspect, Dead)):
                before = self.me.inc
                self._on_message(message)
                if self.me.inc != before:
                    answers.append(self.me.claim())
            else:
                answers += self._stream_reply(message)
        return tuple(answers) or (Rows(self.name, ()),)

    # ----------------------------------------------------------------- commands

    def _leave(self) -> None:
        """One message is the farewell; it goes by gossip and, to a few, by stream."""
        if self.is_leaving:
            return
        self.is_leaving = True
        for probe in list(self._probes.values()):
            self._end_probe(probe)
        farewell = Dead(self.me.inc, self.name, self.name)
        self._tell(farewell, own=True)
        due = self.now + self.profile.stream_timeout_s
        for member in self._pick(FAREWELLS, lambda m: m.is_up):
            self._ask(member.addr, (farewell,), lambda _: None, due)
        self._after(self.profile.linger_s(self.members.up), lambda _: self._out.append(Gone()))

    def _change_tags(self, meta: bytes) -> None:
        if len(meta) > META_MAX:
            raise BadRequest(f"tags of {len(meta)} bytes; at most {META_MAX} can be gossiped")
        if meta != self.me.meta:
            self._speak_up(self.me.inc, meta)

    def _publish(self, name: str, payload: bytes, coalesce: bool) -> None:
        size = len(name.encode()) + len(payload)
        if size > EVENT_MAX:
            raise BadRequest(f"an announcement of {size} bytes; at most {EVENT_MAX} can be gossiped")
        if self.events.clock.time >= LTIME_MAX:
            raise BadRequest("the announcement clock has run out")
        event = self.events.publish(name, payload, coalesce)
        assert size_bound(event) <= self._room, "an announcement always fits a packet"
        self._tell(event, own=True)
        self._out.append(EventNews(event))

    def _force_leave(self, name: str, prune: bool) -> None:
        member = self.members.get(name)
        if member is None or name == self.name:
            return
        self._on_dead(Dead(member.inc, name, name))
        if prune:
            self._forget(name)

    # ----------------------------------------------------------- lost and found

    def _watch_failed(self) -> None:
        """Somebody was declared dead: try to reach it again, soon at first and then at leisure."""
        self._reconnects = 0
        if not self._is_reconnecting:
            self._is_reconnecting = True
            self._after(self.profile.reconnect_first_s, self._reconnect)

    def _reconnect(self, _: object) -> None:
        failed = sorted(self.members.failed)
        if not failed or self.is_leaving:
            self._is_reconnecting = False
            return
        self._reconnects += 1
        wait = min(self.profile.reconnect_interval_s, self.profile.reconnect_first_s * 2.0**self._reconnects)
        self._after(wait * (0.75 + 0.5 * self.chance.random()), self._reconnect)
        if self.chance.random() * max(1, self.members.up) < len(failed):
            member = self.members.get(failed[int(self.chance.random() * len(failed))])
            if member is not None:
                self._introduce(member.addr)

    def _is_failed_region(self, region: str) -> bool:
        return region != "" and all(not m.is_up for m in self.members if m.region == region)

    def _region_is_back(self, region: str) -> None:
        """One server of a lost region answers: the others may be back as well."""
        was_idle = not self._region_queue
        self._region_queue = [m.name for m in self.members if m.region == region and m.state is State.DEAD]
        if was_idle:
            self._after(REGION_RETRY_S, self._try_region)

    def _try_region(self, _: object) -> None:
        while self._region_queue:
            member = self.members.get(self._region_queue.pop())
            if member is not None and member.state is State.DEAD:
                self._introduce(member.addr)
                self._after(REGION_RETRY_S, self._try_region)
                return

    # --------------------------------------------------------------- forgetting

    def _reap(self, _: object) -> None:
        profile = self.profile
        self._after(profile.reap_interval_s, self._reap)
        self._echoed = {name: at for name, at in self._echoed.items() if self.now - at < 60}
        self._conflicts = {name: at for name, at in self._conflicts.items() if self.now - at < 60}
        if self.members.up == len(self.members):
            return
        overdue = [m for m in self.members if not m.is_up and self.now - m.changed_at >= _kept_s(m, profile)]
        for member in overdue:
            # Of a region that is failed as a whole nobody is forgotten: its addresses are the only way back to it, and
            # however long a cut lasts, it heals by itself. Who has really gone for good is pruned by a person.
            if member.state is State.LEFT or not self._is_failed_region(member.region):
                self._forget(member.name)

    def _forget(self, name: str) -> None:
        member = self.members.get(name)
        if member is None or member.is_up:
            return
        self.members.remove(name)
        self.broadcasts.forget(name)
        self._tcp_only.pop(name, None)
        self._news(NewsKind.REAP, member)


def _kept_s(member: Member, profile: Profile) -> float:
    if member.state is State.DEAD:
        return profile.reconnect_timeout_s
    return profile.tombstone_s if member.state is State.LEFT else math.inf
