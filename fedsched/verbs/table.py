"""The list of all verbs, kept as names of modules so that a command imports only its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final, NamedTuple

from fedsched.verbs.flags import nearest
from fedsched.verbs.verb import Verb

MODULES: Final[Mapping[str, str]] = {
    "job": "fedsched.verbs.job",
    "eval": "fedsched.verbs.evaluation",
    "server": "fedsched.verbs.server",
    "operator": "fedsched.verbs.operator",
    "agent-info": "fedsched.verbs.about",
    "version": "fedsched.verbs.about",
}
"""First word -> the module that declares its verbs."""

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "run": ("job", "run"),
    "stop": ("job", "stop"),
    "status": ("job", "status"),
    "inspect": ("job", "inspect"),
    "eval-status": ("eval", "status"),
    "server-members": ("server", "members"),
}
"""Old flat spellings that scripts still use."""


class Group(NamedTuple):
    """Words that are the beginning of several verbs, and those verbs."""

    words: tuple[str, ...]
    verbs: list[Verb]


class Unknown(NamedTuple):
    """Words that mean nothing, and what they may have been meant to be."""

    words: tuple[str, ...]
    suggestion: str


def find(words: Sequence[str], modules: Mapping[str, str] = MODULES) -> tuple[Verb | Group | Unknown, list[str]]:
    """Give what the first words name, and the words after it."""
    rest = list(words)
    first = rest[0]
    if first in ALIASES:
        rest[:1] = ALIASES[first]
        first = rest[0]
    if first not in modules:
        close = nearest(first, sorted({*modules, *ALIASES}))
        return Unknown((first,), close or ""), rest[1:]
    verbs = verbs_of(first, modules)
    named = [word for word in rest if not word.startswith("-")]
    for verb in sorted(verbs, key=lambda one: -len(one.words)):
        if tuple(rest[: len(verb.words)]) == verb.words:
            return verb, rest[len(verb.words) :]
    return _group_or_unknown(named, verbs, rest)


def verbs_of(first: str, modules: Mapping[str, str] = MODULES) -> list[Verb]:
    """Give the verbs that begin with a word."""
    declared: list[Verb] = import_module(modules[first]).VERBS.all
    return [verb for verb in declared if verb.words[0] == first]


def all_verbs(modules: Mapping[str, str] = MODULES) -> list[Verb]:
    """Give everything there is, by name; imports every verb module."""
    return sorted((verb for first in modules for verb in verbs_of(first, modules)), key=lambda verb: verb.words)


def _group_or_unknown(named: list[str], verbs: list[Verb], rest: list[str]) -> tuple[Group | Unknown, list[str]]:
    known = 0
    inside = verbs
    for word in named:
        narrower = [verb for verb in inside if len(verb.words) > known and verb.words[known] == word]
        if not narrower:
            options = sorted({verb.words[known] for verb in inside if len(verb.words) > known})
            close = nearest(word, options)
            return Unknown(tuple(named[: known + 1]), " ".join([*named[:known], close]) if close else ""), rest
        inside, known = narrower, known + 1
    return Group(tuple(named), inside), rest[known:]
