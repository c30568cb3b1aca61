"""Drives work that comes in pieces (see `scheduler.pieces`): between two of them everybody else gets a turn."""

from __future__ import annotations

from typing import TypeVar

import trio

from fedsched.scheduler.pieces import Pieces

T = TypeVar("T")


async def in_turns(work: Pieces[T]) -> T:
    """The answer. Work without a pause is done before anybody else gets a turn."""
    try:
        while True:
            try:
                next(work)
            except StopIteration as done:
                answer: T = done.value
                return answer
            await trio.lowlevel.checkpoint()
    finally:
        work.close()
