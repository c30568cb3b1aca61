"""Links that are late, cut, reset or silent, each as the rest of the simulation relies on it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest
import trio

from fedsched.sim import trio_seed
from fedsched.sim.virtual_net import VirtualNet, VirtualStream


@dataclass
class SomeWeather:
    delay_s: float = 0.1
    fragment: float = 0.0
    window_bytes: int = 100


Story = Callable[[VirtualNet, VirtualStream, VirtualStream], Awaitable[None]]


def tell(story: Story, weather: SomeWeather | None = None) -> VirtualNet:
    """Live through a story on one connection from `a` to `b`."""

    async def main() -> VirtualNet:
        net = VirtualNet(weather or SomeWeather(), random.Random(1), Counter())
        with trio.fail_after(100):
            await story(net, *net.connect("a", "b"))
        return net

    return trio_seed.run(1, main)


async def all_of(stream: VirtualStream) -> bytes:
    """What arrives before the stream ends or breaks."""
    got = b""
    with suppress(trio.BrokenResourceError):
        while data := await stream.receive_some():
            got += data
    return got


def test_bytes_arrive_in_order_after_a_while_and_then_the_end() -> None:
    async def story(net: VirtualNet, ours: VirtualStream, theirs: VirtualStream) -> None:
        await ours.send_all(b"one ")
        await ours.send_all(b"two")
        assert await theirs.receive_some(2) == b"on"
        assert trio.current_time() >= 0.05
        got = b""
        while len(got) < 5:
            got += await theirs.receive_some()
        await ours.aclose()
        assert (got, await theirs.receive_some()) == (b"e two", b"")

    tell(story)


def test_what_is_sent_as_one_may_arrive_in_pieces() -> None:
    async def story(net: VirtualNet, ours: VirtualStream, theirs: VirtualStream) -> None:
        await ours.send_all(b"abcdef")
        first = await theirs.receive_some()
        assert 0 < len(first) < 6
        assert first + await theirs.receive_some() == b"abcdef"

    tell(story, SomeWeather(fragment=1.0))


def test_a_cut_holds_everything_back_until_it_is_joined() -> None:
    async def story(net: VirtualNet, ours: VirtualStream, theirs: VirtualStream) -> None:
        net.cut("a", "b")
        await ours.send_all(b"late")
        with trio.move_on_after(20) as waited:
            await theirs.receive_some()
        assert waited.cancelled_caught
        await theirs.send_all(b"the other way is open")
        assert await ours.receive_some() == b"the other way is open"
        net.join("a", "b")
        assert await theirs.receive_some() == b"late"

    tell(story)


def test_a_full_pipe_makes_its_sender_wait() -> None:
    async def story(net: VirtualNet, ours: VirtualStream, theirs: VirtualStream) -> None:
        net.cut("a", "b")
        with trio.move_on_after(5) as waited:
            await ours.send_all(b"x" * 101)
        assert waited.cancelled_caught

    assert tell(story).counts["sender waits"] > 0


def test_a_reset_loses_all_but_a_prefix_and_both_ends_learn_of_it() -> None:
    async def story(net: VirtualNet, ours: VirtualStream, theirs: VirtualStream) -> None:
        await ours.send_all(b"0123456789")
        net.reset("b", "a")
        got = await all_of(theirs)
        assert b"0123456789".startswith(got)
        assert len(got) < 10
        with pytest.raises(trio.BrokenResourceError):
            await ours.send_all(b"more")

    tell(story)


def test_a_sender_that_waits_learns_of_a_reset() -> None:
    async def story(net: VirtualNet, ours: VirtualStream, theirs: VirtualStream) -> None:
        async def send() -> None:
            with pytest.raises(trio.BrokenResourceError):
                await ours.send_all(b"x" * 200)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await trio.sleep(1)
            net.reset("a", "b")

    tell(story)


def test_a_host_without_power_says_nothing_and_back_again_refuses_old_connections() -> None:
    async def story(net: VirtualNet, ours: VirtualStream, theirs: VirtualStream) -> None:
        await theirs.send_all(b"never arrives")
        net.host_gone("b", silently=True)
        await ours.send_all(b"into the void")
        with trio.move_on_after(60) as waited:
            await ours.receive_some()
        assert waited.cancelled_caught
        net.host_back("b")
        with pytest.raises(trio.BrokenResourceError):
            await ours.send_all(b"who are you?")

    tell(story)


def test_a_process_that_ends_is_noticed_at_once() -> None:
    async def story(net: VirtualNet, ours: VirtualStream, theirs: VirtualStream) -> None:
        net.host_gone("b", silently=False)
        with pytest.raises(trio.BrokenResourceError):
            await ours.send_all(b"hello?")

    tell(story)


def test_a_closed_end_refuses_to_work_and_the_other_cannot_send() -> None:
    async def story(net: VirtualNet, ours: VirtualStream, theirs: VirtualStream) -> None:
        await ours.wait_send_all_might_not_block()
        await trio.aclose_forcefully(ours)
        with pytest.raises(trio.ClosedResourceError):
            await ours.receive_some()
        with pytest.raises(trio.BrokenResourceError):
            await theirs.send_all(b"x")

    tell(story)


def test_nobody_gets_in_while_either_way_is_cut() -> None:
    async def story(net: VirtualNet, ours: VirtualStream, theirs: VirtualStream) -> None:
        net.cut("b", "a")
        net.slow["a", "b"] = 1.0
        with trio.move_on_after(20) as waited:
            await net.knock("a", "b")
        assert waited.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(net.knock, "a", "b")
            await trio.sleep(3)
            net.heal()
        assert not net.slow

    tell(story)
