"""Whether a node can run a group at all, before asking whether there is room.

What is asked splits in two. Most of it looks only at things that many nodes have in common (attributes, drivers,
networks, kinds of devices): `check_kind` answers once for all nodes that are alike. A little looks at the node itself
(attributes under `unique.`, host volumes, single device instances): `check_node` answers for one node and is kept
short, because it may be asked of every node of a region. A node is feasible if both say nothing.

Reasons are the texts that nodes are counted under in an allocation's metrics; constraints read as they were written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, NamedTuple

from fedsched.model.constraint import Constraint
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.network import NetworkResource, Port
from fedsched.model.node import Node
from fedsched.model.resources import RequestedDevice
from fedsched.model.volume import VolumeRequest
from fedsched.scheduler.attributes import is_unique, lookup
from fedsched.scheduler.constraints import DISTINCT, as_bool, escapes, reason_of, test_of
from fedsched.scheduler.devices import MISSING_DEVICES, asks_for_ids, enough_devices
from fedsched.scheduler.distinct import PropertyLimit, Scope, distinct_hosts, property_limits
from fedsched.scheduler.ports import host_networks, ports_of
from fedsched.scheduler.special import DEFAULT_HOST_NETWORK, HOST_VOLUME, HeldVolume
from fedsched.scheduler.volumes import MISSING_VOLUMES, FindVolume, no_volumes, offers_volumes

ALL_POOLS: Final = "all"
MISSING_DRIVERS: Final = "missing drivers"
MISSING_NETWORK: Final = "missing network"
MISSING_SECRETS: Final = "missing secrets provider"
CSI_VOLUME: Final = "csi"


class Reason(NamedTuple):
    """Why a node is filtered."""

    text: str
    of_job: bool = False
    """It comes from the job's own constraints, so it holds for all groups."""
    of_class: bool = True
    """No node of the same computed class will do, ever. False where it hangs on health, on what the class does not
    cover, or on the node alone: a blocked evaluation must then be woken by any change."""


Check = Callable[[Node], Reason | None]


class GroupNeeds(NamedTuple):
    """What one group needs of a node, made once per evaluation."""

    kind_checks: tuple[Check, ...]
    node_checks: tuple[Check, ...]
    volumes: tuple[VolumeRequest, ...]
    """The host volumes, asked of every single node."""
    distinct_hosts: Scope | None
    property_limits: tuple[PropertyLimit, ...]
    escapes: bool
    """Nodes of one class may differ in what the group asks: classes tell a blocked evaluation nothing."""
    constraints: tuple[Constraint, ...]
    """Job's, group's, tasks': merged in the order of the checks, without the distinct ones."""
    drivers: tuple[str, ...]

    @property
    def is_by_kind(self) -> bool:
        """Whether `check_node` has nothing to ask."""
        return not (self.node_checks or self.volumes)

    @staticmethod
    def of(job: Job, group: TaskGroup) -> GroupNeeds:
        own = _merged(job.constraints)
        merged = _merged(group.constraints, *(task.constraints for task in group.tasks))
        drivers = tuple(sorted({task.driver for task in group.tasks}))
        checks = [
            *(_constraint_check(constraint, of_job=True) for constraint in own),
            (False, _driver_check(drivers)),
            *(_constraint_check(constraint, of_job=False) for constraint in merged),
            *_device_checks([request for task in group.tasks for request in task.resources.devices]),
            *_network_checks(group.networks),
            *_secret_checks(sorted({secret.provider for task in group.tasks for secret in task.secrets})),
        ]
        return GroupNeeds(
            kind_checks=tuple(check for is_own, check in checks if not is_own),
            node_checks=tuple(check for is_own, check in checks if is_own),
            volumes=tuple(request for request in group.volumes.values() if request.type == HOST_VOLUME),
            distinct_hosts=distinct_hosts(job, group),
            property_limits=property_limits(job, group),
            escapes=any(map(escapes, (*own, *merged))) or _has_csi(group),
            constraints=(*own, *merged),
            drivers=drivers,
        )


def check_kind(needs: GroupNeeds, node: Node) -> Reason | None:
    """Ask what depends only on the kind of node; the answer holds for all that are alike."""
    for check in needs.kind_checks:
        reason = check(node)
        if reason is not None:
            return reason
    return None


def check_node(
    needs: GroupNeeds,
    node: Node,
    *,
    name_index: int | None = None,
    find_volume: FindVolume = no_volumes,
    written: Collection[HeldVolume] = (),
    claimed: Collection[str] = (),
) -> Reason | None:
    """Ask what depends on this node alone; see `volumes.offers_volumes` for how volumes are."""
    for check in needs.node_checks:
        reason = check(node)
        if reason is not None:
            return reason
    if needs.volumes and not offers_volumes(
        node, needs.volumes, name_index=name_index, find=find_volume, written=written, claimed=claimed
    ):
        return Reason(MISSING_VOLUMES, of_class=False)
    return None


