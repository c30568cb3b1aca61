"""Links made of network namespaces: packets are lost, and TCP itself has to cope.

Each server lives in a namespace of its own, joined to the others by a bridge. A direction is silenced by giving the
sender a wrong hardware address for the receiver: its frames go to nobody, the other direction is untouched, and no
firewall is needed. Nothing is reset on healing: the kernel sends again what was lost, with a real network's patience.

Agents speak plaintext on loopback only. So in each namespace a relay (`proxy`, without rules) carries what the agent
dials out over the bridge, and what arrives from there in to the agent. Faults that are no loss of packets, a delay or a
reset in mid-frame, are left to that relay.

The bridge has a namespace, too, with one link out of it to the harness. So every interface has an end in a namespace
named after the run, and removing those namespaces (`leftovers`) removes everything.

Needs root and `ip` (iproute2) on a kernel with namespaces, veth and bridge: `missing()` tries it and says what is not
there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.leftovers import Run, spaces_of
from tests.chaos.links import ProxyLinks, Way
from tests.chaos.proxy import DROP, STALL
from tests.e2e.region import HOST, Server

SUBNET = "10.213.{net}.{host}"
HARNESS_HOST = 254
NOBODY = "02:00:00:00:de:ad"
"""A hardware address that no interface has."""


def missing() -> str:
    """What keeps this machine from having such links; empty when they work. Leaves nothing behind."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("ip") is None:
        return "no `ip` command (package iproute2)"
    run = Run.mine()
    space = run.space("probe")
    tries = [
        f"ip netns add {space}",
        f"ip link add {run.interface} type veth peer name eth0 netns {space}",
        f"ip -n {space} link add bridge type bridge",
        f"ip netns exec {space} ip link set lo up",
    ]
    try:
        for command in tries:
            result = _do(command, run)
            if result.returncode:
                return f"`{command}` fails: {result.stderr.strip()}"
        return ""
    finally:
        for command in (f"ip link del {run.interface}", f"ip netns del {space}"):
            _do(command, run)


class NamespaceLinks:
    """One namespace and one relay per server, named after the run: runs do not meet."""

    def __init__(self, directory: Path, run: Run) -> None:
        self._directory = directory
        self._run = run
        self._net = run.owner.pid % 250 + 1
        self._hosts: dict[str, int] = {}
        self._relays: dict[str, ProxyLinks] = {}
        self._silenced: set[Way] = set()
        self._hub = run.space("hub")
        self._ip(f"netns add {self._hub}")
        self._ip(f"-n {self._hub} link add bridge type bridge")
        self._ip(f"-n {self._hub} link set bridge up")
        self._ip(f"link add {run.interface} type veth peer name harness netns {self._hub}")
        self._ip(f"-n {self._hub} link set harness master bridge up")
        self._ip(f"addr add {self._address(HARNESS_HOST)}/24 dev {run.interface}")
        self._ip(f"link set {run.interface} up")

    def house(self, server: Server) -> None:
        """Give a server its namespace; to be called before any route to or from it is asked for."""
        number = len(self._hosts) + 1
        self._hosts[server.name] = number
        space, veth = self._run.space(server.name), f"server{number}"
        self._ip(f"netns add {space}")
        peer = f"peer name eth0 address {self._mac(number)} netns {space}"
        self._ip(f"-n {self._hub} link add {veth} type veth {peer}")
        self._ip(f"-n {self._hub} link set {veth} master bridge up")
        for command in ("link set lo up", f"addr add {self._address(number)}/24 dev eth0", "link set eth0 up"):
            self._ip(f"netns exec {space} ip {command}")
        for other, at in self._hosts.items():
            if other != server.name:
                self._neighbour(server.name, other, self._mac(at))
                self._neighbour(other, server.name, self._mac(number))
        inside = ["ip", "netns", "exec", space]
        log = self._directory / f"relay-{server.name}.log"
        self._relays[server.name] = ProxyLinks(log, prefix=inside, environment=self._run.environment)
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
        _do(f"ip link del {self._run.interface}", self._run)
        for space in spaces_of(lambda run: run == self._run):
            _do(f"ip netns del {space}", self._run)

    def _neighbour(self, src: str, dst: str, mac: str) -> None:
        to = self._address(self._hosts[dst])
        self._ip(f"netns exec {self._run.space(src)} ip neigh replace {to} lladdr {mac} dev eth0 nud permanent")

    def _address(self, host: int) -> str:
        return SUBNET.format(net=self._net, host=host)

    def _mac(self, number: int) -> str:
        return f"02:00:00:00:{self._net:02x}:{number:02x}"

    def _ip(self, arguments: str) -> None:
        result = _do(f"ip {arguments}", self._run)
        if result.returncode:
            raise RuntimeError(f"`ip {arguments}` failed: {result.stderr.strip()}")


def _do(command: str, run: Run) -> subprocess.CompletedProcess[str]:
    """Marked as the run's: what still makes a namespace when the harness is gone would leave it behind."""
    return subprocess.run(command.split(), capture_output=True, text=True, check=False, env=run.environment)
