"""Clients that write, read and compare-and-set while faults go on, and write down exactly what they saw.

Every client is a thread with one connection. A write whose outcome is unknown is sent again *with the same request id*,
to whichever server answers, until its outcome is known; one that stays unknown to the end is recorded as open. A key is
given up after so many operations and a new one takes its place, because checking costs more than linearly in them.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Protocol

from fedsched.sim.linear import CAS, GET, PUT, Operation, to_lines
from fedsched.sim.streams import stream
from tests.e2e.calls import Seen

KEY_OPERATIONS_MAX = 250
"""The checker decides a few hundred operations per key at ease; in-flight ones may pass the limit by a handful."""

KEYS_AT_ONCE = 6
CLIENTS = 5
"""All clients share all keys, so this is also the most that meet on one key."""

STALE_SHARE, READ_SHARE, CAS_SHARE = 0.08, 0.37, 0.25
"""Of all operations; the rest are plain writes."""

PAUSE_BETWEEN_S = 0.004
"""Clients share two cores with the servers: the point is faults, not load."""

UNKNOWN_AFTER_S = 45.0
"""How long one write is tried again. Longer than any fault of a plan, so that an open outcome stays rare."""


class Unknown(Exception):
    """There was no answer, and a write may or may not have taken effect: link lost, no leader, deadline passed."""


class Register(Protocol):
    """One client's connection to some server. Writes answer with the modify index they made."""

    def put(self, key: str, value: str, request: int) -> int: ...

    def cas(self, key: str, expected: int, value: str, request: int) -> int | None:
        """None when the key is not at the expected index."""

    def get(self, key: str) -> Seen: ...

    def get_stale(self, key: str) -> Seen: ...

    def hop(self) -> None:
        """Drop the connection; the next call goes to another server."""

    @property
    def connection(self) -> int:
        """Changes whenever a new connection is made."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Write:
    """A write that was acknowledged, for the figures of how fast writes resumed after a fault."""

    call: float
    ret: float


@dataclass
class Record:
    """Everything the clients saw, gathered under one lock."""

    operations: list[Operation] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    stale_problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    lines: IO[str] | None = None
    """Where operations go as they end, so that a run cut short still leaves its history."""

    def add(self, operation: Operation) -> None:
        with self.lock:
            self.operations.append(operation)
            self.counts[operation.op] += 1
            self.counts["left_open"] += operation.info
            if operation.op in (PUT, CAS) and operation.result is not None:
                assert operation.ret is not None
                insort(self.writes, Write(operation.call, operation.ret), key=lambda write: write.ret)
            if self.lines is not None:
                self.lines.write(to_lines([operation]))

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def wrote_since(self, moment: float) -> float | None:
        """When the first write *called* after this moment was acknowledged.

        One in flight at the moment of a fault may have been committed before it, and proves nothing.
        """
        with self.lock:
            after = bisect_left(self.writes, moment, key=lambda write: write.ret)
            return next((write.ret for write in self.writes[after:] if write.call >= moment), None)


class Keys:
    """The keys in use; each is replaced when it has had its share of operations."""

    def __init__(self, prefix: str, at_once: int = KEYS_AT_ONCE, operations_max: int = KEY_OPERATIONS_MAX) -> None:
        self._prefix = prefix
        self._operations_max = operations_max
        self._made = 0
        self._left: dict[str, int] = {}
        self._lock = threading.Lock()
        for _ in range(at_once):
            self._add()

    def take(self, chance: Random) -> str:
        with self._lock:
            key = chance.choice(sorted(self._left))
            self._left[key] -= 1
            if not self._left[key]:
                del self._left[key]
                self._add()
            return key

    def _add(self) -> None:
        self._left[f"{self._prefix}-{self._made:04}"] = self._operations_max
        self._made += 1


class Client(threading.Thread):
    """One client: draws operations from its own stream and records them until told to stop."""

    def __init__(
        self,
        name: str,
        register: Register,
        keys: Keys,
        record: Record,
        chance: Random,
        stop: threading.Event,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause_s: float = PAUSE_BETWEEN_S,
        unknown_after_s: float = UNKNOWN_AFTER_S,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._register = register
        self._keys = keys
        self._record = record
        self._chance = chance
        self._stop_asked = stop
        self._clock = clock
        self._pause_s = pause_s
        self._unknown_after_s = unknown_after_s
        self._request = 0
        self._index_of: dict[str, int] = {}
        """What this client last saw of each key: the base of its compare-and-sets."""
        self._stale_floor: tuple[int, int] = (-1, 0)
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                self.step()
                self._stop_asked.wait(self._pause_s)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._register.close()

    def step(self) -> None:
        """One operation from call to outcome."""
        key = self._keys.take(self._chance)
        draw = self._chance.random()
        if self._chance.random() < 0.02:
            self._register.hop()
        if draw < STALE_SHARE:
            self._read_stale(key)
        elif draw < STALE_SHARE + READ_SHARE:
            self._read(key)
        elif draw < STALE_SHARE + READ_SHARE + CAS_SHARE:
            self._write(key, CAS)
        else:
            self._write(key, PUT)

    def _read(self, key: str) -> None:
        call = self._clock()
        try:
            seen = self._register.get(key)
        except Unknown:
            self._failed("read_unanswered")
            return
        self._index_of[key] = seen.index
        result = [seen.value, seen.index]
        self._record.add(Operation(client=self.name, op=GET, key=key, result=result, call=call, ret=self._clock()))

    def _read_stale(self, key: str) -> None:
        """Stale reads promise one thing: within a connection the state they show never gets older."""
        try:
            seen = self._register.get_stale(key)
        except Unknown:
            self._failed("stale_read_unanswered")
            return
        self._record.count("stale_read")
        if not seen.as_of:
            return  # "there is no such job" does not say as of when
        connection, floor = self._stale_floor
        if connection != self._register.connection:
            floor = 0
        if seen.as_of < floor:
            with self._record.lock:
                self._record.stale_problems.append(
                    f"{self.name}: a stale read of {key} showed index {seen.as_of} after {floor} on one connection"
                )
        self._stale_floor = (self._register.connection, max(seen.as_of, floor))

    def _write(self, key: str, op: str) -> None:
        self._request += 1
        value = f"{self.name}.{self._request}"
        expected = self._index_of.get(key, 0)
        call = self._clock()
        result = self._until_known(
            lambda: (
                self._register.put(key, value, self._request)
                if op == PUT
                else self._register.cas(key, expected, value, self._request)
            )
        )
        if isinstance(result, int):
            self._index_of[key] = result
        elif result is None:
            self._index_of.pop(key, None)
            self._record.count("cas_refused")
        is_unknown = isinstance(result, Unknown)
        self._record.add(
            Operation(
                client=self.name,
                op=op,
                key=key,
                argument=value if op == PUT else [expected, value],
                result=None if is_unknown else result,
                call=call,
                ret=None if is_unknown else self._clock(),
                info=is_unknown,
            )
        )

    def _until_known(self, send: Callable[[], int | None]) -> int | Unknown | None:
        """Send until the outcome is known; the request id makes a repetition harmless."""
        give_up_at = self._clock() + self._unknown_after_s
        while True:
            try:
                return send()
            except Unknown as error:
                self._failed("write_retried")
                if self._clock() >= give_up_at:
                    return error
            self._stop_asked.wait(0.05)

    def _failed(self, what: str) -> None:
        self._record.count(what)
        self._register.hop()


@dataclass
class Workload:
    """All clients of a run."""

    clients: list[Client]
    record: Record
    stop_asked: threading.Event

    def start(self) -> None:
        for client in self.clients:
            client.start()

    def stop(self, within_s: float = UNKNOWN_AFTER_S + 15) -> list[str]:
        """Let each client end its operation; what went wrong inside a client is told, never swallowed."""
        self.stop_asked.set()
        deadline = time.monotonic() + within_s
        for client in self.clients:
            client.join(max(0.0, deadline - time.monotonic()))
        with self.record.lock:
            if self.record.lines is not None:
                self.record.lines.close()
                self.record.lines = None
        problems = [f"client {client.name} failed: {client.failure!r}" for client in self.clients if client.failure]
        problems += [f"client {client.name} did not stop" for client in self.clients if client.is_alive()]
        return problems


def make_workload(
    seed: int, connect: Callable[[int], Register], history: Path | None, *, clients: int = CLIENTS, prefix: str = "key"
) -> Workload:
    """Clients over `connect(number)`, drawing from the streams of one seed."""
    record = Record(lines=history.open("w", buffering=1) if history is not None else None)
    keys = Keys(prefix)
    stop = threading.Event()
    return Workload(
        [
            Client(f"c{number}", connect(number), keys, record, stream(seed, f"client-{number}"), stop)
            for number in range(clients)
        ],
        record,
        stop,
    )
