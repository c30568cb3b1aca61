"""A job's difference for people: what is added, removed and changed, and what each change forces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fedsched.model.diff import DiffType, FieldDiff, JobDiff, ObjectDiff, TaskDiff, TaskGroupDiff

MARKS: Final = {DiffType.ADDED: "+  ", DiffType.DELETED: "-  ", DiffType.EDITED: "+/-", DiffType.NONE: "   "}
STEP: Final = "  "


def diff_lines(diff: JobDiff, *, verbose: bool) -> Iterator[str]:
    """The difference, a line per change; what did not change only with `verbose`."""
    yield f'{MARKS[diff.type]} Job: "{diff.id}"'
    yield from _inside(diff.fields, diff.objects, "", verbose)
    for group in diff.task_groups:
        yield from _group(group, verbose)


def _group(group: TaskGroupDiff, verbose: bool) -> Iterator[str]:
    numbers = [f"{count} {what}" for what, count in sorted(group.updates.items()) if count]
    updates = f" ({', '.join(numbers)})" if numbers else ""
    yield f'{MARKS[group.type]} Task Group: "{group.name}"{updates}'
    yield from _inside(group.fields, group.objects, STEP, verbose)
    for task in group.tasks:
        yield from _task(task, verbose)


def _task(task: TaskDiff, verbose: bool) -> Iterator[str]:
    yield f'{STEP}{MARKS[task.type]} Task: "{task.name}"{_annotated(task.annotations)}'
    if task.type is DiffType.EDITED or verbose:
        yield from _inside(task.fields, task.objects, STEP * 2, verbose)


def _inside(fields: Sequence[FieldDiff], objects: Sequence[ObjectDiff], indent: str, verbose: bool) -> Iterator[str]:
    shown = [one for one in fields if one.type is not DiffType.NONE or verbose]
    pad = max((len(one.name) for one in shown), default=0)
    for one in shown:
        yield f"{indent}{MARKS[one.type]} {one.name}:{' ' * (pad - len(one.name))} {_values(one)}"
    for inner in objects:
        if inner.type is DiffType.NONE and not verbose:
            continue
        yield f"{indent}{MARKS[inner.type]} {inner.name} {{"
        yield from _inside(inner.fields, inner.objects, indent + STEP, verbose)
        yield f"{indent}    }}"


def _values(one: FieldDiff) -> str:
    if one.type is DiffType.ADDED:
        text = f'"{one.new}"'
    elif one.type is DiffType.EDITED:
        text = f'"{one.old}" => "{one.new}"'
    else:
        text = f'"{one.old}"'
    return text + _annotated(one.annotations)


def _annotated(annotations: Sequence[str]) -> str:
    return f" ({', '.join(annotations)})" if annotations else ""
