"""Small stand-ins for tests of single parts of the simulator."""

from __future__ import annotations

from fedsched.raft.messages import Message
from fedsched.sim.world import Event


class FakeOwner:
    """A process that only counts what reaches it."""

    def __init__(self, owner_id: str = "a") -> None:
        self.id = owner_id
        self.incarnation = 0
        self.is_paused = False
        self.parked: list[Event] = []
        self.ticks = 0
        self.received: list[Message] = []

    def tick(self) -> None:
        self.ticks += 1

    def receive(self, message: Message) -> None:
        self.received.append(message)
