"""Whole CPU cores: which a node can hand out, how fast they are, and which a task gets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from fedsched.model.node import Node
from fedsched.model.node_resources import CPUCore

NONE: Final = "none"
PREFER: Final = "prefer"
REQUIRE: Final = "require"
"""What a task may wish for where its cores sit: anywhere, better on one memory node, only on one."""


class Cores(NamedTuple):
    """Cores given to one task."""

    ids: tuple[int, ...]
    mhz: int
    """Their speeds together: what the task counts for in CPU shares."""


def core_speeds(node: Node) -> dict[int, int]:
    """Give the usable cores of a node, lowest id first, with the MHz of each."""
    kept = set(node.reserved_resources.cpu.reserved_cpu_cores)
    topology = node.node_resources.processors.topology
    if topology is not None and topology.cores:
        usable = (core for core in topology.cores if not core.disable and core.id not in kept)
        return {core.id: core_mhz(core) for core in sorted(usable, key=lambda core: core.id)}
    cpu = node.node_resources.cpu
    count = cpu.total_cpu_cores or len(cpu.reservable_cpu_cores)
    return {core: cpu.cpu_shares // count for core in sorted(cpu.reservable_cpu_cores) if core not in kept}


def core_mhz(core: CPUCore) -> int:
    """The speed that a core is sure to have; the best guess where the hardware does not say."""
    return core.base_speed or core.max_speed or core.guess_speed


def node_mhz(node: Node) -> int:
    """All CPU of a node: what was set by hand, else its usable cores together, else what the client counted."""
    topology = node.node_resources.processors.topology
    if topology is None or not topology.cores:
        return node.node_resources.cpu.cpu_shares
    return topology.override_total_compute or sum(core_speeds(node).values())


def numa_nodes(node: Node) -> dict[int, int]:
    """Give the memory node of each core; empty if the client did not say."""
    topology = node.node_resources.processors.topology
    return {core.id: core.node_id for core in topology.cores} if topology is not None else {}


def take_cores(
    speeds: Mapping[int, int],
    taken: Collection[int],
    count: int,
    *,
    affinity: str = NONE,
    memory_nodes: Mapping[int, int] | None = None,
) -> Cores | None:
    """Choose `count` free cores, lowest ids first; None if there are not as many.

    With an affinity, cores of one memory node are taken if one has enough of them (the one with the fewest to spare, so
    that whole nodes stay whole); `require` takes no others.
    """
    free = [core for core in speeds if core not in taken]
    if affinity != NONE:
        together = _together(free, count, memory_nodes or {})
        if together or affinity == REQUIRE:
            free = together
    if len(free) < count:
        return None
    return Cores(tuple(free[:count]), sum(speeds[core] for core in free[:count]))


def _together(free: Iterable[int], count: int, memory_nodes: Mapping[int, int]) -> list[int]:
    """Give the free cores of the memory node that fits best; none if no memory node has enough."""
    by_node: dict[int, list[int]] = {}
    for core in free:
        by_node.setdefault(memory_nodes.get(core, 0), []).append(core)
    enough = [(len(cores), number) for number, cores in by_node.items() if len(cores) >= count]
    return by_node[min(enough)[1]] if enough else []
