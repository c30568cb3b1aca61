"""Agents of tests start by the dozen in one process: what paces real ones is shortened, what they set is put back."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from fedsched.server import joining
from fedsched.telemetry.log import HUB


@pytest.fixture(autouse=True)
def quick_agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    thresholds, callbacks, turn_s = gc.get_threshold(), list(gc.callbacks), sys.getswitchinterval()
    monkeypatch.setattr(joining, "ROUND_S", 0.02)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    yield
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(turn_s)
    gc.callbacks[:] = callbacks
    HUB.configure(level="off", sink=None)
