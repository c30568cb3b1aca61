"""How the functions of the language are declared."""

from __future__ import annotations

from collections.abc import Callable

from fedsched.jobspec.context import ArgumentFailed, Function, FunctionFailed, Parameter
from fedsched.jobspec.types import Type
from fedsched.jobspec.values import Value

FUNCTIONS: dict[str, Function] = {}
"""Every function by name; filled as the modules of this package are imported."""

_INT64 = (-(2**63), 2**63 - 1)

Run = Callable[..., Value]
Wanted = tuple[str, Type] | Parameter


def function(
    *names: str,
    takes: tuple[Wanted, ...] = (),
    rest: Wanted | None = None,
    weight: int = 0,
    context: bool = False,
    lazy: bool = False,
) -> Callable[[Run], Run]:
    """Declare a function under one or more names."""

    def declare(run: Run) -> Run:
        for name in names:
            parameters = tuple(_parameter(wanted) for wanted in takes)
            last = None if rest is None else _parameter(rest)
            FUNCTIONS[name] = Function(name, parameters, last, run, context, weight, lazy)
        return run

    return declare


def nullable(name: str, type_: Type) -> Parameter:
    return Parameter(name, type_, allows_null=True)


def whole(value: Value, *, argument: int | None = None) -> int:
    """A number as a machine integer."""
    found = value.number.to_int()
    if found is None or not _INT64[0] <= found <= _INT64[1]:
        text = f"a whole number is needed, not {value.number.text()[:40]}"
        raise FunctionFailed(text) if argument is None else ArgumentFailed(argument, text)
    return found


def _parameter(wanted: Wanted) -> Parameter:
    return wanted if isinstance(wanted, Parameter) else Parameter(*wanted)
