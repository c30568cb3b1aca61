"""The agent one is talking to."""

from __future__ import annotations

from typing import Annotated, Any

from fedsched.model.declare import EMPTY, Record
from fedsched.rpc.method import Empty, Method, RunsAt, declare


class AgentSelfReply(Record):
    name: str = ""
    region: str = ""
    datacenter: str = ""
    version: str = ""
    config: Annotated[dict[str, Any], "The settings in force, secrets left out."] = EMPTY
    stats: Annotated[dict[str, dict[str, str]], "Figures by area."] = EMPTY


class AgentHealthReply(Record):
    ok: bool = False
    server_ok: Annotated[bool | None, "None on an agent that is no server."] = None
    client_ok: Annotated[bool | None, "None on an agent that is no client."] = None
    message: str = ""


class AgentMetricsRequest(Record):
    format: Annotated[str, "`json` or `prometheus`."] = "json"


class AgentMetricsReply(Record):
    content_type: str = ""
    body: bytes = b""


AGENT_SELF = declare(
    Method(
        "Agent.Self",
        Empty,
        AgentSelfReply,
        RunsAt.THIS_AGENT,
        needs="agent:read",
        doc="Who this agent is and how it is set up.",
    )
)
AGENT_HEALTH = declare(
    Method("Agent.Health", Empty, AgentHealthReply, RunsAt.THIS_AGENT, needs="", doc="Whether this agent is well.")
)
AGENT_METRICS = declare(
    Method(
        "Agent.Metrics",
        AgentMetricsRequest,
        AgentMetricsReply,
        RunsAt.THIS_AGENT,
        needs="agent:read",
        doc="This agent's figures, as JSON or in Prometheus' text form.",
    )
)
