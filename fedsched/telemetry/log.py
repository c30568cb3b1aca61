"""Structured log events: a name and fields, never a sentence to be parsed.

    log = get_logger("raft", server="eu-1")
    log.info("leader_elected", term=7, took_s=1.2)

Events go to one sink (text or JSON lines, see `log_sinks`), into a bounded ring of the newest ones, and to subscribers
such as a streaming monitor. Nothing here waits for a reader: a full ring forgets the oldest event, a slow subscriber
loses events and is told how many.

A logger belongs to an area ("raft", "gossip"). Each area has one threshold, the lowest level anybody listens at: a call
that nobody listens to costs one comparison. Until `configure` is called nobody listens.

Time comes from the hub's `wall` function; the simulator hands in its own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

TRACE: Final = 5
DEBUG: Final = 10
INFO: Final = 20
WARN: Final = 30
ERROR: Final = 40
OFF: Final = 100

LEVELS: Final[Mapping[str, int]] = {
    "trace": TRACE,
    "debug": DEBUG,
    "info": INFO,
    "warn": WARN,
    "error": ERROR,
    "off": OFF,
}
LEVEL_NAMES: Final[Mapping[int, str]] = {number: name for name, number in LEVELS.items()}

RING_SIZE: Final = 512
"""As many events as an operator scrolls back through; Nomad's monitor keeps the same number of lines."""

STACK_CHARS_MAX: Final = 16_384
"""A runaway recursion must not turn one event into megabytes."""


class Event(NamedTuple):
    """One thing that happened, as the sinks and subscribers see it."""

    wall: float
    level: int
    area: str
    name: str
    fields: Mapping[str, Any]


class Sink(Protocol):
    """Takes events, one at a time and under the hub's lock; must not raise for weather such as a full disk."""

    def write(self, event: Event) -> None:
        """Put the event where it belongs."""

    def close(self) -> None:
        """Let go of files."""


class _Area:
    """The threshold that all loggers of one name share."""

    __slots__ = ("name", "threshold")

    def __init__(self, name: str, threshold: int) -> None:
        self.name = name
        self.threshold = threshold


class Subscription:
    """The events of one listener, kept until it takes them.

    Full means: the oldest is dropped and counted. `on_ready` is called, from whatever thread logged, when the first
    event arrives after the listener emptied its queue; it must be short and must not log.
    """

    def __init__(self, level: int, capacity: int, on_ready: Callable[[], None] | None) -> None:
        self.level = level
        self.lost = 0
        self._queue: deque[Event] = deque(maxlen=capacity)
        self._on_ready = on_ready

    def offer(self, event: Event) -> None:
        was_empty = not self._queue
        if len(self._queue) == self._queue.maxlen:
            self.lost += 1
        self._queue.append(event)
        if was_empty and self._on_ready is not None:
            self._on_ready()

    def take(self) -> list[Event]:
        """Give what has gathered, oldest first, and start afresh. Never waits."""
        taken = []
        while self._queue:
            taken.append(self._queue.popleft())
        return taken


