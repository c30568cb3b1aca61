"""Version constraints: `>= 1.0, < 1.4`, in the two readings that job files know.

`version` is lenient about the form and careful with pre-releases: one satisfies a range only if the range itself names
a pre-release of the same numbers. `semver` orders pre-releases as Semantic Versioning 2 does and knows no `~>`. Build
metadata never counts. Texts and numbers are bounded; what does not parse satisfies nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from fedsched.model.patterns import own_pattern

MAX_TEXT: Final = 512
MAX_NUMBER: Final = 2**63 - 1

_TAIL: Final = r"(?:\.[0-9A-Za-z\-~]+)*"
_NUMBERS: Final = r"v?([0-9]+(?:\.[0-9]+)*)"
_NUMERIC_PRE: Final = r"-([0-9]+[0-9A-Za-z\-~]*" + _TAIL + ")"
_NAMED_PRE: Final = r"([A-Za-z\-~]+[0-9A-Za-z\-~]*" + _TAIL + ")"
_BUILD: Final = r"(?:\+[0-9A-Za-z\-~]+" + _TAIL + ")?"
_LENIENT = own_pattern(_NUMBERS + "(?:" + _NUMERIC_PRE + "|-?" + _NAMED_PRE + ")?" + _BUILD)
_STRICT = own_pattern(_NUMBERS + "(?:" + _NUMERIC_PRE + "|-" + _NAMED_PRE + ")?" + _BUILD)
_OPERATORS: Final = ("!=", ">=", "<=", "~>", "=", ">", "<")


class Version(NamedTuple):
    """A parsed version."""

    numbers: tuple[int, ...]
    """At least three; missing ones are 0."""
    written: int
    """How many numbers were written: `~>` depends on it."""
    pre: str
    """The pre-release, empty for a release."""


class Term(NamedTuple):
    """One comparison of a constraint."""

    operator: str
    version: Version


@lru_cache(maxsize=4096)
def parse_version(text: str, *, strict: bool = False) -> Version | None:
    """Read a version; None if it is none. `strict` wants a dash before a pre-release."""
    if len(text) > MAX_TEXT or not text.isascii():
        return None
    found = (_STRICT if strict else _LENIENT).fullmatch(text)
    if found is None:
        return None
    numbers = [int(part) for part in found.group(1).split(".")]
    if max(numbers) > MAX_NUMBER:
        return None
    written = len(numbers)
    numbers += [0] * (3 - written)
    return Version(tuple(numbers), written, found.group(2) or found.group(3) or "")


@lru_cache(maxsize=1024)
def parse_constraint(text: str, *, semver: bool = False) -> tuple[Term, ...] | None:
    """Read a comma-separated list of comparisons; None if any of them is malformed."""
    if len(text) > MAX_TEXT:
        return None
    terms = []
    for part in text.split(","):
        term = _term(part.strip(), semver)
        if term is None:
            return None
        terms.append(term)
    return tuple(terms)


def satisfies(version: str, constraint: str, *, semver: bool = False) -> bool:
    """Whether the version meets every comparison of the constraint."""
    terms = parse_constraint(constraint, semver=semver)
    seen = parse_version(version, strict=semver)
    if terms is None or seen is None:
        return False
    return all(_meets_semver(seen, term) if semver else _meets(seen, term) for term in terms)


def compare(left: Version, right: Version) -> int:
    """Give -1, 0 or 1; a pre-release comes before its release."""
    width = max(len(left.numbers), len(right.numbers))
    mine, other = _padded(left.numbers, width), _padded(right.numbers, width)
    if mine != other:
        return -1 if mine < other else 1
    if left.pre == right.pre:
        return 0
    if not left.pre or not right.pre:
        return -1 if left.pre else 1
    return _compare_pre(left.pre.split("."), right.pre.split("."))


def _term(text: str, semver: bool) -> Term | None:
    operator = next((name for name in _OPERATORS if text.startswith(name)), "")
    if semver and operator == "~>":
        return None
    version = parse_version(text.removeprefix(operator).strip(), strict=semver)
    return Term(operator or "=", version) if version is not None else None


def _meets_semver(version: Version, term: Term) -> bool:
    return _ordered(term.operator, compare(version, term.version))


def _meets(version: Version, term: Term) -> bool:
    order = compare(version, term.version)
    if term.operator in ("=", "!="):
        return _ordered(term.operator, order)
    if not _may_compare_pre(version, term.version):
        return False
    if term.operator == "~>":
        return order >= 0 and _same_but_last(version, term.version)
    return _ordered(term.operator, order)


def _ordered(operator: str, order: int) -> bool:
    match operator:
        case "=":
            return order == 0
        case "!=":
            return order != 0
        case ">":
            return order > 0
        case ">=":
            return order >= 0
        case "<":
            return order < 0
        case _:
            return order <= 0


def _may_compare_pre(version: Version, wanted: Version) -> bool:
    """A pre-release is only compared with a pre-release of the same numbers."""
    if not version.pre:
        return True
    return bool(wanted.pre) and version.numbers == wanted.numbers


def _same_but_last(version: Version, wanted: Version) -> bool:
    """`~>` lets the last written number grow and holds the ones before it."""
    if wanted.pre and not version.pre:
        return False
    if len(wanted.numbers) > len(version.numbers):
        return False
    held = wanted.written - 1  # that the last one did not shrink follows from the order
    return version.numbers[:held] == wanted.numbers[:held]


def _compare_pre(left: list[str], right: list[str]) -> int:
    for mine, other in zip(left, right, strict=False):
        if mine == other:
            continue
        if mine.isdigit() and other.isdigit():
            if int(mine) != int(other):
                return -1 if int(mine) < int(other) else 1
            continue
        if mine.isdigit() != other.isdigit():
            return -1 if mine.isdigit() else 1
        return -1 if mine < other else 1
    return (len(left) > len(right)) - (len(left) < len(right))


def _padded(numbers: tuple[int, ...], width: int) -> tuple[int, ...]:
    return numbers + (0,) * (width - len(numbers))
