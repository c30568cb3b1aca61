"""The resolver's and the hosts file of tasks with a network of their own, as texts. Pure.

Whatever a job writes into them is checked: a line break in a name would be another line of the file.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from fedsched.client.network.plan import NetworkRefused
from fedsched.model.network import DNSConfig

_WORD: Final = re.compile(r"[A-Za-z0-9._:/@%+=-]{1,256}")
_HOSTNAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,62})")
_LINES_MAX: Final = 100
SYSTEMD_SERVERS: Final = "/run/systemd/resolve/resolv.conf"
"""Where systemd's resolver keeps the servers behind its own address, which only the host itself reaches."""


def checked_hostname(name: str) -> str:
    if name and _HOSTNAME.fullmatch(name) is None:
        raise NetworkRefused(
            f"hostname {name[:80]!r} is not one", hint="up to 63 letters, digits, dots and hyphens; a letter first"
        )
    return name


def resolver_text(dns: DNSConfig) -> str:
    """What a group says about names. Raises `NetworkRefused`."""
    for server in dns.servers:
        try:
            ipaddress.ip_address(server)
        except ValueError:
            raise NetworkRefused(f"dns server {server[:80]!r} is no address", hint="such as 10.0.0.53") from None
    for word in (*dns.searches, *dns.options):
        if _WORD.fullmatch(word) is None:
            raise NetworkRefused(f"dns: {word[:80]!r} is neither a domain nor an option of a resolver")
    lines = [f"nameserver {server}" for server in dns.servers[:_LINES_MAX]]
    lines += [f"search {' '.join(dns.searches[:_LINES_MAX])}"] if dns.searches else []
    lines += [f"options {' '.join(dns.options[:_LINES_MAX])}"] if dns.options else []
    return "".join(f"{line}\n" for line in lines)


def host_resolver_text(own: str, behind: str) -> str:
    """The host's resolver settings for somebody in another namespace.

    A server on a loopback address is out of reach from there: `behind` (systemd's true servers) is taken instead if
    all are, else these lines are left out.
    """
    if behind and not _reachable(own):
        own = behind
    return "".join(f"{line}\n" for line in own.splitlines() if _server(line) is None or not _is_loopback(line))


def hosts_text(address: str, hostname: str) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    if hostname:
        lines.append(f"{address or '127.0.1.1'} {hostname}")
    return "".join(f"{line}\n" for line in lines)


def _reachable(text: str) -> list[str]:
    return [line for line in text.splitlines() if _server(line) is not None and not _is_loopback(line)]


def _server(line: str) -> str | None:
    words = line.split()
    return words[1] if len(words) > 1 and words[0] == "nameserver" else None


def _is_loopback(line: str) -> bool:
    try:
        return ipaddress.ip_address((_server(line) or "").partition("%")[0]).is_loopback
    except ValueError:
        return False
