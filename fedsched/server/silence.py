"""Notices, while a call is under way, that its link leads nowhere any more.

A network that is lost says nothing: the connection stays, and whoever waits for an answer would wait until the kernel
or the link gives up, ten seconds or a minute later. A call that may be made elsewhere need not wait for that. When its
answer does not come soon, the peer is asked for a sign of life, which its link gives without asking anybody, however
long the call itself may take there; and once more every so often, as long as the call is under way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import trio

from fedsched.wire.errors import LinkClosed
from fedsched.wire.groups import open_plain_nursery
from fedsched.wire.link import Link

SOON_S: Final = 0.3
"""Most answers are there by then, and nothing is asked for."""
SIGN_S: Final = 1.0
"""For a sign of life: a round trip across an ocean takes a third of it, one packet lost and sent again included. With
three servers to try, a region that has just been lost is known to be so in four seconds; five are promised."""
LATE_S: Final = 0.25
"""When this process itself was that late, silence says nothing."""


@asynccontextmanager
async def unless_silent(link: Link, who: str, *, is_watched: bool = True) -> AsyncIterator[None]:
    """Around a call over this link: `LinkClosed` out of the block when its peer has fallen silent."""
    if not is_watched:
        yield
        return
    done = trio.Event()
    async with open_plain_nursery() as nursery:
        nursery.start_soon(_watch, link, nursery.cancel_scope)
        yield
        done.set()
        nursery.cancel_scope.cancel("answered")
    if not done.is_set():  # what the call itself ends with at the same moment counts more, and is not in company
        raise LinkClosed(f"{who} fell silent")


async def _watch(link: Link, asking: trio.CancelScope) -> None:
    await trio.sleep(SOON_S)
    while True:
        asked = trio.current_time()
        link.ask_sign_of_life()
        await trio.sleep(SIGN_S)
        took_s = trio.current_time() - asked
        if link.silent_s > took_s and took_s < SIGN_S + LATE_S:
            asking.cancel("silent")
            return
