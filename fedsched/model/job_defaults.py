"""Filling a job in: what servers do to every job before they look at it closely, and again when it is stored.

`canonicalise` is pure and may be repeated without effect. It is the only place that knows defaults which depend on the
job's type; the records' own defaults never change, these may.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from fedsched.model.constraint import Constraint
from fedsched.model.group import TaskGroup
from fedsched.model.identity import DEFAULT_AUDIENCE, DEFAULT_IDENTITY, WorkloadIdentity
from fedsched.model.job import (
    DEFAULT_NAMESPACE,
    DEFAULT_NODE_POOL,
    DEFAULT_PRIORITY,
    DEFAULT_REGION,
    Job,
    JobType,
    ParameterizedJobConfig,
    PeriodicConfig,
    behaves_as,
)
from fedsched.model.network import NetworkResource, Port
from fedsched.model.policies import (
    DAY,
    DisconnectStrategy,
    MigrateStrategy,
    ReschedulePolicy,
    RestartPolicy,
    UpdateStrategy,
)
from fedsched.model.scaling import ScalingPolicy
from fedsched.model.service import Service, ServiceCheck
from fedsched.model.task import Task, Template

SERVICE_RESTART = RestartPolicy()
BATCH_RESTART = RestartPolicy(attempts=3, interval_s=DAY)
RESTART: Mapping[str, RestartPolicy] = {
    JobType.SERVICE: SERVICE_RESTART,
    JobType.SYSTEM: SERVICE_RESTART,
    JobType.BATCH: BATCH_RESTART,
    JobType.SYSBATCH: BATCH_RESTART,
}
RESCHEDULE: Mapping[str, ReschedulePolicy] = {
    JobType.SERVICE: ReschedulePolicy(),
    JobType.BATCH: ReschedulePolicy(
        attempts=1, interval_s=DAY, delay_s=5.0, delay_function="constant", max_delay_s=0.0, unlimited=False
    ),
}
UPDATE = UpdateStrategy()
MIGRATE = MigrateStrategy()
WITH_UPDATE = frozenset({JobType.SERVICE.value, JobType.SYSTEM.value})
WITH_MIGRATE = frozenset({JobType.SERVICE.value})

CONSUL = "consul"
"""What a service says that names no provider, as Nomad has it; our own registry serves it all the same."""

NATIVE_PROVIDERS = frozenset({"nomad", "fedsched"})


def canonicalise(job: Job, *, region: str = DEFAULT_REGION, default_priority: int = DEFAULT_PRIORITY) -> Job:
    """Fill in what the job leaves open."""
    filled = replace(
        job,
        region=job.region or region,
        namespace=job.namespace or DEFAULT_NAMESPACE,
        name=job.name or job.id,
        type=job.type or JobType.SERVICE.value,
        priority=job.priority or default_priority,
        datacenters=job.datacenters or (("*",) if job.multiregion is None else ()),
        node_pool=job.node_pool or DEFAULT_NODE_POOL,
        reschedule=None,
        migrate=None,
        periodic=_periodic(job.periodic),
        parameterized_job=_parameterized(job.parameterized_job),
    )
    groups = tuple(_group(_inherit(group, job), filled) for group in job.task_groups)
    return replace(filled, task_groups=groups)


def with_implied_constraints(job: Job) -> Job:
    """Add to each group the constraints that its own wishes imply, unless they are there already."""
    return replace(job, task_groups=tuple(_constrained(group) for group in job.task_groups))


def _periodic(periodic: PeriodicConfig | None) -> PeriodicConfig | None:
    if periodic is None:
        return None
    return replace(periodic, spec_type=periodic.spec_type or "cron", time_zone=periodic.time_zone or "UTC")


def _parameterized(config: ParameterizedJobConfig | None) -> ParameterizedJobConfig | None:
    return None if config is None else replace(config, payload=config.payload or "optional")


def _inherit(group: TaskGroup, job: Job) -> TaskGroup:
    """Give the job's own policies to a group that says nothing, where the job's type has such policies."""
    kind = behaves_as(job.type)
    return replace(
        group,
        reschedule_policy=group.reschedule_policy or (job.reschedule if kind in RESCHEDULE else None),
        migrate=group.migrate or (job.migrate if kind in WITH_MIGRATE else None),
    )


def _group(group: TaskGroup, job: Job) -> TaskGroup:
    kind = behaves_as(job.type)
    restart = group.restart_policy or RESTART[kind]
    return replace(
        group,
        restart_policy=restart,
        reschedule_policy=group.reschedule_policy or RESCHEDULE.get(kind),
        update=group.update or (UPDATE if kind in WITH_UPDATE else None),
        migrate=group.migrate or (MIGRATE if kind in WITH_MIGRATE else None),
        disconnect=_disconnect(group.disconnect or _old_disconnect(group)),
        networks=tuple(_network(network) for network in group.networks),
        services=tuple(_service(service, job, group, "") for service in group.services),
        volumes={name: replace(volume, name=volume.name or name) for name, volume in group.volumes.items()},
        scaling=_scaling(group.scaling, job, group),
        tasks=tuple(_task(task, job, group, restart) for task in group.tasks),
    )


def _disconnect(strategy: DisconnectStrategy | None) -> DisconnectStrategy | None:
    if strategy is None:
        return None
    may_replace = True if strategy.replace is None else strategy.replace
    return replace(strategy, replace=may_replace, reconcile=strategy.reconcile or "best_score")


def _old_disconnect(group: TaskGroup) -> DisconnectStrategy | None:
    """Read the old fields as the block that took their place; a warning says so (`job_warnings`)."""
    stop_after, lost_after = group.stop_after_client_disconnect_s, group.max_client_disconnect_s
    if stop_after is None and lost_after is None and not group.prevent_reschedule_on_lost:
        return None
    may_replace = False if group.prevent_reschedule_on_lost else None
    return DisconnectStrategy(lost_after_s=lost_after or 0.0, stop_on_client_after_s=stop_after, replace=may_replace)


def _network(network: NetworkResource) -> NetworkResource:
    return replace(
        network,
        reserved_ports=tuple(_port(port) for port in network.reserved_ports),
        dynamic_ports=tuple(_port(port) for port in network.dynamic_ports),
    )


def _port(port: Port) -> Port:
    return replace(port, host_network=port.host_network or "default")


def _scaling(policy: ScalingPolicy | None, job: Job, group: TaskGroup) -> ScalingPolicy | None:
    if policy is None:
        return None
    target = {"Namespace": job.namespace, "Job": job.id, "Group": group.name}
    return replace(policy, type=policy.type or "horizontal", target=target)


def _task(task: Task, job: Job, group: TaskGroup, restart: RestartPolicy | None) -> Task:
    resources = task.resources
    return replace(
        task,
        restart_policy=task.restart_policy or restart,
        resources=replace(resources, networks=tuple(_network(network) for network in resources.networks)),
        templates=tuple(_template(template) for template in task.templates),
        services=tuple(_service(service, job, group, task.name) for service in task.services),
        scaling_policies=tuple(_task_scaling(policy, job, group, task) for policy in task.scaling_policies),
        identity=_identity(task.identity),
        log_config=replace(task.log_config, enabled=None),
    )


def _task_scaling(policy: ScalingPolicy, job: Job, group: TaskGroup, task: Task) -> ScalingPolicy:
    target = {"Namespace": job.namespace, "Job": job.id, "Group": group.name, "Task": task.name}
    return replace(policy, target=target)


def _template(template: Template) -> Template:
    default = "SIGHUP" if template.change_mode == "signal" else ""
    return replace(template, change_signal=template.change_signal.upper() or default)


def _identity(identity: WorkloadIdentity | None) -> WorkloadIdentity:
    """Every task has the default identity; it is handed to the task only if the block says so."""
    identity = identity or WorkloadIdentity()
    return replace(identity, name=identity.name or DEFAULT_IDENTITY, audience=identity.audience or (DEFAULT_AUDIENCE,))


def _service(service: Service, job: Job, group: TaskGroup, task: str) -> Service:
    base = "-".join(part for part in (job.name, group.name, task) if part)
    words = {"${JOB}": job.name, "${TASKGROUP}": group.name, "${TASK}": task, "${BASE}": base}
    name = service.name or base
    for word, text in words.items():
        name = name.replace(word, text)
    named = replace(
        service,
        name=name,
        task_name=task,
        check_restart=None,
        address_mode=service.address_mode or "auto",
        namespace=job.namespace,
        on_update=service.on_update or "require_healthy",
        provider=service.provider or CONSUL,
        cluster=service.cluster or "default",
    )
    return replace(named, checks=tuple(_check(check, named) for check in service.checks))


def _check(check: ServiceCheck, service: Service) -> ServiceCheck:
    return replace(
        check,
        name=check.name or f'service: "{service.name}" check',
        on_update=check.on_update or service.on_update,
    )


def _constrained(group: TaskGroup) -> TaskGroup:
    implied = [*_service_constraints(group), *_signal_constraints(group)]
    missing = tuple(constraint for constraint in implied if constraint not in group.constraints)
    return replace(group, constraints=group.constraints + missing) if missing else group


def _service_constraints(group: TaskGroup) -> list[Constraint]:
    services = [*group.services, *(service for task in group.tasks for service in task.services)]
    native = [service for service in services if service.provider in NATIVE_PROVIDERS]
    found = []
    if native:
        found.append(Constraint(l_target="${attr.nomad.service_discovery}", r_target="true"))
    if any(service.checks for service in native):
        found.append(Constraint(l_target="${attr.nomad.version}", r_target=">= 1.4.0", operand="semver"))
    return found


def _signal_constraints(group: TaskGroup) -> list[Constraint]:
    """A node must know every signal that a task of the group may be sent."""
    signals: set[str] = set()
    for task in group.tasks:
        signals.add(task.kill_signal)
        signals.update(template.change_signal for template in task.templates if template.change_mode == "signal")
        identities = [*task.identities, *([task.identity] if task.identity else [])]
        signals.update(identity.change_signal for identity in identities if identity.change_mode == "signal")
    signals.discard("")
    if not signals:
        return []
    return [Constraint(l_target="${attr.os.signals}", r_target=",".join(sorted(signals)), operand="set_contains")]
