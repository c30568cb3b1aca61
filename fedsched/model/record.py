"""The front of the record machinery: declare with `Record`, cross into Nomad's JSON with `to_api` and `from_api`.

The internal form (log, links between servers) is `to_plain` and `from_plain` on the same classes.
"""

from __future__ import annotations

from msgspec import field

from fedsched.model.api_form import Malformed, from_api, to_api
from fedsched.model.declare import (
    EMPTY,
    DurationText,
    FieldInfo,
    FreeForm,
    Index,
    InDiff,
    InJson,
    MaybeSeconds,
    Named,
    Record,
    Seconds,
    StringMap,
    TimeNs,
    TimeS,
    TimeText,
    Unit,
    UpdateClass,
    fields_of,
)
from fedsched.model.plain_form import from_plain, to_plain

__all__ = [
    "Record",
    "field",
    "fields_of",
    "FieldInfo",
    "Unit",
    "UpdateClass",
    "InJson",
    "InDiff",
    "Named",
    "Seconds",
    "MaybeSeconds",
    "DurationText",
    "TimeNs",
    "TimeS",
    "TimeText",
    "Index",
    "StringMap",
    "EMPTY",
    "FreeForm",
    "to_api",
    "from_api",
    "to_plain",
    "from_plain",
    "Malformed",
]
