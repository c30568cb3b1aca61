"""The rules of a link, one at a time; `test_link_core_machine` mixes them."""

from __future__ import annotations

import math

import pytest

from fedsched.model.errors import BadRequest, Busy, TooLarge
from fedsched.wire import frames
from fedsched.wire.call_state import CallState, Flow
from fedsched.wire.effects import Closed, Draining, Ended, Readable, Serve, Writable
from fedsched.wire.errors import Failure, LinkClosed
from fedsched.wire.limits import DATA_BYTES_MAX, DATA_OVERHEAD, ByteBudget, LinkLimits
from fedsched.wire.link_core import LinkCore
from tests.wire.builders import GOOD_HELLO, NEVER, Pair, a_core, message, sent

SMALL_WINDOW = LinkLimits(window_bytes=2 * (DATA_BYTES_MAX + DATA_OVERHEAD))


def served(pair: Pair, core: LinkCore) -> CallState:
    """The one call that core was just asked to serve."""
    serves = [effect for effect in pair.take(core) if isinstance(effect, Serve)]
    assert len(serves) == 1
    return serves[0].call


def closing_reason(core: LinkCore, frame: frames.Frame) -> str:
    """Why the link closed on this frame; the peer must have been told the same."""
    effects = core.receive(message(frame), 0.0)
    closed = effects[-1]
    assert isinstance(closed, Closed)
    assert sent(core)[-1] == frames.Goaway(closed.code, closed.message)
    return closed.message


# ---- greeting


def test_both_ends_greet_first_and_learn_who_the_other_is() -> None:
    pair = Pair()

    pair.pump()

    greeted = pair.seen[pair.b][0]
    assert greeted.hello.payload == b"I am a"  # type: ignore[union-attr]


def test_a_call_may_follow_the_greeting_at_once() -> None:
    pair = Pair()
    call = pair.a.call("Job.Get", b"q", deadline=NEVER, now=0)

    theirs = served(pair, pair.b)
    pair.b.reply(theirs, b"r")

    assert theirs.method == "Job.Get"
    assert pair.take(pair.a) == [Ended(call)]
    assert (call.reply, call.failure, call.is_live) == (b"r", None, False)


def test_frames_before_a_greeting_or_before_admission_close_the_link() -> None:
    assert "before a greeting" in closing_reason(a_core(admitted=False), frames.Ping(1))

    core = a_core(admitted=False)
    core.receive(message(GOOD_HELLO), 0)
    assert "before the peer was admitted" in closing_reason(core, frames.Ping(1))


def test_a_second_greeting_closes_the_link() -> None:
    assert "second greeting" in closing_reason(a_core(), GOOD_HELLO)


def test_a_peer_of_another_version_is_told_which_one_is_spoken() -> None:
    core = a_core(admitted=False)

    assert "versions 2 to 3 of the wire, this end 1" in closing_reason(core, frames.Hello(2, 3, 1024 * 1024, 1))


def test_a_peer_that_takes_tiny_frames_only_is_refused() -> None:
    assert "frames of 1000 bytes only" in closing_reason(a_core(admitted=False), frames.Hello(1, 1, 1000, 1))


def test_a_peer_may_be_sent_away_before_it_was_admitted() -> None:
    core = a_core(admitted=False)

    assert core.receive(message(frames.Goaway("forbidden", "no such token")), 0) == [
        Closed("forbidden", "no such token")
    ]


def test_a_peer_that_does_not_greet_in_time_is_closed() -> None:
    core = a_core(admitted=False)

    assert core.wake_at() == 5.0
    assert core.wake(4.9) == []
    assert core.wake(5.0) == [Closed("unavailable", "no greeting within 5 s")]
    assert core.wake_at() == math.inf


