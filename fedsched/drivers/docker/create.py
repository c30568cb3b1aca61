"""What the engine is asked to create, worked out from a task's settings. Pure, but for looking at paths it mounts."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedsched.drivers.docker.config import DEFAULT_LOGGING, DockerSettings
from fedsched.drivers.docker.inside import ensure_inside
from fedsched.drivers.docker.labels import container_labels
from fedsched.drivers.docker.networking import network_parts
from fedsched.drivers.docker.task_config import MountWish, TaskSettings, not_allowed
from fedsched.drivers.driver import DriverError, TaskConfig, TaskLimits

MB: Final = 1 << 20
SHARES_MIN: Final = 2
SHARES_MAX: Final = 262_144
CFS_PERIOD_US: Final = 100_000


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the form of a request depends on."""

    is_podman: bool = False
    cores: int = 1


def create_body(
    config: TaskConfig,
    settings: TaskSettings,
    operator: DockerSettings,
    facts: EngineFacts,
    *,
    image_id: str,
    handle: bytes,
) -> dict[str, Any]:
    """The body of a create request."""
    values = settings.values
    network = network_parts(config, values, facts.is_podman)
    host = {
        **_limits(config.limits, settings, facts),
        **_confinement(settings, operator),
        **network.host,
        "Binds": _binds(config, settings, operator),
        "LogConfig": _logging(settings, operator, facts),
        "RestartPolicy": {"Name": "no"},
        "Dns": list(values.texts("dns_servers")),
        "DnsOptions": list(values.texts("dns_options")),
        "DnsSearch": list(values.texts("dns_search_domains")),
        "ExtraHosts": list(values.texts("extra_hosts")),
        "GroupAdd": list(values.texts("group_add")),
        "Mounts": [_mount(config, operator, wish) for wish in settings.mounts],
        "Devices": [
            {"PathOnHost": one.host_path, "PathInContainer": one.container_path, "CgroupPermissions": one.permissions}
            for one in settings.devices
        ],
        "Sysctls": values.table("sysctl"),
        "StorageOpt": values.table("storage_opt"),
        "Ulimits": [_ulimit(name, text) for name, text in sorted(values.table("ulimit").items())],
        "VolumeDriver": values.text("volume_driver"),
        "ReadonlyRootfs": values.flag("readonly_rootfs"),
    }
    if values.has("init"):
        host["Init"] = values.flag("init")
    if values.has("shm_size"):
        host["ShmSize"] = values.number("shm_size", 0, least=1)
    body: dict[str, Any] = {
        "Image": image_id,
        "Env": [f"{name}={value}" for name, value in sorted(config.env.items())],
        "Labels": container_labels(config, values.table("labels"), operator.extra_labels, handle),
        "User": config.user,
        "Tty": values.flag("tty"),
        "OpenStdin": values.flag("interactive"),
        "WorkingDir": _work_dir(settings),
        "Hostname": values.text("hostname") or config.hostname,
        "ExposedPorts": network.exposed,
        "HostConfig": host,
        "NetworkingConfig": network.config,
    }
    command = _command(settings)
    if command:
        body["Cmd"] = command
    if values.has("entrypoint"):
        body["Entrypoint"] = list(values.texts("entrypoint"))
    if values.block("healthchecks").flag("disable"):
        body["Healthcheck"] = {"Test": ["NONE"]}
    if network.mac_address:
        body["MacAddress"] = network.mac_address
    return body


def _command(settings: TaskSettings) -> list[str]:
    command = settings.values.text("command")
    args = list(settings.values.texts("args"))
    return [command, *args] if command else args


def _work_dir(settings: TaskSettings) -> str:
    found = settings.values.text("work_dir")
    if found and not found.startswith("/"):
        raise settings.values.wrong("work_dir", "an absolute path inside the container")
    return found


