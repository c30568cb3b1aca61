"""The leader's office: everything that runs only while this server leads, started in order, ended as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from fedsched.raft.runner import Office


class LeaderService(Protocol):
    """One duty of a leader."""

    async def run(self, *, task_status: trio.TaskStatus[None] = ...) -> None:
        """Say `started` when ready, then work until cancelled."""


async def hold_office(office: Office, services: Sequence[LeaderService]) -> None:
    """Run the services until leadership is lost: the runner then cancels this whole scope."""
    async with trio.open_nursery() as nursery:
        for service in services:
            await nursery.start(service.run)
        await trio.sleep_forever()
