"""The trio runner: calls, streams, deadlines, bugs in handlers, slow and vanishing peers. On virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from fedsched.model.errors import BadRequest, Busy, FedschedError, NotFound, TooLarge, Unavailable
from fedsched.wire import frames
from fedsched.wire.call_state import Flow
from fedsched.wire.errors import LinkClosed, RemoteError
from fedsched.wire.frames import Hello
from fedsched.wire.limits import DATA_BYTES_MAX, DATA_OVERHEAD, LinkLimits
from fedsched.wire.link import Handler, Link, open_link
from fedsched.wire.link_calls import ServedCall
from fedsched.wire.memory import MemoryCarrier, memory_pair
from tests.wire.builders import GOOD_HELLO, message, next_frame


async def echo(call: ServedCall) -> bytes:
    return call.payload


def run(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test, clock=MockClock(autojump_threshold=0))


def with_links(
    handler: Handler,
    body: Callable[[Link, Link], Awaitable[None]],
    *,
    client_limits: LinkLimits | None = None,
    server_limits: LinkLimits | None = None,
) -> None:
    """Run `body` with the opener's link and the server's."""

    async def main() -> None:
        left, right = memory_pair()
        async with (
            open_link(right, is_opener=False, handler=handler, limits=server_limits) as server,
            open_link(left, is_opener=True, limits=client_limits) as client,
        ):
            await client.wait_ready()
            await body(client, server)

    run(main)


def test_a_call_is_answered() -> None:
    async def body(client: Link, server: Link) -> None:
        assert await client.call("Echo", b"hello") == b"hello"
        assert client.statistics().calling == 0
        assert server.statistics().serving == 0

    with_links(echo, body)


def test_many_calls_run_at_once_and_each_gets_its_own_answer() -> None:
    answers: list[bytes] = []

    async def slow_first(call: ServedCall) -> bytes:
        await trio.sleep(10 - call.payload[0])
        return call.payload

    async def body(client: Link, server: Link) -> None:
        async def ask(number: int) -> None:
            answers.append(await client.call("M", bytes([number])))

        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(ask, number)

    with_links(slow_first, body)

    assert answers == [bytes([number]) for number in reversed(range(10))]


def test_the_server_may_call_back_over_the_same_link() -> None:
    async def main() -> None:
        left, right = memory_pair()
        async with (
            open_link(right, is_opener=False) as server,
            open_link(left, is_opener=True, handler=echo),
        ):
            await server.wait_ready()
            assert await server.call("Echo", b"from the server") == b"from the server"

    run(main)


def test_a_handlers_refusal_reaches_the_caller_with_code_hint_and_status() -> None:
    async def refuse(call: ServedCall) -> bytes:
        raise NotFound("no job 'web'", hint="try `job status`")

    async def body(client: Link, server: Link) -> None:
        with pytest.raises(RemoteError, match="no job 'web'") as caught:
            await client.call("Job.Get", b"")
        assert (caught.value.code, caught.value.http_status) == ("not_found", 404)
        assert caught.value.hint == "try `job status`"

    with_links(refuse, body)


def test_a_refusal_from_within_a_handlers_nursery_reaches_the_caller_too() -> None:
    async def refuse(call: ServedCall) -> bytes:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 0)
            raise NotFound("inside")

    async def body(client: Link, server: Link) -> None:
        with pytest.raises(RemoteError, match="inside"):
            await client.call("Job.Get", b"")

    with_links(refuse, body)


def test_a_bug_in_a_handler_answers_internal_and_leaves_the_link_alone() -> None:
    async def buggy(call: ServedCall) -> bytes:
        if call.method == "Bad":
            raise ZeroDivisionError("oops")
        return b"fine"

    async def body(client: Link, server: Link) -> None:
        with pytest.raises(RemoteError, match="Bad failed: ZeroDivisionError") as caught:
            await client.call("Bad", b"")
        assert caught.value.code == "internal"
        assert await client.call("Good", b"") == b"fine"

    with_links(buggy, body)


def test_an_end_without_a_handler_says_so() -> None:
    async def main() -> None:
        left, right = memory_pair()
        async with open_link(right, is_opener=False), open_link(left, is_opener=True) as client:
            with pytest.raises(RemoteError, match=r"serves no Job\.Get"):
                await client.call("Job.Get", b"")

    run(main)


def test_the_callers_deadline_ends_the_call_at_both_ends() -> None:
    cancelled: list[float] = []

    async def hang(call: ServedCall) -> bytes:
        assert call.deadline == pytest.approx(trio.current_time() + 2)
        try:
            await trio.sleep_forever()
        finally:
            cancelled.append(trio.current_time())

    async def body(client: Link, server: Link) -> None:
        started = trio.current_time()
        with pytest.raises(trio.TooSlowError), trio.fail_after(2):
            await client.call("Hang", b"")
        await trio.testing.wait_all_tasks_blocked()
        assert cancelled == [pytest.approx(started + 2)]
        assert server.statistics().serving == 0
        assert client.statistics().calling == 0

    with_links(hang, body)


def test_a_deadline_is_kept_at_the_server_even_if_the_caller_forgot() -> None:
    """The caller's cancel may be stuck behind a full connection; the handler must end all the same."""

    async def hang(call: ServedCall) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    async def main() -> None:
        left, right = memory_pair()
        async with open_link(right, is_opener=False, handler=hang) as server:
            await left.send([frames.encode(GOOD_HELLO), frames.encode(frames.Call(1, "Hang", 500, 0, 0))])
            await trio.sleep(1)
            assert server.statistics().serving == 0
            assert (await next_frame(left, frames.Error)).code == "deadline"

    run(main)


