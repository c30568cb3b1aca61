"""Chooses nodes for one attempt: asks the kernel, remembers what the plan has taken and freed, explains what failed.

The fleet is the server's own and is only borrowed. Whatever an attempt counts in advance (allocations that its plan
stops, places that it takes) is taken back by `close`, and the fleet is as it was.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedsched.model.alloc_metric import AllocMetric, NodeScoreMeta
from fedsched.model.resources import Resources
from fedsched.scheduler.ask import Offer
from fedsched.scheduler.device_scores import DeviceScores
from fedsched.scheduler.distinct import HOSTS_REASON, Scope
from fedsched.scheduler.field import GroupField, JobField
from fedsched.scheduler.fit import Exhausted, NodeRoom, Sums, sums_of
from fedsched.scheduler.fleet_plans import Reservation
from fedsched.scheduler.fleet_usage import Usage
from fedsched.scheduler.kernel import place
from fedsched.scheduler.kernel_placed import Placed, beside_fit
from fedsched.scheduler.kernel_request import PlaceRequest, PropertyLimit, SpreadBlock, Verdict
from fedsched.scheduler.reconcile.held import Held, Roster
from fedsched.scheduler.score import AFFINITY, DEVICES, Algorithm, tie_seed

Slots = NDArray[np.int64]
NO_SLOTS: Final[Slots] = np.empty(0, dtype=np.int64)


class Chosen(NamedTuple):
    """Where allocations of one group go."""

    node_slots: Slots
    """One per allocation that found a place, in the order of the names."""
    offers: list[Offer] | None
    """What each gets beyond plain numbers; None if the group asks for nothing of the kind."""
    metric: AllocMetric
    """How it was decided; with unplaced ones left, also what stood in the way."""
    unplaced: int
    scores: Mapping[str, NDArray[np.float64]] = {}
    """What each scored on its node, by scorer; empty if nobody kept score."""


class Mark(NamedTuple):
    """How far a plan had come."""

    counted: int
    planned: dict[str, int]


class Chooser:
    """The choices of one attempt."""

    def __init__(self, field: JobField, roster: Roster, evaluation_id: str) -> None:
        self.field = field
        self.fleet = field.fleet
        self._roster = roster
        self._seed = tie_seed(evaluation_id, field.state.index)
        self._counted: list[Reservation] = []
        self._aside: dict[int, int] = {}
        """Allocation slots by position in the roster: those that the plan stops."""
        self._stays = ~roster.client_terminal()
        """Per position in the roster: whether it takes up its place as far as this plan goes."""
        self._groups = (
            np.array([origin.group for origin in roster.origins], dtype=object)[roster.which] if len(roster) else None
        )
        self._planned: dict[str, list[Slots]] = {}
        self._device_scores = DeviceScores(field.state, field.fleet)

    def close(self) -> None:
        """Give the fleet back as it was."""
        for reservation in reversed(self._counted):
            self.fleet.release(reservation)
        self.fleet.shift_flags(sorted(self._aside.values()), -1, away=True)
        self._counted.clear()
        self._aside.clear()

    # --------------------------------------------------------------- the plan so far

    def free(self, helds: Iterable[Held]) -> None:
        """The plan stops these: their places may be used."""
        new = {held.at: held.slot for held in helds if held.at not in self._aside}
        if new:
            self._stays[list(new)] = False
            self._aside.update(new)
            self.fleet.shift_flags(sorted(new.values()), 1, away=True)

    def take_back(self, helds: Iterable[Held]) -> None:
        """The plan does not stop these after all."""
        back = {held.at: self._aside.pop(held.at) for held in helds if held.at in self._aside}
        if back:
            self._stays[list(back)] = True
            self.fleet.shift_flags(sorted(back.values()), -1, away=True)

    def free_others(self, alloc_slots: Slots) -> None:
        """Allocations of other jobs that the plan evicts."""
        self._counted.append(self.fleet.set_aside(alloc_slots))

    def mark(self) -> Mark:
        """The new allocations counted so far, to come `back_to`."""
        return Mark(len(self._counted), {name: len(parts) for name, parts in self._planned.items()})

    def back_to(self, mark: Mark) -> None:
        """Forget the new allocations that were counted since."""
        for reservation in reversed(self._counted[mark.counted :]):
            self.fleet.release(reservation)
        del self._counted[mark.counted :]
        for name, parts in self._planned.items():
            del parts[mark.planned.get(name, 0) :]

    def take(self, group: GroupField, node_slots: Slots, offers: Sequence[Offer] | None = None) -> None:
        """Count new allocations of the plan."""
        self._planned.setdefault(group.group.name, []).append(node_slots)
        if offers is None:
            self._counted.append(self.fleet.place(node_slots, group.usage))
            return
        for slot, offer in zip(node_slots.tolist(), offers, strict=True):
            usage = Usage(group.usage.cpu + offer.cpu, group.usage.memory, group.usage.disk)
            where = np.array([slot], dtype=np.int64)
            self._counted.append(self.fleet.place(where, usage, [offer.special()]))

    # -------------------------------------------------------------------- choosing

    def choose(
        self,
        group: GroupField,
        names: Sequence[int] | NDArray[np.int32],
        *,
        avoid: Sequence[Slots] = (),
        only: Slots | None = None,
    ) -> Chosen:
        """Find places for allocations with these names (places in the group), and count them as taken.

        `avoid` are, per name, node slots better avoided (nothing: nobody avoids any); with `only`, no others are looked
        at.
        """
        if self._device_scores.matters(group) and len(names) > 1:
            return self._choose_in_turn(group, names, avoid, only)
        check = _Check(self, group, lambda number, _: int(names[number])) if group.ask.needs_special else None
        return self._choose(group, check, self._request(group, len(names), avoid, only, check))

    def _choose_in_turn(
        self, group: GroupField, names: Sequence[int] | NDArray[np.int32], avoid: Sequence[Slots], only: Slots | None
    ) -> Chosen:
        """The same one by one: which devices are left on a node is part of its score."""
        parts: list[Chosen] = []
        for number, name in enumerate(names):
            parts.append(self.choose(group, [int(name)], avoid=avoid[number : number + 1], only=only))
            if parts[-1].unplaced:
                break
        slots = np.concatenate([one.node_slots for one in parts])
        scores = {name: np.concatenate([one.scores[name] for one in parts]) for name in parts[0].scores}
        offers = [offer for one in parts for offer in one.offers or ()]
        last = parts[-1] if parts[-1].unplaced else parts[0]
        return Chosen(slots, offers, last.metric, len(names) - len(slots), scores)

    def choose_each(self, group: GroupField, names: Sequence[int], nodes: Slots, *, is_ranked: bool = False) -> Chosen:
        """Place one allocation on each of these nodes (each named once) that has room for it.

        They come back in another order: best node first. `is_ranked` says that they score like any other of a group;
        for jobs that run on every node only fit counts.
        """
        of_node = dict(zip(nodes.tolist(), names, strict=True))
        check = _Check(self, group, lambda _, slot: of_node[slot]) if group.ask.needs_special else None
        request = self._request(group, len(nodes), (), nodes, check)
        if not is_ranked:
            request = dataclasses.replace(request, spreads=(), collisions=None, bonuses={})
        request = dataclasses.replace(request, distinct_hosts=True, taken=None, limits=())
        return self._choose(group, check, request)

    def _choose(self, group: GroupField, check: _Check | None, request: PlaceRequest) -> Chosen:
        placed = place(request)
        metric, scores = self._metric(group, placed, check), placed.scores()  # before the fleet is touched
        offers = check.offers[: len(placed.node_slots)] if check is not None else None
        self.take(group, placed.node_slots, offers)
        return Chosen(placed.node_slots, offers, metric, placed.unplaced, scores)

    def _request(
        self, group: GroupField, count: int, avoid: Sequence[Slots], only: Slots | None, check: _Check | None
    ) -> PlaceRequest:
        field, needs = self.field, group.needs
        mask = group.mask
        if only is not None:
            narrow = np.zeros_like(mask)
            narrow[only] = mask[only]
            mask = narrow
        mine = self._where(group.group.name)
        hosts = needs.distinct_hosts
        shunned = {one.tobytes() for one in avoid}
        return PlaceRequest(
            fleet=self.fleet,
            mask=mask,
            ask=group.usage,
            count=count,
            group_count=group.group.count,
            collisions=mine if len(mine) else None,
            penalty=avoid[0] if len(shunned) == 1 and len(avoid[0]) else None,
            penalties=tuple(avoid) if len(shunned) > 1 else (),
            bonuses=self._bonuses(group),
            spreads=tuple(
                SpreadBlock(
                    values=(values := field.values(spread.attribute)).of_slot,
                    weight=spread.weight,
                    targets={values.id_of(target.value): float(target.percent) for target in spread.spread_target},
                    used=values.used(mine),
                )
                for spread in group.spreads
            ),
            distinct_hosts=hosts is not None,
            taken=None if hosts is None else mine if hosts is Scope.GROUP else self._where(None),
            limits=tuple(
                PropertyLimit(
                    values=(values := field.values(limit.attribute)).of_slot,
                    limit=limit.limit,
                    used=values.used(mine if limit.scope is Scope.GROUP else self._where(None)),
                )
                for limit in needs.property_limits
            ),
            algorithm=algorithm_of(field),
            seed=self._seed,
            check=check,
        )

    def _bonuses(self, group: GroupField) -> dict[str, NDArray[np.float64]]:
        """What every node has of affinities: the job's for nodes, the group's for devices."""
        found = {AFFINITY: group.affinity} if group.affinity is not None else {}
        if self._device_scores.matters(group):
            found[DEVICES] = self._device_scores.column(group)
        return found

    def beside_fit(self, group: GroupField, slots: Slots, avoid: Slots = NO_SLOTS) -> dict[str, NDArray[np.float64]]:
        """What one more of the group would score on each of these nodes, but for fit and devices."""
        request = self._request(group, 1, (avoid,), None, None)
        bonuses = {name: column for name, column in request.bonuses.items() if name != DEVICES}
        return beside_fit(dataclasses.replace(request, bonuses=bonuses), slots)

    def may_take(self, group: GroupField, only: Slots | None = None) -> Slots:
        """The nodes that could take one more of the group if they had room, whatever is on them."""
        return np.flatnonzero(self._request(group, 1, (), only, None).candidates())

    def _where(self, group: str | None) -> Slots:
        """Node slots of the job's allocations (of one group, or of all), as they will be with this plan."""
        stays = self._stays
        if group is not None and self._groups is not None:
            stays = stays & (self._groups == group)
        there = self._roster.rows["node"][stays].astype(np.int64) if self._groups is not None else NO_SLOTS
        names = self._planned if group is None else [group]
        return np.concatenate([there, *(part for name in names for part in self._planned.get(name, ()))])

    def room(self, slot: int, *, only_ports: bool = False) -> NodeRoom | None:
        """A node and all that is on it with this plan; with `only_ports` fit for asks that want no more than those."""
        fleet = self.fleet
        node = fleet.node(self.field.state, slot)
        if node is None:
            return None
        used = Sums(
            int(fleet.occupied_cpu[slot]),
            int(fleet.occupied_memory[slot]),
            int(fleet.occupied_disk[slot]),
            int(fleet.occupied_allocs[slot]),
        )
        if only_ports and not fleet.special.is_crowded(slot):
            return NodeRoom(node, used, port_holders=partial(fleet.ports_held, slot))
        return NodeRoom(node, used, (special for _, special in fleet.specials(slot)))

    def seed_for(self, slot: int, name_index: int) -> int:
        """For dynamic ports: different per node and allocation, the same whenever it is asked."""
        return (self._seed * 1_000_003 + slot * 8191 + name_index) & 0x7FFF_FFFF_FFFF_FFFF

    # ------------------------------------------------------------------- explaining

    def _metric(self, group: GroupField, placed: Placed, check: _Check | None) -> AllocMetric:
        scores = tuple(
            NodeScoreMeta(
                node_id=self.fleet.node_id(score.slot),
                scores={name: round(value, 6) for name, value in score.scores.items()},
                norm_score=round(score.final, 6),
            )
            for score in placed.best()
        )
        metric = replace(self.base_metric(group), score_meta_data=scores)
        return self._with_failure(metric, group, placed, check) if placed.unplaced else metric

    def base_metric(self, group: GroupField) -> AllocMetric:
        """Which nodes were looked at and which were filtered."""
        field, filtered = self.field, group.filtered
        return AllocMetric(
            nodes_evaluated=int(field.ready.sum()),
            nodes_filtered=filtered.nodes,
            nodes_in_pool=field.pool_count,
            node_pool=field.job.node_pool,
            nodes_available=field.available,
            class_filtered=dict(filtered.classes),
            constraint_filtered=dict(filtered.reasons),
        )

    def _with_failure(
        self, metric: AllocMetric, group: GroupField, placed: Placed, check: _Check | None
    ) -> AllocMetric:
        exhaustion = placed.exhaustion()
        dimensions = Counter(exhaustion.by_dimension)
        if check is not None:
            dimensions.update(check.refused.values())
        reasons = dict(metric.constraint_filtered)
        if exhaustion.distinct:
            for text in self._distinct_reasons(group):
                reasons[text] = reasons.get(text, 0) + exhaustion.distinct
        lacks = {
            task.name: Resources(cpu=task.cpu, cores=task.cores, memory_mb=task.memory_mb)
            for task in group.ask.tasks
            if dimensions["cpu"] or dimensions["memory"]
        }
        return replace(
            metric,
            constraint_filtered=reasons,
            nodes_filtered=metric.nodes_filtered + exhaustion.distinct,
            nodes_exhausted=exhaustion.nodes + (len(check.refused) if check is not None else 0),
            class_exhausted=exhaustion.by_class,
            dimension_exhausted=dict(dimensions),
            resources_exhausted=lacks,
        )

    def _distinct_reasons(self, group: GroupField) -> list[str]:
        if group.needs.distinct_hosts is not None:
            return [HOSTS_REASON]
        return [f"distinct_property: {limit.attribute}" for limit in group.needs.property_limits]


