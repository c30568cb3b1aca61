"""The small languages inside a job: what is read, what is refused, and how that is said."""

from __future__ import annotations

import pytest

from fedsched.model.cron import BadCron, parse
from fedsched.model.text_checks import cron_problem, regexp_problem, semver_problem, time_zone_problem, version_problem

GOOD_CRONS = [
    *("*/15 * * * *", "0 0 1 1 *", "@daily", "@HOURLY", "0 9 * * 1-5", "0 0 L * *", "0 0 * * 5L", "0 0 15W * *"),
    *("* * * * MON-FRI", "* * * * 7", "* * * * 1#2", "0 30 4 * * 1-5", "0 0 0 1 1 ? 2030", "0 0 1 1 ? 2030"),
    *("1,2,3-5/2 * * * *", "* * L-2 * *", "* * LW * *", "5/10 * * * *"),
]
BAD_CRONS = [
    ("every day", "missing field(s)"),
    ("@dayly", "one of @annually"),
    ("* * * * * * * *", "has 8 fields"),
    ("* * * * 8", "'8' is no day of week; 0 to 7 are possible"),
    ("60 * * * *", "'60' is no minute; 0 to 59 are possible"),
    ("5-1 * * * *", "'5-1' is no minute; a range begins with its smaller end"),
    ("*/0 * * * *", "a step is a number above 0"),
    ("a * * * *", "'a' is no minute"),
    ("* * * * mon#9", "behind # comes a number from 1 to 5"),
    ("1-2-3 * * * *", "is no minute"),
    ("* " * 2000, "4000 characters"),
]
VERSIONS = [
    (">= 20.04, < 24.10", True, True),
    ("1.2.3", True, True),
    (">= 1.6.0-beta", True, True),
    ("~> 1.4", True, False),
    ("x", False, False),
    (">", False, False),
    (">=1.0,", False, False),
    ("== 2", False, False),
    ("1.x", False, False),
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


@pytest.mark.parametrize(("text", "is_good", "is_good_semver"), VERSIONS)
def test_bounds_of_versions_are_judged(text: str, is_good: bool, is_good_semver: bool) -> None:
    assert (version_problem(text) is None, semver_problem(text) is None) == (is_good, is_good_semver)


def test_wrong_bounds_are_named() -> None:
    assert version_problem(">= 1, later") == "Malformed constraint:  later"
    assert semver_problem("~> 1.4") == "Malformed constraint: ~> 1.4"
    assert "characters" in str(version_problem("1," * 600))


def test_a_wrong_pattern_is_explained() -> None:
    assert regexp_problem("(") == "error parsing regexp: missing closing ): `(`"
    assert regexp_problem("*a") == "error parsing regexp: no argument for repetition operator: *"
    assert "at most 4096" in str(regexp_problem("a" * 4097))
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
