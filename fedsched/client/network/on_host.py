"""Makes namespaces, links and rules on this host, and takes them away again. Blocks: call it in a thread.

Everything here may be done again: what is there already is left alone, what is gone already is no error.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from fedsched.client.network import filter_rules, plan
from fedsched.client.network.plan import NAMESPACES, Attached, Bridge
from fedsched.client.network.tools import FilterTool, ToolFailed, find_filter, ip_batch, run_tool

_SYSCTL: Final = Path("/proc/sys/net/ipv4")
_WAIT_S: Final = "5"
"""How long iptables waits for others that change its rules."""


def make_namespace(name: str) -> bool:
    """A namespace with only its loopback; whether it was there already."""
    exists = has_namespace(name)
    if not exists:
        with suppress(FileNotFoundError):
            (NAMESPACES / name).unlink()  # a name without a namespace: somebody was killed between the two
        run_tool("ip", "netns", "add", name)
    ip_batch(plan.inside_commands(None), namespace=name)
    return exists


def has_namespace(name: str) -> bool:
    """Whether there is a namespace behind the name: a file that is not one has another device."""
    try:
        return os.stat(NAMESPACES / name).st_dev == os.stat("/proc/self/ns/net").st_dev
    except FileNotFoundError:
        return False


def attach(bridge: Bridge, alloc_id: str, namespace: str, address: str, *, is_kept: bool) -> None:
    """A namespace that is tied to the bridge. `is_kept`: it may be in use and has the address already."""
    was_there = make_namespace(namespace)
    link = plan.link_name(alloc_id)
    if not was_there:
        remove_link(link)  # its other end is in a namespace that nobody can name any more
    ip_batch(plan.link_commands(bridge, alloc_id, namespace, address, exists=has_link(link)))
    ip_batch(plan.inside_commands(bridge, address, is_kept=is_kept and was_there), namespace=namespace)


def remove_namespace(name: str) -> None:
    if has_namespace(name):
        run_tool("ip", "netns", "delete", name)
    else:
        with suppress(FileNotFoundError):
            (NAMESPACES / name).unlink()


def remove_link(name: str) -> None:
    if has_link(name):
        try:
            run_tool("ip", "link", "delete", name)
        except ToolFailed:
            if has_link(name):  # else it went with its namespace just now
                raise


def has_link(name: str) -> bool:
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def namespaces() -> list[str]:
    """The names of all namespaces on this host."""
    try:
        return os.listdir(NAMESPACES)
    except FileNotFoundError:
        return []


def links_of(bridge: Bridge) -> list[str]:
    """The names of all links on the bridge."""
    if not has_link(bridge.name):
        return []
    told = json.loads(run_tool("ip", "-json", "link", "show", "master", bridge.name) or "[]")
    return [str(one["ifname"]) for one in told if isinstance(one, dict) and "ifname" in one]


def settle(bridge: Bridge, attached: Iterable[Attached]) -> None:
    """Have the bridge and the rules for exactly these allocations; for none, neither."""
    attached = tuple(attached)
    tool = find_filter()
    if not attached:
        if tool is not None:
            _remove_rules(bridge, tool)
        remove_link(bridge.name)
        return
    if tool is None:
        raise ToolFailed("there is neither `iptables-restore` nor `nft` on this host", hint="install one of them")
    ip_batch(plan.bridge_commands(bridge, exists=has_link(bridge.name)))
    _make_rules(bridge, attached, tool)  # before the next lines: they rely on what the rules refuse
    _set("ip_forward", "1")
    if plan.needs_local_routes(attached):
        _set(f"conf/{bridge.name}/route_localnet", "1")


def _make_rules(bridge: Bridge, attached: Iterable[Attached], tool: FilterTool) -> None:
    if tool is FilterTool.NFT:
        run_tool("nft", "-f", "-", text=filter_rules.nft_text(bridge, attached))
        return
    text = filter_rules.iptables_text(bridge, attached, run_tool("iptables-save"))
    run_tool("iptables-restore", "-w", _WAIT_S, "--noflush", text=text)


def _remove_rules(bridge: Bridge, tool: FilterTool) -> None:
    if tool is FilterTool.NFT:
        run_tool("nft", "-f", "-", text=filter_rules.nft_removal(bridge))
        return
    text = filter_rules.iptables_removal(bridge, run_tool("iptables-save"))
    if text:
        run_tool("iptables-restore", "-w", _WAIT_S, "--noflush", text=text)


def _set(name: str, value: str) -> None:
    """Change a setting of the kernel, unless it is so already: the file may be read-only then."""
    path = _SYSCTL / name
    try:
        if path.read_text().strip() != value:
            path.write_text(value)
    except OSError as error:
        raise ToolFailed(f"{path}: {error.strerror}", hint=f"set net.ipv4.{name.replace('/', '.')} = {value}") from None
