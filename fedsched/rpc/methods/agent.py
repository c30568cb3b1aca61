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


class ServerSchedulers(Record):
    """Which jobs one server's workers take."""

    id: str
    name: str = ""
    workers: Annotated[int, "Evaluations that it works on at once."] = 0
    enabled: Annotated[tuple[str, ...], "Job types that its workers take."] = ()
    idle: Annotated[tuple[str, ...], "Job types that it has schedulers for, and yet does not take."] = ()
    answered: Annotated[bool, "False for a server that could not be asked."] = True


class AgentSchedulersRequest(Record):
    everywhere: Annotated[bool, "Of all servers of the region, not only of the one that is asked."] = False


class AgentSchedulersReply(Record):
    servers: tuple[ServerSchedulers, ...] = ()


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
AGENT_SCHEDULERS = declare(
    Method(
        "Agent.Schedulers",
        AgentSchedulersRequest,
        AgentSchedulersReply,
        RunsAt.THIS_AGENT,
        needs="agent:read",
        doc="Which types of jobs the workers of this server take, or of all servers of the region.",
    )
)