def in_pool(job: Job, node: Node) -> bool:
    """Whether the job's pool has the node; the pool `all` has every node."""
    return job.node_pool in (ALL_POOLS, node.node_pool)


def in_datacenters(globs: Iterable[str], datacenter: str) -> bool:
    """Whether any of the job's datacenter patterns matches; only `*` is special in them."""
    return any(glob_matches(glob, datacenter) for glob in globs)


def glob_matches(glob: str, text: str) -> bool:
    """Match a text against a pattern in which `*` stands for any run of characters. Takes linear time."""
    first, *rest = glob.split("*")
    if not rest:
        return glob == text
    last = rest.pop()
    if len(text) < len(first) + len(last) or not (text.startswith(first) and text.endswith(last)):
        return False
    place, end = len(first), len(text) - len(last)
    for part in rest:
        place = text.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return True


class ClassEligibility:
    """What a blocked evaluation knows of classes: for which a change there cannot help."""

    def __init__(self) -> None:
        self._job: dict[str, bool] = {}
        self._groups: dict[str, bool] = {}
        self._unsure: set[str] = set()
        self.escaped = False
        """Some group's needs look past classes: no map can be given."""

    def note_needs(self, needs: GroupNeeds) -> None:
        self.escaped = self.escaped or needs.escapes

    def note(self, node_class: str, reason: Reason | None) -> None:
        """What `check_kind` said of a node of this class."""
        if reason is None:
            self._groups[node_class] = True
        elif not reason.of_class:
            self._unsure.add(node_class)
        elif reason.of_job:
            self._job[node_class] = False
        else:
            self._groups.setdefault(node_class, False)

    def classes(self) -> dict[str, bool] | None:
        """Give the map: a class is eligible if any group found it so, but never against the job's own constraints.

        A class that failed for a reason which may pass is left out: whatever is unknown wakes the evaluation. None if
        something escaped.
        """
        if self.escaped:
            return None
        merged = {**self._groups, **self._job}
        return {name: merged[name] for name in sorted(merged) if merged[name] or name not in self._unsure}


def _merged(*levels: tuple[Constraint, ...]) -> list[Constraint]:
    return [constraint for level in levels for constraint in level if constraint.operand not in DISTINCT]


def _constraint_check(constraint: Constraint, *, of_job: bool) -> tuple[bool, Check]:
    passes, is_own = test_of(constraint), escapes(constraint)
    reason = Reason(reason_of(constraint), of_job=of_job, of_class=not is_own)
    return is_own, lambda node: None if passes(node) else reason


def _driver_check(drivers: tuple[str, ...]) -> Check:
    gone, ill = Reason(MISSING_DRIVERS), Reason(MISSING_DRIVERS, of_class=False)

    def check(node: Node) -> Reason | None:
        for name in drivers:
            info = node.drivers.get(name)
            if info is None:
                if not as_bool(node.attributes.get(f"driver.{name}", "")):
                    return gone
            elif not info.detected:
                return gone
            elif not info.healthy:
                return ill
        return None

    return check


def _device_checks(requests: list[RequestedDevice]) -> Iterator[tuple[bool, Check]]:
    if requests:
        missing = Reason(MISSING_DEVICES, of_class=False)  # healthy instances are no part of the class
        is_own = any(map(asks_for_ids, requests))
        yield is_own, lambda node: None if enough_devices(node, requests) else missing


def _network_checks(networks: tuple[NetworkResource, ...]) -> Iterator[tuple[bool, Check]]:
    """Only the first network of a group is placed."""
    if not networks or networks[0].mode == "none":
        return
    network = networks[0]
    ports = tuple(ports_of(network))
    mode = network.mode or "host"
    missing = Reason(MISSING_NETWORK, of_class=False)
    yield False, lambda node: None if mode in _modes(node) else missing
    if ports:
        yield any(is_unique(port.host_network) for port in ports), lambda node: _missing_host_network(ports, node)


def _modes(node: Node) -> set[str]:
    resources = node.node_resources
    modes = [network.mode for network in resources.node_networks] + [network.mode for network in resources.networks]
    return {mode or "host" for mode in modes}


def _missing_host_network(ports: tuple[Port, ...], node: Node) -> Reason | None:
    known = host_networks(node)
    for port in ports:
        alias = lookup(port.host_network, node) if port.host_network else DEFAULT_HOST_NETWORK
        if alias is None:
            text = f'invalid host network "{port.host_network}" template for port "{port.label}"'
            return Reason(text, of_class=False)
        if alias not in known:
            return Reason(f'missing host network "{alias}" for port "{port.label}"', of_class=False)
    return None


def _secret_checks(providers: list[str]) -> Iterator[tuple[bool, Check]]:
    names = [f"plugins.secrets.{provider}.version" for provider in providers]
    if names:
        missing = Reason(MISSING_SECRETS)
        yield False, lambda node: None if all(name in node.attributes for name in names) else missing


def _has_csi(group: TaskGroup) -> bool:
    return any(request.type == CSI_VOLUME for request in group.volumes.values())
