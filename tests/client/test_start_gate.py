"""So many allocations are prepared at a time, and a slow one keeps nobody out for long."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from fedsched.client.start_gate import StartGate


def at_gate(story: Callable[[StartGate, list[str], trio.Nursery], Awaitable[None]]) -> None:
    async def main() -> None:
        gate = StartGate(at_once=2, patience_s=5.0)
        inside: list[str] = []
        async with trio.open_nursery() as nursery:
            for name in "abcd":
                nursery.start_soon(come, gate, inside, name)
                await wait_all_tasks_blocked()
            await story(gate, inside, nursery)
            nursery.cancel_scope.cancel("done")

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def come(gate: StartGate, inside: list[str], name: str) -> None:
    await gate.enter(name)
    inside.append(name)


def test_whoever_comes_first_is_first_and_the_others_wait() -> None:
    async def story(gate: StartGate, inside: list[str], _: trio.Nursery) -> None:
        assert inside == ["a", "b"]
        gate.leave("b")
        await wait_all_tasks_blocked()
        assert inside == ["a", "b", "c"]
        gate.leave("b")  # it left already: nobody else comes in for that
        await wait_all_tasks_blocked()
        assert inside == ["a", "b", "c"]

    at_gate(story)


def test_one_that_takes_long_no_longer_counts() -> None:
    async def story(gate: StartGate, inside: list[str], _: trio.Nursery) -> None:
        await trio.sleep(4.9)
        assert inside == ["a", "b"]
        await trio.sleep(0.2)
        assert inside == ["a", "b", "c", "d"]

    at_gate(story)


def test_one_that_is_called_off_while_it_waits_lets_the_next_one_in() -> None:
    async def story(gate: StartGate, inside: list[str], nursery: trio.Nursery) -> None:
        gate.leave("a")
        await wait_all_tasks_blocked()
        with trio.move_on_after(1) as scope:
            await come(gate, inside, "e")
        assert scope.cancelled_caught
        gate.leave("b")
        await wait_all_tasks_blocked()
        assert inside == ["a", "b", "c", "d"]

    at_gate(story)
