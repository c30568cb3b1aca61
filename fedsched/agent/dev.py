"""`fedsched dev`: every region of a directory in one process, each agent with its own data and real sockets.

Servers come first, then the clients of all regions. Clients end their tasks when this process ends, as those of
`fedsched agent -dev` do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedsched.agent.agent import Agent
from fedsched.agent.collecting import pause_briefly
from fedsched.agent.config import AgentConfig
from fedsched.agent.main import configure_log, run_until_signal
from fedsched.agent.region_file import RegionFile, configs_of
from fedsched.agent.tour import things_to_try
from fedsched.env.real import RealEnv
from fedsched.telemetry.log import get_logger


def run_dev(regions: Sequence[RegionFile], data_root: str) -> int:
    """Run all servers and clients of all regions until a signal."""
    configure_log(AgentConfig(log_level="warn"))
    pause_briefly()
    log = get_logger("agent")
    return run_until_signal(lambda: make_agents(regions, data_root), log, ready=_say_how_to_go_on)


def make_agents(regions: Sequence[RegionFile], data_root: str) -> list[Agent]:
    """One agent per server and client."""
    servers, clients = configs_of(regions, data_root)
    return [_agent(config) for config in servers] + [_agent(config, is_dev=True) for config in clients]


def _agent(config: AgentConfig, *, is_dev: bool = False) -> Agent:
    log = get_logger("agent", region=config.region, agent=config.name)
    return Agent(config, env=RealEnv(), log=log, is_dev=is_dev)


def _role(agent: Agent) -> str:
    return "server" if agent.config.server.enabled else "client"


def _say_how_to_go_on(agents: list[Agent]) -> None:
    lines = ["", "All agents run. Servers elect their leaders within about two seconds."]
    regions = list(dict.fromkeys(one.config.region for one in agents))
    for region in regions:
        own = [one for one in agents if one.config.region == region]
        lines += ["", f"Region {region}:", ""]
        lines += [f"  {one.config.name:16} {one.http_address}  {_role(one)}" for one in own]
    lines += [
        "",
        "In another terminal, in this directory:",
        "",
        f"  export FEDSCHED_ADDR={agents[0].http_address}",
        *(f"  {command}" for command in things_to_try(regions)),
        "",
        "Ctrl-C stops everything.",
        "",
    ]
    sys.stdout.write("\n".join(lines))
    sys.stdout.flush()
