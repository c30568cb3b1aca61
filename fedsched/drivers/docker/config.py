"""What an operator says about the driver: where the engine is, what tasks may ask of it, and what is tidied up when.

Everything that reaches out of a container is off until it is allowed here.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedsched.drivers.docker.transport import Endpoint
from fedsched.drivers.docker.values import Values
from fedsched.drivers.driver import DriverError
from fedsched.drivers.task_schema import Field, Kind, TaskSchema

DEFAULT_ENDPOINTS: Final = {"docker": "unix:///var/run/docker.sock", "podman": "unix:///run/podman/podman.sock"}

DEFAULT_CAPS: Final = (
    *("audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod"),
    *("net_bind_service", "setfcap", "setgid", "setpcap", "setuid", "sys_chroot"),
)
"""What a container may do as root: neither raw sockets nor anything that reaches the host."""

DEFAULT_RUNTIMES: Final = ("runc", "nvidia")
DEFAULT_LOGGING: Final = {"max-file": "2", "max-size": "2m"}
"""The engine keeps little: its log is only the way from the container to ours."""

MODES: Final = ("pid", "ipc", "userns", "uts")

_SECTIONS: Final[Mapping[str, Mapping[str, Field]]] = {
    "auth": {
        "config": Field(Kind.TEXT, doc="A file in the form of Docker's `config.json`."),
        "helper": Field(Kind.TEXT, doc="The end of a `docker-credential-<helper>` program's name."),
    },
    "tls": {"cert": Field(Kind.TEXT), "key": Field(Kind.TEXT), "ca": Field(Kind.TEXT)},
    "logging": {
        "type": Field(Kind.TEXT, doc="The engine's log driver."),
        "config": Field(Kind.TEXT_MAP, doc="Options of the log driver."),
    },
    "dangling_containers": {
        "enabled": Field(Kind.BOOL),
        "period": Field(Kind.DURATION),
        "creation_grace": Field(Kind.DURATION),
        "dry_run": Field(Kind.BOOL, doc="Only say what would be removed."),
    },
    "volumes": {
        "enabled": Field(Kind.BOOL, doc="Tasks may mount paths and devices of the host and use volume drivers."),
        "selinuxlabel": Field(Kind.TEXT, doc="`z` or `Z`: how binds are labelled."),
    },
    "allowed_modes": {
        mode: Field(Kind.TEXTS, doc=f"Values of `{mode}_mode` beside the private one.") for mode in MODES
    },
}

SETTINGS_SCHEMA: Final = TaskSchema(
    {
        "endpoint": Field(Kind.TEXT, doc="`unix:///path`, or `tcp://host:port` together with `tls`."),
        "auth": Field(Kind.BLOCK, fields=_SECTIONS["auth"]),
        "tls": Field(Kind.BLOCK, fields=_SECTIONS["tls"]),
        "extra_labels": Field(Kind.TEXTS, doc="Globs of the labels to add: `job_*`, `node_id`, ..."),
        "logging": Field(Kind.BLOCK, fields=_SECTIONS["logging"]),
        "gc": Field(
            Kind.BLOCK,
            fields={
                "image": Field(Kind.BOOL, doc="Remove images that no task uses any more."),
                "image_delay": Field(Kind.DURATION, doc="How long after their last use."),
                "container": Field(Kind.BOOL, doc="Remove containers when their task is over."),
                "dangling_containers": Field(Kind.BLOCK, fields=_SECTIONS["dangling_containers"]),
            },
        ),
        "volumes": Field(Kind.BLOCK, fields=_SECTIONS["volumes"]),
        "allow_privileged": Field(Kind.BOOL, doc="Tasks may be privileged or weaken their confinement."),
        "allow_caps": Field(Kind.TEXTS, doc="Capabilities that tasks may have; `all` for every one."),
        "allow_runtimes": Field(Kind.TEXTS),
        "nvidia_runtime": Field(Kind.TEXT, doc="Only `nvidia`: there are no device plugins that would use another."),
        "infra_image": Field(Kind.TEXT, doc="Refused: networks of groups are not made with containers here."),
        "infra_image_pull_timeout": Field(Kind.DURATION, doc="Refused, as `infra_image`."),
        "image_pull_timeout": Field(Kind.DURATION),
        "container_exists_attempts": Field(Kind.INT),
        "oom_score_adj": Field(Kind.INT),
        "pull_activity_timeout": Field(Kind.DURATION, doc="A pull that says nothing for so long is given up."),
        "pids_limit": Field(Kind.INT, doc="The most processes a task may have; tasks can only ask for fewer."),
        "disable_log_collection": Field(Kind.BOOL),
        "allowed_modes": Field(Kind.BLOCK, fields=_SECTIONS["allowed_modes"]),
    }
)


@dataclass(frozen=True, slots=True)
class DanglingSettings:
    is_enabled: bool = True
    period_s: float = 300.0
    creation_grace_s: float = 300.0
    is_dry_run: bool = False


@dataclass(frozen=True, slots=True)
class DockerSettings:
    endpoint: str = DEFAULT_ENDPOINTS["docker"]
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    auth_config: str = ""
    auth_helper: str = ""
    extra_labels: tuple[str, ...] = ()
    logging_type: str = "json-file"
    logging_config: Mapping[str, str] | None = None
    """None: whatever suits the engine."""
    removes_images: bool = True
    image_delay_s: float = 180.0
    removes_containers: bool = True
    dangling: DanglingSettings = DanglingSettings()
    allows_host_volumes: bool = False
    selinux_label: str = ""
    allows_privileged: bool = False
    allow_caps: tuple[str, ...] = DEFAULT_CAPS
    allow_runtimes: tuple[str, ...] = DEFAULT_RUNTIMES
    image_pull_timeout_s: float = 300.0
    pull_activity_timeout_s: float = 120.0
    container_exists_attempts: int = 5
    oom_score_adj: int = 0
    pids_limit: int = 0
    collects_logs: bool = True
    allowed_modes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def open_endpoint(self) -> Endpoint:
        """The endpoint with its keys read."""
        if self.endpoint.startswith("unix://"):
            return Endpoint(self.endpoint)
        try:
            context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=self.tls_ca or None)
            context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            raise DriverError(
                f"the engine's TLS files cannot be used: {error}", hint="check tls.cert, tls.key and tls.ca"
            ) from error
        return Endpoint(self.endpoint, context)


def settings_from(given: Mapping[str, Any], name: str = "docker") -> DockerSettings:
    """Read an operator's settings; everything that is wrong is told at once."""
    where = f"client.plugin.{name}"
    given = {key: value for key, value in given.items() if key != "enabled"}
    problems = SETTINGS_SCHEMA.problems(given, where)
    if problems:
        raise DriverError("; ".join(problems), hint="docs/guides/containers.md lists what the driver takes")
    values = Values(given, where)
    _refuse_unserved(values, where)
    gc, volumes, logging = values.block("gc"), values.block("volumes"), values.block("logging")
    tls, auth, modes = values.block("tls"), values.block("auth"), values.block("allowed_modes")
    defaults = DockerSettings()
    return DockerSettings(
        endpoint=_endpoint(values, tls, name),
        tls_cert=tls.text("cert"),
        tls_key=tls.text("key"),
        tls_ca=tls.text("ca"),
        auth_config=auth.text("config"),
        auth_helper=_helper(auth),
        extra_labels=values.texts("extra_labels"),
        logging_type=logging.text("type", defaults.logging_type),
        logging_config=logging.table("config") if logging.has("config") else None,
        removes_images=gc.flag("image", True),
        image_delay_s=gc.seconds("image_delay", defaults.image_delay_s),
        removes_containers=gc.flag("container", True),
        dangling=_dangling(gc.block("dangling_containers")),
        allows_host_volumes=volumes.flag("enabled"),
        selinux_label=_selinux(volumes),
        allows_privileged=values.flag("allow_privileged"),
        allow_caps=tuple(cap_name(cap) for cap in values.texts("allow_caps", DEFAULT_CAPS)),
        allow_runtimes=values.texts("allow_runtimes", DEFAULT_RUNTIMES),
        image_pull_timeout_s=values.seconds("image_pull_timeout", defaults.image_pull_timeout_s),
        pull_activity_timeout_s=values.seconds("pull_activity_timeout", defaults.pull_activity_timeout_s),
        container_exists_attempts=values.number("container_exists_attempts", 5, least=1, most=100),
        oom_score_adj=values.number("oom_score_adj", 0, least=-1000, most=1000),
        pids_limit=values.number("pids_limit", 0, least=0),
        collects_logs=not values.flag("disable_log_collection"),
        allowed_modes={mode: modes.texts(mode) for mode in MODES},
    )


