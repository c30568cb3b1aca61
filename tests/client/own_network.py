"""Runs a scenario in a process with network and mounts of its own: nothing that it makes is seen by the host.

`in_own_network(scenario, place)` in a test; the scenario is a function of its module, because another process runs it.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from fedsched.client.network.offer import find_offer
from fedsched.client.network.on_host import namespaces
from fedsched.client.network.plan import BRIDGE
from fedsched.client.network.tools import ToolFailed, find_tool, run_tool
from fedsched.drivers.isolation import kernel

LIMIT_S = 60.0
CANNOT = 77
CGROUP = f"fedsched-net-{os.getpid()}"
ROOT = Path(__file__).parents[2]
Scenario = Callable[[Path], Awaitable[None]]


class NotHere(Exception):
    """This host cannot do what the scenario needs; the words say why."""


def in_own_network(scenario: Scenario, place: Path) -> None:
    """Run it there; skips with the reason where this host cannot."""
    if os.geteuid():
        pytest.skip("only root can make network namespaces")
    if not find_tool("ip"):
        pytest.skip("there is no `ip` on this host")
    argv = [sys.executable, "-m", __name__, scenario.__module__, scenario.__name__, str(place)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=2 * LIMIT_S, check=False)
    if done.returncode == CANNOT:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr


def left_over() -> list[str]:
    """Namespaces, links and rules that a scenario has not taken away."""
    links = [name for _, name in socket.if_nameindex() if name.startswith("fs")]
    rules = [line for line in run_tool("iptables-save").splitlines() if "FS-" in line] if find_tool("iptables") else []
    if find_tool("nft"):
        rules += [line for line in run_tool("nft", "list", "tables").splitlines() if "fedsched" in line]
    return [*namespaces(), *links, *rules]


def _enter() -> None:
    kernel.unshare(kernel.CLONE_NEWNET | kernel.CLONE_NEWNS)
    kernel.make_mounts_private()
    fresh = kernel.new_filesystem("tmpfs", {"mode": "755"}, kernel.NOSUID | kernel.NODEV)
    target = os.open("/run", os.O_PATH | os.O_DIRECTORY)
    kernel.attach(fresh, target, "/run")
    os.chdir(ROOT)  # of the new mounts
    run_tool("ip", "link", "set", "lo", "up")


def main(module: str, name: str, place: str) -> int:
    try:
        _enter()
    except (kernel.IsolationFailed, ToolFailed) as error:
        print(error)
        return CANNOT
    scenario: Scenario = getattr(importlib.import_module(module), name)

    async def within() -> None:
        with trio.fail_after(LIMIT_S):
            await scenario(Path(place))

    try:
        trio.run(within)
    except* NotHere as lacking:
        print(*_reasons(lacking))
        return_code = CANNOT
    else:
        return_code = 0
    _remove_cgroups()
    return return_code


def _reasons(found: BaseException) -> list[str]:
    """From whatever depth of nurseries."""
    if isinstance(found, BaseExceptionGroup):
        return [reason for one in found.exceptions for reason in _reasons(one)]
    return [str(found)]


def _remove_cgroups() -> None:
    """Control groups know nothing of networks: tasks of a scenario are below a parent of its own."""
    for parent in Path("/sys/fs/cgroup").glob(f"*/{CGROUP}*"):
        for folder, _, _ in os.walk(parent, topdown=False):
            os.rmdir(folder)


def skip_without_bridges(offer: Callable[[], object]) -> None:
    """Ends a scenario's process with the reason if this host has no bridges for groups."""
    found = offer()
    if BRIDGE not in getattr(found, "modes", ()):
        raise NotHere(f"no mode bridge here: {getattr(found, 'reason', '')}")


__all__ = ["NotHere", "find_offer", "in_own_network", "left_over", "skip_without_bridges"]

if __name__ == "__main__":
    from tests.client import own_network  # the same module that scenarios import, and so the same `NotHere`

    sys.exit(own_network.main(*sys.argv[1:]))
