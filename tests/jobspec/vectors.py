"""Recorded expressions: what a job file's expressions gave elsewhere, and how to ask ours for the same."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from fedsched.jobspec import convert, evaluate
from fedsched.jobspec.load import Loaded, job_source
from fedsched.jobspec.problems import JobfileProblems, Problem

FIXTURES = Path(__file__).parents[2] / "fixtures" / "hcl"
Case = dict[str, Any]


@cache
def expressions() -> list[Case]:
    return list(json.loads((FIXTURES / "expressions.json").read_text()))


def expression(case_id: str) -> Case:
    return next(case for case in expressions() if case["id"] == case_id)


def file_for(case: Case, expr: str) -> str:
    """The job file around an expression: it starts in line 3, column 9."""
    text = f'job "v" {{\n  meta {{\n    v = {expr}\n  }}\n}}\n' + case.get("vars", "")
    if "vars" in case:
        text += "\n"
    return text + (f"locals {{\n{case['locals']}\n}}\n" if "locals" in case else "")


class MemoryFiles:
    """Files that exist only in a test."""

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files

    def read(self, path: str, directory: str, limit: int) -> bytes:
        found = self._files.get(path.removeprefix("./"))
        if found is None:
            raise FileNotFoundError("no such file")
        return found.encode()

    def exists(self, path: str, directory: str) -> bool:
        return path in self._files

    def under(self, path: str, directory: str, limit: int) -> list[str]:
        prefix = "" if path == "." else f"{path}/"
        return [name.removeprefix(prefix) for name in self._files if name.startswith(prefix)]

    def absolute(self, path: str) -> str:
        return f"/here/{path}"

    def home(self) -> str:
        return "/home/me"


def load(case: Case, expr: str) -> Loaded:
    var_files = list(case.get("var_files", {}).items())
    if "var_content" in case:
        var_files.append(("variables", case["var_content"]))
    return job_source(
        file_for(case, expr),
        "input.hcl",
        variables=case.get("cli_vars"),
        var_files=var_files,
        environ=case.get("env"),
        strict=bool(case.get("cli")),
        files=MemoryFiles(case.get("files", {})) if case.get("cli") else None,
    )


def as_text(case: Case) -> str:
    """What the expression gives as a text, like a value of `meta`."""
    loaded = load(case, case["expr"])
    found = loaded.job.body.blocks[0].body.attributes["v"].expr
    return convert.as_string(evaluate.value(found, loaded.context), found.start)


def as_json(case: Case) -> str:
    loaded = load(case, f"jsonencode({case['expr']}\n)")
    found = loaded.job.body.blocks[0].body.attributes["v"].expr
    return evaluate.value(found, loaded.context).text


def problems_of(case: Case) -> tuple[Problem, ...]:
    try:
        as_text(case)
    except JobfileProblems as error:
        return error.problems
    return ()


def place(case: Case, problem: Problem) -> tuple[int, int] | None:
    """Line and column of a problem, counted as the case's `error_pos` counts them."""
    if problem.span is None:
        return None
    first = problem.span.first
    if case["error_pos"]["in"] != "expr":
        return first.line, first.column
    return first.line - 2, first.column - (8 if first.line == 3 else 0)
