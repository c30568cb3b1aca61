"""`node ...`: the hosts of a region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedsched.model.alloc import AllocListStub
from fedsched.model.node import Node, NodeListStub
from fedsched.model.record import to_api
from fedsched.model.usage import HostStats
from fedsched.rpc.methods.node import NODE_ALLOCS, NODE_GET, NodeRequest
from fedsched.verbs import usage
from fedsched.verbs.amounts import share, size_share
from fedsched.verbs.finding import NODE_HEAD, SELF, all_nodes, alloc_table, find_node, own_node_id
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import columns, moment, pairs, short, span

VERBS = Verbs()


@VERBS.verb(
    "node status",
    "list the nodes, or show one",
    flags=(
        Flag("allocs", "in the list: how many allocations run on each", bool),
        Flag("os", "in the list: the operating system", bool),
        SELF,
        Flag("short", "only the head and the allocations", bool),
        Flag("stats", "what the host uses, processor by processor and disk by disk", bool),
        VERBOSE,
        JSON,
        TEMPLATE,
    ),
    arguments=(Argument("node", "id of the node, or the beginning of it", optional=True, unless="self"),),
    regions=Regions.EACH,
)
def status(terminal: Terminal, given: Given) -> int:
    if not given["node"] and not given["self"]:
        return _list(terminal, given)
    node_id = own_node_id(terminal) if given["self"] else find_node(terminal, given["node"]).id
    node = terminal.client.call(NODE_GET, NodeRequest(node_id=node_id)).node
    if terminal.formatted(given, lambda: to_api(node)):
        return OK
    allocs = terminal.client.call(NODE_ALLOCS, NodeRequest(node_id=node_id)).allocs
    found = usage.host_stats(terminal, node) if given["stats"] or not given["short"] else None
    terminal.write(pairs(_head(node, found.stats if found is not None else None)))
    if not given["short"]:
        _show_events(terminal, node)
        _show_resources(terminal, node, allocs)
        if found is not None:
            usage.show_host(terminal, node, found)
    if given["stats"] and found is not None:
        usage.show_host_details(terminal, found.stats)
    terminal.heading("Allocations")
    terminal.write(alloc_table(terminal, allocs, verbose=given["verbose"]) if allocs else "No allocations placed\n")
    if given["verbose"]:
        terminal.heading("Attributes")
        terminal.write(pairs(sorted(node.attributes.items())))
        terminal.heading("Meta")
        terminal.write(pairs(sorted(node.meta.items())))
    return OK


def _list(terminal: Terminal, given: Given) -> int:
    found = all_nodes(terminal, os=given["os"])
    if terminal.formatted(given, lambda: [to_api(one) for one in found]):
        return OK
    if not found:
        terminal.say("No nodes registered")
        return OK
    head: list[str] = list(NODE_HEAD)
    rows = [_row(one, verbose=given["verbose"]) for one in found]
    if given["os"]:
        head.insert(4, "OS")
        for row, one in zip(rows, found, strict=True):
            row.insert(4, one.attributes.get("os.name", ""))
    if given["verbose"]:
        head[4:4] = ["Address", "Version"]
        for row, one in zip(rows, found, strict=True):
            row[4:4] = [one.address, one.version]
    if given["allocs"]:
        head.append("Running Allocs")
        for row, one in zip(rows, found, strict=True):
            row.append(_running(terminal, one.id))
    terminal.write(columns(head, rows))
    return OK


def _row(one: NodeListStub, *, verbose: bool) -> list[Any]:
    return [
        short(one.id, verbose=verbose),
        one.node_pool,
        one.datacenter,
        one.name,
        one.node_class,
        one.drain,
        one.scheduling_eligibility.value,
        one.status.value,
    ]


def _running(terminal: Terminal, node_id: str) -> int:
    allocs = terminal.client.call(NODE_ALLOCS, NodeRequest(node_id=node_id)).allocs
    return sum(1 for one in allocs if one.client_status.value == "running")


def _head(node: Node, stats: HostStats | None) -> list[tuple[str, Any]]:
    uptime = [("Uptime", span(stats.uptime))] if stats is not None else []
    healthy = sorted(name for name, one in node.drivers.items() if one.detected and one.healthy)
    return [
        ("ID", node.id),
        ("Name", node.name),
        ("Node Pool", node.node_pool),
        ("Class", node.node_class),
        ("DC", node.datacenter),
        ("Drain", node.drain),
        ("Eligibility", node.scheduling_eligibility.value),
        ("Status", node.status.value),
        ("CSI Controllers", ",".join(sorted(node.csi_controller_plugins))),
        ("CSI Drivers", ",".join(sorted(node.csi_node_plugins))),
        *uptime,
        ("Host Volumes", ",".join(sorted(node.host_volumes))),
        ("Host Networks", ",".join(sorted(node.host_networks))),
        ("Driver Status", ",".join(healthy)),
    ]


def _show_events(terminal: Terminal, node: Node) -> None:
    terminal.heading("Node Events")
    rows = [(moment(one.timestamp_ns), one.subsystem, one.message) for one in reversed(node.events)]
    terminal.write(columns(("Time", "Subsystem", "Message"), rows))


def _show_resources(terminal: Terminal, node: Node, allocs: Sequence[AllocListStub]) -> None:
    """What is given away of what there is to give."""
    live = [one for one in allocs if not one.client_status.is_terminal and not one.desired_status.is_terminal]
    given = [one.allocated_resources for one in live if one.allocated_resources is not None]
    cpu = sum(task.cpu.cpu_shares for one in given for task in one.tasks.values())
    memory = sum(task.memory.memory_mb for one in given for task in one.tasks.values())
    disk = sum(one.shared.disk_mb for one in given)
    has, kept = node.node_resources, node.reserved_resources
    terminal.heading("Allocated Resources")
    row = (
        share(cpu, has.cpu.cpu_shares - kept.cpu.cpu_shares, "MHz"),
        size_share(memory, has.memory.memory_mb - kept.memory.memory_mb),
        size_share(disk, has.disk.disk_mb - kept.disk.disk_mb),
        len(live),
    )
    terminal.write(columns(("CPU", "Memory", "Disk", "Alloc Count"), [row]))
