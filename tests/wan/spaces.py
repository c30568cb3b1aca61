"""Two places with a network between them that can be lost: one namespace per region, joined by a pair of interfaces.

Agents speak without certificates on loopback only. So each place has loopback addresses of its own (127.1.0.x here,
127.2.0.x there), and the kernel is told to route those between the two: packets of RPC, Raft and gossip really travel,
and a cut loses them silently, as a wide-area network does. Nothing relays and nobody resets anything; TCP has to cope.

A direction is silenced by giving its sender a wrong hardware address for every receiver.

Needs root and `ip` on a kernel with namespaces and veth; `missing()` tries it and says what is not there.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tests.chaos.leftovers import Run, spaces_of
from tests.chaos.namespaces import NOBODY
from tests.chaos.namespaces import missing as namespaces_missing

HOSTS_MAX = 9
ROUTED = ("all", "eth0")


class Spaces:
    """Both places, by name. However the harness ends, they are removed with the run they are named after."""

    def __init__(self, run: Run, names: tuple[str, str]) -> None:
        self._run = run
        self._names = names
        self._is_cut = False
        here, there = (run.space(name) for name in names)
        self._do(f"ip netns add {here}")
        self._do(f"ip netns add {there}")
        mac, other_mac = self._mac(0), self._mac(1)
        peer = f"peer name eth0 address {other_mac} netns {there}"
        self._do(f"ip -n {here} link add eth0 address {mac} type veth {peer}")
        for at, name in enumerate(names):
            self._furnish(name, at)
        self.heal()

    def host(self, name: str, number: int) -> str:
        """An address of this place; numbers count from 1."""
        assert 1 <= number <= HOSTS_MAX
        return f"127.{self._names.index(name) + 1}.0.{number}"

    def inside(self, name: str) -> list[str]:
        """Words before a command that is to run there."""
        return ["ip", "netns", "exec", self._run.space(name)]

    def cut(self) -> None:
        """From now on nothing of either side arrives at the other."""
        self._neighbours(NOBODY, NOBODY)
        self._is_cut = True

    def heal(self) -> None:
        self._neighbours(self._mac(0), self._mac(1))
        self._is_cut = False

    def close(self) -> None:
        for space in spaces_of(lambda run: run == self._run):
            self._do(f"ip netns del {space}")

    def _furnish(self, name: str, at: int) -> None:
        space = self._run.space(name)
        own = [f"addr add {self.host(name, number)}/32 dev lo" for number in range(1, HOSTS_MAX + 1)]
        for one in ROUTED:
            self._do(f"ip netns exec {space} tee /proc/sys/net/ipv4/conf/{one}/route_localnet", "1")
        self._batch(
            space,
            [
                "link set lo up",
                "addr del 127.0.0.1/8 dev lo",  # else all of 127.0.0.0/8 would be here
                "addr add 127.0.0.1/32 dev lo",
                *own,
                "link set eth0 up",
                f"route add 127.{2 - at}.0.0/24 dev eth0 src {self.host(name, 1)}",
            ],
        )

    def _neighbours(self, of_first: str, of_second: str) -> None:
        """Which hardware address each side has for all addresses of the other."""
        first, second = self._names
        for at, name, mac in ((first, second, of_second), (second, first, of_first)):
            hosts = [self.host(name, number) for number in range(1, HOSTS_MAX + 1)]
            lines = [f"neigh replace {host} lladdr {mac} dev eth0 nud permanent" for host in hosts]
            self._batch(self._run.space(at), lines)

    def _mac(self, at: int) -> str:
        return f"02:00:00:00:{self._run.owner.pid % 250:02x}:{at + 1:02x}"

    def _batch(self, space: str, lines: Sequence[str]) -> None:
        self._do(f"ip -n {space} -batch -", "\n".join(lines) + "\n")

    def _do(self, command: str, given: str = "") -> None:
        result = subprocess.run(
            command.split(), input=given, capture_output=True, text=True, check=False, env=self._run.environment
        )
        if result.returncode:
            raise RuntimeError(f"`{command}` failed: {result.stderr.strip()}")


def missing() -> str:
    """What keeps this machine from having such places; empty when they work. Leaves nothing behind."""
    problem = namespaces_missing()
    if problem:
        return problem
    run = Run.mine()
    try:
        Spaces(run, ("probe-a", "probe-b")).close()
    except RuntimeError as error:
        return str(error)
    finally:
        for space in spaces_of(lambda other: other == run):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
    return ""
