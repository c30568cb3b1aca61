"""The verbs that start things: an agent, whole regions, a simulation, a measurement."""

from __future__ import annotations

import dataclasses
import tempfile
from contextlib import nullcontext

from fedsched.agent.config import AgentConfig
from fedsched.agent.config_load import Loaded, flags_of_settings, load_config
from fedsched.agent.settings import Kind, Setting
from fedsched.bench.frame import BENCHES, run_bench
from fedsched.model.errors import BadRequest
from fedsched.model.units import parse_duration
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, Verbs

VERBS = Verbs()

_FLAG_KINDS = {Kind.BOOL: bool, Kind.TEXTS: list}


def _flag_of(flag: str, one: Setting) -> Flag:
    return Flag(flag, one.doc, _FLAG_KINDS.get(one.kind, str), value=one.key)


AGENT_FLAGS = (
    Flag("config", "TOML file, or directory of them; may be repeated, later ones win", list, value="path"),
    Flag("dev", "a lone server on loopback that forgets everything when it stops", bool),
    Flag("set", "any setting, such as -set server.raft_multiplier=2; may be repeated", list, value="key=value"),
    *(_flag_of(flag, one) for flag, (_, one) in flags_of_settings().items()),
)


@VERBS.verb(
    "agent",
    "run an agent: a server of a region, a client that runs tasks, or both",
    doc="Runs an agent until it is told to stop (SIGTERM, SIGINT). Settings come from TOML files, then FEDSCHED_"
    " variables, then flags; an unknown or wrong one is refused. docs/reference/config.md lists them all. SIGHUP reads"
    " them again: log levels, the node's metadata and host volumes change at once, the rest with the next start.",
    flags=AGENT_FLAGS,
    is_remote=False,
)
def agent(terminal: Terminal, given: Given) -> int:
    def load() -> Loaded:
        return load_config(
            paths=given["config"],
            environ=terminal.environ,
            flags={name: _texts(given[name]) for name in _said_flags(given)},
            is_dev=given["dev"],
        )

    loaded = load()
    for warning in loaded.warnings:
        terminal.warn(f"Warning: {warning}")
    from fedsched.agent.main import run_agent  # pulls in trio and every part of the agent

    config = loaded.config
    forgetful = tempfile.TemporaryDirectory(prefix="fedsched-dev-") if not config.data_dir else nullcontext("")
    with forgetful as directory:

        def settings(config: AgentConfig) -> AgentConfig:
            return config if config.data_dir else dataclasses.replace(config, data_dir=directory)

        return run_agent(settings(config), is_dev=loaded.is_dev, load=lambda: settings(load().config))


@VERBS.verb(
    "dev",
    "boot every region of a directory in one process",
    doc="Boots every region described in a directory of region files, each with all its servers, in one process and on"
    " real sockets. Without -data-dir everything is forgotten when it stops.",
    flags=(
        Flag("regions", "directory of region files", default="regions", value="dir"),
        Flag("data-dir", "where to keep data", value="dir"),
        Flag("any-ports", "listen on free ports instead of those in the files", bool),
    ),
    is_remote=False,
)
def dev(terminal: Terminal, given: Given) -> int:
    from fedsched.agent.region_file import read_regions

    regions = read_regions(given["regions"])
    if given["any-ports"]:
        regions = tuple(region.on_any_ports() for region in regions)
    from fedsched.agent.dev import run_dev

    forgetful = nullcontext("") if given["data-dir"] else tempfile.TemporaryDirectory(prefix="fedsched-dev-")
    with forgetful as directory:
        return run_dev(regions, given["data-dir"] or directory)


@VERBS.verb(
    "bench",
    "measure this machine and this code",
    doc="Measures one part of fedsched and prints figures, the machine they were taken on, and the time spent."
    " There are: " + ", ".join(f"{name} ({text})" for name, (_, text) in sorted(BENCHES.items())) + ".",
    flags=(
        JSON,
        Flag("seed", "where all chance comes from", int, default=0, value="number"),
        Flag("duration", "how long to measure, such as 20s", value="time"),
        Flag("count", "how much to measure, instead of how long", int, value="number"),
        Flag("dir", "directory on the disk to measure; the system's temporary one by default", value="dir"),
        Flag("fail", "of simulated nodes: which fall silent now and then, such as 10% or 3", value="nodes"),
        Flag("every", "how often they do; those of the last time return, 30s by default", value="time"),
    ),
    arguments=(Argument("name", "what to measure"),),
    is_remote=False,
)
def bench(terminal: Terminal, given: Given) -> int:
    return run_bench(
        given["name"],
        seed=given["seed"],
        duration_s=_seconds(given["duration"]),
        count=given["count"],
        as_json=given["json"],
        directory=given["dir"],
        fail=given["fail"] or "",
        every_s=_seconds(given["every"]),
        out=terminal.out,
        err=terminal.err,
    )


@VERBS.verb(
    "demo",
    "a tour of two federated regions, one of which loses its leader, before your eyes",
    doc="Boots the regions that come with fedsched, every agent a process of its own, on free ports of loopback; gives"
    " one of them a job for the other, rolls one out in both, kills a leader, and shows how all goes on. It takes less"
    " than a minute.",
    flags=(Flag("regions", "directory of region files", default="regions", value="dir"),),
    is_remote=False,
)
def demo(terminal: Terminal, given: Given) -> int:
    from fedsched.cli.demo import main

    return main(given["regions"])


@VERBS.verb("sim", "run, replay and shrink simulated worlds", is_remote=False, is_raw=True)
def sim(terminal: Terminal, given: Given) -> int:
    from fedsched.sim.main import main

    return main(given["words"]) or OK


def _said_flags(given: Given) -> list[str]:
    own = {"set", *flags_of_settings()}
    return [name for name in given if name in own and given.was_said(name)]


def _texts(value: object) -> list[str]:
    if isinstance(value, list):
        return value
    return [str(value).lower() if isinstance(value, bool) else str(value)]


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text) if text.replace(".", "", 1).isdecimal() else parse_duration(text)
    except BadRequest as error:
        raise BadUsage(f"-duration {text!r} is no length of time", hint="write it as 20s or 1m30s") from error
    if seconds <= 0:
        raise BadUsage(f"-duration {text!r} is not positive")
    return seconds
