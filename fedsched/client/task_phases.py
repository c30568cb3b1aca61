"""Where a task's state machine can be, and how patient it is."""

from __future__ import annotations

from enum import Enum
from typing import Final

STOP_RETRIES_S: Final = (5.0, 20.0, 80.0, 120.0, 120.0)
"""Waits before a failed stop (or removal) is tried again."""
EXIT_PATIENCE_S: Final = 15.0
"""How long after a stop the exit itself may take to be told."""

HOOK_PATIENCE_S: Final = 60.0
"""How long a hook may hold up the end of its task or allocation, say for a server that does not answer."""


class Phase(Enum):
    WAITING = "waiting for its turn"
    CONTACT = "waiting for a server"
    PRESTART = "being prepared"
    STARTING = "being started"
    RECOVERING = "being looked for"
    RUNNING = "running"
    STOPPING = "being stopped"
    EXITED = "exited"
    DELAY = "waiting to be restarted"
    DEAD = "dead"


class Purpose(Enum):
    """Why a running task is stopped."""

    KILL = "kill"
    RESTART = "restart"
    REVIVE = "begin anew"


class Step(Enum):
    """How far a stop has come."""

    PREKILL = "prekill hooks"
    DELAY = "shutdown delay"
    DRIVER = "the driver stops it"
    RETRY = "waiting to ask the driver again"
    SETTLING = "stopped, exit not told yet"