def algorithm_of(field: JobField) -> Algorithm:
    """What the region says, unless the job's pool says otherwise."""
    return field.config.scheduler_algorithm.value


class _Check:
    """The closer look at a node whose turn has come: ports, cores, devices, host volumes."""

    def __init__(self, chooser: Chooser, group: GroupField, name_of: Callable[[int, int], int]) -> None:
        self._chooser = chooser
        self._ask = group.ask
        self._name_of = name_of
        """Of the number of a placement and its node: the place in the group that it is for."""
        self._rooms: dict[int, NodeRoom] = {}
        self._only_ports = not (group.ask.cores or group.ask.devices or group.ask.volumes)
        self._is_named = any(request.per_alloc for request in group.ask.volumes)
        self.offers: list[Offer] = []
        self.refused: dict[int, str] = {}
        """Node slots that had no room, by what they lack."""

    def __call__(self, slot: int) -> Verdict:
        room = self._rooms.get(slot) or self._chooser.room(slot, only_ports=self._only_ports)
        if room is None:
            return Verdict.NEVER
        name = self._name_of(len(self.offers), slot)
        given = room.offer(self._ask, self._chooser.seed_for(slot, name), name)
        if isinstance(given, Exhausted):
            self.refused[slot] = given.dimension
            return Verdict.NOT_NOW if self._is_named else Verdict.NEVER
        self._rooms[slot] = room.with_(sums_of(self._ask, given), given.special())
        self.offers.append(given)
        return Verdict.YES