def test_frames_are_small_until_the_peer_is_admitted() -> None:
    core = a_core(admitted=False)
    assert core.inbound_max == 4096
    assert "4096 are taken" in closing_reason(core, frames.Hello(1, 1, 1 << 20, 9, b"x" * 4096))

    core = a_core(limits=LinkLimits(frame_bytes_max=300_000))
    assert core.inbound_max == 300_000
    assert "300000 are taken" in closing_reason(core, frames.Data(1, b"x" * 300_000))


# ---- calls


def test_both_ends_may_call_at_the_same_time() -> None:
    pair = Pair()
    up = pair.a.call("A", b"", deadline=NEVER, now=0)
    down = pair.b.call("B", b"", deadline=NEVER, now=0)
    at_b, at_a = served(pair, pair.b), served(pair, pair.a)

    pair.a.reply(at_a, b"from a")
    pair.b.fail(at_b, Failure("not_found", "no A", "try B", 404, b"more"))

    assert pair.take(pair.a) == [Ended(up)]
    assert pair.take(pair.b) == [Ended(down)]
    assert up.failure == Failure("not_found", "no A", "try B", 404, b"more")
    assert down.reply == b"from a"


def test_a_cancelled_call_ends_at_both_ends_and_its_late_answer_is_ignored() -> None:
    pair = Pair()
    call = pair.a.call("Slow", b"", deadline=NEVER, now=0)
    theirs = served(pair, pair.b)

    assert pair.a.cancel(call) == [Ended(call)]
    assert pair.b.reply(theirs, b"late") == []
    assert pair.a.cancel(call) == []

    assert pair.take(pair.b) == []  # it had answered before it heard
    assert pair.take(pair.a) == []
    assert call.failure is not None
    assert call.failure.code == "cancelled"


def test_a_cancel_reaches_the_handler_and_ends_its_right_to_answer() -> None:
    pair = Pair()
    call = pair.a.call("Slow", b"", deadline=NEVER, now=0)
    theirs = served(pair, pair.b)
    pair.a.cancel(call)

    assert pair.take(pair.b) == [Ended(theirs)]
    assert pair.b.reply(theirs, b"") == []
    assert pair.b.fail(theirs, Failure("x", "y")) == []
    assert not pair.b.has_output
    assert pair.b.serving == 0


def test_deadlines_travel_as_time_left_and_expire_at_both_ends() -> None:
    pair = Pair()
    pair.pump()
    pair.now = 1.0
    call = pair.a.call("Slow", b"", deadline=7.5, now=5.0)
    theirs = served(pair, pair.b)

    assert theirs.deadline == 3.5  # the clocks of the two ends need not agree
    assert (pair.a.wake_at(), pair.b.wake_at()) == (7.5, 3.5)
    assert pair.a.wake(7.5) == [Ended(call)]
    assert pair.b.wake(3.5) == [Ended(theirs)]
    assert call.failure is not None
    assert (call.failure.code, call.failure.http_status) == ("deadline", 504)
    assert pair.take(pair.a) == []
    assert pair.take(pair.b) == []


def test_only_calls_whose_time_has_come_expire() -> None:
    core = a_core(is_opener=True)
    early = core.call("Early", b"", deadline=1.0, now=0)
    late = core.call("Late", b"", deadline=2.0, now=0)
    never = core.call("Never", b"", deadline=NEVER, now=0)

    assert core.wake_at() == 1.0
    assert core.wake(1.0) == [Ended(early)]
    assert core.wake_at() == 2.0
    assert core.wake(2.0) == [Ended(late)]
    assert never.is_live
    assert core.wake_at() == 15.0


@pytest.mark.parametrize(
    ("deadline", "travels_as"),
    [(7.5, 2500), (5.0001, 1), (1.0, 1), (-math.inf, 1), (math.inf, 0), (1e300, 0)],
)
def test_a_deadline_travels_as_what_is_left_of_it(deadline: float, travels_as: int) -> None:
    core = a_core(is_opener=True)

    core.call("M", b"", deadline=deadline, now=5.0)

    assert sent(core) == [frames.Call(1, "M", travels_as, 0, 0)]


