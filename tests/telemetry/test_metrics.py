from __future__ import annotations

import gc
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.telemetry import metrics as m
from fedsched.telemetry.metrics import Registry
from fedsched.telemetry.metrics_text import json_summary, prometheus_text, reference_page
from fedsched.telemetry.process import ProcessMetrics, resident_bytes


@pytest.fixture(autouse=True)
def _own_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(m, "_catalogue", {})


def without_own(text: str) -> str:
    """The text less the registry's own counter, which every registry has."""
    return "".join(line for line in text.splitlines(keepends=True) if "series_refused" not in line)


def test_counters_and_gauges_in_prometheus_text() -> None:
    registry = Registry()
    commits = registry.counter(m.counter("raft.commits", "entries committed"))
    lag = registry.gauges(m.gauge("raft.peer_lag", 'how far "behind"\nand\\so', unit="entries", labels=("peer",)))

    commits.add()
    commits.add(2)
    lag.labels("eu-2").set(5)
    lag.labels('odd"\\\nname').set(0.5)
    lag.labels("eu-2").add(1)

    assert without_own(prometheus_text(registry)) == (
        "# HELP fedsched_raft_commits_total entries committed\n"
        "# TYPE fedsched_raft_commits_total counter\n"
        "fedsched_raft_commits_total 3\n"
        '# HELP fedsched_raft_peer_lag_entries how far "behind"\\nand\\\\so\n'
        "# TYPE fedsched_raft_peer_lag_entries gauge\n"
        'fedsched_raft_peer_lag_entries{peer="eu-2"} 6\n'
        'fedsched_raft_peer_lag_entries{peer="odd\\"\\\\\\nname"} 0.5\n'
    )


def test_histograms_are_cumulative_in_prometheus_text() -> None:
    registry = Registry()
    spec = m.histogram("raft.sync", "durable writes", labels=("disk",), buckets=(0.001, 0.01))
    sync = registry.histograms(spec).labels("a")

    for value in (0.0005, 0.001, 0.005, 3.0):
        sync.observe(value)

    assert without_own(prometheus_text(registry)) == (
        "# HELP fedsched_raft_sync_seconds durable writes\n"
        "# TYPE fedsched_raft_sync_seconds histogram\n"
        'fedsched_raft_sync_seconds_bucket{disk="a",le="0.001"} 2\n'
        'fedsched_raft_sync_seconds_bucket{disk="a",le="0.01"} 3\n'
        'fedsched_raft_sync_seconds_bucket{disk="a",le="+Inf"} 4\n'
        'fedsched_raft_sync_seconds_sum{disk="a"} 3.0065\n'
        'fedsched_raft_sync_seconds_count{disk="a"} 4\n'
    )


def test_a_metric_known_elsewhere_is_shown_under_both_names() -> None:
    registry = Registry()
    registry.histogram(m.histogram("raft.apply", "x", buckets=(1.0, 2.0), nomad="nomad.raft.apply")).observe(1.5)
    registry.gauge(m.gauge("broker.ready", "x", nomad="nomad.nomad.broker.total_ready")).set(4)

    text = prometheus_text(registry)

    assert "\nnomad_nomad_broker_total_ready 4\n" in text
    assert "# TYPE nomad_raft_apply summary\n" in text
    assert 'nomad_raft_apply{quantile="0.5"} 1.5\n' in text
    assert "\nnomad_raft_apply_count 1\n" in text
    names = [row["Name"] for row in json_summary(registry, 0)["Gauges"]]
    assert names == ["nomad.nomad.broker.total_ready"]


def test_json_shows_the_last_closed_interval() -> None:
    registry = Registry()
    sync = registry.histogram(m.histogram("raft.sync", "durable writes"))
    commits = registry.counters(m.counter("raft.commits", "entries", labels=("kind",))).labels("job")

    registry.roll(now=100)
    sync.observe(1)
    sync.observe(3)
    commits.add(4)
    registry.roll(now=110)
    sync.observe(99)
    summary = json_summary(registry, 1_787_308_401.9)

    assert summary["Timestamp"] == "2026-08-21 10:33:21 +0000 UTC"
    assert summary["Samples"] == [
        {
            "Name": "fedsched.raft.sync",
            "Labels": {},
            "Count": 2,
            "Rate": 0.4,
            "Sum": 4.0,
            "Min": 1,
            "Max": 3,
            "Mean": 2.0,
            "Stddev": math.sqrt(2),
        }
    ]
    assert [(row["Name"], row["Labels"], row["Sum"]) for row in summary["Counters"]] == [
        ("fedsched.raft.commits", {"kind": "job"}, 4.0)
    ]
    assert (summary["PrecisionGauges"], summary["Points"]) == ([], [])


def test_before_the_first_interval_closes_json_shows_what_there_is() -> None:
    registry = Registry()
    registry.histogram(m.histogram("raft.sync", "durable writes")).observe(2)

    assert [row["Count"] for row in json_summary(registry, 0)["Samples"]] == [1]


