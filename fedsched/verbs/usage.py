"""What hosts and tasks use just now, for `node status` and `alloc status`: asked of the node itself."""

from __future__ import annotations

from fedsched.model.alloc import Allocation
from fedsched.model.errors import FedschedError
from fedsched.model.node import Node, NodeStatus
from fedsched.model.usage import AllocResourceUsage, HostDiskStats, HostStats
from fedsched.rpc.methods.node import NodeRequest
from fedsched.rpc.methods.node_calls import ALLOC_STATS, NODE_STATS, AllocStatsRequest, NodeStatsReply
from fedsched.verbs.amounts import share, size, size_share
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.view import columns, pairs

MIB = 1 << 20


def host_stats(terminal: Terminal, node: Node) -> NodeStatsReply | None:
    """What a node says of itself; None, with a word about why, if it cannot be asked."""
    if node.status is not NodeStatus.READY:
        return None
    try:
        return terminal.client.call(NODE_STATS, NodeRequest(node_id=node.id))
    except FedschedError as error:
        terminal.warn(f"No figures from the node: {error.message}")
        return None


def show_host(terminal: Terminal, node: Node, found: NodeStatsReply) -> None:
    """What tasks use, and what the whole host does, each in one line."""
    stats = found.stats
    total = node.node_resources.cpu.cpu_shares
    disk = stats.alloc_dir_stats
    used = found.allocations
    terminal.heading("Allocation Resource Utilization")
    tasks = (
        share(round(used.cpu_stats.total_ticks), total, "MHz"),
        size_share(max(used.memory_stats.usage, used.memory_stats.rss) / MIB, node.node_resources.memory.memory_mb),
    )
    terminal.write(columns(("CPU", "Memory"), [tasks]))
    terminal.heading("Host Resource Utilization")
    row = (
        share(round(stats.cpu_ticks_consumed), total, "MHz"),
        size_share(stats.memory.used / MIB, stats.memory.total / MIB),
        size_share(disk.used / MIB, disk.size / MIB),
    )
    terminal.write(columns(("CPU", "Memory", "Disk"), [row]))


def show_host_details(terminal: Terminal, stats: HostStats) -> None:
    """Everything, for `-stats`."""
    terminal.heading("CPU Stats")
    for number, core in enumerate(stats.cpu):
        if number:
            terminal.say()
        terminal.write(
            pairs(
                [
                    ("CPU", core.cpu),
                    ("User", f"{core.user:.2f}%"),
                    ("System", f"{core.system:.2f}%"),
                    ("Idle", f"{core.idle:.2f}%"),
                ]
            )
        )
    terminal.heading("Memory Stats")
    memory = stats.memory
    figures = (("Total", memory.total), ("Available", memory.available), ("Used", memory.used), ("Free", memory.free))
    terminal.write(pairs([(name, size(amount / MIB)) for name, amount in figures]))
    terminal.heading("Disk Stats")
    for number, disk in enumerate(stats.disk_stats):
        if number:
            terminal.say()
        terminal.write(pairs(_disk(disk)))
    terminal.heading("Allocation Directory")
    terminal.write(pairs(_disk(stats.alloc_dir_stats)))


def _disk(disk: HostDiskStats) -> list[tuple[str, str]]:
    return [
        ("Device", disk.device),
        ("MountPoint", disk.mountpoint),
        ("Size", size(disk.size / MIB)),
        ("Used", size(disk.used / MIB)),
        ("Available", size(disk.available / MIB)),
        ("Used Percent", f"{disk.used_percent:.2f}%"),
        ("Inodes Percent", f"{disk.inodes_used_percent:.2f}%"),
    ]


def alloc_usage(terminal: Terminal, alloc: Allocation) -> AllocResourceUsage | None:
    """What an allocation's tasks use; None if they do not run, or their node cannot be asked."""
    if alloc.client_status.value != "running":
        return None
    try:
        request = AllocStatsRequest(alloc_id=alloc.id)
        return terminal.client.call(ALLOC_STATS, request, namespace=alloc.namespace).usage
    except FedschedError as error:
        terminal.warn(f"No figures from the node: {error.message}")
        return None


def show_task_details(terminal: Terminal, usage: AllocResourceUsage, name: str) -> None:
    """Memory and processor of one task, for `alloc status -stats`: what is measured, and nothing else."""
    task = usage.tasks.get(name)
    if task is None:
        return
    memory, cpu = task.resource_usage.memory_stats, task.resource_usage.cpu_stats
    amounts = {
        "RSS": memory.rss,
        "Cache": memory.cache,
        "Swap": memory.swap,
        "Usage": memory.usage,
        "Max Usage": memory.max_usage,
    }
    found = [(key, size(amounts[key] / MIB)) for key in memory.measured if key in amounts]
    if found:
        terminal.say("\nMemory Stats")
        terminal.write(columns([key for key, _ in found], [[value for _, value in found]]))
    rates = {
        "Percent": f"{cpu.percent:.2f}%",
        "System Mode": f"{cpu.system_mode:.2f}%",
        "User Mode": f"{cpu.user_mode:.2f}%",
        "Throttled Periods": str(cpu.throttled_periods),
        "Throttled Time": str(cpu.throttled_time),
    }
    shown = [(key, rates[key]) for key in cpu.measured if key in rates]
    if shown:
        terminal.say("\nCPU Stats")
        terminal.write(columns([key for key, _ in shown], [[value for _, value in shown]]))
