"""Why something could not be placed, in lines for people: the same for runs, plans and evaluations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedsched.model.alloc_metric import AllocMetric


def failure_lines(failed: Mapping[str, AllocMetric], queued: Mapping[str, int] | None = None) -> Iterator[str]:
    """One heading per group and its reasons below, without indent for headings."""
    for group, metric in sorted(failed.items()):
        count = (queued or {}).get(group) or metric.coalesced_failures + 1
        yield f'Task Group "{group}" (failed to place {count} allocation{"s"[: count > 1]}):'
        for reason in reasons(metric):
            yield f"  * {reason}"


def reasons(metric: AllocMetric) -> Iterator[str]:
    """What stood in the way, as counted over all nodes."""
    if not metric.nodes_evaluated and not metric.nodes_in_pool:
        pool = f' in node pool "{metric.node_pool}"' if metric.node_pool else ""
        yield f"No nodes were eligible for evaluation{pool}"
    for datacenter, available in sorted(metric.nodes_available.items()):
        if not available:
            yield f'No nodes are available in datacenter "{datacenter}"'
    for node_class, count in sorted(metric.class_filtered.items()):
        yield f'Class "{node_class}": {count} nodes excluded by filter'
    for constraint, count in sorted(metric.constraint_filtered.items()):
        yield f'Constraint "{constraint}": {count} nodes excluded by filter'
    if metric.nodes_exhausted:
        yield f"Resources exhausted on {metric.nodes_exhausted} nodes"
    for node_class, count in sorted(metric.class_exhausted.items()):
        yield f'Class "{node_class}" exhausted on {count} nodes'
    for dimension, count in sorted(metric.dimension_exhausted.items()):
        yield f'Dimension "{dimension}" exhausted on {count} nodes'
    for quota in metric.quota_exhausted:
        yield f'Quota limit hit "{quota}"'
