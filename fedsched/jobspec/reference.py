"""The reference page of job files, written from the schema that reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fedsched.jobspec.schema import Content, Nested, Schema, Shape
from fedsched.jobspec.schema_blocks import JOB

HEAD: Final = """\
# Job files

Written from the code by `python -m fedsched.cli.docs`; do not edit.

Every block of a job file, what it may hold, and the name each part has in the API's JSON. Durations are texts such as
`"30s"` or `"1h30m"`. A block marked *many* may be repeated; one with a label is written `block "label" { ... }`.
"""
SHAPES: Final = {Shape.ONE: "", Shape.MANY: "many", Shape.BY_LABEL: "many, by label"}
CONTENTS: Final = {
    Content.TEXT_MAP: "names of your own, texts",
    Content.TEXT_LISTS: "names of your own, lists of texts",
    Content.FREE: "anything; its reader decides",
}


def reference_page() -> str:
    """Give the whole page."""
    return HEAD + "".join(_section(path, schema) for path, schema in _sections("job", JOB, set()))


def _sections(path: str, schema: Schema, seen: set[int]) -> Iterator[tuple[str, Schema]]:
    """Every kind of block once, at the first place where it may stand."""
    if id(schema) in seen:
        return
    seen.add(id(schema))
    yield path, schema
    for nested in schema.blocks.values():
        if nested.schema is not None:
            yield from _sections(f"{path} > {nested.key}", nested.schema, seen)


def _section(path: str, schema: Schema) -> str:
    lines = [f"\n## {path}\n"]
    if schema.attrs:
        lines += ["| attribute | value | in JSON | |", "| --- | --- | --- | --- |"]
    for attr in sorted(schema.attrs.values()):
        need = "**required** " if attr.is_required else ""
        lines.append(f"| `{attr.key}` | {attr.kind.value} | {attr.name} | {need}{attr.doc} |".replace("  |", " |"))
    if schema.attrs and schema.blocks:
        lines.append("")
    if schema.blocks:
        lines += ["| block | | in JSON | holds |", "| --- | --- | --- | --- |"]
    for nested in sorted(schema.blocks.values(), key=lambda one: one.key):
        lines.append(f"| `{nested.key}`{_label(nested)} | {SHAPES[nested.shape]} | {nested.name} | {_holds(nested)} |")
    if not schema.attrs and not schema.blocks:
        lines.append("Holds nothing.")
    return "\n".join(lines) + "\n"


def _label(nested: Nested) -> str:
    return f' `"{nested.label.lower()}"`' if nested.label else ""


def _holds(nested: Nested) -> str:
    if isinstance(nested.content, Content):
        text = CONTENTS[nested.content]
        return f"{text}; `{nested.key} = {{...}}` will do too" if nested.as_attribute else text
    return "see below"
