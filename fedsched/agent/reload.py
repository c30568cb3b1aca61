"""What a running agent takes over from settings that were read anew (SIGHUP), and what has to wait for a restart.

Only what nothing else is built on changes under a running agent: how much is logged, and what the node says about
itself. Everything else was used to build something that lives as long as the process does; a difference there is
reported, never half applied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, NamedTuple

from fedsched.agent.config import AgentConfig
from fedsched.agent.settings import Kind, settings_of

RELOADABLE: Final = frozenset({"log_level", "log_levels", "client.meta", "client.host_volume"})


class Reload(NamedTuple):
    """What differs, by the paths of the settings."""

    config: AgentConfig
    """The settings that hold from now on."""
    changed: tuple[str, ...]
    """Taken over."""
    waiting: tuple[str, ...]
    """Different in the files, but only in force after a restart."""


def reload(before: AgentConfig, after: AgentConfig) -> Reload:
    """Compare the settings in force with those that were read just now."""
    different = _differences(AgentConfig, before, after)
    config = replace(
        before,
        log_level=after.log_level,
        log_levels=after.log_levels,
        client=replace(before.client, meta=after.client.meta, host_volume=after.client.host_volume),
    )
    return Reload(
        config,
        tuple(path for path in different if path in RELOADABLE),
        tuple(path for path in different if path not in RELOADABLE),
    )


def _differences(section: type[Any], before: Any, after: Any, path: str = "") -> list[str]:
    found: list[str] = []
    for key, one in settings_of(section).items():
        old, new = getattr(before, one.attr), getattr(after, one.attr)
        if one.kind is Kind.SECTION and one.section is not None:
            found += _differences(one.section, old, new, f"{path}{key}.")
        elif old != new:
            found.append(f"{path}{key}")
    return found
