"""Builders for tests: `a_job(groups=[a_group(count=3)])`. Only what matters to a test is spelled out.

Ids are plain counters in the form of UUIDs, so that a failing test shows short, stable names: `an_id(7)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedsched.model.alloc import Allocation
from fedsched.model.deployment import Deployment
from fedsched.model.evaluation import Evaluation, Trigger
from fedsched.model.group import TaskGroup
from fedsched.model.ids import alloc_name
from fedsched.model.job import Job
from fedsched.model.node import DriverInfo, Node, NodeStatus
from fedsched.model.node_resources import NodeCPU, NodeDisk, NodeMemory, NodeResources
from fedsched.model.policies import MigrateStrategy, ReschedulePolicy, RestartPolicy, UpdateStrategy
from fedsched.model.resources import (
    AllocatedCPU,
    AllocatedMemory,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
    Resources,
)
from fedsched.model.task import Task


def an_id(number: int = 1) -> str:
    """Give a UUID that is easy to recognise: the number in its last digits."""
    return f"00000000-0000-0000-0000-{number:012x}"


def a_task(name: str = "web", *, cpu: int = 100, memory_mb: int = 300, **fields: Any) -> Task:
    fields.setdefault("driver", "mock_driver")
    fields.setdefault("config", {"run_for": "10s"})
    fields.setdefault("resources", Resources(cpu=cpu, memory_mb=memory_mb))
    fields.setdefault("restart_policy", RestartPolicy())
    return Task(name=name, **fields)


def a_group(name: str = "group", *, count: int = 1, tasks: Iterable[Task] | None = None, **fields: Any) -> TaskGroup:
    fields.setdefault("restart_policy", RestartPolicy())
    fields.setdefault("reschedule_policy", ReschedulePolicy())
    fields.setdefault("update", UpdateStrategy())
    fields.setdefault("migrate", MigrateStrategy())
    return TaskGroup(name=name, count=count, tasks=tuple([a_task()] if tasks is None else tasks), **fields)


def a_job(job_id: str = "web", *, groups: Iterable[TaskGroup] | None = None, **fields: Any) -> Job:
    """Build a service job that would pass admission as it is."""
    fields.setdefault("name", job_id)
    fields.setdefault("region", "global")
    fields.setdefault("priority", 50)
    fields.setdefault("datacenters", ("*",))
    fields.setdefault("node_pool", "default")
    return Job(id=job_id, task_groups=tuple([a_group()] if groups is None else groups), **fields)


def a_node(
    number: int = 1,
    *,
    cpu: int = 4000,
    memory_mb: int = 8192,
    disk_mb: int = 100_000,
    drivers: Iterable[str] = ("mock_driver", "raw_exec"),
    attributes: Mapping[str, str] | None = None,
    **fields: Any,
) -> Node:
    """Build a ready, eligible node."""
    fields.setdefault("id", an_id(number))
    fields.setdefault("name", f"node-{number}")
    fields.setdefault("status", NodeStatus.READY)
    fields.setdefault(
        "node_resources",
        NodeResources(
            cpu=NodeCPU(cpu_shares=cpu, total_cpu_cores=4, reservable_cpu_cores=(0, 1, 2, 3)),
            memory=NodeMemory(memory_mb=memory_mb),
            disk=NodeDisk(disk_mb=disk_mb),
        ),
    )
    fields.setdefault("drivers", {name: DriverInfo(detected=True, healthy=True) for name in drivers})
    return Node(attributes={"kernel.name": "linux", **(attributes or {})}, **fields)


def an_alloc(
    number: int = 1, *, job: Job | None = None, group: str = "", node_id: str = "", index: int = 0, **fields: Any
) -> Allocation:
    """Build an allocation of the job's first (or named) group, given what that group asks for."""
    job = a_job() if job is None else job
    wanted = job.group(group) if group else job.task_groups[0]
    assert wanted is not None, f"job {job.id} has no group {group!r}"
    fields.setdefault("allocated_resources", _given(wanted))
    return Allocation(
        id=fields.pop("id", an_id(number)),
        namespace=job.namespace,
        eval_id=fields.pop("eval_id", an_id(0xE)),
        name=fields.pop("name", alloc_name(job.id, wanted.name, index)),
        node_id=node_id or an_id(1),
        job_id=job.id,
        job=job,
        task_group=wanted.name,
        **fields,
    )


def an_evaluation(number: int = 1, *, job: Job | None = None, **fields: Any) -> Evaluation:
    """Build a pending evaluation, of a job if one is given."""
    job = a_job() if job is None else job
    fields.setdefault("id", an_id(number))
    fields.setdefault("triggered_by", Trigger.JOB_REGISTER.value)
    fields.setdefault("job_id", job.id)
    fields.setdefault("namespace", job.namespace)
    fields.setdefault("type", job.type)
    fields.setdefault("priority", job.priority)
    return Evaluation(**fields)


def a_deployment(number: int = 1, *, job: Job | None = None, **fields: Any) -> Deployment:
    job = a_job() if job is None else job
    fields.setdefault("id", an_id(number))
    return Deployment(job_id=job.id, namespace=job.namespace, job_version=job.version, **fields)


def _given(group: TaskGroup) -> AllocatedResources:
    return AllocatedResources(
        tasks={
            task.name: AllocatedTaskResources(
                cpu=AllocatedCPU(cpu_shares=task.resources.cpu),
                memory=AllocatedMemory(memory_mb=task.resources.memory_mb),
            )
            for task in group.tasks
        },
        task_lifecycles={task.name: task.lifecycle for task in group.tasks},
        shared=AllocatedSharedResources(disk_mb=group.ephemeral_disk.size_mb),
    )
