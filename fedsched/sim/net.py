"""The network between servers: one queue per direction of each pair, with everything a bad day may bring.

Drop, delay, reorder and duplicate hit single messages. A link can be cut in one direction or in both, for one pair or
for a whole side; clogged, so that it takes everything and delivers it in one burst later; or reset in mid-stream, so
that only a prefix of what was under way arrives. In part of the seeds every message passes through the real wire codec.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

from fedsched.raft.messages import Message
from fedsched.raft.wire import decode_message, encode_message
from fedsched.sim.options import Options
from fedsched.sim.trace import describe
from fedsched.sim.world import Event, Owner, World

CLUSTER_ID = "sim"
CLOGGED_MAX = 256
"""A clogged link holds this much and loses what comes after, as a full socket buffer would."""


class Receiver(Owner, Protocol):
    def receive(self, message: Message) -> None: ...


class Link:
    """One direction between two servers."""

    __slots__ = ("clogged", "cuts", "flying", "last_at", "rng")

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.cuts = 0
        """How many faults hold it cut at the moment."""
        self.clogged: list[Message] | None = None
        self.flying: deque[Event] = deque()
        self.last_at = 0


class Network:
    """All links; messages go in by `send` and come out at the receiver's `receive`."""

    def __init__(self, world: World, options: Options, find: Callable[[str], Receiver | None]) -> None:
        self._world = world
        self._find = find
        self._links: dict[tuple[str, str], Link] = {}
        self._latency_us = options.latency_us
        self._jitter_us = options.jitter_us
        self._far_us = options.election_us
        self._drop = options.drop if options.has("drop") else 0.0
        self._duplicate = options.duplicate if options.has("duplicate") else 0.0
        self._reorder = options.reorder if options.has("reorder") else 0.0
        self._far_delay = options.far_delay if options.has("delay") else 0.0
        self._uses_codec = options.has("codec")
        self._heals = 0

    def link(self, sender: str, to: str) -> Link:
        link = self._links.get((sender, to))
        if link is None:
            link = self._links[sender, to] = Link(self._world.stream(f"network/{sender}>{to}"))
        return link

    def send(self, message: Message) -> None:
        """Put one message on its link."""
        link = self.link(message.sender, message.to)
        if link.clogged is not None:
            if len(link.clogged) < CLOGGED_MAX:
                link.clogged.append(message)
            return
        if link.cuts:
            return
        rng = link.rng
        if self._drop and rng.random() < self._drop:
            return
        self._fly(link, message, rng)
        if self._duplicate and rng.random() < self._duplicate:
            self._fly(link, message, rng)

    def _fly(self, link: Link, message: Message, rng: random.Random) -> None:
        receiver = self._find(message.to)
        if receiver is None:
            return  # nobody of that name (any more)
        delay_us = self._latency_us + int(rng.random() * self._jitter_us)
        if self._far_delay and rng.random() < self._far_delay:
            delay_us += int(rng.random() * self._far_us)
        at = self._world.now + delay_us
        if self._reorder and rng.random() < self._reorder:
            pass  # this one may overtake or be overtaken
        else:
            at = link.last_at = max(at, link.last_at + 1)
        detail = describe(message)
        flying = link.flying
        while flying and flying[0].is_off:
            flying.popleft()
        flying.append(
            self._world.after(
                at - self._world.now, receiver, "message", self._arrive, receiver, message, detail=detail, outlives=True
            )
        )

    def _arrive(self, receiver: Receiver, message: Message) -> None:
        if self._uses_codec:
            cluster_id, message = decode_message(encode_message(message, CLUSTER_ID))
            assert cluster_id == CLUSTER_ID
        receiver.receive(message)

    # --- faults -------------------------------------------------------------------------------------------------------

    def cut(self, sender: str, to: str, for_us: int | None = None) -> None:
        """Nothing more gets onto this link, for a time or until `heal`; what is under way still arrives."""
        self.link(sender, to).cuts += 1
        if for_us is not None:
            self._world.after(for_us, None, "mend", self._mend, sender, to, self._heals, detail=f"{sender}>{to}")

    def _mend(self, sender: str, to: str, heals: int) -> None:
        if heals == self._heals:
            self.link(sender, to).cuts -= 1

    def reset(self, sender: str, to: str, survivors: int) -> int:
        """Break the stream: of what is under way only the first `survivors` messages arrive; returns how many died."""
        flying = [event for event in self.link(sender, to).flying if not event.is_off]
        for event in flying[survivors:]:
            event.is_off = True
        return len(flying[survivors:])

    def clog(self, sender: str, to: str) -> None:
        link = self.link(sender, to)
        if link.clogged is None:
            link.clogged = []

    def unclog(self, sender: str, to: str) -> None:
        """Let everything that gathered through in one burst."""
        link = self.link(sender, to)
        waiting, link.clogged = link.clogged, None
        for message in waiting or ():
            self.send(message)

    def is_open(self, sender: str, to: str) -> bool:
        link = self.link(sender, to)
        return not link.cuts and link.clogged is None

    def heal(self) -> None:
        """End every network fault for good."""
        self._heals += 1
        self._drop = self._duplicate = self._reorder = self._far_delay = 0.0
        for sender, to in sorted(self._links):
            link = self.link(sender, to)
            self.reset(sender, to, survivors=0)  # what hangs in a bad link is lost with the old connection
            link.last_at = link.cuts = 0
            self.unclog(sender, to)
