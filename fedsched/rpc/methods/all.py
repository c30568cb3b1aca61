"""Every module that declares methods; imported when somebody asks for the whole table."""

from __future__ import annotations

from fedsched.rpc.methods import (
    agent,
    alloc,
    alloc_access,
    autopilot,
    deployment,
    evaluation,
    job,
    job_extras,
    node,
    node_calls,
    operator,
    places,
    raft,
    scheduling,
    server,
    service,
    snapshot,
    status,
    variable,
    why,
)

__all__ = [
    "agent",
    "alloc",
    "alloc_access",
    "autopilot",
    "deployment",
    "evaluation",
    "job",
    "job_extras",
    "node",
    "node_calls",
    "operator",
    "places",
    "raft",
    "scheduling",
    "server",
    "service",
    "snapshot",
    "status",
    "variable",
    "why",
]
