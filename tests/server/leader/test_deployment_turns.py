"""A region's part in a rollout under the leader's watch: blocked until it is told, then done by itself."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from fedsched.federation.rollout_rules import begin
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.rollout import RolloutShare, RolloutStep
from fedsched.state.tables.deployment_updates import DeploymentStatusUpdate, DeploymentStatusWrite
from fedsched.state.tables.rollout_steps import RolloutStepCarry
from fedsched.state.tables.rollouts import ShareRow, share_write
from tests.server.leader.deployment_kit import Watcher


class Part:
    """A deployment with a share in a rollout."""

    def __init__(self) -> None:
        self.watcher = Watcher()
        job = self.watcher.job
        rollout = begin("r1", replace(job, multiregion=None), version=job.version, owner="eu", now_ns=1)
        self.share = RolloutShare(
            region="eu",
            rollout=rollout,
            step=RolloutStep.RUN,
            status=DeploymentStatus.RUNNING,
            deployment_id=self.watcher.id,
        )
        self.told(RolloutStep.RUN)

    @property
    def row(self) -> ShareRow:
        found = self.watcher.region.store.rollouts.share_row("default", "web")
        assert found is not None
        return found

    def told(self, step: RolloutStep) -> None:
        known = self.watcher.region.store.rollouts.share_row("default", "web")
        status = DeploymentStatus(known.status) if known is not None else DeploymentStatus.RUNNING
        self.watcher.region.do(
            RolloutStepCarry(
                namespace="default",
                job_id="web",
                share=share_write(replace(self.share, step=step, status=status), with_job=False),
                seen_index=known.modify_index if known is not None else 0,
            )
        )

    def becomes(self, status: Any) -> None:
        self.watcher.region.do(
            DeploymentStatusUpdate(updates=(DeploymentStatusWrite(id=self.watcher.id, status=status),))
        )


def test_one_that_waits_for_other_regions_waits() -> None:
    part = Part()
    part.becomes("blocked")

    part.watcher.after(3600)

    assert (part.watcher.row.status, part.row.status) == ("blocked", "blocked")


def test_one_that_is_unblocked_is_done_by_itself_and_its_version_is_stable() -> None:
    part = Part()
    part.becomes("blocked")
    part.told(RolloutStep.UNBLOCK)

    part.watcher.after(1)

    assert (part.watcher.row.status, part.row.status) == ("successful", "successful")
    job = part.watcher.region.store.jobs.get("default", "web")
    assert job is not None
    assert job.stable


def test_one_that_was_told_before_it_was_healthy_does_not_stop() -> None:
    part = Part()
    part.told(RolloutStep.UNBLOCK)
    part.watcher.after(1)
    assert part.watcher.row.status == "running"

    part.becomes("blocked")
    part.watcher.after(1)

    assert part.row.status == "successful"


def test_a_share_in_another_deployment_lets_nothing_go() -> None:
    part = Part()
    part.share = replace(part.share, deployment_id="another", step=RolloutStep.UNBLOCK)
    part.told(RolloutStep.UNBLOCK)
    part.becomes("blocked")

    part.watcher.after(60)

    assert part.watcher.row.status == "blocked"
