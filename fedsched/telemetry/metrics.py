"""Counters, gauges and histograms.

A metric is **declared** once, at import, with name, kind, help and unit; the reference page lists all declarations.
Its **values** live in a `Registry`, one per agent, so that several servers in one process do not mix their figures:

    SYNC = histogram("raft.sync", "time for one durable write of the log", unit="seconds")
    ...
    self._sync = metrics.histogram(SYNC)     # once, at start
    self._sync.observe(0.0031)               # cheap: one bisect and a few additions

Labels multiply series, so each metric has a ceiling on how many it keeps; beyond it, values go to one series whose
labels read "other", and `telemetry.series_refused` counts them. A series is written by one thread at a time; two
threads adding to the same one may lose an addition, never more.

How values are shown (Prometheus, JSON) is in `metrics_text`.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, Generic, TypeVar

OTHER: Final = "other"
SERIES_MAX: Final = 1_000
"""Enough for one series per peer, method or region; anything that grows with jobs or nodes is no label."""

SECONDS_BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""From a tenth of a millisecond (a loopback round trip) to a minute, about three per decade."""

COUNT_BUCKETS: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4)
BYTES_BUCKETS: Final = tuple(float(4**power) for power in range(3, 15))
"""64 B to 256 MiB by fours."""

LabelValues = tuple[str, ...]


class Spec:
    """What a metric is; the same for every agent."""

    kind: str = ""

    def __init__(self, name: str, text: str, unit: str, labels: LabelValues, series_max: int, nomad: str) -> None:
        self.name = name
        self.text = text
        self.unit = unit
        self.labels = labels
        self.series_max = series_max
        self.nomad = nomad


class CounterSpec(Spec):
    kind = "counter"


class GaugeSpec(Spec):
    kind = "gauge"


class HistogramSpec(Spec):
    kind = "histogram"
    buckets: tuple[float, ...] = ()


_catalogue: dict[str, Spec] = {}


def catalogue() -> Mapping[str, Spec]:
    """Give every declaration made so far, by name; complete once the packages that declare are imported."""
    return dict(sorted(_catalogue.items()))


def counter(
    name: str, text: str, *, unit: str = "", labels: LabelValues = (), series_max: int = SERIES_MAX, nomad: str = ""
) -> CounterSpec:
    """Declare something that only goes up. `nomad` is the name that existing dashboards know it by, if there is one."""
    return _declare(CounterSpec(name, text, unit, labels, series_max, nomad))


def gauge(
    name: str, text: str, *, unit: str = "", labels: LabelValues = (), series_max: int = SERIES_MAX, nomad: str = ""
) -> GaugeSpec:
    """Declare something that goes up and down."""
    return _declare(GaugeSpec(name, text, unit, labels, series_max, nomad))


def histogram(
    name: str,
    text: str,
    *,
    unit: str = "seconds",
    labels: LabelValues = (),
    buckets: tuple[float, ...] = SECONDS_BUCKETS,
    series_max: int = SERIES_MAX,
    nomad: str = "",
) -> HistogramSpec:
    """Declare something observed again and again; `buckets` are upper bounds, ascending, infinity is implied."""
    if not buckets or any(a >= b for a, b in pairwise(buckets)):
        raise ValueError(f"buckets of {name} must ascend: {buckets}")
    spec = HistogramSpec(name, text, unit, labels, series_max, nomad)
    spec.buckets = buckets
    return _declare(spec)


S = TypeVar("S", bound=Spec)


def _declare(spec: S) -> S:
    if not all(word.isidentifier() for word in spec.name.split(".")):
        raise ValueError(f"metric name {spec.name!r} is not words joined by dots")
    if not spec.text:
        raise ValueError(f"metric {spec.name} has no help text")
    if spec.name in _catalogue:
        raise ValueError(f"metric {spec.name} is declared twice")
    _catalogue[spec.name] = spec
    return spec


