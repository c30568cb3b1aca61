"""The reference page of drivers, written from what each of them declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from fedsched.drivers.driver import Driver
from fedsched.drivers.registry import BUILT_IN, ENTRY_POINTS, OFF_UNLESS_ENABLED, DriverHost
from fedsched.drivers.task_schema import Field, TaskSchema

HEAD: Final = f"""\
# Drivers

Written from the code by `python -m fedsched.cli.docs`; do not edit.

A driver runs tasks of one kind. What an operator may say about one stands in an agent's file under
`[client.plugin.<name>]`; what a task may ask of it stands in the task's `config` block. Anything else is refused by
name. `fedsched node status` shows which drivers a node has, and why one is missing. Packages offer more under the
entry-point group `{ENTRY_POINTS}`.
"""


def reference_page() -> str:
    """Every driver that comes with fedsched, with all its settings."""
    return "\n".join([HEAD, *(_section(name, where) for name, where in sorted(BUILT_IN.items()))])


def _section(name: str, where: str) -> str:
    module, _, attribute = where.partition(":")
    maker = getattr(import_module(module), attribute)
    driver: Driver = maker(DriverHost(state_dir=Path("unused")))
    schema = getattr(maker, "settings_schema", None)
    settings = schema.fields if isinstance(schema, TaskSchema) else {}
    lines = [f"## {name}", ""]
    if name in OFF_UNLESS_ENABLED:
        lines += [f"Off unless `[client.plugin.{name}]` says `enabled = true`, or the agent runs with `-dev`.", ""]
    lines += _table("Agent", settings) + _table("Task", driver.task_schema.fields)
    return "\n".join(lines)


def _table(whose: str, fields: Mapping[str, Field]) -> list[str]:
    if not fields:
        return []
    head = [f"{whose} | value | required | what it is", "--- | --- | --- | ---"]
    return [*(f"| {line} |" for line in (*head, *_rows(fields))), ""]


def _rows(fields: Mapping[str, Field], above: str = "") -> Iterator[str]:
    for name, field in fields.items():
        required = "yes" if field.is_required else ""
        yield f"`{above}{name}` | {field.kind.value} | {required} | {field.doc.replace('|', '&#124;')}"
        yield from _rows(field.fields or {}, f"{above}{name}.")
