"""Looking whether others are there: SWIM's probe cycle with Lifeguard's care.

One probe: a ping; if no answer comes in time, a few others are asked to try, and a stream is opened to the target at
the same moment. Whoever helps says so if it hears nothing (a nack): a prober that gets no nacks either is probably the
one in trouble, and lowers its opinion of itself instead of the target's.

Every member is probed once per round by everybody, in an order that is drawn for each round: a start and a stride that
has no common divisor with the number of members. That is a permutation without a list. By chance alone a dead member
may go unprobed for several intervals; in the `fed` profile every third probe therefore goes to the next member on a
ring that all share, which bounds the wait at the same cost.

Departures: probes overlap, so that a dead target does not slow the round; helpers nack within the prober's time;
helpers are chosen from the target's region and from a third one; a probe during which this member itself was late
proves nothing.
"""

from __future__ import annotations

import math
from typing import Final

from fedsched.gossip.asked import RoundTripSeen, SendFailed
from fedsched.gossip.claims import Claims
from fedsched.gossip.foundation import SEQ_MASK, Timer
from fedsched.gossip.members import Member
from fedsched.gossip.messages import Ack, Address, Message, Nack, Ping, PingReq, State, Suspect

NACK_SHARE: Final = 0.8
"""Of the prober's time that a helper may use up before it says that it heard nothing."""
RTT_MARGIN: Final = 4.0
RTT_FORGET: Final = 0.05
TCP_ONLY_WARN: Final = 3
TCP_ONLY_EVERY: Final = 10
RELAYS_MAX: Final = 1024


class Probe:
    """One look at one member."""

    __slots__ = ("deadline", "helpers", "nacks", "over", "region", "seq", "started", "target", "timeout")

    def __init__(self, seq: int, target: Member, started: float) -> None:
        self.seq = seq
        self.target = target.name
        self.region = target.region
        self.started = started
        self.helpers = 0
        self.nacks = 0
        self.timeout: Timer
        self.deadline: Timer
        self.over = False


