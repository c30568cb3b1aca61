"""Writes `docs/reference/config.md` from the declarations: `python -m fedsched.agent.config_reference > that file`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from fedsched.agent.config import AgentConfig
from fedsched.agent.config_load import variable_of
from fedsched.agent.settings import FILE_ONLY, Kind, Setting, settings_of
from fedsched.model.units import format_duration, format_size

HEAD = """\
# Agent configuration

Written from the code by `python -m fedsched.agent.config_reference`; do not edit.

`fedsched agent -config PATH` reads TOML: a file, or every `*.toml` of a directory in order of name. The flag may be
repeated; later files win, environment variables win over files, flags win over both. `-set path.to.key=value` reaches
every setting. An unknown key or a value of the wrong kind is refused.
"""


def reference_page() -> str:
    lines = [HEAD, "## Top level", "", *_table(AgentConfig, ())]
    return "\n".join([*lines, *_sections(AgentConfig, ())]) + "\n"


def _sections(section: type[Any], path: tuple[str, ...]) -> list[str]:
    lines: list[str] = []
    for key, one in settings_of(section).items():
        if one.section is not None:
            inner = (*path, key, "<name>") if one.kind is Kind.SECTIONS else (*path, key)
            lines += ["", f"## [{'.'.join(inner)}]", "", one.section.__doc__ or "", "", *_table(one.section, inner)]
            lines += _sections(one.section, inner)
    return lines


def _table(section: type[Any], path: tuple[str, ...]) -> list[str]:
    rows = ["| key | default | meaning | flag, variable |", "| --- | --- | --- | --- |"]
    for key, one in settings_of(section).items():
        if one.section is None:
            rows.append(f"| `{key}` | {_default(one)} | {_meaning(one)} | {_other_ways(one, (*path, key))} |")
    return rows


def _other_ways(one: Setting, path: tuple[str, ...]) -> str:
    if one.kind in FILE_ONLY or "<name>" in path:
        return "files only"
    return (f"`-{one.flag}`, " if one.flag else "") + f"`{variable_of(path)}`"


def _meaning(one: Setting) -> str:
    limits = []
    if one.choices:
        limits.append(f"one of {', '.join(one.choices)}")
    if one.low:
        limits.append(f"at least {_written(one, one.low)}")
    if one.high:
        limits.append(f"at most {_written(one, one.high)}")
    return f"{one.doc} ({'; '.join(limits)})" if limits else one.doc


def _default(one: Setting) -> str:
    return f"`{_written(one, one.default)}`"


def _written(one: Setting, value: Any) -> str:
    match one.kind, value:
        case Kind.DURATION, _:
            return f'"{format_duration(value)}"'
        case Kind.SIZE, _:
            return f'"{format_size(int(value)).replace(" ", "")}"'
        case _, bool():
            return "true" if value else "false"
        case _, str():
            return f'"{value}"'
        case _, tuple():
            return "[" + ", ".join(f'"{item}"' for item in value) + "]"
        case _, Mapping():
            return "{}"
        case _:
            return f"{value:g}"


if __name__ == "__main__":
    sys.stdout.write(reference_page())