def test_one_call_too_many_is_answered_busy_and_does_not_disturb_the_others() -> None:
    pair = Pair(b_limits=LinkLimits(calls_max=1))
    first = pair.a.call("A", b"", deadline=NEVER, now=0)
    second = pair.a.call("B", b"", deadline=NEVER, now=0)
    theirs = served(pair, pair.b)

    assert pair.take(pair.a) == [Ended(second)]
    assert second.failure is not None
    assert second.failure.code == "busy"
    pair.b.reply(theirs, b"")
    assert pair.take(pair.a) == [Ended(first)]


def test_the_caller_keeps_to_the_number_of_calls_the_peer_announced() -> None:
    pair = Pair(b_limits=LinkLimits(calls_max=1))
    pair.pump()
    pair.a.call("A", b"", deadline=NEVER, now=0)

    with pytest.raises(Busy, match="1 calls are in flight"):
        pair.a.call("B", b"", deadline=NEVER, now=0)


def test_requests_that_would_hold_too_many_bytes_are_answered_busy() -> None:
    pair = Pair(b_limits=LinkLimits(served_bytes_max=1000))
    pair.a.call("A", b"x" * 600, deadline=NEVER, now=0)
    second = pair.a.call("B", b"x" * 600, deadline=NEVER, now=0)
    theirs = served(pair, pair.b)

    assert pair.take(pair.a) == [Ended(second)]
    assert pair.b.served_bytes == 600
    pair.b.reply(theirs, b"")
    assert pair.b.served_bytes == 0


def test_links_that_share_a_budget_share_it() -> None:
    budget = ByteBudget(1000)
    first = a_core(budget=budget)
    second = a_core(budget=budget)
    (serve,) = first.receive(message(frames.Call(1, "A", 0, 0, 0, b"x" * 600)), 0)
    assert isinstance(serve, Serve)

    assert second.receive(message(frames.Call(1, "B", 0, 0, 0, b"x" * 600)), 0) == []
    refusal = sent(second)[0]
    assert isinstance(refusal, frames.Error)
    assert (refusal.code, refusal.message) == ("busy", "all calls together hold 600 bytes, the limit is 1000")

    first.reply(serve.call, b"")
    assert second.receive(message(frames.Call(3, "B", 0, 0, 0, b"x" * 600)), 0) != []
    second.lost("gone")
    assert budget.used == 0


def test_a_large_request_of_our_own_is_not_taken_for_a_peer_that_does_not_read() -> None:
    core = a_core(is_opener=True, hello=GOOD_HELLO._replace(frame_bytes_max=20_000_000))

    core.call("Big", b"x" * 15_000_000, deadline=NEVER, now=0)

    assert core.receive(message(frames.Ping(1)), 0) == []
    assert core.closed is None


def test_what_cannot_be_sent_is_refused_before_it_is_sent() -> None:
    core = a_core(is_opener=True)

    with pytest.raises(TooLarge, match="the peer takes 1048576"):
        core.call("Big", b"x" * 1024 * 1024, deadline=NEVER, now=0)
    with pytest.raises(BadRequest, match="method name of 200"):
        core.call("M" * 200, b"", deadline=NEVER, now=0)
    assert core.calling == 0
    assert not core.has_output


def test_a_reply_too_large_for_the_peer_becomes_a_failure_that_says_so() -> None:
    pair = Pair()
    call = pair.a.call("Big", b"", deadline=NEVER, now=0)
    theirs = served(pair, pair.b)

    pair.b.reply(theirs, b"x" * 1024 * 1024)

    assert pair.take(pair.a) == [Ended(call)]
    assert call.failure is not None
    assert call.failure.code == "too_large"


def test_details_too_large_for_the_peer_are_left_out() -> None:
    pair = Pair()
    call = pair.a.call("Big", b"", deadline=NEVER, now=0)

    pair.b.fail(served(pair, pair.b), Failure("x", "y", details=b"x" * 1024 * 1024))

    pair.pump()
    assert call.failure == Failure("x", "y")


