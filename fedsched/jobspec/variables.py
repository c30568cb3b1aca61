"""Variables: what a job file declares, what it is given, and whether the two fit.

A value comes, in rising order of weight, from the declaration's default, the environment, var files in their order, and
the command line. Defaults and values are plain: they use no names and no functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from fedsched.jobspec import evaluate
from fedsched.jobspec.context import Context
from fedsched.jobspec.convert import Mismatch, as_string, convert
from fedsched.jobspec.problems import JobfileProblems, Problem, TooMuch, nearest
from fedsched.jobspec.references import static_value, walk
from fedsched.jobspec.source import Source, Span
from fedsched.jobspec.syntax import parse_expression, parse_var_file
from fedsched.jobspec.tree import Attribute, AttributeStep, Block, Body, Expr, Reference
from fedsched.jobspec.type_names import type_of
from fedsched.jobspec.types import ANY, BOOL, Kind, Type
from fedsched.jobspec.values import Value, string

PREFIXES: Final = ("NOMAD_VAR_", "FEDSCHED_VAR_")
"""Names of environment variables; the later prefix wins."""

_LITERAL: Final = (Kind.STRING, Kind.NUMBER, Kind.ANY)
"""Types for which a value on the command line is taken as it stands, without quotes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One `validation` block."""

    condition: Expr
    message: str
    span: Span


@dataclass(frozen=True, slots=True)
class Declaration:
    name: str
    type: Type
    default: Value | None
    span: Span
    default_span: Span | None = None
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """A value and where it was written, if it was in a file."""

    value: Value
    span: Span | None


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was given beside the job file."""

    variables: Mapping[str, str]
    """From the command line: name and text."""
    var_files: Sequence[tuple[str, str]]
    """Name and text of each, in order."""
    environment: Mapping[str, str]
    strict: bool
    """Whether a value for a variable that nobody declared is a mistake."""


