"""Whether two versions of something differ as specifications, and what that means for what runs.

Both answers are read off the declarations: bookkeeping fields do not count, and each other field says whether a change
of it needs a new allocation or can be made in place.
"""

from __future__ import annotations

import functools
from typing import Any, get_args, get_origin

from fedsched.model.declare import FieldInfo, Record, UpdateClass, fields_of, is_record, strip_none


def same_spec(old: Record, new: Record) -> bool:
    """Whether two records ask for the same: status, indexes and times left aside, at every depth."""
    return update_class(old, new) is None


def update_class(old: Record, new: Record) -> UpdateClass | None:
    """Give the heaviest change between two records: None, in place, or destructive."""
    if old == new:
        return None
    assert type(old) is type(new), f"cannot compare {type(old).__name__} with {type(new).__name__}"
    heaviest: UpdateClass | None = None
    for info in fields_of(type(old)):
        one, two = getattr(old, info.name), getattr(new, info.name)
        if info.update is UpdateClass.BOOKKEEPING or one == two:
            continue
        found = _field_class(info, one, two)
        if found is UpdateClass.DESTRUCTIVE:
            return found
        heaviest = heaviest or found
    return heaviest


def _field_class(info: FieldInfo, old: Any, new: Any) -> UpdateClass | None:
    """Descend where both sides have the same records; otherwise the field itself was changed."""
    kind = strip_none(info.type)[0]
    pairs: list[tuple[Any, Any]] | None = None
    if is_record(kind):
        pairs = [(old, new)] if old is not None and new is not None else None
    elif get_origin(kind) is tuple and is_record(get_args(kind)[0]):
        pairs = _list_pairs(get_args(kind)[0].diff_key, old, new)
    elif get_origin(kind) is dict and is_record(get_args(kind)[1]):
        pairs = [(old[key], new[key]) for key in old] if old.keys() == new.keys() else None
    if pairs is None:
        return info.update
    classes = {update_class(one, two) for one, two in pairs}
    if UpdateClass.DESTRUCTIVE in classes:
        return UpdateClass.DESTRUCTIVE
    if UpdateClass.IN_PLACE in classes:
        return UpdateClass.IN_PLACE if _says_something(_record_of(kind)) else info.update
    return None


def _record_of(kind: Any) -> type[Record]:
    """The record that a field holds, or holds several of."""
    record: type[Record] = kind if is_record(kind) else get_args(kind)[1 if get_origin(kind) is dict else 0]
    return record


@functools.cache
def _says_something(record: type[Record]) -> bool:
    """Whether any field of the record, at any depth, says that its change is destructive.

    A record that says nothing of the kind (a constraint, DNS settings) changes as the field says that holds it.
    """
    for info in fields_of(record):
        kind = strip_none(info.type)[0]
        if info.update is UpdateClass.DESTRUCTIVE:
            return True
        inner = kind if is_record(kind) else next((arg for arg in get_args(kind) if is_record(arg)), None)
        if inner is not None and inner is not record and _says_something(inner):
            return True
    return False


def _list_pairs(key: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> list[tuple[Any, Any]] | None:
    """Pair items by key, or by place where they have none; None when the lists do not match up."""
    if len(old) != len(new):
        return None
    if not key:
        return list(zip(old, new, strict=True))
    before = {getattr(item, key): item for item in old}
    after = {getattr(item, key): item for item in new}
    return [(before[name], after[name]) for name in before] if before.keys() == after.keys() else None
