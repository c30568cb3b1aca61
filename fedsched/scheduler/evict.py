"""Preemption for one attempt: where evicting others makes room, at the least loss.

Only when nothing else fits is anybody evicted. Nodes where even the eviction of everything less important would not do
are ruled out by sums; the others are looked at one by one, and the best of them is taken by everything that a node is
scored by, and the loss. That the victims' jobs look for other places is seen to by the plan applier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from fedsched.model.alloc import AllocListStub
from fedsched.model.ids import uuid_text
from fedsched.model.job import Job, JobType
from fedsched.model.scheduler_config import SchedulerConfiguration
from fedsched.model.score_names import DEVICES, FIT, PREEMPTION, mean_of
from fedsched.scheduler.ask import Offer
from fedsched.scheduler.choose import NO_SLOTS, Chooser, Slots, algorithm_of
from fedsched.scheduler.field import GroupField
from fedsched.scheduler.fit import NodeRoom, Sums, sums_of
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.preempt import MIN_DIFFERENCE, Candidate, GroupKey, Preemption, preempt
from fedsched.scheduler.score import fit_entry, free_share
from fedsched.state.store import State

DESCRIPTION: Final = "Preempted by alloc ID {alloc_id}"
JOB_PRIORITY: Final = 50


class Eviction(NamedTuple):
    """Who has to go from one node, and what that makes room for."""

    slot: int
    alloc_slots: Slots
    ids: tuple[str, ...]
    offer: Offer
    scores: dict[str, float]
    """What the node scored with the loss counted, by scorer."""


def may_preempt(config: SchedulerConfiguration, job_type: str) -> bool:
    """Whether jobs of this type may evict others."""
    on = config.preemption_config
    return {
        JobType.SERVICE.value: on.service_scheduler_enabled,
        JobType.BATCH.value: on.batch_scheduler_enabled,
        JobType.SYSTEM.value: on.system_scheduler_enabled,
        JobType.SYSBATCH.value: on.sys_batch_scheduler_enabled,
    }.get(job_type, False)


class _Origin(NamedTuple):
    priority: int
    group: GroupKey
    max_parallel: int


class Evictions:
    """All evictions of one attempt."""

    def __init__(self, state: State, fleet: Fleet, job: Job | None) -> None:
        self._state = state
        self._fleet = fleet
        self._job = job
        self._origins: dict[int, _Origin] = {}
        self._counts: Counter[GroupKey] = Counter()
        self._gone: set[int] = set()

    def find(
        self,
        chooser: Chooser,
        group: GroupField,
        name_index: int,
        only: Slots | None = None,
        *,
        avoid: Slots = NO_SLOTS,
        is_ranked: bool = True,
    ) -> Eviction | None:
        """The best node on which evicting somebody lets the group's next allocation fit; noted as evicted.

        With `only`, no other nodes are looked at; `avoid` are better avoided. Unless nodes are ranked, only fit and the
        loss count.
        """
        job = self._job
        if job is None:
            return None
        slots = chooser.may_take(group, only)
        beside = chooser.beside_fit(group, slots, avoid) if is_ranked else {}
        place = {slot: at for at, slot in enumerate(slots.tolist())}
        best: tuple[float, int, Preemption, dict[str, float]] | None = None
        for slot, on_node in self._promising(slots, group, job.priority):
            room = chooser.room(slot)
            if room is None:
                continue
            found = preempt(
                room,
                on_node,
                group.ask,
                job=(job.namespace, job.id),
                priority=job.priority,
                preempted=self._counts,
                seed=chooser.seed_for(slot, name_index),
                name_index=name_index,
            )
            if found is None or not found.victims:
                continue
            scores = self._scores(group, room, found, is_ranked=is_ranked)
            scores |= {name: float(column[place[slot]]) for name, column in beside.items()}
            score = mean_of(scores)
            if best is None or score > best[0]:
                best = (score, slot, found, scores)
        return self._noted(*best[1:]) if best is not None else None

    def fields(self, identity: bytes) -> dict[str, Any]:
        """What the victims' records say."""
        alloc_id = uuid_text(identity)
        return {"PreemptedByAllocation": alloc_id, "DesiredDescription": DESCRIPTION.format(alloc_id=alloc_id)}

    def stubs(self) -> tuple[AllocListStub, ...]:
        """The victims, for people."""
        slots = np.array(sorted(self._gone), dtype=np.int64)
        return tuple(record.stub() for record in self._state.allocations.records(slots)) if len(slots) else ()

    def _noted(self, slot: int, found: Preemption, scores: dict[str, float]) -> Eviction:
        keys = [int(victim.key) for victim in found.victims]  # type: ignore[call-overload]
        self._gone.update(keys)
        self._counts.update(victim.group for victim in found.victims)
        alloc_slots = np.array(keys, dtype=np.int64)
        ids = tuple(record.id for record in self._state.allocations.records(alloc_slots))
        return Eviction(slot, alloc_slots, ids, found.offer, scores)

    def _promising(self, slots: Slots, group: GroupField, priority: int) -> Iterator[tuple[int, list[Candidate]]]:
        """Nodes that would have room if everything less important were gone, and what is on them."""
        fleet, ask = self._fleet, group.usage
        fits = (fleet.cap_cpu[slots] >= ask.cpu) & (fleet.cap_memory[slots] >= ask.memory)
        fits &= fleet.cap_disk[slots] >= ask.disk
        for slot in slots[fits].tolist():
            on_node = self._candidates(slot)
            less = [one.sums for one in on_node if priority - one.priority >= MIN_DIFFERENCE]
            cpu = fleet.cap_cpu[slot] - fleet.occupied_cpu[slot] + sum(sums.cpu for sums in less)
            memory = fleet.cap_memory[slot] - fleet.occupied_memory[slot] + sum(sums.memory_mb for sums in less)
            if less and cpu >= ask.cpu and memory >= ask.memory:
                yield slot, on_node

    def _candidates(self, node_slot: int) -> list[Candidate]:
        """What is on a node and was not evicted by this plan."""
        reader, fleet = self._state.allocations, self._fleet
        slots = reader.slots_of_node(node_slot)
        if not len(slots):
            return []
        slots = slots[fleet.flags_of(slots) != 0]
        usage = fleet.usage_of(slots)
        specials = dict(fleet.specials(node_slot))
        found = []
        for at, slot in enumerate(slots.tolist()):
            if slot in self._gone:
                continue
            origin = self._origin(int(reader.columns.one(slot)["origin"]))
            cpu, memory, disk = (int(amount) for amount in usage[at])
            sums = Sums(cpu, memory, disk, 1)
            found.append(Candidate(slot, origin.priority, origin.group, sums, origin.max_parallel, specials.get(slot)))
        return found

    def _origin(self, ref: int) -> _Origin:
        known = self._origins.get(ref)
        if known is None:
            row = self._state.allocations.origins.get(ref)
            assert row is not None
            job = self._state.jobs.version_by_key(row.version_key)
            group = job.group(row.group) if job is not None else None
            migrate = group.migrate if group is not None else None
            known = self._origins[ref] = _Origin(
                job.priority if job is not None else JOB_PRIORITY,
                (row.namespace, row.job_id, row.group),
                migrate.max_parallel if migrate is not None else 0,
            )
        return known

    def _scores(self, group: GroupField, room: NodeRoom, found: Preemption, *, is_ranked: bool) -> dict[str, float]:
        """Fit (before the evictions, as if there were room), the loss, and the devices that this would free."""
        used = room.used.plus(sums_of(group.ask, found.offer))
        capacity = room.capacity
        fit = fit_entry(
            free_share(used.cpu, capacity.cpu),
            free_share(used.memory_mb, capacity.memory_mb),
            algorithm_of(group.field),
        )
        scores = {FIT: fit, PREEMPTION: found.score}
        if is_ranked and found.offer.device_affinity is not None:
            scores[DEVICES] = found.offer.device_affinity
        return scores
