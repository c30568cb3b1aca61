"""Clients that are cut off and come back: how long to wait, and which copy stays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fedsched.model.alloc import Allocation
from fedsched.model.group import TaskGroup
from fedsched.model.policies import DisconnectStrategy, ReconcileOption
from fedsched.scheduler.reconcile.held import COMPLETE, RUNNING, Held
from fedsched.scheduler.reconcile.wanted import NOT_NEEDED, RECONNECTED, RESCHEDULED, Stop

SECOND_NS: Final = 1_000_000_000
LEAST_KILL_S: Final = 5.0
"""The least time that a client is given to end tasks it stops on its own."""


class CutOff(NamedTuple):
    """What a group says about clients that are cut off."""

    lost_after_ns: int = 0
    """0: not said."""
    stop_after_ns: int | None = None
    """After how long alone the client has surely stopped the allocation, its tasks' last seconds included."""
    may_replace: bool = True
    reconcile: str = ReconcileOption.BEST_SCORE.value

    @classmethod
    def of(cls, group: TaskGroup) -> CutOff:
        strategy = group.disconnect if group.disconnect is not None else _legacy(group)
        stop_s = strategy.stop_on_client_after_s
        kill_s = max([LEAST_KILL_S, *(task.kill_timeout_s for task in group.tasks)])
        return cls(
            lost_after_ns=round(strategy.lost_after_s * SECOND_NS),
            stop_after_ns=round((stop_s + kill_s) * SECOND_NS) if stop_s else None,
            may_replace=strategy.replace is not False,
            reconcile=strategy.reconcile or ReconcileOption.BEST_SCORE.value,
        )

    def is_over(self, unknown_since_ns: int, now_ns: int) -> bool:
        """Whether an allocation that became unknown then has to be given up."""
        return self.lost_after_ns > 0 and unknown_since_ns > 0 and now_ns - unknown_since_ns >= self.lost_after_ns


def _legacy(group: TaskGroup) -> DisconnectStrategy:
    """The older fields stand for a disconnect block where there is none."""
    return DisconnectStrategy(
        lost_after_s=group.max_client_disconnect_s or 0.0,
        stop_on_client_after_s=group.stop_after_client_disconnect_s,
        replace=not group.prevent_reschedule_on_lost,
    )


class Reunion(NamedTuple):
    """Who stays and who goes after clients came back."""

    kept: list[Held]
    stops: list[Stop]


def reunite(
    reconnecting: list[Held], everyone: Mapping[str, Held], group: TaskGroup, cut_off: CutOff, version: tuple[int, int]
) -> Reunion:
    """Settle between allocations that are back and whatever was placed for them meanwhile.

    `everyone` has the group's allocations by id; `version` is that of the job now.
    """
    result = Reunion([], [])
    stopped: set[Held] = set()
    for held in reconnecting:
        reason = _cannot_stay(held, version)
        others = _replacements(held, everyone) if not reason else []
        for other in others:
            if keeps_replacement(held, other, group, cut_off.reconcile):
                reason = NOT_NEEDED
            elif other not in stopped:
                stopped.add(other)
                result.stops.append(Stop(other, RECONNECTED))
        if not reason:
            result.kept.append(held)
        elif held not in stopped:
            stopped.add(held)
            result.stops.append(Stop(held, reason))
    return Reunion([held for held in result.kept if held not in stopped], result.stops)


def _cannot_stay(held: Held, version: tuple[int, int]) -> str:
    """Why an allocation that is back is of no use, whatever was placed for it; empty if it is."""
    if held.is_client_terminal and held.client != COMPLETE and not held.is_server_terminal:
        return RESCHEDULED
    asked = held.should_migrate or held.should_reschedule or held.must_reschedule
    is_older = held.version[0] < version[0] or held.version[1] < version[1]
    return NOT_NEEDED if held.is_server_terminal or asked or is_older else ""


def _replacements(held: Held, everyone: Mapping[str, Held]) -> list[Held]:
    """Follow the links: a replacement may have been replaced itself. Only what servers still want is of interest."""
    found: list[Held] = []
    seen = {held}
    link = held.next_id
    while (other := everyone.get(link)) is not None and other not in seen:
        seen.add(other)
        if not other.is_server_terminal:
            found.append(other)
        link = other.next_id
    return found


def keeps_replacement(held: Held, other: Held, group: TaskGroup, option: str) -> bool:
    """Whether the replacement stays and the original goes."""
    if other.is_client_terminal and other.client != COMPLETE:
        return False
    if other.version > held.version:
        return True
    if option == ReconcileOption.KEEP_ORIGINAL:
        return False
    if option == ReconcileOption.KEEP_REPLACEMENT:
        return True
    if option == ReconcileOption.LONGEST_RUNNING:
        one, two = started_ns(held.record, group), started_ns(other.record, group)
        if one or two:
            return not one or 0 < two < one
    return score(other.record) > score(held.record) and (other.client == RUNNING or held.client != RUNNING)


def score(allocation: Allocation) -> float:
    """The normalized score with which its node was chosen."""
    metrics = allocation.metrics
    scores = metrics.score_meta_data if metrics is not None else ()
    own = [meta.norm_score for meta in scores if meta.node_id == allocation.node_id]
    return max(own or [meta.norm_score for meta in scores], default=0.0)


def started_ns(allocation: Allocation, group: TaskGroup) -> int:
    """When its leader started, or the oldest of its main tasks; 0 if nobody knows."""
    states = allocation.task_states
    names = [task.name for task in group.tasks if task.leader]
    names = names or [task.name for task in group.tasks if task.lifecycle is None]
    starts = [states[name].started_at_ns for name in names if name in states]
    return min((start for start in starts if start), default=0)
