"""Every recorded wrong file is refused, and at the recorded line."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.jobspec.jobfile import Inputs, parse_tree, read_source
from fedsched.jobspec.problems import JobfileProblems
from tests.jobspec.job_vectors import error_cases

CASES = {case["id"]: case for case in error_cases()}
ON_PURPOSE = {"unknown-function"}
"""Says that sum is unknown; here it is known."""


def refused(case: dict[str, Any]) -> JobfileProblems:
    with pytest.raises(JobfileProblems) as caught:
        read(case)
    return caught.value


def read(case: dict[str, Any]) -> None:
    if {"cli_vars", "var_files", "env", "files"} & case.keys():
        inputs = Inputs(
            variables=case.get("cli_vars") or {},
            var_files=tuple((case.get("var_files") or {}).items()),
            environ=case.get("env") or {},
        )
        read_source(case["hcl"], "input.hcl", inputs)
    else:
        parse_tree(case["hcl"], case.get("variables", ""), filename="input.hcl")


@pytest.mark.parametrize("name", sorted(CASES.keys() - ON_PURPOSE))
def test_a_wrong_file_is_refused_at_the_recorded_line(name: str) -> None:
    case = CASES[name]

    first = refused(case).problems[0]

    if case["lines"]:
        assert first.span is not None
        assert first.span.first.line in case["lines"], str(first)
    assert first.summary


def test_all_recorded_mistakes_are_there() -> None:
    assert len(CASES) == 125
    assert CASES.keys() > ON_PURPOSE


def test_a_function_that_we_have_beside_the_recorded_ones_works() -> None:
    assert parse_tree(CASES["unknown-function"]["hcl"])["TaskGroups"][0]["Count"] == 3
