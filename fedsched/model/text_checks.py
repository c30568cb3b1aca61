"""Whether the small languages inside a job can be read: cron lines, patterns, version bounds, names of time zones.

Only the grammar is checked here, in time linear in the text, so that a front end without a scheduler can say what is
wrong and where. The code that later runs a pattern or a version may be stricter: whoever has it at hand passes it in
(`TextChecks`), and then there is one opinion.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Final, NamedTuple

MAX_TEXT: Final = 1024
"""Longer ones are refused unread; honest ones have a few dozen characters."""

MAX_PATTERN_BYTES: Final = 1 << 20
"""Memory of one compiled pattern."""

Check = Callable[[str], str | None]
"""Gives what is wrong, or None."""

_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_MACROS: Final = frozenset({"@annually", "@yearly", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    words: dict[str, int]


_SECOND: Final = _Field("second", 0, 59, {})
_YEAR: Final = _Field("year", 1970, 2099, {})
_FIVE: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, {word: i for i, word in enumerate(_MONTHS, 1)}),
    _Field("day of week", 0, 7, {word: i for i, word in enumerate(_DAYS)}),
)


def cron_problem(text: str) -> str | None:
    """Check a cron line: five fields, a sixth for seconds before or a year behind them, or a word such as @daily."""
    if len(text) > MAX_TEXT:
        return f"longer than {MAX_TEXT} characters"
    words = text.split()
    if len(words) == 1 and words[0].startswith("@"):
        known = words[0].lower() in _MACROS
        return None if known else f'unknown word "{words[0]}"; known are {", ".join(sorted(_MACROS))}'
    if len(words) < 5:
        return "missing field(s)"
    if len(words) > 7:
        return "too many fields: five are needed, seven at most"
    has_year = len(words) == 7 or (len(words) == 6 and _field_problem(words[5], _YEAR) is None)
    has_seconds = len(words) == 5 + has_year + 1
    fields = (*((_SECOND,) if has_seconds else ()), *_FIVE, *((_YEAR,) if has_year else ()))
    return _fields_problem(words, fields)


def _fields_problem(words: list[str], fields: tuple[_Field, ...]) -> str | None:
    return next(
        (wrong for word, field in zip(words, fields, strict=True) if (wrong := _field_problem(word, field))), None
    )


def _field_problem(text: str, field: _Field) -> str | None:
    for part in text.split(","):
        wrong = _part_problem(part.lower(), field)
        if wrong:
            return f"syntax error in {field.name} field: {wrong}"
    return None


def _part_problem(part: str, field: _Field) -> str | None:
    span, slash, step = part.partition("/")
    if slash and (not step.isdecimal() or int(step[:4]) < 1):
        return f"'{part}': the step is no number above 0"
    if span in ("*", "?"):
        return None
    if field.name == "day of month" and span in ("l", "lw", "l-1", "l-2", "l-3"):
        return None
    ends = [_number(word, field) for word in _ends_of(span, field)]
    if len(ends) > 2 or any(end is None for end in ends):
        return f"'{part}'"
    numbers = [end for end in ends if end is not None]
    if any(not field.low <= number <= field.high for number in numbers):
        return f"'{part}': outside {field.low}-{field.high}"
    if len(numbers) == 2 and numbers[0] > numbers[1]:
        return f"'{part}': ends before it begins"
    return None


def _ends_of(span: str, field: _Field) -> list[str]:
    """Split a range; the marks for "last", "nth" and "nearest weekday" belong to a single day."""
    if field.name == "day of week":
        span = span.removesuffix("l") if span[:-1].isdecimal() else span
        day, mark, nth = span.partition("#")
        if mark:
            return [day if nth in {"1", "2", "3", "4", "5"} else "?"]
    if field.name == "day of month":
        span = span.removesuffix("w")
    return span.split("-")


def _number(word: str, field: _Field) -> int | None:
    if word.isdecimal() and len(word) <= 4:
        return int(word)
    return field.words.get(word[:3]) if word.isalpha() else None


def time_zone_problem(name: str) -> str | None:
    """Check the name of a time zone against the machine's list; where it has none, only the form of it."""
    if name in ("", "UTC", "Local"):
        return None
    if len(name) > 64 or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*", name):
        return f'"{name[:64]}" is not the name of a time zone'
    return None if name in _zones() or not _zones() else f'unknown time zone "{name}"'


@functools.cache
def _zones() -> frozenset[str]:
    import zoneinfo  # costs a walk through the machine's database: only for those who name a zone

    return frozenset(zoneinfo.available_timezones())


def regexp_problem(pattern: str) -> str | None:
    """Ask RE2, which will run it, whether it can read a pattern; it refuses what would take too much memory."""
    if len(pattern) > MAX_TEXT:
        return f"longer than {MAX_TEXT} characters"
    import re2  # most jobs have no patterns

    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PATTERN_BYTES
    try:
        re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        return f"error parsing regexp: {_in_nomads_words(pattern, error)}"
    return None


def _in_nomads_words(pattern: str, error: Exception) -> str:
    """The commonest mistake as Nomad's users know it; the others as RE2 has them."""
    reason = error.args[0] if error.args else str(error)
    words = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
    return f"missing closing ): `{pattern}`" if words.startswith("missing )") else words


_DOTTED: Final = r"[0-9A-Za-z~-]+(\.[0-9A-Za-z~-]+)*"
_NUMBERS: Final = r"v?[0-9]+(\.[0-9]+)*"
_BOUND: Final = re.compile(
    rf"\s*(=|!=|>|<|>=|<=|~>|)\s*{_NUMBERS}(-{_DOTTED}|[A-Za-z~]{_DOTTED}|[A-Za-z~])?(\+{_DOTTED})?\s*"
)
_SEMVER: Final = re.compile(rf"\s*(=|!=|>|<|>=|<=|)\s*{_NUMBERS}(-{_DOTTED})?(\+{_DOTTED})?\s*")


def version_problem(text: str) -> str | None:
    """Check bounds such as ">= 1.2, < 2" or "~> 1.4.0"."""
    return _bounds_problem(text, _BOUND)


def semver_problem(text: str) -> str | None:
    """Check the same for semantic versions, which know no `~>`."""
    return _bounds_problem(text, _SEMVER)


def _bounds_problem(text: str, form: re.Pattern[str]) -> str | None:
    if len(text) > MAX_TEXT:
        return f"longer than {MAX_TEXT} characters"
    wrong = next((bound for bound in text.split(",") if not form.fullmatch(bound)), None)
    return None if wrong is None else f"Malformed constraint: {wrong}"


class TextChecks(NamedTuple):
    """Who is asked about each small language."""

    cron: Check = cron_problem
    time_zone: Check = time_zone_problem
    regexp: Check = regexp_problem
    version: Check = version_problem
    semver: Check = semver_problem


GRAMMAR: Final = TextChecks()
