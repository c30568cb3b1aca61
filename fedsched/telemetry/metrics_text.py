"""Metrics for others to read: Prometheus' text exposition format, and the JSON summary that Nomad's clients expect."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from fedsched.telemetry.metrics import Counter, Family, Gauge, Histogram, Interval, Registry

PREFIX: Final = "fedsched"
QUANTILES: Final = (0.5, 0.9, 0.99)
AnyFamily = Family[Any]


def prometheus_text(registry: Registry) -> str:
    """Give every series in text exposition format 0.0.4.

    A metric that dashboards know by another name is shown under both; there, histograms appear as summaries.
    """
    lines: list[str] = []
    for family in registry.families():
        lines += _native(family)
        if family.spec.nomad:
            lines += _known_elsewhere(family)
    return "\n".join(lines) + "\n"


def json_summary(registry: Registry, wall: float) -> dict[str, Any]:
    """Give the `/v1/metrics` object: gauges as they are, counters and samples of the last closed interval."""
    summary: dict[str, Any] = {
        "Timestamp": time.strftime("%Y-%m-%d %H:%M:%S +0000 UTC", time.gmtime(wall)),
        "Gauges": [],
        "PrecisionGauges": [],
        "Points": [],
        "Counters": [],
        "Samples": [],
    }
    for family in registry.families():
        for values, instrument in sorted(family.series.items()):
            row: dict[str, Any] = {"Name": _dotted(family), "Labels": _label_map(family, values)}
            if isinstance(instrument, Gauge):
                summary["Gauges"].append(row | {"Value": instrument.value})
                continue
            interval = instrument.last or instrument.interval
            if interval.count:
                kind = "Counters" if isinstance(instrument, Counter) else "Samples"
                summary[kind].append(row | _interval_fields(interval, registry.interval_s))
    return summary


def _native(family: AnyFamily) -> Iterator[str]:
    spec = family.spec
    suffix = f"_{spec.unit}" if spec.unit and not spec.name.endswith(spec.unit) else ""
    name = f"{PREFIX}_{spec.name.replace('.', '_')}{suffix}"
    if spec.kind == "counter":
        name += "_total"
    yield f"# HELP {name} {_escaped_help(spec.text)}"
    yield f"# TYPE {name} {spec.kind}"
    for values, instrument in sorted(family.series.items()):
        labels = list(zip(spec.labels, values, strict=True))
        if isinstance(instrument, Histogram):
            yield from _buckets(name, labels, instrument)
        else:
            yield f"{name}{_labels(labels)} {_number(instrument.value)}"


def _buckets(name: str, labels: list[tuple[str, str]], histogram: Histogram) -> Iterator[str]:
    seen = 0
    for bound, count in zip((*histogram.bounds, math.inf), histogram.counts, strict=True):
        seen += count
        yield f"{name}_bucket{_labels([*labels, ('le', _number(bound))])} {seen}"
    yield f"{name}_sum{_labels(labels)} {_number(histogram.sum)}"
    yield f"{name}_count{_labels(labels)} {seen}"


def _known_elsewhere(family: AnyFamily) -> Iterator[str]:
    name = family.spec.nomad.replace(".", "_").replace("-", "_")
    kind = "summary" if family.spec.kind == "histogram" else family.spec.kind
    yield f"# HELP {name} {_escaped_help(family.spec.text)}"
    yield f"# TYPE {name} {kind}"
    for values, instrument in sorted(family.series.items()):
        labels = list(zip(family.spec.labels, values, strict=True))
        if isinstance(instrument, Histogram):
            for share in QUANTILES:
                yield f"{name}{_labels([*labels, ('quantile', str(share))])} {_number(instrument.quantile(share))}"
            yield f"{name}_sum{_labels(labels)} {_number(instrument.sum)}"
            yield f"{name}_count{_labels(labels)} {instrument.count}"
        else:
            yield f"{name}{_labels(labels)} {_number(instrument.value)}"


def _interval_fields(interval: Interval, interval_s: float) -> dict[str, Any]:
    return {
        "Count": interval.count,
        "Rate": interval.sum / interval_s if interval_s else 0.0,
        "Sum": interval.sum,
        "Min": interval.low,
        "Max": interval.high,
        "Mean": interval.mean,
        "Stddev": interval.deviation,
    }


def _dotted(family: AnyFamily) -> str:
    return family.spec.nomad or f"{PREFIX}.{family.spec.name}"


def _label_map(family: AnyFamily, values: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(family.spec.labels, values, strict=True))


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    inside = ",".join(f'{key}="{_escaped_label(value)}"' for key, value in pairs)
    return f"{{{inside}}}" if inside else ""


def _escaped_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)


def reference_page(specs: Iterable[Any], heading: Callable[[str], str] = "# {}".format) -> str:
    """Write the metrics table of the reference from the declarations."""
    rows = [
        f"| `{spec.name}` | {spec.kind} | {spec.unit or '-'} | {', '.join(spec.labels) or '-'} | {spec.text} |"
        for spec in specs
    ]
    head = ["| name | kind | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([heading("Metrics"), "", *head, *rows]) + "\n"