def _limits(limits: TaskLimits, settings: TaskSettings, facts: EngineFacts) -> dict[str, Any]:
    values = settings.values
    found: dict[str, Any] = {
        "CpuShares": min(max(limits.cpu_mhz, SHARES_MIN), SHARES_MAX),
        "CpusetCpus": values.text("cpuset_cpus") or ",".join(str(core) for core in limits.cores),
        **_memory(limits, settings),
    }
    pids = settings.pids_limit or limits.pids_max
    if pids:
        found["PidsLimit"] = pids
    if values.flag("cpu_hard_limit"):
        period = values.number("cpu_cfs_period", CFS_PERIOD_US, least=1000, most=1_000_000)
        if not limits.total_mhz:
            raise DriverError("config.cpu_hard_limit cannot be honoured: the node does not know its own speed")
        found["CpuPeriod"] = period
        found["CpuQuota"] = max(1000, round(limits.cpu_mhz / limits.total_mhz * period * facts.cores))
    elif values.has("cpu_cfs_period"):
        found["CpuPeriod"] = values.number("cpu_cfs_period", least=1000, most=1_000_000)
    return found


def _memory(limits: TaskLimits, settings: TaskSettings) -> dict[str, int]:
    """Hard limit and, if it is above what was reserved, the reservation. Never any swap."""
    hard_mb = limits.memory_max_mb or settings.values.number("memory_hard_limit", 0, least=0) or limits.memory_mb
    if hard_mb < 0:
        return {"MemoryReservation": limits.memory_mb * MB}
    if hard_mb < limits.memory_mb:
        raise settings.values.wrong("memory_hard_limit", f"at least the task's memory, {limits.memory_mb}")
    if not hard_mb:
        return {}
    hard = {"Memory": hard_mb * MB, "MemorySwap": hard_mb * MB}
    return {**hard, "MemoryReservation": limits.memory_mb * MB} if hard_mb > limits.memory_mb else hard


def _confinement(settings: TaskSettings, operator: DockerSettings) -> dict[str, Any]:
    values = settings.values
    found: dict[str, Any] = {
        "Privileged": settings.is_privileged,
        "SecurityOpt": list(values.texts("security_opt")),
        "OomScoreAdj": values.number("oom_score_adj", operator.oom_score_adj),
        "PidMode": _mode(values.text("pid_mode")),
        "IpcMode": values.text("ipc_mode") or "private",
        "UTSMode": _mode(values.text("uts_mode")),
        "UsernsMode": _mode(values.text("userns_mode")),
    }
    if values.text("cgroupns"):
        found["CgroupnsMode"] = values.text("cgroupns")
    if values.text("runtime"):
        found["Runtime"] = values.text("runtime")
    if not settings.is_privileged:
        # Said in full: engines differ in what they give when nothing is said.
        found["CapDrop"] = ["ALL"]
        found["CapAdd"] = [cap.upper() for cap in settings.caps]
    return found


def _mode(wanted: str) -> str:
    """Private is what engines call nothing at all."""
    return "" if wanted == "private" else wanted


def _logging(settings: TaskSettings, operator: DockerSettings, facts: EngineFacts) -> dict[str, Any]:
    """The engine's own log is what the follower reads.

    Podman cuts its log off at `max-size` whether it was read or not, so it gets no size unless somebody insists.
    """
    block = settings.values.block("logging")
    kind = block.text("type") or block.text("driver") or operator.logging_type
    if block.has("config"):
        return {"Type": kind, "Config": block.table("config")}
    if operator.logging_config is not None:
        return {"Type": kind, "Config": dict(operator.logging_config)}
    return {"Type": kind, "Config": DEFAULT_LOGGING if kind == "json-file" and not facts.is_podman else {}}


def _ulimit(name: str, text: str) -> dict[str, Any]:
    soft, _, hard = text.partition(":")
    try:
        return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}
    except ValueError:
        raise DriverError(f"config.ulimit.{name} = {text!r:.40} is not soft:hard") from None


# paths of the host


def _binds(config: TaskConfig, settings: TaskSettings, operator: DockerSettings) -> list[str]:
    dirs, label = config.dirs, operator.selinux_label
    binds = [
        _bind(str(dirs.shared), "/alloc", "", label),
        _bind(str(dirs.local), "/local", "", label),
        _bind(str(dirs.secrets), "/secrets", "", label),
    ]
    binds += [
        _bind(str(one.host_path), one.task_path, "ro" if one.is_read_only else "", label)
        for one in (*config.mounts, *config.network_files)
    ]
    binds += [_volume(config, settings, operator, text) for text in settings.values.texts("volumes")]
    return binds


