"""`fedsched dev`: every region of a directory in one process, each agent with its own data and real sockets.

Servers come first, then the clients of all regions. Clients end their tasks when this process ends, as those of
`fedsched agent -dev` do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from fedsched.agent.agent import Agent
from fedsched.agent.collecting import pause_briefly
from fedsched.agent.config import AgentConfig, Ports
from fedsched.agent.main import configure_log, run_until_signal
from fedsched.agent.region_file import RegionFile
from fedsched.env.ports import free_ports
from fedsched.env.real import RealEnv
from fedsched.telemetry.log import get_logger


def run_dev(regions: Sequence[RegionFile], data_root: str) -> int:
    """Run all servers and clients of all regions until a signal."""
    configure_log(AgentConfig(log_level="warn"))
    pause_briefly()
    log = get_logger("agent")
    return run_until_signal(lambda: make_agents(regions, data_root), log, ready=_say_how_to_go_on)


def make_agents(regions: Sequence[RegionFile], data_root: str) -> list[Agent]:
    """One agent per server and client. Ports that the files leave open are chosen here, so that agents can name each
    other."""
    chosen = [with_ports_chosen(region) for region in regions]
    wan = tuple(f"{region.bind_addr}:{region.servers[0].ports.serf}" for region in chosen)
    servers = [region.agent_config(server, Path(data_root), wan=wan) for region in chosen for server in region.servers]
    numbers = count()
    clients = [
        region.client_config(client, Path(data_root), next(numbers)) for region in chosen for client in region.clients
    ]
    return [_agent(config) for config in servers] + [_agent(config, is_dev=True) for config in clients]


def _agent(config: AgentConfig, *, is_dev: bool = False) -> Agent:
    log = get_logger("agent", region=config.region, agent=config.name)
    return Agent(config, env=RealEnv(), log=log, is_dev=is_dev)


def with_ports_chosen(region: RegionFile) -> RegionFile:
    """The region with a free port wherever its file names none."""
    spare = iter(free_ports(3 * len(region.servers) + len(region.clients), region.bind_addr))

    def filled(ports: Ports) -> Ports:
        return Ports(http=ports.http or next(spare), rpc=ports.rpc or next(spare), serf=ports.serf or next(spare))

    return replace(
        region,
        servers=tuple(replace(one, ports=filled(one.ports)) for one in region.servers),
        clients=tuple(replace(one, http=one.http or next(spare)) for one in region.clients),
    )


def _role(agent: Agent) -> str:
    return "server" if agent.config.server.enabled else "client"


def _say_how_to_go_on(agents: list[Agent]) -> None:
    lines = ["", "All agents run. Servers elect their leaders within about two seconds.", ""]
    lines += [f"  {one.config.region:12} {one.config.name:16} {one.http_address}  {_role(one)}" for one in agents]
    first = agents[0].http_address
    lines += [
        "",
        "In another terminal:",
        "",
        f"  export FEDSCHED_ADDR={first}",
        "  fedsched server members",
        "  fedsched node status",
        "  fedsched job run fixtures/jobs/rolling-web.hcl",
        "",
        "Ctrl-C stops everything.",
        "",
    ]
    sys.stdout.write("\n".join(lines))
    sys.stdout.flush()
