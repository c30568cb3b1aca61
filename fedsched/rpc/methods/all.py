"""Every module that declares methods; imported when somebody asks for the whole table."""

from __future__ import annotations

from fedsched.rpc.methods import (
    agent,
    alloc,
    autopilot,
    deployment,
    evaluation,
    job,
    job_extras,
    node,
    operator,
    places,
    raft,
    scheduling,
    server,
    snapshot,
    status,
    why,
)

__all__ = [
    "agent",
    "alloc",
    "autopilot",
    "deployment",
    "evaluation",
    "job",
    "job_extras",
    "node",
    "operator",
    "places",
    "raft",
    "scheduling",
    "server",
    "snapshot",
    "status",
    "why",
]
