"""What a constraint may refer to on a node, and which references differ from node to node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fedsched.model.node import Node

Getter = Callable[[Node], str | None]

_UNIQUE: Final = ("${unique.", "${node.unique.", "${attr.unique.", "${meta.unique.")
_PLAIN: Final[dict[str, Getter]] = {
    "${node.unique.id}": lambda node: node.id,
    "${node.datacenter}": lambda node: node.datacenter,
    "${node.unique.name}": lambda node: node.name,
    "${node.class}": lambda node: node.node_class,
    "${node.pool}": lambda node: node.node_pool,
}


def lookup(target: str, node: Node) -> str | None:
    """Give the value that a target stands for; None if the node has nothing of the name. Other text is itself."""
    return getter(target)(node)


def getter(target: str) -> Getter:
    """Give the function that reads the target; made once, asked for many nodes."""
    if not target.startswith("${"):
        return lambda _node: target
    if target in _PLAIN:
        return _PLAIN[target]
    if target.startswith("${attr."):
        attribute = _key(target, "${attr.")
        return lambda node: node.attributes.get(attribute)
    if target.startswith("${meta."):
        meta = _key(target, "${meta.")
        return lambda node: node.meta.get(meta)
    return lambda _node: None


def is_unique(target: str) -> bool:
    """Whether nodes of one class may differ in the value: a constraint on it *escapes* the class."""
    return target.startswith(_UNIQUE)


def _key(target: str, prefix: str) -> str:
    return target.removeprefix(prefix).removesuffix("}")
