"""What a task may say to the driver, and what of it is refused here, with the reason.

A setting is never passed over in silence: it is honoured, or the task does not start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedsched.drivers.docker.config import DEFAULT_CAPS, DockerSettings, cap_name
from fedsched.drivers.docker.records import RegistryAuth
from fedsched.drivers.docker.values import Values
from fedsched.drivers.driver import DriverError
from fedsched.drivers.schemas import DOCKER_TASK_SCHEMA

_SAFE_SECURITY: Final = ("no-new-privileges", "no-new-privileges:true", "no-new-privileges=true")


@dataclass(frozen=True, slots=True)
class MountWish:
    """One `mount` block."""

    type: str
    target: str
    source: str = ""
    is_read_only: bool = False
    propagation: str = ""
    tmpfs_bytes: int = 0
    tmpfs_mode: int = 0
    no_copy: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    driver: str = ""
    driver_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeviceWish:
    host_path: str
    container_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """A task's settings with their defaults, allowed by the operator. `values` has the plain ones."""

    image: str
    values: Values
    auth: RegistryAuth | None
    caps: tuple[str, ...]
    """All it may have; not used for privileged ones."""
    is_privileged: bool
    pids_limit: int
    mounts: tuple[MountWish, ...]
    devices: tuple[DeviceWish, ...]
    pull_timeout_s: float
    exists_attempts: int


def task_settings_from(given: Mapping[str, Any], operator: DockerSettings) -> TaskSettings:
    """Read what a task says and hold it against what the operator allows."""
    problems = DOCKER_TASK_SCHEMA.problems(given)
    if problems:
        raise DriverError("; ".join(problems))
    values = Values(given, "config")
    _check_modes(values, operator)
    _check_confinement(values, operator)
    _check_unserved(values)
    return TaskSettings(
        image=values.text("image"),
        values=values,
        auth=_auth(values),
        caps=_caps(values, operator),
        is_privileged=values.flag("privileged"),
        pids_limit=_pids_limit(values, operator),
        mounts=tuple(_mount(one, operator) for name in ("mount", "mounts") for one in values.blocks(name)),
        devices=_devices(values, operator),
        pull_timeout_s=values.seconds("image_pull_timeout", operator.image_pull_timeout_s),
        exists_attempts=values.number(
            "container_exists_attempts", operator.container_exists_attempts, least=1, most=100
        ),
    )


def not_allowed(what: str, setting: str) -> DriverError:
    return DriverError(f"{what} is not allowed on this node", hint=f"its operator can allow it: {setting}")


def _check_modes(values: Values, operator: DockerSettings) -> None:
    for mode in ("pid", "ipc", "userns", "uts"):
        wanted = values.text(f"{mode}_mode")
        if wanted in ("", "private") or (mode == "ipc" and wanted == "none"):
            continue
        if wanted not in operator.allowed_modes.get(mode, ()):
            raise not_allowed(f"{mode}_mode = {wanted!r}", f"allowed_modes {{ {mode} = [{wanted!r}] }}")
    cgroupns = values.text("cgroupns")
    if cgroupns not in ("", "private", "host"):
        raise values.wrong("cgroupns", "private or host")
    if cgroupns == "host" and not operator.allows_privileged:
        raise not_allowed("cgroupns = 'host'", "allow_privileged = true")


def _check_confinement(values: Values, operator: DockerSettings) -> None:
    if values.flag("privileged") and not operator.allows_privileged:
        raise not_allowed("privileged = true", "allow_privileged = true")
    runtime = values.text("runtime")
    if runtime and runtime not in operator.allow_runtimes:
        raise not_allowed(f"runtime = {runtime!r}", f"allow_runtimes = [..., {runtime!r}]")
    if values.text("volume_driver") and not operator.allows_host_volumes:
        raise not_allowed("volume_driver", "volumes { enabled = true }")
    for option in values.texts("security_opt"):
        if option not in _SAFE_SECURITY and not operator.allows_privileged:
            raise not_allowed(f"security_opt = {option!r:.60}", "allow_privileged = true")
    score = values.number("oom_score_adj", operator.oom_score_adj, least=-1000, most=1000)
    if score < operator.oom_score_adj and not operator.allows_privileged:
        raise not_allowed(
            f"oom_score_adj = {score}, below the node's {operator.oom_score_adj},", "allow_privileged = true"
        )


def _check_unserved(values: Values) -> None:
    if values.text("isolation"):
        raise DriverError("config.isolation cannot be honoured: only Windows has it", hint="leave it out")


