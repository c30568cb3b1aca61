"""In place or destructive: the table, change by change."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.constraint import Affinity, Constraint, Spread
from fedsched.model.group import TaskGroup
from fedsched.model.identity import WorkloadIdentity
from fedsched.model.job import Job, ParameterizedJobConfig, PeriodicConfig
from fedsched.model.network import CNIConfig, DNSConfig, NetworkResource, Port
from fedsched.model.policies import (
    DisconnectStrategy,
    EphemeralDisk,
    MigrateStrategy,
    ReschedulePolicy,
    RestartPolicy,
    UpdateStrategy,
)
from fedsched.model.resources import NUMAResource, RequestedDevice, Resources
from fedsched.model.scaling import ScalingPolicy
from fedsched.model.service import Service, ServiceCheck
from fedsched.model.task import Action, DispatchPayload, LogConfig, Secret, Task, TaskArtifact, TaskLifecycle, Template
from fedsched.model.volume import VolumeMount, VolumeRequest
from fedsched.scheduler.reconcile.updates import Comparer, is_destructive
from tests.builders import a_group, a_job, a_task
from tests.scheduler.reconcile.kit import a_service, alloc, allocs, changed, edited, held_of, must_go, run_group, stays

NETWORK = NetworkResource(
    mode="bridge",
    hostname="h",
    dns=DNSConfig(servers=("1.1.1.1",)),
    cni=CNIConfig(args={"a": "1"}),
    reserved_ports=(Port(label="db", value=5432),),
    dynamic_ports=(Port(label="http", to=8080, host_network="default"), Port(label="admin")),
)
DEVICE = RequestedDevice(name="gpu", constraints=(Constraint(l_target="${device.model}", r_target="1080"),))
BASE_TASK = a_task(
    resources=Resources(cpu=100, memory_mb=300, devices=(DEVICE,)),
    services=(Service(name="web", checks=(ServiceCheck(name="alive"),)),),
    templates=(Template(dest_path="a"),),
    artifacts=(TaskArtifact(getter_source="s"),),
    volume_mounts=(VolumeMount(volume="data"),),
    constraints=(Constraint(l_target="${attr.kernel.name}", r_target="linux"),),
)
BASE_GROUP = a_group(
    tasks=[BASE_TASK, a_task("side")],
    networks=(NETWORK,),
    volumes={"data": VolumeRequest(name="data", type="host", source="d")},
    meta={"who": "group"},
)
BASE = a_job(groups=[BASE_GROUP], version=1, create_index=5, meta={"where": "here"})


def with_task(**fields: Any) -> Job:
    return with_group(tasks=(replace(BASE_TASK, **fields), BASE_GROUP.tasks[1]))


def with_group(**fields: Any) -> Job:
    return replace(BASE, task_groups=(replace(BASE_GROUP, **fields),), version=2)


def with_network(**fields: Any) -> Job:
    return with_group(networks=(replace(NETWORK, **fields),))


def with_resources(**fields: Any) -> Job:
    return with_task(resources=replace(BASE_TASK.resources, **fields))


DESTRUCTIVE: dict[str, Job] = {
    "a task more": with_group(tasks=(*BASE_GROUP.tasks, a_task("third"))),
    "a task less": with_group(tasks=BASE_GROUP.tasks[:1]),
    "a task renamed": with_group(tasks=(BASE_TASK, a_task("other"))),
    "driver": with_task(driver="raw_exec"),
    "user": with_task(user="nobody"),
    "config": with_task(config={"run_for": "20s"}),
    "env": with_task(env={"A": "b"}),
    "artifacts": with_task(artifacts=(TaskArtifact(getter_source="t"),)),
    "one artifact more": with_task(artifacts=(*BASE_TASK.artifacts, TaskArtifact())),
    "templates": with_task(templates=(Template(dest_path="a", perms="0600"),)),
    "secrets": with_task(secrets=(Secret(name="s"),)),
    "vault": with_task(vault={"role": "r"}),
    "identity": with_task(identity=WorkloadIdentity(name="default", env=True)),
    "identities": with_task(identities=(WorkloadIdentity(name="aws"),)),
    "volume mounts": with_task(volume_mounts=(VolumeMount(volume="data", read_only=True),)),
    "logs disabled": with_task(log_config=LogConfig(disabled=True)),
    "task meta": with_task(meta={"who": "task"}),
    "group meta": with_group(meta={"who": "somebody"}),
    "job meta": replace(BASE, meta={"where": "there"}, version=2),
    "cpu": with_resources(cpu=200),
    "cores": with_resources(cpu=0, cores=2),
    "memory": with_resources(memory_mb=301),
    "memory_max": with_resources(memory_max_mb=600),
    "secrets MB": with_resources(secrets_mb=1),
    "devices": with_resources(devices=()),
    "a device's count": with_resources(devices=(replace(DEVICE, count=2),)),
    "a device's constraint": with_resources(
        devices=(replace(DEVICE, constraints=(Constraint(l_target="${device.model}", r_target="2080"),)),)
    ),
    "numa": with_resources(numa=NUMAResource(affinity="require")),
    "ephemeral disk size": with_group(ephemeral_disk=EphemeralDisk(size_mb=301)),
    "ephemeral disk sticky": with_group(ephemeral_disk=EphemeralDisk(sticky=True)),
    "network mode": with_network(mode="host"),
    "network hostname": with_network(hostname="i"),
    "network dns": with_network(dns=DNSConfig(servers=("9.9.9.9",))),
    "network dns gone": with_network(dns=None),
    "network cni args": with_network(cni=CNIConfig(args={"a": "2"})),
    "port label": with_network(reserved_ports=(Port(label="sql", value=5432),)),
    "port value": with_network(reserved_ports=(Port(label="db", value=5433),)),
    "port to": with_network(dynamic_ports=(Port(label="http", to=8081), Port(label="admin"))),
    "port host network": with_network(
        dynamic_ports=(Port(label="http", to=8080, host_network="inner"), Port(label="admin"))
    ),
    "number of networks": with_group(networks=()),
    "volumes": with_group(volumes={"data": VolumeRequest(name="data", type="host", source="e")}),
    "connect": with_task(
        services=(Service(name="web", connect={"native": True}, checks=BASE_TASK.services[0].checks),)
    ),
    "group restart.render_templates": with_group(restart_policy=RestartPolicy(render_templates=True)),
    "task restart.render_templates": with_task(restart_policy=RestartPolicy(render_templates=True)),
    "registered anew after a purge": replace(BASE, create_index=9),
    "the group is gone": replace(BASE, task_groups=(a_group("other"),)),
}

IN_PLACE: dict[str, Job] = {
    "max_run_duration": with_group(max_run_duration_s=60.0),
    "count": with_group(count=7),
    "priority": replace(BASE, priority=80),
    "name": replace(BASE, name="other"),
    "update": with_group(update=UpdateStrategy(max_parallel=5)),
    "restart": with_group(restart_policy=RestartPolicy(attempts=9)),
    "task restart": with_task(restart_policy=RestartPolicy(attempts=9)),
    "reschedule": with_group(reschedule_policy=ReschedulePolicy(delay_s=9.0)),
    "migrate": with_group(migrate=MigrateStrategy(max_parallel=4)),
    "disconnect": with_group(disconnect=DisconnectStrategy(lost_after_s=9.0)),
    "job constraints": replace(BASE, constraints=(Constraint(l_target="${node.class}", r_target="a"),)),
    "group constraints": with_group(constraints=(Constraint(l_target="${node.class}", r_target="a"),)),
    "task constraints": with_task(constraints=(Constraint(l_target="${attr.kernel.name}", r_target="bsd"),)),
    "datacenters": replace(BASE, datacenters=("dc2",)),
    "node pool": replace(BASE, node_pool="other"),
    "affinities": with_group(affinities=(Affinity(l_target="${node.class}", r_target="a"),)),
    "spreads": with_group(spreads=(Spread(attribute="${node.datacenter}"),)),
    "job spreads": replace(BASE, spreads=(Spread(attribute="${node.datacenter}"),)),
    "services": with_task(services=(Service(name="www"),)),
    "group services": with_group(services=(Service(name="www"),)),
    "checks": with_task(services=(Service(name="web", checks=(ServiceCheck(name="alive", interval_s=9.0),)),)),
    "kill_timeout": with_task(kill_timeout_s=9.0),
    "kill_signal": with_task(kill_signal="SIGINT"),
    "shutdown_delay": with_task(shutdown_delay_s=9.0),
    "group shutdown_delay": with_group(shutdown_delay_s=9.0),
    "logs sizes": with_task(log_config=LogConfig(max_files=3, max_file_size_mb=4)),
    "leader": with_task(leader=True),
    "lifecycle": with_task(lifecycle=TaskLifecycle(hook="prestart")),
    "actions": with_task(actions=(Action(name="a"),)),
    "dispatch_payload": with_task(dispatch_payload=DispatchPayload(file="f")),
    "scaling": with_group(scaling=ScalingPolicy(max=9)),
    "all_at_once": replace(BASE, all_at_once=True),
    "periodic": replace(BASE, periodic=PeriodicConfig(spec="* * * * *")),
    "parameterized": replace(BASE, parameterized_job=ParameterizedJobConfig()),
    "order of ports": with_network(dynamic_ports=tuple(reversed(NETWORK.dynamic_ports))),
    "order of tasks": with_group(tasks=tuple(reversed(BASE_GROUP.tasks))),
    "a meta key moved to where tasks see the same": replace(
        with_group(meta={"who": "group", "where": "here"}), meta={}
    ),
    "only status and indexes": replace(BASE, version=2, modify_index=99, stable=True),
}


@pytest.mark.parametrize("change", DESTRUCTIVE)
def test_needs_a_new_allocation_for(change: str) -> None:
    assert is_destructive(BASE, DESTRUCTIVE[change], "group")


@pytest.mark.parametrize("change", IN_PLACE)
def test_goes_on_in_place_for(change: str) -> None:
    assert not is_destructive(BASE, IN_PLACE[change], "group")


def test_the_same_version_is_left_alone() -> None:
    job = a_service()
    updates = Comparer(job, lambda *_: None).split([held_of(alloc(0, job))], job.task_groups[0], must_go)

    assert len(updates.ignored) == 1


def test_a_version_that_nobody_kept_needs_a_new_allocation() -> None:
    job = a_service(version=7)
    updates = Comparer(job, lambda *_: None).split([held_of(alloc(0, a_service()))], job.task_groups[0], stays)

    assert len(updates.destructive) == 1


def test_each_version_is_compared_once() -> None:
    old, new = a_service(), edited(a_service())
    asked: list[tuple[int, int]] = []

    def job_at(create_index: int, version: int) -> Job | None:
        asked.append((create_index, version))
        return old

    helds = [held_of(alloc(number, old)) for number in range(5)]
    updates = Comparer(new, job_at).split(helds, new.task_groups[0], stays)

    assert len(updates.in_place) == 5
    assert asked == [(5, 1)]


def test_an_in_place_candidate_whose_node_no_longer_fits_is_replaced() -> None:
    job = a_service(2)

    wanted = run_group(edited(job), allocs(job, 2), can_stay=must_go)

    assert wanted.in_place == []
    assert [one.name_index for one in wanted.destructive] == [0]
    assert wanted.desired.destructive_update == 1


def test_the_node_check_sees_the_new_group() -> None:
    job = a_service(1)
    seen: list[TaskGroup] = []

    def can_stay(helds: Any, group: TaskGroup) -> list[bool]:
        seen.append(group)
        return [True]

    new = edited(job, count=1, shutdown_delay_s=3.0)
    run_group(new, allocs(job, 1), can_stay=can_stay)

    assert seen == [new.task_groups[0]]


def test_an_ended_allocation_is_not_updated_in_place_but_is_replaced_by_a_destructive_change() -> None:
    off = ReschedulePolicy(attempts=0, unlimited=False)
    job = a_service(1, reschedule_policy=off)
    failed = allocs(job, 1, client="failed")

    assert run_group(edited(job), failed).is_calm
    assert [one.name_index for one in run_group(changed(job), failed).destructive] == [0]


def test_tasks_are_compared_by_name() -> None:
    task = Task(name="web", driver="mock_driver")

    assert not is_destructive(
        a_job(groups=[a_group(tasks=[task])]), a_job(groups=[a_group(tasks=[task])], version=3), "group"
    )