class Hub:
    """Where the loggers of one process (or of one simulated server) meet their listeners."""

    def __init__(self, *, wall: Callable[[], float] = time.time, ring_size: int = RING_SIZE) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._areas: dict[str, _Area] = {}
        self._level = OFF
        self._area_levels: dict[str, int] = {}
        self._sink: Sink | None = None
        self._ring: deque[Event] = deque(maxlen=ring_size)
        self._subscriptions: list[Subscription] = []

    def logger(self, area: str, **fields: Any) -> Logger:
        with self._lock:
            found = self._areas.get(area)
            if found is None:
                found = self._areas[area] = _Area(area, self._threshold(area))
        return Logger(self, found, fields)

    def configure(self, *, level: str = "info", sink: Sink | None, areas: Mapping[str, str] | None = None) -> None:
        """Set what is written and where; `areas` gives single areas a level of their own. Closes an earlier sink."""
        numbers = {area: level_number(text) for area, text in (areas or {}).items()}
        with self._lock:
            old, self._sink = self._sink, sink
            self._level = level_number(level)
            self._area_levels = numbers
            self._refresh()
        if old is not None and old is not sink:
            old.close()

    def set_levels(self, level: str, areas: Mapping[str, str] | None = None) -> None:
        """Change how much is written, and nothing about where."""
        self.configure(level=level, sink=self._sink, areas=areas)

    def subscribe(
        self, level: str = "info", *, capacity: int = RING_SIZE, on_ready: Callable[[], None] | None = None
    ) -> Subscription:
        """Listen from now on; pair with `unsubscribe`."""
        subscription = Subscription(level_number(level), capacity, on_ready)
        with self._lock:
            self._subscriptions.append(subscription)
            self._refresh()
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.remove(subscription)
            self._refresh()

    def recent(self) -> list[Event]:
        """Give the newest events at the configured level, oldest first."""
        with self._lock:
            return list(self._ring)

    def emit(self, area: str, level: int, name: str, fields: Mapping[str, Any]) -> None:
        event = Event(self._wall(), level, area, name, fields)
        with self._lock:
            if level >= self._area_levels.get(area, self._level):
                self._ring.append(event)
                if self._sink is not None:
                    self._sink.write(event)
            for subscription in self._subscriptions:
                if level >= subscription.level:
                    subscription.offer(event)

    def _threshold(self, area: str) -> int:
        lowest = self._area_levels.get(area, self._level)
        return min([lowest, *(s.level for s in self._subscriptions)])

    def _refresh(self) -> None:
        for area in self._areas.values():
            area.threshold = self._threshold(area.name)


class Logger:
    """Says things about one area, always with its bound fields."""

    __slots__ = ("_area", "_fields", "_hub")

    def __init__(self, hub: Hub, area: _Area, fields: Mapping[str, Any]) -> None:
        self._hub = hub
        self._area = area
        self._fields = fields

    def bind(self, **fields: Any) -> Logger:
        """Give a logger that adds these fields to everything it says."""
        return Logger(self._hub, self._area, {**self._fields, **fields})

    def is_on(self, level: int) -> bool:
        """Tell whether anybody listens, for callers whose fields are dear to compute."""
        return level >= self._area.threshold

    def trace(self, event: str, /, **fields: Any) -> None:
        if self._area.threshold <= TRACE:
            self._emit(TRACE, event, fields)

    def debug(self, event: str, /, **fields: Any) -> None:
        if self._area.threshold <= DEBUG:
            self._emit(DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        if self._area.threshold <= INFO:
            self._emit(INFO, event, fields)

    def warn(self, event: str, /, **fields: Any) -> None:
        if self._area.threshold <= WARN:
            self._emit(WARN, event, fields)

    def error(self, event: str, /, **fields: Any) -> None:
        if self._area.threshold <= ERROR:
            self._emit(ERROR, event, fields)

    def exception(self, event: str, error: BaseException, /, **fields: Any) -> None:
        """Say that something broke, with where: adds `error` and a bounded `stack`."""
        if self._area.threshold <= ERROR:
            import traceback  # only now: short commands import this module too

            stack = "".join(traceback.format_exception(error))
            if len(stack) > STACK_CHARS_MAX:
                stack = "...\n" + stack[-STACK_CHARS_MAX:]
            self._emit(ERROR, event, {**fields, "error": error, "stack": stack})

    def _emit(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if self._fields:
            fields = {**self._fields, **fields}
        self._hub.emit(self._area.name, level, event, fields)


def level_number(name: str) -> int:
    """Translate "info" and friends, in any case; "warning" is taken for "warn"."""
    wanted = name.lower()
    number = LEVELS.get("warn" if wanted == "warning" else wanted)
    if number is None:
        raise ValueError(f"log level {name!r} is none of {', '.join(LEVELS)}")
    return number


HUB: Final = Hub()
"""The hub of this process. Simulated servers make their own."""


def get_logger(area: str, /, **fields: Any) -> Logger:
    return HUB.logger(area, **fields)


def configure(*, level: str = "info", sink: Sink | None, areas: Mapping[str, str] | None = None) -> None:
    HUB.configure(level=level, sink=sink, areas=areas)
