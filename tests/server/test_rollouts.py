"""Multi-region jobs in real servers: prepared everywhere, started in turn, healthy together, failed as the job says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.federation import multiregion
from fedsched.federation.adoption_watch import WatchSettings
from fedsched.federation.rollout_core import RolloutSettings
from fedsched.federation.rollout_rules import begin
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.errors import BadRequest, Conflict, NotFound
from fedsched.model.job import JobSubmission, MultiregionRegion
from fedsched.model.job_defaults import canonicalise
from fedsched.model.problem import InvalidJob
from fedsched.model.rollout import RolloutCommand, RolloutReport, RolloutStanding, RolloutStep
from fedsched.rpc.caller import LocalCaller
from fedsched.rpc.methods.deployment import (
    DEPLOYMENT_PAUSE,
    DEPLOYMENT_UNBLOCK,
    DeploymentPauseRequest,
    DeploymentRequest,
)
from fedsched.rpc.methods.job import JOB_DEREGISTER, JobDeregisterRequest
from fedsched.rpc.methods.job_extras import JOB_PLAN, JOB_SUBMISSION, JobPlanRequest, JobSubmissionRequest
from fedsched.rpc.methods.rollout import (
    ROLLOUT_ADOPT,
    ROLLOUT_BEGIN,
    ROLLOUT_COMMAND,
    ROLLOUT_FAIL,
    ROLLOUT_LIST,
    ROLLOUT_STATUS,
    ROLLOUT_UNBLOCK,
    RolloutAdoptRequest,
    RolloutBeginRequest,
    RolloutFailRequest,
    RolloutListRequest,
    RolloutStatusRequest,
    RolloutUnblockRequest,
)
from fedsched.server.identity import FAR_SERVER, STRANGER, NotAllowed
from fedsched.server.leader import owner_watch, rollouts
from tests.builders import a_group
from tests.server.federation import WITHIN_S, Federation, a_spread_job, run_federation
from tests.server.region import until


def test_regions_follow_one_another_and_succeed_together(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        world.silent = {"eu"}
        text = JobSubmission(source='job "web" {}', format="hcl2")
        reply = await world.submit(a_spread_job(), at="us", submission=text)
        assert (reply.job_version, reply.eval_id) == (0, "")

        await until("eu has placed something", lambda: world.placed("eu"))
        assert world.statuses() == {"eu": "running", "us": "pending", "asia": "pending"}
        world.silent = set()
        record = await world.until_status("successful", at="us")

        assert record.id == reply.rollout_id
        assert world.statuses() == {"eu": "successful", "us": "successful", "asia": "successful"}
        assert world.began == ["eu", "us", "asia"]
        for name in world.began:
            kept = (await world.server(name).call(JOB_SUBMISSION, JobSubmissionRequest(job_id="web"))).submission
            assert (kept.source, kept.version) == (text.source, 0)

    run_federation(tmp_path, story)


@pytest.mark.parametrize(
    ("on_failure", "status", "parts"),
    [
        ("", "blocked", {"eu": "blocked", "us": "failed", "asia": "failed"}),
        ("fail_all", "failed", {"eu": "failed", "us": "failed", "asia": "failed"}),
        ("fail_local", "blocked", {"eu": "blocked", "us": "failed", "asia": "blocked"}),
    ],
)
def test_a_region_that_fails_takes_along_whom_the_job_says(
    tmp_path: Path, on_failure: str, status: str, parts: dict[str, str]
) -> None:
    async def story(world: Federation) -> None:
        world.unwell = {"us"}
        await world.submit(a_spread_job(on_failure=on_failure))

        await world.until_status(status)

        await until("regions have heard of it", lambda: world.statuses() == parts)
        assert ("asia" in world.began) == (on_failure == "fail_local")

    run_federation(tmp_path, story)


def test_what_is_blocked_beside_a_failure_is_let_go_by_hand_from_any_region(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        world.unwell = {"us"}
        reply = await world.submit(a_spread_job(on_failure="fail_local"))
        await world.until_status("blocked")
        view = await world.view(at="asia")
        assert (view.is_owner, view.rollout.id, view.rollout.job) == (False, reply.rollout_id, None)
        assert view.share is not None
        assert view.share.status is DeploymentStatus.BLOCKED

        request = RolloutUnblockRequest(rollout_id=reply.rollout_id, regions=("eu",))
        told = (await world.server("asia").call(ROLLOUT_UNBLOCK, request)).rollout
        assert told.region("eu").step is RolloutStep.UNBLOCK
        await world.until_part("eu", "successful")
        with pytest.raises(BadRequest, match="no region of rollout"):
            await world.server("asia").call(ROLLOUT_UNBLOCK, request)
        part = world.share("asia")
        assert part is not None
        await world.server("asia").call(DEPLOYMENT_UNBLOCK, DeploymentRequest(deployment_id=part.deployment_id))
        record = await world.until_status("failed")
        await world.until_part("asia", "successful")

        assert record.status_description == "failed in us"
        assert world.statuses() == {"eu": "successful", "us": "failed", "asia": "successful"}

    run_federation(tmp_path, story)


def test_a_region_that_goes_back_does_so_by_itself_and_waits_for_nobody(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        await world.submit(a_spread_job(auto_revert=True, max_parallel=0))
        await world.until_status("successful")
        world.unwell = {"us"}
        await world.submit(a_spread_job(color="red", auto_revert=True, on_failure="fail_local"))
        await world.until_part("us", "failed")
        world.unwell = set()

        def is_back() -> bool:
            return world.deployments("us") == ["successful", "failed", "successful"]

        await until("us has gone back", is_back, within_s=WITHIN_S)

        job = await world.server("us").job("web")
        assert (job.version, job.meta["color"]) == (2, "blue")
        assert (await world.server("eu").job("web")).version == 1

    run_federation(tmp_path, story)


def test_a_part_is_paused_and_the_whole_is_failed_by_hand(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        await world.submit(a_spread_job(("eu", "us"), max_parallel=0))
        await world.until_status("successful")
        world.silent = {"us"}
        reply = await world.submit(a_spread_job(("eu", "us"), color="red"))
        await until("red runs in us", lambda: world.placed("us") == 2, within_s=WITHIN_S)
        part = world.share("us")
        assert part is not None

        us = world.server("us")
        await us.call(DEPLOYMENT_PAUSE, DeploymentPauseRequest(deployment_id=part.deployment_id))
        await until("the owner knows", lambda: world.seen("us") == "paused")
        with pytest.raises(BadRequest, match="has no region 'mars'"):
            await us.call(ROLLOUT_FAIL, RolloutFailRequest(rollout_id=reply.rollout_id, regions=("mars",)))
        request = RolloutFailRequest(rollout_id=reply.rollout_id[:8], reverts=True, reason="it is the wrong red")
        told = (await us.call(ROLLOUT_FAIL, request)).rollout

        assert told.status == "failed"
        for name in ("eu", "us"):
            await until(f"{name} is blue again", lambda name=name: world.colour(name) == "blue")
            part = world.share(name)
            assert part is not None
            assert part.status is DeploymentStatus.FAILED
            assert "it is the wrong red" in part.error

    run_federation(tmp_path, story, ("eu", "us"))


def test_the_owners_leader_goes_away_between_two_steps(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        world.silent = {"us"}
        await world.submit(a_spread_job())
        await until("us has placed something", lambda: world.placed("us"), within_s=WITHIN_S)
        member = await world.stop("eu")
        world.silent = set()
        await world.until_part("us", "blocked")
        assert world.statuses_of("us", "asia") == {"us": "blocked", "asia": "pending"}

        await world.restart("eu", member)
        await world.until_status("successful")

        for name in ("eu", "us", "asia"):
            assert world.deployments(name) == ["successful"]
            assert world.placed(name) == 1

    run_federation(tmp_path, story)


def test_with_a_region_that_cannot_be_reached_nothing_is_started_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollouts, "SETTINGS", RolloutSettings(prepare_s=1.5, watch_s=0.0))

    async def story(world: Federation) -> None:
        await world.submit(a_spread_job(max_parallel=0))
        await world.until_status("successful")
        gone = await world.stop("asia")

        await world.submit(a_spread_job(color="red"))
        record = await world.until_status("failed", version=1)

        assert record.status_description == "nothing was started: region asia: it could not be reached"
        for name in ("eu", "us"):
            await until(f"{name} is as before", lambda name=name: world.colour(name) == "blue")
            assert world.placed(name) == 1
        await world.restart("asia", gone)
        await until("asia was told", lambda: world.statuses().get("asia") == "cancelled", within_s=WITHIN_S)
        assert (await world.server("asia").job("web")).meta["color"] == "blue"

    run_federation(tmp_path, story)


def test_a_region_that_refuses_starts_nothing_anywhere(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        names = ("eu", MultiregionRegion(name="us", node_pool="gpu"), "asia")
        await world.submit(a_spread_job(names))
        record = await world.until_status("failed")

        assert record.status_description.startswith("nothing was started: region us refused: node pool 'gpu' does not")
        for name in ("eu", "asia"):
            await world.until_part(name, "cancelled")
            assert (await world.server(name).job("web")).stop
        with pytest.raises(NotFound):
            await world.server("us").job("web")
        assert world.began == []

    run_federation(tmp_path, story)


def test_commands_that_come_twice_or_late_are_answered_and_not_carried_out(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        us = world.server("us")
        job = canonicalise(a_spread_job(("eu", "us")), region="eu")
        rollout = begin("r1", job, version=4, owner="eu", now_ns=1)

        async def told(step: RolloutStep | None, **fields: Any) -> RolloutReport:
            command = RolloutCommand(key=f"r1/us/{step}", region="us", rollout=replace(rollout, **fields), step=step)
            report: RolloutReport = await us.call(ROLLOUT_COMMAND, command)
            return report

        first = await told(RolloutStep.PREPARE)
        assert (first.status, (await us.job("web")).version) == (DeploymentStatus.PENDING, 4)
        assert await told(RolloutStep.PREPARE) == first
        assert (await told(RolloutStep.RUN)).status is DeploymentStatus.RUNNING
        await world.until_part("us", "blocked")
        assert (await told(RolloutStep.RUN)).status is DeploymentStatus.BLOCKED
        assert (await told(RolloutStep.FAIL)).status is DeploymentStatus.FAILED
        late = await told(RolloutStep.UNBLOCK)
        assert (late.step, late.status) == (RolloutStep.FAIL, DeploymentStatus.FAILED)
        assert world.deployments("us") == ["failed"]

        withdrawn = await told(RolloutStep.WITHDRAW, id="r2", job_version=9)
        assert withdrawn.step is RolloutStep.WITHDRAW
        assert (await told(RolloutStep.PREPARE, id="r2", job_version=9)).status is DeploymentStatus.CANCELLED
        assert (await us.job("web")).version == 4
        with pytest.raises(BadRequest, match="for region 'asia' came to region 'us'"):
            await us.call(ROLLOUT_COMMAND, RolloutCommand(key="", region="asia", rollout=rollout))
        question = RolloutCommand(key="", region="us", rollout=replace(rollout, id="r2", job_version=9))
        far = LocalCaller(us.server.calls, identity=FAR_SERVER)
        assert (await far.call(ROLLOUT_COMMAND, question))[0].step is RolloutStep.WITHDRAW
        stranger = LocalCaller(us.server.calls, identity=STRANGER)
        with pytest.raises(NotAllowed):
            await stranger.call(ROLLOUT_COMMAND, RolloutCommand(key="", region="us", rollout=rollout))

    run_federation(tmp_path, story, ("eu", "us"))


def test_a_newer_version_takes_over_and_a_region_it_does_not_list_is_left_once_it_runs(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        await world.submit(a_spread_job(max_parallel=0))
        await world.until_status("successful")
        world.silent = {"eu"}
        second = await world.submit(a_spread_job(color="red"))
        await until("red runs in eu", lambda: world.placed("eu") == 2, within_s=WITHIN_S)
        assert not (await world.server("asia").job("web")).stop

        world.silent = set()
        third = await world.submit(a_spread_job(("eu", "us"), color="green"))
        assert (second.job_version, third.job_version) == (1, 2)
        await world.until_status("successful", version=2)

        await until("asia is left", lambda: world.is_stopped("asia"), within_s=WITHIN_S)
        older = world.server("eu").server.machine.store.rollouts.row(second.rollout_id)
        assert older is None or older.is_over
        assert [world.colour(name) for name in ("eu", "us")] == ["green", "green"]

    run_federation(tmp_path, story)


def test_an_owner_that_is_lost_is_replaced_and_one_that_answers_is_not(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        world.silent = {"us"}
        reply = await world.submit(a_spread_job())
        await until("us has placed something", lambda: world.placed("us"), within_s=WITHIN_S)
        request = RolloutAdoptRequest(rollout_id=reply.rollout_id)
        with pytest.raises(Conflict, match="region 'eu' answers and drives"):
            await world.server("asia").call(ROLLOUT_ADOPT, request)

        lost = await world.stop("eu")
        world.silent = set()
        adopted = (await world.server("asia").call(ROLLOUT_ADOPT, request)).rollout
        assert (adopted.owner, adopted.epoch) == ("asia", 2)
        await world.until_part("asia", "blocked")

        await world.restart("eu", lost)
        await world.until_status("successful", at="asia")
        await world.until_part("eu", "successful")
        assert (await world.view(at="us")).rollout.owner == "asia"
        await until("eu knows who drives", lambda: world.record(at="eu").status == "adopted", within_s=WITHIN_S)
        for name in ("eu", "us", "asia"):
            assert world.deployments(name) == ["successful"]

    run_federation(tmp_path, story)


def test_an_owner_that_stays_silent_is_replaced_without_a_person_if_the_job_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiregion, "ADOPT_AFTER_MIN_S", 1.0)
    monkeypatch.setattr(owner_watch, "SETTINGS", WatchSettings(ask_s=0.5, call_s=2.0, stagger_s=10.0))

    async def story(world: Federation) -> None:
        world.silent = {"us"}
        await world.submit(a_spread_job(adopt_after_s=2.5))
        await until("us has placed something", lambda: world.placed("us"), within_s=15)
        lost = await world.stop("eu")
        world.silent = set()
        await world.until_part("us", "blocked")

        await until("us drives", lambda: owner_seen(world, "us") == (2, "us"), within_s=20)
        await world.until_part("asia", "blocked")
        assert world.statuses_of("us", "asia") == {"us": "blocked", "asia": "blocked"}
        await world.restart("eu", lost)
        await world.until_status("successful", at="us")

        await world.until_part("eu", "successful")
        await until("eu knows who drives", lambda: world.record(at="eu").status == "adopted", within_s=15)
        view = await world.view(at="eu")
        assert (view.is_owner, view.rollout.owner, view.rollout.epoch) == (False, "us", 2)
        assert world.record(at="asia") is None
        for name in ("eu", "us", "asia"):
            assert world.deployments(name) == ["successful"]
            assert world.placed(name) == 1

    run_federation(tmp_path, story)


def owner_seen(world: Federation, name: str) -> tuple[int, str] | None:
    record = world.record(at=name)
    return record.ballot if record is not None else None


def test_a_region_that_is_asked_says_who_drives_and_when_it_heard_of_it(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        world.silent = {"eu"}
        reply = await world.submit(a_spread_job(adopt_after_s=600.0))
        await until("eu has placed something", lambda: world.placed("eu"), within_s=15)

        async def asked(name: str, rollout_id: str = reply.rollout_id) -> RolloutStanding:
            standing: RolloutStanding = await world.server(name).call(
                ROLLOUT_STATUS, RolloutStatusRequest(rollout_id=rollout_id)
            )
            return standing

        eu, us, unknown = await asked("eu"), await asked("us"), await asked("us", "r9")
        assert (eu.is_known, eu.drives, eu.ballot, eu.heard_ago_s) == (True, True, (1, "eu"), None)
        assert (us.is_known, us.drives, us.ballot) == (True, False, (1, "eu"))
        assert us.heard_ago_s is not None
        assert us.heard_ago_s < 60
        assert unknown == RolloutStanding(region="us", rollout_id="r9")

    run_federation(tmp_path, story)


def test_of_two_regions_none_may_adopt_without_a_person(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        with pytest.raises(InvalidJob, match="adopt_after needs 3 listed regions, and there are 2"):
            await world.submit(a_spread_job(("eu", "us"), adopt_after_s=600.0))

    run_federation(tmp_path, story, ("eu", "us"))


def test_a_canary_waits_for_a_person_and_then_the_others_follow(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        await world.submit(a_spread_job(max_parallel=0, canary_region=True))
        record = await world.until_status("blocked")

        assert record.status_description == "canary region eu is healthy; the others begin once it is unblocked by hand"
        assert world.statuses() == {"eu": "blocked", "us": "pending", "asia": "pending"}
        assert world.began == ["eu"]
        part = world.share("eu")
        assert part is not None
        await world.server("eu").call(DEPLOYMENT_UNBLOCK, DeploymentRequest(deployment_id=part.deployment_id))
        await world.until_status("successful")

        assert world.statuses() == {"eu": "successful", "us": "successful", "asia": "successful"}

    run_federation(tmp_path, story)


def test_the_next_region_begins_when_the_one_before_has_baked(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        await world.submit(a_spread_job(("eu", "us"), bake_time_s=1.5))
        await until("eu bakes", lambda: "bake time: eu" in world.described(), within_s=15)
        assert world.statuses() == {"eu": "blocked", "us": "pending"}
        record = await world.until_status("successful")

        eu, us = record.regions
        assert us.healthy_time_ns - eu.healthy_time_ns >= 1_500_000_000

    run_federation(tmp_path, story, ("eu", "us"))


def test_a_plan_says_what_each_region_would_do(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        await world.stop("asia")
        names = ("eu", MultiregionRegion(name="us", count=3), "asia")
        request = JobPlanRequest(job=a_spread_job(names, count=0))

        reply = await world.server("eu").call(JOB_PLAN, request)

        eu, us, asia = reply.regions
        assert [one.annotations.desired_tg_updates["group"].place for one in (eu, us)] == [1, 3]
        assert asia.error.startswith("No path to region 'asia'")
        assert reply.diff is None

    run_federation(tmp_path, story)


def test_jobs_without_turns_are_registered_everywhere_at_once_and_stopped_everywhere(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        job = replace(a_spread_job(), type="batch", task_groups=(a_group(update=None, migrate=None),))
        reply = await world.submit(job, at="asia")

        assert [(one.region, one.error, bool(one.eval_id)) for one in reply.regions] == [
            ("eu", "", True),
            ("us", "", True),
            ("asia", "", True),
        ]
        assert reply.rollout_id == ""
        for name in ("eu", "us", "asia"):
            assert (await world.server(name).job("web")).region == name
        await world.stop("us")
        stopped = await world.server("eu").call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web", global_=True))
        assert [one.region for one in stopped.regions if one.error] == ["us"]
        assert world.is_stopped("eu")
        assert world.is_stopped("asia")

    run_federation(tmp_path, story)


def test_what_is_wrong_with_a_job_of_several_regions_is_said_before_anything_is_done(tmp_path: Path) -> None:
    async def story(world: Federation) -> None:
        with pytest.raises(InvalidJob, match="no server here has heard of"):
            await world.submit(a_spread_job(("eu", "mars")))
        with pytest.raises(BadRequest, match="does not drive rollouts"):
            await world.server("us").call(ROLLOUT_BEGIN, RolloutBeginRequest(job=a_spread_job(("eu",))))
        with pytest.raises(Conflict, match="Enforcing job modify index 7"):
            await world.submit(a_spread_job(("eu", "us")), enforce_index=True, job_modify_index=7)
        with pytest.raises(BadRequest, match="lists no regions here"):
            await world.server("eu").call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web", global_=True))
        assert (await world.server("eu").call(ROLLOUT_LIST, RolloutListRequest())).rollouts == ()

    run_federation(tmp_path, story, ("eu", "us"))
