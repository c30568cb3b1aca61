"""The blocks of a job file, from the job down to its tasks: what the records leave open about each."""

from __future__ import annotations

from typing import Any, Final

from fedsched.jobspec.schema import Attr, Content, Kind, Nested, Schema, Shape, of_record, of_table
from fedsched.jobspec.schema_connect import CONNECT
from fedsched.jobspec.schema_placement import AFFINITY, CONSTRAINT, SPREAD
from fedsched.model.group import TaskGroup
from fedsched.model.identity import DEFAULT_IDENTITY, WorkloadIdentity
from fedsched.model.job import (
    Job,
    JobUIConfig,
    Multiregion,
    MultiregionRegion,
    MultiregionStrategy,
    ParameterizedJobConfig,
    PeriodicConfig,
)
from fedsched.model.network import CNIConfig, DNSConfig, NetworkResource, Port
from fedsched.model.policies import (
    DisconnectStrategy,
    EphemeralDisk,
    MigrateStrategy,
    ReschedulePolicy,
    RestartPolicy,
    UpdateStrategy,
)
from fedsched.model.resources import NUMAResource, RequestedDevice, Resources, TaskLifecycle
from fedsched.model.scaling import ScalingPolicy
from fedsched.model.service import CheckRestart, Service, ServiceCheck, ServiceWeights
from fedsched.model.task import (
    Action,
    ChangeScript,
    DispatchPayload,
    LogConfig,
    Secret,
    Task,
    TaskArtifact,
    Template,
    WaitConfig,
)
from fedsched.model.volume import VolumeMount, VolumeRequest

MANY, BY_LABEL = Shape.MANY, Shape.BY_LABEL
Tree = dict[str, Any]

_PLACEMENT: Final = (
    Nested("constraint", "Constraints", CONSTRAINT, MANY),
    Nested("affinity", "Affinities", AFFINITY, MANY),
)
_SPREAD: Final = Nested("spread", "Spreads", SPREAD, MANY)
_META: Final = Nested("meta", "Meta", Content.TEXT_MAP, as_attribute=True)
_META_BLOCK: Final = Nested("meta", "Meta", Content.TEXT_MAP)

RESTART: Final = of_record(RestartPolicy, "restart")
RESCHEDULE: Final = of_record(ReschedulePolicy, "reschedule")
UPDATE: Final = of_record(UpdateStrategy, "update")
MIGRATE: Final = of_record(MigrateStrategy, "migrate")
DISCONNECT: Final = of_record(DisconnectStrategy, "disconnect")
EPHEMERAL_DISK: Final = of_record(EphemeralDisk, "ephemeral_disk", keys={"size_mb": "size"})
VAULT: Final = of_table(
    "vault",
    {
        "policies": ("Policies", Kind.TEXTS),
        "role": ("Role", Kind.TEXT),
        "namespace": ("Namespace", Kind.TEXT),
        "cluster": ("Cluster", Kind.TEXT),
        "env": ("Env", Kind.TRUTH),
        "disable_file": ("DisableFile", Kind.TRUTH),
        "change_mode": ("ChangeMode", Kind.TEXT),
        "change_signal": ("ChangeSignal", Kind.TEXT),
        "allow_token_expiration": ("AllowTokenExpiration", Kind.TRUTH),
    },
    defaults={"env": True, "disable_file": False, "change_mode": "restart"},
)
CONSUL: Final = of_table(
    "consul",
    {
        "cluster": ("Cluster", Kind.TEXT),
        "namespace": ("Namespace", Kind.TEXT),
        "partition": ("Partition", Kind.TEXT),
    },
)
SECRET: Final = of_record(
    Secret,
    "secret",
    skip={"name"},
    plain=True,
    blocks=(Nested("config", "Config", Content.FREE), Nested("env", "Env", Content.TEXT_MAP)),
)
_VAULT: Final = Nested("vault", "Vault", VAULT)
_SECRETS: Final = Nested("secret", "Secrets", SECRET, MANY, "Name")


def _split_ports(network: Tree) -> None:
    """A port with a number is reserved, the others are handed out; both kinds of block may stand side by side."""
    ports = network.pop("Ports", []) + network.pop("ReservedPorts", [])
    for name, has_number in (("ReservedPorts", True), ("DynamicPorts", False)):
        chosen = [port for port in ports if (port.get("Value", 0) > 0) is has_number]
        if chosen:
            network[name] = chosen


