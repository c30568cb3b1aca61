"""The bytes that a plan stores beside the columns of allocations, made from what was decided."""

from __future__ import annotations

from typing import Any

from fedsched.codec import dumps
from fedsched.model.alloc import AllocState, ClientStatus, RescheduleTracker
from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.plain_form import to_plain
from fedsched.scheduler.ask import Ask, Offer, allocated_resources
from fedsched.scheduler.reconcile.held import STATUS_FIELD, Held


def shared_fields(ask: Ask, metric: AllocMetric) -> bytes:
    """What all allocations of one choice have in common: resources and how the choice was made."""
    fields = {"Metrics": to_plain(metric)}
    if not ask.needs_special:
        fields["AllocatedResources"] = to_plain(allocated_resources(ask))
    return dumps(fields)


def own_fields(
    ask: Ask,
    offer: Offer | None,
    *,
    tracker: RescheduleTracker | None = None,
    preempted: tuple[str, ...] = (),
) -> dict[str, Any]:
    """What one allocation has for itself."""
    fields: dict[str, Any] = {}
    if offer is not None:
        fields["AllocatedResources"] = to_plain(allocated_resources(ask, offer))
    if tracker is not None:
        fields["RescheduleTracker"] = to_plain(tracker)
    if preempted:
        fields["PreemptedAllocations"] = list(preempted)
    return fields


def wished_fields(
    held: Held,
    *,
    description: str = "",
    followup_id: str = "",
    state: AllocState | None = None,
    tracker: RescheduleTracker | None = None,
    is_back: bool = False,
) -> dict[str, Any]:
    """What is wished of an allocation from now on. It replaces what was wished before, so that is carried over.

    One that `is_back` is waited for no longer: the evaluation that would have come back to it was dropped.
    """
    states = (*held.states, state) if state is not None else held.states
    fields = said_fields(description, followup_id or ("" if is_back else held.followup_id))
    if states:
        fields["AllocStates"] = to_plain(list(states))
    known = tracker if tracker is not None else held.tracker
    if known is not None:
        fields["RescheduleTracker"] = to_plain(known)
    return fields


def said_fields(description: str, followup_id: str) -> dict[str, Any]:
    """The same for one of which nothing was ever said before."""
    fields: dict[str, Any] = {}
    if description:
        fields["DesiredDescription"] = description
    if followup_id:
        fields["FollowupEvalID"] = followup_id
    return fields


def became(status: ClientStatus, now_ns: int) -> AllocState:
    """The note that an allocation's client status changed."""
    return AllocState(field=STATUS_FIELD, value=status.value, time_ns=now_ns)
