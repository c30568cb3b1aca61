"""Several callers that write to one server until it is gone, and remember what they were told and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fedsched.model.errors import FedschedError
from tests.e2e.calls import Caller
from tests.e2e.region import Server


@dataclass(frozen=True)
class Acknowledged:
    """One write that was acknowledged."""

    value: str
    index: int
    sent_at: float


@dataclass
class Writers:
    """What was acknowledged, by key; every key is written once."""

    server: Server
    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)
    sent: int = 0
    is_over: bool = False

    def write_until_refused(self, name: str) -> None:
        """Write and note until the server refuses, is gone, or everything is over."""
        number = 0
        try:
            with Caller(self.server) as caller:
                while not self.is_over:
                    number += 1
                    key, value = f"{name}-{number}", f"value {number} of {name}"
                    sent_at = time.monotonic()
                    self.sent += 1
                    self.acknowledged[key] = Acknowledged(value, caller.register(key, value), sent_at)
        except FedschedError:
            return

    def wait(self, count: int, within_s: float = 30) -> None:
        """Return when so many writes have been acknowledged."""
        deadline = time.monotonic() + within_s
        while len(self.acknowledged) < count:
            assert time.monotonic() < deadline, f"only {len(self.acknowledged)} of {count} writes in {within_s:g} s"
            time.sleep(0.005)

    def check_all_there(self, server: Server) -> None:
        """Every acknowledged write can be read through this server, as it was acknowledged."""
        with Caller(server) as caller:
            for key, write in self.acknowledged.items():
                seen = caller.get(key)
                assert (seen.value, seen.index) == (write.value, write.index), f"{key} was acknowledged"


@contextmanager
def writing(server: Server, names: list[str]) -> Iterator[Writers]:
    """One writer for each name while the block runs; all have ended when it has."""
    writers = Writers(server)
    threads = [threading.Thread(target=writers.write_until_refused, args=[name]) for name in names]
    for thread in threads:
        thread.start()
    try:
        yield writers
    finally:
        writers.is_over = True
        for thread in threads:
            thread.join()
