"""When a periodic job is due: cron lines, and the next moment that one of them names.

A line has five fields (minute, hour, day of month, month, day of week), with a year behind them if there are six, and
with seconds before them as well if there are seven. Six fields whose last one can be no year have their seconds first.
Fields take `*`, `?`, numbers, names, ranges, steps and lists; days of the month also `L`, `L-2`, `LW` and `15W`, days
of the week `5L` (the last Friday) and `5#2` (the second). Where both kinds of day are restricted, either will do.

Lines are in local time. A local time that the clocks skip is not launched; one that they show twice is launched the
first time. So every local time has one launch or none, whatever the clocks do.
"""

from __future__ import annotations

from bisect import bisect_left
from calendar import monthrange, timegm
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from fedsched.model.errors import BadRequest

NS: Final = 1_000_000_000
MAX_TEXT: Final = 1024
YEARS: Final = (1970, 2099)
MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = {
    name: at
    for at, name in enumerate(("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1)
}
_DAYS: Final = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_WILD: Final = ("*", "?")
SATURDAY: Final = 6


class BadCron(BadRequest):
    """A cron line that cannot be read."""


@dataclass(frozen=True, slots=True)
class Days:
    """Which days of a month are meant."""

    of_month: frozenset[int] = frozenset()
    before_last: frozenset[int] = frozenset()
    """So many days before the last one of the month."""
    weekday_near: frozenset[int] = frozenset()
    """The working day nearest to this one, within the month; 0 is for the last working day."""
    of_week: frozenset[int] = frozenset()
    """Sunday is 0."""
    last_of_week: frozenset[int] = frozenset()
    nth_of_week: frozenset[tuple[int, int]] = frozenset()
    any_of_month: bool = False
    any_of_week: bool = False

    def within(self, year: int, month: int) -> list[int]:
        """The days that match, ascending."""
        first, length = monthrange(year, month)
        all_days = range(1, length + 1)
        if self.any_of_month and self.any_of_week:
            return list(all_days)
        first_of_week = (first + 1) % 7
        found: set[int] = set()
        if not self.any_of_month:
            found |= {day for day in self.of_month if day <= length}
            found |= {length - back for back in self.before_last if back < length}
            found |= {_working_day(day, first_of_week, length) for day in self.weekday_near if day <= length}
        if not self.any_of_week:
            for day in all_days:
                of_week = (first_of_week + day - 1) % 7
                is_last = of_week in self.last_of_week and day + 7 > length
                if of_week in self.of_week or is_last or (of_week, (day + 6) // 7) in self.nth_of_week:
                    found.add(day)
        return sorted(found)


@dataclass(frozen=True, slots=True)
class Cron:
    """One cron line, understood."""

    text: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: Days
    months: tuple[int, ...]
    years: tuple[int, ...]

    def next_local(self, after: datetime) -> datetime | None:
        """The first moment after this one, both by the clock on the wall."""
        start = after.replace(microsecond=0) + timedelta(seconds=1)
        for year in self.years[bisect_left(self.years, start.year) :]:
            for month in self.months:
                if (year, month) < (start.year, start.month):
                    continue
                for day in self.days.within(year, month):
                    date = (year, month, day)
                    today = (start.year, start.month, start.day)
                    if date < today:
                        continue
                    time = self._first_time(start.hour, start.minute, start.second) if date == today else self._dawn
                    if time is not None:
                        return datetime(*date, *time)
        return None

    @property
    def _dawn(self) -> tuple[int, int, int]:
        return self.hours[0], self.minutes[0], self.seconds[0]

    def _first_time(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        """The first time of day that matches and is not before this one."""
        if hour in self.hours:
            if minute in self.minutes:
                at = bisect_left(self.seconds, second)
                if at < len(self.seconds):
                    return hour, minute, self.seconds[at]
            at = bisect_left(self.minutes, minute + 1)
            if at < len(self.minutes):
                return hour, self.minutes[at], self.seconds[0]
        at = bisect_left(self.hours, hour + 1)
        return (self.hours[at], self.minutes[0], self.seconds[0]) if at < len(self.hours) else None


def next_after(cron: Cron, after_ns: int, zone: tzinfo) -> int | None:
    """When the line is due next after this moment, in Unix nanoseconds; None for never again."""
    after_s = after_ns // NS
    local = datetime.fromtimestamp(after_s, zone).replace(tzinfo=None, fold=0)
    while (candidate := cron.next_local(local)) is not None:
        moment = timegm(candidate.replace(tzinfo=zone).astimezone(UTC).timetuple())
        exists = datetime.fromtimestamp(moment, zone).replace(tzinfo=None, fold=0) == candidate
        if exists and moment > after_s:
            return moment * NS
        local = candidate
    return None


def earliest_after(crons: Iterable[Cron], after_ns: int, zone: tzinfo) -> int | None:
    """When the first of several lines is due next."""
    due = [moment for cron in crons if (moment := next_after(cron, after_ns, zone)) is not None]
    return min(due, default=None)


def latest_until(crons: Iterable[Cron], after_ns: int, until_ns: int, zone: tzinfo) -> int | None:
    """The last moment after the one and not after the other at which any line was due; None if there was none.

    Halves the span instead of walking it: a line that fires every second may not have been looked at for weeks.
    """
    lines = list(crons)
    found = earliest_after(lines, after_ns, zone)
    if found is None or found > until_ns:
        return None
    low, high = found // NS, until_ns // NS
    while low < high:
        middle = (low + high + 1) // 2
        due = earliest_after(lines, (middle - 1) * NS, zone)
        if due is not None and due <= until_ns:
            low = due // NS
        else:
            high = middle - 1
    return low * NS


@lru_cache(maxsize=256)
def load_zone(name: str) -> tzinfo:
    """The time zone of this name; that of the machine is never meant."""
    if name in ("", "UTC", "Local"):
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise BadRequest(f"unknown time zone {name[:64]!r}", hint="use a name such as Europe/Vienna, or UTC") from error


@lru_cache(maxsize=4096)
def parse(text: str) -> Cron:
    """Read a cron line; `BadCron` says which field is wrong."""
    if len(text) > MAX_TEXT:
        raise BadCron(f"a cron line of {len(text)} characters", hint=f"{MAX_TEXT} are enough")
    words = text.lower().split()
    if len(words) == 1 and words[0] in MACROS:
        words = MACROS[words[0]].split()
    if not 5 <= len(words) <= 7:
        hint = f"five fields, six with a year, seven with seconds and a year, or one of {', '.join(sorted(MACROS))}"
        raise BadCron(f"cron line {text!r} has {len(words)} fields", hint=hint)
    second, minute, hour, day, month, weekday, year = _seven(words)
    return Cron(
        text=text,
        seconds=_numbers(text, "second", second, 0, 59),
        minutes=_numbers(text, "minute", minute, 0, 59),
        hours=_numbers(text, "hour", hour, 0, 23),
        days=_days(text, day, weekday),
        months=_numbers(text, "month", month, 1, 12, _MONTHS),
        years=_numbers(text, "year", year, *YEARS),
    )


def _seven(words: list[str]) -> list[str]:
    if len(words) == 5:
        return ["0", *words, "*"]
    if len(words) == 6:
        return ["0", *words] if _may_be_year(words[5]) else [*words, "*"]
    return words


def _may_be_year(word: str) -> bool:
    head = word.partition(",")[0].partition("/")[0].partition("-")[0]
    return head in _WILD or (head.isdecimal() and len(head) == 4)


def _numbers(
    text: str, field: str, word: str, low: int, high: int, names: dict[str, int] | None = None
) -> tuple[int, ...]:
    found: set[int] = set()
    for part in word.split(","):
        found |= _part(text, field, part, low, high, names or {})
    return tuple(sorted(found))


def _part(text: str, field: str, part: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    """`*`, `7`, `1-5`, each perhaps with a step; a single number with a step goes on to the end of the field."""
    span, slash, step_word = part.partition("/")
    step = 1
    if slash:
        step = int(step_word) if step_word.isdecimal() and len(step_word) <= 4 else 0
        if step < 1:
            raise _wrong(text, field, part, "a step is a number above 0")
    if span in _WILD:
        return set(range(low, high + 1, step))
    first_word, dash, last_word = span.partition("-")
    first = _number(text, field, first_word, names)
    last = _number(text, field, last_word, names) if dash else (high if slash else first)
    if not (low <= first <= high and low <= last <= high):
        raise _wrong(text, field, part, f"{low} to {high} are possible")
    if first > last:
        raise _wrong(text, field, part, "a range begins with its smaller end")
    return set(range(first, last + 1, step))


def _number(text: str, field: str, word: str, names: dict[str, int]) -> int:
    if word.isdecimal() and len(word) <= 4:
        return int(word)
    known = names.get(word[:3]) if word.isalpha() else None
    if known is None:
        raise _wrong(text, field, word, "a number is expected" + (f", or one of {', '.join(names)}" if names else ""))
    return known


def _days(text: str, day: str, weekday: str) -> Days:
    of_month, before_last, near = _days_of_month(text, day)
    of_week, last, nth = _days_of_week(text, weekday)
    return Days(
        of_month=of_month,
        before_last=before_last,
        weekday_near=near,
        of_week=of_week,
        last_of_week=last,
        nth_of_week=nth,
        any_of_month=day in _WILD,
        any_of_week=weekday in _WILD,
    )


def _days_of_month(text: str, word: str) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
    plain: set[int] = set()
    before_last: set[int] = set()
    near: set[int] = set()
    for part in word.split(","):
        if part == "lw":
            near.add(0)
        elif part == "l":
            before_last.add(0)
        elif part.startswith("l-") and part[2:].isdecimal() and len(part) <= 4 and int(part[2:]) <= 30:
            before_last.add(int(part[2:]))
        elif part.endswith("w") and part[:-1].isdecimal():
            near |= _part(text, "day of month", part[:-1], 1, 31, {})
        else:
            plain |= _part(text, "day of month", part, 1, 31, {})
    return frozenset(plain), frozenset(before_last), frozenset(near)


def _days_of_week(text: str, word: str) -> tuple[frozenset[int], frozenset[int], frozenset[tuple[int, int]]]:
    plain: set[int] = set()
    last: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for part in word.split(","):
        day, mark, number = part.partition("#")
        if mark:
            if number not in {"1", "2", "3", "4", "5"}:
                raise _wrong(text, "day of week", part, "behind # comes a number from 1 to 5")
            nth |= {(one % 7, int(number)) for one in _part(text, "day of week", day, 0, 7, _DAYS)}
        elif part.endswith("l") and (part[:-1].isdecimal() or part[:-1] in _DAYS):
            last |= {one % 7 for one in _part(text, "day of week", part[:-1], 0, 7, _DAYS)}
        else:
            plain |= {one % 7 for one in _part(text, "day of week", part, 0, 7, _DAYS)}
    return frozenset(plain), frozenset(last), frozenset(nth)


def _working_day(day: int, first_of_week: int, length: int) -> int:
    """The day from Monday to Friday that is nearest, without leaving the month."""
    last = day == 0
    day = length if last else day
    of_week = (first_of_week + day - 1) % 7
    if of_week == SATURDAY:
        return day - 1 if day > 1 else day + 2
    if of_week == 0:
        return day - 2 if last or day == length else day + 1
    return day


def _wrong(text: str, field: str, part: str, hint: str) -> BadCron:
    return BadCron(f"cron line {text!r}: {part!r} is no {field}", hint=hint)
