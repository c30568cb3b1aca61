"""How a record is declared: the base class, what may be said about a field, and how to read it back.

A field is declared once. Its Python name gives Nomad's JSON name (`job_id` is `JobID`; an irregular one says so with
`field(name=...)`), its type gives the checks, and whatever else is known about it stands in `Annotated`: the unit, what
a change of it does to a running allocation, how an empty value looks in JSON, and a sentence for the reference pages.
JSON, diff, spec equality and docs all read `fields_of`, so none of them can disagree.

Two names per field: `api_name` is Nomad's; `internal_name` is the one msgspec uses in the log and between servers. They
differ only where the unit does (`KillTimeout` is nanoseconds, `KillTimeoutS` seconds), so that one form fed to the
reader of the other is noticed rather than off by a factor of a thousand million.
"""

from __future__ import annotations

import enum
import functools
import types
from typing import Annotated, Any, ClassVar, TypeGuard, Union, dataclass_transform, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, structs

_ACRONYMS = {
    **{
        word: word.upper()
        for word in (
            *(
                "id",
                "acl",
                "api",
                "cidr",
                "cni",
                "cpu",
                "csi",
                "dns",
                "gc",
                "grpc",
                "hcl",
                "http",
                "iops",
                "ip",
                "json",
            ),
            *("jwt", "mb", "numa", "oidc", "rpc", "tg", "tls", "ttl", "ui", "url", "uuid"),
        )
    },
    "ids": "IDs",
    "ipv6": "IPv6",
    "mbits": "MBits",
}


def api_name(name: str) -> str:
    """Give Nomad's JSON name of a Python field: words joined, acronyms upper-case, the unit of time dropped."""
    base = name.removesuffix("_s").removesuffix("_ns").rstrip("_")
    return "".join(_ACRONYMS.get(word) or word[:1].upper() + word[1:] for word in base.split("_"))


def internal_name(name: str) -> str:
    return api_name(name) + ("S" if name.endswith("_s") else "")


class Unit(enum.Enum):
    """How a number crosses into Nomad's JSON; the number inside is seconds (durations) or nanoseconds (times)."""

    DURATION_NS = "duration, integer nanoseconds"
    DURATION_TEXT = "duration, text such as 1h0m0s"
    DURATION_TEXT_OR_EMPTY = "duration, text, empty when zero"
    TIME_NS = "time, integer nanoseconds since 1970"
    TIME_S = "time, integer seconds since 1970"
    TIME_TEXT = "time, RFC 3339, null when zero"
    TIME_TEXT_YEAR_1 = "time, RFC 3339, year 1 when zero"


class UpdateClass(enum.Enum):
    """What a change of the field does to an allocation that runs."""

    IN_PLACE = "in place"
    DESTRUCTIVE = "destructive"
    BOOKKEEPING = "not part of the specification"


class InJson(enum.Enum):
    """How an empty value looks in Nomad's JSON, where it is not the rule (lists, maps and absent records are null)."""

    KEEP_EMPTY = "[] or {}"
    OMIT_EMPTY = "left out"
    NEVER = "not part of the API form at all"
    INPUT_ONLY = "accepted, never sent"
    REDACTED = "accepted, sent as an empty text"


class InDiff(enum.Enum):
    """How the field takes part in a diff, where it is not the rule (shown when it differs)."""

    NEVER = "not shown"
    CHANGES_ONLY = "shown when both sides have the record, not when it comes or goes as a whole"
    UNLESS_ZERO = "not shown while zero"


class Named(msgspec.Struct, frozen=True):
    """The name under which a list's items appear in a diff, where it is not that of their class."""

    name: str


Seconds = Annotated[float, Unit.DURATION_NS]
MaybeSeconds = Annotated[float | None, Unit.DURATION_NS]
DurationText = Annotated[float, Unit.DURATION_TEXT]
TimeNs = Annotated[int, Unit.TIME_NS, UpdateClass.BOOKKEEPING]
TimeS = Annotated[int, Unit.TIME_S, UpdateClass.BOOKKEEPING]
TimeText = Annotated[int, Unit.TIME_TEXT, UpdateClass.BOOKKEEPING]
Index = Annotated[int, UpdateClass.BOOKKEEPING]
EMPTY: dict[str, Any] = {}
"""The default of maps. Each record gets a fresh one: msgspec turns an empty default into a factory."""