def test_a_call_from_a_cancelled_child_is_not_sent() -> None:
    async def body(client: Link, server: Link) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await client.call("Echo", b"")
        assert scope.cancelled_caught
        assert client.statistics().calling == 0
        assert await client.call("Echo", b"next") == b"next"

    with_links(echo, body)


def test_leaving_a_call_early_cancels_its_handler() -> None:
    ended = trio.Event()

    async def hang(call: ServedCall) -> bytes:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def body(client: Link, server: Link) -> None:
        with trio.move_on_after(0.5):
            await client.call("Hang", b"")
        await ended.wait()

    with_links(hang, body)


def test_a_stream_down_arrives_in_order_and_ends_with_the_reply() -> None:
    async def count(call: ServedCall) -> bytes:
        for number in range(100):
            assert await call.send(b"%d" % number)
        return b"done"

    async def body(client: Link, server: Link) -> None:
        async with client.open_call("Count", b"", Flow.DOWN) as call:
            items = [item async for item in call]
            assert items == [b"%d" % number for number in range(100)]
            assert await call.wait_reply() == b"done"

    with_links(count, body)


def test_a_stream_up_arrives_and_the_callee_may_stop_listening() -> None:
    async def total(call: ServedCall) -> bytes:
        size = 0
        async for item in call:
            size += len(item)
            if call.method == "Impatient":
                break
        return b"%d" % size

    async def body(client: Link, server: Link) -> None:
        async with client.open_call("Total", b"", Flow.UP) as call:
            for _ in range(30):
                assert await call.send(b"x" * 100_000)
            call.end_items()
            assert await call.wait_reply() == b"3000000"
            with pytest.raises(trio.EndOfChannel):
                await call.receive()
        async with client.open_call("Impatient", b"", Flow.UP) as call:
            while await call.send(b"x" * 100_000):
                pass
            assert int(await call.wait_reply()) >= 100_000

    with_links(total, body)


