"""The job's allocations as the reconcilers see them: columns first, light objects for those that need a closer look.

Whole records are costly (30 us each) and rarely needed: the columns say which allocations can have a past at all. Only
where they say so is a record asked for, one at a time, through the roster's loader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import cached_property
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsched.model.alloc import Allocation, AllocState, ClientStatus, DesiredStatus, RescheduleTracker
from fedsched.model.node import NodeStatus
from fedsched.state.columns import Rows, Slots
from fedsched.state.store import EvaluationView
from fedsched.state.tables.alloc_columns import CLIENT_CODES, CLIENT_TERMINAL, DESIRED_CODES, Flag, id_of
from fedsched.state.tables.alloc_origins import OriginRow
from fedsched.state.tables.nodes import NodesReader

Load = Callable[[Slots], list[Allocation]]
Where = NDArray[np.int64]
"""Positions in a roster."""
Mask = NDArray[np.bool_]
Taints = NDArray[np.uint8]
"""A `Taint` per node slot."""

RUN: Final = DESIRED_CODES[DesiredStatus.RUN]
STOP: Final = DESIRED_CODES[DesiredStatus.STOP]
EVICT: Final = DESIRED_CODES[DesiredStatus.EVICT]
PENDING: Final = CLIENT_CODES[ClientStatus.PENDING]
RUNNING: Final = CLIENT_CODES[ClientStatus.RUNNING]
COMPLETE: Final = CLIENT_CODES[ClientStatus.COMPLETE]
FAILED: Final = CLIENT_CODES[ClientStatus.FAILED]
LOST: Final = CLIENT_CODES[ClientStatus.LOST]
UNKNOWN: Final = CLIENT_CODES[ClientStatus.UNKNOWN]
_ENDED: Final = (COMPLETE, FAILED, LOST)

CANARY: Final = int(Flag.CANARY)
MIGRATE: Final = int(Flag.MIGRATE)
RESCHEDULE: Final = int(Flag.RESCHEDULE)
FORCE: Final = int(Flag.FORCE_RESCHEDULE)
NO_PLACEMENT: Final = int(Flag.MIGRATE_DISABLE_PLACEMENT)

STATUS_FIELD: Final = 0
"""The number under which recorded states mean the client status."""

_OWN, _WISHED, _REPORTED, _KIN = 1, 2, 4, 8


class Taint(IntEnum):
    """Why nothing can be expected of a node; none for a node that is fine."""

    NONE = 0
    MISSING = 1
    DOWN = 2
    DISCONNECTED = 3
    DRAINING = 4
    COMING = 5
    """It is back but has not said yet what became of its allocations: until then nothing is decided about them."""

    @property
    def is_gone(self) -> bool:
        """Whether what ran there is taken for lost."""
        return self in (Taint.MISSING, Taint.DOWN)


TAINT_OF_STATUS: Final = {
    NodeStatus.DOWN.value: Taint.DOWN,
    NodeStatus.DISCONNECTED.value: Taint.DISCONNECTED,
    NodeStatus.INITIALIZING.value: Taint.COMING,
}


def taints_of(nodes: NodesReader, node_slots: Iterable[int]) -> Taints:
    """The taints of these slots, read from node rows; a server with a fleet at hand gets them from its columns."""
    wanted = sorted(set(node_slots))
    taints = np.zeros((wanted[-1] + 1) if wanted else 0, dtype=np.uint8)
    for slot in wanted:
        place = nodes.at(slot)
        row = nodes.get(place.node_id) if place is not None and not place.departed else None
        if row is None:
            taints[slot] = Taint.MISSING
        else:
            taints[slot] = TAINT_OF_STATUS.get(row.status, Taint.DRAINING if row.draining else Taint.NONE)
    return taints


class Held(msgspec.Struct, gc=False, eq=False):
    """One allocation of the job. Two are the same only if they are the same object of one roster."""

    at: int
    """Its position in the roster."""
    name_index: int
    node: int
    """The slot of its node."""
    desired: int
    client: int
    health: int
    flags: int
    details: int
    """Which parts of the record beyond the columns there are."""
    origin: OriginRow
    roster: Roster

    @property
    def slot(self) -> int:
        return int(self.roster.slots[self.at])

    @property
    def id(self) -> str:
        return id_of(self.roster.rows[self.at])

    @property
    def identity(self) -> bytes:
        """The id as it is stored."""
        return self.roster.ids[16 * self.at : 16 * self.at + 16]

    @property
    def has_story(self) -> bool:
        """Whether anything was ever said about it alone, by a plan or after it."""
        return bool(self.details & (_OWN | _WISHED))

    @property
    def record(self) -> Allocation:
        return self.roster.record(self.at)

    @property
    def group(self) -> str:
        return self.origin.group

    @property
    def version(self) -> tuple[int, int]:
        """The job's create index and version: what tells whether the allocation is up to date."""
        return (self.origin.job_create_index, self.origin.job_version)

    @property
    def deployment_id(self) -> str:
        return self.origin.deployment_id

    @property
    def is_server_terminal(self) -> bool:
        return self.desired != RUN

    @property
    def is_client_terminal(self) -> bool:
        return self.client in _ENDED

    @property
    def is_terminal(self) -> bool:
        return self.desired != RUN or self.client in _ENDED

    @property
    def is_canary(self) -> bool:
        return bool(self.flags & CANARY)

    @property
    def is_healthy(self) -> bool:
        return self.health == 1

    @property
    def is_unhealthy(self) -> bool:
        return self.health == 2

    @property
    def should_migrate(self) -> bool:
        return bool(self.flags & MIGRATE)

    @property
    def should_reschedule(self) -> bool:
        return bool(self.flags & RESCHEDULE)

    @property
    def must_reschedule(self) -> bool:
        return bool(self.flags & FORCE)

    @property
    def needs_no_placement(self) -> bool:
        """Somebody moved it away and wants nothing in its place."""
        return bool(self.flags & NO_PLACEMENT)

    @property
    def modify_time_ns(self) -> int:
        return int(self.roster.rows["modify_time"][self.at])

    @property
    def states(self) -> tuple[AllocState, ...]:
        return self.record.alloc_states if self.details & _WISHED else ()

    @property
    def followup_id(self) -> str:
        return self.record.followup_eval_id if self.details & _WISHED else ""

    @property
    def next_id(self) -> str:
        return self.record.next_allocation if self.details & _KIN else ""

    @property
    def tracker(self) -> RescheduleTracker | None:
        return self.record.reschedule_tracker if self.details & (_OWN | _WISHED) else None

    @property
    def last_reschedule_failed(self) -> bool:
        tracker = self.tracker
        return tracker is not None and tracker.last_reschedule == NO_PLACE_FOUND

    @property
    def needs_reconnect(self) -> bool:
        """Whether the last thing recorded of its status is that nobody knows."""
        if self.client == UNKNOWN:
            return True
        last = self._last_status()
        return last is not None and last.value == ClientStatus.UNKNOWN.value

    @property
    def unknown_since_ns(self) -> int:
        """When it became unknown; 0 if that was never recorded."""
        last = self._last_status()
        return last.time_ns if last is not None and last.value == ClientStatus.UNKNOWN.value else 0

    @property
    def ran_successfully(self) -> bool:
        """Whether every task came to an end without failing."""
        states = self.record.task_states.values()
        return bool(states) and all(state.is_successful for state in states)

    def _last_status(self) -> AllocState | None:
        return next((state for state in reversed(self.states) if state.field == STATUS_FIELD), None)