# ---- streams


def test_items_flow_down_until_credit_runs_out_and_reading_grants_more() -> None:
    pair = Pair(a_limits=SMALL_WINDOW)
    ours = pair.a.call("Logs", b"", flow=Flow.DOWN, deadline=NEVER, now=0)
    theirs = served(pair, pair.b)
    item = b"x" * DATA_BYTES_MAX

    assert pair.b.send_item(theirs, item)
    assert pair.b.send_item(theirs, item)
    assert not pair.b.send_item(theirs, b"")
    assert theirs.credit == 0
    assert pair.take(pair.a) == [Readable(ours), Readable(ours)]

    assert pair.a.read_item(ours) == item
    assert pair.take(pair.b) == [Writable(theirs)]
    assert pair.b.send_item(theirs, item)
    pair.b.reply(theirs, b"done")

    assert pair.take(pair.a) == [Readable(ours), Ended(ours)]
    assert [pair.a.read_item(ours), pair.a.read_item(ours), pair.a.read_item(ours)] == [item, item, None]
    assert ours.inbox_bytes == 0
    assert not pair.a.has_output  # nobody is left to grant to


def test_items_flow_up_once_the_callee_grants_and_end_before_the_reply() -> None:
    pair = Pair()
    ours = pair.a.call("Restore", b"", flow=Flow.UP, deadline=NEVER, now=0)
    assert not pair.a.send_item(ours, b"too early")
    theirs = served(pair, pair.b)

    assert pair.take(pair.a) == [Writable(ours)]
    assert pair.a.send_item(ours, b"one")
    pair.a.end_items(ours)
    pair.a.end_items(ours)
    assert not pair.a.send_item(ours, b"after the end")

    assert pair.take(pair.b) == [Readable(theirs), Readable(theirs)]
    assert pair.b.read_item(theirs) == b"one"
    assert not theirs.peer_may_send
    pair.b.reply(theirs, b"restored")
    assert pair.take(pair.a) == [Ended(ours)]


def test_both_directions_at_once() -> None:
    pair = Pair()
    ours = pair.a.call("Exec", b"", flow=Flow.BOTH, deadline=NEVER, now=0)
    theirs = served(pair, pair.b)
    pair.pump()

    assert pair.a.send_item(ours, b"ls")
    assert pair.b.send_item(theirs, b"README")
    pair.pump()

    assert pair.b.read_item(theirs) == b"ls"
    assert pair.a.read_item(ours) == b"README"


def test_an_item_over_the_limit_is_refused_before_it_is_sent() -> None:
    core = a_core(is_opener=True)
    call = core.call("Up", b"", flow=Flow.UP, deadline=NEVER, now=0)

    with pytest.raises(TooLarge, match="stream item of 262145"):
        core.send_item(call, b"x" * (DATA_BYTES_MAX + 1))


def test_streams_of_an_ended_call_are_quiet() -> None:
    pair = Pair()
    ours = pair.a.call("Exec", b"", flow=Flow.BOTH, deadline=NEVER, now=0)
    theirs = served(pair, pair.b)
    assert pair.take(pair.a) == [Writable(ours)]
    pair.a.send_item(ours, b"crossing")
    pair.a.end_items(ours)
    pair.b.send_item(theirs, b"crossing")
    pair.b.end_items(theirs)
    pair.a.cancel(ours)
    pair.b.reply(theirs, b"")

    pair.take(pair.b)
    assert pair.take(pair.a) == []
    assert not pair.a.send_item(ours, b"late")
    pair.a.end_items(ours)
    assert not pair.a.has_output


