"""Which replicated state a run carries: the small one, or the real store with job commands."""

from __future__ import annotations

from collections.abc import Callable

from fedsched.sim.machine import Command, RegisterMachine, SimMachine
from fedsched.sim.options import Options


def new_machine_of(options: Options) -> tuple[Callable[[], SimMachine], Callable[[Command], bytes]]:
    """How to make a server's state, and how a request becomes a log entry for it."""
    return RegisterMachine, Command.encode
