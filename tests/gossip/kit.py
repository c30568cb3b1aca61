"""Builders for gossip tests: a member's claim, a core that knows some others, and short ways to look at effects."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TypeVar

from fedsched.gossip.asked import Effect, Packet, SendPacket
from fedsched.gossip.core import GossipCore
from fedsched.gossip.members import encode_tags
from fedsched.gossip.messages import VERSIONS_NOW, Address, Alive, Message, State
from fedsched.gossip.profiles import FED, Profile

T = TypeVar("T")


def addr(number: int) -> Address:
    return (f"10.0.0.{number}", 4648)


def alive(name: str, number: int, inc: int = 1, *, region: str = "r1", id: str = "") -> Alive:
    return Alive(inc, name, addr(number), encode_tags({"id": id or f"id-{name}", "region": region}), VERSIONS_NOW)


def a_core(*others: str, profile: Profile = FED, inc: int = 1, seed: int = 1) -> GossipCore:
    """The member "me" at address 1, which knows `others` at addresses 2, 3 and so on."""
    core = GossipCore(profile, alive("me", 1, inc), random.Random(seed), 0.0)
    for number, name in enumerate(others, start=2):
        core.handle(Packet(addr(number), (alive(name, number),)), 0.0)
    return core


def hear(core: GossipCore, *messages: Message, now: float = 0.0, source: int = 2) -> list[Effect]:
    return core.handle(Packet(addr(source), messages), now)


def live(core: GossipCore, until: float) -> list[Effect]:
    """Let the core do all that is due up to then, in time."""
    effects: list[Effect] = []
    while core.wake_at() <= until:
        effects += core.wake(core.wake_at())
    return effects


def of_kind(effects: Iterable[Effect], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def said(effects: Iterable[Effect], kind: type[T], to: Address | None = None) -> list[T]:
    """Messages of a kind in the packets sent (to somebody)."""
    packets = [packet for packet in of_kind(effects, SendPacket) if to is None or packet.to == to]
    return [message for packet in packets for message in packet.messages if isinstance(message, kind)]


def state(core: GossipCore, name: str) -> State | None:
    member = core.members.get(name)
    return member.state if member is not None else None
