"""The small languages inside a job: what is read, what is refused, and that those who run them agree."""

from __future__ import annotations

import pytest

from fedsched.model.text_checks import cron_problem, regexp_problem, semver_problem, time_zone_problem, version_problem
from fedsched.scheduler.patterns import pattern_problem
from fedsched.scheduler.versions import parse_constraint
from fedsched.server.leader.cron import BadCron, parse

GOOD_CRONS = [
    *("*/15 * * * *", "0 0 1 1 *", "@daily", "@HOURLY", "0 9 * * 1-5", "0 0 L * *", "0 0 * * 5L", "0 0 15W * *"),
    *("* * * * MON-FRI", "* * * * 7", "* * * * 1#2", "0 30 4 * * 1-5", "0 0 0 1 1 ? 2030", "0 0 1 1 ? 2030"),
    *("1,2,3-5/2 * * * *", "* * L-2 * *", "* * LW * *", "5/10 * * * *"),
]
BAD_CRONS = [
    ("every day", "missing field(s)"),
    ("@dayly", 'unknown word "@dayly"; known are @annually'),
    ("* * * * * * * *", "too many fields"),
    ("* * * * 8", "syntax error in day of week field: '8': outside 0-7"),
    ("60 * * * *", "syntax error in minute field: '60': outside 0-59"),
    ("5-1 * * * *", "'5-1': ends before it begins"),
    ("*/0 * * * *", "the step is no number above 0"),
    ("a * * * *", "syntax error in minute field: 'a'"),
    ("* * * * mon#9", "syntax error in day of week field"),
    ("1-2-3 * * * *", "'1-2-3'"),
    ("* " * 2000, "longer than 1024 characters"),
]
VERSIONS = [
    *(">= 20.04, < 24.10", "~> 1.4", "1.2.3", ">= 1.6.0-beta", "x", ">", "", "= 1", "1.2.3.4", "v1.2", ">=1.0,"),
    *("1.2-rc1+b3", "~>1", "!= 2", "== 2", "1.x", "1.2beta"),
]
PATTERNS = [
    "(",
    "^web[0-9]+$",
    "(?i)abc",
    r"\d+(?=x)",
    r"(a)\1",
    "[[:alpha:]]+",
    r"\pL\z",
    "a{1001}",
    "[",
    "*a",
    "\ud800",
]


def runs_as_cron(text: str) -> bool:
    try:
        parse(text)
    except BadCron:
        return False
    return True


@pytest.mark.parametrize("text", GOOD_CRONS)
def test_a_cron_line_is_read(text: str) -> None:
    assert cron_problem(text) is None
    assert runs_as_cron(text)


@pytest.mark.parametrize(("text", "problem"), BAD_CRONS)
def test_a_wrong_cron_line_is_explained(text: str, problem: str) -> None:
    assert problem in str(cron_problem(text))
    assert not runs_as_cron(text)


@pytest.mark.parametrize("text", VERSIONS)
def test_bounds_of_versions_are_judged_as_the_scheduler_will(text: str) -> None:
    assert (version_problem(text) is None) is (parse_constraint(text) is not None)
    assert (semver_problem(text) is None) is (parse_constraint(text, semver=True) is not None)


def test_wrong_bounds_are_named() -> None:
    assert version_problem(">= 1, later") == "Malformed constraint:  later"
    assert semver_problem("~> 1.4") == "Malformed constraint: ~> 1.4"
    assert version_problem("1," * 600) == "longer than 1024 characters"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_judged_as_the_scheduler_will(pattern: str) -> None:
    assert (regexp_problem(pattern) is None) is (pattern_problem(pattern) is None)


def test_a_wrong_pattern_is_explained() -> None:
    assert regexp_problem("(") == "error parsing regexp: missing closing ): `(`"
    assert regexp_problem("*a") == "error parsing regexp: no argument for repetition operator: *"
    assert regexp_problem("a" * 1025) == "longer than 1024 characters"
    assert regexp_problem("((a{100}){100}){100}") == "error parsing regexp: invalid repetition size: {100}"


@pytest.mark.parametrize("name", ["", "UTC", "Local", "Europe/Berlin"])
def test_a_time_zone_is_known(name: str) -> None:
    assert time_zone_problem(name) is None


@pytest.mark.parametrize(
    ("name", "problem"),
    [("Mars/Olympus", "unknown time zone"), ("../etc/passwd", "is not the name"), ("x" * 65, "is not the name")],
)
def test_no_time_zone_is_said(name: str, problem: str) -> None:
    assert problem in str(time_zone_problem(name))
