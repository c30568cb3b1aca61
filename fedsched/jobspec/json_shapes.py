"""Which names are blocks in a job file's JSON form, told from the same schema that decodes the HCL form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from fedsched.jobspec.hcl_json import NO_BLOCKS, Shape
from fedsched.jobspec.schema import Nested, Schema
from fedsched.jobspec.schema_blocks import JOB


def _of_nested(nested: Nested) -> Shape:
    labels = 1 if nested.label else 0
    if not isinstance(nested.content, Schema):
        return Shape(labels)
    return _of_schema(nested.content, labels)


def _of_schema(schema: Schema, labels: int) -> Shape:
    blocks: dict[str, Callable[[], Shape]] = {}
    for key, nested in schema.blocks.items():
        if not nested.as_attribute:
            blocks[key] = partial(_of_nested, nested)
    plain = dict(blocks)
    blocks["dynamic"] = lambda: Shape(1, plain)
    return Shape(labels, blocks)


_VALIDATION: Final = Shape(expressions=frozenset({"condition"}))
_VARIABLE: Final = Shape(1, {"validation": lambda: _VALIDATION}, frozenset({"type"}))
FILE: Final = Shape(
    blocks={
        "job": lambda: _of_schema(JOB, 1),
        "variable": lambda: _VARIABLE,
        "variables": lambda: NO_BLOCKS,
        "locals": lambda: NO_BLOCKS,
    }
)
