"""A register service that can be told to be wrong, to show that the harness would notice.

Three copies in one process, no network. `bug` names the one way in which it breaks its word; without one it keeps it.
Now and then a write takes effect but its answer is lost, so that clients must repeat it under the same request id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from tests.chaos.workload import Unknown
from tests.e2e.calls import Seen

STALE_READ, LOST_WRITE, DOUBLE_APPLY, BLIND_CAS, STALE_GOES_BACK = (
    "stale read",
    "lost write",
    "double apply",
    "blind compare-and-set",
    "stale reads go back",
)
BUGS = (STALE_READ, LOST_WRITE, DOUBLE_APPLY, BLIND_CAS, STALE_GOES_BACK)


@dataclass
class StandIn:
    """The shared state behind all clients' connections."""

    chance: Random
    bug: str = ""
    bug_share: float = 0.3
    index: int = 0
    values: dict[str, tuple[str, int]] = field(default_factory=dict)
    before: dict[str, tuple[str, int]] = field(default_factory=dict)
    """The value each key had one write ago: what a lagging copy would show."""
    results: dict[tuple[int, int], int | None] = field(default_factory=dict)

    def strikes(self, bug: str) -> bool:
        return self.bug == bug and self.chance.random() < self.bug_share

    def apply(self, key: str, value: str, expected: int | None) -> int | None:
        current = self.values.get(key, ("", 0))
        if expected is not None and current[1] != expected and not self.strikes(BLIND_CAS):
            return None
        self.index += 1
        self.before[key] = current
        if not self.strikes(LOST_WRITE):
            self.values[key] = (value, self.index)
        return self.index


class StandInRegister:
    """One client's connection."""

    def __init__(self, service: StandIn, client: int) -> None:
        self._service = service
        self._client = client
        self._connection = 0

    def put(self, key: str, value: str, request: int) -> int:
        index = self._once(key, value, None, request)
        assert index is not None
        return index

    def cas(self, key: str, expected: int, value: str, request: int) -> int | None:
        return self._once(key, value, expected, request)

    def get(self, key: str) -> Seen:
        service = self._service
        values = service.before if service.strikes(STALE_READ) else service.values
        value, index = values.get(key, (None, 0))
        return Seen(value or None, index, service.index)

    def get_stale(self, key: str) -> Seen:
        seen = self.get(key)
        back = seen.as_of // 2 if self._service.strikes(STALE_GOES_BACK) else 0
        return Seen(seen.value, seen.index, seen.as_of - back)

    def hop(self) -> None:
        self._connection += 1

    @property
    def connection(self) -> int:
        return self._connection

    def close(self) -> None:
        pass

    def _once(self, key: str, value: str, expected: int | None, request: int) -> int | None:
        service, ident = self._service, (self._client, request)
        if ident not in service.results or service.strikes(DOUBLE_APPLY):
            service.results[ident] = service.apply(key, value, expected)
        if service.chance.random() < 0.1:
            raise Unknown("the answer was lost")
        return service.results[ident]