class Interval:
    """What was seen between two `roll`s: the form in which Nomad's JSON reports counters and samples."""

    __slots__ = ("count", "high", "low", "squares", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self.squares = 0.0
        self.low = math.inf
        self.high = -math.inf

    def add(self, value: float) -> None:
        self.count += 1
        self.sum += value
        self.squares += value * value
        if value < self.low:
            self.low = value
        if value > self.high:
            self.high = value

    @property
    def mean(self) -> float:
        return self.sum / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        if self.count < 2:
            return 0.0
        return math.sqrt(max(0.0, self.squares - self.sum * self.sum / self.count) / (self.count - 1))


class Counter:
    """A value that only goes up."""

    __slots__ = ("interval", "last", "value")

    def __init__(self, spec: CounterSpec) -> None:
        self.value = 0.0
        self.interval = Interval()
        self.last: Interval | None = None

    def add(self, amount: float = 1) -> None:
        if amount < 0:
            raise ValueError(f"a counter cannot go down by {-amount}")
        self.value += amount
        self.interval.add(amount)

    def roll(self) -> None:
        self.last, self.interval = self.interval, Interval()


class Gauge:
    """A value that goes up and down."""

    __slots__ = ("value",)

    def __init__(self, spec: GaugeSpec) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def add(self, amount: float) -> None:
        self.value += amount

    def roll(self) -> None:
        """Nothing to close: a gauge says how things are, not what happened."""


class Histogram:
    """How often values fell below each of the fixed bounds."""

    __slots__ = ("bounds", "counts", "interval", "last", "sum")

    def __init__(self, spec: HistogramSpec) -> None:
        self.bounds = spec.buckets
        self.counts = [0] * (len(spec.buckets) + 1)
        self.sum = 0.0
        self.interval = Interval()
        self.last: Interval | None = None

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.interval.add(value)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Estimate by interpolating inside the bucket; the last one answers with its lower bound. NaN when empty."""
        rank = share * self.count
        if not self.count:
            return math.nan
        seen = 0
        for position, count in enumerate(self.counts[:-1]):
            if count and seen + count >= rank:
                low = self.bounds[position - 1] if position else 0.0
                return low + (self.bounds[position] - low) * (rank - seen) / count
            seen += count
        return self.bounds[-1]

    def roll(self) -> None:
        self.last, self.interval = self.interval, Interval()


InstrumentT = TypeVar("InstrumentT", Counter, Gauge, Histogram)

SERIES_REFUSED: Final = counter(
    "telemetry.series_refused", "label values that came after a metric's ceiling and were counted as other"
)


class Family(Generic[InstrumentT]):
    """All series of one metric in one registry, by label values."""

    def __init__(self, spec: Spec, make: Callable[[], InstrumentT], refused: Callable[[], None]) -> None:
        self.spec = spec
        self.series: dict[LabelValues, InstrumentT] = {}
        self._make: Callable[[], InstrumentT] = make
        self._refused = refused

    def labels(self, *values: str) -> InstrumentT:
        """Give the series for these label values, in the declared order. Keep it if you use it often."""
        found = self.series.get(values)
        if found is not None:
            return found
        if len(values) != len(self.spec.labels):
            raise ValueError(f"metric {self.spec.name} has labels {self.spec.labels}, got {values}")
        if len(self.series) >= self.spec.series_max:
            self._refused()
            values = (OTHER,) * len(values)
        return self.series.setdefault(values, self._make())

    def remove(self, *values: str) -> None:
        """Forget a series, for example that of a peer that left. Unknown ones are fine."""
        self.series.pop(values, None)


class Registry:
    """The values of one agent."""

    def __init__(self) -> None:
        self._families: dict[str, Family[Any]] = {}
        self._hooks: list[Callable[[], None]] = []
        self.interval_s = 0.0
        self._rolled_at: float | None = None
        self._series_refused = self.counter(SERIES_REFUSED)

    def counter(self, spec: CounterSpec) -> Counter:
        return self.counters(spec).labels()

    def counters(self, spec: CounterSpec) -> Family[Counter]:
        return self._family(spec, lambda: Counter(spec))

    def gauge(self, spec: GaugeSpec) -> Gauge:
        return self.gauges(spec).labels()

    def gauges(self, spec: GaugeSpec) -> Family[Gauge]:
        return self._family(spec, lambda: Gauge(spec))

    def histogram(self, spec: HistogramSpec) -> Histogram:
        return self.histograms(spec).labels()

    def histograms(self, spec: HistogramSpec) -> Family[Histogram]:
        return self._family(spec, lambda: Histogram(spec))

    def before_showing(self, hook: Callable[[], None]) -> None:
        """Call `hook` whenever values are about to be shown: for gauges that are read off something else."""
        self._hooks.append(hook)

    def families(self) -> list[Family[Any]]:
        """Give everything, by name, after letting the hooks refresh it."""
        for hook in self._hooks:
            hook()
        return [self._families[name] for name in sorted(self._families)]

    def roll(self, now: float) -> None:
        """Close the running interval; the agent calls this every 10 s and JSON shows the last closed one."""
        if self._rolled_at is not None:
            self.interval_s = now - self._rolled_at
        self._rolled_at = now
        for family in self._families.values():
            for instrument in family.series.values():
                instrument.roll()

    def _family(self, spec: Spec, make: Callable[[], InstrumentT]) -> Family[InstrumentT]:
        family = self._families.get(spec.name)
        if family is None:
            family = self._families[spec.name] = Family(spec, make, self._count_refused)
        return family

    def _count_refused(self) -> None:
        self._series_refused.add()
