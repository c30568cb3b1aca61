"""Agents of tests start by the dozen in one process: what paces real ones is shortened, what they set is put back."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from fedsched.server import joining
from fedsched.telemetry.log import HUB


@pytest.fixture(autouse=True)
def quick_agents(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    thresholds, callbacks = gc.get_threshold(), list(gc.callbacks)
    monkeypatch.setattr(joining, "ROUND_S", 0.02)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
    HUB.configure(level="off", sink=None)
