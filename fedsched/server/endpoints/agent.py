"""The agent one is talking to: who it is, whether it is well, its figures. Answered at once, also without a quorum."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedsched import __version__
from fedsched.model.errors import BadRequest
from fedsched.rpc.method import Empty, Method
from fedsched.rpc.methods import agent as methods
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.desk import Desk
from fedsched.server.served_types import ServedTypes
from fedsched.telemetry.metrics_text import json_summary, prometheus_text


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """What an agent tells about itself."""

    name: str
    region: str
    datacenter: str
    config: Mapping[str, Any] = field(default_factory=dict)
    client_stats: Callable[[], Mapping[str, str]] = dict
    """What the client half says of itself; nothing if there is none."""


class AgentEndpoint:
    """Answers `Agent.*`."""

    def __init__(self, desk: Desk, facts: AgentFacts, served: ServedTypes) -> None:
        self._desk = desk
        self._facts = facts
        self._served = served

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.AGENT_SELF: self.itself,
            methods.AGENT_HEALTH: self.health,
            methods.AGENT_METRICS: self.metrics,
            methods.AGENT_SCHEDULERS: self.schedulers,
        }

    async def itself(self, request: Empty, context: CallContext) -> methods.AgentSelfReply:
        raft = self._desk.raft
        status = raft.core.status()
        client = self._facts.client_stats()
        return methods.AgentSelfReply(
            name=self._facts.name,
            region=self._facts.region,
            datacenter=self._facts.datacenter,
            version=__version__,
            config=dict(self._facts.config),
            stats={
                "raft": {
                    "state": status.role,
                    "term": str(status.term),
                    "commit_index": str(status.commit),
                    "applied_index": str(raft.applier.applied),
                    "last_log_index": str(status.last),
                    "last_snapshot_index": str(status.snapshot_index),
                    "num_peers": str(max(0, len(status.config.voters) - 1)),
                },
                "fedsched": {
                    "server": "true",
                    "leader": str(raft.is_leader).lower(),
                    "leader_id": status.leader or "",
                    "known_regions": "1",
                    "state_index": str(self._desk.machine.store.index),
                },
                **({"client": dict(client)} if client else {}),
            },
        )

    async def health(self, request: Empty, context: CallContext) -> methods.AgentHealthReply:
        """Well means: this server knows a leader. Answered from what is at hand, so it works when little else does."""
        has_leader = self._desk.raft.role.leader is not None
        return methods.AgentHealthReply(
            ok=has_leader, server_ok=has_leader, message="ok" if has_leader else "this region has no leader"
        )

    async def schedulers(
        self, request: methods.AgentSchedulersRequest, context: CallContext
    ) -> methods.AgentSchedulersReply:
        servers = await self._served.everywhere() if request.everywhere else [self._served.own]
        return methods.AgentSchedulersReply(servers=tuple(servers))

    async def metrics(self, request: methods.AgentMetricsRequest, context: CallContext) -> methods.AgentMetricsReply:
        match request.format:
            case "prometheus":
                body = prometheus_text(self._desk.metrics).encode()
                return methods.AgentMetricsReply(content_type="text/plain; version=0.0.4", body=body)
            case "json":
                body = json.dumps(json_summary(self._desk.metrics, self._desk.env.wall())).encode()
                return methods.AgentMetricsReply(content_type="application/json", body=body)
        raise BadRequest(f"metrics have no format {request.format!r}", hint="json or prometheus")
