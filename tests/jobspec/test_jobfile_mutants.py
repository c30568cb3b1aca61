"""Whatever is done to a job file, the answer is a job or a list of problems, each of which can be shown."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.jobspec.jobfile import check
from fedsched.jobspec.limits import MAX_SOURCE_CHARS
from tests.jobspec.job_vectors import job_cases

FILES = [case.hcl for case in job_cases()]
SCRAPS = [
    "{",
    "}",
    "[",
    '"',
    "${",
    "%{",
    "=",
    "\n",
    "null",
    "[1]",
    "{}",
    "-1",
    '""',
    '"x"',
    "dynamic",
    "<<EOT\n",
    "var.x",
]


@st.composite
def mutants(draw: st.DrawFn) -> str:
    """A recorded file after a few accidents: lines dropped, doubled or swapped, values replaced, scraps put in."""
    lines = draw(st.sampled_from(FILES)).split("\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(["drop", "double", "swap", "value", "scrap"])):
            case "drop" if len(lines) > 1:
                del lines[at]
            case "double":
                lines.insert(at, lines[at])
            case "swap":
                other = draw(st.integers(0, len(lines) - 1))
                lines[at], lines[other] = lines[other], lines[at]
            case "value" if "=" in lines[at]:
                lines[at] = lines[at].partition("=")[0] + "= " + draw(st.sampled_from(SCRAPS))
            case _:
                cut = draw(st.integers(0, len(lines[at])))
                lines[at] = lines[at][:cut] + draw(st.sampled_from(SCRAPS)) + lines[at][cut:]
    return "\n".join(lines)


@settings(max_examples=200, deadline=None)
@given(mutants())
def test_a_mangled_file_is_read_or_explained(text: str) -> None:
    checked = check(text, "mangled.hcl")

    assert checked.job is not None or checked.problems
    for problem in (*checked.problems, *checked.warnings):
        assert problem.render()


def test_a_file_of_any_size_is_answered() -> None:
    (found,) = check("x" * (MAX_SOURCE_CHARS + 1)).problems

    assert found.summary == "Too large to evaluate"


def test_a_job_that_asks_for_too_much_is_refused_as_a_whole() -> None:
    text = 'job "j" {\n  meta {\n    a = [for i in range(1000) : [for j in range(1000) : "${i}${j}"]][0][0]\n  }\n}\n'

    (found,) = check(text).problems

    assert found.summary == "Too large to evaluate"
    assert found.span is not None
