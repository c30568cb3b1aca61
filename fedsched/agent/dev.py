"""`fedsched dev`: every region of a directory in one process, each server with its own data and real sockets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
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
    """Run all servers of all regions until a signal."""
    configure_log(AgentConfig(log_level="warn"))
    pause_briefly()
    log = get_logger("agent")
    return run_until_signal(lambda: make_agents(regions, data_root), log, ready=_say_how_to_go_on)


def make_agents(regions: Sequence[RegionFile], data_root: str) -> list[Agent]:
    """One agent per server. Ports that the files leave open are chosen here, so that servers can name each other."""
    agents = []
    for region in regions:
        chosen = with_ports_chosen(region)
        for server in chosen.servers:
            config = chosen.agent_config(server, Path(data_root))
            log = get_logger("agent", region=region.name, agent=server.name)
            agents.append(Agent(config, env=RealEnv(), log=log))
    return agents


def with_ports_chosen(region: RegionFile) -> RegionFile:
    """The region with a free port wherever its file names none."""
    spare = iter(free_ports(3 * len(region.servers), region.bind_addr))

    def filled(ports: Ports) -> Ports:
        return Ports(http=ports.http or next(spare), rpc=ports.rpc or next(spare), serf=ports.serf or next(spare))

    return replace(region, servers=tuple(replace(one, ports=filled(one.ports)) for one in region.servers))


def _say_how_to_go_on(agents: list[Agent]) -> None:
    lines = ["", "All servers run. They elect their leaders within about two seconds.", ""]
    lines += [f"  {agent.config.region:12} {agent.config.name:16} {agent.http_address}" for agent in agents]
    first = agents[0].http_address
    lines += [
        "",
        "In another terminal:",
        "",
        f"  export FEDSCHED_ADDR={first}",
        "  fedsched server members",
        "  fedsched job run fixtures/jobs/hello.json",
        "",
        "Ctrl-C stops everything.",
        "",
    ]
    sys.stdout.write("\n".join(lines))
    sys.stdout.flush()
