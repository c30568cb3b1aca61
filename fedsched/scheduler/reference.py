"""Greedy placement the slow way: for every placement every node is scored anew, by the formulas as they are written.

The truth that the kernel is compared with, in tests and in the bench. Nothing is kept between placements but the
placements themselves.
"""

from __future__ import annotations

import numpy as np

from fedsched.scheduler.fits import NO_FIT, compute
from fedsched.scheduler.kernel_request import NO_VALUE, PlaceRequest, SpreadBlock, Verdict
from fedsched.scheduler.score import (
    ANTI_AFFINITY_MIN,
    MISSING,
    PENALTY,
    UNIT,
    Ties,
    anti_affinity,
    desired_counts,
    even_boost,
    fit_entry,
    free_share,
    in_units,
    mean_key,
    target_boost,
)


def place_slowly(request: PlaceRequest) -> list[int]:
    """The node slots in the order of placement."""
    placed: list[int] = []
    refused: set[int] = set()
    ties = Ties(request.seed, request.fleet.size)
    mask = request.mask.tolist()
    slots = [slot for slot in range(len(mask)) if mask[slot]]
    for _ in range(request.count):
        slot = _next(request, slots, placed, refused, ties)
        if slot is None:
            break
        placed.append(slot)
    return placed


def _next(request: PlaceRequest, slots: list[int], placed: list[int], refused: set[int], ties: Ties) -> int | None:
    not_now: set[int] = set()
    lowest = _lowest_boost(request, slots, placed)
    while True:
        scored = [
            (-_key(request, slot, placed, lowest), ties.rank(slot), slot)
            for slot in slots
            if slot not in refused and slot not in not_now and _may(request, slot, placed)
        ]
        if not scored:
            return None
        slot = min(scored)[2]
        verdict = Verdict.YES if request.check is None else request.check(slot)
        if verdict is Verdict.YES:
            return slot
        (refused if verdict is Verdict.NEVER else not_now).add(slot)


def _may(request: PlaceRequest, slot: int, placed: list[int]) -> bool:
    fleet, ask, here = request.fleet, request.ask, placed.count(slot) + 1
    if request.distinct_hosts and (here > 1 or (request.taken is not None and slot in request.taken.tolist())):
        return False
    for limit in request.limits:
        value = int(limit.values[slot])
        used = limit.used.get(value, 0) + sum(int(limit.values[other]) == value for other in placed)
        if value == NO_VALUE or used >= limit.limit:
            return False
    most = int(fleet.max_allocs[slot])
    return bool(
        fleet.occupied_cpu[slot] + here * ask.cpu <= fleet.cap_cpu[slot]
        and fleet.occupied_memory[slot] + here * ask.memory <= fleet.cap_memory[slot]
        and fleet.occupied_disk[slot] + here * ask.disk <= fleet.cap_disk[slot]
        and (not most or int(fleet.occupied_allocs[slot]) + here <= most)
    )


def _key(request: PlaceRequest, slot: int, placed: list[int], lowest: float) -> int:
    fleet, ask, here = request.fleet, request.ask, placed.count(slot)
    free_cpu = free_share(float(fleet.occupied_cpu[slot]) + (here + 1) * ask.cpu, float(fleet.cap_cpu[slot]))
    free_memory = free_share(
        float(fleet.occupied_memory[slot]) + (here + 1) * ask.memory, float(fleet.cap_memory[slot])
    )
    entries = [fit_entry(free_cpu, free_memory, request.algorithm)]
    there = here + (request.collisions.tolist().count(slot) if request.collisions is not None else 0)
    if there:
        entries.append(anti_affinity(there, request.group_count))
    penalty = request.penalties[len(placed)] if request.penalties else request.penalty
    if penalty is not None and slot in penalty.tolist():
        entries.append(PENALTY)
    entries += [float(values[slot]) for values in request.bonuses.values()]
    units = [in_units(entry) for entry in entries]
    boost = in_units(sum(_boost(request, block, slot, placed, lowest) for block in request.spreads))
    if boost:
        units.append(boost)
    return mean_key(sum(units), len(units))


def _used(block: SpreadBlock, placed: list[int]) -> dict[int, int]:
    used = dict(block.used)
    for other in placed:
        value = int(block.values[other])
        if value != NO_VALUE:
            used[value] = used.get(value, 0) + 1
    return used


def _boost(request: PlaceRequest, block: SpreadBlock, slot: int, placed: list[int], lowest: float) -> float:
    value = int(block.values[slot])
    if value == NO_VALUE:
        return MISSING
    used = _used(block, placed)
    if not block.targets:
        counts = [count for count in used.values() if count]
        return even_boost(used.get(value, 0), min(counts, default=0), max(counts, default=0))
    desired, rest = desired_counts(block.targets, request.group_count)
    if value in desired:
        wanted, here = desired[value], used.get(value, 0)
    elif rest:
        wanted, here = rest, sum(count for other, count in used.items() if other not in desired)
    else:
        return MISSING
    if not wanted:
        return lowest
    return target_boost(wanted, here, block.weight / sum(other.weight for other in request.spreads))


def _lowest_boost(request: PlaceRequest, slots: list[int], placed: list[int]) -> float:
    """The lowest boost that a target block gives to any node to be considered; at most -1."""
    boosts = [
        _boost(request, block, slot, placed, 0.0)
        for block in request.spreads
        if block.targets
        for slot in slots
        if int(block.values[slot]) != NO_VALUE
    ]
    return min([MISSING, *boosts])


def place_by_argmax(request: PlaceRequest) -> list[int]:
    """The same for large fleets: still every node for every placement, but in columns. Without blocks and checks."""
    assert not any((request.spreads, request.limits, request.check, request.bonuses)), "not for these"
    assert request.penalty is None, "not for penalties"
    assert not request.penalties, "not for penalties"
    fleet, ties = request.fleet, Ties(request.seed, request.fleet.size)
    ranks = ties.ranks(np.arange(fleet.size))
    there = np.zeros(fleet.size, dtype=np.int64)
    if request.collisions is not None:
        np.add.at(there, request.collisions, 1)
    placed: list[int] = []
    mask = request.candidates().copy()
    one = np.zeros(1, dtype=np.int64)
    counted = []
    for _ in range(request.count):
        fit = compute(fleet, request.ask, request.algorithm, None)
        anti = np.rint(np.maximum(-(there + 1) / max(request.group_count, 1), ANTI_AFFINITY_MIN) * UNIT)
        keys = np.where(there > 0, (fit + anti.astype(np.int64)) * 30, fit * 60)
        order = np.where(mask & (fit > NO_FIT), (-keys << ties.bits) + ranks, np.iinfo(np.int64).max)
        slot = int(order.argmin())
        if order[slot] == np.iinfo(np.int64).max:
            break
        placed.append(slot)
        there[slot] += 1
        if request.distinct_hosts:
            mask[slot] = False
        counted.append(fleet.place(one + slot, request.ask))
    for made in counted:
        fleet.release(made)
    return placed
