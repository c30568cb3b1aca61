"""Every module that declares methods; imported when somebody asks for the whole table."""

from __future__ import annotations

from fedsched.rpc.methods import agent, autopilot, evaluation, job, raft, server, snapshot, status

__all__ = ["agent", "autopilot", "evaluation", "job", "raft", "server", "snapshot", "status"]
