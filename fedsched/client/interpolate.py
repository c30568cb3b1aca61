"""`${...}` inside texts of a job: finding the names, and putting values in their place.

A reference is a name (`${NOMAD_PORT_http}`, `${env.HOME}`, `${attr.kernel.name}`) or a name with a key in quotes
(`${meta["my key"]}`). Anything else between the braces, such as a shell's `${x:-default}`, is no reference and stays as
it is. `$${` stands for a plain `${`; a job file has to say `$$${`, because it drops one of the signs itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from fedsched.model.errors import BadRequest

Lookup = Callable[[str], str | None]
"""The value of a name, None if there is none."""

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_./-]*"
_REFERENCE: Final = re.compile(
    r"(?P<literal>\$\$\{)"
    rf"|\$\{{\s*(?:(?P<table>[A-Za-z_.]+)\[\"(?P<key>[^\"\]]*)\"\]|(?P<name>{_NAME}))\s*\}}"
)
_BAD_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9_]")


class ReferenceCycle(BadRequest):
    """Values that need one another."""

    code = "reference_cycle"


def references(text: str) -> Iterator[str]:
    """The names that a text refers to, in the form `lookup` takes them."""
    for match in _REFERENCE.finditer(text):
        if not match["literal"]:
            yield _name(match)


def interpolate(text: str, lookup: Lookup) -> tuple[str, list[str]]:
    """The text with values in place of names, and the names that have none (they stay as written)."""
    if "${" not in text:
        return text, []
    missing: list[str] = []

    def replacement(match: re.Match[str]) -> str:
        if match["literal"]:
            return "${"
        value = lookup(_name(match))
        if value is None:
            missing.append(_name(match))
            return match[0]
        return value

    return _REFERENCE.sub(replacement, text), missing


def resolve_all(values: Mapping[str, str], lookup: Lookup, bytes_max: int) -> dict[str, str]:
    """Put values into texts that may refer to one another (as `env.NAME` or `NAME`), each after those it needs.

    A text that refers to its own name means the value that `lookup` has for it (`PATH = "${PATH}:/opt"`). Refuses a
    circle, and results beyond `bytes_max` in all: doubled values grow without bound.
    """
    done: dict[str, str] = {}
    size = 0
    for name in _in_order(values):

        def inner(wanted: str, name: str = name) -> str | None:
            own = wanted.removeprefix("env.")
            return done[own] if own in done and own != name else lookup(wanted)

        done[name], _ = interpolate(values[name], inner)
        size += len(done[name])
        if size > bytes_max:
            raise BadRequest(f"values grow beyond {bytes_max} bytes at {name!r}", hint="they refer to one another")
    return {name: done[name] for name in values}


def clean_name(name: str) -> str:
    """A name as an environment variable may have it."""
    clean = _BAD_CHARACTERS.sub("_", name)
    return f"_{clean[1:]}" if clean[:1].isdigit() else clean


def _name(match: re.Match[str]) -> str:
    return f"{match['table']}.{match['key']}" if match["table"] else match["name"]


def _in_order(values: Mapping[str, str]) -> Iterable[str]:
    """Names, each after the ones that its text needs. Without recursion: a chain may be as long as the table."""
    needs = {
        name: [own for wanted in references(text) if (own := wanted.removeprefix("env.")) in values and own != name]
        for name, text in values.items()
    }
    done: dict[str, None] = {}
    for start in values:
        way: dict[str, Iterator[str]] = {start: iter(needs[start])} if start not in done else {}
        while way:
            name = next(reversed(way))
            following = next((one for one in way[name] if one not in done), None)
            if following is None:
                done[name] = None
                del way[name]
            elif following in way:
                circle = [*list(way)[list(way).index(following) :], following]
                raise ReferenceCycle(
                    f"values refer to one another: {' -> '.join(circle)}", hint="give one a plain value"
                )
            else:
                way[following] = iter(needs[following])
    return done
