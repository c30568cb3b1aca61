"""Counting in advance: plans on their way into the log, and what an evaluation plans for itself.

The plan applier checks the next plan while earlier ones are being replicated, and an evaluation places its second group
knowing where it put the first. Both count in the fleet's own columns and take it back: when a plan is committed it
comes again as a change of the state, and when an evaluation is done its plan goes to the leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedsched.model.ids import uuid_text
from fedsched.scheduler.fleet_columns import Slots
from fedsched.scheduler.fleet_usage import Usage, read_allocated, usage_of
from fedsched.scheduler.special import Special, written_volumes
from fedsched.state.fields import unpack
from fedsched.state.id_map import words_of
from fedsched.state.store import State
from fedsched.state.tables.alloc_columns import RUN
from fedsched.state.tables.allocations import Allocations
from fedsched.state.tables.plans import PlacedGroup, PlanApply, UpdatedGroup

if TYPE_CHECKING:
    from fedsched.scheduler.fleet import Fleet


class Reservation:
    """What was counted in advance, kept to be taken back."""

    __slots__ = ("added", "away", "leaving", "special")

    def __init__(self) -> None:
        self.added: list[tuple[Slots, NDArray[np.float64], int]] = []
        self.leaving: list[int] = []
        self.away: list[int] = []
        self.special: list[tuple[int, int]] = []


def reserve_plan(fleet: Fleet, state: State, plan: PlanApply) -> Reservation:
    """Count a plan that is not committed yet.

    What it places takes room at once. What it stops no longer holds its place, but goes on to occupy it until its
    client has ended it; unless the plan itself says that it is over there (lost).
    """
    fleet.ensure(state.nodes.slots.high)
    made = Reservation()
    for batch in plan.stopped:
        over = batch.client_status in _OVER
        if batch.desired == RUN and not over:
            continue  # something is noted about these; they go on
        (made.away if over else made.leaving).extend(_known(state, batch.ids))
    fleet.shift_flags(made.leaving, 1, away=False)
    fleet.shift_flags(made.away, 1, away=True)
    for update in plan.updated:
        _update(fleet, state, plan, update, made)
    for group in plan.placed:
        _place(fleet, state, plan, group, made)
    return made


_OVER = (3, 4, 5)
"""Client statuses that are an end: complete, failed, lost (see `alloc_columns`)."""


def set_aside(fleet: Fleet, alloc_slots: Slots) -> Reservation:
    """The place of these allocations is free for whoever works on the fleet now."""
    made = Reservation()
    made.away = np.unique(alloc_slots).tolist()
    fleet.shift_flags(made.away, 1, away=True)
    return made


def place_planned(fleet: Fleet, node_slots: Slots, usage: Usage, special: Sequence[Special | None] = ()) -> Reservation:
    """Count planned allocations that are all alike."""
    made = Reservation()
    _add(fleet, made, node_slots, np.full((len(node_slots), 3), usage, dtype=np.float64), 1)
    for slot, held in zip(node_slots.tolist(), special, strict=False):
        if held is not None:
            made.special.append((slot, fleet.add_special(slot, held)))
    return made


def release(fleet: Fleet, made: Reservation) -> None:
    """Take everything back; the reservation is empty afterwards."""
    for where, amounts, allocs in made.added:
        fleet.add(where, -amounts, -allocs)
    for node_slot, key in made.special:
        fleet.drop_special(node_slot, key)
    fleet.shift_flags(made.leaving, -1, away=False)
    fleet.shift_flags(made.away, -1, away=True)
    made.added, made.special, made.leaving, made.away = [], [], [], []


def _add(fleet: Fleet, made: Reservation, where: Slots, amounts: NDArray[np.float64], allocs: int) -> None:
    fleet.add(where, amounts, allocs)
    made.added.append((where, amounts, allocs))


def _place(fleet: Fleet, state: State, plan: PlanApply, group: PlacedGroup, made: Reservation) -> None:
    key = (plan.namespace, plan.job_id, plan.job_create_index, plan.job_version)
    given = fleet.usages.given_by(state, group.shared, key, group.group)
    where = np.frombuffer(group.node_slots, dtype="<u4").astype(np.int64)
    inside = where < fleet.size  # what is beyond is refused when the plan is carried out
    amounts = np.tile(fleet.usages.table[given.usage_id], (len(where), 1))
    own = {}
    if group.own_at:
        places = np.frombuffer(group.own_at, dtype="<u4").tolist()
        fields = unpack(group.own, group.own_sizes)
        own = {at: read_allocated(one) for at, one in zip(places, fields, strict=True)}
    names = np.frombuffer(group.name_indexes, dtype="<u4").tolist()
    if given.special is not None or given.volumes or own:
        for at, node_slot in enumerate(where.tolist()):
            mine = own.get(at)
            if mine is not None:
                amounts[at] = usage_of(mine)
            special = Special.of(mine) if mine is not None else given.special
            written = tuple(written_volumes(given.volumes.values(), names[at]))
            if written:
                special = (special or Special())._replace(volumes=written)
            if special is not None and inside[at]:
                made.special.append((node_slot, fleet.add_special(node_slot, special)))
    _add(fleet, made, where[inside], amounts[inside], 1)


def _update(fleet: Fleet, state: State, plan: PlanApply, update: UpdatedGroup, made: Reservation) -> None:
    """In place: the allocation stays, what it takes may differ. Whatever is its own (ports, cores) stays as it is."""
    key = (plan.namespace, plan.job_id, plan.job_create_index, plan.job_version)
    given = fleet.usages.given_by(state, update.shared, key, update.group)
    slots = np.array(_known(state, update.ids), dtype=np.int64)
    if not len(slots) or given.allocated is None:
        return
    counted = (fleet.flags_of(slots) != 0) & (state.allocations.columns.read(slots)["plan_crc"] == 0)
    slots = slots[counted]
    _add(fleet, made, fleet.nodes_of(slots), fleet.usages.table[given.usage_id] - fleet.usage_of(slots), 0)


def _known(state: State, ids: bytes) -> list[int]:
    """The slots of these ids, as far as they are there."""
    allocations = state.allocations
    if isinstance(allocations, Allocations):  # the live ones are found all at once
        found = set(allocations.find(words_of(ids)).tolist()) if ids else set()
    else:
        found = {allocations.slot_of(uuid_text(ids[at : at + 16])) for at in range(0, len(ids), 16)}
    return sorted(slot for slot in found if slot >= 0)
