"""Reads what a template with `env = true` renders: one `NAME=value` a line, as shells write them."""

from __future__ import annotations

import re
from typing import Final

from fedsched.model.errors import BadRequest

_LINE: Final = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_.-]*)[ \t]*=(.*)", re.DOTALL)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


class BadEnvFile(BadRequest):
    """A line that is no assignment."""

    code = "bad_env_file"


def parse_env(text: str, name: str = "template") -> dict[str, str]:
    """The assignments in a text; empty lines and those that begin with `#` say nothing. The last of two wins.

    A value in double quotes has escapes, one in single quotes is taken as it is, and one without ends before ` #`.
    """
    values: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            # What is there may be secret: the place has to do.
            raise BadEnvFile(f"{name}:{number}: not a line of NAME=value", hint="with env = true every line is one")
        values[match[1]] = _value(match[2].strip(" \t"), name, number)
    return values


def _value(text: str, name: str, number: int) -> str:
    quote = text[:1]
    if quote not in ("'", '"') or not quote:
        return re.split(r"[ \t]#", text, maxsplit=1)[0].rstrip(" \t")
    out: list[str] = []
    at = 1
    while at < len(text):
        char = text[at]
        if char == quote:
            rest = text[at + 1 :].strip()
            if rest and not rest.startswith("#"):
                raise BadEnvFile(f"{name}:{number}: something follows the closing quote")
            return "".join(out)
        if char == "\\" and quote == '"' and at + 1 < len(text):
            at += 1
            char = _ESCAPES.get(text[at], text[at])
        out.append(char)
        at += 1
    raise BadEnvFile(f"{name}:{number}: the quoted value has no end", hint="write a line break inside quotes as \\n")
