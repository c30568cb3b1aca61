"""What an allocation takes up on its node, read once for all allocations that share it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsched.codec import STORED_LIMITS, CodecError, from_builtins, loads
from fedsched.model.resources import AllocatedResources
from fedsched.model.volume import VolumeRequest
from fedsched.scheduler.ask import largest_phase
from fedsched.scheduler.special import HOST_VOLUME, Special
from fedsched.state.store import State
from fedsched.state.tables.alloc_origins import OriginRow

VOLUMES_KEPT: Final = 4096
_RESOURCES: Final = "AllocatedResources"
_VOLUMES_KEY: Final = b"AttachmentMode"
"""A word that stands in a job's specification only if some group asks for a volume."""


class Usage(NamedTuple):
    """CPU in MHz, memory and disk in MB."""

    cpu: int = 0
    memory: int = 0
    disk: int = 0


NOTHING: Final = Usage()


def usage_of(allocated: AllocatedResources) -> Usage:
    """The sum that counts for fit: the largest of the phases, tasks with cores of their own on top of it."""
    tasks = [(allocated.task_lifecycles.get(name), task) for name, task in allocated.tasks.items()]
    own = sum(task.cpu.cpu_shares for _, task in tasks if task.cpu.reserved_cores)
    cpu = largest_phase((when, 0 if task.cpu.reserved_cores else task.cpu.cpu_shares) for when, task in tasks)
    memory = largest_phase((when, task.memory.memory_mb) for when, task in tasks)
    return Usage(cpu + own, memory, allocated.shared.disk_mb)


class Given(NamedTuple):
    """What the allocations of one origin were given."""

    usage_id: int
    allocated: AllocatedResources | None
    special: Special | None
    """Without what depends on the allocation's place in its group."""
    volumes: Mapping[str, VolumeRequest]


class Usages:
    """Numbers for usages, so that a million allocations need four bytes each to say what they take."""

    def __init__(self) -> None:
        self.table: NDArray[np.float64] = np.zeros((64, 3))
        """One line per number: cpu, memory, disk. Number 0 is nothing."""
        self._ids: dict[Usage, int] = {NOTHING: 0}
        self._origins: dict[int, tuple[OriginRow, Given]] = {}
        self._volumes: dict[tuple[Any, str], Mapping[str, VolumeRequest]] = {}

    def copy(self) -> Usages:
        other = Usages()
        other.table, other._ids = self.table.copy(), dict(self._ids)
        other._origins, other._volumes = dict(self._origins), dict(self._volumes)
        return other

    def id_of(self, usage: Usage) -> int:
        """The number of a usage, a new one if it is met for the first time."""
        number = self._ids.get(usage)
        if number is None:
            number = self._ids[usage] = len(self._ids)
            if number >= len(self.table):
                self.table = np.concatenate((self.table, np.zeros_like(self.table)))
            self.table[number] = usage
        return number

    def given(self, state: State, ref: int) -> Given:
        """What an origin's allocations share; decoded when it is first met."""
        row = state.allocations.origins.get(ref)
        assert row is not None, f"no origin {ref}"
        known = self._origins.get(ref)
        if known is not None and known[0] == row:  # a number may be given to another origin later
            return known[1]
        found = self.given_by(state, row.shared, row.version_key, row.group)
        self._origins[ref] = (row, found)
        return found

    def given_by(self, state: State, shared: bytes, version_key: Any, group: str) -> Given:
        allocated = read_allocated(shared)
        volumes = self._volumes_of(state, version_key, group)
        usage = usage_of(allocated) if allocated is not None else NOTHING
        special = Special.of(allocated) if allocated is not None else None
        return Given(self.id_of(usage), allocated, special, volumes)

    def _volumes_of(self, state: State, version_key: Any, group: str) -> Mapping[str, VolumeRequest]:
        """The host volumes of the group's allocations, from the job; nearly always none."""
        key = (version_key, group)
        known = self._volumes.get(key)
        if known is None:
            if len(self._volumes) >= VOLUMES_KEPT:
                self._volumes.clear()
            known = self._volumes[key] = _host_volumes(state, version_key, group)
        return known


def read_allocated(fields: bytes) -> AllocatedResources | None:
    """The allocated resources among stored fields of an allocation; None if there are none or they cannot be read."""
    if not fields:
        return None
    try:
        value = loads(fields, STORED_LIMITS)
        resources = value.get(_RESOURCES) if isinstance(value, dict) else None
        return from_builtins(resources, AllocatedResources) if resources is not None else None
    except CodecError:
        return None  # the record itself shows the problem to people; see `to_allocation`


def _host_volumes(state: State, version_key: Any, group: str) -> Mapping[str, VolumeRequest]:
    row = state.jobs.version_rows.get(*version_key)
    if row is None or _VOLUMES_KEY not in row.spec:
        return {}
    job = state.jobs.version_by_key(version_key)
    wanted = job.group(group) if job is not None else None
    if wanted is None:
        return {}
    return {name: volume for name, volume in wanted.volumes.items() if volume.type == HOST_VOLUME}
