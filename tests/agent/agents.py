"""Agents for tests: quick ones on free loopback ports, and callers that reach them as programs do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from fedsched.agent.agent import Agent
from fedsched.agent.config import AgentConfig, Ports, ServerJoin, ServerSettings
from fedsched.env.real import RealEnv
from fedsched.rpc.caller import LinkCaller
from fedsched.telemetry.log import Hub
from fedsched.wire.address import parse_address
from fedsched.wire.link import Link
from fedsched.wire.tls import TlsOptions
from fedsched.wire.websocket import connect_websocket

SCENARIO_S = 30.0


def a_config(directory: Path, name: str = "a1", *, expect: int = 1, join: tuple[str, ...] = (), **changes: Any) -> Any:
    """Settings of a server on any free ports, with a clock of Raft five times as fast."""
    server = ServerSettings(
        enabled=True,
        bootstrap_expect=expect,
        server_join=ServerJoin(retry_join=join, retry_interval_s=0.05),
        raft_multiplier=0.2,
        ballast_size_bytes=0,
        disk_soft_limit_bytes=0,
        num_schedulers=0,
    )
    config = AgentConfig(name=name, region="eu", data_dir=str(directory / name), ports=Ports(0, 0, 0), server=server)
    return replace(config, **changes)


def an_agent(config: AgentConfig, hub: Hub | None = None) -> Agent:
    return Agent(config, env=RealEnv(), log=(hub or Hub()).logger("agent", agent=config.name))


def run_agents(*agents: Agent, scenario: Callable[[], Awaitable[None]]) -> None:
    """Run agents until the scenario is over; each is then stopped in order."""

    async def main() -> None:
        with trio.fail_after(SCENARIO_S):
            async with trio.open_nursery() as nursery:
                for agent in agents:
                    await nursery.start(agent.run)
                await scenario()
                for agent in agents:
                    await agent.stop()

    trio.run(main)


@asynccontextmanager
async def connected(address: str, tls: TlsOptions | None = None) -> AsyncIterator[LinkCaller]:
    """A caller at the other end of a websocket."""
    context = tls.context() if tls else None
    async with trio.open_nursery() as nursery:
        carrier = await connect_websocket(nursery, parse_address(address), ssl_context=context)
        link = Link(carrier, is_opener=True)
        nursery.start_soon(link.run)
        await link.wait_ready()
        yield LinkCaller(link)
        link.close()
        nursery.cancel_scope.cancel("done")
