"""Builders for the tests of what regions do together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from fedsched.federation.rollout_core import NS, Effect, Heard, RolloutCore, Send, Store, Stored
from fedsched.federation.rollout_rules import begin
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.job import Job, Multiregion, MultiregionRegion, MultiregionStrategy
from fedsched.model.region import MemberStatus, ServerMember
from fedsched.model.rollout import Rollout, RolloutReport, RolloutStep
from tests.builders import a_group, a_job

THREE = ("eu", "us", "asia")


def a_multiregion_job(
    regions: Sequence[str | MultiregionRegion] = THREE, *, strategy: MultiregionStrategy | None = None, **fields: Any
) -> Job:
    """A job whose only group leaves its count to the regions."""
    listed = tuple(MultiregionRegion(name=one) if isinstance(one, str) else one for one in regions)
    fields.setdefault("groups", [a_group(count=0)])
    return a_job(multiregion=Multiregion(strategy=strategy, regions=listed), **fields)


def a_rollout(regions: Sequence[str] = THREE, *, version: int = 1, rollout_id: str = "r1", **strategy: Any) -> Rollout:
    job = a_multiregion_job(regions, strategy=MultiregionStrategy(**strategy))
    return begin(rollout_id, job, version=version, owner=regions[0], now_ns=0)


def a_report(
    region: str, step: RolloutStep | None, status: DeploymentStatus = DeploymentStatus.INITIALIZING, **fields: Any
) -> RolloutReport:
    fields.setdefault("rollout_id", "r1")
    fields.setdefault("epoch", 1)
    fields.setdefault("owner", "eu")
    return RolloutReport(region=region, step=step, status=status, **fields)


def a_member(name: str, region: str = "eu", *, status: MemberStatus = MemberStatus.ALIVE, **tags: str) -> ServerMember:
    """A server in gossip; its id is its name with `id-` before it unless said."""
    given = {"role": "fedsched", "region": region, "id": f"id-{name}", "port": "4647", "build": "0.1.0", **tags}
    return ServerMember(name=f"{name}.{region}", addr="10.0.0.1", port=4648, tags=given, status=status)


class Owner:
    """A core whose writes succeed at once; keeps what it says."""

    def __init__(self, rollout: Rollout, *, at_s: float = 0.0) -> None:
        self.core = RolloutCore(rollout, round(at_s * NS))
        self.sent: list[Send] = []
        self.take(self.core.begin(round(at_s * NS)), at_s)

    @property
    def rollout(self) -> Rollout:
        return self.core.rollout

    def take(self, effects: list[Effect], at_s: float) -> None:
        for effect in effects:
            if isinstance(effect, Store):
                assert effect.rollout.revision == self.core.rollout.revision + 1
                self.take(self.core.handle(Stored(effect.rollout), round(at_s * NS)), at_s)
            else:
                self.sent.append(effect)

    def hear(
        self, region: str, step: RolloutStep | None, status: DeploymentStatus, at_s: float = 0.0, **more: Any
    ) -> None:
        report = replace(a_report(region, step, status, **more), rollout_id=self.rollout.id)
        self.take(self.core.handle(Heard(report), round(at_s * NS)), at_s)

    def wake(self, at_s: float) -> None:
        self.take(self.core.wake(round(at_s * NS)), at_s)

    def said(self) -> list[tuple[str, str]]:
        """Steps that were said since the last look, in order; questions for the status are left out."""
        found = [(one.region, one.command.step.value) for one in self.sent if one.command.step is not None]
        self.sent.clear()
        return found

    def steps(self) -> dict[str, str]:
        return {one.name: one.step.value for one in self.rollout.regions}

    def statuses(self) -> dict[str, str]:
        return {one.name: one.status.value for one in self.rollout.regions}

    def prepare_all(self) -> None:
        for region in self.rollout.regions:
            self.hear(region.name, RolloutStep.PREPARE, DeploymentStatus.PENDING)
