"""The plan applier's figures for operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fedsched.server.leader.plan_check import Verdict
from fedsched.state.tables.plans import PlanApply
from fedsched.telemetry.metrics import COUNT_BUCKETS, Registry, counter, gauge, histogram

_DEPTH: Final = gauge("plan.queue_depth", "plans waiting for the applier", nomad="nomad.nomad.plan.queue_depth")
_IN_FLIGHT: Final = gauge("plan.in_flight", "plans checked and not yet committed")
_CHECK: Final = histogram("plan.evaluate", "time to check one plan", nomad="nomad.nomad.plan.evaluate")
_COMMIT: Final = histogram("plan.apply", "time from proposing a plan to its commit", nomad="nomad.nomad.plan.apply")
_WHOLE: Final = histogram("plan.submit", "time from submitting a plan to its answer", nomad="nomad.nomad.plan.submit")
_PLACED: Final = histogram("plan.placed", "allocations placed by one plan", unit="", buckets=COUNT_BUCKETS)
_PLANS: Final = counter("plan.checked", "plans checked, by what came of it", labels=("verdict",))
_NODES: Final = counter("plan.nodes_rejected", "nodes whose share of a plan was refused")
_SAME_INDEX: Final = counter(
    "plan.refused_at_same_index",
    "plans refused although nothing had changed since they were made: scheduler and applier disagree",
)


class PlanMeters:
    """What the applier counts."""

    def __init__(self, registry: Registry, *, depth: Callable[[], int], in_flight: Callable[[], int]) -> None:
        self._check = registry.histogram(_CHECK)
        self._commit = registry.histogram(_COMMIT)
        self._whole = registry.histogram(_WHOLE)
        self._placed = registry.histogram(_PLACED)
        self._plans = registry.counters(_PLANS)
        self._nodes = registry.counter(_NODES)
        self._same_index = registry.counter(_SAME_INDEX)
        depth_gauge, flight_gauge = registry.gauge(_DEPTH), registry.gauge(_IN_FLIGHT)

        def read() -> None:
            depth_gauge.set(depth())
            flight_gauge.set(in_flight())

        registry.before_showing(read)

    def checked(self, seconds: float, verdict: Verdict, plan: PlanApply, *, is_alone: bool) -> None:
        """A plan was judged; `is_alone` if none was in flight, so that only the state can have refused it."""
        self._check.observe(seconds)
        self._plans.labels("whole" if verdict.is_whole else "none" if verdict.is_empty else "part").add()
        self._nodes.add(len(verdict.rejected))
        self._placed.observe(sum(len(group.ids) for group in verdict.command.placed) // 16)
        if not verdict.is_whole and is_alone and verdict.refresh_index <= plan.snapshot_index:
            self._same_index.add()

    def committed(self, commit_s: float, whole_s: float) -> None:
        self._commit.observe(commit_s)
        self._whole.observe(whole_s)
