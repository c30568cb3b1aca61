"""`locals` blocks: named values that may use variables and one another, written in any order."""

from __future__ import annotations

from dataclasses import replace

from fedsched.jobspec import evaluate
from fedsched.jobspec.context import Context
from fedsched.jobspec.problems import JobfileProblems, Problem, TooMuch
from fedsched.jobspec.references import walk
from fedsched.jobspec.tree import Attribute, AttributeStep, Body, IndexStep, Literal, Reference, Template
from fedsched.jobspec.values import Value


def evaluate_locals(body: Body, context: Context, problems: list[Problem]) -> dict[str, Value]:
    """All locals of a file. One that cannot be had, or that needs itself, is reported and left out."""
    declared = _declared(body, problems)
    values: dict[str, Value] = {}
    growing = replace(context, locals=values)
    for attribute in _in_order(declared):
        try:
            values[attribute.name] = evaluate.value(attribute.expr, growing)
        except TooMuch:
            raise
        except JobfileProblems as error:
            problems += error.problems
            return values
    return values


def _declared(body: Body, problems: list[Problem]) -> dict[str, Attribute]:
    """By name; a later block has the last word."""
    found: dict[str, Attribute] = {}
    for block in body.named("locals"):
        problems += [Problem("Unexpected label", "`locals` takes none", label.span) for label in block.labels]
        only = "`locals` holds only `name = value`"
        problems += [Problem("Unexpected block", only, inner.type_span) for inner in block.body.blocks]
        found.update(block.body.attributes)
    return found


def _in_order(declared: dict[str, Attribute]) -> list[Attribute]:
    """Each after those it uses. What is left over because of a circle comes last, and fails where it closes it."""
    needs = {name: _needs(attribute) & declared.keys() for name, attribute in declared.items()}
    users: dict[str, list[str]] = {name: [] for name in declared}
    for name, needed in needs.items():
        for other in sorted(needed):
            users[other].append(name)
    missing = {name: len(needed) for name, needed in needs.items()}
    ready = [name for name in declared if missing[name] == 0]
    order: list[str] = []
    while ready:
        name = ready.pop()
        order.append(name)
        for user in users[name]:
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    done = set(order)
    return [declared[name] for name in [*order, *(name for name in declared if name not in done)]]


def _needs(attribute: Attribute) -> set[str]:
    found = set()
    for node in walk(attribute.expr):
        if isinstance(node, Reference) and node.root == "local" and node.steps:
            step = node.steps[0]
            if isinstance(step, AttributeStep):
                found.add(step.name)
            elif isinstance(step, IndexStep) and isinstance(step.key, Template):
                part = step.key.parts[0]
                if isinstance(part, Literal) and isinstance(part.value.raw, str):
                    found.add(part.value.raw)
    return found
