"""Devices: which of a node's match a request, whether there are enough, and which instances a task gets.

A request names `type`, `vendor/type` or `vendor/type/model` and may have constraints and affinities on the device's
typed attributes. All instances for one request come from one device of the node; several requests are served together,
so that the first never takes what it could have left to the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from fedsched.model.constraint import Affinity, Constraint
from fedsched.model.node import Node
from fedsched.model.node_resources import NodeDeviceGroup
from fedsched.model.resources import AllocatedDevice, RequestedDevice
from fedsched.scheduler.device_values import Value, parse_value, reported_value, text_value, values_hold
from fedsched.scheduler.special import HeldDevices

MISSING_DEVICES: Final = "missing devices"
NONE_AVAILABLE: Final = "no devices available"
NO_MATCH: Final = "no devices match request"
IDS: Final = "${device.ids}"

MAX_STEPS: Final = 2000
"""Choices tried before the requests of one group are given up on; honest jobs have two or three requests."""

Free = Mapping[str, Sequence[str]]
"""Free healthy instances by device id."""


class Given(NamedTuple):
    """What one request gets, and what its affinities make of it."""

    device: AllocatedDevice
    matched_weight: float


class DeviceOffer(NamedTuple):
    """All requests of a group served."""

    given: tuple[Given, ...]
    """In the order of the requests."""
    affinity: float | None
    """Matched weight by the sum of absolute weights; None if no request has affinities."""


def name_matches(device: NodeDeviceGroup, name: str) -> bool:
    """Whether the device goes by the name in a request."""
    parts = name.split("/", 2)
    own = [device.vendor, device.type, device.name]
    return parts == (own[1:2] if len(parts) == 1 else own[: len(parts)])


def device_matches(device: NodeDeviceGroup, request: RequestedDevice) -> bool:
    """Whether the device is what the request asks for."""
    return name_matches(device, request.name) and all(_holds(constraint, device) for constraint in request.constraints)


def affinity_weight(device: NodeDeviceGroup, request: RequestedDevice) -> float:
    """Give the weights of those of the request's affinities that the device meets, together."""
    return float(sum(affinity.weight for affinity in request.affinities if _holds(affinity, device)))


def asks_for_ids(request: RequestedDevice) -> bool:
    """Whether the request looks at single instances, which no two nodes share."""
    return any(IDS in (constraint.l_target, constraint.r_target) for constraint in request.constraints)


def healthy(device: NodeDeviceGroup) -> tuple[str, ...]:
    return tuple(instance.id for instance in device.instances if instance.healthy)


def enough_devices(node: Node, requests: Sequence[RequestedDevice]) -> bool:
    """Whether the node has as many healthy matching instances as all requests want together, were all of them free."""
    devices = node.node_resources.devices
    lines = [
        [number for number, device in enumerate(devices) if device_matches(device, request)] for request in requests
    ]
    left = [len(healthy(device)) for device in devices]
    given: list[dict[int, int]] = [{} for _ in requests]
    return all(_pour(line, lines, left, given, request.count) for line, request in enumerate(requests))


def free_instances(node: Node, held: Iterable[HeldDevices]) -> dict[str, list[str]]:
    """Give the healthy instances of each device that nobody holds."""
    taken = {(part.device, instance) for part in held for instance in part.instances}
    return {
        device.id: [instance for instance in healthy(device) if (device.id, instance) not in taken]
        for device in node.node_resources.devices
    }


def offer_devices(node: Node, requests: Sequence[RequestedDevice], free: Free) -> DeviceOffer | str:
    """Serve all requests from the free instances, or say why that cannot be.

    Each request in turn prefers the device that its affinities like best; if that leaves nothing for a later one, the
    next best is tried.
    """
    if not node.node_resources.devices:
        return NONE_AVAILABLE
    left = {device: list(instances) for device, instances in free.items()}
    steps = [MAX_STEPS]
    given = _serve(node, requests, left, steps)
    if given is None:
        return NO_MATCH
    total = sum(abs(affinity.weight) for request in requests for affinity in request.affinities)
    matched = sum(part.matched_weight for part in given)
    return DeviceOffer(tuple(given), matched / total if total else None)


