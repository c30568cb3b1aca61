"""What a reconciler wants to happen: records without any deciding in them.

The bulk of a job's placements differ in nothing but their place in the group, so those are one array of numbers. Only
what has a story (replacements, canaries, moves, updates) is an object of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedsched.model.alloc import ClientStatus, RescheduleTracker
from fedsched.model.deployment import Deployment, DeploymentStatusUpdate
from fedsched.model.evaluation import Evaluation
from fedsched.model.group import TaskGroup
from fedsched.model.plan import DesiredUpdates
from fedsched.scheduler.reconcile.held import FAILED, Held

NOT_NEEDED: Final = "alloc not needed due to job update"
MIGRATING: Final = "alloc is being migrated"
UPDATING: Final = "alloc is being updated due to job update"
LOST: Final = "alloc is lost since its node is down"
UNKNOWN: Final = "alloc is unknown since its node is disconnected"
RESCHEDULED: Final = "alloc was rescheduled because it failed"
RECONNECTED: Final = "alloc not needed due to disconnected client reconnect"
NODE_TAINTED: Final = "alloc not needed as node is tainted"
DELAYED_RESCHEDULE: Final = "created for delayed rescheduling"
DELAYED_TIMEOUT: Final = "created for delayed disconnect timeout"
"""The words that Nomad uses; scripts in the field look for them."""

NO_INDEXES: Final[NDArray[np.int32]] = np.zeros(0, dtype=np.int32)


class Reason(StrEnum):
    """Why one allocation is placed that is not just one more of its group."""

    LOST = "lost"
    RESCHEDULE = "reschedule"
    DISCONNECT = "disconnect"
    """A second copy while the first one's client is cut off."""
    MIGRATE = "migrate"
    CANARY = "canary"
    DESTRUCTIVE = "destructive update"
    AGAIN = "again"
    """On a node where the last one came to an end (system jobs)."""


class Stop(msgspec.Struct, frozen=True, gc=False, eq=False):
    """An allocation to be stopped."""

    held: Held
    description: str
    client_status: ClientStatus | None = None
    """What servers have to assume of it; None leaves that to its client."""
    followup_id: str = ""
    """The evaluation that goes on where this one leaves off."""


class Single(msgspec.Struct, frozen=True, gc=False, eq=False):
    """One allocation to be placed, with its story."""

    name_index: int
    reason: Reason
    previous: Held | None = None
    stop: Stop | None = None
    """To be stopped before its replacement is looked for, and left alone again if no place is found."""
    is_canary: bool = False
    job_version: int | None = None
    """Place it from this version of the job (unpromoted canaries keep the old one alive); None: the current one."""
    deployment_id: str | None = None
    """The older deployment that goes with that version, empty for none; None: the current one."""
    tracker: RescheduleTracker | None = None
    """To be attached to the new allocation."""
    node: int = -1
    """The slot of the only node that will do (system jobs); -1: any."""

    def penalty_nodes(self) -> set[str]:
        """Ids of nodes better avoided: where it failed just now and wherever its forerunners failed."""
        if self.previous is None:
            return set()
        tracker = self.previous.tracker
        nodes = {event.prev_node_id for event in tracker.events} if tracker is not None else set()
        if self.previous.client == FAILED:
            nodes.add(self.previous.record.node_id)
        return nodes


class Disconnect(msgspec.Struct, frozen=True, gc=False, eq=False):
    """An allocation whose client is cut off: its status becomes unknown and that moment is recorded."""

    held: Held
    followup_id: str = ""


class Followed(msgspec.Struct, frozen=True, gc=False, eq=False):
    """An allocation that is to remember the evaluation which will come back to it."""

    held: Held
    followup_id: str


@dataclass(slots=True)
class Tally:
    """The counts of `DesiredUpdates` while they grow."""

    ignore: int = 0
    place: int = 0
    migrate: int = 0
    stop: int = 0
    in_place_update: int = 0
    destructive_update: int = 0
    canary: int = 0
    disconnect: int = 0
    reconnect: int = 0
    reschedule_now: int = 0
    reschedule_later: int = 0

    def record(self) -> DesiredUpdates:
        return DesiredUpdates(**{name: getattr(self, name) for name in self.__slots__})


@dataclass(slots=True)
class GroupWanted:
    """What one group needs. Order of placing: destructive updates first, then `special`, then `fresh`."""

    name: str
    group: TaskGroup | None
    """None for a group that the job no longer has."""
    fresh: NDArray[np.int32] = field(default_factory=lambda: NO_INDEXES)
    """Places in the group of plain new allocations."""
    fresh_nodes: NDArray[np.int32] | None = None
    """System jobs: the slot of the node for each of `fresh`; None: any node."""
    special: list[Single] = field(default_factory=list)
    destructive: list[Single] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    """Stops that do not depend on a placement; the others are in `special` and `destructive`."""
    in_place: list[Held] = field(default_factory=list)
    """Checked by `can_stay`: they get the new job version on their node."""
    disconnecting: list[Disconnect] = field(default_factory=list)
    reconnecting: list[Held] = field(default_factory=list)
    """Back and kept: record the moment, keep running."""
    followed: list[Followed] = field(default_factory=list)
    follow_ups: list[Evaluation] = field(default_factory=list)
    """To be created. Whoever does not create them must leave out `followed` too, or nobody comes back to those."""
    held_up_until: str = ""
    """The follow-up that ends a time in which nothing is placed, if none of the above waits for it."""
    tally: Tally = field(default_factory=Tally)

    @property
    def desired(self) -> DesiredUpdates:
        return self.tally.record()

    @property
    def place_count(self) -> int:
        return len(self.fresh) + len(self.special) + len(self.destructive)

    @property
    def is_calm(self) -> bool:
        """Whether there is nothing at all to do."""
        lists: tuple[list[Any], ...] = (self.stops, self.in_place, self.disconnecting, self.reconnecting, self.followed)
        return not self.place_count and not any(lists)


@dataclass(slots=True)
class Wanted:
    """What the job needs."""

    groups: dict[str, GroupWanted] = field(default_factory=dict)
    deployment: Deployment | None = None
    """To be created, or an existing one that gained a group: stored whole, client-driven counts kept."""
    deployment_updates: list[DeploymentStatusUpdate] = field(default_factory=list)
    gone: list[Held] = field(default_factory=list)
    """Told to stop long ago, on nodes that are gone: nobody will report, so they are lost."""
    dropped_evaluations: list[str] = field(default_factory=list)
    """Follow-ups without a purpose: cancelled, and taken out of the broker."""

    @property
    def is_calm(self) -> bool:
        rest = (self.deployment, self.deployment_updates, self.gone, self.dropped_evaluations)
        return not any(rest) and all(group.is_calm for group in self.groups.values())