class Probing(Claims):
    """The probe cycle, from both ends."""

    def _set_up_probing(self) -> None:
        self._probes: dict[int, Probe] = {}
        self._probed: set[str] = set()
        self._relays: dict[int, tuple[Address, int, Timer]] = {}
        self._rtt_high: dict[str, float] = {}
        self._tcp_only: dict[str, int] = {}
        self._round = (0, 0, 1)
        self._walked = 0
        self._ticks = 0
        self._at(self.now + self.chance.random() * self.profile.probe_interval_s, self._probe_tick)

    def _note_digest(self, name: str, addr: Address, digest: int) -> None:
        raise NotImplementedError

    def _reach_by_stream(self, member: Member) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------- as the prober

    def _probe_tick(self, _: object) -> None:
        if self.is_leaving:
            return
        self._after(self.awareness.stretched(self.profile.probe_interval_s), self._probe_tick)
        if len(self._probes) < self.profile.probes_max:
            target = self._neighbour() or self._next_target()
            if target is not None:
                self._begin_probe(target)

    def _neighbour(self) -> Member | None:
        """The next on the ring, if it is its turn."""
        self._ticks += 1
        every = self.profile.ring_every
        if not every or self._ticks % every:
            return None
        member = self.members.next_on_ring(self.name)
        return member if member is not None and member.name not in self._probed else None

    def _next_target(self) -> Member | None:
        order, get = self.members.order, self.members.get
        size, start, stride = self._round
        for _ in range(len(order) + 1):
            if self._walked >= size or size != len(order):
                size, start, stride = self._round = self._draw_round(len(order))
                self._walked = 0
            name = order[(start + self._walked * stride) % size]
            self._walked += 1
            member = get(name)
            if member is not None and member.is_up and name != self.name and name not in self._probed:
                return member
        return None

    def _draw_round(self, size: int) -> tuple[int, int, int]:
        draw = self.chance.random
        stride = 1 + int(draw() * size)
        while math.gcd(stride, size) != 1:
            stride += 1
        return size, int(draw() * size), stride

    def _begin_probe(self, target: Member) -> None:
        profile = self.profile
        whole_s = self.awareness.stretched(profile.probe_interval_s)
        self._seq = seq = (self._seq + 1) & SEQ_MASK
        probe = Probe(seq, target, self.now)
        self._probes[seq] = probe
        self._probed.add(probe.target)
        probe.timeout = self._after(self._timeout_s(probe.region, whole_s), self._probe_late, probe)
        probe.deadline = self._after(whole_s, self._probe_over, probe)
        ping = Ping(seq, target.name, self.name, self.addr, self.members.digest)
        if target.state is State.SUSPECT:
            self._send(target.addr, ping, Suspect(target.inc, target.name, self.name))
        else:
            self._send(target.addr, ping)

    def _timeout_s(self, region: str, whole_s: float) -> float:
        """How long a direct answer may take."""
        profile = self.profile
        if not profile.is_adaptive:
            return profile.probe_timeout_s
        high = self._rtt_high.get(region, 0.0)
        wait = min(max(RTT_MARGIN * high, profile.probe_timeout_s), profile.probe_timeout_max_s)
        return wait if whole_s - wait >= 1.2 * high and wait < whole_s else 0.5 * whole_s

    def _probe_late(self, probe: Probe) -> None:
        """No direct answer: ask others, and try a stream."""
        target = self.members.get(probe.target)
        if target is None or probe.over:
            return
        left_s = probe.deadline.due - self.now
        request = PingReq(probe.seq, target.name, target.addr, self.name, self.addr, max(0, int(left_s * 1000)))
        for helper in self._helpers(target):
            self._send(helper.addr, request)
            probe.helpers += 1
        ping = Ping(probe.seq, target.name, self.name, self.addr, self.members.digest)
        about = (ping, *self._notice_to(target))

        def answered(messages: tuple[Message, ...] | None) -> None:
            if messages and any(isinstance(m, Ack) and m.seq == probe.seq for m in messages) and not probe.over:
                self._note_tcp_only(probe.target)
                self._probe_succeeded(probe)

        self._ask(target.addr, about, answered, probe.deadline.due)

    def _helpers(self, target: Member) -> list[Member]:
        """One of the target's region and one of a third region where there are such, the rest by chance."""
        count = self.profile.indirect_checks

        def fits(member: Member) -> bool:
            return member.state is State.ALIVE and member.name != target.name

        chosen = {m.name: m for m in self._pick(1, lambda m: fits(m) and m.region == target.region)}
        if len(chosen) < count:
            near = (target.region, self.me.region)
            chosen |= {m.name: m for m in self._pick(1, lambda m: fits(m) and m.region not in near)}
        for member in self._pick(count, fits):
            if len(chosen) >= count:
                break
            chosen.setdefault(member.name, member)
        return list(chosen.values())

    def _probe_succeeded(self, probe: Probe) -> None:
        self._end_probe(probe)
        self.awareness.change(-1)
        self._note_heard(probe.target)

    def _probe_over(self, probe: Probe) -> None:
        """Time is up without an answer."""
        self._end_probe(probe)
        if self.awareness.lagged_at >= probe.started:
            self.counters["probes_discarded"] += 1
            return
        self.counters["probes_failed"] += 1
        self.awareness.change(probe.helpers - probe.nacks if probe.helpers else +1)
        target = self.members.get(probe.target)
        if target is not None and not self.is_leaving:
            self._on_suspect(Suspect(target.inc, target.name, self.name))

    def _end_probe(self, probe: Probe) -> None:
        probe.over = True
        probe.timeout.call = probe.deadline.call = None
        self._probes.pop(probe.seq, None)
        self._probed.discard(probe.target)

    def _second_opinion(self, member: Member) -> None:
        if member.name not in self._probed and len(self._probes) < 2 * self.profile.probes_max:
            self._begin_probe(member)

    def _on_send_failed(self, what: SendFailed) -> None:
        """Nothing left this host: the target is not to blame."""
        for probe in list(self._probes.values()):
            target = self.members.get(probe.target)
            if target is not None and target.addr == what.to:
                self._end_probe(probe)
                self.counters["probes_unsent"] += 1

    def _note_tcp_only(self, name: str) -> None:
        """A stream gets through and datagrams do not: most often a firewall."""
        count = self._tcp_only[name] = self._tcp_only.get(name, 0) + 1
        if count % TCP_ONLY_EVERY == TCP_ONLY_WARN:
            self._warn("gossip_udp_blocked", f"{name} answers streams but no datagrams")
            member = self.members.get(name)
            if member is not None:
                self._reach_by_stream(member)

    # ------------------------------------------------------ acks, and as a helper

    def _on_ack(self, ack: Ack) -> None:
        probe = self._probes.get(ack.seq)
        if probe is not None:
            if probe.timeout.call is not None:
                self._note_rtt(probe.region, self.now - probe.started)
                self._out.append(RoundTripSeen(probe.target, self.now - probe.started))
                self._tcp_only.pop(probe.target, None)
            self._probe_succeeded(probe)
            target = self.members.get(probe.target)
            if target is not None and ack.digest != self.members.digest:
                self._note_digest(target.name, target.addr, ack.digest)
            return
        relay = self._relays.pop(ack.seq, None)
        if relay is not None:
            to, seq, timer = relay
            timer.call = None
            self._send(to, Ack(seq, ack.digest))

    def _note_rtt(self, region: str, rtt_s: float) -> None:
        """The high-water mark of a region's answers, sinking slowly."""
        high = self._rtt_high.get(region, 0.0)
        self._rtt_high[region] = max(rtt_s, high + RTT_FORGET * (rtt_s - high))

    def _on_nack(self, nack: Nack) -> None:
        probe = self._probes.get(nack.seq)
        if probe is not None and probe.nacks < probe.helpers:
            probe.nacks += 1

    def _on_ping(self, ping: Ping) -> Ack | None:
        """The answer, or None if the ping is for somebody else."""
        if ping.target != self.name:
            self.counters["pings_misdirected"] += 1
            return None
        self._note_heard(ping.source)
        if ping.digest != self.members.digest:
            self._note_digest(ping.source, ping.source_addr, ping.digest)
        return Ack(ping.seq, self.members.digest)

    def _answer_ping(self, ping: Ping) -> None:
        ack = self._on_ping(ping)
        if ack is None:
            return
        source = self.members.get(ping.source)
        if source is not None and source.state is not State.ALIVE and source.addr == ping.source_addr:
            self._send(ping.source_addr, ack, *self._notice_to(source))
        else:
            self._send(ping.source_addr, ack)

    def _on_ping_req(self, request: PingReq) -> None:
        if len(self._relays) >= RELAYS_MAX:
            self.counters["relays_refused"] += 1
            return
        self._seq = seq = (self._seq + 1) & SEQ_MASK
        asker = self.members.get(request.source)
        back_s = self._rtt_high.get(asker.region if asker is not None else "", 0.0)
        patience_s = max(0.0, NACK_SHARE * request.budget_ms / 1000 - back_s)
        timer = self._after(patience_s, self._relay_over, seq)
        self._relays[seq] = (request.source_addr, request.seq, timer)
        self._send(request.target_addr, Ping(seq, request.target, self.name, self.addr, self.members.digest))

    def _relay_over(self, seq: int) -> None:
        relay = self._relays.pop(seq, None)
        if relay is not None:
            self._send(relay[0], Nack(relay[1]))
