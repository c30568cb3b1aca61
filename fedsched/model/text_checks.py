"""Whether the small languages inside a job can be read: cron lines, patterns, version bounds, names of time zones.

Asked of the very code that will run them (`cron`, `patterns`, `versions`), which is imported when a job has such a
thing at all: commands that only pass jobs on must not pay for it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

FIELDS_MIN: Final = 5
MAX_SHOWN: Final = 200
"""Characters of a wrong text that are repeated to whoever wrote it."""

Check = Callable[[str], str | None]
"""Gives what is wrong, or None."""


TemplateCheck = Callable[[str, str, str], tuple[str, str] | None]
"""Of a template's text and its two delimiters: what is wrong and what would be right, or None."""
ConfigCheck = Callable[[str, Mapping[str, Any]], Sequence[str]]
"""Of a driver's name and a task's settings for it: all that is wrong."""


def cron_problem(text: str) -> str | None:
    """Ask the parser that will launch by it."""
    from fedsched.model.cron import BadCron, parse  # few jobs are periodic

    try:
        parse(text)
    except BadCron as wrong:
        if len(text.split()) < FIELDS_MIN and not text.lstrip().startswith("@"):
            return "missing field(s)"  # as Nomad's users know it
        return f"{wrong.message}; {wrong.hint}" if wrong.hint else wrong.message
    return None


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
    """Ask RE2, which will run it, whether it can read a pattern."""
    from fedsched.model.patterns import pattern_problem  # most jobs have no patterns

    wrong = pattern_problem(pattern)
    if wrong is None:
        return None
    # the commonest mistake as Nomad's users know it; the others as RE2 has them
    words = f"missing closing ): `{pattern}`" if wrong.startswith("missing )") else wrong
    return f"error parsing regexp: {words}"


def version_problem(text: str) -> str | None:
    """Check bounds such as ">= 1.2, < 2" or "~> 1.4.0"."""
    return _bounds_problem(text, semver=False)


def semver_problem(text: str) -> str | None:
    """Check the same for semantic versions, which know no `~>`."""
    return _bounds_problem(text, semver=True)


def _bounds_problem(text: str, *, semver: bool) -> str | None:
    from fedsched.model.versions import MAX_TEXT as MAX_BOUNDS
    from fedsched.model.versions import parse_constraint  # which brings RE2 along

    if len(text) > MAX_BOUNDS:
        return f"longer than {MAX_BOUNDS} characters"
    if parse_constraint(text, semver=semver) is not None:
        return None
    wrong = next((bound for bound in text.split(",") if parse_constraint(bound, semver=semver) is None), text)
    return f"Malformed constraint: {wrong[:MAX_SHOWN]}"


class TextChecks(NamedTuple):
    """Who is asked about each small language. Templates and settings of drivers are judged by others than the model."""

    cron: Check = cron_problem
    time_zone: Check = time_zone_problem
    regexp: Check = regexp_problem
    version: Check = version_problem
    semver: Check = semver_problem
    template: TemplateCheck = lambda text, left, right: None
    config: ConfigCheck = lambda driver, config: ()


GRAMMAR: Final = TextChecks()
