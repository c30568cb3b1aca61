"""Durations, times and sizes: what people write, what records hold, what Nomad's JSON carries.

Inside, a duration is float seconds (`_s`) and a point in time is integer nanoseconds since 1970 (`_ns`): a float cannot
hold today's date to the nanosecond, and a recorded time must come back as it went in. Texts follow Go's forms
("1h30m0s", RFC 3339), because that is what job files and clients of the HTTP API use. Every parser is bounded: it
refuses long texts and values beyond 64 bits instead of working on them.
"""

from __future__ import annotations

import functools
import re
from datetime import UTC, datetime, timedelta

from fedsched.model.errors import BadRequest

NS_PER_S = 1_000_000_000
MAX_NS = 2**63 - 1
"""Go keeps durations and times in a signed 64-bit number (292 years); so does every client we talk to."""

MAX_TEXT = 64
"""No honest duration, time or size is longer; a longer one is not even looked at."""

_UNIT_NS = {"h": 3600 * NS_PER_S, "m": 60 * NS_PER_S, "s": NS_PER_S, "ms": 10**6, "us": 10**3, "µs": 10**3, "ns": 1}
_DURATION = r"([0-9]+\.?[0-9]*|\.[0-9]+)(h|ms|m|s|us|µs|ns)"
_TIME = r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9})\d*)?(?:[Zz]|([+-])(\d\d):(\d\d))"
_SIZE = r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)"
_SIZE_UNITS = {
    "": 1,
    "b": 1,
    **{u: 1000**n for n, u in enumerate(("kb", "mb", "gb", "tb", "pb"), 1)},
    **{u: 1024**n for n, u in enumerate(("kib", "mib", "gib", "tib", "pib"), 1)},
    **{u: 1024**n for n, u in enumerate(("k", "m", "g", "t", "p"), 1)},
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def ns_from_seconds(seconds: float) -> int:
    """Give whole nanoseconds, rounded to the nearest; refuse what 64 bits cannot hold."""
    if not fits_64_bits(seconds):
        raise BadRequest(f"{seconds!r} seconds are out of range", hint="durations reach 292 years either way")
    return max(-MAX_NS, min(MAX_NS, round(seconds * NS_PER_S)))


def fits_64_bits(seconds: float) -> bool:
    """Whether the API can carry this many seconds.

    The largest 64-bit number is no float: its neighbour above stands for it and is rounded back down.
    """
    return abs(seconds) * NS_PER_S <= MAX_NS + 1


def seconds_from_ns(ns: int) -> float:
    return ns / NS_PER_S


def parse_duration_ns(text: str) -> int:
    """Read a Go duration ("1h30m", "-1.5s", "0") as nanoseconds."""
    if len(text) > MAX_TEXT:
        raise BadRequest(f"duration of {len(text)} characters is too long", hint=f"at most {MAX_TEXT} are read")
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if body == "0":
        return 0
    total, at = 0, 0
    while match := _pattern(_DURATION).match(body, at):
        total += _scaled(match[1], _UNIT_NS[match[2]])
        at = match.end()
    if at != len(body) or at == 0:
        raise BadRequest(f"invalid duration {text!r}", hint='write a number and a unit, such as "30s", "5m" or "1h30m"')
    if total > MAX_NS:
        raise BadRequest(f"duration {text!r} is out of range", hint="the longest is about 292 years")
    return sign * total


def parse_duration(text: str) -> float:
    """Read a Go duration as seconds."""
    return parse_duration_ns(text) / NS_PER_S


def format_duration_ns(ns: int) -> str:
    """Write nanoseconds as Go prints them: "1h0m0s", "1.5s", "200ms", "0s"."""
    if ns == 0:
        return "0s"
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    for unit, size in (("ns", 1), ("µs", 10**3), ("ms", 10**6)):
        if ns < size * 1000:
            return f"{sign}{_trim(ns, size)}{unit}"
    minutes, rest = divmod(ns, 60 * NS_PER_S)
    hours, minutes = divmod(minutes, 60)
    head = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{sign}{head}{_trim(rest, NS_PER_S)}s"


def format_duration(seconds: float) -> str:
    return format_duration_ns(ns_from_seconds(seconds))


def parse_time(text: str) -> int:
    """Read an RFC 3339 time as nanoseconds since 1970; the year-1 zero time of Go is 0."""
    match = _pattern(_TIME).fullmatch(text) if len(text) <= MAX_TEXT else None
    if match is None:
        raise BadRequest(f"invalid time {text[:MAX_TEXT]!r}", hint='write it as "2026-01-31T12:00:00Z"')
    if match[1] == "0001":
        return 0
    try:
        moment = datetime(*(int(match[i]) for i in range(1, 7)), tzinfo=UTC)  # type: ignore[misc, arg-type]
        offset = timedelta(hours=int(match[9] or 0), minutes=int(match[10] or 0))
        since = moment - _EPOCH - (offset if match[8] != "-" else -offset)
    except (ValueError, OverflowError) as err:
        raise BadRequest(f"invalid time {text!r}: {err}", hint='write it as "2026-01-31T12:00:00Z"') from err
    ns = (since.days * 86400 + since.seconds) * NS_PER_S + int((match[7] or "").ljust(9, "0"))
    if not -MAX_NS <= ns <= MAX_NS:
        raise BadRequest(f"time {text!r} is out of range", hint="years 1678 to 2262 can be held")
    return ns


def format_time(ns: int) -> str:
    """Write nanoseconds since 1970 as RFC 3339 in UTC, with as many fraction digits as needed."""
    whole, fraction = divmod(ns, NS_PER_S)
    moment = _EPOCH + timedelta(seconds=whole)
    tail = f".{fraction:09d}".rstrip("0") if fraction else ""
    return f"{moment:%Y-%m-%dT%H:%M:%S}{tail}Z"


def parse_size(text: str) -> int:
    """Read a size such as "10MB" (1000s), "512MiB" or "512M" (1024s), or plain bytes."""
    match = _pattern(_SIZE).fullmatch(text.strip()) if len(text) <= MAX_TEXT else None
    factor = _SIZE_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise BadRequest(
            f"invalid size {text[:MAX_TEXT]!r}", hint='write a number and a unit, such as "300MiB" or "2GB"'
        )
    size = _scaled(match[1], factor)
    if size > MAX_NS:
        raise BadRequest(f"size {text!r} is out of range", hint="at most 2**63 - 1 bytes")
    return size


def format_size(size: int) -> str:
    """Write bytes with the largest binary unit that keeps the number at least 1: "1.5 GiB"."""
    if abs(size) < 1024:
        return f"{size} B"
    power = min((abs(size).bit_length() - 1) // 10, 5)
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")[power]
    return f"{size / 1024**power:.1f} {unit}".replace(".0 ", " ")


def _trim(ns: int, unit: int) -> str:
    """Give `ns / unit` in decimal without trailing zeros, exactly."""
    whole, part = divmod(ns, unit)
    digits = len(str(unit)) - 1
    return f"{whole}.{part:0{digits}d}".rstrip("0") if part else str(whole)


def _scaled(number: str, unit: int) -> int:
    """Give a decimal number of units in whole ones, exactly; what is left of one is dropped."""
    whole, _, part = number.partition(".")
    scale: int = 10 ** len(part)
    return int(whole or 0) * unit + int(part or 0) * unit // scale


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    """Compile on first use: a command that reads no duration should not pay for it at start."""
    return re.compile(text, re.ASCII)
