"""Jobs as registers: what the chaos clients write, read and compare-and-set through real agents."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Final, TypeVar

from fedsched.model.errors import FedschedError
from fedsched.rpc.context import RequestID
from fedsched.sdk.client import Client
from fedsched.sim.streams import stream
from tests.chaos.workload import Unknown
from tests.e2e.calls import Seen, connect, read, register

CALL_S: Final = 3.0
"""One attempt. Shorter than most pauses, so that a client moves on to a server that lives."""

DIAL_S: Final = 1.5
FINAL_S: Final = 30.0
WEATHER: Final = frozenset({429, 502, 503, 504})
"""What may happen to a call while servers die. Any other error is a finding and ends the client."""

T = TypeVar("T")


class JobRegister:
    """One client's connection to some server of the region; after `hop`, to another one.

    Requests are numbered in a session that outlives connections, so that a repeated write is carried out once.
    """

    def __init__(self, addresses: list[str], number: int, seed: int) -> None:
        self._addresses = addresses
        self._session = f"chaos-{seed}-{number}-{time.time_ns()}"
        self._chance: Random = stream(seed, f"servers-of-{number}")
        self._caller: Client | None = None
        self._at = self._chance.randrange(len(addresses))
        self.connection = 0

    def put(self, key: str, value: str, request: int) -> int:
        index = self._write(key, value, None, request)
        assert index is not None
        return index

    def cas(self, key: str, expected: int, value: str, request: int) -> int | None:
        return self._write(key, value, expected, request)

    def get(self, key: str) -> Seen:
        return self._ask(lambda caller: read(caller, key, stale=False, timeout_s=CALL_S))

    def get_stale(self, key: str) -> Seen:
        return self._ask(lambda caller: read(caller, key, stale=True, timeout_s=CALL_S))

    def hop(self) -> None:
        self.close()
        self._at = (self._at + self._chance.randrange(1, len(self._addresses))) % len(self._addresses)

    def close(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None

    def _write(self, key: str, value: str, expected: int | None, request: int) -> int | None:
        name = RequestID(session=self._session, seq=request)
        return self._ask(lambda caller: register(caller, key, value, expected=expected, request=name, timeout_s=CALL_S))

    def _ask(self, ask: Callable[[Client], T]) -> T:
        try:
            if self._caller is None:
                self._caller = connect(self._addresses[self._at], DIAL_S)
                self.connection += 1
            return ask(self._caller)
        except FedschedError as error:
            self.close()
            if error.http_status not in WEATHER:
                raise
            raise Unknown(f"{self._addresses[self._at]}: {error}") from error


def read_final(address: str, keys: Iterable[str]) -> Iterator[tuple[str, float, Seen, float]]:
    """Each key as this server shows it to a patient reader, with the times of call and return."""
    with connect(address, FINAL_S) as caller:
        for key in keys:
            call = time.monotonic()
            seen = read(caller, key, stale=False, timeout_s=FINAL_S)
            yield key, call, seen, time.monotonic()
