"""Deployments under a leader's watch, for tests of how they go on, get promoted, and end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedsched.model.deployment import DeploymentState
from fedsched.model.job import Job
from fedsched.server.leader.deployment_rules import (
    DeploymentEffect,
    command_of,
    plan_pause,
)
from fedsched.server.leader.deployments_core import DeploymentsCore
from fedsched.state.tables.alloc_columns import Flag
from fedsched.state.tables.jobs import JobStable
from tests.builders import a_job
from tests.server.leader.worlds import NS, Region

DEADLINE_S = 600.0


def a_state(total: int = 2, **fields: Any) -> DeploymentState:
    fields.setdefault("progress_deadline_s", DEADLINE_S)
    return DeploymentState(desired_total=total, **fields)


class Watcher:
    """A leader's core over a region with one deployment of one job."""

    def __init__(
        self, groups: dict[str, DeploymentState] | None = None, *, job: Job | None = None, region: Region | None = None
    ) -> None:
        self.region = region or Region()
        self.slot = self.region.node(1)
        self.job = self.region.register(job or a_job())
        self.id = self.region.deployment(self.job, groups or {"group": a_state()})
        self.core = DeploymentsCore()
        self.core.note(self.region.store, self.region.everything())

    def place(self, numbers: Iterable[int], *, group: str = "group", canary: bool = False, **fields: Any) -> None:
        flags = int(Flag.CANARY) if canary else 0
        self.region.place(numbers, self.slot, group=group, deployment=self.id, flags=flags, **fields)

    def review(self) -> list[DeploymentEffect]:
        self.core.note(self.region.store, self.region.changes())
        return self.core.review(self.region.store, self.region.now_ns, self.region.new_id)

    def perform(self, effects: Iterable[DeploymentEffect]) -> list[DeploymentEffect]:
        done = list(effects)
        for effect in done:
            self.region.do(command_of(effect))
        return done

    def after(self, seconds: float) -> list[DeploymentEffect]:
        """What is written until so much later, waking when the core wants to."""
        until = self.region.now_ns + round(seconds * NS)
        found = self.perform(self.review())
        while (wake_at := self.core.wake_at_ns()) is not None and wake_at <= until:
            self.region.now_ns = max(self.region.now_ns, wake_at)
            found += self.perform(self.review())
        self.region.now_ns = until
        return found + self.perform(self.review())

    @property
    def row(self) -> Any:
        found = self.region.store.deployments.rows.get(self.id)
        assert found is not None
        return found


def canaries(**fields: Any) -> Watcher:
    fields = {"desired_canaries": 2, "auto_promote": True, **fields}
    watcher = Watcher({"group": a_state(4, **fields)})
    watcher.place([1, 2], canary=True)
    return watcher


def reverting(*, stable: bool = True, same: bool = False, auto_revert: bool = True) -> Watcher:
    """Version 0 has proven itself (or not), version 1 is being deployed."""
    region = Region()
    region.node(1)
    region.register(a_job(meta={"color": "blue"}))
    if stable:
        region.do(JobStable(namespace="default", id="web", version=0))
    if same:
        region.register(a_job(meta={"color": "green"}))
    color = "blue" if same else "red"
    return Watcher({"group": a_state(auto_revert=auto_revert)}, job=a_job(meta={"color": color}), region=region)


def pause(watcher: Watcher, on: bool = True) -> None:
    effect = plan_pause(watcher.region.store, watcher.id, on, watcher.region.now_ns, watcher.region.new_id)
    watcher.perform([effect])


def asked(watcher: Watcher) -> tuple[Any, str, int, Any]:
    return watcher.region.store, watcher.id, watcher.region.now_ns, watcher.region.new_id
