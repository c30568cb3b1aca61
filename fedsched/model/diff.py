"""What differs between two records, as a tree like Nomad's job diff, read off the declarations.

Two rules give Nomad's look. A job, a group and a task show only the fields that differ. Any other record that differs
is shown whole, unchanged fields with type `None`, so that a reader sees the change in its place. Items of a list are
matched by their key where their class declares one (a service by its name), else an item is either there or not.

Bookkeeping fields (status, indexes, times) never show; what else stays out of a diff is said where it is declared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, get_args, get_origin

from fedsched.model.api_form import field_to_api
from fedsched.model.compare import same_spec
from fedsched.model.declare import FieldInfo, InDiff, UpdateClass, fields_of, is_record, strip_none
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.record import EMPTY, Record
from fedsched.model.task import Task


class DiffType(StrEnum):
    NONE = "None"
    ADDED = "Added"
    DELETED = "Deleted"
    EDITED = "Edited"


class FieldDiff(Record):
    """One value that differs, or stands beside one that does."""

    type: DiffType
    name: str
    old: str = ""
    new: str = ""
    annotations: tuple[str, ...] = ()


class ObjectDiff(Record):
    """One record that differs."""

    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] = ()
    objects: tuple[ObjectDiff, ...] = ()


class TaskDiff(Record):
    """One task; shown even when nothing differs."""

    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] = ()
    objects: tuple[ObjectDiff, ...] = ()
    annotations: tuple[str, ...] = ()


class TaskGroupDiff(Record):
    """One group; shown even when nothing differs."""

    type: DiffType
    name: str
    fields: tuple[FieldDiff, ...] = ()
    objects: tuple[ObjectDiff, ...] = ()
    tasks: tuple[TaskDiff, ...] = ()
    updates: Annotated[dict[str, int], "What a plan does to the group, in numbers."] = EMPTY


class JobDiff(Record):
    """What differs between two versions of a job."""

    type: DiffType
    id: str
    fields: tuple[FieldDiff, ...] = ()
    objects: tuple[ObjectDiff, ...] = ()
    task_groups: tuple[TaskGroupDiff, ...] = ()


def diff_jobs(old: Job | None, new: Job | None) -> JobDiff:
    """Compare two versions of a job; None stands for a job that does not exist (yet, or any more)."""
    assert old is not None or new is not None, "nothing to compare"
    fields, objects = _parts(old, new, whole=False, leave_out=("id", "task_groups"))
    groups = _paired(old.task_groups if old else (), new.task_groups if new else (), _diff_groups)
    kind = _kind(old, new, bool(fields or objects) or any(group.type != DiffType.NONE for group in groups))
    some = new if new is not None else old
    assert some is not None
    return JobDiff(type=kind, id=some.id, fields=fields, objects=objects, task_groups=groups)


def diff_records(old: Record | None, new: Record | None, name: str) -> ObjectDiff:
    """Compare two records of one class, whole; type `None` when they are equal as specifications."""
    fields, objects = _parts(old, new, whole=True)
    changed = bool(objects) or any(field.type != DiffType.NONE for field in fields)
    return ObjectDiff(type=_kind(old, new, changed), name=name, fields=fields, objects=objects)


def _diff_groups(old: TaskGroup | None, new: TaskGroup | None, name: str) -> TaskGroupDiff:
    fields, objects = _parts(old, new, whole=False, leave_out=("name", "tasks"))
    tasks = _paired(old.tasks if old else (), new.tasks if new else (), _diff_tasks)
    kind = _kind(old, new, bool(fields or objects) or any(task.type != DiffType.NONE for task in tasks))
    return TaskGroupDiff(type=kind, name=name, fields=fields, objects=objects, tasks=tasks)


def _diff_tasks(old: Task | None, new: Task | None, name: str) -> TaskDiff:
    fields, objects = _parts(old, new, whole=False, leave_out=("name",))
    return TaskDiff(type=_kind(old, new, bool(fields or objects)), name=name, fields=fields, objects=objects)


def _paired(old: tuple[Any, ...], new: tuple[Any, ...], compare: Callable[[Any, Any, str], Any]) -> tuple[Any, ...]:
    """Compare items that belong together by name, in the order of their names."""
    before = {item.name: item for item in old}
    after = {item.name: item for item in new}
    return tuple(compare(before.get(name), after.get(name), name) for name in sorted(before.keys() | after.keys()))


def _parts(
    old: Record | None, new: Record | None, *, whole: bool, leave_out: tuple[str, ...] = ()
) -> tuple[tuple[FieldDiff, ...], tuple[ObjectDiff, ...]]:
    """Give what differs in the plain fields, and in the records and lists below."""
    some = new if new is not None else old
    assert some is not None
    before: dict[str, str] = {}
    after: dict[str, str] = {}
    objects: list[ObjectDiff] = []
    for info in fields_of(type(some)):
        if info.name in leave_out or not _shows(info, old, new):
            continue
        one = None if old is None else getattr(old, info.name)
        two = None if new is None else getattr(new, info.name)
        if _is_plain(info):
            _put(before, info, one)
            _put(after, info, two)
        elif one != two:
            objects += _objects(info, one, two)
    return _field_diffs(before, after, whole), tuple(objects)


def _shows(info: FieldInfo, old: Record | None, new: Record | None) -> bool:
    if info.update is UpdateClass.BOOKKEEPING or info.in_diff is InDiff.NEVER or not info.in_api:
        return False
    if info.in_diff is InDiff.CHANGES_ONLY:
        return old is not None and new is not None
    return True


def _is_plain(info: FieldInfo) -> bool:
    """Whether the field shows among its record's own: scalars, and maps of texts (as `Meta[key]`)."""
    kind = strip_none(info.type)[0]
    if get_origin(kind) is dict:
        return get_args(kind)[1] is str
    return get_origin(kind) is None and not is_record(kind)


