"""Contexts for hooks without a client around them: a driver that only has capabilities, actions that are noted."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio

from fedsched.client.alloc_dirs import AllocDirs
from fedsched.client.context import AllocContext, ClientParts, Servers, TaskContext
from fedsched.client.settings import ArtifactLimits, ClientSettings
from fedsched.drivers.driver import Capabilities, Driver, DriverError, FsIsolation
from fedsched.drivers.task_schema import Field, Kind, TaskSchema
from fedsched.env.fixed import FixedEnv
from fedsched.model.alloc import Allocation
from fedsched.model.node import Node
from fedsched.model.task_state import TaskEvent
from fedsched.telemetry.log import get_logger
from fedsched.telemetry.metrics import Registry
from tests.builders import a_group, a_job, a_node, a_task, an_alloc

LOOPBACK = ArtifactLimits(schemes=("https", "http", "file"), allowed_networks=("127.0.0.0/8",))


@dataclass
class Actions:
    """What hooks asked of the task's runner."""

    events: list[TaskEvent] = field(default_factory=list)
    kills: list[tuple[str, bool]] = field(default_factory=list)

    def emit(self, event: TaskEvent) -> None:
        self.events.append(event)

    def restart(self, reason: str, *, is_failure: bool = False) -> None:
        raise AssertionError(reason)

    def signal(self, signal: str, reason: str) -> None:
        raise AssertionError(reason)

    def kill(self, reason: str, *, is_failure: bool = False) -> None:
        self.kills.append((reason, is_failure))


def a_driver(
    name: str = "raw_exec", *, isolation: FsIsolation = FsIsolation.NONE, takes_host_env: bool = False
) -> Driver:
    schema = TaskSchema({"command": Field(Kind.TEXT, is_required=True), "args": Field(Kind.TEXTS)})
    capabilities = Capabilities(fs_isolation=isolation, takes_host_env=takes_host_env)
    return cast(Driver, SimpleNamespace(name=name, capabilities=capabilities, task_schema=schema))


def parts(
    root: Path,
    *,
    node: Node | None = None,
    settings: ClientSettings | None = None,
    drivers: dict[str, Driver] | None = None,
    servers: Servers | None = None,
    others: Callable[[str], AllocContext | None] = lambda _: None,
) -> ClientParts:
    node = a_node() if node is None else node

    def driver_named(name: str) -> Driver:
        if drivers is not None and name not in drivers:
            raise DriverError(f"driver {name!r} is not enabled here")
        return a_driver(name)

    return ClientParts(
        settings=settings or ClientSettings(state_dir=root / "state", alloc_dir=root / "allocs", artifact=LOOPBACK),
        env=FixedEnv(),
        log=get_logger("test"),
        metrics=Registry(),
        node=lambda: node,
        region="earth",
        servers=cast(Servers, servers),
        drivers=driver_named,
        checks=cast(Any, None),
        has_contact=trio.Event(),
        other_alloc=others,
        now_ns=lambda: 0,
    )


def a_task_context(
    root: Path | None = None,
    *,
    task: dict[str, Any] | None = None,
    group: dict[str, Any] | None = None,
    job: dict[str, Any] | None = None,
    alloc: Allocation | None = None,
    alloc_fields: dict[str, Any] | None = None,
    driver: Driver | None = None,
    **of_parts: Any,
) -> TaskContext:
    """A task `web` of an allocation of its own, with whatever fields matter."""
    driver = driver or a_driver()
    root = Path(tempfile.gettempdir()) / "never-made" if root is None else root
    if alloc is None:
        given = {"driver": driver.name, "config": {"command": "/bin/true"}, **(task or {})}
        tasks = [a_task("web", **given), *(group or {}).pop("more_tasks", [])]
        made = a_job(groups=[a_group(tasks=tasks, **(group or {}))], **(job or {}))
        alloc = an_alloc(job=made, **(alloc_fields or {}))
    context = AllocContext(parts(root, **of_parts), alloc, root / "allocs" / alloc.id)
    found = TaskContext(context, "web", AllocDirs(context.root).task("web"), driver, Actions())
    context.tasks["web"] = found
    return found


def actions_of(task: TaskContext) -> Actions:
    return cast(Actions, task.actions)
