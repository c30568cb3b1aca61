"""How healthy the server set is."""

from __future__ import annotations

from fedsched.model.region import RegionHealth
from fedsched.rpc.method import Empty, Method, RunsAt, declare

AUTOPILOT_HEALTH = declare(
    Method(
        "Autopilot.Health",
        Empty,
        RegionHealth,
        RunsAt.LEADER,
        needs="operator:read",
        doc="Which servers are healthy, and how many may fail.",
    )
)
