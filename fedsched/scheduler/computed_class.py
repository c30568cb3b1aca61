"""The computed class of a node: a digest of all that constraints can see and that is not the node's alone.

Nodes of one class answer every constraint alike (unless it *escapes*, see `attributes.is_unique`), which is what lets a
blocked evaluation say "no node of this class will do". Values that are lists come in whatever order a client's system
gave them; they are sorted first, or nodes that look alike would fall into different classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final

from fedsched.model.node import Node
from fedsched.model.node_resources import NodeDeviceGroup

VERSION: Final = "v1"
"""Changes with the recipe, so that digests of two recipes are never taken for one class."""

UNIQUE: Final = "unique."
_LISTS: Final = (".signals", ".runtimes")


def computed_class(node: Node) -> str:
    """Give the class; equal for nodes that placement cannot tell apart, on every server and in every version 1."""
    digest = blake2b(digest_size=16)
    for part in _parts(node):
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(4, "big"))  # so that no two lists of parts run together to the same bytes
        digest.update(raw)
    return f"{VERSION}:{digest.hexdigest()}"


def _parts(node: Node) -> Iterator[str]:
    yield from ("datacenter", node.datacenter, "class", node.node_class, "pool", node.node_pool)
    yield from _map_parts("attributes", {key: _in_order(key, value) for key, value in node.attributes.items()})
    yield from _map_parts("meta", node.meta)
    for device in sorted(node.node_resources.devices, key=_device_key):
        yield from ("device", device.vendor, device.type, device.name)
        yield from _map_parts("device attributes", device.attributes)


def _map_parts(title: str, values: Mapping[str, Any]) -> Iterator[str]:
    common = [key for key in values if not key.startswith(UNIQUE)]
    yield from (title, str(len(common)))
    for key in sorted(common):
        yield from (key, _text(values[key]))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_text(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(sorted(_text(item) for item in value)) + "]"
    return repr(value)


def _in_order(key: str, value: str) -> str:
    if not key.endswith(_LISTS):
        return value
    return ",".join(sorted(item.strip() for item in value.split(",")))


def _device_key(device: NodeDeviceGroup) -> tuple[str, str]:
    return device.id, _text(device.attributes)