def test_a_second_end_and_credit_for_a_call_that_is_over_are_ignored() -> None:
    core = a_core()
    core.receive(message(frames.Call(1, "Up", 0, int(Flow.UP), 0)), 0)
    assert core.receive(message(frames.End(1)), 0) != []
    assert core.receive(message(frames.End(1)), 0) == []
    core.receive(message(frames.Cancel(1)), 0)

    for late in (frames.Credit(1, 5), frames.Data(1, b"x"), frames.End(1), frames.Cancel(1)):
        assert core.receive(message(late), 0) == []
    assert core.closed is None


# ---- violations


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (frames.Reply(2), "Reply frame for call 2, which was never opened"),
        (frames.Reply(3), "Reply frame for call 3, which was never opened"),
        (frames.Reply(1), "answered call 1, which is its own"),
        (frames.Error(1, "x", "y", "", 500), "answered call 1, which is its own"),
        (frames.Data(1, b"x"), "which expects none"),
        (frames.Data(5, b"x"), "never opened"),
        (frames.Credit(9, 1), "never opened"),
        (frames.Call(1, "again", 0, 0, 0), "call number 1 after 1"),
        (frames.Call(2, "mine", 0, 0, 0), "call number 2 after 1"),
        (frames.Call(3, "flow", 0, 4, 0), "out of shape"),
        (frames.Call(3, "credit", 0, 1, 1 << 60), "out of shape"),
        (frames.Call(3, "m" * 300, 0, 0, 0), "out of shape"),
        (frames.Credit(1, 1 << 60), "bytes granted"),
    ],
)
def test_what_no_honest_peer_would_send_closes_the_link_with_a_reason(frame: frames.Frame, why: str) -> None:
    core = a_core()
    core.receive(message(frames.Call(1, "Known", 0, 0, 0)), 0)

    assert why in closing_reason(core, frame)
    assert core.serving == 0


def test_the_callee_cannot_cancel() -> None:
    core = a_core(is_opener=True)
    core.call("A", b"", deadline=NEVER, now=0)

    assert "which is ours" in closing_reason(core, frames.Cancel(1))


def test_more_data_than_was_granted_closes_the_link() -> None:
    core = a_core(limits=SMALL_WINDOW)
    core.receive(message(frames.Call(1, "Up", 0, int(Flow.UP), 0)), 0)
    for _ in range(2):
        core.receive(message(frames.Data(1, b"x" * DATA_BYTES_MAX)), 0)

    assert "0 were granted" in closing_reason(core, frames.Data(1, b"x"))


def test_an_item_over_the_limit_closes_the_link() -> None:
    core = a_core()
    core.receive(message(frames.Call(1, "Up", 0, int(Flow.UP), 0)), 0)

    assert "were granted" in closing_reason(core, frames.Data(1, b"x" * (DATA_BYTES_MAX + 1)))


def test_bytes_that_are_no_frame_close_the_link() -> None:
    core = a_core()

    effects = core.receive(b"GET / HTTP/1.1\r\n", 0)

    assert effects[-1] == core.closed
    assert core.closed is not None
    assert core.closed.code == "bad_frame"
    assert core.receive(message(frames.Ping(1)), 0) == []


def test_a_peer_that_asks_and_never_reads_is_cut_off() -> None:
    core = a_core(limits=LinkLimits(outbox_bytes_max=0, calls_max=0))

    for number in range(1, 20_000, 2):
        if core.receive(message(frames.Call(number, "Refused", 0, 0, 0)), 0):
            break

    assert core.closed is not None
    assert "does not read them" in core.closed.message
    assert core.outbox_bytes < 256 * 1024 + 2000


# ---- keep-alive, draining, closing


def test_a_silent_peer_is_asked_once_and_given_up_on_later() -> None:
    core = a_core()
    assert core.wake_at() == 15.0
    assert core.wake(14.0) == []
    assert sent(core) == []

    core.wake(15.0)
    core.wake(16.0)
    assert sent(core) == [frames.Ping(1)]
    assert core.wake_at() == 60.0
    core.receive(message(frames.Pong(1)), 20.0)
    assert core.wake_at() == 35.0

    core.wake(35.0)
    assert core.wake(80.0) == [Closed("unavailable", "peer was silent for 60 s")]
    assert core.wake(90.0) == []


