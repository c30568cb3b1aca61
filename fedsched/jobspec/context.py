"""What an expression can see: variables, locals, the names of loops around it, functions, and what it may touch.

Files, chance and the budget are handed in: evaluation itself reads nothing from the machine it runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from fedsched.jobspec.limits import Budget
from fedsched.jobspec.problems import JobfileProblems, Problem
from fedsched.jobspec.source import Span
from fedsched.jobspec.types import Type
from fedsched.jobspec.values import Value, make_object


class Files(Protocol):
    """The file functions' view of a machine. Paths are as the job file wrote them; errors are OSError."""

    def read(self, path: str, directory: str, limit: int) -> bytes:
        """At most `limit` bytes; a larger file is an OSError."""
        ...

    def exists(self, path: str, directory: str) -> bool: ...

    def under(self, path: str, directory: str, limit: int) -> list[str]:
        """Every file below a directory, as paths relative to it with slashes; none if there is no such directory."""
        ...

    def absolute(self, path: str) -> str: ...

    def home(self) -> str: ...


class FunctionFailed(Exception):
    """A function cannot give a result; the text says why."""


class ArgumentFailed(FunctionFailed):
    """One argument is unsuitable."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: Type
    allows_null: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """One function of the language. Arguments are converted to the parameters' types before `run` sees them."""

    name: str
    parameters: tuple[Parameter, ...]
    rest: Parameter | None
    """Any number of further arguments."""
    run: Callable[..., Value]
    wants_context: bool = False
    weight: int = 0
    """How much more than a glance at its arguments it costs; 0 for a glance."""
    is_lazy: bool = False
    """`run` gets the call itself and the context: it decides what is evaluated at all."""


@dataclass(frozen=True)
class Context:
    """What expressions see. Contexts made from one another share one budget."""

    variables: Mapping[str, Value] = field(default_factory=dict)
    locals: Mapping[str, Value] = field(default_factory=dict)
    functions: Mapping[str, Function] = field(default_factory=dict)
    allow_files: bool = False
    directory: str = "."
    files: Files | None = None
    entropy: Callable[[int], bytes] | None = None
    """So many random bytes, for uuidv4 and bcrypt; without it they refuse."""
    names: Mapping[str, Value] = field(default_factory=dict)
    """Loop variables and dynamic blocks' iterators."""
    budget: Budget = field(default_factory=Budget)

    def with_names(self, names: Mapping[str, Value]) -> Context:
        """The same with further names, which hide older ones."""
        return Context(
            self.variables,
            self.locals,
            self.functions,
            self.allow_files,
            self.directory,
            self.files,
            self.entropy,
            {**self.names, **names},
            self.budget,
        )

    def lookup(self, root: str) -> Value | None:
        """The value of a name, or None if nothing is known by it before run time."""
        found = self.names.get(root)
        if found is not None:
            return found
        if root == "var":
            return self._var
        if root == "local":
            self.budget.produce(len(self.locals), None)
            return make_object(self.locals)
        return None

    def member(self, root: str, name: str) -> Value | None:
        """`var.name` or `local.name`, if there is such a one, without making an object of all the others."""
        if root in self.names:
            return None
        return self.variables.get(name) if root == "var" else self.locals.get(name) if root == "local" else None

    @cached_property
    def _var(self) -> Value:
        return make_object(self.variables)


def refuse(summary: str, detail: str, span: Span, suggestion: str = "") -> JobfileProblems:
    """One problem, ready to be raised."""
    return JobfileProblems([Problem(summary, detail, span, suggestion)])
