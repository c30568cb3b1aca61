"""Variables that follow from where a task was placed and what it was given. Pure: records in, texts out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fedsched.client.context import AllocContext, TaskContext
from fedsched.client.interpolate import clean_name, interpolate
from fedsched.drivers.driver import FsIsolation, TaskDirs
from fedsched.model.ids import alloc_index, short
from fedsched.model.network import AllocNetworkStatus, NetworkResource, PortMapping
from fedsched.model.resources import AllocatedTaskResources

INSIDE: Final = {"ALLOC_DIR": "/alloc", "TASK_DIR": "/local", "SECRETS_DIR": "/secrets"}
"""Where a task finds its directories if it sees a file system of its own."""
OWN_NAMESPACE: Final = ("bridge", "cni/")


def computed_values(task: TaskContext, node_values: Mapping[str, str]) -> dict[str, str]:
    """Everything that is set for every task, by full name."""
    alloc = task.alloc
    bare = {
        **directories(task.dirs, task.driver.capabilities.fs_isolation),
        **_limits(_given(alloc, task.name)),
        **_names(task),
        **port_values(alloc),
        **task_network_values(alloc, task.name),
    }
    values = _both(bare)

    def lookup(name: str) -> str | None:
        return node_values.get(name, values.get(name.removeprefix("env.")))

    return values | _both({name: interpolate(value, lookup)[0] for name, value in meta_values(task).items()})


def directories(dirs: TaskDirs, isolation: FsIsolation) -> dict[str, str]:
    if isolation is not FsIsolation.NONE:
        return dict(INSIDE)
    return {"ALLOC_DIR": str(dirs.shared), "TASK_DIR": str(dirs.local), "SECRETS_DIR": str(dirs.secrets)}


def meta_values(task: TaskContext) -> dict[str, str]:
    """Meta of job, group and task, the innermost wins; optional meta of a dispatched job is there, if only empty."""
    job = task.alloc.job
    optional = job.parameterized_job.meta_optional if job.parameterized_job is not None and job.dispatched else ()
    merged = {
        **dict.fromkeys(optional, ""),
        **job.meta,
        **task.alloc.group.meta,
        **task.task.meta,
    }
    upper = {f"META_{clean_name(key.upper())}": value for key, value in merged.items()}
    written = {f"META_{clean_name(key)}": value for key, value in merged.items()}
    return upper | written


def port_values(alloc: AllocContext) -> dict[str, str]:
    """Ports of the group: where they are on the host, and inside a network namespace of its own."""
    given = alloc.alloc.allocated_resources
    if given is None:
        return {}
    found: dict[str, str] = {}
    status = alloc.alloc.network_status if _has_namespace(given.shared.networks) else None
    for port in given.shared.ports:
        found |= _port(port, status)
    return found


def task_network_values(alloc: AllocContext, own: str) -> dict[str, str]:
    """Networks of single tasks, as old jobs have them: the task's own by label, its siblings' by task and label."""
    given = alloc.alloc.allocated_resources
    found: dict[str, str] = {}
    for name, task in sorted((given.tasks if given is not None else {}).items()):
        prefix = "" if name == own else f"{clean_name(name)}_"
        for network in task.networks:
            for port in (*network.reserved_ports, *network.dynamic_ports):
                label = prefix + clean_name(port.label)
                inside = port.to if port.to > 0 else port.value
                address = joined(network.ip, port.value)
                found |= {f"IP_{label}": network.ip, f"PORT_{label}": str(inside), f"ADDR_{label}": address}
                if name == own:
                    found |= {f"HOST_IP_{label}": network.ip, f"HOST_PORT_{label}": str(port.value)}
                    found[f"HOST_ADDR_{label}"] = address
    return found


def core_list(cores: Iterable[int]) -> str:
    """Cores as the kernel writes them: `0-2,5`."""
    runs: list[list[int]] = []
    for core in sorted(set(cores)):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _limits(given: AllocatedTaskResources) -> dict[str, str]:
    found = {"MEMORY_LIMIT": str(given.memory.memory_mb), "CPU_LIMIT": str(given.cpu.cpu_shares)}
    if given.memory.memory_max_mb > 0:
        found["MEMORY_MAX_LIMIT"] = str(given.memory.memory_max_mb)
    if given.cpu.reserved_cores:
        found["CPU_CORES"] = core_list(given.cpu.reserved_cores)
    return found


def _names(task: TaskContext) -> dict[str, str]:
    alloc, job, node = task.alloc.alloc, task.alloc.job, task.parts.node()
    found = {
        "ALLOC_ID": alloc.id,
        "SHORT_ALLOC_ID": short(alloc.id),
        "ALLOC_NAME": alloc.name,
        "TASK_NAME": task.name,
        "GROUP_NAME": alloc.task_group,
        "JOB_ID": job.id,
        "JOB_NAME": job.name,
        "DC": node.datacenter,
        "REGION": task.parts.region,
        "NAMESPACE": alloc.namespace,
    }
    if (index := alloc_index(alloc.name)) >= 0:
        found["ALLOC_INDEX"] = str(index)
    if job.parent_id:
        found["JOB_PARENT_ID"] = job.parent_id
    if node.cgroup_parent:
        found["PARENT_CGROUP"] = node.cgroup_parent
    return found


def _port(port: PortMapping, status: AllocNetworkStatus | None) -> dict[str, str]:
    label = clean_name(port.label)
    inside = port.to if port.to > 0 else port.value
    address = joined(port.host_ip, port.value)
    found = {
        f"IP_{label}": port.host_ip,
        f"PORT_{label}": str(inside),
        f"ADDR_{label}": address,
        f"HOST_IP_{label}": port.host_ip,
        f"HOST_PORT_{label}": str(port.value),
        f"HOST_ADDR_{label}": address,
        f"ALLOC_PORT_{label}": str(inside),
    }
    if status is not None and status.address:
        found |= {
            f"ALLOC_INTERFACE_{label}": status.interface_name,
            f"ALLOC_IP_{label}": status.address,
            f"ALLOC_ADDR_{label}": joined(status.address, inside),
        }
    return found


def _has_namespace(networks: tuple[NetworkResource, ...]) -> bool:
    return any(network.mode.startswith(OWN_NAMESPACE) for network in networks)


def _given(alloc: AllocContext, task: str) -> AllocatedTaskResources:
    given = alloc.alloc.allocated_resources
    return given.tasks.get(task, AllocatedTaskResources()) if given is not None else AllocatedTaskResources()


def _both(bare: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}_{name}": value for prefix in ("NOMAD", "FEDSCHED") for name, value in bare.items()}
