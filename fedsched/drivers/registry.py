"""Which drivers a client has: those that come with fedsched, and those that installed packages offer.

A package offers a driver under the entry-point group `fedsched.drivers`; the name of the entry point is the driver's
name. A driver is a class (or function) that is called with a `DriverHost`; what its operator may say about it is
declared as `settings_schema` beside it. One that cannot be loaded or made is reported as undetected, with the reason:
it never keeps a client from starting.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final, cast

import trio

from fedsched.drivers.driver import Driver, DriverError, DriverFingerprint, Health
from fedsched.drivers.task_schema import TaskSchema
from fedsched.env.env import Env
from fedsched.model.errors import FedschedError
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry

ENTRY_POINTS: Final = "fedsched.drivers"
BUILT_IN: Final[Mapping[str, str]] = {
    "mock_driver": "fedsched.drivers.mock:make_driver",
    "raw_exec": "fedsched.drivers.raw_exec:make_driver",
    "exec": "fedsched.drivers.exec:make_driver",
    "java": "fedsched.drivers.java:make_driver",
    "docker": "fedsched.drivers.docker.driver:make_driver",
    "podman": "fedsched.drivers.docker.driver:make_podman",
}
"""Name of the driver -> module and what makes it."""
OFF_UNLESS_ENABLED: Final = frozenset({"raw_exec", "mock_driver"})
"""They isolate nothing, or only pretend: their settings have to say `enabled = true`, or the agent runs with -dev."""


@dataclass(frozen=True, slots=True)
class DriverHost:
    """What a driver is told about the agent that it runs in."""

    state_dir: Path
    """For what the driver keeps on disk; its own, made by whoever uses it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the operator says about it: `[client.plugin.<name>]`."""
    env: Env | None = None
    log: Logger | None = None
    metrics: Registry | None = None
    node_id: str = ""
    cgroup_parent: str = "fedsched.slice"
    chroot_env: Mapping[str, str] = field(default_factory=dict)
    """Paths of the host and where isolated tasks see them; empty: the usual ones."""
    denied_users: tuple[str, ...] = ("root", "Administrator")
    """Who its tasks may not run as."""
    is_dev: bool = False


MakeDriver = Callable[[DriverHost], Driver]


class Drivers:
    """All drivers of one client, by name."""

    def __init__(self, made: Mapping[str, Driver], failed: Mapping[str, str]) -> None:
        self._made = dict(made)
        self.failed = dict(failed)
        """Drivers that are not here, and why."""

    @property
    def names(self) -> list[str]:
        return sorted(self._made)

    def get(self, name: str) -> Driver:
        found = self._made.get(name)
        if found is None:
            why = self.failed.get(name) or f"there are {', '.join(self.names) or 'none'}"
            raise DriverError(
                f"driver {name!r} is not on this node: {why}", hint="see `fedsched node status` for what it has"
            )
        return found

    async def run(self, log: Logger, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Every driver's own children, until cancelled. One that cannot start takes no other with it."""
        async with trio.open_nursery() as nursery:
            for name in self.names:
                await nursery.start(self._run_one, name, log)
            task_status.started()
            await trio.sleep_forever()

    async def _run_one(self, name: str, log: Logger, *, task_status: trio.TaskStatus[None]) -> None:
        has_started = _Started(task_status)
        try:
            await self._made[name].run(task_status=cast("trio.TaskStatus[None]", has_started))
        except Exception as error:
            log.exception("driver_failed", error, driver=name)
            self.failed[name] = f"it failed: {error}"
            del self._made[name]
            has_started.started()

    async def fingerprints(self, name: str) -> AsyncIterator[DriverFingerprint]:
        """What one driver finds; an end or an error of its stream is reported like any other finding."""
        driver = self._made.get(name)
        if driver is None:
            yield DriverFingerprint(Health.UNDETECTED, self.failed.get(name, "it is not here"))
            return
        try:
            async for found in driver.fingerprint():
                yield found
        except Exception as error:
            yield DriverFingerprint(Health.UNHEALTHY, f"its fingerprint failed: {error}")


class _Started:
    """Says `started` once, whoever calls it and how often."""

    def __init__(self, status: trio.TaskStatus[None]) -> None:
        self._status = status
        self._is_said = False

    def started(self, value: None = None) -> None:
        if not self._is_said:
            self._is_said = True
            self._status.started()


def open_drivers(
    host: Callable[[str], DriverHost],
    *,
    log: Logger,
    is_dev: bool = False,
    allowed: Iterable[str] = (),
    denied: Iterable[str] = (),
    built_in: Mapping[str, str] = BUILT_IN,
) -> Drivers:
    """Make every driver that is allowed here. `host` gives each what it is told."""
    makers = _makers(built_in, log)
    allowed, denied = set(allowed), set(denied)
    made: dict[str, Driver] = {}
    failed: dict[str, str] = {}
    for name in sorted(makers):
        if (allowed and name not in allowed) or name in denied:
            failed[name] = "this node's settings do not allow it"
            continue
        about = host(name)
        if name in OFF_UNLESS_ENABLED and not (is_dev or about.settings.get("enabled") is True):
            failed[name] = f"it is not enabled: [client.plugin.{name}] enabled = true"
            continue
        try:
            made[name] = _make(name, makers[name], about)
        except FedschedError:
            raise  # settings that are wrong are for the operator to mend
        except Exception as error:
            log.exception("driver_not_made", error, driver=name)
            failed[name] = f"it could not be loaded: {error}"
    return Drivers(made, failed)


def _make(name: str, load: Callable[[], Any], host: DriverHost) -> Driver:
    maker = load()
    schema = getattr(maker, "settings_schema", None)
    if isinstance(schema, TaskSchema):
        given = {key: value for key, value in host.settings.items() if key != "enabled"}
        problems = schema.problems(given, f"client.plugin.{name}")
        if problems:
            raise DriverError("; ".join(problems), hint=f"docs/reference/drivers.md lists what {name} takes")
    driver: Driver = maker(host)
    return driver


def _makers(built_in: Mapping[str, str], log: Logger) -> dict[str, Callable[[], Any]]:
    """How to load each; a package cannot take the place of a built-in driver."""
    found: dict[str, Callable[[], Any]] = {}
    for point in metadata.entry_points(group=ENTRY_POINTS):
        if point.name in built_in or point.name in found:
            log.warn("driver_passed_over", driver=point.name, why="there is one of that name already")
        else:
            found[point.name] = point.load
    return found | {name: _loader(where) for name, where in built_in.items()}


def _loader(where: str) -> Callable[[], Any]:
    module, _, attribute = where.partition(":")
    return lambda: getattr(import_module(module), attribute)
