"""A task group: what is placed together on one node."""

from __future__ import annotations

from typing import Annotated, ClassVar

from fedsched.model.constraint import Affinity, Constraint, Spread
from fedsched.model.network import NetworkResource
from fedsched.model.policies import (
    DisconnectStrategy,
    EphemeralDisk,
    MigrateStrategy,
    ReschedulePolicy,
    RestartPolicy,
    UpdateStrategy,
)
from fedsched.model.record import EMPTY, FreeForm, InDiff, MaybeSeconds, Named, Record, StringMap, UpdateClass
from fedsched.model.scaling import ScalingPolicy
from fedsched.model.service import Service
from fedsched.model.task import Task
from fedsched.model.volume import VolumeRequest

DESTRUCTIVE = UpdateClass.DESTRUCTIVE


class TaskGroup(Record):
    """The unit that is placed, as many times as its count says.

    `consul` is kept as plain data. The three legacy disconnect fields keep their own names in JSON.
    """

    diff_key: ClassVar[str] = "name"

    name: str
    count: int = 1
    constraints: tuple[Constraint, ...] = ()
    affinities: tuple[Affinity, ...] = ()
    spreads: Annotated[tuple[Spread, ...], InDiff.CHANGES_ONLY] = ()
    restart_policy: RestartPolicy | None = None
    disconnect: DisconnectStrategy | None = None
    migrate: Annotated[MigrateStrategy | None, "None where the job's type does not migrate."] = None
    reschedule_policy: Annotated[ReschedulePolicy | None, "None where the job's type is not rescheduled."] = None
    ephemeral_disk: Annotated[EphemeralDisk, DESTRUCTIVE] = EphemeralDisk()
    update: Annotated[UpdateStrategy | None, "None where the job's type knows no updates."] = None
    networks: Annotated[
        tuple[NetworkResource, ...], DESTRUCTIVE, Named("Network"), "Only the first is used for placement."
    ] = ()
    services: tuple[Service, ...] = ()
    volumes: Annotated[dict[str, VolumeRequest], DESTRUCTIVE, Named("Volume")] = EMPTY
    scaling: ScalingPolicy | None = None
    consul: Annotated[FreeForm | None, DESTRUCTIVE] = None
    tasks: Annotated[tuple[Task, ...], DESTRUCTIVE] = ()
    meta: Annotated[StringMap, DESTRUCTIVE] = EMPTY
    shutdown_delay_s: Annotated[MaybeSeconds, "How long to wait between leaving the registry and the signal."] = None
    max_run_duration_s: Annotated[MaybeSeconds, "After how long the client ends the allocation."] = None
    stop_after_client_disconnect_s: Annotated[MaybeSeconds, "Legacy; see disconnect."] = None
    max_client_disconnect_s: Annotated[MaybeSeconds, "Legacy; see disconnect."] = None
    prevent_reschedule_on_lost: Annotated[bool, "Legacy; see disconnect."] = False

    def task(self, name: str) -> Task | None:
        return next((task for task in self.tasks if task.name == name), None)
