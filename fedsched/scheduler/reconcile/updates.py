"""Whether a changed job can go on in place, or needs new allocations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from fedsched.model.compare import update_class
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.network import NetworkResource, Port
from fedsched.model.record import UpdateClass
from fedsched.scheduler.reconcile.held import Held

CanStay = Callable[[Sequence[Held], TaskGroup], Sequence[bool]]
"""Whether each of these could be placed on its own node under the job as it is now, itself not counted there."""
JobAt = Callable[[int, int], Job | None]
"""The job's version by create index and version number."""


class Updates(NamedTuple):
    """What the job's present version means for allocations that stay."""

    ignored: list[Held]
    in_place: list[Held]
    destructive: list[Held]


def is_destructive(old: Job, new: Job, group: str) -> bool:
    """Whether the change of the job needs a new allocation of the group, on whatever node."""
    before, after = old.group(group), new.group(group)
    if before is None or after is None or old.create_index != new.create_index:
        return True
    if _seen_meta(old, before) != _seen_meta(new, after):
        return True
    return update_class(_comparable(before), _comparable(after)) is UpdateClass.DESTRUCTIVE


def _seen_meta(job: Job, group: TaskGroup) -> dict[str, dict[str, str]]:
    """The metadata that each task sees: where a key was written does not matter."""
    return {task.name: {**job.meta, **group.meta, **task.meta} for task in group.tasks}


def _comparable(group: TaskGroup) -> TaskGroup:
    """The group without what is compared otherwise (metadata) and without orders that mean nothing (ports)."""
    return replace(
        group,
        meta={},
        networks=tuple(_sorted_ports(network) for network in group.networks),
        tasks=tuple(replace(task, meta={}) for task in group.tasks),
    )


def _sorted_ports(network: NetworkResource) -> NetworkResource:
    def by_label(ports: Iterable[Port]) -> tuple[Port, ...]:
        return tuple(sorted(ports, key=lambda port: port.label))

    return replace(
        network, reserved_ports=by_label(network.reserved_ports), dynamic_ports=by_label(network.dynamic_ports)
    )


class Comparer:
    """Compares a job's present version with those of its allocations, each pair once."""

    def __init__(self, job: Job, job_at: JobAt) -> None:
        self._job = job
        self._job_at = job_at
        self._known: dict[tuple[int, int, str], bool] = {}

    def is_destructive(self, held: Held) -> bool:
        key = (*held.version, held.group)
        known = self._known.get(key)
        if known is None:
            # A version that nobody kept cannot be compared: only a new allocation is sure to be right.
            old = self._job_at(*held.version)
            known = self._known[key] = old is None or is_destructive(old, self._job, held.group)
        return known

    def split(self, helds: Iterable[Held], group: TaskGroup, can_stay: CanStay) -> Updates:
        """Sort allocations that stay by what the job's present version means for them."""
        current = (self._job.create_index, self._job.version)
        result = Updates([], [], [])
        candidates: list[Held] = []
        for held in helds:
            if held.version == current:
                result.ignored.append(held)
            elif self.is_destructive(held):
                result.destructive.append(held)
            elif held.is_terminal:
                result.ignored.append(held)
            else:
                candidates.append(held)
        if candidates:
            for held, stays in zip(candidates, can_stay(candidates, group), strict=True):
                (result.in_place if stays else result.destructive).append(held)
        return result
