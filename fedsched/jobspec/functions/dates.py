"""Functions of dates. There is none for the present: a job file gives the same job whenever it is read."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

from fedsched.jobspec import durations
from fedsched.jobspec.context import ArgumentFailed, FunctionFailed
from fedsched.jobspec.functions.registry import function
from fedsched.jobspec.types import STRING
from fedsched.jobspec.values import Value, string

_STAMP: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(?:(Z)|([+-])(\d\d):(\d\d))", re.ASCII
)
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November"),
    "December",
)
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_PIECE: Final = re.compile(r"([A-Za-z])\1*|'(?:[^']|'')*'|[^A-Za-z']+", re.DOTALL)


@function("formatdate", takes=(("format", STRING), ("time", STRING)))
def formatdate(format_: Value, time: Value) -> Value:
    try:
        moment = parse_stamp(time.text)
    except FunctionFailed as error:
        raise ArgumentFailed(1, str(error)) from None
    parts, at, layout = [], 0, format_.text
    while at < len(layout):
        match = _PIECE.match(layout, at)
        if match is None:
            raise ArgumentFailed(0, "a quote is not closed")
        parts.append(_piece(match[0], moment))
        at = match.end()
    return string("".join(parts))


@function("timeadd", takes=(("timestamp", STRING), ("duration", STRING)))
def timeadd(stamp: Value, duration: Value) -> Value:
    moment = parse_stamp(stamp.text)
    fraction = _STAMP.fullmatch(stamp.text)
    nanoseconds = int(((fraction[7] if fraction else None) or "0").ljust(9, "0"))
    try:
        total = durations.parse(duration.text) + nanoseconds
        moved = moment + timedelta(seconds=total // 1_000_000_000)
    except durations.NoDuration as error:
        raise FunctionFailed(str(error)) from None
    except OverflowError:
        raise FunctionFailed("the result lies outside the years 1 to 9999") from None
    return string(f"{_date(moved)}T{moved:%H:%M:%S}{_zone(moved, ':', 'Z')}")


def parse_stamp(text: str) -> datetime:
    """A time as RFC 3339 writes it, to the second."""
    match = _STAMP.fullmatch(text)
    if match is None:
        raise FunctionFailed(f"{text[:40]!r} is no time; write it like 2006-01-02T15:04:05Z")
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    try:
        zone = UTC if match[8] else timezone(_offset(match))
        return datetime(year, month, day, hour, minute, second, tzinfo=zone)
    except ValueError as error:
        raise FunctionFailed(f"{text[:40]!r} is no time: {error}") from None


def _offset(match: re.Match[str]) -> timedelta:
    if int(match[11]) > 59:
        raise ValueError("minute must be in 0..59")
    size = timedelta(hours=int(match[10]), minutes=int(match[11]))
    return -size if match[9] == "-" else size


def _piece(piece: str, moment: datetime) -> str:
    if piece[0] == "'":
        return piece[1:-1].replace("''", "'")
    if not piece[0].isascii() or not piece[0].isalpha():
        return piece
    hour = moment.hour % 12 or 12
    table = {
        "YYYY": f"{moment.year:04}",
        "YY": f"{moment.year % 100:02}",
        "MMMM": _MONTHS[moment.month - 1],
        "MMM": _MONTHS[moment.month - 1][:3],
        "MM": f"{moment.month:02}",
        "M": str(moment.month),
        "DD": f"{moment.day:02}",
        "D": str(moment.day),
        "EEEE": _DAYS[moment.weekday()],
        "EEE": _DAYS[moment.weekday()][:3],
        "hh": f"{moment.hour:02}",
        "h": str(moment.hour),
        "HH": f"{hour:02}",
        "H": str(hour),
        "AA": "AM" if moment.hour < 12 else "PM",
        "aa": "am" if moment.hour < 12 else "pm",
        "mm": f"{moment.minute:02}",
        "m": str(moment.minute),
        "ss": f"{moment.second:02}",
        "s": str(moment.second),
        "ZZZZZ": _zone(moment, ":", ""),
        "ZZZZ": _zone(moment, "", ""),
        "ZZZ": _zone(moment, "", "UTC"),
        "Z": _zone(moment, ":", "Z"),
    }
    if piece not in table:
        raise ArgumentFailed(0, f"{piece[:20]!r} stands for nothing; put plain text in single quotes")
    return table[piece]


def _zone(moment: datetime, separator: str, for_utc: str) -> str:
    offset = moment.utcoffset() or timedelta()
    if for_utc and not offset:
        return for_utc
    minutes = abs(offset) // timedelta(minutes=1)
    sign = "-" if offset < timedelta() else "+"
    return f"{sign}{minutes // 60:02}{separator}{minutes % 60:02}"


def _date(moment: datetime) -> str:
    return f"{moment.year:04}-{moment.month:02}-{moment.day:02}"
