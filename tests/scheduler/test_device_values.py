"""Typed values of devices: units, and what can be compared with what."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from fedsched.scheduler.device_values import Value, parse_value, reported_value, values_hold


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("11", Value(Fraction(11))),
        ("-2.5", Value(Fraction(-5, 2))),
        ("11 GiB", Value(Fraction(11 * 2**30), "byte")),
        ("11GiB", Value(Fraction(11 * 2**30), "byte")),
        ("1kB", Value(Fraction(1000), "byte")),
        ("1KB", Value(Fraction(1000), "byte")),
        ("2 MiB/s", Value(Fraction(2 * 2**20), "byte rate")),
        ("1.5 GHz", Value(Fraction(15 * 10**8), "hertz")),
        ("250 mW", Value(Fraction(1, 4), "watt")),
        ("1 MW", Value(Fraction(10**6), "watt")),
        ("true", Value(True)),
        ("F", Value(False)),
        ("", Value("")),
        ("titan", Value("titan")),
        ("fast GHz", Value("fast GHz")),
        ("3 parsecs", Value("3 parsecs")),
        ("inf", Value("inf")),
    ],
)
def test_written_text_gets_its_type_by_its_form(text: str, value: Value) -> None:
    assert parse_value(text) == value


@pytest.mark.parametrize(
    ("reported", "value"),
    [
        ({"Int": 11264, "Unit": "MiB"}, Value(Fraction(11264 * 2**20), "byte")),
        ({"Float": 1.5, "Unit": "GHz"}, Value(Fraction(15 * 10**8), "hertz")),
        ({"Int": 0, "Unit": ""}, Value(Fraction(0))),
        ({"Int": 3, "Unit": "parsec"}, Value(Fraction(3))),
        ({"Bool": False}, Value(False)),
        ({"String": "ampere"}, Value("ampere")),
        ({}, None),
        ("ampere", Value("ampere")),
        (True, Value(True)),
        (8, Value(Fraction(8))),
        (0.5, Value(Fraction(1, 2))),
        (float("nan"), None),
        (None, None),
        ([1], None),
    ],
)
def test_what_a_plugin_reported_is_read_with_its_unit(reported: Any, value: Value | None) -> None:
    assert reported_value(reported) == value


@pytest.mark.parametrize(
    ("left", "operand", "right", "expected"),
    [
        ("11 GiB", ">", "11264 MB", True),
        ("11 GiB", "=", "11264 MiB", True),
        ("1000 mW", "is", "1 W", True),
        ("1000 mW", "!=", "1 W", False),
        ("500 MHz", "<", "1 GHz", True),
        ("1 GHz", "<=", "1000 MHz", True),
        ("1 GHz", ">=", "1001 MHz", False),
        ("1 GHz", ">=", "1000 MHz", True),
        ("1 GHz", "<", "1000 MHz", False),
        ("1 GHz", ">", "1000 MHz", False),
        ("abd", ">", "abc", True),
        ("abc", ">=", "abc", True),
        ("abc", "<", "abc", False),
        ("2", ">=", "1.5", True),
        ("1 GiB", "<", "5 GHz", False),
        ("1 GiB", "!=", "5 GHz", False),
        ("1 GiB", "=", "1073741824", False),
        ("1 GiB", "<", "1 GiB/s", False),
        ("abc", "<", "abd", True),
        ("abc", "=", "3", False),
        ("true", "=", "1", False),
        ("true", "=", "T", True),
        ("true", "!=", "false", True),
        ("true", ">", "false", False),
        ("abc", "!=", "true", False),
    ],
)
def test_values_compare_only_with_their_like(left: str, operand: str, right: str, expected: bool) -> None:
    assert values_hold(operand, parse_value(left), parse_value(right)) is expected


def test_an_absent_value_is_unequal_to_any_and_fails_all_else() -> None:
    some = parse_value("1")

    assert values_hold("!=", None, some)
    assert values_hold("!=", some, None)
    assert not values_hold("!=", None, None)
    assert not values_hold("=", None, None)
    assert not values_hold("<", None, some)
    assert not values_hold("<", some, None)
    assert not values_hold("=", some, None)
    assert values_hold("is_set", some, None)
    assert not values_hold("is_set", None, None)
    assert values_hold("is_not_set", None, None)


def test_text_operators_work_on_texts_alone() -> None:
    text, number = Value("cuda,opencl"), Value(Fraction(3))

    assert values_hold("set_contains", text, Value("cuda"))
    assert values_hold("set_contains_any", text, Value("vulkan,cuda"))
    assert values_hold("regexp", text, Value("^cu"))
    assert not values_hold("regexp", number, Value("3"))
    assert not values_hold("resembles", text, text)


def test_versions_may_be_texts_or_whole_numbers() -> None:
    assert values_hold("version", Value("450.80.02"), Value(">= 440"))
    assert values_hold("version", Value(Fraction(450)), Value(">= 440"))
    assert values_hold("semver", Value("1.3.0-beta1"), Value(">= 0.6.1"))
    assert not values_hold("version", Value(Fraction(1, 2)), Value(">= 0"))
    assert not values_hold("version", Value(True), Value(">= 0"))
