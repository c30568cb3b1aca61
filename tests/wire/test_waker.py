"""One bell, one waiter."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from fedsched.wire.waker import Waker


def test_a_ring_wakes_the_waiter_and_one_that_nobody_heard_is_remembered() -> None:
    async def main() -> None:
        waker = Waker()
        waker.ring()
        waker.ring()
        await waker.wait()
        with trio.move_on_after(0.01) as scope:
            await waker.wait()
        assert scope.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waker.wait)
            await trio.testing.wait_all_tasks_blocked()
            waker.ring()

    trio.run(main)


def test_two_waiters_are_a_mistake() -> None:
    async def main() -> None:
        waker = Waker()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waker.wait)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await waker.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)
