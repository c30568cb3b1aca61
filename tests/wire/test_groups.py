"""One failure comes out as itself, several as a group."""

from __future__ import annotations

import pytest
import trio

from fedsched.wire.groups import open_plain_nursery


async def fail(error: Exception) -> None:
    raise error


def test_one_failure_comes_out_as_itself() -> None:
    async def main() -> None:
        async with open_plain_nursery() as nursery:
            nursery.start_soon(fail, KeyError("one"))

    with pytest.raises(KeyError, match="one"):
        trio.run(main)


def test_several_failures_come_out_together() -> None:
    async def main() -> None:
        async with open_plain_nursery() as nursery:
            nursery.start_soon(fail, KeyError("one"))
            nursery.start_soon(fail, ValueError("two"))

    with pytest.raises(ExceptionGroup):
        trio.run(main)
