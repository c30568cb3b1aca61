"""The wires between simulated servers: real links and calls over virtual streams, inside a region and between regions.

A host is a machine with an address; on it there is one server, or none. What is dialled while the host has no power or
is cut off never answers; while only the process is gone it is refused at once. Delays are drawn per pair of hosts, and
apart for what has to do with other regions, so that what happens on one wire changes nothing on another.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from fedsched.model.errors import Unavailable
from fedsched.raft.membership import ServerInfo
from fedsched.server.dialling import Dialer
from fedsched.sim import trio_seed
from fedsched.sim.streams import stream
from fedsched.sim.virtual_net import VirtualNet
from fedsched.wire.stream import Preamble

Accept = Callable[[str, trio.abc.Stream], None]
"""Take a new connection: who dialled, and this end of it."""
RESEND_S: Final = 0.2
"""What a lost packet costs a stream."""


@dataclass(slots=True)
class Host:
    """A machine."""

    name: str
    region: str
    address: str
    accept: Accept | None = None
    """None: nobody listens."""
    has_power: bool = True


@dataclass(slots=True)
class WanWeather:
    """How good the wires are."""

    delay_s: float = 0.001
    """Inside a region."""
    far_s: float = 0.03
    loss: float = 0.0
    fragment: float = 0.0
    window_bytes: int = 16 * 1024 * 1024
    slowness: dict[tuple[str, str], float] = field(default_factory=dict)


class Wires(VirtualNet):
    """All hosts, and the connections between them."""

    def __init__(self, seed: int, weather: WanWeather, counts: Counter[str]) -> None:
        super().__init__(weather, stream(seed, "wires"), counts)
        self.wan = weather
        self.hosts: dict[str, Host] = {}
        self.by_address: dict[str, Host] = {}
        self._seed = seed
        self._dice: dict[tuple[str, str, str], random.Random] = {}

    def add(self, host: Host) -> Host:
        self.hosts[host.name] = self.by_address[host.address] = host
        return host

    def delay(self, sender: str, receiver: str) -> float:
        wire = (sender, receiver, trio_seed.GROUP.get())
        dice = self._dice.get(wire)
        if dice is None:
            dice = self._dice[wire] = stream(self._seed, "-".join(("wire", *wire)))
        is_near = self.hosts[sender].region == self.hosts[receiver].region
        base = self.wan.delay_s if is_near else self.wan.far_s
        delay = base * (0.5 + dice.random())
        while not is_near and dice.random() < self.wan.loss:
            delay += RESEND_S
        return delay

    def pieces(self, data: bytes) -> list[bytes]:
        return [data]

    def pairs(self, one: str, other: str) -> list[tuple[str, str]]:
        """From every host of one region to every host of another, or among those of one."""
        first = [host.name for host in self.hosts.values() if host.region == one]
        second = [host.name for host in self.hosts.values() if host.region == other]
        return [(here, there) for here in first for there in second if here != there]

    async def dial(self, caller: str, address: str) -> trio.abc.Stream:
        """A connection to whoever listens at that address."""
        target = self.by_address[address]
        await self.knock(caller, target.name)
        while not target.has_power:
            await trio.sleep_forever()
        if target.accept is None:
            await trio.sleep(self.delay(target.name, caller))
            raise Unavailable(f"cannot reach {address}: connection refused", hint="is that server running?")
        near, far = self.connect(caller, target.name)
        target.accept(caller, far)
        await trio.sleep(self.delay(target.name, caller))
        return near


class WireDialer(Dialer):
    """Reaches other servers over the virtual wires."""

    def __init__(self, wires: Wires, me: str) -> None:
        super().__init__()
        self._wires = wires
        self._me = me

    async def open(self, peer: ServerInfo, preamble: Preamble, region: str = "") -> trio.abc.Stream:
        return await self._wires.dial(self._me, peer.address)
