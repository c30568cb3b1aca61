"""A small stage for reconcilers: records in, what is wanted out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import numpy as np
from msgspec.structs import replace

from fedsched.model.alloc import (
    Allocation,
    AllocDeploymentStatus,
    AllocState,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
)
from fedsched.model.deployment import Deployment, DeploymentState, DeploymentStatus
from fedsched.model.evaluation import Evaluation
from fedsched.model.group import TaskGroup
from fedsched.model.ids import alloc_index, uuid_bytes
from fedsched.model.job import Job
from fedsched.model.task_state import TaskState, TaskStatus
from fedsched.scheduler.reconcile.held import Held, Roster, Taint
from fedsched.scheduler.reconcile.service import Ground, reconcile
from fedsched.scheduler.reconcile.wanted import GroupWanted, Wanted
from fedsched.state.tables.alloc_columns import ALLOC_DTYPE, CLIENT_CODES, DESIRED_CODES, Flag
from fedsched.state.tables.alloc_origins import OriginRow
from tests.builders import a_deployment, a_group, a_job, a_task, an_alloc, an_evaluation, an_id

SECOND = 1_000_000_000
NOW = 1_000_000 * SECOND
EVALUATION = an_id(0xEEE)


def a_service(count: int = 10, *, version: int = 1, stop: bool = False, **group: Any) -> Job:
    return a_job(
        groups=[a_group(count=count, **group)], version=version, create_index=5, job_modify_index=10, stop=stop
    )


def a_batch(count: int = 10, *, version: int = 1, **group: Any) -> Job:
    group.setdefault("update", None)
    return a_job(groups=[a_group(count=count, **group)], version=version, create_index=5, type="batch")


def changed(job: Job, *, version: int | None = None, **group: Any) -> Job:
    """The same job with a task that runs something else: a destructive change."""
    tasks = (a_task(config={"run_for": "1h"}),)
    groups = tuple(replace(one, tasks=tasks, **group) for one in job.task_groups)
    return replace(job, task_groups=groups, version=job.version + 1 if version is None else version)


def edited(job: Job, **group: Any) -> Job:
    """The same job with a change that can be made in place."""
    groups = tuple(replace(one, **group) for one in job.task_groups)
    return replace(job, task_groups=groups, version=job.version + 1, priority=job.priority + 1)


def alloc(
    number: int,
    job: Job,
    *,
    index: int | None = None,
    node: int = 0,
    client: str = "running",
    desired: str = "run",
    health: bool | None = None,
    canary: bool = False,
    flags: Iterable[str] = (),
    deployment: str = "",
    unknown_at: int | None = None,
    finished_at: int = 0,
    **fields: Any,
) -> Allocation:
    """One allocation on a node given by its slot; `number` makes its id and, unless said, its place."""
    if unknown_at is not None:
        fields.setdefault("alloc_states", (AllocState(value="unknown", time_ns=unknown_at),))
    if finished_at:
        state = TaskState(state=TaskStatus.DEAD, failed=client == "failed", finished_at_ns=finished_at)
        fields.setdefault("task_states", {"web": state})
    if health is not None or canary:
        fields["deployment_status"] = AllocDeploymentStatus(healthy=health, canary=canary)
    return an_alloc(
        0x1000 + number,
        job=job,
        index=number if index is None else index,
        node_id=an_id(0x200 + node),
        client_status=ClientStatus(client),
        desired_status=DesiredStatus(desired),
        desired_transition=DesiredTransition(**dict.fromkeys(flags, True)),
        deployment_id=deployment,
        modify_time_ns=fields.pop("modify_time_ns", NOW - 3600 * SECOND),
        **fields,
    )


def allocs(job: Job, count: int, *, start: int = 0, **fields: Any) -> list[Allocation]:
    """Allocations with consecutive places, each on a node of its own."""
    return [alloc(number, job, node=number, **fields) for number in range(start, start + count)]


def id_of(number: int) -> str:
    return an_id(0x1000 + number)


_FLAG_OF = {
    "migrate": Flag.MIGRATE,
    "reschedule": Flag.RESCHEDULE,
    "force_reschedule": Flag.FORCE_RESCHEDULE,
    "no_shutdown_delay": Flag.NO_SHUTDOWN_DELAY,
    "migrate_disable_placement": Flag.MIGRATE_DISABLE_PLACEMENT,
}


def roster_of(records: Sequence[Allocation]) -> Roster:
    """The columns that a store would have of these records."""
    rows = np.zeros(len(records), dtype=ALLOC_DTYPE)
    origins: dict[tuple[Any, ...], OriginRow] = {}
    for row, one in zip(rows, records, strict=True):
        assert one.job is not None
        key = (one.job.create_index, one.job.version, one.task_group, one.deployment_id)
        if key not in origins:
            origins[key] = OriginRow(
                ref=len(origins),
                namespace=one.namespace,
                job_id=one.job_id,
                job_create_index=key[0],
                job_version=key[1],
                group=one.task_group,
                evaluation_id=one.eval_id,
                group_slot=0,
                deployment_id=one.deployment_id,
            )
        _fill(row, one, origins[key].ref)
    by_ref = {origin.ref: origin for origin in origins.values()}
    slots = np.arange(len(records), dtype=np.int64)
    return Roster(slots, rows, by_ref, lambda wanted: [records[at] for at in wanted.tolist()])


def _fill(row: Any, one: Allocation, origin: int) -> None:
    identity = uuid_bytes(one.id)
    row["used"] = 1
    row["id"] = (int.from_bytes(identity[:8], "big"), int.from_bytes(identity[8:], "big"))
    row["desired"] = DESIRED_CODES[one.desired_status]
    row["client_status"] = CLIENT_CODES[one.client_status]
    status = one.deployment_status
    row["health"] = {None: 0, True: 1, False: 2}[status.healthy if status is not None else None]
    wishes = [flag for name, flag in _FLAG_OF.items() if getattr(one.desired_transition, name)]
    row["flags"] = sum(int(flag) for flag in wishes) + (int(Flag.CANARY) if one.is_canary else 0)
    row["node"] = int(one.node_id[-12:], 16) - 0x200
    row["origin"] = origin
    row["name_index"] = alloc_index(one.name)
    row["plan_crc"] = one.reschedule_tracker is not None
    row["desired_crc"] = bool(one.alloc_states or one.followup_eval_id)
    row["client_crc"] = bool(one.task_states)
    row["kin_crc"] = bool(one.next_allocation or one.previous_allocation)
    row["modify_time"] = one.modify_time_ns
    row["create_index"] = one.create_index


def held_of(one: Allocation) -> Held:
    return roster_of([one]).held(np.array([0]))[0]


def stays(helds: Sequence[Held], group: TaskGroup) -> list[bool]:
    return [True] * len(helds)


def must_go(helds: Sequence[Held], group: TaskGroup) -> list[bool]:
    return [False] * len(helds)


def new_ids(start: int = 0xF000) -> Callable[[], str]:
    numbers = count(start)
    return lambda: an_id(next(numbers))


def ground(
    job: Job | None,
    records: Sequence[Allocation] = (),
    *,
    tainted: dict[int, Taint] | None = None,
    deployment: Deployment | None = None,
    now_ns: int = NOW,
    evaluation: Evaluation | None = None,
    can_stay: Any = stays,
    versions: Iterable[Job] = (),
    deployments: Sequence[Deployment] = (),
) -> Ground:
    known = {(one.create_index, one.version): one for one in versions}
    known.update({(one.job.create_index, one.job.version): one.job for one in records if one.job is not None})
    codes = np.zeros(4096, dtype=np.uint8)
    for slot, taint in (tainted or {}).items():
        codes[slot] = taint
    return Ground(
        evaluation=evaluation or an_evaluation(id=EVALUATION, job=job),
        job=job,
        roster=roster_of(records),
        taints=codes,
        deployment=deployment,
        now_ns=now_ns,
        new_id=new_ids(),
        can_stay=can_stay,
        job_at=lambda create_index, version: known.get((create_index, version)),
        deployments=lambda: deployments,
    )


def run(job: Job | None, records: Sequence[Allocation] = (), **options: Any) -> Wanted:
    return reconcile(ground(job, records, **options))


def run_group(job: Job, records: Sequence[Allocation] = (), **options: Any) -> GroupWanted:
    """For jobs with one group."""
    return run(job, records, **options).groups[job.task_groups[0].name]


def deploying(job: Job, *, number: int = 0xD, status: str = "running", **state: Any) -> Deployment:
    """A deployment of this version, with this state of its only group."""
    return a_deployment(
        number,
        job=job,
        job_create_index=job.create_index,
        status=DeploymentStatus(status),
        task_groups={job.task_groups[0].name: DeploymentState(**state)},
    )


def places(wanted: GroupWanted) -> list[int]:
    """Places in the group of everything that is placed."""
    singles = [one.name_index for one in (*wanted.destructive, *wanted.special)]
    return sorted([*singles, *wanted.fresh.tolist()])


def stopped(wanted: GroupWanted) -> list[int]:
    """Places of everything that is stopped, also on condition that a replacement is found."""
    tied = [one.stop for one in (*wanted.destructive, *wanted.special) if one.stop is not None]
    return sorted(stop.held.name_index for stop in (*wanted.stops, *tied))
