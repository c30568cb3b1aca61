"""Runs an agent as a process: log, signals, exit code.

SIGTERM and SIGINT stop it in order, a leader handing over first; a second one stops it at once. SIGHUP reads the
settings again (see `reload`); one that cannot be read changes nothing. The exit code is 0 for a stop that was asked for
and 1 for anything else, and the last line on stderr then says why.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import trio

from fedsched.agent.agent import Agent
from fedsched.agent.collecting import collect_wholly, pause_briefly
from fedsched.agent.config import AgentConfig
from fedsched.env.real import RealEnv
from fedsched.model.errors import FedschedError
from fedsched.telemetry.log import HUB, Logger, Sink, configure, get_logger
from fedsched.telemetry.log_sinks import FileSink, json_line, stderr_sink, text_line

Load = Callable[[], AgentConfig]
"""Reads the settings anew, from wherever they came the first time."""


def run_agent(config: AgentConfig, *, is_dev: bool = False, load: Load | None = None) -> int:
    """Run one agent until it is told to stop; returns the exit code."""
    configure_log(config)
    pause_briefly()
    log = get_logger("agent", agent=config.name)
    return run_until_signal(lambda: [Agent(config, env=RealEnv(), log=log, is_dev=is_dev)], log, load=load)


def configure_log(config: AgentConfig) -> None:
    """Send events where the settings say."""
    sink: Sink
    if config.log_file:
        sink = FileSink(
            Path(config.log_file),
            json_line if config.log_json else text_line,
            rotate_bytes=config.log_rotate_bytes,
            rotated_files_max=config.log_rotate_max_files,
        )
    else:
        sink = stderr_sink(sys.stderr, as_json=config.log_json)
    configure(level=config.log_level, sink=sink, areas=config.log_levels)


def run_until_signal(
    make: Callable[[], list[Agent]],
    log: Logger,
    ready: Callable[[list[Agent]], None] | None = None,
    load: Load | None = None,
) -> int:
    """Run agents together until a signal; one that fails ends them all."""

    async def main() -> None:
        agents = make()
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                are_up = trio.Event()
                if load is not None:
                    await nursery.start(_reload_on_signal, agents, are_up, load, log)
                nursery.start_soon(collect_wholly, log)
                nursery.start_soon(_stop_on_signal, signals, agents, are_up, nursery.cancel_scope, log)
                async with trio.open_nursery() as starting:
                    for agent in agents:
                        starting.start_soon(nursery.start, agent.run)
                are_up.set()
                if ready is not None:
                    ready(agents)

    try:
        trio.run(main)
    except BaseExceptionGroup as group:
        return _report(group, log)
    except (FedschedError, KeyboardInterrupt) as error:
        return _report(BaseExceptionGroup("agent", [error]), log)
    return 0


async def _stop_on_signal(
    signals: object, agents: list[Agent], are_up: trio.Event, everything: trio.CancelScope, log: Logger
) -> None:
    """The first signal stops agents in order, if they are up; the second, or one before that, ends them as they are."""
    async with trio.open_nursery() as stopping:
        is_first = True
        async for number in signals:  # type: ignore[attr-defined]
            name = signal.Signals(number).name
            log.info("signal", signal=name)
            if not is_first or not are_up.is_set():
                everything.cancel("second signal" if are_up.is_set() else "told to stop while starting")
                return
            is_first = False
            stopping.start_soon(_stop_all, agents, number == signal.SIGTERM)
            stopping.start_soon(_end_when_stopped, agents, everything)


async def _reload_on_signal(
    agents: list[Agent],
    are_up: trio.Event,
    load: Load,
    log: Logger,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Read the settings again on SIGHUP. Several signals at once are one; wrong settings leave all as it is."""
    with trio.open_signal_receiver(signal.SIGHUP) as signals:
        task_status.started()
        await are_up.wait()
        async for _ in signals:
            try:
                config = await trio.to_thread.run_sync(load)
            except FedschedError as error:
                log.error("settings_not_reloaded", why=str(error))
                continue
            for agent in agents:
                agent.reload(config)
            HUB.set_levels(config.log_level, config.log_levels)


async def _stop_all(agents: list[Agent], is_term: bool) -> None:
    """Those that are only clients first: they have something to say to servers until the end."""
    for are_servers in (False, True):
        async with trio.open_nursery() as nursery:
            for agent in agents:
                if agent.config.server.enabled is are_servers:
                    leave = agent.config.leave_on_terminate if is_term else agent.config.leave_on_interrupt
                    nursery.start_soon(_stop, agent, leave)


async def _stop(agent: Agent, leave: bool) -> None:
    await agent.stop(leave=leave)


async def _end_when_stopped(agents: list[Agent], everything: trio.CancelScope) -> None:
    for agent in agents:
        await agent.wait_stopped()
    everything.cancel("all agents have stopped")


def _report(group: BaseExceptionGroup[BaseException], log: Logger) -> int:
    """Say why the agent ended; refusals and weather in one line, anything else with its story."""
    known, unknown = group.split(FedschedError)
    if unknown is not None:
        rest = unknown.split((KeyboardInterrupt, trio.Cancelled))[1]
        if rest is not None:
            log.exception("agent_crashed", rest)
            sys.stderr.write(f"fedsched agent: crashed: {_first(rest)!r}\n")
            return 1
    if known is not None:
        error = _first(known)
        log.error("agent_failed", why=str(error))
        sys.stderr.write(f"fedsched agent: {error}\n")
        return 1
    return 0


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
