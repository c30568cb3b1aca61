"""Gathers an agent's settings: preset, then files in order, then environment, then flags; later wins.

Each value remembers where it came from, so that a complaint about two settings that do not go together can point at a
file, a variable or a flag instead of leaving the operator to guess which of them won.
"""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedsched.agent.config import AgentConfig
from fedsched.agent.config_check import check_config
from fedsched.agent.settings import (
    BadSetting,
    Kind,
    Setting,
    all_settings,
    build,
    check_table,
    check_text,
    check_value,
    merge,
)
from fedsched.model.nearest import nearest

CONFIG_BYTES_MAX: Final = 1024 * 1024
"""No honest configuration is larger; a wrong path such as a disk image should not be read whole."""

DEV_PRESET: Final[Mapping[str, Any]] = {
    "name": "dev",
    "server": {"enabled": True, "bootstrap_expect": 1, "ballast_size": 0},
    "client": {"enabled": True},
}

CLI_VARIABLES: Final = frozenset(
    {"ADDR", "TOKEN", "NAMESPACE", "CACERT", "CAPATH", "CLIENT_CERT", "CLIENT_KEY", "TLS_SERVER_NAME", "SKIP_VERIFY"}
)
"""Variables that belong to commands, not to the agent, although some look like one of its sections."""

Path_ = tuple[str, ...]


@dataclass(frozen=True)
class Loaded:
    """The settings, what the operator should be warned of, and where each given value came from."""

    config: AgentConfig
    is_dev: bool
    warnings: tuple[str, ...]
    sources: Mapping[str, str]


def load_config(
    *,
    paths: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Sequence[str]] | None = None,
    is_dev: bool = False,
) -> Loaded:
    """Gather and check the settings.

    `flags` maps a flag's name, without dashes, to the values it was given; "set" takes `path.to.key=value`. Raises
    `BadSetting` for anything unknown or wrong.
    """
    layers = [("the -dev preset", check_table(AgentConfig, DEV_PRESET, "the -dev preset"))] if is_dev else []
    layers += [(str(file), _read_file(file)) for path in paths for file in _files_of(path)]
    layers += _from_environment(environ or {})
    layers += _from_flags(flags or {})
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for source, checked in layers:
        merged = merge(merged, checked)
        sources |= dict.fromkeys(_leaves(checked), source)
    config = build(AgentConfig, _filled_in(merged))
    return Loaded(config, is_dev, check_config(config, sources, is_dev=is_dev), sources)


def variable_of(path: Path_) -> str:
    """Give the environment variable of a setting: `FEDSCHED_SERVER_BOOTSTRAP_EXPECT`."""
    return "FEDSCHED_" + "_".join(path).upper()


def flags_of_settings() -> dict[str, tuple[Path_, Setting]]:
    """Give the settings that have a flag of their own, by flag."""
    return {one.flag: (path, one) for path, one in all_settings(AgentConfig).items() if one.flag}


def _files_of(path: str) -> list[Path]:
    given = Path(path)
    if given.is_dir():
        return sorted(file for file in given.iterdir() if file.suffix == ".toml" and file.is_file())
    return [given]


def _read_file(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise BadSetting(
            f"{file}: cannot be read: {error.strerror}", hint="-config takes a TOML file or a directory of them"
        ) from error
    if len(data) > CONFIG_BYTES_MAX:
        raise BadSetting(f"{file}: larger than {CONFIG_BYTES_MAX} bytes", hint="is this a configuration file?")
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{file}: not valid TOML: {error}", hint="configuration files are written in TOML") from error
    return check_table(AgentConfig, table, str(file))


def _from_environment(environ: Mapping[str, str]) -> Iterable[tuple[str, dict[str, Any]]]:
    known = {variable_of(path): (path, one) for path, one in all_settings(AgentConfig).items()}
    sections = {variable_of(path[:1]) + "_" for path in all_settings(AgentConfig) if len(path) > 1}
    for name, text in sorted(environ.items()):
        found = known.get(name)
        if found is not None:
            path, one = found
            yield name, _nested(path, one, check_text(one, text, f"environment {name}", ".".join(path)))
        elif name.removeprefix("FEDSCHED_") not in CLI_VARIABLES and any(name.startswith(s) for s in sections):
            close = nearest(name, list(known))
            raise BadSetting(
                f"environment: unknown setting {name}",
                hint=f"did you mean {close}?" if close else "docs/reference/config.md lists them all",
            )


def _from_flags(flags: Mapping[str, Sequence[str]]) -> Iterable[tuple[str, dict[str, Any]]]:
    own = flags_of_settings()
    for flag, texts in flags.items():
        if flag == "set":
            yield from (_from_set(text) for text in texts)
            continue
        path, one = own[flag]
        where = ".".join(path)
        if one.kind is Kind.TEXTS:
            value = check_value(one, list(texts), f"-{flag}", where)
        else:
            value = check_text(one, texts[-1], f"-{flag}", where)
        yield f"-{flag}", _nested(path, one, value)


def _from_set(text: str) -> tuple[str, dict[str, Any]]:
    where, equals, value = text.partition("=")
    known = {".".join(path): (path, one) for path, one in all_settings(AgentConfig).items()}
    if not equals:
        raise BadSetting(f'-set "{text}" has no value', hint="write it as -set server.raft_multiplier=2")
    if where not in known:
        close = nearest(where, list(known))
        raise BadSetting(
            f"-set: unknown setting {where}",
            hint=f"did you mean {close}?" if close else "docs/reference/config.md lists them all",
        )
    path, one = known[where]
    return f"-set {where}", _nested(path, one, check_text(one, value, "-set", where))


def _nested(path: Path_, one: Setting, value: Any) -> dict[str, Any]:
    """Put one value where it belongs; sections have the same name inside and in the file."""
    inner: dict[str, Any] = {one.attr: value}
    for key in reversed(path[:-1]):
        inner = {key: inner}
    return inner


def _leaves(checked: Mapping[str, Any], path: str = "") -> list[str]:
    found: list[str] = []
    for attr, value in checked.items():
        found += _leaves(value, f"{path}{attr}.") if isinstance(value, dict) else [f"{path}{attr}"]
    return found


def _filled_in(merged: dict[str, Any]) -> dict[str, Any]:
    """Add what depends on the machine rather than on the declaration."""
    filled = dict(merged)
    if not filled.get("name"):
        filled["name"] = socket.gethostname().partition(".")[0]
    if filled.get("data_dir"):
        filled["data_dir"] = os.path.abspath(filled["data_dir"])
    return filled