NO_PLACE_FOUND: Final = "no placement"


class Roster:
    """All allocations of one job, in columns."""

    def __init__(self, slots: Slots, rows: Rows, origins: Mapping[int, OriginRow], load: Load) -> None:
        self.slots = slots
        self.rows = rows
        self._load = load
        self._records: dict[int, Allocation] = {}
        refs, self.which = np.unique(rows["origin"], return_inverse=True)
        """The place of each allocation's origin in `origins`."""
        self.origins = [origins[ref] for ref in refs.tolist()]

    @classmethod
    def of(cls, view: EvaluationView, load: Load) -> Roster:
        """Of a view and `state.allocations.records`."""
        return cls(view.slots, view.allocs, view.origins, load)

    def __len__(self) -> int:
        return len(self.slots)

    @cached_property
    def ids(self) -> bytes:
        """The ids of all, 16 bytes each."""
        ids: bytes = self.rows["id"].astype(">u8").tobytes()
        return ids

    def record(self, at: int) -> Allocation:
        known = self._records.get(at)
        if known is None:
            known = self._records[at] = self._load(self.slots[at : at + 1])[0]
        return known

    def by_group(self) -> dict[str, Where]:
        """Positions by group, groups in order of their names."""
        names = sorted({origin.group for origin in self.origins})
        if len(names) == 1:
            return {names[0]: np.arange(len(self.slots), dtype=np.int64)}
        number = {name: at for at, name in enumerate(names)}
        codes = np.array([number[origin.group] for origin in self.origins], dtype=np.int64)[self.which]
        return {name: np.flatnonzero(codes == at) for name, at in number.items()}

    def with_version(self, version: tuple[int, int]) -> Mask:
        """Which allocations are of exactly this create index and version."""
        same = [(origin.job_create_index, origin.job_version) == version for origin in self.origins]
        return np.array(same, dtype=np.bool_)[self.which] if same else np.zeros(0, dtype=np.bool_)

    def of_earlier_job(self, create_index: int) -> Mask:
        """Which allocations are of a job of the same id that was purged."""
        earlier = [origin.job_create_index < create_index for origin in self.origins]
        return np.array(earlier, dtype=np.bool_)[self.which] if earlier else np.zeros(0, dtype=np.bool_)

    def older_than(self, version: tuple[int, int]) -> Mask:
        """Which allocations are of an earlier version or of an earlier job of the same id."""
        older = [origin.job_create_index < version[0] or origin.job_version < version[1] for origin in self.origins]
        return np.array(older, dtype=np.bool_)[self.which] if older else np.zeros(0, dtype=np.bool_)

    def taint(self, taints: Taints) -> Taints:
        """The taint of each allocation's node; a slot beyond what is known is a node nobody knows."""
        nodes = self.rows["node"]
        if len(nodes) and int(nodes.max()) >= len(taints):
            beyond = np.full(int(nodes.max()) + 1 - len(taints), Taint.MISSING, dtype=np.uint8)
            taints = np.concatenate((taints, beyond))
        found: Taints = taints[nodes]
        return found

    def client_terminal(self) -> Mask:
        ended: Mask = CLIENT_TERMINAL[self.rows["client_status"]]
        return ended

    def held(self, where: Where) -> list[Held]:
        """Light objects for these positions."""
        rows, origins = self.rows, self.origins
        details: Any = (rows["plan_crc"][where] != 0) * _OWN
        details |= (rows["desired_crc"][where] != 0) * _WISHED
        details |= (rows["client_crc"][where] != 0) * _REPORTED
        details |= (rows["kin_crc"][where] != 0) * _KIN
        return [
            Held(at, name_index, node, desired, client, health, flags, detail, origins[origin], self)
            for at, name_index, node, desired, client, health, flags, detail, origin in zip(
                where.tolist(),
                rows["name_index"][where].tolist(),
                rows["node"][where].tolist(),
                rows["desired"][where].tolist(),
                rows["client_status"][where].tolist(),
                rows["health"][where].tolist(),
                rows["flags"][where].tolist(),
                details.tolist(),
                self.which[where].tolist(),
                strict=True,
            )
        ]


def by_name(helds: Iterable[Held]) -> list[Held]:
    """In the order of their places in the group; equals in the order in which they came to be."""
    known = sorted(helds, key=_position)
    known.sort(key=_place)
    return known


_position = attrgetter("at")
_place = attrgetter("name_index")