def test_a_ping_is_answered() -> None:
    core = a_core()

    assert core.receive(message(frames.Ping(7)), 0) == []
    assert sent(core) == [frames.Pong(7)]


def test_a_draining_end_finishes_what_runs_refuses_what_is_new_and_then_closes() -> None:
    pair = Pair()
    running = pair.a.call("A", b"", deadline=NEVER, now=0)
    theirs = served(pair, pair.b)
    late = pair.a.call("B", b"", deadline=NEVER, now=0)

    assert pair.b.drain("upgrade") == []
    assert pair.b.drain("upgrade") == []
    assert pair.take(pair.b) == []
    assert pair.take(pair.a) == [Draining("upgrade"), Ended(late)]
    assert late.failure is not None
    assert late.failure.code == "unavailable"
    with pytest.raises(LinkClosed, match="draining"):
        pair.a.call("C", b"", deadline=NEVER, now=0)
    with pytest.raises(LinkClosed, match="draining"):
        pair.b.call("C", b"", deadline=NEVER, now=0)

    assert pair.b.reply(theirs, b"") == [Closed("unavailable", "drained")]
    assert pair.take(pair.a) == [Ended(running), Closed("unavailable", "drained")]
    with pytest.raises(LinkClosed, match="link closed: drained"):
        pair.a.call("D", b"", deadline=NEVER, now=0)


def test_draining_an_idle_link_closes_it_at_once() -> None:
    core = a_core()

    assert core.drain("bye") == [Closed("unavailable", "drained")]
    assert core.drain("bye") == []
    assert core.close("x", "again") == []


def test_when_the_link_is_lost_every_call_ends_once_and_says_why() -> None:
    pair = Pair()
    ours = pair.a.call("A", b"", deadline=NEVER, now=0)
    pair.b.call("B", b"", deadline=NEVER, now=0)
    theirs = served(pair, pair.a)
    pair.a.drain("soon")

    assert pair.a.lost("connection reset") == [
        Ended(ours),
        Ended(theirs),
        Closed("unavailable", "connection reset"),
    ]
    assert pair.a.lost("again") == []
    assert (pair.a.calling, pair.a.serving, pair.a.served_bytes) == (0, 0, 0)
    assert ours.failure is not None
    assert ours.failure.message == "link closed: connection reset"


def test_closing_tells_the_peer_why_and_its_calls_carry_the_code() -> None:
    pair = Pair()
    call = pair.a.call("A", b"", deadline=NEVER, now=0)
    pair.pump()

    pair.b.close("forbidden", "token revoked")

    assert pair.take(pair.a) == [Ended(call), Closed("forbidden", "token revoked")]
    assert call.failure is not None
    assert call.failure.code == "forbidden"


def test_output_is_taken_in_bounded_slices_and_room_follows() -> None:
    core = a_core(is_opener=True, limits=LinkLimits(outbox_bytes_max=2_000_000))
    for _ in range(3):
        assert core.has_room
        core.call("A", b"x" * 900_000, deadline=NEVER, now=0)

    assert not core.has_room
    assert len(core.take_output()) == 2
    assert core.has_room
    assert len(core.take_output()) == 1
    assert (core.take_output(), core.outbox_bytes, core.has_output) == ([], 0, False)


@pytest.mark.parametrize(
    "limits",
    [
        LinkLimits(window_bytes=DATA_BYTES_MAX),
        LinkLimits(frame_bytes_max=DATA_BYTES_MAX),
        LinkLimits(keepalive_s=60, silence_s=60),
    ],
)
def test_limits_that_cannot_work_are_refused(limits: LinkLimits) -> None:
    with pytest.raises(ValueError, match=r"window_bytes|frame_bytes_max|keepalive_s"):
        LinkCore(is_opener=True, now=0, limits=limits)
