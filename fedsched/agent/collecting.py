"""Garbage collection that never stops a server for long.

Python's own schedule looks at everything that lives now and then, and a server with thousands of clients holds a
million objects: that is a quarter of a second in which it answers nobody. Nearly all garbage here is freed by counting
references; what is left are small, young circles. So collections look at the young only, often and briefly, and what
has survived two of them is set aside (frozen). Once in a long while everything is looked at after all.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Mapping
from typing import Any, Final

import trio

from fedsched.telemetry.log import Logger

YOUNG: Final = 2_500
"""Objects made since the last look, those gone again not counted: less than a millisecond of looking. With fewer, more
is looked at that would soon have gone by itself: at 1,000 a burst of tasks cost the agent 5 % more."""
TURNS: Final = 2
"""After so many looks at the newest, the survivors are looked at once more and set aside."""
NEVER: Final = 1_000_000_000
TURN_S: Final = 0.0005
"""How long another thread (the log's, a snapshot's) may keep the event loop waiting: Python's own 5 ms add up."""
WHOLE_S: Final = 6 * 3600.0
"""Between two looks at everything."""


def pause_briefly() -> None:
    """Set this process to short collections and short turns of its threads. Calling it again changes nothing."""
    sys.setswitchinterval(TURN_S)
    gc.set_threshold(YOUNG, TURNS, NEVER)
    if _set_aside not in gc.callbacks:
        gc.callbacks.append(_set_aside)


def _set_aside(phase: str, info: Mapping[str, Any]) -> None:
    if phase == "stop" and info["generation"] == 1:
        gc.freeze()


async def collect_wholly(log: Logger, every_s: float = WHOLE_S) -> None:
    """Look at everything once in a long while, for the circles that grew old before they became garbage."""
    while True:
        await trio.sleep(every_s)
        began = time.perf_counter()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        log.info("collected_everything", garbage=found, took_s=round(time.perf_counter() - began, 3))