def test_a_slow_reader_stops_its_sender_and_nobody_else() -> None:
    sent = 0

    async def flood(call: ServedCall) -> bytes:
        nonlocal sent
        if call.method == "Echo":
            return call.payload
        while True:
            await call.send(b"x" * DATA_BYTES_MAX)
            sent += 1

    async def body(client: Link, server: Link) -> None:
        async with client.open_call("Flood", b"", Flow.DOWN) as call:
            await trio.testing.wait_all_tasks_blocked()
            assert sent == 2  # the window holds two
            assert await client.call("Echo", b"still here") == b"still here"
            await call.receive()
            await trio.testing.wait_all_tasks_blocked()
            assert sent == 3

    with_links(flood, body, client_limits=LinkLimits(window_bytes=2 * (DATA_BYTES_MAX + DATA_OVERHEAD)))


def test_streams_fail_with_their_call() -> None:
    async def fail(call: ServedCall) -> bytes:
        if call.method == "Down":
            await call.send(b"one")
        raise Unavailable("disk on fire")

    async def body(client: Link, server: Link) -> None:
        async with client.open_call("Down", b"", Flow.DOWN) as call:
            assert await call.receive() == b"one"
            with pytest.raises(RemoteError, match="disk on fire"):
                await call.receive()
        async with client.open_call("Up", b"", Flow.UP) as call:
            while call.state.is_live:
                await trio.lowlevel.checkpoint()
            with pytest.raises(RemoteError, match="disk on fire"):
                await call.send(b"x")

    with_links(fail, body)


def test_items_the_wrong_way_or_after_the_end_are_a_mistake_of_ours() -> None:
    async def body(client: Link, server: Link) -> None:
        async with client.open_call("M", b"", Flow.BOTH) as call:
            call.end_items()
            with pytest.raises(trio.ClosedResourceError):
                await call.send(b"late")
            with pytest.raises(TooLarge):
                async with client.open_call("N", b"", Flow.UP) as other:
                    await other.send(b"x" * (DATA_BYTES_MAX + 1))

    async def hang(call: ServedCall) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    with_links(hang, body)


def test_a_full_outbox_makes_callers_wait_instead_of_growing() -> None:
    """The peer reads nothing: two large calls fill the outbox, the third waits until its caller gives up."""

    async def main() -> None:
        left, right = memory_pair()
        for _ in range(16):  # the channel is full before the link writes its first frame
            await left.send([(b"", b"")])
        async with open_link(left, is_opener=True, limits=LinkLimits(outbox_bytes_max=1_500_000)) as link:
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    with trio.move_on_after(5):
                        await link.call("Big", b"x" * 800_000)

                for _ in range(5):
                    nursery.start_soon(ask)
                await trio.testing.wait_all_tasks_blocked()
                assert link.statistics().calling == 2
                assert link.statistics().outbox_bytes < 2_400_000
            await right.aclose()

    run(main)


def test_too_many_calls_are_refused_here_before_they_are_sent() -> None:
    async def hang(call: ServedCall) -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    async def body(client: Link, server: Link) -> None:
        async with client.open_call("M", b"", Flow.DOWN):
            with pytest.raises(Busy):
                await client.call("M", b"")

    with_links(hang, body, server_limits=LinkLimits(calls_max=1))


def test_authentication_names_the_peer_or_sends_it_away() -> None:
    async def authenticate(hello: Hello) -> str:
        await trio.sleep(0.1)
        if hello.payload != b"secret":
            raise FedschedError("bad token", hint="log in")
        return "node 1"

    async def who(call: ServedCall) -> bytes:
        return str(call.link.identity).encode()

    async def ask(greeting: bytes) -> bytes:
        left, right = memory_pair()
        async with (
            open_link(right, is_opener=False, handler=who, authenticate=authenticate),
            open_link(left, is_opener=True, greeting=greeting) as client,
        ):
            return await client.call("Who", b"x" * 50_000)  # larger than a stranger may send

    async def main() -> None:
        assert await ask(b"secret") == b"node 1"
        with pytest.raises(RemoteError, match="bad token"):
            await ask(b"guess")

    run(main)


