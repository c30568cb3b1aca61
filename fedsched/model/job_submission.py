"""From what a client sent to a job: the defaults that depend on what was *not* said.

A record cannot tell "not said" from "said as usual", so this works on the request itself: a block that says one thing
about restarts keeps that and takes the rest from the defaults of the job's type; a group's update block lies over the
job's; a task's restart block over its group's. Everything else is `job_defaults.canonicalise`.
"""

from __future__ import annotations

from typing import Any

from fedsched.model.api_form import from_api, tidy, to_api
from fedsched.model.job import Job, behaves_as
from fedsched.model.job_defaults import MIGRATE, RESCHEDULE, RESTART, UPDATE, WITH_MIGRATE, WITH_UPDATE
from fedsched.model.policies import NO_UPDATE
from fedsched.model.service import CheckRestart

Tree = dict[str, Any]


def from_submission(plain: Any, *, unknown: list[str] | None = None) -> Job:
    """Read a job as clients send it. Raises `Malformed` with the path of what does not fit."""
    from_api(Job, plain, unknown=unknown)  # every value is of its kind after this
    tree: Tree = tidy(Job, plain)
    _fill_job(tree)
    return from_api(Job, tree)


def job_within(value: Any) -> Tree | None:
    """Find the job in a decoded JSON file of the API's form: under "Job", or the file as a whole.

    None for anything else, such as job language in JSON, which has the job under its name: {"job": {"web": {...}}}.
    """
    if not isinstance(value, dict):
        return None
    for name in ("Job", "job"):
        inner = value.get(name)
        if isinstance(inner, dict) and (name == "Job" or _is_job(inner)):
            return inner
    return value if _is_job(value) else None


def _is_job(value: Tree) -> bool:
    return any(key.lower() in ("id", "taskgroups") and not isinstance(item, dict) for key, item in value.items())


def _fill_job(job: Tree) -> None:
    kind = behaves_as(job.get("Type") or "")
    for group in job.get("TaskGroups", ()):
        _fill_group(group, job, kind)
    said = job.pop("Update", {})
    job.pop("Reschedule", None)
    job.pop("Migrate", None)
    if kind in WITH_UPDATE:
        # Only these two live on at the job; the rest has gone into the groups.
        job["Update"] = {**_ZERO_UPDATE, **{key: said.get(key, _UPDATE[key]) for key in ("Stagger", "MaxParallel")}}
    periodic = job.get("Periodic")
    if periodic and periodic.get("SpecType") == "":
        del periodic["SpecType"]


def _fill_group(group: Tree, job: Tree, kind: str) -> None:
    if "Count" not in group:
        group["Count"] = group.get("Scaling", {}).get("Min", 1)
    if "Scaling" in group:
        group["Scaling"].setdefault("Min", group["Count"])
    if kind in RESTART:
        group["RestartPolicy"] = {**to_api(RESTART[kind]), **group.get("RestartPolicy", {})}
    if kind in RESCHEDULE:
        said = {**job.get("Reschedule", {}), **group.get("ReschedulePolicy", {})}
        group["ReschedulePolicy"] = {**to_api(RESCHEDULE[kind]), **said}
    if kind in WITH_UPDATE:
        group["Update"] = {**_UPDATE, **job.get("Update", {}), **group.get("Update", {})}
    if kind in WITH_MIGRATE:
        group["Migrate"] = {**to_api(MIGRATE), **job.get("Migrate", {}), **group.get("Migrate", {})}
    for service in group.get("Services", ()):
        _fill_service(service)
    for task in group.get("Tasks", ()):
        _fill_task(task, group)


def _fill_task(task: Tree, group: Tree) -> None:
    task["RestartPolicy"] = {**group.get("RestartPolicy", {}), **task.get("RestartPolicy", {})}
    if not task["RestartPolicy"]:
        del task["RestartPolicy"]
    resources = task.get("Resources")
    if resources and resources.get("Cores"):
        resources.setdefault("CPU", 0)
    logs = task.get("LogConfig")
    if logs and "Enabled" in logs:
        logs["Disabled"] = logs.get("Disabled", False) or not logs.pop("Enabled")
    for artifact in task.get("Artifacts", ()):
        _fill_artifact(artifact)
    for service in task.get("Services", ()):
        _fill_service(service)


def _fill_artifact(artifact: Tree) -> None:
    """A single file lands under its own name; anything else in the task's own directory."""
    if artifact.get("GetterMode") == "file" and not artifact.get("RelativeDest"):
        source = artifact.get("GetterSource", "").split("?")[0]
        artifact["RelativeDest"] = f"local/{source.rstrip('/').rpartition('/')[2]}"
    elif artifact.get("RelativeDest") == "":
        del artifact["RelativeDest"]


def _fill_service(service: Tree) -> None:
    """The service's restart rule lies under each check's own; it does not itself stay."""
    common = service.pop("CheckRestart", None)
    for check in service.get("Checks", ()):
        if common is not None or "CheckRestart" in check:
            check["CheckRestart"] = {**_CHECK_RESTART, **(common or {}), **check.get("CheckRestart", {})}


_CHECK_RESTART: Tree = to_api(CheckRestart())
_UPDATE: Tree = to_api(UPDATE)
_ZERO_UPDATE: Tree = to_api(NO_UPDATE)
