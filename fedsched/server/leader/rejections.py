"""Notices nodes that refuse plan after plan: something about them is not as their record says.

Schedulers would send work there for ever. After many refusals within a few minutes a node is made ineligible, so that a
person looks at it; only few nodes in half an hour, because if many refuse, the fault is elsewhere.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RejectionSettings:
    """Nomad's numbers, and like there off unless asked for."""

    is_enabled: bool = False
    threshold: int = 100
    window_s: float = 300.0
    nodes_max: int = 50
    rate: int = 5
    rate_window_s: float = 1800.0
    burst: int = 10


class RejectionTracker:
    """Counts refusals per node."""

    def __init__(self, settings: RejectionSettings | None = None) -> None:
        self._settings = settings or RejectionSettings()
        self._nodes: OrderedDict[str, deque[float]] = OrderedDict()
        self._allowance = float(self._settings.burst)
        self._filled_at: float | None = None

    def note(self, node_ids: Iterable[str], now: float) -> list[str]:
        """These nodes refused a plan; returns those that have refused too many."""
        if not self._settings.is_enabled:
            return []
        return [node_id for node_id in node_ids if self._is_too_much(node_id, now) and self._may_act(now)]

    def _is_too_much(self, node_id: str, now: float) -> bool:
        times = self._nodes.setdefault(node_id, deque(maxlen=self._settings.threshold))
        self._nodes.move_to_end(node_id)
        if len(self._nodes) > self._settings.nodes_max:
            self._nodes.popitem(last=False)
        times.append(now)
        while times[0] <= now - self._settings.window_s:
            times.popleft()
        return len(times) >= self._settings.threshold

    def _may_act(self, now: float) -> bool:
        settings = self._settings
        if self._filled_at is not None:
            gained = (now - self._filled_at) * settings.rate / settings.rate_window_s
            self._allowance = min(float(settings.burst), self._allowance + gained)
        self._filled_at = now
        if self._allowance < 1.0:
            return False
        self._allowance -= 1.0
        return True
