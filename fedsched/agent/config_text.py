"""Settings as the TOML file that would set them: for whoever starts agents as processes of their own.

Only what differs from the defaults is written. `load_config` reads back what was given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from fedsched.agent.config import AgentConfig
from fedsched.agent.settings import Kind, Setting, settings_of


def config_text(config: AgentConfig) -> str:
    """The whole file."""
    return "".join(f"{line}\n" for line in _lines(config, ""))


def _lines(section: Any, path: str) -> Iterator[str]:
    """One line each, by its dotted key: such lines may stand in any order."""
    for key, one in settings_of(type(section)).items():
        value = getattr(section, one.attr)
        if one.kind is Kind.SECTION:
            yield from _lines(value, f"{path}{key}.")
        elif one.kind is Kind.SECTIONS:
            for name, inner in value.items():
                yield from _lines(inner, f"{path}{key}.{json.dumps(name)}.")
        elif value != one.default:
            yield f"{path}{key} = {_value(one, value)}"


def _value(one: Setting, value: Any) -> str:
    if one.kind is Kind.DURATION:
        return json.dumps(f"{value:.9f}".rstrip("0").rstrip(".") + "s")
    return _plain(value)


def _plain(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            return f"{{ {', '.join(f'{json.dumps(key)} = {_plain(inner)}' for key, inner in value.items())} }}"
        case list() | tuple():
            return f"[{', '.join(_plain(inner) for inner in value)}]"
    raise TypeError(f"a setting holds {value!r}, which no file can say")
