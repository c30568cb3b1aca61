"""Two link cores back to back, and shorthand for what tests feed them."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import trio

from fedsched.wire import frames
from fedsched.wire.carrier import Carrier
from fedsched.wire.effects import Effect, Greeted
from fedsched.wire.frames import Frame
from fedsched.wire.limits import ByteBudget, LinkLimits
from fedsched.wire.link_core import LinkCore

GOOD_HELLO = frames.Hello(1, 1, 1024 * 1024, 256)


def message(frame: Frame) -> bytes:
    return b"".join(frames.encode(frame))


def a_core(
    *,
    is_opener: bool = False,
    limits: LinkLimits | None = None,
    budget: ByteBudget | None = None,
    hello: frames.Hello = GOOD_HELLO,
    admitted: bool = True,
) -> LinkCore:
    """A core with an empty outbox, greeted and admitted unless the test wants to do that itself."""
    core = LinkCore(is_opener=is_opener, now=0.0, limits=limits, budget=budget)
    core.take_output()
    if admitted:
        effects = core.receive(message(hello), 0.0)
        assert effects == [Greeted(hello)]
        core.admit()
    return core


def sent(core: LinkCore) -> list[Frame]:
    """The frames the core wants written, as the other end would read them."""
    return [frames.decode(b"".join(parts)) for parts in core.take_output()]


class Pair:
    """`a` opened the link to `b`; messages wait in two queues until `pump` delivers them."""

    def __init__(self, a_limits: LinkLimits | None = None, b_limits: LinkLimits | None = None) -> None:
        self.now = 0.0
        self.a = LinkCore(is_opener=True, now=0.0, limits=a_limits, greeting=b"I am a")
        self.b = LinkCore(is_opener=False, now=0.0, limits=b_limits)
        self.seen: dict[LinkCore, list[Effect]] = {self.a: [], self.b: []}

    def pump(self) -> None:
        """Deliver until nobody has anything left to say."""
        while self.a.has_output or self.b.has_output:
            self._carry(self.a, self.b)
            self._carry(self.b, self.a)

    def take(self, core: LinkCore) -> list[Effect]:
        """What has happened at this end since the last look, greetings aside."""
        self.pump()
        seen, self.seen[core] = self.seen[core], []
        return [effect for effect in seen if not isinstance(effect, Greeted)]

    def _carry(self, source: LinkCore, target: LinkCore) -> None:
        for parts in source.take_output():
            effects = target.receive(b"".join(parts), self.now)
            self.seen[target] += effects
            if any(isinstance(effect, Greeted) for effect in effects):
                target.admit()


NEVER = math.inf


F = TypeVar("F")


async def next_frame(carrier: Carrier, kind: type[F]) -> F:
    """Read on until a frame of this kind comes."""
    while True:
        for data in await carrier.receive(10**7):
            frame = frames.decode(data)
            if isinstance(frame, kind):
                return frame


async def listen(nursery: trio.Nursery, serve: Callable[[trio.SocketStream], Awaitable[object]]) -> int:
    """Serve connections on a free loopback port until the nursery is done; gives the port."""
    listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
    return int(listeners[0].socket.getsockname()[1])
