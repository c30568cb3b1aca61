"""Users of a simulated region: they write with request ids, read from any server, give up, and try again."""

from __future__ import annotations

import trio

from fedsched.model.errors import FedschedError
from fedsched.raft.errors import NotLeader, OutcomeUnknown
from fedsched.sim.daemon_host import Daemon, Gone, Region
from fedsched.sim.linear import CAS, GET, PUT, Operation
from fedsched.sim.machine import Command, Outcome
from fedsched.sim.streams import stream

PATIENCE_S = 6.0
"""For one request with all its repetitions; what is not known by then stays unknown."""
PAUSE_S = 0.2


class Client:
    """One user with one session; one request at a time, reads sometimes three at once."""

    def __init__(self, name: str, region: Region) -> None:
        self.name = name
        self.region = region
        self._rng = stream(region.options.seed, f"daemon-client-{name}")
        self._sequence = 0
        self._leader: str | None = None
        self._seen: dict[str, int] = {}
        self._keys = [f"k{number}" for number in range(region.options.keys)]

    async def run(self, enough: trio.Event) -> None:
        while not enough.is_set():
            await trio.sleep(self.region.options.think_s * 2 * self._rng.random())
            key, dice = self._rng.choice(self._keys), self._rng.random()
            if dice < 0.4:
                await self.write(PUT, key)
            elif dice < 0.55:
                await self.write(CAS, key)
            elif dice < 0.9:
                await self.read(key)
            else:
                await self._read_at_once(key)

    # ------------------------------------------------------------------ writes

    async def write(self, op: str, key: str) -> bool:
        """One request, repeated under its id until its outcome is known. False if it stays unknown or refused."""
        self._sequence += 1
        value, expected = f"{self.name}.{self._sequence}", self._seen.get(key, 0)
        called = trio.current_time()
        outcome, may_have_happened = await self._until_known(op, key, expected, value)
        argument = value if op == PUT else [expected, value]
        result = outcome.index if outcome is not None and outcome.ok else None
        if outcome is not None or may_have_happened:
            self.region.book.history.append(
                Operation(
                    client=self.name,
                    op=op,
                    key=key,
                    argument=argument,
                    result=result,
                    call=called,
                    ret=None if outcome is None else trio.current_time(),
                    info=outcome is None,
                )
            )
        if outcome is not None:
            self._seen[key] = outcome.index
        return outcome is not None

    async def _until_known(self, op: str, key: str, expected: int, value: str) -> tuple[Outcome | None, bool]:
        stop_at = trio.current_time() + PATIENCE_S
        may_have_happened = False
        while trio.current_time() < stop_at:
            daemon = self._pick()
            if daemon is not None:
                attempt = self.region.new_attempt()
                command = Command(self.name, self._sequence, attempt, op, key, expected, value)
                outcome, is_open = await self._attempt(daemon, command)
                if outcome is not None:
                    return outcome, True
                may_have_happened |= is_open
            await trio.sleep(PAUSE_S * self._rng.random())
        return None, may_have_happened

    async def _attempt(self, daemon: Daemon, command: Command) -> tuple[Outcome | None, bool]:
        """The outcome if it is known, and whether it may come to pass otherwise."""
        try:
            with trio.move_on_after(self.region.options.call_s * (0.2 + self._rng.random())):
                _, outcome = await daemon.call(lambda there: there.propose(command))
                self._leader = daemon.name
                assert isinstance(outcome, Outcome)
                return outcome._replace(is_repeat=False), True
        except NotLeader as refused:
            self._leader = refused.leader
            return None, False
        except (OutcomeUnknown, Gone):
            self._leader = None
            return None, True
        except FedschedError:
            return None, False
        self._leader = None
        return None, True

    def _pick(self) -> Daemon | None:
        """The leader as far as known, otherwise anybody."""
        hosts = self.region.hosts
        name = self._leader if self._leader is not None else self._rng.choice(list(hosts))
        daemon = hosts[name].daemon
        if daemon is None or not daemon.is_accepting:
            self._leader = None
            return None
        return daemon

    # ------------------------------------------------------------------- reads

    async def read(self, key: str, server: str | None = None, reader: str = "") -> bool:
        """Read at one server, whichever; False if it could not answer."""
        daemon = self.region.hosts[server or self._rng.choice(list(self.region.hosts))].daemon
        called = trio.current_time()

        async def look(there: Daemon) -> tuple[str | None, int]:
            await there.runner.read_barrier()
            return there.machine.registers.read(key)

        if daemon is None:
            return False
        try:
            with trio.move_on_after(self.region.options.call_s):
                value, index = await daemon.call(look)
                self.region.book.counts["reads"] += 1
                self._seen[key] = max(index, self._seen.get(key, 0))
                self.region.book.history.append(
                    Operation(
                        client=reader or self.name,
                        op=GET,
                        key=key,
                        result=[value, index],
                        call=called,
                        ret=trio.current_time(),
                    )
                )
                return True
        except (FedschedError, Gone):
            self.region.book.counts["reads refused"] += 1
        return False

    async def _read_at_once(self, key: str) -> None:
        server = self._rng.choice(list(self.region.hosts))
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(self.read, key, server, f"{self.name}+{number}")


class Crowd:
    """Many proposals at once, each given up at any moment. Nobody reads what they write; the book holds them all."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self._rng = stream(region.options.seed, "daemon-crowd")
        self._sequence = 0

    async def run(self, enough: trio.Event) -> None:
        while not enough.is_set():
            await trio.sleep(self.region.options.burst_every_s * 2 * self._rng.random())
            leader = self.region.leader()
            if leader is None or enough.is_set():
                continue
            async with trio.open_nursery() as nursery:
                for _ in range(self._rng.randrange(1, self.region.options.burst)):
                    nursery.start_soon(self._one, leader.running, self._rng.expovariate(1 / 0.1))

    async def _one(self, daemon: Daemon, give_up_s: float) -> None:
        self._sequence += 1
        command = Command(
            f"crowd-{self._sequence % 40}", self._sequence, self.region.new_attempt(), "put", "crowd", 0, "x" * 50
        )
        try:
            with trio.move_on_after(give_up_s):
                await daemon.call(lambda there: there.propose(command))
        except (FedschedError, Gone):
            self.region.book.counts["crowd refused"] += 1
