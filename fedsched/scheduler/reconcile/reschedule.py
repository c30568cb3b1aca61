"""When a failed allocation is replaced: now, later, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final, NamedTuple

from fedsched.model.alloc import RescheduleEvent, RescheduleTracker
from fedsched.model.deployment import Deployment
from fedsched.model.evaluation import Evaluation, Trigger
from fedsched.model.job import Job
from fedsched.model.policies import DelayFunction, ReschedulePolicy
from fedsched.scheduler.reconcile.held import COMPLETE, EVICT, FAILED, LOST, STOP, UNKNOWN, Held

SECOND_NS: Final = 1_000_000_000
NOW_WINDOW_NS: Final = SECOND_NS
"""What is due within this time is done now."""
BATCH_WINDOW_NS: Final = 5 * SECOND_NS
"""Follow-ups due within this time of one another are one."""
KEPT_EVENTS: Final = 5
"""Past replacements remembered where their number is not limited."""
PLACED: Final = "ok"


class Verdict(Enum):
    """What becomes of an allocation in the reschedule decision."""

    DROP = "it no longer counts: something fresh may take its place"
    KEEP = "it keeps its place"
    NOW = "replace it now"
    LATER = "replace it at a later time, until then it keeps its place"


class Decision(NamedTuple):
    verdict: Verdict
    due_ns: int = 0


KEEP: Final = Decision(Verdict.KEEP)
DROP: Final = Decision(Verdict.DROP)
NOW: Final = Decision(Verdict.NOW)


class Due(NamedTuple):
    """When an allocation may be replaced, and whether at all."""

    time_ns: int
    is_eligible: bool
    delay_s: float = 0.0


def decide(
    held: Held,
    policy: ReschedulePolicy | None,
    *,
    is_batch: bool,
    evaluation_id: str,
    deployment: Deployment | None,
    now_ns: int,
) -> Decision:
    """Decide about an allocation that is neither lost nor cut off just now."""
    if held.is_terminal and held.next_id:
        return DROP
    early = _batch_first(held) if is_batch else _service_first(held)
    if early is not None:
        return early
    if _is_deploying(held, deployment):
        return KEEP
    if held.must_reschedule and held.is_client_terminal and is_on(policy):
        return NOW
    if held.client == UNKNOWN:
        if held.next_id or held.followup_id != evaluation_id:
            return KEEP
        due = due_from(held, policy, held.unknown_since_ns)
    elif held.client == FAILED or (is_batch and held.should_reschedule):
        due = due_from(held, policy, last_event_ns(held))
    else:
        return KEEP
    if held.last_reschedule_failed and due.is_eligible:
        return NOW  # it was due before, and found no place
    return _when(due, held.followup_id, evaluation_id, now_ns)


def decide_cut_off(
    held: Held, policy: ReschedulePolicy | None, *, deployment: Deployment | None, now_ns: int
) -> Decision:
    """Decide about an allocation whose client was cut off just now: the delay counts from now."""
    if _is_deploying(held, deployment):
        return KEEP
    return _when(due_from(held, policy, now_ns), "", "", now_ns)


def _batch_first(held: Held) -> Decision | None:
    if held.needs_no_placement:
        return KEEP
    if held.should_reschedule:
        return None
    if held.desired == STOP:
        if held.ran_successfully:
            return KEEP
        return None if held.last_reschedule_failed else DROP
    if held.desired == EVICT:
        return DROP
    return None if held.client in (FAILED, UNKNOWN) else KEEP


def _service_first(held: Held) -> Decision | None:
    if held.is_server_terminal:
        return None if held.last_reschedule_failed else DROP
    return DROP if held.client in (COMPLETE, LOST) else None


def _is_deploying(held: Held, deployment: Deployment | None) -> bool:
    """While it is part of a deployment, the deployment's watcher decides, by setting the reschedule flag."""
    if deployment is None or not deployment.is_active or held.should_reschedule:
        return False
    return held.deployment_id == deployment.id


def _when(due: Due, followup_id: str, evaluation_id: str, now_ns: int) -> Decision:
    if not due.is_eligible:
        return KEEP
    if (followup_id and followup_id == evaluation_id) or due.time_ns - now_ns <= NOW_WINDOW_NS:
        return NOW
    return KEEP if followup_id else Decision(Verdict.LATER, due.time_ns)


def is_on(policy: ReschedulePolicy | None) -> bool:
    return policy is not None and (policy.unlimited or policy.attempts > 0)


