"""The slow truth about over-commitment: whole records, plain sums and sets, no code shared with the applier."""

from __future__ import annotations

from collections import Counter

from fedsched.model.alloc import Allocation
from fedsched.model.node import Node
from fedsched.model.resources import AllocatedResources
from fedsched.state.store import State


def overcommitted(state: State, node_slots: set[int] | None = None) -> list[str]:
    """What is promised on each of these nodes (all, if not said) beyond what it has; empty if all is well."""
    found = []
    for row in state.nodes.rows.scan():
        if node_slots is None or row.slot in node_slots:
            found += [f"{row.name or row.id}: {problem}" for problem in _node_problems(state, row.node(), row.slot)]
    return found


def _node_problems(state: State, node: Node, slot: int) -> list[str]:
    live = [alloc for alloc in state.allocations.records(state.allocations.slots_of_node(slot)) if _is_live(alloc)]
    given = [alloc.allocated_resources for alloc in live if alloc.allocated_resources is not None]
    have, kept = node.node_resources, node.reserved_resources
    problems = _more("cpu", sum(_cpu(one) for one in given), have.cpu.cpu_shares - kept.cpu.cpu_shares)
    problems += _more("memory", sum(_memory(one) for one in given), have.memory.memory_mb - kept.memory.memory_mb)
    problems += _more("disk", sum(one.shared.disk_mb for one in given), have.disk.disk_mb - kept.disk.disk_mb)
    if node.node_max_allocs:
        problems += _more("allocations", len(live), node.node_max_allocs)
    problems += _twice(
        "core", (core for one in given for task in one.tasks.values() for core in task.cpu.reserved_cores)
    )
    problems += _twice("port", (port for one in given for port in _ports(one)))
    problems += _twice("device", (device for one in given for device in _devices(one)))
    problems += _shared_volumes(state, live)
    return problems


def _is_live(alloc: Allocation) -> bool:
    return alloc.desired_status == "run" and alloc.client_status not in ("complete", "failed", "lost")


def _cpu(given: AllocatedResources) -> int:
    pinned = sum(task.cpu.cpu_shares for task in given.tasks.values() if task.cpu.reserved_cores)
    loose = {name: task.cpu.cpu_shares for name, task in given.tasks.items() if not task.cpu.reserved_cores}
    return pinned + _largest_phase(given, loose)


def _memory(given: AllocatedResources) -> int:
    return _largest_phase(given, {name: task.memory.memory_mb for name, task in given.tasks.items()})


def _largest_phase(given: AllocatedResources, amounts: dict[str, int]) -> int:
    before = after = during = 0
    for name, amount in amounts.items():
        lifecycle = given.task_lifecycles.get(name)
        hook = lifecycle.hook if lifecycle else ""
        before += amount if hook == "prestart" else 0
        after += amount if hook == "poststop" else 0
        runs_along = hook in ("", "poststart") or (hook == "prestart" and lifecycle is not None and lifecycle.sidecar)
        during += amount if runs_along else 0
    return max(before, during, after)


def _ports(given: AllocatedResources) -> list[tuple[str, int]]:
    return [(port.host_ip, port.value) for port in given.shared.ports if not port.ignore_collision]


def _devices(given: AllocatedResources) -> list[tuple[str, str, str, str]]:
    return [
        (device.vendor, device.type, device.name, instance)
        for task in given.tasks.values()
        for device in task.devices
        for instance in device.device_ids
    ]


def _shared_volumes(state: State, live: list[Allocation]) -> list[str]:
    writers: Counter[str] = Counter()
    alone: set[str] = set()
    for alloc in live:
        job = state.jobs.get(alloc.namespace, alloc.job_id)
        group = job.group(alloc.task_group) if job else None
        for volume in (group.volumes if group else {}).values():
            if volume.type == "host" and not volume.read_only:
                writers[volume.source] += 1
                if volume.access_mode == "single-node-single-writer":
                    alone.add(volume.source)
    return [f"volume {name} has {writers[name]} writers" for name in sorted(alone) if writers[name] > 1]


def _more(what: str, used: int, have: int) -> list[str]:
    return [f"{what}: {used} of {have}"] if used > have else []


def _twice(what: str, given: object) -> list[str]:
    counts = Counter(given)  # type: ignore[call-overload]
    return [f"{what} {one} is given to {count}" for one, count in counts.items() if count > 1]