def usable_instances(device: NodeDeviceGroup, request: RequestedDevice, instances: Iterable[str]) -> list[str]:
    """Keep the instances that the request's constraints on ids let through."""
    wanted = [
        (item, _other_side(item, device)) for item in request.constraints if IDS in (item.l_target, item.r_target)
    ]
    return [
        instance
        for instance in instances
        if all(values_hold(item.operand, target, text_value(instance)) for item, target in wanted)
    ]


def oversubscribed(node: Node, new: Iterable[HeldDevices], held: Iterable[HeldDevices] = ()) -> bool:
    """Whether an instance is given that someone holds, or that the node does not have (any more, or healthy)."""
    free = {(device, instance) for device, ids in free_instances(node, held).items() for instance in ids}
    for part in new:
        for instance in part.instances:
            if (part.device, instance) not in free:
                return True
            free.discard((part.device, instance))
    return False


def _serve(
    node: Node, requests: Sequence[RequestedDevice], left: dict[str, list[str]], steps: list[int]
) -> list[Given] | None:
    if not requests:
        return []
    request = requests[0]
    for weight, device, instances in _choices(node, request, left):
        steps[0] -= 1
        if steps[0] < 0:
            return None
        chosen = instances[: request.count]
        before = left[device.id]
        left[device.id] = [instance for instance in before if instance not in chosen]
        rest = _serve(node, requests[1:], left, steps)
        if rest is not None:
            picked = AllocatedDevice(vendor=device.vendor, type=device.type, name=device.name, device_ids=tuple(chosen))
            return [Given(picked, weight), *rest]
        left[device.id] = before
    return None


def _choices(
    node: Node, request: RequestedDevice, left: Mapping[str, Sequence[str]]
) -> Iterator[tuple[float, NodeDeviceGroup, list[str]]]:
    """Give the devices that could serve the request, best liked first, then in the node's order."""
    found = []
    for device in node.node_resources.devices:
        if request.count >= 1 and device_matches(device, request):
            instances = usable_instances(device, request, left.get(device.id, ()))
            if len(instances) >= request.count:
                found.append((affinity_weight(device, request), device, instances))
    yield from sorted(found, key=lambda choice: -choice[0])


def _pour(request: int, lines: list[list[int]], left: list[int], given: list[dict[int, int]], count: int) -> bool:
    """Find `count` more instances for a request, moving earlier requests to other devices where that helps."""
    for _ in range(count):
        path = _path(request, lines, left, given)
        if path is None:
            return False
        for taker, device, giver in path:
            given[taker][device] = given[taker].get(device, 0) + 1
            if giver is None:
                left[device] -= 1
            else:
                given[giver][device] -= 1
    return True


def _path(
    request: int, lines: list[list[int]], left: list[int], given: list[dict[int, int]]
) -> list[tuple[int, int, int | None]] | None:
    """Search, nearest first, for a free instance that the request can reach over instances others would give up."""
    queue: list[tuple[int, list[tuple[int, int, int | None]]]] = [(request, [])]
    seen = {request}
    for taker, steps in queue:
        for device in lines[taker]:
            if left[device] > 0:
                return [*steps, (taker, device, None)]
            for giver, held in enumerate(given):
                if giver not in seen and held.get(device, 0) > 0:
                    seen.add(giver)
                    queue.append((giver, [*steps, (taker, device, giver)]))
    return None


def _holds(wanted: Constraint | Affinity, device: NodeDeviceGroup) -> bool:
    left, right = _target(wanted.l_target, device), _target(wanted.r_target, device)
    return values_hold(wanted.operand, left, right)


def _other_side(constraint: Constraint, device: NodeDeviceGroup) -> Value | None:
    return _target(constraint.r_target if constraint.l_target == IDS else constraint.l_target, device)


def _target(target: str, device: NodeDeviceGroup) -> Value | None:
    if not target.startswith("${"):
        return parse_value(target)
    if target.startswith("${device.attr."):
        key = target.removeprefix("${device.attr.").removesuffix("}")
        return reported_value(device.attributes[key]) if key in device.attributes else None
    match target:
        case "${device.model}":
            return text_value(device.name)
        case "${device.vendor}":
            return text_value(device.vendor)
        case "${device.type}":
            return text_value(device.type)
        case "${device.ids}":
            return text_value(",".join(instance.id for instance in device.instances))
        case _:
            return None
