"""What tasks and hosts use, as metrics: only where the operator wants it, and only of what is there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import trio
from trio.testing import MockClock

from fedsched.client.usage_metrics import (
    CPU_PERCENT,
    HOST_CPU,
    HOST_MEMORY,
    MEMORY_CACHE,
    MEMORY_RSS,
    TASK_LABELS,
    UsageMetrics,
    host_values,
    task_values,
)
from fedsched.model.usage import CpuStats, HostCpuStats, HostMemoryStats, HostStats, MemoryStats, ResourceUsage
from fedsched.telemetry.metrics import GaugeSpec
from tests.client.access_kit import FakeClient
from tests.client.test_stats import Uses


def test_only_what_a_driver_measures_is_a_metric() -> None:
    usage = ResourceUsage(
        memory_stats=MemoryStats(rss=100, cache=7, measured=("RSS",)),
        cpu_stats=CpuStats(percent=50.0, total_ticks=500.0, measured=("Percent",)),
    )
    values = task_values(usage)

    assert values[MEMORY_RSS] == 100
    assert values[CPU_PERCENT] == 50.0
    assert MEMORY_CACHE not in values


def test_a_host_is_told_core_by_core() -> None:
    stats = HostStats(memory=HostMemoryStats(total=1000), cpu=(HostCpuStats(cpu="cpu0", total_percent=25.0),))
    values = host_values(stats, "n1")

    assert values[HOST_MEMORY["total"], ("n1",)] == 1000
    assert values[HOST_CPU["total_percent"], ("cpu0", "n1")] == 25.0


def a_client(directory: Path, **settings: Any) -> tuple[FakeClient, UsageMetrics]:
    client = FakeClient(directory, **settings)
    client.driver = cast(Any, Uses())
    return client, UsageMetrics(client.parts, lambda: [one.context for one in client.runners.values()])


def shown(client: FakeClient, spec: GaugeSpec) -> dict[tuple[str, ...], float]:
    return {labels: one.value for labels, one in client.parts.metrics.gauges(spec).series.items()}


def test_every_running_task_has_its_series_until_it_ends(tmp_path: Path) -> None:
    client, usage = a_client(tmp_path, publish_allocation_metrics=True)
    first, second = client.add(1), client.add(2)
    alloc = first.context.alloc

    async def story() -> None:
        await usage.round()
        assert len(shown(client, MEMORY_RSS)) == 2
        labels = (alloc.job_id, alloc.task_group, "web", alloc.id, alloc.namespace, client.node.name)
        assert len(labels) == len(TASK_LABELS)
        assert shown(client, MEMORY_RSS)[labels] == 100
        await trio.sleep(10)
        second.context.tasks["web"].task_id = ""
        started = trio.current_time()
        await usage.round()
        assert trio.current_time() == started  # the round before is what a rate is made with
        assert shown(client, CPU_PERCENT) == {labels: 50.0}

    trio.run(story, clock=MockClock(autojump_threshold=0))
    assert shown(client, HOST_MEMORY["total"]) == {}


def test_the_host_is_published_on_its_own(tmp_path: Path) -> None:
    client, usage = a_client(tmp_path, publish_node_metrics=True)
    client.add(1)

    trio.run(usage.round)

    assert shown(client, HOST_MEMORY["total"])[client.node.name,] > 0
    assert shown(client, MEMORY_RSS) == {}
