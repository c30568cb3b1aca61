"""Fills a template in: walks its tree within a budget. Reaches nothing but the inputs it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from fedsched.model.nearest import nearest
from fedsched.template.data import DATA_FUNCTIONS, Fields, Inputs, Items
from fedsched.template.errors import Source, TemplateError, TooMuch, Wrong
from fedsched.template.functions import FUNCTIONS
from fedsched.template.tree import (
    BranchNode,
    Command,
    Dot,
    Function,
    JumpNode,
    Literal,
    Node,
    Operand,
    OutputNode,
    Pipeline,
    TextNode,
    Variable,
)
from fedsched.template.tree import Fields as FieldsNode
from fedsched.template.values import Budget, is_true, shown, text_of, type_name

NS: Final = 1_000_000_000
EMPTY: Final = object()
"""What a pipeline brings to its first command."""
LAZY: Final = ("and", "or")
TIMES: Final = ("timestamp", "now")
GO_LAYOUT: Final = {
    "2006": "%Y",
    "01": "%m",
    "02": "%d",
    "15": "%H",
    "04": "%M",
    "05": "%S",
    "Jan": "%b",
    "January": "%B",
    "Mon": "%a",
    "Monday": "%A",
    "MST": "%Z",
    "-0700": "%z",
    "Z07:00": "Z",
}


class _Jump(Exception):
    """`break` or `continue` on its way to its range."""

    def __init__(self, word: str) -> None:
        self.word = word


class Evaluator:
    """One rendering."""

    def __init__(self, source: Source, inputs: Inputs, budget: Budget, *, error_on_missing_key: bool = False) -> None:
        self._source = source
        self._inputs = inputs
        self._budget = budget
        self._error_on_missing_key = error_on_missing_key
        self._out: list[str] = []
        self._scopes: list[dict[str, Any]] = [{"$": None}]

    def run(self, nodes: Sequence[Node]) -> str:
        """The text; raises `TemplateError` with the place of what went wrong."""
        self._nodes(nodes, None)
        return "".join(self._out)

    def _nodes(self, nodes: Sequence[Node], dot: Any) -> None:
        for node in nodes:
            match node:
                case TextNode():
                    self._write(node.text, 0)
                case OutputNode():
                    value = self._pipeline(node.pipeline, dot)
                    if not node.pipeline.declares:
                        self._write(self._shown(value, node.pipeline), node.pipeline.at)
                case BranchNode():
                    self._branch(node, dot)
                case JumpNode():
                    raise _Jump(node.word)

    def _branch(self, node: BranchNode, dot: Any) -> None:
        self._scopes.append({})
        try:
            if node.word == "range":
                self._range(node, dot)
                return
            value = self._pipeline(node.pipeline, dot)
            inner = value if node.word == "with" else dot
            if is_true(value):
                self._inside(node.inside, inner)
            else:
                self._inside(node.otherwise, dot)
        finally:
            self._scopes.pop()

    def _range(self, node: BranchNode, dot: Any) -> None:
        names = node.pipeline.declares
        value = self._pipeline(node.pipeline, dot, is_range=True)
        pairs = self._pairs(value, node.pipeline.at)
        if not pairs:
            self._inside(node.otherwise, dot)
            return
        for key, item in pairs:
            self._step(node.at)
            if names:
                self._set(names[-1], item, node.pipeline)
            if len(names) == 2:
                self._set(names[0], key, node.pipeline)
            try:
                self._inside(node.inside, item)
            except _Jump as jump:
                if jump.word == "break":
                    return

    def _pairs(self, value: Any, at: int) -> Sequence[tuple[Any, Any]]:
        if isinstance(value, Mapping):
            return sorted(value.items(), key=lambda pair: str(pair[0]))
        if isinstance(value, int) and not isinstance(value, bool):
            self._step(at, max(0, value))
            return [(number, number) for number in range(value)]
        if value is None:
            return []
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self._error(at, f"range needs a list or a map, not {type_name(value)}")
        return list(enumerate(value))

    def _inside(self, nodes: Sequence[Node], dot: Any) -> None:
        self._scopes.append({})
        try:
            self._nodes(nodes, dot)
        finally:
            self._scopes.pop()

    # ---- values ---------------------------------------------------------------------------------------------

    def _pipeline(self, pipeline: Pipeline, dot: Any, *, is_range: bool = False) -> Any:
        value: Any = EMPTY
        for command in pipeline.commands:
            value = self._command(command, dot, value)
        if not is_range:
            for name in pipeline.declares:
                self._set(name, value, pipeline)
        return value

    def _command(self, command: Command, dot: Any, piped: Any) -> Any:
        self._step(command.at)
        first, *rest = command.operands
        if isinstance(first, Function):
            return self._call(first, rest, dot, piped)
        if piped is not EMPTY:
            raise self._error(first.at, "a pipeline leads into a value, and only functions take one")
        return self._operand(first, dot)

    def _operand(self, operand: Operand, dot: Any) -> Any:
        match operand:
            case Literal():
                return operand.value
            case Dot():
                return dot
            case Variable():
                return self._variable(operand)
            case FieldsNode():
                return self._fields(operand, dot)
            case Function():
                return self._call(operand, (), dot, EMPTY)
            case Pipeline():
                return self._pipeline(operand, dot)

    def _variable(self, variable: Variable) -> Any:
        for scope in reversed(self._scopes):
            if variable.name in scope:
                return scope[variable.name]
        raise self._error(variable.at, f"variable {variable.name} has no value here")

    def _set(self, name: str, value: Any, pipeline: Pipeline) -> None:
        if pipeline.assigns:
            scope = next((scope for scope in reversed(self._scopes) if name in scope), None)
            if scope is None:
                raise self._error(pipeline.at, f"variable {name} has no value here")
            scope[name] = value
        else:
            self._scopes[-1][name] = value

    def _fields(self, node: FieldsNode, dot: Any) -> Any:
        value = self._operand(node.base, dot)
        for name in node.names:
            self._step(node.at)
            value = self._field(value, name, node)
        return value

    def _field(self, value: Any, name: str, node: FieldsNode) -> Any:
        if value is None:
            if self._inputs.missing:  # it has not come yet; this rendering is not used anyway
                return None
            raise self._error(node.at, f"nothing has no field {name!r}", hint="`with` and `if` look first")
        if isinstance(value, Items):
            if name in value or name in value.facts:
                return value.get(name, value.facts.get(name))
            self._absent(name, value, node)
            return ""
        if not isinstance(value, Mapping):
            raise self._error(node.at, f"{type_name(value)} has no field {name!r}")
        if name in value:
            return value[name]
        if isinstance(value, Fields):
            close = nearest(name, value)
            hint = f"did you mean .{close}?" if close else f"there are {', '.join(value)}"
            raise self._error(node.at, f"there is no field {name!r}", hint=hint)
        self._absent(name, value, node)
        return None

    def _absent(self, name: str, value: Mapping[str, Any], node: FieldsNode) -> None:
        if self._error_on_missing_key:
            known = ", ".join(sorted(map(str, value))[:10])
            raise self._error(node.at, f"there is no key {name!r}", hint=f"there are {known or 'none'}")

    # ---- functions ------------------------------------------------------------------------------------------

    def _call(self, function: Function, operands: Sequence[Operand], dot: Any, piped: Any) -> Any:
        name = function.name
        if name in LAZY:
            return self._lazy(function, operands, dot, piped)
        arguments = [self._operand(operand, dot) for operand in operands]
        if piped is not EMPTY:
            arguments.append(piped)
        try:
            if name in TIMES:
                return _timestamp(self._inputs.now_ns, *arguments)
            if name in DATA_FUNCTIONS:
                return DATA_FUNCTIONS[name](self._inputs, *arguments)
            return self._budget.check(FUNCTIONS[name](self._budget, *arguments))
        except Wrong as wrong:
            if self._inputs.missing and not wrong.is_limit:
                return None  # what it was given has not come yet
            raise self._wrong(function.at, wrong, f"{name}: ") from None
        except TypeError:
            raise self._error(function.at, f"{name} does not take {_count(len(arguments))}") from None

    def _lazy(self, function: Function, operands: Sequence[Operand], dot: Any, piped: Any) -> Any:
        """`and` and `or` look no further than they need to."""
        thunks: list[Callable[[], Any]] = [lambda one=operand: self._operand(one, dot) for operand in operands]  # type: ignore[misc]
        if piped is not EMPTY:
            thunks.append(lambda: piped)
        if not thunks:
            raise self._error(function.at, f"{function.name} needs something to look at")
        value: Any = None
        for thunk in thunks:
            value = thunk()
            if is_true(value) == (function.name == "or"):
                break
        return value

    # ---- budget and errors ----------------------------------------------------------------------------------

    def _shown(self, value: Any, pipeline: Pipeline) -> str:
        if value is None and self._inputs.missing:
            return ""
        if isinstance(value, Mapping | list):
            self._step(pipeline.at, len(value))
        return shown(value)

    def _write(self, text: str, at: int) -> None:
        try:
            self._budget.write(text)
        except Wrong as wrong:
            raise self._wrong(at, wrong) from None
        self._out.append(text)

    def _step(self, at: int, count: int = 1) -> None:
        try:
            self._budget.step(count)
        except Wrong as wrong:
            raise self._wrong(at, wrong) from None

    def _wrong(self, at: int, wrong: Wrong, prefix: str = "") -> TemplateError:
        kind = TooMuch if wrong.is_limit else TemplateError
        return kind(self._source, at, prefix + wrong.message, hint=wrong.hint)

    def _error(self, at: int, message: str, *, hint: str = "") -> TemplateError:
        return TemplateError(self._source, at, message, hint=hint)


def _timestamp(now_ns: int, layout: Any = "") -> str:
    """The time in UTC: `timestamp`, `timestamp "unix"`, or by a layout of Go's reference time."""
    layout = text_of(layout, "the layout")
    moment = datetime.fromtimestamp(now_ns // NS, UTC)
    if layout == "unix":
        return str(now_ns // NS)
    form = layout or "2006-01-02T15:04:05Z07:00"
    out, at = "", 0
    names = sorted(GO_LAYOUT, key=len, reverse=True)
    while at < len(form):
        found = next((name for name in names if form.startswith(name, at)), None)
        out += moment.strftime(GO_LAYOUT[found]) if found else form[at]
        at += len(found) if found else 1
    return out


def _count(number: int) -> str:
    return "no arguments" if number == 0 else f"{number} argument{'s'[: number > 1]}"
