"""What agents believe of each other, and since when, read from their own logs.

An agent notes when it learns that somebody is up, failed or gone. Those lines have the agent's own time, and all agents
of one machine have one clock. So nobody has to ask them all the time, which would cost more than what is measured.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

UP = frozenset({"join", "update"})
FAILED = frozenset({"failed"})
LEFT = frozenset({"leave", "reap"})
TOP = 'log_json = true\nlog_level = "info"'
"""Settings of an agent whose log can be read here."""


class Belief(NamedTuple):
    """The last that somebody heard of a member."""

    kind: str
    at: float
    """Wall clock; of the first line that said so."""


class Log:
    """One agent's log, read on from where the last look ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self.started_at: float | None = None
        self.beliefs: dict[str, Belief] = {}
        self.failures: list[tuple[str, float]] = []
        """Whom it ever took for failed, and when."""
        self.lags: list[tuple[float, float]] = []
        """When it noticed that it had been kept from running, and for how many seconds."""

    def read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            if line.startswith(b"{"):
                self._take(json.loads(line))

    def _take(self, event: Mapping[str, Any]) -> None:
        at = datetime.fromisoformat(event["time"]).timestamp()
        if event["event"] == "agent_started":
            self.started_at = at
        elif event["event"] == "event_loop_lag":
            self.lags.append((at, event["lag_ms"] / 1000))
        elif event["event"] == "gossip_member":
            member, kind = event["member"], event["what"]
            before = self.beliefs.get(member)
            if before is None or _group(before.kind) is not _group(kind):
                self.beliefs[member] = Belief(kind, at)
            if kind in FAILED:
                self.failures.append((member, at))


class News:
    """All agents' logs."""

    def __init__(self, logs: Mapping[str, Path]) -> None:
        """By the name under which others know the agent."""
        self._logs = {name: Log(path) for name, path in logs.items()}

    def read(self) -> None:
        for log in self._logs.values():
            log.read()

    def started_at(self, name: str) -> float | None:
        return self._logs[name].started_at

    def known_at(self, about: str, kinds: frozenset[str], observers: Iterable[str]) -> dict[str, float | None]:
        """Since when each observer believes one of `kinds` of a member; None where it does not."""
        found = {}
        for observer in observers:
            belief = self._logs[observer].beliefs.get(about)
            found[observer] = belief.at if belief is not None and belief.kind in kinds else None
        return found

    def all_know_at(self, abouts: Iterable[str], kinds: frozenset[str], observers: Iterable[str]) -> float | None:
        """The moment from which all observers believe it of all these (but themselves); None if they do not."""
        names, latest = list(observers), 0.0
        for about in abouts:
            for at in self.known_at(about, kinds, [name for name in names if name != about]).values():
                if at is None:
                    return None
                latest = max(latest, at)
        return latest

    def missing(self, abouts: Iterable[str], kinds: frozenset[str], observers: Iterable[str]) -> list[str]:
        """Who does not believe it of whom, for people."""
        names = list(observers)
        return [
            f"{observer} of {about}"
            for about in abouts
            for observer, at in self.known_at(about, kinds, [name for name in names if name != about]).items()
            if at is None
        ]

    def lags(self, since: float) -> list[float]:
        """How long agents were kept from running, each time that they noticed."""
        return [lag for log in self._logs.values() for at, lag in log.lags if at >= since]

    def failures(self, since: float, is_true: Callable[[str], bool]) -> list[str]:
        """Members that somebody took for failed although they were not."""
        return [
            f"{observer} of {member}"
            for observer, log in self._logs.items()
            for member, at in log.failures
            if at >= since and not is_true(member)
        ]


def _group(kind: str) -> frozenset[str]:
    return next(group for group in (UP, FAILED, LEFT) if kind in group)