def test_a_silent_peer_is_noticed_by_keepalive() -> None:
    async def main() -> None:
        left, right = memory_pair()
        async with open_link(left, is_opener=True) as link:
            await right.send([frames.encode(GOOD_HELLO)])
            await link.wait_ready()
            started = trio.current_time()
            with pytest.raises(RemoteError, match="peer was silent for 60 s"):
                await link.call("M", b"")
            assert trio.current_time() - started == pytest.approx(60, abs=1)
            assert (await next_frame(right, frames.Ping)).number == 1

    run(main)


def test_an_idle_link_stays_up() -> None:
    async def body(client: Link, server: Link) -> None:
        await trio.sleep(2 * 3600)
        assert await client.call("Echo", b"still") == b"still"

    with_links(echo, body)


def test_draining_lets_calls_finish_and_then_closes() -> None:
    release = trio.Event()

    async def wait(call: ServedCall) -> bytes:
        await release.wait()
        return b"finished"

    async def body(client: Link, server: Link) -> None:
        async with client.open_call("M", b"", Flow.DOWN) as call:
            await trio.testing.wait_all_tasks_blocked()
            server.drain("upgrade")
            await trio.testing.wait_all_tasks_blocked()
            assert not client.may_call
            with pytest.raises(LinkClosed):
                await client.call("N", b"")
            release.set()
            assert await call.wait_reply() == b"finished"
        await client.wait_closed()
        assert client.closed is not None
        assert client.closed.message == "drained"

    with_links(wait, body)


def test_a_lost_carrier_fails_calls_and_cancels_handlers() -> None:
    ended = trio.Event()

    async def hang(call: ServedCall) -> bytes:
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def main() -> None:
        left, right = memory_pair()
        async with (
            open_link(right, is_opener=False, handler=hang),
            open_link(left, is_opener=True) as client,
            trio.open_nursery() as nursery,
        ):

            async def cut() -> None:
                await trio.sleep(1)
                await left.aclose()

            nursery.start_soon(cut)
            with pytest.raises(RemoteError, match="link closed") as caught:
                await client.call("M", b"")
            assert caught.value.code == "unavailable"
            with pytest.raises(LinkClosed):
                await client.call("M", b"")
            await ended.wait()

    run(main)


def test_a_peer_that_breaks_the_rules_is_told_and_closed() -> None:
    async def main() -> None:
        left, right = memory_pair()
        link = Link(right, is_opener=False, handler=echo)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await left.send([(b"nonsense", b"")])
            await link.wait_closed()
            assert (await next_frame(left, frames.Goaway)).code == "bad_frame"
        assert link.closed is not None

    run(main)


def test_a_link_that_is_cancelled_says_goodbye() -> None:
    async def main() -> None:
        left, right = memory_pair()
        with trio.move_on_after(1):
            await Link(right, is_opener=False).run()
        assert await next_frame(left, frames.Goaway) == frames.Goaway("unavailable", "this end is stopping")

    run(main)


def test_a_link_whose_peer_never_reads_still_ends_when_cancelled() -> None:
    class Stuck(MemoryCarrier):
        async def send(self, frames: list[tuple[bytes, bytes]]) -> None:
            await trio.sleep_forever()

    async def main() -> None:
        left, right = memory_pair()
        carrier = Stuck("peer", left._sender, left._receiver)
        with trio.move_on_after(1):
            await Link(carrier, is_opener=True).run()
        assert trio.current_time() < 10
        await right.aclose()

    run(main)


def test_run_reports_why_the_link_ended() -> None:
    async def main() -> None:
        left, right = memory_pair()
        await left.send([(message(GOOD_HELLO), b""), (message(frames.Goaway("unavailable", "rebooting")), b"")])
        await left.aclose()
        closed = await Link(right, is_opener=False).run()
        assert closed.message == "rebooting"  # although writing to it failed too

    run(main)


def test_a_carrier_that_breaks_while_writing_ends_the_link() -> None:
    async def main() -> None:
        left, right = memory_pair()
        right._receiver.close()
        closed = await Link(left, is_opener=True).run()
        assert closed.message == "the other end is gone"
        assert trio.current_time() < 2
        await right.aclose()

    run(main)


