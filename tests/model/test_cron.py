"""When cron lines are due, also where clocks are put forward and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.model.cron import BadCron, earliest_after, latest_until, load_zone, next_after, parse
from fedsched.model.errors import BadRequest

NS = 1_000_000_000
NEW_YORK = ZoneInfo("America/New_York")


def at(text: str, zone: tzinfo = UTC, fold: int = 0) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold).timestamp()) * NS


def due(line: str, after: str, zone: tzinfo = UTC) -> str | None:
    found = next_after(parse(line), at(after, zone), zone)
    return None if found is None else datetime.fromtimestamp(found // NS, zone).replace(tzinfo=None).isoformat(" ")


def dues(line: str, after: str, count: int, zone: tzinfo = UTC) -> list[str]:
    moment: int | None = at(after, zone)
    found = []
    for _ in range(count):
        assert moment is not None
        moment = next_after(parse(line), moment, zone)
        found.append("" if moment is None else datetime.fromtimestamp(moment // NS, zone).strftime("%d %H:%M:%S %z"))
    return found


@pytest.mark.parametrize(
    ("line", "after", "wanted"),
    [
        ("*/15 * * * *", "2026-11-18 04:16:18", "2026-11-18 04:30:00"),
        ("0 0 * * *", "2026-12-31 00:00:00", "2027-01-01 00:00:00"),
        ("5 4 1 * *", "2026-11-18 00:00:00", "2026-12-01 04:05:00"),
        ("0 22 * * 1-5", "2026-11-20 22:00:00", "2026-11-23 22:00:00"),
        ("0 0 29 2 *", "2026-11-18 00:00:00", "2028-02-29 00:00:00"),
        ("10-50/20 3 * * *", "2026-11-18 03:10:00", "2026-11-18 03:30:00"),
        ("5/20 * * * *", "2026-11-18 03:06:00", "2026-11-18 03:25:00"),
        ("0 0 * jan,jul mon", "2026-11-18 00:00:00", "2027-01-04 00:00:00"),
        ("0 0 * * 7", "2026-11-18 00:00:00", "2026-11-22 00:00:00"),
        ("0 0 * * SUN", "2026-11-18 00:00:00", "2026-11-22 00:00:00"),
        ("0 0 ? * friday", "2026-11-18 00:00:00", "2026-11-20 00:00:00"),
    ],
)
def test_five_fields_are_minute_hour_day_month_and_day_of_week(line: str, after: str, wanted: str) -> None:
    assert due(line, after) == wanted


def test_a_sixth_field_is_the_year() -> None:
    assert due("0 12 1 1 * 2030", "2026-11-18 00:00:00") == "2030-01-01 12:00:00"
    assert due("0 12 1 1 * 2025", "2026-11-18 00:00:00") is None
    assert due("*/15 * * * * *", "2026-11-18 04:16:18") == "2026-11-18 04:30:00"  # every quarter of an hour


def test_a_sixth_field_that_can_be_no_year_means_seconds_first() -> None:
    assert due("30 0 12 * * mon", "2026-11-18 00:00:00") == "2026-11-23 12:00:30"


def test_seven_fields_have_seconds_first_and_a_year_last() -> None:
    assert due("*/10 * * * * * *", "2026-11-18 04:16:18") == "2026-11-18 04:16:20"
    assert due("5 0 0 1 1 * 2027-2030", "2028-06-01 00:00:00") == "2029-01-01 00:00:05"


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("@yearly", "2027-01-01 00:00:00"),
        ("@annually", "2027-01-01 00:00:00"),
        ("@monthly", "2026-12-01 00:00:00"),
        ("@weekly", "2026-11-22 00:00:00"),
        ("@daily", "2026-11-19 00:00:00"),
        ("@midnight", "2026-11-19 00:00:00"),
        ("@hourly", "2026-11-18 05:00:00"),
    ],
)
def test_words_stand_for_lines(word: str, wanted: str) -> None:
    assert due(word, "2026-11-18 04:16:18") == wanted


def test_either_kind_of_day_will_do_when_both_are_restricted() -> None:
    assert dues("0 0 13 * 5", "2026-11-12 00:00:00", 3) == [
        "13 00:00:00 +0000",
        "20 00:00:00 +0000",
        "27 00:00:00 +0000",
    ]


@pytest.mark.parametrize(
    ("line", "after", "wanted"),
    [
        ("0 0 L * *", "2027-02-01 00:00:00", "2027-02-28 00:00:00"),
        ("0 0 L-2 * *", "2027-02-01 00:00:00", "2027-02-26 00:00:00"),
        ("0 0 L-28 * *", "2027-02-01 00:00:00", "2027-03-03 00:00:00"),  # February is too short for that
        ("0 0 L-27 * *", "2027-01-31 00:00:00", "2027-02-01 00:00:00"),
        ("0 0 LW * *", "2027-02-01 00:00:00", "2027-02-26 00:00:00"),
        ("0 0 15W * *", "2026-11-01 00:00:00", "2026-11-16 00:00:00"),  # a Sunday: the Monday after
        ("0 0 1W * *", "2026-07-31 00:00:00", "2026-08-03 00:00:00"),  # a Saturday, not out of the month
        ("0 0 31W * *", "2027-01-01 00:00:00", "2027-01-29 00:00:00"),  # a Sunday at the end: the Friday before
        ("0 0 14W * *", "2026-11-01 00:00:00", "2026-11-13 00:00:00"),
        ("0 0 * * 5L", "2026-11-01 00:00:00", "2026-11-27 00:00:00"),
        ("0 0 * * fri#2", "2026-11-01 00:00:00", "2026-11-13 00:00:00"),
        ("0 0 * * 1#5", "2026-11-01 00:00:00", "2026-11-30 00:00:00"),
    ],
)
def test_days_can_be_counted_from_the_end_by_week_or_to_the_nearest_working_day(
    line: str, after: str, wanted: str
) -> None:
    assert due(line, after) == wanted


@pytest.mark.parametrize(
    "line",
    [
        "* * * *",
        "* * * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "*/x * * * *",
        "5-1 * * * *",
        "a * * * *",
        "* * * foo *",
        "* * * * 1#6",
        "* * L-31 * *",
        "@never",
        "1," * 600 + "1 * * * *",
        "* * * * * 1969",
        "* * 99999W * *",
    ],
)
def test_a_line_that_cannot_be_read_is_refused_with_a_hint(line: str) -> None:
    with pytest.raises(BadCron) as refused:
        parse(line)

    assert refused.value.hint


def test_a_day_that_never_comes_is_never_due() -> None:
    assert due("0 0 30 2 *", "2026-11-18 00:00:00") is None


def test_the_moment_itself_is_not_after_itself() -> None:
    assert due("0 * * * *", "2026-11-18 05:00:00") == "2026-11-18 06:00:00"
    assert next_after(parse("0 * * * *"), at("2026-11-18 04:59:59") + 999_999_999, UTC) == at("2026-11-18 05:00:00")


def test_a_local_time_that_the_clocks_skip_is_not_launched() -> None:
    # 14 March 2027: 02:00 becomes 03:00
    assert dues("30 2 * * *", "2027-03-13 00:00:00", 2, NEW_YORK) == ["13 02:30:00 -0500", "15 02:30:00 -0400"]
    assert dues("0 * * * *", "2027-03-14 00:30:00", 2, NEW_YORK) == ["14 01:00:00 -0500", "14 03:00:00 -0400"]


def test_a_local_time_that_the_clocks_show_twice_is_launched_the_first_time() -> None:
    # 7 November 2027: 02:00 becomes 01:00 again
    assert dues("30 1 * * *", "2027-11-07 00:00:00", 2, NEW_YORK) == ["07 01:30:00 -0400", "08 01:30:00 -0500"]
    assert dues("0 * * * *", "2027-11-07 00:30:00", 2, NEW_YORK) == ["07 01:00:00 -0400", "07 02:00:00 -0500"]


def test_asked_within_the_repeated_hour_the_answer_is_after_it() -> None:
    second_time = at("2027-11-07 01:10:00", NEW_YORK, fold=1)

    assert next_after(parse("*/15 * * * *"), second_time, NEW_YORK) == at("2027-11-07 02:00:00", NEW_YORK)


def test_of_several_lines_the_earliest_counts() -> None:
    lines = [parse("0 12 * * *"), parse("30 11 * * *"), parse("0 0 30 2 *")]

    assert earliest_after(lines, at("2026-11-18 00:00:00"), UTC) == at("2026-11-18 11:30:00")
    assert earliest_after([parse("0 0 30 2 *")], at("2026-11-18 00:00:00"), UTC) is None
    assert earliest_after([], 0, UTC) is None


def test_the_latest_of_many_missed_moments_is_found_without_a_walk() -> None:
    every_second = [parse("* * * * * * *")]
    since, until = at("2026-01-01 00:00:00"), at("2026-11-18 04:16:18")

    assert latest_until(every_second, since, until, UTC) == until
    assert latest_until([parse("0 0 * * *")], since, until, UTC) == at("2026-11-18 00:00:00")
    assert latest_until([parse("0 0 * * *")], at("2026-11-18 00:00:00"), until, UTC) is None


def test_zones_are_found_by_name_and_unknown_ones_refused() -> None:
    assert load_zone("") is UTC
    assert load_zone("UTC") is UTC
    assert load_zone("Europe/Vienna").utcoffset(datetime(2026, 7, 1)) == timedelta(hours=2)
    for name in ("Nowhere/Atall", "../../etc/passwd", "x" * 300):
        with pytest.raises(BadRequest):
            load_zone(name)


FIELDS = st.tuples(
    st.sampled_from(["*", "0", "*/15", "7,30", "10-40/10"]),
    st.sampled_from(["*", "2", "1-3", "*/6", "0,12"]),
    st.sampled_from(["*", "1", "7-14", "L", "15W", "31"]),
    st.sampled_from(["*", "3", "11", "mar,nov", "*/2"]),
    st.sampled_from(["*", "0", "1-5", "sun", "5L", "2#1"]),
)
STARTS = st.one_of(
    st.integers(at("2026-01-01 00:00:00") // NS, at("2028-12-01 00:00:00") // NS),
    st.integers(at("2027-03-14 05:00:00") // NS, at("2027-03-14 09:00:00") // NS),
    st.integers(at("2027-11-07 04:00:00") // NS, at("2027-11-07 08:00:00") // NS),
)


def walked(fields: tuple[str, ...], start_s: int, minutes: int, zone: tzinfo) -> list[int]:
    """Look at every minute by the clock: the slow truth."""
    found = []
    first = (start_s // 60 + 1) * 60
    days = {}
    cron = parse(" ".join(fields))
    for moment in range(first, first + 60 * minutes, 60):
        local = datetime.fromtimestamp(moment, zone)
        month = (local.year, local.month)
        if month not in days:
            days[month] = set(cron.days.within(*month))
        hits = (
            local.second == 0,
            local.minute in cron.minutes,
            local.hour in cron.hours,
            local.month in cron.months,
            local.day in days[month],
        )
        earlier = [moment - back for back in range(1800, 3 * 3600 + 1, 1800)]
        is_repeat = (
            any(
                datetime.fromtimestamp(one, zone).replace(tzinfo=None, fold=0) == local.replace(tzinfo=None, fold=0)
                for one in earlier
            )
            if all(hits)
            else False
        )
        if all(hits) and not is_repeat:
            found.append(moment)
    return found


@given(FIELDS, STARTS, st.sampled_from(["UTC", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]))
@settings(max_examples=120)
def test_launches_are_those_that_a_walk_over_every_minute_finds(
    fields: tuple[str, ...], start_s: int, zone_name: str
) -> None:
    zone = load_zone(zone_name)
    cron = parse(" ".join(fields))
    minutes = 2 * 24 * 60
    end_s = (start_s // 60 + 1) * 60 + 60 * (minutes - 1)

    found = []
    moment = next_after(cron, start_s * NS, zone)
    while moment is not None and moment // NS <= end_s:
        found.append(moment // NS)
        moment = next_after(cron, moment, zone)

    assert found == walked(fields, start_s, minutes, zone)
