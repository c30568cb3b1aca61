"""Servers of tests start by the dozen in one process: what paces real ones is shortened, and nothing is frozen."""

from __future__ import annotations

import gc

import pytest

from fedsched.server import joining
from fedsched.server.leader import autopilot


@pytest.fixture(autouse=True)
def quick_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "ROUND_S", 0.02)
    monkeypatch.setattr(autopilot, "REVIEW_S", 0.05)
    monkeypatch.setattr(gc, "freeze", lambda: None)
