"""What this host can offer to groups that want a network of their own: tried for real, in a namespace that goes again.

Blocks: called in a thread. What a kernel can do does not change while an agent runs, so what worked once is not tried
again.
"""

from __future__ import annotations

import fcntl
import ipaddress
import itertools
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fedsched.client.network import on_host
from fedsched.client.network.filter_rules import iptables_text, nft_text
from fedsched.client.network.plan import BRIDGE, NONE, Attached, Bridge, Forward
from fedsched.client.network.tools import FilterTool, ToolFailed, find_filter, find_tool, ip_batch, run_tool

LOCKS: Final = Path("/run/fedsched")
_TRIAL: Final = "fedsched-trial-"
_TRIES: Final = itertools.count()
_TRIED: Final[dict[str, str]] = {}
"""What was tried, and the obstacle; only successes stay."""
_SOMEBODY: Final = (Attached("probe", "192.0.2.2", (Forward("127.0.0.1", 1, 1),)),)


@dataclass(frozen=True, slots=True)
class Offer:
    """The modes that work here, and why the others do not."""

    modes: tuple[str, ...] = ()
    reason: str = ""


class Claim:
    """One agent's right to a bridge: two that shared one would hand out the same addresses twice.

    The kernel ends it with the process. Agents in different network namespaces do not meet.
    """

    def __init__(self, bridge: Bridge, locks: Path = LOCKS) -> None:
        self._path = locks / f"{bridge.name}.{os.stat('/proc/self/ns/net').st_ino}.lock"
        self._descriptor = -1

    @property
    def is_held(self) -> bool:
        return self._descriptor >= 0

    def take(self) -> bool:
        """Whether the bridge is ours from now on. Raises `OSError`."""
        if self.is_held:
            return True
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def drop(self) -> None:
        if self.is_held:
            os.close(self._descriptor)
            self._descriptor = -1


def find_offer(bridge: Bridge, claim: Claim, addresses: Iterable[tuple[str, str]]) -> Offer:
    """What groups can have here. `addresses` are all of the host's, with their interfaces."""
    if os.geteuid():
        return Offer(reason="only root can make network namespaces")
    obstacle = _tried("namespaces", _try_namespace)
    if obstacle:
        return Offer(reason=obstacle)
    tool = find_filter()
    if tool is None:
        return Offer((NONE,), "there is neither `iptables-restore` nor `nft` on this host")
    obstacle = _tried(tool.value, lambda: _try_bridge(tool)) or overlap(bridge, addresses) or _not_ours(bridge, claim)
    return Offer((NONE,), obstacle) if obstacle else Offer((NONE, BRIDGE))


def overlap(bridge: Bridge, addresses: Iterable[tuple[str, str]]) -> str:
    """Why the subnet cannot be the bridge's: somebody else on this host has an address in it."""
    for interface, address in addresses:
        found = ipaddress.ip_address(address)
        if interface != bridge.name and found.version == 4 and found in bridge.subnet:
            return f"bridge_network_subnet {bridge.subnet} holds {address} of {interface}: choose another"
    return ""


def trials_of_the_dead(names: Iterable[str]) -> list[str]:
    """Namespaces of trials whose process was killed in the middle."""
    found = []
    for name in names:
        pid = name.removeprefix(_TRIAL).partition("-")[0]
        if name.startswith(_TRIAL) and pid.isdigit() and not os.path.exists(f"/proc/{pid}"):
            found.append(name)
    return sorted(found)


def _not_ours(bridge: Bridge, claim: Claim) -> str:
    try:
        if claim.take():
            return ""
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return f"bridge {bridge.name} belongs to another agent on this host: give each its own name and subnet"


def _tried(what: str, attempt: Callable[[], None]) -> str:
    if _TRIED.get(what) != "":
        try:
            attempt()
            _TRIED[what] = ""
        except (ToolFailed, OSError) as error:
            _TRIED[what] = str(error)
    return _TRIED[what]


def _try_namespace() -> None:
    if not find_tool("ip"):
        raise ToolFailed("there is no `ip` on this host: install iproute2")
    with _Trial():
        pass


def _try_bridge(tool: FilterTool) -> None:
    """Everything that an allocation needs, in a namespace where it disturbs nobody."""
    if not os.access("/proc/sys/net/ipv4/ip_forward", os.W_OK):
        raise ToolFailed("/proc/sys/net/ipv4/ip_forward cannot be written: packets are not forwarded")
    bridge = Bridge("fsprobe", ipaddress.IPv4Network("192.0.2.0/24"))
    with _Trial() as name:
        ip_batch(["link add fsprobe type bridge", "link add fsprobe0 type veth peer name fsprobe1"], namespace=name)
        if tool is FilterTool.NFT:
            run_tool("ip", "netns", "exec", name, "nft", "-f", "-", text=nft_text(bridge, _SOMEBODY))
        else:
            text = iptables_text(bridge, _SOMEBODY, "")
            run_tool("ip", "netns", "exec", name, "iptables-restore", "--noflush", text=text)


class _Trial:
    """A namespace for a moment."""

    def __init__(self) -> None:
        self.name = f"{_TRIAL}{os.getpid()}-{next(_TRIES)}"

    def __enter__(self) -> str:
        on_host.make_namespace(self.name)
        return self.name

    def __exit__(self, *_: object) -> None:
        with suppress(ToolFailed):
            on_host.remove_namespace(self.name)