def test_an_item_is_sent_at_once_or_not_at_all() -> None:
    item = b"x" * 100_000

    async def take_nothing(call: ServedCall) -> bytes:
        await trio.sleep_forever()
        return b""

    async def body(client: Link, server: Link) -> None:
        async with client.open_call("Up", b"", Flow.UP) as call:
            assert not call.try_send(item)  # no credit was granted yet
            await trio.testing.wait_all_tasks_blocked()
            sent = 0
            while call.try_send(item):
                sent += 1
                await trio.testing.wait_all_tasks_blocked()
            assert sent == LinkLimits().window_bytes // (len(item) + DATA_OVERHEAD)
            with pytest.raises(TooLarge):
                call.try_send(b"x" * (DATA_BYTES_MAX + 1))
            call.end_items()
            assert not call.try_send(b"")
        assert not call.try_send(b"")
        assert client.statistics().calling == 0

    with_links(take_nothing, body)


def test_nothing_is_put_beside_a_full_outbox() -> None:
    async def body(client: Link, server: Link) -> None:
        async with client.open_call("Up", b"", Flow.UP) as call:
            await trio.testing.wait_all_tasks_blocked()
            sent = 0
            while call.try_send(b"x" * 1000):  # nobody gets a turn to write meanwhile
                sent += 1
            assert not client.core.has_room
            assert sent < LinkLimits().window_bytes // 1000
            await trio.testing.wait_all_tasks_blocked()
            assert call.try_send(b"y")

    async def read(call: ServedCall) -> bytes:
        async for _ in call:
            pass
        return b""

    with_links(read, body, client_limits=LinkLimits(outbox_bytes_max=300_000))


# ---- links that are idle --------------------------------------------------------------------------------------------


def children_of(link: Link) -> int:
    return len(link._children.child_tasks) if link._children is not None else 0


def test_a_link_that_says_little_keeps_no_writer_and_one_that_says_much_does_until_it_is_quiet_again() -> None:
    async def serve(call: ServedCall) -> bytes:
        return b""

    async def main() -> None:
        near, far = memory_pair()
        async with open_link(near, is_opener=True) as ours, open_link(far, is_opener=False, handler=serve) as theirs:
            await ours.call("A", b"")
            await trio.sleep(1)
            assert (children_of(ours), children_of(theirs)) == (0, 0)

            for _ in range(20):
                await ours.call("A", b"")
            await trio.sleep(1)
            assert (children_of(ours), children_of(theirs)) == (1, 1)

            await trio.sleep(120)  # they go on asking each other for signs of life
            assert (children_of(ours), children_of(theirs)) == (0, 0)
            assert await ours.call("A", b"") == b""

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_what_is_left_to_do_after_a_handler_comes_before_its_reply_and_may_fail() -> None:
    happened: list[str] = []

    async def work() -> None:
        await trio.sleep(5)
        happened.append("worked")

    async def fail() -> None:
        raise BadRequest("not like this")

    async def break_down() -> None:
        raise RuntimeError("a bug")

    rests = {"Work": work, "Fail": fail, "Break": break_down}

    async def serve(call: ServedCall) -> bytes:
        call.rest = rests[call.method]
        happened.append("handled")
        return b"reply"

    async def main() -> None:
        near, far = memory_pair()
        async with open_link(near, is_opener=True) as ours, open_link(far, is_opener=False, handler=serve):
            assert await ours.call("Work", b"") == b"reply"
            assert happened == ["handled", "worked"]
            with pytest.raises(RemoteError, match="not like this"):
                await ours.call("Fail", b"")
            with pytest.raises(RemoteError, match="Break failed: RuntimeError"):
                await ours.call("Break", b"")
            with trio.move_on_after(1):
                await ours.call("Work", b"")
            await trio.sleep(30)
            assert happened.count("worked") == 1  # given up by its caller half way

    trio.run(main, clock=MockClock(autojump_threshold=0))
