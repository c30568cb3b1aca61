"""A call whose link leads nowhere any more is given up soon; one that merely takes its time is not. On virtual time."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from fedsched.server.silence import SIGN_S, SOON_S, unless_silent
from fedsched.wire import frames
from fedsched.wire.errors import LinkClosed
from fedsched.wire.link import open_link
from fedsched.wire.link_calls import ServedCall
from fedsched.wire.memory import memory_pair
from tests.wire.builders import GOOD_HELLO, next_frame


def test_a_call_may_take_its_time_as_long_as_signs_of_life_come() -> None:
    async def slowly(call: ServedCall) -> bytes:
        await trio.sleep(20)
        return call.payload

    async def main() -> None:
        left, right = memory_pair()
        async with open_link(right, is_opener=False, handler=slowly), open_link(left, is_opener=True) as link:
            await link.wait_ready()
            async with unless_silent(link, "us-1.us"):
                assert await link.call("M", b"hello") == b"hello"
            assert trio.current_time() == pytest.approx(20, abs=0.1)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize(("is_watched", "given_up_s"), [(True, SOON_S + SIGN_S), (False, 60)])
def test_a_call_to_a_silent_peer_is_given_up_soon_if_it_may_be_made_elsewhere(
    is_watched: bool, given_up_s: float
) -> None:
    async def main() -> None:
        left, right = memory_pair()
        async with open_link(left, is_opener=True) as link:
            await right.send([frames.encode(GOOD_HELLO)])
            await link.wait_ready()
            began = trio.current_time()
            with pytest.raises(Exception, match="silent") as given_up:
                async with unless_silent(link, "us-1.us", is_watched=is_watched):
                    await link.call("M", b"")
            assert trio.current_time() - began == pytest.approx(given_up_s, abs=0.1)
            if is_watched:
                assert isinstance(given_up.value, LinkClosed)
                assert link.closed is None, "what streams over it has its own patience"
                await next_frame(right, frames.Ping)

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_an_error_of_the_call_comes_out_as_itself() -> None:
    async def main() -> None:
        left, right = memory_pair()
        async with open_link(right, is_opener=False), open_link(left, is_opener=True) as link:
            await link.wait_ready()
            with pytest.raises(KeyError, match="mine"):
                async with unless_silent(link, "us-1.us"):
                    raise KeyError("mine")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_call_that_fails_just_when_its_link_is_found_silent_fails_with_one_error() -> None:
    async def main() -> None:
        left, right = memory_pair()
        async with open_link(left, is_opener=True) as link:
            await right.send([frames.encode(GOOD_HELLO)])
            await link.wait_ready()

            async def fail_late() -> None:
                with trio.CancelScope(shield=True):
                    await trio.sleep(SOON_S + SIGN_S + 0.1)
                raise KeyError("mine")

            with pytest.raises(KeyError, match="mine"):
                async with unless_silent(link, "us-1.us"):
                    await fail_late()

    trio.run(main, clock=MockClock(autojump_threshold=0))
