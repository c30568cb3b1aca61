"""The host's own programs that change its network: found, run with a limit of time, and quoted when they fail."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from fedsched.model.errors import FedschedError

LIMIT_S: Final = 15.0
"""For one command. They take milliseconds, unless another program holds the filter's lock."""
SAID_MAX: Final = 600
_BESIDE: Final = "/usr/local/sbin:/usr/sbin:/sbin"
"""Agents are often started without the administrator's directories in PATH."""


class ToolFailed(FedschedError):
    """A program of the host did not do what it was asked."""

    code = "network_tool_failed"


class FilterTool(StrEnum):
    """What rules are made with."""

    IPTABLES = "iptables"
    NFT = "nft"


def find_tool(name: str) -> str:
    """Where a program is; empty if it is not on this host."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_BESIDE}") or ""


def find_filter() -> FilterTool | None:
    """The program to make rules with. `iptables` comes first: other programs that refuse to forward packets do it in
    its chains, and only there can that be overruled."""
    if find_tool("iptables-restore") and find_tool("iptables-save"):
        return FilterTool.IPTABLES
    return FilterTool.NFT if find_tool("nft") else None


def run_tool(name: str, *args: str, text: str = "", limit_s: float = LIMIT_S) -> str:
    """Run a program to its end; what it wrote. Blocks. Raises `ToolFailed` with what it complained about."""
    path = find_tool(name)
    if not path:
        raise ToolFailed(f"there is no `{name}` on this host", hint=f"install it, or see to it that it is in {_BESIDE}")
    what = " ".join((name, *args))
    try:
        done = subprocess.run(
            [path, *args],
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env={"PATH": f"{os.environ.get('PATH', '')}:{_BESIDE}", "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ToolFailed(f"{what}: not done within {limit_s:g} s") from None
    except OSError as error:
        raise ToolFailed(f"{what}: {error.strerror}") from None
    if done.returncode:
        said = " ".join((done.stderr.strip() or done.stdout.strip() or "it said nothing").split())
        raise ToolFailed(f"{what}: {said[:SAID_MAX]}")
    return done.stdout


def ip_batch(commands: Sequence[str], *, namespace: str = "") -> None:
    """Give `ip` several commands at once, here or inside a namespace; it ends at the first that fails."""
    if commands:
        where = ("-n", namespace) if namespace else ()
        run_tool("ip", *where, "-batch", "-", text="".join(f"{command}\n" for command in commands))
