"""What a plan would do, written into the diff that caused it: which change forces what."""

from __future__ import annotations

from msgspec.structs import replace

from fedsched.model.compare import update_class
from fedsched.model.diff import DiffType, FieldDiff, JobDiff, TaskDiff, TaskGroupDiff
from fedsched.model.job import Job
from fedsched.model.plan import DesiredUpdates, PlanAnnotations
from fedsched.model.record import UpdateClass

FORCES_CREATE = "forces create"
FORCES_DESTROY = "forces destroy"
FORCES_IN_PLACE = "forces in-place update"
FORCES_DESTRUCTIVE = "forces create/destroy update"

_UPDATE_WORDS = {
    "ignore": "ignore",
    "place": "create",
    "migrate": "migrate",
    "stop": "destroy",
    "in_place_update": "in-place update",
    "destructive_update": "create/destroy update",
    "canary": "canary",
    "preemptions": "preemptions",
    "disconnect": "disconnect",
    "reconnect": "reconnect",
    "reschedule_now": "reschedule now",
    "reschedule_later": "reschedule later",
}


def annotated(diff: JobDiff, old: Job | None, new: Job | None, annotations: PlanAnnotations | None) -> JobDiff:
    """Give the diff with each group's numbers and each change's consequence."""
    groups = tuple(_group(group, old, new, annotations) for group in diff.task_groups)
    return replace(diff, task_groups=groups)


def _group(diff: TaskGroupDiff, old: Job | None, new: Job | None, annotations: PlanAnnotations | None) -> TaskGroupDiff:
    planned = annotations.desired_tg_updates.get(diff.name) if annotations else None
    return replace(
        diff,
        fields=tuple(_count(field) for field in diff.fields),
        tasks=tuple(_task(task, diff, old, new) for task in diff.tasks),
        updates=_numbers(planned) if planned else {},
    )


def _numbers(planned: DesiredUpdates) -> dict[str, int]:
    return {word: getattr(planned, name) for name, word in _UPDATE_WORDS.items() if getattr(planned, name)}


def _count(field: FieldDiff) -> FieldDiff:
    if field.name != "Count" or field.type is DiffType.NONE:
        return field
    grows = int(field.new or 0) > int(field.old or 0)
    return replace(field, annotations=(FORCES_CREATE if grows else FORCES_DESTROY,))


def _task(diff: TaskDiff, group: TaskGroupDiff, old: Job | None, new: Job | None) -> TaskDiff:
    if diff.type is DiffType.NONE:
        return diff
    if group.type is DiffType.ADDED:
        return replace(diff, annotations=(FORCES_CREATE,))
    if group.type is DiffType.DELETED:
        return replace(diff, annotations=(FORCES_DESTROY,))
    destructive = diff.type is not DiffType.EDITED or _is_destructive(diff.name, group.name, old, new)
    return replace(diff, annotations=(FORCES_DESTRUCTIVE if destructive else FORCES_IN_PLACE,))


def _is_destructive(task: str, group: str, old: Job | None, new: Job | None) -> bool:
    before = old.group(group) if old else None
    after = new.group(group) if new else None
    one = before.task(task) if before else None
    two = after.task(task) if after else None
    assert one is not None, "an edited task exists before"
    assert two is not None, "an edited task exists after"
    return update_class(one, two) is UpdateClass.DESTRUCTIVE
