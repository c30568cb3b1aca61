"""What a job file may say where: the shape of every block, mostly read from the records themselves.

A record's field gives the HCL key (its name without the unit), the kind of its value (its type) and the name in the
job's API form. What the records cannot know stands beside them in `schema_blocks`: keys that differ, blocks that repeat
or have labels, parts that only ever existed in HCL. One table, read by the decoder, by suggestions and by docs.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, get_args, get_origin

from fedsched.model.declare import FieldInfo, InJson, Record, Unit, fields_of, strip_none

INT64: Final = (-(2**63), 2**63 - 1)


class Kind(enum.Enum):
    """What an attribute's value is turned into; the words appear in messages."""

    TEXT = "a string"
    WHOLE = "a whole number"
    TRUTH = "true or false"
    TEXTS = "a list of strings"
    TEXT_MAP = "a map of strings"
    DURATION = "a duration"


class Attr(NamedTuple):
    """One attribute: `key = value`."""

    key: str
    name: str
    """The member of the API form that it becomes."""
    kind: Kind
    may_be_null: bool = True
    """Null is as good as not written. Durations never may, whatever this says."""
    bounds: tuple[int, int] = INT64
    is_required: bool = False
    default: Any = None
    """Filled in when the attribute is not written; None fills nothing in."""
    choices: tuple[str, ...] = ()
    """The only texts it may have; empty: any."""
    doc: str = ""
    """A sentence for the reference page."""


class Shape(enum.Enum):
    """How often a block may stand, and what becomes of it."""

    ONE = "one"
    MANY = "a list"
    BY_LABEL = "a map from its label"


class Content(enum.Enum):
    """Blocks whose attributes are the user's own names."""

    TEXT_MAP = "texts"
    TEXT_LISTS = "lists of texts"
    FREE = "anything"


class Nested(NamedTuple):
    """One kind of block inside another."""

    key: str
    name: str
    content: Schema | Content
    shape: Shape = Shape.ONE
    label: str = ""
    """The member that takes the block's label; empty: the block has none."""
    as_attribute: bool = False
    """Whether `key = {...}` means the same."""
    label_words: Mapping[str, str] | None = None
    """The only labels it may have (in any case), and what they stand for."""

    @property
    def schema(self) -> Schema | None:
        """What may stand inside; None when the names inside are the user's own."""
        return None if isinstance(self.content, Content) else self.content


class Schema(NamedTuple):
    """What one block may hold."""

    title: str
    attrs: Mapping[str, Attr]
    blocks: Mapping[str, Nested]
    finish: Callable[[dict[str, Any]], Mapping[str, str] | None] | None = None
    """Turns what was written into the API form where names alone do not do it.

    Gives, for members it moved, the name under which each was decoded, so that positions can follow.
    """

    @property
    def keys(self) -> list[str]:
        return sorted({*self.attrs, *self.blocks})


def of_record(
    record: type[Record],
    title: str,
    *,
    keys: Mapping[str, str] | None = None,
    skip: frozenset[str] | set[str] = frozenset(),
    plain: bool | frozenset[str] | set[str] = False,
    blocks: tuple[Nested, ...] = (),
    bounds: Mapping[str, tuple[int, int]] | None = None,
    required: frozenset[str] | set[str] = frozenset(),
    defaults: Mapping[str, Any] | None = None,
    choices: Mapping[str, tuple[str, ...]] | None = None,
    finish: Callable[[dict[str, Any]], Mapping[str, str] | None] | None = None,
) -> Schema:
    """Derive a block's shape from a record.

    `keys` gives HCL keys that differ from the field's name, `skip` the fields that no job file sets, `plain` those that
    refuse null (True: all of them). Fields that hold records are blocks: they are named in `blocks`.
    """
    found: dict[str, Attr] = {}
    for info in fields_of(record):
        kind = _kind_of(info)
        if kind is None or info.name in skip or InJson.NEVER in info.in_json:
            continue
        key = (keys or {}).get(info.name) or hcl_key(info.name)
        found[key] = Attr(
            key,
            info.api_name,
            kind,
            may_be_null=not (plain is True or (plain is not False and info.name in plain)),
            bounds=(bounds or {}).get(info.name, INT64),
            is_required=info.name in required,
            default=(defaults or {}).get(info.name),
            choices=(choices or {}).get(info.name, ()),
            doc=info.doc,
        )
    nested = {block.key: block for block in blocks}
    return Schema(title, {key: attr for key, attr in found.items() if key not in nested}, nested, finish)


def of_table(
    title: str,
    attrs: Mapping[str, tuple[str, Kind]],
    blocks: tuple[Nested, ...] = (),
    *,
    defaults: Mapping[str, Any] | None = None,
) -> Schema:
    """Give the shape of a block that no record describes: what only foreign systems read."""
    found = {key: Attr(key, name, kind, default=(defaults or {}).get(key)) for key, (name, kind) in attrs.items()}
    return Schema(title, found, {block.key: block for block in blocks})


def hcl_key(field: str) -> str:
    """Give the key that a field has in a job file: its name without the unit of time."""
    return field.removesuffix("_s").rstrip("_")


def _kind_of(info: FieldInfo) -> Kind | None:
    """The kind of a field's value; None for records and free data, which are blocks."""
    if info.unit in (Unit.DURATION_NS, Unit.DURATION_TEXT):
        return Kind.DURATION
    inner, _ = strip_none(info.type)
    if inner in _SCALARS:
        return _SCALARS[inner]
    items = get_args(inner)
    if get_origin(inner) is tuple and items[0] is str:
        return Kind.TEXTS
    if get_origin(inner) is dict and items[1] is str:
        return Kind.TEXT_MAP
    return None


_SCALARS: Final = {str: Kind.TEXT, int: Kind.WHOLE, bool: Kind.TRUTH}
