"""The packet filter's rules for all allocations on the bridge, as texts for `iptables-restore` and for `nft`. Pure.

Both texts replace everything of ours in one step, so nothing has to be known about what was there before, and no packet
ever meets half of them. What they say:

- a port of the host leads to its allocation, from outside, from the host itself and from other allocations;
- what leaves the bridge for elsewhere looks as if the host had sent it, and so does what comes back in through a port
  of the host: answers then find their way;
- nobody reaches the bridge from outside but through such a port;
- nothing on the bridge reaches the host's loopback addresses, although the kernel may have to route these for ports
  that are on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fedsched.client.network.plan import Attached, Bridge

PROTOCOLS: Final = ("tcp", "udp")
LOOPBACK: Final = "127.0.0.0/8"
_LOCAL: Final = "-m addrtype --dst-type LOCAL "
_JUMPS: Final = (
    ("raw", "PREROUTING", "", "RAW"),
    ("nat", "PREROUTING", _LOCAL, "DNAT"),
    ("nat", "OUTPUT", _LOCAL, "DNAT"),
    ("nat", "POSTROUTING", "", "SNAT"),
    ("filter", "FORWARD", "", "FWD"),
)
"""Table, the kernel's chain, which packets, and our chain that they go on to."""
TABLES: Final = ("raw", "nat", "filter")


def iptables_text(bridge: Bridge, attached: Iterable[Attached], saved: str) -> str:
    """For `iptables-restore --noflush`; `saved` is what `iptables-save` says, for what leads to our chains already."""
    rules = _rules(bridge, attached)
    has = _jumps_in(saved)
    lines = []
    for table in TABLES:
        lines.append(f"*{table}")
        chains = sorted({suffix for where, _, _, suffix in _JUMPS if where == table})
        lines += [f":{_chain(bridge, suffix)} - [0:0]" for suffix in chains]  # made, or emptied
        for suffix in chains:
            lines += [f"-A {_chain(bridge, suffix)} {rule}" for rule in rules[suffix]]
        for where, chain, match, suffix in _JUMPS:
            if where == table and (table, chain, _chain(bridge, suffix)) not in has:
                lines.append(f"-I {chain} {match}-j {_chain(bridge, suffix)}")
        lines.append("COMMIT")
    return "\n".join(lines) + "\n"


def iptables_removal(bridge: Bridge, saved: str) -> str:
    """For `iptables-restore --noflush`: takes away what `saved` shows of ours; empty if that is nothing."""
    has, chains = _jumps_in(saved), _chains_in(saved)
    lines: list[str] = []
    for table in TABLES:
        part = [
            f"-D {chain} {match}-j {_chain(bridge, suffix)}"
            for where, chain, match, suffix in _JUMPS
            if where == table and (table, chain, _chain(bridge, suffix)) in has
        ]
        ours = sorted({_chain(bridge, suffix) for where, _, _, suffix in _JUMPS if where == table})
        ours = [chain for chain in ours if (table, chain) in chains]
        part += [f"-F {chain}" for chain in ours] + [f"-X {chain}" for chain in ours]
        if part:
            lines += [f"*{table}", *part, "COMMIT"]
    return "\n".join(lines) + "\n" if lines else ""


def nft_text(bridge: Bridge, attached: Iterable[Attached]) -> str:
    """For `nft -f -`: a table of our own, made anew."""
    table, name, subnet = _table(bridge), f'"{bridge.name}"', str(bridge.subnet)
    ports = [
        f"{f'ip daddr {one.host_ip} ' if one.host_ip else ''}{protocol} dport {one.host_port} "
        f"dnat to {each.address}:{one.port}"
        for each in _ordered(attached)
        for one in each.forwards
        for protocol in PROTOCOLS
    ]
    chains = {
        "guard": ("type filter hook prerouting priority -300", [f"iifname {name} ip daddr {LOOPBACK} drop"]),
        "ports": ("", ports),
        "incoming": ("type nat hook prerouting priority -100", ["fib daddr type local jump ports"]),
        "own": ("type nat hook output priority -100", ["fib daddr type local jump ports"]),
        "outgoing": (
            "type nat hook postrouting priority 100",
            [
                f"ip saddr {subnet} ip daddr != {subnet} oifname != {name} masquerade",
                f"ip saddr {subnet} ip daddr {subnet} ct status dnat masquerade",
                f"ip saddr {LOOPBACK} oifname {name} masquerade",
            ],
        ),
        "forward": (
            "type filter hook forward priority 0",
            [
                f"iifname {name} accept",
                f"oifname {name} ct state established,related accept",
                f"oifname {name} ct status dnat accept",
                f"oifname {name} drop",
            ],
        ),
    }
    lines = [nft_removal(bridge).rstrip("\n"), f"table ip {table} {{"]
    for chain, (hook, rules) in chains.items():
        lines.append(f"  chain {chain} {{")
        lines += [f"    {hook};"] if hook else []
        lines += [f"    {rule}" for rule in rules]
        lines.append("  }")
    return "\n".join([*lines, "}"]) + "\n"


def nft_removal(bridge: Bridge) -> str:
    """For `nft -f -`: no table of ours, whether there was one or not."""
    table = _table(bridge)
    return f"table ip {table}\ndelete table ip {table}\n"


def _rules(bridge: Bridge, attached: Iterable[Attached]) -> dict[str, list[str]]:
    name, subnet = bridge.name, bridge.subnet
    return {
        "RAW": [f"-d {LOOPBACK} -i {name} -j DROP"],
        "DNAT": [
            f"{f'-d {one.host_ip}/32 ' if one.host_ip else ''}-p {protocol} -m {protocol} --dport {one.host_port} "
            f"-j DNAT --to-destination {each.address}:{one.port}"
            for each in _ordered(attached)
            for one in each.forwards
            for protocol in PROTOCOLS
        ],
        "SNAT": [
            f"-s {subnet} ! -d {subnet} ! -o {name} -j MASQUERADE",
            f"-s {subnet} -d {subnet} -m conntrack --ctstate DNAT -j MASQUERADE",
            f"-s {LOOPBACK} -o {name} -j MASQUERADE",
        ],
        "FWD": [
            f"-i {name} -j ACCEPT",
            f"-o {name} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            f"-o {name} -m conntrack --ctstate DNAT -j ACCEPT",
            f"-o {name} -j DROP",
        ],
    }


def _ordered(attached: Iterable[Attached]) -> list[Attached]:
    return sorted(attached, key=lambda one: one.alloc_id)


def _chain(bridge: Bridge, suffix: str) -> str:
    return f"FS-{bridge.name}-{suffix}"


def _table(bridge: Bridge) -> str:
    return f"fedsched_{bridge.name}".replace("-", "_").replace(".", "_")


def _jumps_in(saved: str) -> set[tuple[str, str, str]]:
    """Table, chain and target of all rules that `iptables-save` shows."""
    found = set()
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif line.startswith("-A "):
            words = line.split()
            if "-j" in words[2:-1]:
                found.add((table, words[1], words[words.index("-j", 2) + 1]))
    return found


def _chains_in(saved: str) -> set[tuple[str, str]]:
    found = set()
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif line.startswith(":"):
            found.add((table, line[1:].split()[0]))
    return found
