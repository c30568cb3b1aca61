"""Links made of network namespaces: packets are lost, and TCP itself has to cope.

Each server lives in a namespace of its own, joined to the others by a bridge. A direction is silenced by giving the
sender a wrong hardware address for the receiver: its frames go to nobody, the other direction is untouched, and no
firewall is needed. Nothing is reset on healing: the kernel sends again what was lost, with a real network's patience.

Agents speak plaintext on loopback only. So in each namespace a relay (`proxy`, without rules) carries what the agent
dials out over the bridge, and what arrives from there in to the agent. Faults that are no loss of packets, a delay or a
reset in mid-frame, are left to that relay.

Needs root and `ip` (iproute2) on a kernel with namespaces, veth and bridge: `missing()` tries it and says what is not
there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.links import ProxyLinks, Way
from tests.chaos.proxy import DROP, STALL
from tests.e2e.region import HOST, Server

SUBNET = "10.213.{net}.{host}"
BRIDGE_HOST = 254
NOBODY = "02:00:00:00:de:ad"
"""A hardware address that no interface has."""


def missing() -> str:
    """What keeps this machine from having such links; empty when they work. Leaves nothing behind."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("ip") is None:
        return "no `ip` command (package iproute2)"
    tag = f"fsp{os.getpid() % 100000}"
    tries = [
        f"ip netns add {tag}",
        f"ip link add {tag}b type bridge",
        f"ip link add {tag}v type veth peer name eth0 netns {tag}",
        f"ip netns exec {tag} ip link set lo up",
    ]
    try:
        for command in tries:
            result = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if result.returncode:
                return f"`{command}` fails: {result.stderr.strip()}"
        return ""
    finally:
        for command in (f"ip link del {tag}v", f"ip link del {tag}b", f"ip netns del {tag}"):
            subprocess.run(command.split(), capture_output=True, check=False)


class NamespaceLinks:
    """One namespace and one relay per server. Names and addresses carry our process id: runs do not meet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._tag = f"fs{os.getpid() % 100000}"
        self._net = os.getpid() % 250 + 1
        self._hosts: dict[str, int] = {}
        self._relays: dict[str, ProxyLinks] = {}
        self._silenced: set[Way] = set()
        self._ip(f"link add {self._tag}b type bridge")
        self._ip(f"addr add {self._address(BRIDGE_HOST)}/24 dev {self._tag}b")
        self._ip(f"link set {self._tag}b up")

    def house(self, server: Server) -> None:
        """Give a server its namespace; to be called before any route to or from it is asked for."""
        number = len(self._hosts) + 1
        self._hosts[server.name] = number
        space, veth = self._space(server.name), f"{self._tag}v{number}"
        self._ip(f"netns add {space}")
        self._ip(f"link add {veth} type veth peer name eth0 address {self._mac(number)} netns {space}")
        self._ip(f"link set {veth} master {self._tag}b up")
        for command in ("link set lo up", f"addr add {self._address(number)}/24 dev eth0", "link set eth0 up"):
            self._ip(f"netns exec {space} ip {command}")
        for other, at in self._hosts.items():
            if other != server.name:
                self._neighbour(server.name, other, self._mac(at))
                self._neighbour(other, server.name, self._mac(number))
        inside = ["ip", "netns", "exec", space]
        self._relays[server.name] = ProxyLinks(self._directory / f"relay-{server.name}.log", prefix=inside)
        server.host, server.prefix = self._address(number), inside
        for port in (server.http_port, server.rpc_port):
            self._relays[server.name].open("net", server.name, HOST, port, at=(server.host, port))

    def route(self, src: Server, dst: Server) -> str:
        """The address at which `src`, in its namespace, finds a relay towards `dst`."""
        for server in (src, dst):
            if server.name not in self._hosts:
                self.house(server)
        return self._relays[src.name].open(src.name, dst.name, dst.host, dst.rpc_port)

    def cut(self, ways: Iterable[Way], kind: str = DROP) -> None:
        """Lose the packets of these ways. `refuse` is done by the relays, which can reset what they carry."""
        if kind not in (DROP, STALL):
            for src, dst in ways:
                self._relays[src].cut([(src, dst)], kind)
            return
        for src, dst in ways:
            self._neighbour(src, dst, NOBODY)
            self._silenced.add((src, dst))

    def slow(self, ways: Iterable[Way], delay_s: float) -> None:
        for src, dst in ways:
            self._relays[src].slow([(src, dst)], delay_s)

    def break_after(self, ways: Iterable[Way], n_bytes: int) -> None:
        for src, dst in ways:
            self._relays[src].break_after([(src, dst)], n_bytes)

    def heal(self) -> None:
        for src, dst in sorted(self._silenced):
            self._neighbour(src, dst, self._mac(self._hosts[dst]))
        self._silenced.clear()
        for relay in self._relays.values():
            relay.heal()

    def statistics(self) -> dict[str, int]:
        all_of = [relay.statistics() for relay in self._relays.values()]
        return {name: sum(each[name] for each in all_of) for name in all_of[0]} if all_of else {}

    def logs(self) -> dict[str, str]:
        return {path.stem: path.read_text() for path in sorted(self._directory.glob("relay-*.log"))}

    def close(self) -> None:
        """Remove namespaces, bridge and relays; what is gone already is no matter."""
        for relay in self._relays.values():
            relay.close()
        for name in self._hosts:
            subprocess.run(["ip", "netns", "del", self._space(name)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{self._tag}b"], capture_output=True, check=False)

    def _neighbour(self, src: str, dst: str, mac: str) -> None:
        to = self._address(self._hosts[dst])
        self._ip(f"netns exec {self._space(src)} ip neigh replace {to} lladdr {mac} dev eth0 nud permanent")

    def _space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _address(self, host: int) -> str:
        return SUBNET.format(net=self._net, host=host)

    def _mac(self, number: int) -> str:
        return f"02:00:00:00:{self._net:02x}:{number:02x}"

    def _ip(self, arguments: str) -> None:
        result = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"`ip {arguments}` failed: {result.stderr.strip()}")
