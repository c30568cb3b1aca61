"""Durations, times and sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.model import units
from fedsched.model.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("-0", 0),
        ("30s", 30 * 10**9),
        ("1h30m", 5400 * 10**9),
        (".5s", 5 * 10**8),
        ("1.5h", 5400 * 10**9),
        ("+10m", 600 * 10**9),
        ("-1m30s", -90 * 10**9),
        ("200ms", 2 * 10**8),
        ("1us1ns", 1001),
        ("3µs", 3000),
        ("0.1s", 10**8),
    ],
)
def test_go_durations_are_read_exactly(text: str, ns: int) -> None:
    assert units.parse_duration_ns(text) == ns
    assert units.parse_duration(text) == ns / 10**9


@pytest.mark.parametrize("text", ["", "5", "1d", "s", "1h 30m", "--1s", "1e3s", "9" * 30 + "h", "1s" * 40, "½s", "."])
def test_what_is_no_duration_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        units.parse_duration_ns(text)

    assert "duration" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0s"),
        (1, "1ns"),
        (1500, "1.5µs"),
        (2 * 10**8, "200ms"),
        (15 * 10**8, "1.5s"),
        (60 * 10**9, "1m0s"),
        (3600 * 10**9, "1h0m0s"),
        (-90 * 10**9, "-1m30s"),
        (86400 * 10**9 + 1, "24h0m0.000000001s"),
    ],
)
def test_durations_are_written_as_go_writes_them(ns: int, text: str) -> None:
    assert units.format_duration_ns(ns) == text


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_written_durations_read_back_the_same(ns: int) -> None:
    assert units.parse_duration_ns(units.format_duration_ns(ns)) == ns


@given(st.integers(-(10**9), 10**9))
def test_milliseconds_survive_the_way_through_float_seconds(ms: int) -> None:
    assert units.ns_from_seconds(units.seconds_from_ns(ms * 10**6)) == ms * 10**6


@pytest.mark.parametrize("seconds", [1e12, -1e12, float("inf"), float("nan")])
def test_seconds_beyond_64_bits_are_refused(seconds: float) -> None:
    with pytest.raises(BadRequest, match="out of range"):
        units.ns_from_seconds(seconds)


@given(st.integers(-(2**62), 2**62).filter(bool))
def test_written_times_read_back_the_same(ns: int) -> None:
    assert units.parse_time(units.format_time(ns)) == ns


def test_times_have_as_many_digits_as_needed() -> None:
    assert units.format_time(1794801693681160735) == "2026-11-16T04:01:33.681160735Z"
    assert units.format_time(1794801693 * 10**9) == "2026-11-16T04:01:33Z"
    assert units.parse_time("2026-11-16T05:01:33.5+01:00") == 1794801693 * 10**9 + 5 * 10**8
    assert units.parse_time("2026-11-15T23:01:33-05:00") == 1794801693 * 10**9
    assert units.parse_time("0001-01-01T00:00:00Z") == 0


@pytest.mark.parametrize(
    "text",
    ["", "today", "2026-13-01T00:00:00Z", "2026-01-01", "9999-01-01T00:00:00Z", "2026-01-01T00:00:00" + "0" * 60],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="time"):
        units.parse_time(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("10MB", 10_000_000), ("1KiB", 1024), ("1.5k", 1536), ("2 GiB", 2 * 1024**3), ("7b", 7)],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "1XB", "1" * 70, "9" * 40, "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="size"):
        units.parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (300 * 1024**2, "300 MiB"), (2**60, "1024 PiB")],
)
def test_sizes_are_written_with_the_largest_fitting_unit(size: int, text: str) -> None:
    assert units.format_size(size) == text
