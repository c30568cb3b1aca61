"""Two link cores back to back over a channel that keeps order, delays, and may be cut at any moment.

After every step: no buffer over its bound, no negative credit, both ends' counts agree with their calls. At the end the
link is cut and everything that was opened must have ended, exactly once, at each end.
"""

from __future__ import annotations

import math
from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedsched.model.errors import Busy
from fedsched.wire.call_state import CallState, Flow
from fedsched.wire.effects import Closed, Effect, Ended, Greeted, Serve
from fedsched.wire.errors import Failure, LinkClosed
from fedsched.wire.limits import DATA_BYTES_MAX, DATA_OVERHEAD, LinkLimits
from fedsched.wire.link_core import LinkCore

LIMITS = LinkLimits(
    calls_max=4,
    own_calls_max=6,
    served_bytes_max=2000,
    window_bytes=2 * (DATA_BYTES_MAX + DATA_OVERHEAD),
    outbox_bytes_max=400_000,
    frame_bytes_max=DATA_BYTES_MAX + 5000,
)
SIDES = st.sampled_from([0, 1])
PICK = st.integers(0, 10**6)


class End:
    """One end: its core, what is on the way to it, and what it was told."""

    def __init__(self, index: int) -> None:
        self.core = LinkCore(is_opener=index == 0, now=0.0, limits=LIMITS)
        self.wire: deque[bytes] = deque()
        self.opened: list[CallState] = []
        self.served: list[CallState] = []
        self.ended: dict[CallState, int] = {}
        self.closed = 0

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Greeted():
                    self.core.admit()
                case Serve(call=call):
                    self.served.append(call)
                case Ended(call=call):
                    self.ended[call] = self.ended.get(call, 0) + 1
                case Closed():
                    self.closed += 1

    def answered(self, call: CallState) -> None:
        self.ended[call] = self.ended.get(call, 0) + 1

    def live(self, pick: int, calls: list[CallState]) -> CallState | None:
        alive = [call for call in calls if call.is_live]
        return alive[pick % len(alive)] if alive else None


class LinkMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ends = [End(0), End(1)]
        self.is_cut = False

    @initialize(is_greeted=st.sampled_from([True, True, True, False]))
    def greet(self, is_greeted: bool) -> None:
        if is_greeted:
            self.settle()

    @rule()
    def settle(self) -> None:
        """Everything that is on the way arrives."""
        while any(end.core.has_output or end.wire for end in self.ends):
            for side in (0, 1):
                self.write(side, 10)
                self.deliver(side, 1000)

    @rule(
        side=SIDES,
        flow=st.sampled_from(list(Flow)),
        size=st.integers(0, 1500),
        timeout=st.sampled_from([1.0, 20.0, math.inf]),
        times=st.integers(1, 6),
        is_settled=st.booleans(),
    )
    def call(self, side: int, flow: Flow, size: int, timeout: float, times: int, is_settled: bool) -> None:
        for _ in range(times):
            self.call_once(side, flow, size, timeout)
        if is_settled:
            self.settle()

    def call_once(self, side: int, flow: Flow, size: int, timeout: float) -> None:
        end = self.ends[side]
        if end.core.has_room:
            try:
                call = end.core.call("M", b"x" * size, flow=flow, deadline=self.now + timeout, now=self.now)
            except (Busy, LinkClosed):
                return
            end.opened.append(call)

    @rule(side=SIDES, pick=PICK, good=st.booleans())
    def answer(self, side: int, pick: int, good: bool) -> None:
        end = self.ends[side]
        call = end.live(pick, end.served)
        if call is not None and end.core.has_room:
            effects = end.core.reply(call, b"ok") if good else end.core.fail(call, Failure("bad", "no"))
            end.answered(call)
            end.take(effects)

    @rule(side=SIDES, pick=PICK)
    def cancel(self, side: int, pick: int) -> None:
        end = self.ends[side]
        call = end.live(pick, end.opened)
        if call is not None:
            end.take(end.core.cancel(call))

    @rule(side=SIDES, pick=PICK, size=st.sampled_from([0, 10, 100_000, DATA_BYTES_MAX]), is_settled=st.booleans())
    def send_items(self, side: int, pick: int, size: int, is_settled: bool) -> None:
        """Send until there is no credit or no room, at most ten."""
        end = self.ends[side]
        call = end.live(pick, [call for call in end.opened + end.served if call.we_may_send])
        for _ in range(10):
            if call is None or not end.core.has_room or not end.core.send_item(call, b"d" * size):
                break
            if is_settled:
                self.settle()

    @rule(side=SIDES, pick=PICK)
    def end_items(self, side: int, pick: int) -> None:
        end = self.ends[side]
        call = end.live(pick, end.opened + end.served)
        if call is not None:
            end.core.end_items(call)

    @rule(side=SIDES, pick=PICK, times=st.integers(1, 5))
    def read_items(self, side: int, pick: int, times: int) -> None:
        end = self.ends[side]
        readable = [call for call in end.opened + end.served if call.has_items]
        for _ in range(times):
            if readable:
                end.core.read_item(readable[pick % len(readable)])

    @rule(side=SIDES, times=st.integers(1, 3))
    def write(self, side: int, times: int) -> None:
        for _ in range(times):
            for parts in self.ends[side].core.take_output():
                if not self.is_cut:
                    self.ends[1 - side].wire.append(b"".join(parts))

    @rule(side=SIDES, times=st.integers(1, 20))
    def deliver(self, side: int, times: int) -> None:
        end = self.ends[side]
        for _ in range(min(times, len(end.wire))):
            end.take(end.core.receive(end.wire.popleft(), self.now))

    @rule(elapsed=st.sampled_from([0.1, 1.0, 14.0, 50.0]))
    def pass_time(self, elapsed: float) -> None:
        self.now += elapsed
        for end in self.ends:
            if end.core.wake_at() <= self.now:
                end.take(end.core.wake(self.now))

    @precondition(lambda self: self.now > 5)
    @rule(side=SIDES)
    def drain(self, side: int) -> None:
        self.ends[side].take(self.ends[side].core.drain("enough"))

    @precondition(lambda self: self.now > 30)
    @rule(side=SIDES, is_polite=st.booleans())
    def cut(self, side: int, is_polite: bool) -> None:
        """The channel breaks: what is on the way may still arrive, nothing new will."""
        self.is_cut = True
        end = self.ends[side]
        end.take(end.core.close("unavailable", "bye") if is_polite else end.core.lost("reset"))

    @invariant()
    def bounds_hold(self) -> None:
        for end in self.ends:
            core = end.core
            assert core.serving <= LIMITS.calls_max
            assert core.calling <= LIMITS.own_calls_max
            assert core.served_bytes <= LIMITS.served_bytes_max
            assert 0 <= core.outbox_bytes <= LIMITS.outbox_bytes_max + LIMITS.frame_bytes_max + 20_000
            assert core.calling == sum(call.is_live for call in end.opened)
            assert core.serving == sum(call.is_live for call in end.served)
            for call in end.opened + end.served:
                assert call.credit >= 0
                assert call.granted >= 0
                assert call.inbox_bytes + call.granted + call.unreturned <= LIMITS.window_bytes
                assert end.ended.get(call, 0) == (0 if call.is_live else 1)

    @invariant()
    def honest_ends_never_accuse_each_other(self) -> None:
        for end in self.ends:
            assert end.core.closed is None or end.core.closed.code == "unavailable"

    def teardown(self) -> None:
        for end in self.ends:
            end.take(end.core.lost("the end of the test"))
            assert end.closed == 1
            assert all(end.ended[call] == 1 for call in end.opened + end.served)
            assert (end.core.calling, end.core.serving, end.core.served_bytes) == (0, 0, 0)
        self.bounds_hold()


LinkMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestLinkMachine = LinkMachine.TestCase
