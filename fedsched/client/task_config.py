"""What a driver is told about a task, read from its allocation, its job and what its hooks have added."""

from __future__ import annotations

from collections.abc import Sequence

from fedsched.client.context import TaskContext
from fedsched.client.hooks.hook import HookFailed
from fedsched.client.network.plan import NO_NETWORK, GroupNetwork
from fedsched.client.restarts import restarts_on_success
from fedsched.client.task_events import EventType
from fedsched.client.task_signals import TaskRules
from fedsched.drivers.driver import LogLimits, Mount, TaskConfig, TaskLimits, TaskPort
from fedsched.model.policies import RestartPolicy
from fedsched.model.resources import AllocatedTaskResources

_MIB = 1 << 20


def task_rules(task: TaskContext) -> TaskRules:
    """How a task is run, with what its driver and its agent have to say about it."""
    job, group, own = task.alloc.job, task.alloc.group, task.task
    return TaskRules(
        policy=own.restart_policy or group.restart_policy or RestartPolicy(),
        on_success=restarts_on_success(job.type, own.lifecycle),
        kill_timeout_s=min(own.kill_timeout_s, task.parts.settings.max_kill_timeout_s),
        kill_signal=own.kill_signal or task.driver.capabilities.default_kill_signal,
        shutdown_delay_s=own.shutdown_delay_s,
        is_system=job.type in ("system", "sysbatch"),
    )


def task_config(task: TaskContext, task_id: str, mounts: Sequence[Mount]) -> TaskConfig:
    """All of it. `HookFailed` if the job says something that its driver does not understand."""
    alloc, job, own = task.alloc.alloc, task.alloc.job, task.task
    environment = task.environment()
    config = environment.config(own.config)
    problems = task.driver.task_schema.problems(config)
    if problems:
        raise HookFailed(
            "; ".join(problems),
            hint=f"see what the driver {task.driver.name} takes",
            event=EventType.FAILED_VALIDATION,
        )
    network = _network(task)
    node = task.parts.node()
    return TaskConfig(
        id=task_id,
        alloc_id=alloc.id,
        namespace=alloc.namespace,
        job_id=alloc.job_id or job.id,
        job_name=job.name,
        parent_job_id=job.parent_id,
        group=alloc.task_group,
        task=task.name,
        node_id=node.id,
        node_name=node.name,
        dirs=task.dirs,
        config=config,
        env=dict(environment.values),
        user=environment.text(own.user) or task.dynamic_user,
        limits=_limits(task),
        logs=LogLimits(
            own.log_config.max_files, own.log_config.max_file_size_mb * _MIB, is_disabled=own.log_config.disabled
        ),
        mounts=tuple(mounts),
        ports=_ports(task),
        network_namespace=network.namespace,
        network_files=network.files,
        hostname=network.hostname,
    )


def _network(task: TaskContext) -> GroupNetwork:
    """What the group's network hook has made. A task never gets the host's network because its own failed."""
    networks = task.alloc.group.networks
    if task.alloc.network is None and networks and networks[0].mode not in ("", "host"):
        raise HookFailed("the group's network is not there", hint="see the log of this client", is_recoverable=True)
    return task.alloc.network or NO_NETWORK


def _limits(task: TaskContext) -> TaskLimits:
    given = task.alloc.alloc.allocated_resources
    mine = (given.tasks.get(task.name) if given else None) or AllocatedTaskResources()
    return TaskLimits(
        cpu_mhz=mine.cpu.cpu_shares,
        cores=mine.cpu.reserved_cores,
        memory_mb=mine.memory.memory_mb,
        memory_max_mb=mine.memory.memory_max_mb,
        total_mhz=task.parts.node().node_resources.cpu.cpu_shares,
    )


def _ports(task: TaskContext) -> tuple[TaskPort, ...]:
    given = task.alloc.alloc.allocated_resources
    if given is None:
        return ()
    return tuple(TaskPort(port.label, port.host_ip, port.value, max(port.to, 0)) for port in given.shared.ports)