def cap_name(text: str) -> str:
    """`CAP_NET_ADMIN`, `NET_ADMIN` and `net_admin` are the same."""
    return text.strip().lower().removeprefix("cap_")


def _refuse_unserved(values: Values, where: str) -> None:
    for name in ("infra_image", "infra_image_pull_timeout"):
        if values.has(name):
            raise DriverError(
                f"{where}.{name} cannot be honoured: networks of groups are not made with containers",
                hint="leave it out; podman joins a group's network namespace by itself",
            )
    if values.text("nvidia_runtime", "nvidia") != "nvidia":
        raise DriverError(
            f"{where}.nvidia_runtime cannot be honoured: no device plugin would use it",
            hint="allow the runtime in allow_runtimes and name it in the task's `runtime`",
        )


def _endpoint(values: Values, tls: Values, name: str) -> str:
    endpoint = values.text("endpoint", DEFAULT_ENDPOINTS.get(name, DEFAULT_ENDPOINTS["docker"]))
    if endpoint.startswith("unix:///") and len(endpoint) > len("unix:///"):
        return endpoint
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not endpoint.startswith("tcp://") or not host or not port.isdigit():
        raise values.wrong("endpoint", "unix:///path or tcp://host:port")
    if not (tls.text("cert") and tls.text("key")):
        raise DriverError(
            f"{endpoint} without tls.cert and tls.key is refused: whoever reaches such a port is root on its host",
            hint="set tls { cert, key, ca }, or use the engine's unix socket",
        )
    return endpoint


def _helper(auth: Values) -> str:
    helper = auth.text("helper")
    if helper and not helper.replace("-", "").replace("_", "").isalnum():
        raise auth.wrong("helper", "the end of a docker-credential-<helper> program's name")
    return helper


def _selinux(volumes: Values) -> str:
    label = volumes.text("selinuxlabel")
    if label not in ("", "z", "Z"):
        raise volumes.wrong("selinuxlabel", "z or Z")
    return label


def _dangling(values: Values) -> DanglingSettings:
    defaults = DanglingSettings()
    return DanglingSettings(
        is_enabled=values.flag("enabled", True),
        period_s=max(1.0, values.seconds("period", defaults.period_s)),
        creation_grace_s=values.seconds("creation_grace", defaults.creation_grace_s),
        is_dry_run=values.flag("dry_run"),
    )