def test_labels_beyond_the_ceiling_are_counted_as_other() -> None:
    registry = Registry()
    family = registry.counters(m.counter("api.calls", "calls", labels=("who",), series_max=2))

    for who in ("a", "b", "c", "d", "a"):
        family.labels(who).add()

    assert {values: series.value for values, series in family.series.items()} == {("a",): 2, ("b",): 1, ("other",): 2}
    assert "fedsched_telemetry_series_refused_total 2\n" in prometheus_text(registry)


def test_a_removed_series_makes_room() -> None:
    registry = Registry()
    family = registry.gauges(m.gauge("raft.lag", "lag", labels=("peer",), series_max=1))
    family.labels("a")

    family.remove("a")
    family.remove("never there")
    family.labels("b")

    assert list(family.series) == [("b",)]


def test_registries_do_not_share_values() -> None:
    spec = m.counter("raft.commits", "entries")
    first, second = Registry(), Registry()

    first.counter(spec).add()

    assert first.counter(spec) is first.counter(spec)
    assert second.counter(spec).value == 0


def test_hooks_refresh_gauges_before_they_are_shown() -> None:
    registry = Registry()
    depth = registry.gauge(m.gauge("broker.depth", "waiting"))
    registry.before_showing(lambda: depth.set(12))

    assert "fedsched_broker_depth 12\n" in prometheus_text(registry)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: m.counter("raft commits", "x"), "not words joined by dots"),
        (lambda: m.counter("raft.commits", ""), "no help text"),
        (lambda: m.histogram("raft.sync", "x", buckets=(2.0, 1.0)), "must ascend"),
        (lambda: [m.gauge("a.b", "x"), m.gauge("a.b", "x")], "declared twice"),
        (lambda: Registry().gauge(m.gauge("a.c", "x", labels=("peer",))), "has labels"),
        (lambda: Registry().counter(m.counter("a.d", "x")).add(-1), "cannot go down"),
    ],
)
def test_mistakes_in_declarations_are_refused(make: object, problem: str) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match=problem):
        make()


@given(st.lists(st.floats(min_value=0, max_value=100), min_size=1), st.floats(min_value=0.01, max_value=1))
def test_an_estimated_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float) -> None:
    spec = m.HistogramSpec("x", "x", "", (), 1, "")
    spec.buckets = (1.0, 10.0, 50.0, 100.0)
    histogram = m.Histogram(spec)
    for value in values:
        histogram.observe(value)

    true = sorted(values)[math.ceil(share * len(values)) - 1]
    upper = min(bound for bound in spec.buckets if true <= bound)
    lower = max((bound for bound in spec.buckets if bound < true), default=0.0)
    assert lower - 1e-9 <= histogram.quantile(share) <= upper + 1e-9


def test_quantiles_at_the_edges() -> None:
    spec = m.HistogramSpec("x", "x", "", (), 1, "")
    spec.buckets = (1.0,)
    histogram = m.Histogram(spec)
    assert math.isnan(histogram.quantile(0.5))

    histogram.observe(70)
    assert histogram.quantile(0.5) == 1.0


@pytest.mark.parametrize(
    ("value", "text"), [(math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (1e20, "1e+20")]
)
def test_odd_numbers_in_prometheus_text(value: float, text: str) -> None:
    registry = Registry()
    registry.gauge(m.gauge("a.b", "x")).set(value)

    assert f"fedsched_a_b {text}\n" in prometheus_text(registry)


def test_the_reference_page_lists_every_declaration() -> None:
    m.gauge("raft.lag", "how far behind", unit="entries", labels=("peer",))
    m.counter("raft.commits", "entries committed")

    page = reference_page(m.catalogue().values())

    assert "| `raft.commits` | counter | - | - | entries committed |\n| `raft.lag` | gauge | entries | peer |" in page


def test_process_figures_are_read_when_shown() -> None:
    registry = Registry()
    with ProcessMetrics(registry) as process:
        gc.collect()
        text = prometheus_text(registry)
    gc.collect()

    assert "fedsched_process_gc_pause_seconds_count 1\n" in text
    assert re.search(r"^fedsched_process_cpu_seconds [0-9.]+$", text, re.MULTILINE)
    assert re.search(r"^fedsched_process_threads [1-9][0-9]*$", text, re.MULTILINE)
    assert resident_bytes() > 1_000_000
    assert process._on_gc not in gc.callbacks


def test_process_figures_are_zero_where_the_system_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise FileNotFoundError("/proc")

    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("os.listdir", refuse)
    registry = Registry()
    ProcessMetrics(registry)

    text = prometheus_text(registry)
    assert "fedsched_process_resident_bytes 0\n" in text
    assert "fedsched_process_open_files 0\n" in text
