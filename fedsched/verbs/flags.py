"""Flags and arguments of a verb: how they are declared, and how words become values.

Flags are written `-flag` or `--flag`, `-flag=value` or `-flag value`, before or after arguments; `--` ends them, and a
lone `-` is an argument (standard input). A yes-or-no flag takes a value only with `=`, so that it can stand before an
argument. The declarations also give help texts, the reference page and, later, completion in the shell.

This is imported by every command: it must stay cheap to import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fedsched.model.errors import BadRequest
from fedsched.model.nearest import nearest


class BadUsage(BadRequest):
    """A command that was typed wrongly."""

    code = "bad_usage"


class Flag(NamedTuple):
    """One flag. `kind` is bool, str, int, or list (may be repeated); `value` is the word shown for its value."""

    name: str
    doc: str
    kind: type = str
    default: Any = None
    value: str = ""


class Argument(NamedTuple):
    """One argument. An optional one may be missing; `many` takes all that are left, `raw` even those with a dash."""

    name: str
    doc: str
    optional: bool = False
    many: bool = False
    raw: bool = False
    """For a command of somebody else, whose flags are not ours."""
    unless: str = ""
    """A flag that stands in for it: with it the next argument comes first."""


class Given:
    """What was typed: flags and arguments by name, defaults filled in. Reads like a mapping."""

    __slots__ = ("_said", "_values")

    def __init__(self, values: dict[str, Any], said: frozenset[str]) -> None:
        self._values = values
        self._said = said

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> Any:
        """Give the value, or None for a name this verb does not have."""
        return self._values.get(name)

    def was_said(self, name: str) -> bool:
        """Tell a value that was typed from a default."""
        return name in self._said


def parse(words: Sequence[str], flags: Sequence[Flag], arguments: Sequence[Argument]) -> Given:
    """Sort the words into flags and arguments; raises `BadUsage` naming the word and what was expected."""
    known = {flag.name: flag for flag in flags}
    values: dict[str, Any] = {flag.name: _default(flag) for flag in flags}
    said: set[str] = set()
    loose: list[str] = []
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        if not word.startswith("-") and _is_raw(arguments, len(loose), said):
            loose += [word, *reversed(rest)]
            break
        if word == "--":
            loose += reversed(rest)
            break
        if not word.startswith("-") or word == "-":
            loose.append(word)
            continue
        name, equals, text = word.lstrip("-").partition("=")
        flag = known.get(name)
        if flag is None:
            raise _unknown_flag(word.partition("=")[0], known)
        said.add(name)
        if flag.kind is bool:
            values[name] = _yes_or_no(name, text) if equals else True
            continue
        if not equals:
            if not rest:
                raise BadUsage(f"flag -{name} needs a value", hint=flag.doc)
            text = rest.pop()
        if flag.kind is list:
            values[name].append(text)
        else:
            values[name] = _whole_number(name, text) if flag.kind is int else text
    _place(loose, [one for one in arguments if one.unless not in said], values)
    values |= {one.name: None for one in arguments if one.unless in said}
    return Given(values, frozenset(said))


def usage(flags: Sequence[Flag], arguments: Sequence[Argument]) -> str:
    """Give the part of a usage line after the command's name."""
    words = ["[options]"] if flags else []
    for argument in arguments:
        word = f"<{argument.name}>" + ("..." if argument.many else "")
        words.append(f"[{word}]" if argument.optional else word)
    return " ".join(words)


def flag_form(flag: Flag) -> str:
    """Give a flag as help shows it: `-check-index=<index>`."""
    return f"-{flag.name}" if flag.kind is bool else f"-{flag.name}=<{flag.value or flag.kind.__name__}>"


def _default(flag: Flag) -> Any:
    if flag.kind is list:
        return list(flag.default or ())
    return False if flag.kind is bool and flag.default is None else flag.default


def _is_raw(arguments: Sequence[Argument], placed: int, said: set[str]) -> bool:
    """Whether the next argument is the beginning of somebody else's command."""
    left = [one for one in arguments if one.unless not in said]
    return placed < len(left) and left[placed].raw


def _place(loose: list[str], arguments: Sequence[Argument], values: dict[str, Any]) -> None:
    left = list(loose)
    for argument in arguments:
        if argument.many:
            values[argument.name], left = left, []
        else:
            values[argument.name] = left.pop(0) if left else None
        if not values[argument.name] and not argument.optional:
            raise BadUsage(f"<{argument.name}> is missing", hint=argument.doc)
    if left:
        takes = "no arguments" if not arguments else f"{len(arguments)} argument{'s'[: len(arguments) > 1]}"
        raise BadUsage(f"unexpected argument {left[0]!r}", hint=f"this command takes {takes}")


def _unknown_flag(word: str, known: Mapping[str, Flag]) -> BadUsage:
    close = nearest(word.lstrip("-"), list(known))
    hint = f"did you mean -{close}?" if close else "-help lists the flags of this command"
    return BadUsage(f"unknown flag {word}", hint=hint)


def _yes_or_no(name: str, text: str) -> bool:
    value = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}.get(text.lower())
    if value is None:
        raise BadUsage(f"flag -{name}={text} is neither true nor false")
    return value


def _whole_number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadUsage(f"flag -{name} {text!r} is not a whole number") from None