def last_event_ns(held: Held) -> int:
    """When its last task came to an end; if nobody said, when it was last changed."""
    finished = [state.finished_at_ns for state in held.record.task_states.values()]
    return max(finished, default=0) or held.modify_time_ns


def due_from(held: Held, policy: ReschedulePolicy | None, failed_ns: int) -> Due:
    """When a replacement is due for what failed at this time."""
    return next_due(policy, held.tracker.events if held.tracker is not None else (), failed_ns)


def next_due(policy: ReschedulePolicy | None, events: Sequence[RescheduleEvent], failed_ns: int) -> Due:
    if policy is None or not is_on(policy):
        return Due(0, False)
    delay_s = next_delay(policy, events, failed_ns)
    is_eligible = policy.unlimited
    if not is_eligible:
        recent = sum(failed_ns - event.reschedule_time_ns < _ns(policy.interval_s) for event in events)
        is_eligible = recent < policy.attempts and delay_s < policy.interval_s
    return Due(failed_ns + _ns(delay_s), is_eligible, delay_s)


def next_delay(policy: ReschedulePolicy, events: Sequence[RescheduleEvent], failed_ns: int) -> float:
    """How long to wait after the failure, seen from the waits before."""
    if not events or policy.delay_function == DelayFunction.CONSTANT:
        return policy.delay_s
    delay_s = policy.delay_s
    if policy.delay_function == DelayFunction.EXPONENTIAL:
        delay_s = 2 * events[-1].delay_s
    elif policy.delay_function == DelayFunction.FIBONACCI and len(events) >= 2:
        before, last = events[-2].delay_s, events[-1].delay_s
        has_restarted = before == policy.max_delay_s and last == policy.delay_s
        delay_s = last if has_restarted else before + last
    if 0 < policy.max_delay_s < delay_s:
        ran_ns = failed_ns - events[-1].reschedule_time_ns
        return policy.delay_s if ran_ns > _ns(policy.max_delay_s) else policy.max_delay_s
    return delay_s


def tracker_after(held: Held, policy: ReschedulePolicy | None, failed_ns: int, now_ns: int) -> RescheduleTracker:
    """The story that goes with a replacement made now."""
    past = held.tracker.events if held.tracker is not None else ()
    delay_s = next_delay(policy, past, failed_ns) if policy is not None else 0.0
    if policy is not None and policy.attempts > 0:
        kept = tuple(event for event in past if now_ns - event.reschedule_time_ns <= _ns(policy.interval_s))
    else:
        kept = past[-KEPT_EVENTS:]
    event = RescheduleEvent(
        reschedule_time_ns=now_ns, prev_alloc_id=held.id, prev_node_id=held.record.node_id, delay_s=delay_s
    )
    return RescheduleTracker(events=(*kept, event), last_reschedule=PLACED)


class FollowUps(NamedTuple):
    """Evaluations to come back with, and which allocation waits for which of them."""

    evaluations: list[Evaluation]
    ids: dict[Held, str]


def follow_ups(
    dues: Sequence[tuple[int, Held]],
    *,
    job: Job,
    evaluation: Evaluation,
    now_ns: int,
    new_id: Callable[[], str],
    first: Trigger,
    later: Trigger,
    description: str,
) -> FollowUps:
    """One evaluation for all that are due within five seconds of the first of them, then the next one."""
    result = FollowUps([], {})
    for due_ns, held in sorted(dues, key=lambda due: (due[0], due[1].at)):
        last = result.evaluations[-1] if result.evaluations else None
        if last is None or due_ns - last.wait_until_ns >= BATCH_WINDOW_NS:
            last = Evaluation(
                id=new_id(),
                namespace=job.namespace,
                priority=evaluation.priority,
                type=job.type,
                triggered_by=(later if last is not None else first).value,
                job_id=job.id,
                job_modify_index=job.modify_index,
                status_description=description,
                wait_until_ns=due_ns,
                previous_eval=evaluation.id,
                create_time_ns=now_ns,
                modify_time_ns=now_ns,
            )
            result.evaluations.append(last)
        result.ids[held] = last.id
    return result


def no_longer_awaited(settled: AbstractSet[Held], everyone: Iterable[Held], evaluation_id: str) -> list[str]:
    """Follow-ups that only these waited for: one evaluation often comes back for several."""
    awaited = {held.followup_id for held in everyone if held not in settled and not held.is_server_terminal}
    mine = {held.followup_id for held in settled}
    return sorted(mine - awaited - {"", evaluation_id})


def _ns(seconds: float) -> int:
    return round(seconds * SECOND_NS)
