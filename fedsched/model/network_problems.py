"""What can be wrong with the networks of a group: labels, numbers, and two ports in one place."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fedsched.model.group import TaskGroup
from fedsched.model.network import NetworkResource, Port
from fedsched.model.problem import Problem

MAX_PORT = 65_535
SAME_AS_HOST = -1
HOST_MODES = frozenset({"", "host"})
DEFAULT_HOST_NETWORK = "default"
HOSTNAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")
"""Loose on purpose: what a resolver makes of it is the network's business."""

Found = Iterator[Problem]


def network_problems(group: TaskGroup, path: str) -> Found:
    """Check the group's networks and, as labels are shared, the old ones of its tasks."""
    seen = _Seen()
    for i, network in enumerate(group.networks):
        yield from _network(network, f"{path}.Networks[{i}]", "", seen)
    for j, task in enumerate(group.tasks):
        for i, network in enumerate(task.resources.networks):
            yield from _network(network, f"{path}.Tasks[{j}].Resources.Networks[{i}]", task.name, seen)


def port_labels(group: TaskGroup) -> frozenset[str]:
    """The labels that services of the group may name."""
    return frozenset(port.label for network in group.networks for port in ports_of(network))


def ports_of(network: NetworkResource) -> tuple[Port, ...]:
    return network.reserved_ports + network.dynamic_ports


class _Seen:
    """What earlier networks of the group have claimed."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.numbers: dict[tuple[str, int], str] = {}


def _network(network: NetworkResource, path: str, task: str, seen: _Seen) -> Found:
    owner = f"task network {task}" if task else "taskgroup network"
    fixed = re.sub(r"\$\{[^}]*\}", "a", network.hostname)
    if fixed and not HOSTNAME.fullmatch(fixed):
        text = f"Hostname {network.hostname!r} is not a valid DNS name"
        yield Problem(f"{path}.Hostname", text, hint="letters, digits, dashes and dots")
    for kind, ports in (("ReservedPorts", network.reserved_ports), ("DynamicPorts", network.dynamic_ports)):
        for i, port in enumerate(ports):
            yield from _port(port, network, f"{path}.{kind}[{i}]", owner, seen)


def _port(port: Port, network: NetworkResource, path: str, owner: str, seen: _Seen) -> Found:
    if not port.label:
        yield Problem(f"{path}.Label", "Port has no label")
    elif port.label in seen.labels:
        yield Problem(f"{path}.Label", f"Port label {port.label} already in use by {seen.labels[port.label]}")
    seen.labels.setdefault(port.label, f"{owner}:{port.label}")
    if not 0 <= port.value <= MAX_PORT:
        yield Problem(f"{path}.Value", f"Port {port.label} ({port.value}) cannot be greater than {MAX_PORT}")
    elif port.value > 0:
        yield from _static(port, path, seen)
    if not SAME_AS_HOST <= port.to <= MAX_PORT:
        text = f"Port {port.label} maps to {port.to}, which is outside -1 to {MAX_PORT}"
        yield Problem(f"{path}.To", text, hint="-1 maps it to the port on the host")
    if port.ignore_collision and network.mode not in HOST_MODES:
        text = f"Port {port.label}: ignore_collision may only be used in network mode host"
        yield Problem(f"{path}.IgnoreCollision", text)


def _static(port: Port, path: str, seen: _Seen) -> Found:
    key = (port.host_network or DEFAULT_HOST_NETWORK, port.value)
    if key in seen.numbers and not port.ignore_collision:
        yield Problem(f"{path}.Value", f"Static port {port.value} already reserved by {seen.numbers[key]}")
    seen.numbers.setdefault(key, port.label)