class Variables:
    """Reads declarations and values of one job file, gathering problems."""

    def __init__(self, context: Context, problems: list[Problem]) -> None:
        self._context = context
        self._problems = problems
        self._failed: set[str] = set()
        """Variables whose value could not be read: saying that they have none would only add to the noise."""
        self._lost_file = False

    def resolve(self, body: Body, inputs: Inputs) -> dict[str, Value]:
        """The value of every declared variable that has one; the rest is in the problems."""
        declared = self._declarations(body)
        given = self._given(declared, inputs)
        values: dict[str, Value] = {}
        for name, declaration in declared.items():
            final = given.get(name)
            if final is None and declaration.default is not None:
                final = Given(declaration.default, declaration.default_span)
            if name in self._failed or (final is None and self._lost_file):
                continue
            if final is None:
                detail = (
                    f"{name!r} has no default: give it with -var {name}=..., in a var file, or as FEDSCHED_VAR_{name}"
                )
                self._problems.append(Problem("Variable without a value", detail, declaration.span))
                continue
            values[name] = final.value
            self._check_rules(declaration, final)
        return values

    def _declarations(self, body: Body) -> dict[str, Declaration]:
        declared: dict[str, Declaration] = {}
        for declaration in self._declared_in(body):
            first = declared.setdefault(declaration.name, declaration)
            if first is not declaration:
                line = first.span.first.line
                detail = f"{declaration.name!r} has already been declared in line {line}"
                self._problems.append(Problem("Variable declared twice", detail, declaration.span))
        return declared

    def _declared_in(self, body: Body) -> Iterator[Declaration]:
        for block in body.blocks:
            try:
                if block.type == "variable":
                    yield self._declaration(block)
                elif block.type == "variables":
                    yield from self._legacy(block)
            except TooMuch:
                raise
            except JobfileProblems as error:
                self._problems += error.problems

    def _legacy(self, block: Block) -> Iterator[Declaration]:
        """`variables { name = default }`"""
        if block.labels:
            raise _problem("Unexpected label", "`variables` takes none", block.labels[0].span)
        if block.body.blocks:
            raise _problem(
                "Unexpected block", "`variables` holds only `name = default`", block.body.blocks[0].type_span
            )
        for attribute in block.body.attributes.values():
            value = static_value(attribute.expr, self._context)
            yield Declaration(attribute.name, _type_of(value), value, attribute.name_span, attribute.expr.span)

    def _declaration(self, block: Block) -> Declaration:
        if not block.labels:
            raise _problem("Variable without a name", 'write `variable "name" { ... }`', block.brace_span)
        if len(block.labels) > 1:
            raise _problem("Extra label", "a variable has one name", block.labels[1].span)
        name, body = block.labels[0].text, block.body
        _only(body, ("type", "default", "description"), ("validation",))
        type_ = type_of(body.attributes["type"].expr, allow_open=False) if "type" in body.attributes else None
        if "description" in body.attributes:
            described = body.attributes["description"].expr
            as_string(static_value(described, self._context), described.start)
        default, span = self._default(body, type_)
        if type_ is None:
            type_ = ANY if default is None else _type_of(default)
        rules = tuple(self._rule(inner, name) for inner in body.named("validation"))
        return Declaration(name, type_, default, block.span, span, rules)

    def _default(self, body: Body, type_: Type | None) -> tuple[Value | None, Span | None]:
        if "default" not in body.attributes:
            return None, None
        expr = body.attributes["default"].expr
        value = static_value(expr, self._context)
        try:
            return convert(value, type_ or ANY), expr.span
        except Mismatch as error:
            raise _problem("Default does not fit the type", str(error), expr.span) from None

    def _rule(self, block: Block, name: str) -> Rule:
        _only(block.body, ("condition", "error_message"), ())
        for needed in ("condition", "error_message"):
            if needed not in block.body.attributes:
                raise _problem("Missing attribute", f"a validation needs {needed!r}", block.body.missing_span)
        condition = block.body.attributes["condition"].expr
        names = [node for node in walk(condition) if isinstance(node, Reference) and node.root in ("var", "local")]
        if not any(_is_own(node, name) for node in names):
            raise _problem("Pointless validation", f"the condition must look at var.{name}", condition.span)
        for node in names:
            if not _is_own(node, name):
                detail = f"a validation of {name!r} can look at var.{name} only"
                raise _problem("Reference not allowed", detail, node.span)
        written = block.body.attributes["error_message"].expr
        message = as_string(static_value(written, self._context), written.start)
        if not message.strip():
            raise _problem("Empty message", "say what is wrong with a value that fails", written.span)
        return Rule(condition, message, block.span)

    def _given(self, declared: Mapping[str, Declaration], inputs: Inputs) -> dict[str, Given]:
        found: dict[str, Given] = {}
        for prefix in PREFIXES:
            for name in declared:
                text = inputs.environment.get(prefix + name)
                if text is not None:
                    self._take(found, declared[name], partial(self._literal, declared[name], text, "environment"))
        for filename, text in inputs.var_files:
            self._var_file(found, declared, filename, text, inputs.strict)
        for name, text in inputs.variables.items():
            if name in declared:
                self._take(found, declared[name], partial(self._literal, declared[name], text, "-var"))
            elif inputs.strict:
                self._undeclared(name, declared, None)
        return found

    def _take(self, found: dict[str, Given], declaration: Declaration, read: Callable[[], Given]) -> None:
        """Note a value; one that does not fit is reported, and the variable not reported again for having none."""
        name = declaration.name
        try:
            given = read()
        except TooMuch:
            raise
        except JobfileProblems as error:
            self._problems += error.problems
            self._failed.add(name)
            return
        try:
            found[name] = Given(convert(given.value, declaration.type), given.span)
        except Mismatch as error:
            detail = f"{name!r} is declared as {declaration.type}: {error}"
            self._problems.append(Problem("Value does not fit its variable", detail, given.span))
            self._failed.add(name)

    def _literal(self, declaration: Declaration, text: str, origin: str) -> Given:
        if declaration.type.kind in _LITERAL:
            return Given(string(text), None)
        expr = parse_expression(Source(text, f"{origin} {declaration.name}"))
        return Given(static_value(expr, self._context), expr.span)

    def _var_file(
        self, found: dict[str, Given], declared: Mapping[str, Declaration], filename: str, text: str, strict: bool
    ) -> None:
        try:
            body = parse_var_file(text, filename)
        except TooMuch:
            raise
        except JobfileProblems as error:
            self._problems += error.problems
            self._lost_file = True
            return
        for block in body.blocks:
            detail = "here variables get values (`name = value`); they are declared in the job file"
            self._problems.append(Problem("Block in a var file", detail, block.type_span))
        for name, attribute in body.attributes.items():
            if name in declared:
                self._take(found, declared[name], partial(self._written, attribute))
            elif strict:
                self._undeclared(name, declared, attribute.name_span)

    def _written(self, attribute: Attribute) -> Given:
        return Given(static_value(attribute.expr, self._context), attribute.expr.span)

    def _undeclared(self, name: str, declared: Mapping[str, Declaration], span: Span | None) -> None:
        detail = f"the job file does not declare {name!r}."
        self._problems.append(Problem("Undeclared variable", detail, span, nearest(name, declared)))

    def _check_rules(self, declaration: Declaration, final: Given) -> None:
        context = replace(self._context, variables={declaration.name: final.value}, locals={})
        for rule in declaration.rules:
            try:
                holds = convert(evaluate.value(rule.condition, context), BOOL)
                if holds.is_null:
                    raise Mismatch("true or false is needed, not null")
            except TooMuch:
                raise
            except JobfileProblems as error:
                self._problems += error.problems
            except Mismatch as error:
                self._problems.append(Problem("Not a condition", str(error), rule.condition.span))
            else:
                if not holds.raw:
                    detail = f"{rule.message} (the rule is in line {rule.span.first.line})"
                    self._problems.append(Problem(f"Value of {declaration.name!r} refused", detail, final.span))


def _type_of(value: Value) -> Type:
    return value.type if not value.is_null else ANY


def _is_own(node: Reference, name: str) -> bool:
    if node.root != "var" or not node.steps:
        return False
    step = node.steps[0]
    return isinstance(step, AttributeStep) and step.name == name


def _only(body: Body, attributes: tuple[str, ...], blocks: tuple[str, ...]) -> None:
    for name, attribute in body.attributes.items():
        if name not in attributes:
            known = (*attributes, *blocks)
            problem = Problem(
                "Unknown attribute", f"{name!r} is not known here.", attribute.name_span, nearest(name, known)
            )
            raise JobfileProblems([problem])
    for block in body.blocks:
        if block.type not in blocks:
            raise _problem("Unknown block", f"{block.type!r} is not known here.", block.type_span)


def _problem(summary: str, detail: str, span: Span) -> JobfileProblems:
    return JobfileProblems([Problem(summary, detail, span)])