StringMap = dict[str, str]
FreeForm = dict[str, Any]
"""Kept and given back as it came; nobody inside reads it (driver config, Vault, Consul, scaling policies)."""


class _RecordMeta(msgspec.StructMeta):
    """Makes `kw_only` hold for subclasses too; msgspec inherits every other option but that one."""

    def __new__(mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        return super().__new__(mcls, name, bases, namespace, **{"kw_only": True, **options})


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, metaclass=_RecordMeta, frozen=True, kw_only=True, gc=False, rename=internal_name):
    """The base of every noun: frozen, keyword-only, compared by value, outside of garbage collection.

    Records hold values and other records, never themselves, so reference counting alone frees them; leaving them out of
    the collector is what keeps its pauses short with a million rows. Maps inside are plain dicts for speed: treat
    them as frozen too, and build a new one to change one.

    The internal form (`to_plain`) leaves out fields at their default. A default is therefore part of the log format: it
    never changes (a test holds them still); what a new default should be belongs into `job_defaults`.
    """

    sparse: ClassVar[bool] = False
    """Whether the JSON leaves out every empty member (few do; most send all, empty ones as null)."""

    diff_key: ClassVar[str] = ""
    """The field by which items of a list are matched when two lists are compared; none: by being equal."""

    derived: ClassVar[tuple[str, ...]] = ()
    """Properties that the JSON shows as if they were fields; ignored when read."""


class FieldInfo(msgspec.Struct, frozen=True):
    """What is known about one field of a record."""

    name: str
    api_name: str
    internal_name: str
    type: Any
    default: Any
    """A fresh default; `msgspec.NODEFAULT` when the field must be given."""
    unit: Unit | None
    update: UpdateClass
    in_json: frozenset[InJson]
    in_diff: InDiff | None
    diff_name: str
    doc: str

    @property
    def is_required(self) -> bool:
        return self.default is NODEFAULT

    @property
    def in_api(self) -> bool:
        return InJson.NEVER not in self.in_json


@functools.cache
def fields_of(record: type[Record]) -> tuple[FieldInfo, ...]:
    """Read a record's declarations, in their order."""
    hints = get_type_hints(record, include_extras=True)
    return tuple(_read(info, hints[info.name], record.sparse) for info in structs.fields(record))


def is_record(kind: Any) -> TypeGuard[type[Record]]:
    """Whether a field's type is a record."""
    return isinstance(kind, type) and issubclass(kind, Record)


@functools.cache
def is_recursive(record: type[Record]) -> bool:
    """Whether a record may hold records of its own class, directly."""
    return any(record in (strip_none(info.type)[0], *get_args(info.type)) for info in fields_of(record))


def strip_none(kind: Any) -> tuple[Any, bool]:
    """Give the type without `None`, and whether it had it; other unions stay as they are."""
    if get_origin(kind) in (Union, types.UnionType):
        rest = [arg for arg in get_args(kind) if arg is not type(None)]
        if len(rest) == 1:
            return rest[0], True
    return kind, False


def _read(info: structs.FieldInfo, hint: Any, sparse: bool) -> FieldInfo:
    plain = hint
    notes: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        plain, *rest = get_args(hint)
        notes = tuple(rest)
    in_json = {note for note in notes if isinstance(note, InJson)}
    if sparse and InJson.KEEP_EMPTY not in in_json:
        in_json.add(InJson.OMIT_EMPTY)
    regular = info.encode_name == internal_name(info.name)
    return FieldInfo(
        name=info.name,
        api_name=api_name(info.name) if regular else info.encode_name,
        internal_name=info.encode_name,
        type=plain,
        default=info.default if info.default_factory is NODEFAULT else info.default_factory(),
        unit=next((note for note in notes if isinstance(note, Unit)), None),
        update=_last(notes, UpdateClass) or UpdateClass.IN_PLACE,
        in_json=frozenset(in_json),
        in_diff=next((note for note in notes if isinstance(note, InDiff)), None),
        diff_name=next((note.name for note in notes if isinstance(note, Named)), ""),
        doc=next((note for note in notes if isinstance(note, str)), ""),
    )


def _last(notes: tuple[Any, ...], kind: type[UpdateClass]) -> UpdateClass | None:
    return next((note for note in reversed(notes) if isinstance(note, kind)), None)