def _bind(host: str, inside: str, options: str, label: str) -> str:
    if ":" in host or ":" in inside:
        raise DriverError(f"{host}:{inside} cannot be mounted: engines do not take a colon in a path")
    if not inside.startswith("/"):
        raise DriverError(f"{inside!r:.120} is not an absolute path inside the container")
    words = ",".join(word for word in (options, label) if word)
    return f"{host}:{inside}:{words}" if words else f"{host}:{inside}"


def _volume(config: TaskConfig, settings: TaskSettings, operator: DockerSettings, text: str) -> str:
    parts = text.split(":")
    if not 2 <= len(parts) <= 3 or not parts[0] or not parts[1]:
        raise DriverError(f"config.volumes = {text!r:.120} is not path:path inside[:options]")
    options = parts[2] if len(parts) == 3 else ""
    unknown = set(filter(None, options.split(","))) - {"ro", "rw", "z", "Z"}
    if unknown and not operator.allows_host_volumes:
        raise not_allowed(f"volume option {sorted(unknown)[0]!r}", "volumes { enabled = true }")
    if settings.values.text("volume_driver"):
        return _bind(parts[0], parts[1], options, "")
    host = host_path(config, operator, parts[0])
    return _bind(host, parts[1], options, "" if {"z", "Z"} & set(options.split(",")) else operator.selinux_label)


def host_path(config: TaskConfig, operator: DockerSettings, given: str) -> str:
    """A path of the host that a task wants to see inside.

    Relative ones are below the task's directory and may climb as far as its allocation's; they are walked through no
    link. Absolute ones need the operator's word.
    """
    if given.startswith("/"):
        absolute = posixpath.normpath(given)
        if not operator.allows_host_volumes:
            raise not_allowed(f"the host's {absolute!r:.120}", "volumes { enabled = true }")
        return absolute
    start = os.path.relpath(config.dirs.task, config.dirs.alloc)
    relative = posixpath.normpath(posixpath.join(start, given))
    parts = relative.split("/")
    if parts[0] == ".." or relative == ".":
        raise DriverError(f"{given!r:.120} leaves the allocation's directory", hint="name a path inside it")
    if _is_kept_from_tasks([part.lower() for part in parts], start.lower()):
        raise DriverError(f"{given!r:.120} is not for tasks to mount", hint="use /local, /alloc and /secrets")
    return str(ensure_inside(Path(config.dirs.alloc), relative))


def _is_kept_from_tasks(parts: list[str], task: str) -> bool:
    """A task's directory as a whole, anybody's private one, and the secrets of the others."""
    if len(parts) == 1:
        return parts[0] != "alloc"
    return parts[1] == "private" or (parts[1] == "secrets" and parts[0] != task)


def _mount(config: TaskConfig, operator: DockerSettings, wish: MountWish) -> Mapping[str, Any]:
    found: dict[str, Any] = {"Type": wish.type, "Target": wish.target, "ReadOnly": wish.is_read_only}
    if wish.type == "bind":
        found["Source"] = host_path(config, operator, wish.source)
        if wish.propagation:
            found["BindOptions"] = {"Propagation": wish.propagation}
    elif wish.type == "tmpfs":
        found["TmpfsOptions"] = {
            **({"SizeBytes": wish.tmpfs_bytes} if wish.tmpfs_bytes else {}),
            **({"Mode": wish.tmpfs_mode} if wish.tmpfs_mode else {}),
        }
    else:
        found["Source"] = wish.source
        driver = {"Name": wish.driver, "Options": dict(wish.driver_options)} if wish.driver else None
        found["VolumeOptions"] = {
            "NoCopy": wish.no_copy,
            "Labels": dict(wish.labels),
            **({"DriverConfig": driver} if driver else {}),
        }
    return found
