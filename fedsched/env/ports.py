"""Ports that nobody listens on just now."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress
from random import SystemRandom
from typing import Final

PORTS: Final = range(10_000, 32_000)
"""Below those that systems hand out by themselves: while a server is down, no passing connection can take its port."""


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """So many different ports that were free a moment ago: good for demos, benches and tests."""
    chance = SystemRandom()
    with ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            each = stack.enter_context(socket.socket())
            with suppress(OSError):
                each.bind((host, chance.choice(PORTS)))
                ports.append(each.getsockname()[1])
        return ports