PORT: Final = of_record(Port, "port", keys={"value": "static"}, skip={"label"}, plain=True)
NETWORK: Final = of_record(
    NetworkResource,
    "network",
    plain={"mode", "device", "cidr", "ip", "hostname"},
    blocks=(
        Nested("port", "Ports", PORT, MANY, "Label"),
        Nested("reserved_ports", "ReservedPorts", PORT, MANY, "Label"),
        Nested("dns", "DNS", of_record(DNSConfig, "dns")),
        Nested("cni", "CNI", of_record(CNIConfig, "cni")),
    ),
    finish=_split_ports,
)
IDENTITY: Final = of_record(WorkloadIdentity, "identity", keys={"audience": "aud"}, plain=True)
CHECK_RESTART: Final = of_record(CheckRestart, "check_restart", plain=True)
CHECK: Final = of_record(
    ServiceCheck,
    "check",
    keys={"port_label": "port", "task_name": "task"},
    plain=True,
    blocks=(
        Nested("header", "Header", Content.TEXT_LISTS),
        Nested("check_restart", "CheckRestart", CHECK_RESTART),
    ),
)
SERVICE: Final = of_record(
    Service,
    "service",
    keys={"port_label": "port", "task_name": "task"},
    skip={"namespace"},
    plain=True,
    blocks=(
        Nested("check", "Checks", CHECK, MANY),
        Nested("check_restart", "CheckRestart", CHECK_RESTART),
        Nested("connect", "Connect", CONNECT),
        _META_BLOCK,
        Nested("canary_meta", "CanaryMeta", Content.TEXT_MAP),
        Nested("tagged_addresses", "TaggedAddresses", Content.TEXT_MAP),
        Nested("weights", "Weights", of_record(ServiceWeights, "weights")),
        Nested("identity", "Identity", IDENTITY),
    ),
)
VOLUME: Final = of_record(
    VolumeRequest,
    "volume",
    skip={"name"},
    plain=True,
    blocks=(
        Nested(
            "mount_options",
            "MountOptions",
            of_table("mount_options", {"fs_type": ("FSType", Kind.TEXT), "mount_flags": ("MountFlags", Kind.TEXTS)}),
        ),
    ),
)
_POLICY: Final = Nested("policy", "Policy", Content.FREE)
_SCALING_SKIPS: Final = {"id", "target", "create_index", "modify_index"}
SCALING: Final = of_record(
    ScalingPolicy,
    "scaling",
    skip=_SCALING_SKIPS,
    blocks=(_POLICY,),
    required={"max"},
    defaults={"type": "horizontal"},
    choices={"type": ("horizontal",)},
)
_VERTICAL: Final = {"cpu": "vertical_cpu", "mem": "vertical_mem"}
TASK_SCALING: Final = of_record(
    ScalingPolicy, "scaling", skip={*_SCALING_SKIPS, "type"}, blocks=(_POLICY,), required={"max"}
)
ARTIFACT: Final = of_record(
    TaskArtifact,
    "artifact",
    keys={
        "getter_source": "source",
        "getter_mode": "mode",
        "getter_insecure": "insecure",
        "relative_dest": "destination",
    },
    plain={"chown"},
    skip={"getter_options", "getter_headers"},
    blocks=(
        Nested("options", "GetterOptions", Content.TEXT_MAP),
        Nested("headers", "GetterHeaders", Content.TEXT_MAP),
    ),
)
CHANGE_SCRIPT: Final = of_record(
    ChangeScript,
    "change_script",
    defaults={"timeout_s": 5_000_000_000, "fail_on_error": False, "run_on_first_render": False},
)
TEMPLATE: Final = of_record(
    Template,
    "template",
    keys={
        "source_path": "source",
        "dest_path": "destination",
        "embedded_tmpl": "data",
        "left_delim": "left_delimiter",
        "right_delim": "right_delimiter",
        "envvars": "env",
        "err_missing_key": "error_on_missing_key",
    },
    blocks=(
        Nested("change_script", "ChangeScript", CHANGE_SCRIPT),
        Nested("wait", "Wait", of_record(WaitConfig, "wait")),
    ),
    defaults={"change_mode": "restart", "perms": "0644", "splay_s": 5_000_000_000, "err_missing_key": False},
)
DEVICE: Final = of_record(RequestedDevice, "device", skip={"name"}, blocks=_PLACEMENT)
RESOURCES: Final = of_record(
    Resources,
    "resources",
    keys={"memory_mb": "memory", "memory_max_mb": "memory_max", "disk_mb": "disk", "secrets_mb": "secrets"},
    blocks=(
        Nested("network", "Networks", NETWORK, MANY),
        Nested("device", "Devices", DEVICE, MANY, "Name"),
        Nested("numa", "NUMA", of_record(NUMAResource, "numa")),
    ),
)
_SCHEDULE_CRON: Final = of_table(
    "cron", {"start": ("Start", Kind.TEXT), "end": ("End", Kind.TEXT), "timezone": ("Timezone", Kind.TEXT)}
)
_CSI_PLUGIN: Final = of_table(
    "csi_plugin",
    {
        "id": ("ID", Kind.TEXT),
        "type": ("Type", Kind.TEXT),
        "mount_dir": ("MountDir", Kind.TEXT),
        "stage_publish_base_dir": ("StagePublishBaseDir", Kind.TEXT),
        "health_timeout": ("HealthTimeout", Kind.DURATION),
    },
)


def _sort_identities(task: Tree) -> None:
    """The first identity without a name of its own is the task's default one; the rest are extra."""
    rest = task.pop("Identities", [])
    for i, identity in enumerate(rest):
        if identity.get("Name", "") in ("", DEFAULT_IDENTITY):
            task["Identity"] = rest.pop(i)
            break
    if rest:
        task["Identities"] = rest