def _auth(values: Values) -> RegistryAuth | None:
    if not values.has("auth"):
        return None
    auth = values.block("auth")
    if not auth.text("username"):
        raise DriverError("config.auth has no username", hint="leave the block out to pull without credentials")
    return RegistryAuth(
        username=auth.text("username"),
        password=auth.text("password"),
        email=auth.text("email"),
        serveraddress=auth.text("server_address"),
    )


def _caps(values: Values, operator: DockerSettings) -> tuple[str, ...]:
    """(default and allowed) less dropped, plus added; an addition that is not allowed is an error."""
    allowed = set(operator.allow_caps)
    added = {cap_name(cap) for cap in values.texts("cap_add")}
    dropped = {cap_name(cap) for cap in values.texts("cap_drop")}
    refused = sorted(cap for cap in added if cap not in allowed and "all" not in allowed)
    if refused:
        raise not_allowed(f"cap_add = {refused!r}", f"allow_caps = [..., {refused[0]!r}]")
    kept = set(DEFAULT_CAPS) if "all" in allowed else set(DEFAULT_CAPS) & allowed
    return tuple(sorted((set() if "all" in dropped else kept - dropped) | added))


def _pids_limit(values: Values, operator: DockerSettings) -> int:
    wanted = values.number("pids_limit", 0, least=0)
    if operator.pids_limit and wanted > operator.pids_limit:
        raise not_allowed(f"pids_limit = {wanted}, above {operator.pids_limit},", f"pids_limit = {wanted}")
    return wanted or operator.pids_limit


def _mount(values: Values, operator: DockerSettings) -> MountWish:
    kind = values.text("type", "volume")
    if kind not in ("volume", "bind", "tmpfs"):
        raise values.wrong("type", "volume, bind or tmpfs")
    if not values.text("target").startswith("/"):
        raise values.wrong("target", "an absolute path inside the container")
    if kind == "bind" and not values.text("source"):
        raise DriverError("config.mount of type bind needs a source")
    if kind == "tmpfs" and values.has("source"):
        raise DriverError("config.mount of type tmpfs has no source")
    tmpfs, volume = values.block("tmpfs_options"), values.block("volume_options")
    driver = volume.block("driver_config")
    # A named volume outlives its task and is shared by name with every other container of the host.
    is_shared = kind == "volume" and bool(values.text("source") or driver.text("name"))
    if is_shared and not operator.allows_host_volumes:
        raise not_allowed("a mount of a named volume", "volumes { enabled = true }")
    return MountWish(
        type=kind,
        target=values.text("target"),
        source=values.text("source"),
        is_read_only=values.flag("readonly"),
        propagation=_propagation(values.block("bind_options"), operator),
        tmpfs_bytes=tmpfs.number("size", 0, least=0),
        tmpfs_mode=_mode(tmpfs),
        no_copy=volume.flag("no_copy"),
        labels=volume.table("labels"),
        driver=driver.text("name"),
        driver_options=driver.table("options"),
    )


def _propagation(values: Values, operator: DockerSettings) -> str:
    wanted = values.text("propagation")
    if wanted not in ("", "private", "rprivate", "slave", "rslave", "shared", "rshared"):
        raise values.wrong("propagation", "private, rprivate, slave, rslave, shared or rshared")
    if wanted in ("shared", "rshared") and not operator.allows_privileged:
        raise not_allowed(f"propagation = {wanted!r}", "allow_privileged = true")
    return wanted


def _mode(tmpfs: Values) -> int:
    """Written as people write modes: 1777 is octal."""
    text = tmpfs.text("mode")
    if not text:
        return 0
    try:
        return int(text, 8)
    except ValueError:
        raise tmpfs.wrong("mode", "a file mode such as 1777") from None


def _devices(values: Values, operator: DockerSettings) -> tuple[DeviceWish, ...]:
    found = values.blocks("devices")
    if found and not operator.allows_host_volumes:
        raise not_allowed("a device of the host", "volumes { enabled = true }")
    devices = []
    for one in found:
        permissions = one.text("cgroup_permissions", "rwm")
        if not permissions or set(permissions) - set("rwm"):
            raise one.wrong("cgroup_permissions", "made of r, w and m")
        host = one.text("host_path")
        if not host.startswith("/"):
            raise one.wrong("host_path", "an absolute path")
        devices.append(DeviceWish(host, one.text("container_path", host), permissions))
    return tuple(devices)
