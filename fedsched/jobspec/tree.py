"""What a job file says, before anything is evaluated: bodies of attributes and blocks, and expressions.

This is the seam between the language and its users. A body keeps attributes by name and blocks in the order written.
`dynamic.expand` returns the same shapes with generated blocks in place of `dynamic` ones; those carry the context in
which their bodies are to be evaluated (`Block.context`, `None` meaning "the one of the body it stands in").

Every expression has two spans: `span` is all of it, `start` its opening part, which is what a message about the value
as a whole points at (the bracket of a list, the name of a called function).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fedsched.jobspec.source import Span

if TYPE_CHECKING:
    from fedsched.jobspec.context import Context
    from fedsched.jobspec.values import Value


@dataclass(frozen=True, slots=True)
class Expr:
    """Something with a value; see the subclasses."""

    span: Span

    @property
    def start(self) -> Span:
        return self.span


@dataclass(frozen=True, slots=True)
class Attribute:
    """`name = expr`; `span` covers both."""

    name: str
    expr: Expr
    name_span: Span
    span: Span


@dataclass(frozen=True, slots=True)
class Label:
    """One of the words between a block's type and its brace, quotes taken off (`span` still has them)."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class Body:
    """What stands between two braces, or in a whole file. `span` begins at the opening brace."""

    attributes: Mapping[str, Attribute]
    blocks: list[Block]
    span: Span

    def named(self, type_: str) -> list[Block]:
        """The blocks of one type, in order."""
        return [block for block in self.blocks if block.type == type_]

    @property
    def missing_span(self) -> Span:
        """Where to point when something that must be in here is not."""
        return self.span.at_start()


@dataclass(frozen=True, slots=True)
class Block:
    """`type "label" ... { body }`; `span` covers the header (type and labels), `brace_span` the opening brace."""

    type: str
    labels: list[Label]
    body: Body
    span: Span
    type_span: Span
    brace_span: Span
    context: Context | None = None
    """Set on blocks that a `dynamic` block generated: holds the iterator."""


@dataclass(frozen=True, slots=True)
class Literal(Expr):
    """A number, `true`, `false`, `null`, or a piece of text inside a template."""

    value: Value


@dataclass(frozen=True, slots=True)
class AttributeStep:
    """`.name` after an expression."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class IndexStep:
    """`[key]` (or the old `.0`) after an expression."""

    key: Expr
    span: Span


@dataclass(frozen=True, slots=True)
class SplatStep:
    """`[*]` or `.*`: the steps it swallowed are applied to each element."""

    steps: tuple[Step, ...]
    span: Span


Step = AttributeStep | IndexStep | SplatStep


@dataclass(frozen=True, slots=True)
class Reference(Expr):
    """A name and constant steps (`var.x`, `env["HOME"]`, `foo.0`); `root` may turn out to be unknown until run time."""

    root: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Access(Expr):
    """Steps after any other expression, or a reference followed by steps that are not constant."""

    base: Expr
    steps: tuple[Step, ...]

    @property
    def start(self) -> Span:
        last = self.steps[-1]
        return last.span if isinstance(last, SplatStep) else self.span


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """`name(args)`; `expands` says that the last argument is followed by `...`."""

    name: str
    args: tuple[Expr, ...]
    expands: bool
    name_span: Span
    open_span: Span
    close_span: Span

    @property
    def start(self) -> Span:
        return self.name_span.to(self.open_span)


@dataclass(frozen=True, slots=True)
class Parenthesised(Expr):
    """`(expr)`: kept, because an object in parentheses is not a literal object."""

    inner: Expr


@dataclass(frozen=True, slots=True)
class Unary(Expr):
    operator: str
    operand: Expr
    operator_span: Span

    @property
    def start(self) -> Span:
        return self.operator_span


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    """Operators of one chain lean left; evaluation walks the chain in a loop, so its length is no depth."""

    operator: str
    left: Expr
    right: Expr

    @property
    def start(self) -> Span:
        node: Expr = self
        while isinstance(node, Binary):
            node = node.left
        return node.start


@dataclass(frozen=True, slots=True)
class Conditional(Expr):
    condition: Expr
    if_true: Expr
    if_false: Expr

    @property
    def start(self) -> Span:
        return self.condition.start


@dataclass(frozen=True, slots=True)
class TupleLiteral(Expr):
    items: tuple[Expr, ...]
    open_span: Span

    @property
    def start(self) -> Span:
        return self.open_span


@dataclass(frozen=True, slots=True)
class ObjectItem:
    key: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class KeyName(Expr):
    """A bare word as an object's key: itself, whatever variables exist."""

    name: str


@dataclass(frozen=True, slots=True)
class ObjectLiteral(Expr):
    items: tuple[ObjectItem, ...]
    open_span: Span

    @property
    def start(self) -> Span:
        return self.open_span


@dataclass(frozen=True, slots=True)
class ForLoop(Expr):
    """`[for k, v in collection : value if condition]`, with `key =>` when an object is built."""

    key_name: str | None
    value_name: str
    collection: Expr
    key: Expr | None
    value: Expr
    condition: Expr | None
    groups: bool
    open_span: Span

    @property
    def start(self) -> Span:
        return self.open_span


@dataclass(frozen=True, slots=True)
class Template(Expr):
    """Text with things to be filled in; every part ends up as text."""

    parts: tuple[Expr, ...]

    @property
    def start(self) -> Span:
        return self.parts[0].start


@dataclass(frozen=True, slots=True)
class Interpolation(Expr):
    """`${inner}`; alone in its string it keeps the inner value's type."""

    inner: Expr
    strips: bool = False
    """It had a `~`: then the blanks around a run-time reference are not worth keeping."""


@dataclass(frozen=True, slots=True)
class TemplateIf(Expr):
    """`%{ if condition }...%{ else }...%{ endif }`"""

    condition: Expr
    if_true: Expr
    if_false: Expr


@dataclass(frozen=True, slots=True)
class TemplateFor(Expr):
    """`%{ for k, v in collection }...%{ endfor }`"""

    key_name: str | None
    value_name: str
    collection: Expr
    content: Expr


@dataclass(frozen=True, slots=True)
class Static(Expr):
    """A value that came from outside the language (a variable given as plain text)."""

    value: Value = field(repr=False)
