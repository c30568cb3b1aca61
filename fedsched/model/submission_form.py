"""A job in the API form with the front end's defaults filled in: what clients send who leave little to the server.

`job_submission` turns a request into a record; this gives the request itself, filled, because that is what the parse
endpoint answers when asked to canonicalise, and what `job run -output` prints. Datacenters and node pool stay open:
only the server knows their defaults.
"""

from __future__ import annotations

import copy
from typing import Any

from fedsched.model.api_form import to_api
from fedsched.model.constraint import Affinity, Spread
from fedsched.model.job import (
    DEFAULT_NAMESPACE,
    DEFAULT_PRIORITY,
    DEFAULT_REGION,
    JobType,
    PeriodicConfig,
    behaves_as,
)
from fedsched.model.job_defaults import CONSUL, MIGRATE, RESCHEDULE, RESTART, UPDATE, WITH_MIGRATE, WITH_UPDATE
from fedsched.model.policies import EphemeralDisk
from fedsched.model.service import CheckRestart
from fedsched.model.task import ChangeScript, LogConfig, Template
from fedsched.model.volume import VolumeMount, VolumeRequest

Tree = dict[str, Any]

_DEFAULT_CONSUL: Tree = {"Cluster": "default", "Namespace": "", "Partition": ""}


def with_defaults(job: Tree) -> Tree:
    """Give the job filled in; the one given is not touched. Exact names are expected, as `tidy` or a job file gives."""
    filled = copy.deepcopy(job)
    _fill_job(filled)
    return filled


def _fill_job(job: Tree) -> None:
    _under(job, {"Region": DEFAULT_REGION, "Namespace": DEFAULT_NAMESPACE, "Type": JobType.SERVICE.value})
    kind = behaves_as(job["Type"])
    _under(job, {"Priority": DEFAULT_PRIORITY, "AllAtOnce": False, "Name": job.get("ID", "")})
    said_update = job.get("Update") or {}
    if kind in WITH_UPDATE:
        job["Update"] = to_api(UPDATE) | said_update
    if job.get("Periodic") is not None:
        job["Periodic"] = to_api(PeriodicConfig()) | job["Periodic"]
    if job.get("ParameterizedJob") is not None:
        _under(job["ParameterizedJob"], {"Payload": "optional"})
    _fill_placement(job)
    for group in job.get("TaskGroups") or ():
        _fill_group(group, job, kind)


def _fill_placement(level: Tree) -> None:
    for affinity in level.get("Affinities") or ():
        _under(affinity, {"Weight": Affinity().weight})
    for spread in level.get("Spreads") or ():
        _under(spread, {"Weight": Spread().weight})


def _fill_group(group: Tree, job: Tree, kind: str) -> None:
    scaling = group.get("Scaling")
    _under(group, {"Count": (scaling or {}).get("Min", 1)})
    if scaling is not None:
        _under(scaling, {"Min": group["Count"], "Enabled": True, "Type": "horizontal"})
    group["EphemeralDisk"] = to_api(EphemeralDisk()) | (group.get("EphemeralDisk") or {})
    if kind in RESTART:
        group["RestartPolicy"] = to_api(RESTART[kind]) | (group.get("RestartPolicy") or {})
    if kind in RESCHEDULE:
        said = (job.get("Reschedule") or {}) | (group.get("ReschedulePolicy") or {})
        group["ReschedulePolicy"] = to_api(RESCHEDULE[kind]) | said
    if kind in WITH_UPDATE:
        group["Update"] = job["Update"] | (group.get("Update") or {})
    if kind in WITH_MIGRATE:
        group["Migrate"] = to_api(MIGRATE) | (job.get("Migrate") or {}) | (group.get("Migrate") or {})
    if group.get("Disconnect") is not None:
        _under(group["Disconnect"], {"Replace": True, "Reconcile": "best_score"})
    if group.get("Consul") is not None:
        group["Consul"] = _DEFAULT_CONSUL | group["Consul"]
    for name, volume in (group.get("Volumes") or {}).items():
        _under(volume, to_api(VolumeRequest()) | {"Name": name})
    _fill_placement(group)
    for service in group.get("Services") or ():
        _fill_service(service, f"{job['Name']}-{group.get('Name', '')}")
    for task in group.get("Tasks") or ():
        _fill_task(task, group, job)


def _fill_task(task: Tree, group: Tree, job: Tree) -> None:
    _under(task, {"KillTimeout": 5_000_000_000})
    task["RestartPolicy"] = (group.get("RestartPolicy") or {}) | (task.get("RestartPolicy") or {})
    task["LogConfig"] = to_api(LogConfig()) | (task.get("LogConfig") or {})
    resources = task.setdefault("Resources", {})
    cores = resources.get("Cores", 0)
    _under(resources, {"CPU": 0 if cores else 100, "Cores": 0, "MemoryMB": 300})
    for device in resources.get("Devices") or ():
        _under(device, {"Count": 1})
        _fill_placement(device)
    for template in task.get("Templates") or ():
        _fill_template(template)
    for artifact in task.get("Artifacts") or ():
        _fill_artifact(artifact)
    for mount in task.get("VolumeMounts") or ():
        _under(mount, {"PropagationMode": "private"} | to_api(VolumeMount()))
        mount["PropagationMode"] = mount["PropagationMode"] or "private"
    if task.get("Consul") is not None:
        task["Consul"] = _DEFAULT_CONSUL | task["Consul"]
    if task.get("Vault") is not None:
        _under(task["Vault"], {"Cluster": "default", "Namespace": ""})
    _fill_placement(task)
    for service in task.get("Services") or ():
        _fill_service(service, f"{job['Name']}-{group.get('Name', '')}-{task.get('Name', '')}")


def _fill_template(template: Tree) -> None:
    _under(template, to_api(Template()))
    template["ChangeSignal"] = (template["ChangeSignal"] or "").upper()
    if template["ChangeMode"] == "signal" and not template["ChangeSignal"]:
        template["ChangeSignal"] = "SIGHUP"
    if template.get("ChangeScript") is not None:
        _under(template["ChangeScript"], to_api(ChangeScript()))


def _fill_artifact(artifact: Tree) -> None:
    _under(artifact, {"GetterMode": "any", "GetterInsecure": False})
    if not artifact.get("RelativeDest"):
        source = str(artifact.get("GetterSource", "")).split("?")[0]
        is_file = artifact["GetterMode"] == "file"
        artifact["RelativeDest"] = f"local/{source.rstrip('/').rpartition('/')[2]}" if is_file else "local/"


def _fill_service(service: Tree, name: str) -> None:
    for key, value in {
        "Name": name,
        "AddressMode": "auto",
        "OnUpdate": "require_healthy",
        "Provider": CONSUL,
        "Cluster": "default",
    }.items():
        service[key] = service.get(key) or value
    common = service.get("CheckRestart")
    for check in service.get("Checks") or ():
        check["OnUpdate"] = check.get("OnUpdate") or service["OnUpdate"]
        own = check.get("CheckRestart")
        if common is not None or own is not None:
            check["CheckRestart"] = to_api(CheckRestart()) | (common or {}) | (own or {})


def _under(tree: Tree, defaults: Tree) -> None:
    """Put defaults below what is there; null counts as not there."""
    for name, value in defaults.items():
        if tree.get(name) is None and value is not None:
            tree[name] = copy.deepcopy(value)
