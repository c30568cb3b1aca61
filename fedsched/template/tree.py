"""What a template is once it is read. Every node knows its place in the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Literal:
    at: int
    value: Any


@dataclass(frozen=True, slots=True)
class Dot:
    """`.`, the value at hand."""

    at: int


@dataclass(frozen=True, slots=True)
class Variable:
    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Fields:
    """`base.A.B`."""

    at: int
    base: Operand
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function's name where a value may stand."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Command:
    """One part of a pipeline: a function with its arguments, or a single value."""

    at: int
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Commands, each given the value of the one before as its last argument; maybe put into variables."""

    at: int
    commands: tuple[Command, ...]
    declares: tuple[str, ...] = ()
    assigns: bool = False
    """`$x = ...`: the variable is there already."""


Operand = Literal | Dot | Variable | Fields | Function | Pipeline


@dataclass(frozen=True, slots=True)
class TextNode:
    text: str


@dataclass(frozen=True, slots=True)
class OutputNode:
    pipeline: Pipeline


@dataclass(frozen=True, slots=True)
class BranchNode:
    """`if`, `with` or `range`, with what is done otherwise."""

    at: int
    word: str
    pipeline: Pipeline
    inside: tuple[Node, ...]
    otherwise: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class JumpNode:
    """`break` or `continue`."""

    at: int
    word: str


Node = TextNode | OutputNode | BranchNode | JumpNode