LOGS: Final = of_record(LogConfig, "logs", keys={"max_file_size_mb": "max_file_size"})
TASK: Final = of_record(
    Task,
    "task",
    skip={"name"},
    plain={"driver", "user", "leader", "kill_signal", "kind"},
    blocks=(
        Nested("config", "Config", Content.FREE),
        Nested("env", "Env", Content.TEXT_MAP, as_attribute=True),
        _META,
        *_PLACEMENT,
        _VAULT,
        _SECRETS,
        Nested("resources", "Resources", RESOURCES),
        Nested("restart", "RestartPolicy", RESTART),
        Nested("lifecycle", "Lifecycle", of_record(TaskLifecycle, "lifecycle", plain=True, required={"hook"})),
        Nested("logs", "LogConfig", LOGS),
        Nested("artifact", "Artifacts", ARTIFACT, MANY),
        Nested("template", "Templates", TEMPLATE, MANY),
        Nested("volume_mount", "VolumeMounts", of_record(VolumeMount, "volume_mount"), MANY),
        Nested("dispatch_payload", "DispatchPayload", of_record(DispatchPayload, "dispatch_payload", plain=True)),
        Nested("action", "Actions", of_record(Action, "action", skip={"name"}, plain=True), MANY, "Name"),
        Nested("identity", "Identities", IDENTITY, MANY),
        Nested("service", "Services", SERVICE, MANY),
        Nested("scaling", "ScalingPolicies", TASK_SCALING, MANY, "Type", label_words=_VERTICAL),
        Nested("schedule", "Schedule", of_table("schedule", {}, (Nested("cron", "Cron", _SCHEDULE_CRON),))),
        Nested("consul", "Consul", CONSUL),
        Nested("csi_plugin", "CSIPluginConfig", _CSI_PLUGIN),
    ),
    finish=_sort_identities,
)
_TASKS: Final = Nested("task", "Tasks", TASK, MANY, "Name")
GROUP: Final = of_record(
    TaskGroup,
    "group",
    skip={"name"},
    blocks=(
        *_PLACEMENT,
        _SPREAD,
        _META,
        _VAULT,
        _SECRETS,
        _TASKS,
        Nested("restart", "RestartPolicy", RESTART),
        Nested("reschedule", "ReschedulePolicy", RESCHEDULE),
        Nested("update", "Update", UPDATE),
        Nested("migrate", "Migrate", MIGRATE),
        Nested("disconnect", "Disconnect", DISCONNECT),
        Nested("ephemeral_disk", "EphemeralDisk", EPHEMERAL_DISK),
        Nested("network", "Networks", NETWORK, MANY),
        Nested("service", "Services", SERVICE, MANY),
        Nested("volume", "Volumes", VOLUME, BY_LABEL, "Name"),
        Nested("scaling", "Scaling", SCALING),
        Nested("consul", "Consul", CONSUL),
    ),
)
_REGION: Final = of_record(MultiregionRegion, "region", skip={"name"}, blocks=(_META_BLOCK,))
MULTIREGION: Final = of_record(
    Multiregion,
    "multiregion",
    blocks=(
        Nested("strategy", "Strategy", of_record(MultiregionStrategy, "strategy")),
        Nested("region", "Regions", _REGION, MANY, "Name"),
    ),
)


def _cron_by_name(periodic: Tree) -> None:
    if "Spec" in periodic or "Specs" in periodic:
        periodic["SpecType"] = "cron"


PERIODIC: Final = of_record(
    PeriodicConfig,
    "periodic",
    keys={"spec": "cron", "specs": "crons"},
    skip={"spec_type"},
    finish=_cron_by_name,
)
UI: Final = of_record(
    JobUIConfig,
    "ui",
    plain=True,
    blocks=(
        Nested("link", "Links", of_table("link", {"label": ("Label", Kind.TEXT), "url": ("URL", Kind.TEXT)}), MANY),
    ),
)
_JOB_KEYS: Final = ("id", "name", "region", "namespace", "type", "priority", "all_at_once", "datacenters", "node_pool")


def _whole_job() -> Schema:
    derived = of_record(Job, "job")
    attrs: dict[str, Attr] = {key: derived.attrs[key] for key in _JOB_KEYS}
    blocks = (
        *_PLACEMENT,
        _SPREAD,
        _META,
        _VAULT,
        _SECRETS,
        Nested("group", "TaskGroups", GROUP, MANY, "Name"),
        _TASKS,
        Nested("update", "Update", UPDATE),
        Nested("reschedule", "Reschedule", RESCHEDULE),
        Nested("migrate", "Migrate", MIGRATE),
        Nested("multiregion", "Multiregion", MULTIREGION),
        Nested("periodic", "Periodic", PERIODIC),
        Nested("parameterized", "ParameterizedJob", of_record(ParameterizedJobConfig, "parameterized", plain=True)),
        Nested("ui", "UI", UI),
    )
    return Schema("job", attrs, {block.key: block for block in blocks})


JOB: Final = _whole_job()
