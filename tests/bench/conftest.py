"""What paces nodes and the servers that watch them, made short for tests that ask for it."""

from __future__ import annotations

import pytest

from fedsched.bench import simulated_node, simulated_nodes
from fedsched.model import policy_problems
from fedsched.server.leader import deployments_core, heartbeats
from fedsched.server.leader.heartbeats_core import HeartbeatSettings


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers miss a node after half a second, and nodes are as quick."""
    quick = HeartbeatSettings(ttl_min_s=0.2, grace_s=0.3, rate_max=10_000.0, failover_ttl_s=1.0)
    monkeypatch.setattr(heartbeats, "HeartbeatSettings", lambda: quick)
    monkeypatch.setattr(simulated_node, "SOON_S", 0.05)
    monkeypatch.setattr(simulated_node, "PACE_S", 0.02)
    monkeypatch.setattr(simulated_nodes, "LOOK_S", 0.05)
    monkeypatch.setattr(simulated_nodes, "TURN_S", 0.01)
    monkeypatch.setattr(simulated_nodes, "AGAIN_S", 0.05)
    monkeypatch.setattr(policy_problems, "MIN_RESCHEDULE_DELAY_S", 0.0)
    monkeypatch.setattr(deployments_core, "GATHER_NS", 10_000_000)
