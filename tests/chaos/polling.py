"""Waiting for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(is_true: Callable[[], bool], within_s: float, seen: Callable[[], object]) -> None:
    """Look again and again; when it takes too long, fail with what was seen instead."""
    deadline = time.monotonic() + within_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {within_s:g} s; seen: {seen()}"
        time.sleep(0.05)
