"""Work in pieces does not hold up the event loop."""

from __future__ import annotations

import pytest
import trio

from fedsched.scheduler.pieces import Pieces
from fedsched.server.pieces import in_turns


def test_between_two_pieces_everybody_else_gets_a_turn() -> None:
    turns: list[str] = []

    def work() -> Pieces[int]:
        for number in range(4):
            turns.append(f"piece {number}")
            yield
        return 9

    async def other() -> None:
        for number in range(4):
            turns.append(f"turn {number}")
            await trio.lowlevel.checkpoint()

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            assert await in_turns(work()) == 9

    trio.run(story)
    pieces = turns[turns.index("piece 0") : turns.index("piece 3")]
    assert sum(turn.startswith("turn") for turn in pieces) >= 2  # one per round, in any order


def test_work_without_a_pause_is_done_before_anybody_else() -> None:
    turns: list[str] = []

    def work() -> Pieces[str]:
        turns.append("work")
        return "done"
        yield

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
            assert await in_turns(work()) == "done"
            turns.append("answer")

    async def other() -> None:
        turns.append("other")

    trio.run(story)
    assert turns == ["work", "answer", "other"]


def test_work_that_nobody_waits_for_any_more_is_put_away() -> None:
    closed: list[bool] = []

    def work() -> Pieces[int]:
        try:
            while True:
                yield
        finally:
            closed.append(True)

    async def story() -> None:
        with trio.move_on_after(0):
            await in_turns(work())

    trio.run(story)
    assert closed == [True]


def test_what_goes_wrong_in_a_piece_is_told() -> None:
    def work() -> Pieces[int]:
        yield
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        trio.run(in_turns, work())
