"""Short ways to ask for the value of an expression, or for what is wrong with it."""

from __future__ import annotations

from typing import Any

from fedsched.jobspec import evaluate
from fedsched.jobspec.context import Files
from fedsched.jobspec.functions.encoding import to_json
from fedsched.jobspec.load import Loaded, job_source
from fedsched.jobspec.problems import JobfileProblems, Problem
from fedsched.jobspec.values import Value


def load(expr: str, rest: str = "", files: Files | None = None, **given: Any) -> Loaded:
    return job_source(f'job "j" {{\n  x = {expr}\n}}\n{rest}', "job.hcl", files=files, entropy=bytes, **given)


def value(expr: str, rest: str = "", files: Files | None = None, **given: Any) -> Value:
    loaded = load(expr, rest, files, **given)
    return evaluate.value(loaded.job.body.attributes["x"].expr, loaded.context)


def in_json(expr: str, rest: str = "", files: Files | None = None, **given: Any) -> str:
    return to_json(value(expr, rest, files, **given))


def problems(expr: str, rest: str = "", files: Files | None = None, **given: Any) -> tuple[Problem, ...]:
    try:
        value(expr, rest, files, **given)
    except JobfileProblems as error:
        return error.problems
    raise AssertionError(f"{expr} was not refused")


def problem(expr: str, rest: str = "", files: Files | None = None, **given: Any) -> str:
    """The first thing that is wrong, in words."""
    return problems(expr, rest, files, **given)[0].message
