"""Rollouts in the state: records follow one another, share and deed come together, a share follows its deployment."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.federation.rollout_rules import adopted_by, begin
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.job import Job
from fedsched.model.rollout import Rollout, RolloutShare, RolloutStatus, RolloutStep
from fedsched.state.apply import ApplyResult
from fedsched.state.tables.deployment_updates import DeploymentStatusUpdate, DeploymentStatusWrite
from fedsched.state.tables.deployments import deployment_write
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.tables.jobs import JobDeregister, job_register
from fedsched.state.tables.rollout_steps import RolloutStepCarry
from fedsched.state.tables.rollouts import JobPart, RolloutsReap, ShareRow, rollout_write, share_write
from tests.builders import a_deployment, an_evaluation, an_id
from tests.federation.builders import a_multiregion_job
from tests.state.worlds import World

WAITING = an_id(7)


def a_record(rollout_id: str = "r1", *, version: int = 4, job: Job | None = None, **fields: Any) -> Rollout:
    rollout = begin(rollout_id, job or a_multiregion_job(job_id="web"), version=version, owner="eu", now_ns=1)
    return replace(rollout, **fields)


def a_share(rollout: Rollout, **fields: Any) -> RolloutShare:
    fields.setdefault("status", DeploymentStatus.PENDING)
    return RolloutShare(region="eu", rollout=rollout, deployment_id=WAITING, **fields)


def prepare(world: World, rollout: Rollout) -> ApplyResult:
    """What a region does when it is told to prepare."""
    job = rollout.job
    assert job is not None
    waiting = a_deployment(7, job=job, status=DeploymentStatus.INITIALIZING, is_multiregion=True)
    return world.do(
        RolloutStepCarry(
            namespace="default",
            job_id="web",
            share=share_write(a_share(rollout), with_job=True),
            seen_index=seen(world),
            registration=job_register(job, evaluation=None),
            version=rollout.job_version,
            deployment=deployment_write(waiting),
            evaluations=(evaluation_write(an_evaluation(1, job=job)),),
        )
    )


def seen(world: World) -> int:
    row = world.store.rollouts.share_row("default", "web")
    return row.modify_index if row is not None else 0


def share_of(world: World) -> ShareRow:
    row = world.store.rollouts.share_row("default", "web")
    assert row is not None
    return row


def becomes(world: World, status: Any, description: str = "") -> None:
    update = DeploymentStatusWrite(id=WAITING, status=status, description=description)
    assert world.do(DeploymentStatusUpdate(updates=(update,))).result.is_done


class TestRecords:
    def test_a_record_comes_back_as_it_was_and_its_job_is_written_once(self) -> None:
        world, rollout = World(), a_record()
        world.do(rollout_write(rollout, is_new=True))
        moved = replace(rollout, status=RolloutStatus.RUNNING, revision=1)
        assert not rollout_write(moved).job
        world.do(rollout_write(moved))

        row = world.store.rollouts.row("r1")
        assert row is not None
        assert row.rollout() == moved
        assert row.header() == replace(moved, job=None)

    @pytest.mark.parametrize(("revision", "is_done"), [(0, False), (1, True), (2, False)])
    def test_a_record_is_written_on_top_of_the_one_before_only(self, revision: int, is_done: bool) -> None:
        world, rollout = World(), a_record()
        world.do(rollout_write(rollout, is_new=True))

        result = world.do(rollout_write(replace(rollout, revision=revision))).result

        assert (result.is_done, result.code) == (is_done, "" if is_done else "conflict")

    def test_a_higher_ballot_takes_over_and_a_lower_one_is_refused(self) -> None:
        world, rollout = World(), a_record(revision=9)
        world.do(rollout_write(rollout))
        adopted = replace(rollout, owner="us", epoch=2, revision=3)
        assert world.do(rollout_write(adopted)).result.is_done

        late = world.do(rollout_write(replace(rollout, revision=4))).result

        assert late.code == "conflict"
        assert "us drives" in late.message

    def test_what_the_region_promised_to_another_owner_holds_for_its_own_records(self) -> None:
        world, rollout = World(), a_record()
        world.do(rollout_write(rollout, is_new=True))
        prepare(world, rollout)
        promised = a_share(rollout, epoch=2, owner="us")
        carry = RolloutStepCarry(
            namespace="default", job_id="web", share=share_write(promised, with_job=False), seen_index=seen(world)
        )
        assert world.do(carry).result.is_done

        assert world.do(rollout_write(replace(rollout, revision=1))).result.code == "conflict"
        over = replace(adopted_by(rollout, "us", 2), revision=1)
        assert world.do(rollout_write(over)).result.is_done

    def test_a_new_rollout_needs_a_new_version(self) -> None:
        world = World()
        world.do(rollout_write(a_record("r1", version=4), is_new=True))

        again = world.do(rollout_write(a_record("r2", version=4), is_new=True)).result

        assert again.code == "conflict"
        assert "version 4 already" in again.message

    def test_a_version_that_only_the_job_here_has_counts_too(self) -> None:
        world = World()
        world.register(a_multiregion_job(job_id="web"))

        assert world.do(rollout_write(a_record(version=0), is_new=True)).result.code == "conflict"
        assert world.do(rollout_write(a_record(version=1), is_new=True)).result.is_done

    def test_enforcing_an_index_that_is_not_the_jobs_begins_nothing(self) -> None:
        world = World()
        world.register(a_multiregion_job(job_id="web"))

        result = world.do(rollout_write(a_record(), is_new=True, enforce_index=True, check_index=99)).result

        assert result.code == "conflict"
        assert "Enforcing job modify index 99" in result.message
        assert world.store.rollouts.row("r1") is None

    def test_of_each_job_the_newest_record_stays_and_those_that_are_not_over(self) -> None:
        world = World()
        world.do(rollout_write(a_record("r1", version=1, status=RolloutStatus.SUCCESSFUL)))
        world.do(rollout_write(a_record("r2", version=2, status=RolloutStatus.BLOCKED)))
        world.do(rollout_write(a_record("r3", version=3)))

        assert [row.id for row in world.store.rollouts.of_job("default", "web")] == ["r2", "r3"]


class TestShares:
    def test_preparing_registers_the_version_and_its_deployment_waits(self) -> None:
        world, rollout = World(), a_record(version=4)

        assert prepare(world, rollout).result.is_done

        job = world.store.jobs.get("default", "web")
        deployment = world.store.deployments.get(WAITING)
        assert job is not None
        assert deployment is not None
        assert (job.version, job.create_index) == (4, world.index)
        assert (deployment.job_version, deployment.job_create_index) == (4, job.create_index)
        assert deployment.status is DeploymentStatus.INITIALIZING
        evaluation = world.store.evaluations.get(an_id(1))
        assert evaluation is not None
        assert evaluation.job_modify_index == job.job_modify_index
        assert share_of(world).share() == a_share(rollout)

    def test_a_version_is_skipped_where_others_were_further(self) -> None:
        world = World()
        world.register(a_multiregion_job(job_id="web"))
        prepare(world, a_record(version=7))

        assert [job.version for job in world.store.jobs.versions("default", "web")] == [7, 0]

    def test_the_same_deed_from_two_leaders_is_done_once(self) -> None:
        world, rollout = World(), a_record()
        prepare(world, rollout)
        run = RolloutStepCarry(
            namespace="default",
            job_id="web",
            share=share_write(a_share(rollout, step=RolloutStep.RUN, status=DeploymentStatus.RUNNING), with_job=False),
            seen_index=seen(world),
            status=DeploymentStatusWrite(id=WAITING, status="running"),
            evaluations=(evaluation_write(an_evaluation(2)),),
        )
        assert world.do(run).result.is_done
        before = world.store.digest_parts()["evaluations"]

        again = world.do(run).result

        assert again.code == "conflict"
        assert world.store.digest_parts()["evaluations"] == before
        assert share_of(world).share().rollout.job == rollout.job

    def test_a_registration_is_refused_whole_if_the_job_has_moved_on(self) -> None:
        world = World()
        for priority in (50, 51, 52):
            world.register(a_multiregion_job(job_id="web", priority=priority))

        result = prepare(world, a_record(version=2)).result

        assert result.code == "conflict"
        assert world.store.rollouts.share_row("default", "web") is None
        assert world.store.deployments.get(WAITING) is None

    def test_a_share_says_what_became_of_its_deployment(self) -> None:
        world, rollout = World(), a_record()
        prepare(world, rollout)
        said = []
        for status in ("running", "paused", "running", "blocked", "unblocking", "successful"):
            becomes(world, status)
            said.append(share_of(world).status)
            assert share_of(world).modify_index == world.index
        assert said == ["running", "paused", "running", "blocked", "unblocking", "successful"]

    def test_a_share_says_why_its_deployment_failed_and_stays_with_it(self) -> None:
        world = World()
        prepare(world, a_record())
        becomes(world, "running")
        becomes(world, "failed", "failed: too slow")

        assert (share_of(world).status, share_of(world).error) == ("failed", "failed: too slow")

    @pytest.mark.parametrize("status", ["running", "failed", "cancelled"])
    def test_a_plan_made_before_its_turn_does_not_send_it_back_to_waiting(self, status: str) -> None:
        world, rollout = World(), a_record()
        prepare(world, rollout)
        becomes(world, status, "its turn")
        late = a_deployment(7, job=rollout.job, status=DeploymentStatus.PENDING, is_multiregion=True)

        world.plan("web", deployments=(deployment_write(late),))
        world.plan("web", deployment_updates=(DeploymentStatusWrite(id=WAITING, status="pending"),))

        deployment = world.store.deployments.get(WAITING)
        assert deployment is not None
        assert (deployment.status.value, deployment.status_description) == (status, "its turn")
        assert share_of(world).status == status

    def test_another_deployment_of_the_job_does_not_move_the_share(self) -> None:
        world, rollout = World(), a_record()
        prepare(world, rollout)
        other = a_deployment(8, job=rollout.job, status=DeploymentStatus.RUNNING)
        world.plan("web", deployments=(deployment_write(other),))
        world.do(DeploymentStatusUpdate(updates=(DeploymentStatusWrite(id=other.id, status="failed"),)))

        assert share_of(world).status == "pending"

    def test_a_share_stays_when_the_job_is_purged_until_it_is_reaped(self) -> None:
        world = World()
        prepare(world, a_record())
        world.do(JobDeregister(namespace="default", id="web", purge=True))
        reap = RolloutsReap(shares=(JobPart(namespace="default", id="web"),), seen_index=world.index + 5)
        world.do(reap)
        assert share_of(world).status == "pending"

        becomes(world, "cancelled")
        world.do(reap)

        assert world.store.rollouts.share_row("default", "web") is None

    def test_what_was_written_since_is_not_reaped(self) -> None:
        world = World()
        world.do(rollout_write(a_record(status=RolloutStatus.FAILED)))
        world.do(RolloutsReap(rollouts=("r1",), seen_index=world.index - 1))
        assert world.store.rollouts.row("r1") is not None

        world.do(RolloutsReap(rollouts=("r1",), seen_index=world.index))

        assert world.store.rollouts.row("r1") is None
