"""Every recorded expression gives what was recorded, or is refused at the recorded place."""

from __future__ import annotations

import pytest

from fedsched.jobspec.problems import JobfileProblems
from tests.jobspec.vectors import Case, as_json, as_text, expression, expressions, place, problems_of

ON_PURPOSE = {
    "runtime.16": '"${foo}}}"',
    "runtime.18": '"${ foo }}"',
    "runtime.50": '"${foo} }"',
    "fn.regex.02": "[]",
    "fn.setsubtract.04": "[]",
    "fn.to.02": "5",
    "fn.to.03": "true",
    "fn.to.04": "[1]",
    "fn.to.06": "{}",
    "fn.unknown.04": "true",
    "fn.unknown.06": "3",
    "fn.unknown.08": "true",
    "fn.unknown.09": "true",
    "fn.unknown.10": "true",
}
"""Where ours differs: the JSON it gives instead."""


def _named(cases: list[Case]) -> list[object]:
    return [pytest.param(case, id=case["id"]) for case in cases if case["id"] not in ON_PURPOSE]


@pytest.mark.parametrize("case", _named([c for c in expressions() if "result_json" in c]))
def test_the_expression_gives_the_recorded_json(case: Case) -> None:
    assert as_json(case) == case["result_json"]


@pytest.mark.parametrize("case", _named([c for c in expressions() if "result_string" in c]))
def test_the_expression_gives_the_recorded_text(case: Case) -> None:
    assert as_text(case) == case["result_string"]


@pytest.mark.parametrize("case", _named([c for c in expressions() if "string_error" in c]))
def test_the_expression_cannot_be_a_text(case: Case) -> None:
    assert problems_of(case)


@pytest.mark.parametrize("case", _named([c for c in expressions() if "json_error" in c]))
def test_the_expression_cannot_be_json(case: Case) -> None:
    with pytest.raises(JobfileProblems, match="jsonencode"):
        as_json(case)


@pytest.mark.parametrize("case", _named([c for c in expressions() if "error" in c]))
def test_the_expression_is_refused_where_recorded(case: Case) -> None:
    problems = problems_of(case)

    assert problems
    if "error_pos" in case:
        expected = (case["error_pos"]["line"], case["error_pos"]["column"])
        allowed = {expected, *_alternative_places(case)}
        assert place(case, problems[0]) in allowed, problems


def _alternative_places(case: Case) -> set[tuple[int, int]]:
    """Where problems were reported in no fixed order, the file's other places count as well."""
    found = set()
    for text in case.get("error_alternatives", ()):
        line, column = text.split(":")[1].split("-")[0].split(",")
        if case["error_pos"]["in"] == "file":
            found.add((int(line), int(column)))
    return found


@pytest.mark.parametrize(("case_id", "result"), ON_PURPOSE.items())
def test_ours_differs_on_purpose(case_id: str, result: str) -> None:
    assert as_json(expression(case_id)) == result
