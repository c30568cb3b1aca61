"""Kinds of nodes: what looks alike to feasibility is decided once.

A *kind* is everything about a node that a feasibility check may look at and that does not belong to this node alone. A
region has thousands of nodes and a handful of kinds, so a check runs once per kind and its answers are gathered into a
mask over nodes. Whatever is unique to a node (its id, its name, attributes under `unique.`) is no part of its kind, and
a constraint that looks at such a thing cannot be answered by kind.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from hashlib import blake2b
from typing import Any, Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from fedsched.codec import dumps
from fedsched.model.node import Node

MASKS_MAX: Final = 256
"""Answers remembered; the one used longest ago is forgotten."""
NO_KIND: Final = 0
"""The kind of a slot without a node; no answer for it is ever true."""

Mask = NDArray[np.bool_]


def kind_key(node: Node) -> bytes:
    """A digest of what a feasibility check may look at, the same for nodes that look alike."""
    resources = node.node_resources
    seen = {
        "place": [node.datacenter, node.node_pool, node.node_class, node.computed_class],
        "attributes": _common(node.attributes),
        "meta": _common(node.meta),
        "drivers": [[name, info.detected, info.healthy] for name, info in sorted(node.drivers.items())],
        "host_networks": sorted(node.host_networks),
        "networks": sorted([net.mode, net.device, *sorted({a.alias for a in net.addresses})] for net in _nets(node)),
        "modes": sorted({net.mode for net in resources.networks}),
        "volumes": [[name, it.read_only, bool(it.id)] for name, it in sorted(node.host_volumes.items())],
        "csi": [_plain(node.csi_node_plugins), _plain(node.csi_controller_plugins)],
        "devices": sorted(
            ([d.id, sum(i.healthy for i in d.instances), _plain(d.attributes)] for d in resources.devices), key=repr
        ),
        "cores": [len(resources.cpu.reservable_cpu_cores), resources.processors.topology is not None],
    }
    return blake2b(dumps(seen), digest_size=16).digest()


def _nets(node: Node) -> Iterable[Any]:
    return node.node_resources.node_networks


def _common(values: Mapping[str, str]) -> list[list[str]]:
    return [[key, value] for key, value in sorted(values.items()) if not key.startswith("unique.")]


def _plain(value: Any) -> Any:
    """Free-form data in one order, whatever order it came in."""
    if isinstance(value, Mapping):
        return [[str(key), _plain(item)] for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))]
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | bytes | None) else repr(value)


class Kinds:
    """The kinds in use, a representative of each, and remembered answers about them."""

    def __init__(self) -> None:
        self.of_slot: NDArray[np.int32] = np.zeros(0, dtype=np.int32)
        """The kind of the node in each slot."""
        self.version = 0
        """Grows whenever some slot's kind may have become another."""
        self._ids: dict[bytes, int] = {}
        self._keys: list[bytes] = [b""]
        self._nodes: list[Node | None] = [None]
        self._uses: list[int] = [0]
        self._births: list[int] = [0]
        self._born = 0
        self._free: list[int] = []
        self._answers: OrderedDict[Hashable, _Answer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ids)

    def copy(self) -> Kinds:
        """Another one that goes on from here by itself; remembered answers are shared as far as they go."""
        other = Kinds()
        other.of_slot = self.of_slot.copy()
        other.version, other._born = self.version, self._born
        other._ids, other._keys, other._nodes = dict(self._ids), list(self._keys), list(self._nodes)
        other._uses, other._births, other._free = list(self._uses), list(self._births), list(self._free)
        other._answers = OrderedDict((key, answer.copy()) for key, answer in self._answers.items())
        return other

    def grow(self, size: int) -> None:
        """Make room for slots below `size`."""
        grown = np.zeros(size, dtype=np.int32)
        grown[: len(self.of_slot)] = self.of_slot
        self.of_slot = grown
        self.version += 1

    def put(self, slot: int, node: Node) -> None:
        """The node in this slot is (now) this one."""
        key = kind_key(node)
        known = int(self.of_slot[slot])
        if known and self._keys[known] == key:
            return
        kind = self._ids.get(key)
        if kind is None:
            kind = self._new(key, node)
        self._uses[kind] += 1
        self.drop(slot)
        self.of_slot[slot] = kind
        self.version += 1

    def drop(self, slot: int) -> None:
        """There is no node in this slot any more."""
        kind = int(self.of_slot[slot])
        if not kind:
            return
        self.of_slot[slot] = NO_KIND
        self.version += 1
        self._uses[kind] -= 1
        if not self._uses[kind]:
            del self._ids[self._keys[kind]]
            self._nodes[kind] = None
            self._free.append(kind)

    def representatives(self) -> list[tuple[int, Node]]:
        """Every kind in use and one node of it."""
        return [(kind, node) for kind, node in enumerate(self._nodes) if node is not None]

    def node(self, kind: int) -> Node | None:
        """One node of this kind (not with the unique data of any other)."""
        return self._nodes[kind]

    def key_of(self, slot: int) -> bytes:
        """The digest of the kind in a slot, empty without a node."""
        return self._keys[self.of_slot[slot]] if self.of_slot[slot] else b""

    def count_of(self, kind: int) -> int:
        """How many nodes are of this kind."""
        return self._uses[kind]

    def mask(self, key: Hashable, decide: Callable[[Node], bool]) -> Mask:
        """Which slots have a node of a kind for which `decide` is true. Not to be written to.

        `key` stands for what is asked; under one key `decide` must always mean the same. It is called only for kinds
        that have appeared since it was last asked.
        """
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = _Answer()
            if len(self._answers) > MASKS_MAX:
                self._answers.popitem(last=False)
        else:
            self._answers.move_to_end(key)
        if answer.version != self.version:
            self._renew(answer, decide)
        return answer.mask

    def _renew(self, answer: _Answer, decide: Callable[[Node], bool]) -> None:
        per_kind = np.zeros(len(self._nodes), dtype=np.bool_)
        per_kind[: len(answer.per_kind)] = answer.per_kind[: len(per_kind)]
        for kind, node in enumerate(self._nodes):
            if node is not None and self._births[kind] > answer.asked:
                per_kind[kind] = decide(node)
        answer.per_kind, answer.asked, answer.version = per_kind, self._born, self.version
        answer.mask = per_kind[self.of_slot]

    def _new(self, key: bytes, node: Node) -> int:
        node = structs.replace(node, events=(), secret_id="")
        self._born += 1
        if self._free:
            kind = self._free.pop()
            self._keys[kind], self._nodes[kind], self._births[kind] = key, node, self._born
        else:
            kind = len(self._keys)
            self._keys.append(key)
            self._nodes.append(node)
            self._uses.append(0)
            self._births.append(self._born)
        self._ids[key] = kind
        return kind


class _Answer:
    """What was decided, and up to which kind and version."""

    __slots__ = ("asked", "mask", "per_kind", "version")

    def __init__(self) -> None:
        self.per_kind: Mask = np.zeros(1, dtype=np.bool_)
        self.mask: Mask = np.zeros(0, dtype=np.bool_)
        self.asked = 0
        self.version = -1

    def copy(self) -> _Answer:
        other = _Answer()
        other.per_kind, other.mask, other.asked, other.version = self.per_kind, self.mask, self.asked, self.version
        return other