def _put(flat: dict[str, str], info: FieldInfo, value: Any) -> None:
    if value is None or (info.in_diff is InDiff.UNLESS_ZERO and not value):
        return
    if isinstance(value, dict):
        flat.update({f"{info.api_name}[{key}]": item for key, item in value.items()})
    else:
        flat[info.api_name] = _text(field_to_api(info, value))


def _objects(info: FieldInfo, old: Any, new: Any) -> list[ObjectDiff]:
    """Compare two values of a field that holds records, lists or free-form data."""
    kind = strip_none(info.type)[0]
    if is_record(kind):
        diff = diff_records(old, new, info.api_name)
        return [diff] if diff.type is not DiffType.NONE else []
    item = get_args(kind)[-1] if get_origin(kind) is dict else get_args(kind)[0]
    if get_origin(kind) is dict:
        if is_record(item):
            return _map_of_records(info.diff_name or item.__name__, old or {}, new or {})
        return _flat_object(info.api_name, _flatten(old), _flatten(new), old is None, new is None)
    if is_record(item):
        return _list_of_records(info.diff_name or item.__name__, item.diff_key, old or (), new or ())
    return _set_object(info.api_name, old or (), new or ())


def _map_of_records(name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[ObjectDiff]:
    found = [diff_records(old.get(key), new.get(key), name) for key in sorted(old.keys() | new.keys())]
    return [diff for diff in found if diff.type != DiffType.NONE]


def _list_of_records(name: str, key: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> list[ObjectDiff]:
    if key:
        return _map_of_records(name, _by_key(old, key), _by_key(new, key))
    gone = [diff_records(item, None, name) for item in old if not any(same_spec(item, other) for other in new)]
    come = [diff_records(None, item, name) for item in new if not any(same_spec(item, other) for other in old)]
    return sorted(gone + come, key=lambda diff: [(field.name, field.old, field.new) for field in diff.fields])


def _by_key(items: tuple[Any, ...], key: str) -> dict[str, Any]:
    """Index by key; a second item of one key gets a key of its own rather than hiding the first."""
    index: dict[str, Any] = {}
    for i, item in enumerate(items):
        value = getattr(item, key)
        index[value if value not in index else f"{value} #{i}"] = item
    return index


def _set_object(name: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> list[ObjectDiff]:
    """Compare lists of texts or numbers as sets: each value came, went or stayed."""
    before, after = {_text(value) for value in old}, {_text(value) for value in new}
    fields = [
        FieldDiff(type=DiffType.ADDED, name=name, new=value)
        if value not in before
        else FieldDiff(type=DiffType.DELETED, name=name, old=value)
        if value not in after
        else FieldDiff(type=DiffType.NONE, name=name, old=value, new=value)
        for value in sorted(before | after)
    ]
    if all(field.type == DiffType.NONE for field in fields):
        return []
    kind = DiffType.ADDED if not before else DiffType.DELETED if not after else DiffType.EDITED
    return [ObjectDiff(type=kind, name=name, fields=tuple(sorted(fields, key=lambda field: (field.old, field.new))))]


def _flat_object(
    name: str, before: dict[str, str], after: dict[str, str], was_absent: bool, is_absent: bool
) -> list[ObjectDiff]:
    fields = _field_diffs(before, after, whole=True)
    if before == after and was_absent == is_absent:
        return []
    kind = DiffType.ADDED if not before else DiffType.DELETED if not after else DiffType.EDITED
    return [ObjectDiff(type=kind, name=name, fields=fields)]


def _field_diffs(before: dict[str, str], after: dict[str, str], whole: bool) -> tuple[FieldDiff, ...]:
    found = [
        _field_diff(name, before.get(name, ""), after.get(name, "")) for name in sorted(before.keys() | after.keys())
    ]
    return tuple(field for field in found if whole or field.type != DiffType.NONE)


def _field_diff(name: str, old: str, new: str) -> FieldDiff:
    if old == new:
        return FieldDiff(type=DiffType.NONE, name=name, old=old, new=new)
    kind = DiffType.ADDED if old == "" else DiffType.DELETED if new == "" else DiffType.EDITED
    return FieldDiff(type=kind, name=name, old=old, new=new)


def _flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Give free-form data as one level of texts: `args[0]`, `logging[0][type]`."""
    if isinstance(value, dict):
        pairs = [(f"{prefix}[{key}]" if prefix else str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        pairs = [(f"{prefix}[{i}]", item) for i, item in enumerate(value)]
    elif value is None:
        return {}
    else:
        return {prefix: _text(value)}
    flat: dict[str, str] = {}
    for key, item in pairs:
        flat.update(_flatten(item, key))
    return flat


def _kind(old: Any, new: Any, changed: bool) -> DiffType:
    if old is None:
        return DiffType.ADDED
    if new is None:
        return DiffType.DELETED
    return DiffType.EDITED if changed else DiffType.NONE


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
