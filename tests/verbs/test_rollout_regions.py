"""Jobs of several regions: following a rollout to its end, and what people decide about it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.deployment import DeploymentStatus
from fedsched.model.errors import NotFound, Unavailable
from fedsched.model.job import Multiregion, MultiregionRegion, MultiregionStrategy
from fedsched.model.plan import DesiredUpdates, PlanAnnotations
from fedsched.model.rollout import Rollout, RolloutRegion, RolloutShare, RolloutStatus, RolloutStep
from fedsched.rpc.methods import deployment as deployments
from fedsched.rpc.methods import job as jobs
from fedsched.rpc.methods.evaluation import EVAL_GET
from fedsched.rpc.methods.job_extras import JOB_PLAN, JobPlanReply, RegionPlan
from fedsched.rpc.methods.rollout import (
    ROLLOUT_ADOPT,
    ROLLOUT_FAIL,
    ROLLOUT_GET,
    ROLLOUT_LIST,
    ROLLOUT_UNBLOCK,
    RolloutListReply,
    RolloutView,
    RolloutWriteReply,
)
from fedsched.verbs import rollout_follow
from fedsched.verbs.terminal import Terminal
from tests.verbs.commands import NOW_NS, Seen
from tests.verbs.scenes import DEPLOYMENT, EVAL, HAS_DEPLOYMENT, HAS_JOB, a_deployment, a_job, complete, run

ROLLOUT = "0f0f0f0f-0000-4000-8000-000000000000"
S, P = DeploymentStatus, RolloutStep
JOB = a_job(multiregion=Multiregion(regions=(MultiregionRegion(name="eu"), MultiregionRegion(name="us"))))
JOB_FILE = json.dumps({"ID": "web", "Multiregion": {"Regions": [{"Name": "eu"}, {"Name": "us"}]}})


def a_rollout(
    eu: DeploymentStatus = S.RUNNING,
    us: DeploymentStatus = S.PENDING,
    status: RolloutStatus = RolloutStatus.RUNNING,
    **fields: Any,
) -> Rollout:
    fields.setdefault("owner", "eu")
    fields.setdefault("strategy", MultiregionStrategy(max_parallel=1, on_failure="fail_all"))
    regions = (
        RolloutRegion(name="eu", step=P.RUN, status=eu, deployment_id=DEPLOYMENT),
        RolloutRegion(name="us", status=us),
    )
    return Rollout(id=ROLLOUT, job_id="web", job_version=3, regions=regions, status=status, **fields)


GOES_ON = a_rollout()
DONE = a_rollout(S.SUCCESSFUL, S.SUCCESSFUL, RolloutStatus.SUCCESSFUL, status_description="all regions are well")
BLOCKED = a_rollout(S.BLOCKED, S.FAILED, RolloutStatus.BLOCKED)


class Gone(Unavailable):
    """Nothing to wait for."""

    code = "rejected"


def views(*seen: Rollout | None, by_region: dict[str, Any] | None = None) -> Any:
    """What each question in turn is answered with; None: the region does not answer."""
    left = list(seen)

    def answer(request: Any, context: Any) -> RolloutView:
        region = context.meta.region
        if by_region is not None:
            rollouts = by_region.get(region, [])
            found = rollouts.pop(0) if len(rollouts) > 1 else rollouts[0] if rollouts else None
        else:
            found = left.pop(0) if len(left) > 1 else left[0]
        if found is None:
            raise Gone(f"No path to region {region!r}")
        return RolloutView(rollout=found, is_owner=found.owner == region)

    return answer


def registered(**fields: Any) -> Any:
    return lambda _: jobs.JobWriteReply(rollout_id=ROLLOUT, job_version=3, index=9, **fields)


def submit(get: Any, line: str = "job run -", **options: Any) -> Seen:
    return run(line, {jobs.JOB_REGISTER: registered(), ROLLOUT_GET: get}, stdin=JOB_FILE, **options)


def test_a_submission_is_followed_through_its_regions_one_line_per_change() -> None:
    seen = submit(views(GOES_ON, GOES_ON, a_rollout(S.BLOCKED, S.RUNNING), DONE))

    told = [line.split("Z: ")[1] for line in seen.out.splitlines() if "Z: " in line]
    assert told == [
        'Monitoring rollout "0f0f0f0f" in regions eu, us',
        'Region "eu" is running',
        'Region "us" is pending',
        "Rollout is running",
        'Region "eu" is blocked',
        'Region "us" is running',
        'Region "eu" is successful',
        'Region "us" is successful',
        "Rollout is successful",
    ]
    assert '  [ok] Rollout "0f0f0f0f" successful\n' in seen.out
    assert "    eu      51c9e0d4    run      successful  <none>\n" in seen.out
    assert seen.code == 0


def test_each_question_waits_at_the_region_that_drives_the_rollout() -> None:
    seen = submit(views(replace(GOES_ON, owner="us"), replace(GOES_ON, owner="us"), replace(DONE, owner="us")))

    metas = seen.agent.metas(ROLLOUT_GET)
    assert [meta.region for meta in metas] == ["eu", "us", "us"]
    assert [meta.min_index for meta in metas] == [0, 0, 7]
    assert "does not answer" not in seen.out


def test_while_the_driving_region_is_silent_the_others_are_asked_and_that_is_said_once() -> None:
    seen = submit(views(by_region={"eu": [GOES_ON, None, None, DONE], "us": [GOES_ON]}))

    note = """Region "eu", which drives it, does not answer (No path to region 'eu'); this is what "us" last heard\n"""
    assert seen.out.count(note) == 1
    assert seen.code == 0


def test_on_a_screen_the_silence_of_the_driving_region_is_a_part_of_the_picture() -> None:
    get = views(by_region={"eu": [GOES_ON, None, DONE], "us": [GOES_ON]})

    seen = submit(get, line="job run -no-color -", screen=True)

    pictures = [text for text in seen.out.split("\x1b[J") if "Rollout is running" in text]
    assert ["does not answer" in picture for picture in pictures] == [False, True]
    assert seen.out.index("\x1b[5A") < seen.out.index("\x1b[7A")


def test_another_region_that_takes_over_is_followed() -> None:
    over = replace(GOES_ON, status=RolloutStatus.ADOPTED)
    adopted = replace(GOES_ON, owner="us", epoch=2)

    seen = submit(views(by_region={"eu": [GOES_ON, over], "us": [GOES_ON, adopted, replace(DONE, owner="us")]}))

    assert (seen.code, "does not answer" in seen.out) == (0, False)


def test_the_following_ends_when_nobody_answers_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollout_follow, "ROUNDS_MAX", 1)

    seen = submit(views(None))

    assert "none of the regions eu, us answers for the rollout: No path to region 'us'" in seen.err
    assert seen.code == 1


@pytest.mark.parametrize(
    "end",
    [a_rollout(S.FAILED, S.FAILED, RolloutStatus.FAILED), a_rollout(status=RolloutStatus.CANCELLED), BLOCKED],
    ids=["failed", "cancelled", "blocked"],
)
def test_a_rollout_that_does_not_end_well_exits_with_1(end: Rollout) -> None:
    seen = submit(views(end))

    assert f'  [!!] Rollout "0f0f0f0f" {end.status.value}\n' in seen.out
    assert ("deployment unblock" in seen.out) is (end is BLOCKED)
    assert seen.code == 1


def test_why_a_region_failed_is_said_once() -> None:
    failed = replace(GOES_ON.regions[0], status=S.FAILED, error="failed: no progress before its deadline")
    end = replace(GOES_ON, status=RolloutStatus.FAILED, regions=(failed, GOES_ON.regions[1]))

    assert 'Region "eu" is failed: no progress before its deadline\n' in submit(views(end)).out


def test_on_a_screen_all_regions_are_drawn_and_drawn_over() -> None:
    seen = submit(views(GOES_ON, DONE), line="job run -no-color -", screen=True)

    first, last = seen.out.split("\x1b[5A\x1b[J")
    assert "  / Rollout is running; driven by region eu\n\n    Region  Deployment  Step     Status   Error\n" in first
    assert last.startswith('  [ok] Rollout "0f0f0f0f" successful\n')


def test_an_interruption_ends_the_following_and_says_that_the_rollout_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rollout_follow, "_told", interrupted)
    said: list[str] = []
    monkeypatch.setattr(Terminal, "say", lambda self, line="": said.append(line))

    with pytest.raises(KeyboardInterrupt):
        submit(views(GOES_ON))

    assert said[-1] == "\nDetached: the rollout goes on. `fedsched operator rollout status 0f0f0f0f` shows it."


def test_detached_the_ids_are_all_that_is_said() -> None:
    seen = submit(views(GOES_ON), line="job run -detach -")

    assert seen.out == f"Job registration successful\nRollout ID: {ROLLOUT}\nJob Version: 3\n"
    assert seen.agent.requests(ROLLOUT_GET) == []


def test_a_job_without_a_rollout_is_registered_everywhere_at_once_and_each_evaluation_is_followed() -> None:
    done = (jobs.RegionWrite(region="eu", eval_id=EVAL), jobs.RegionWrite(region="us", error="no leader"))
    answers = {jobs.JOB_REGISTER: lambda _: jobs.JobWriteReply(regions=done), **HAS_JOB}

    seen = run("job run -", answers, stdin=JOB_FILE)

    assert seen.out.startswith(
        "Region  Job         Evaluation  Error\n"
        "eu      registered  8f0b2a77    <none>\n"
        "us      failed      <none>      no leader\n"
    )
    assert 'Evaluation "8f0b2a77" finished with status "complete"' in seen.out
    assert seen.code == 2


def test_a_region_whose_evaluation_cannot_be_followed_says_why_and_the_others_are_followed() -> None:
    def get(request: Any, context: Any) -> Any:
        if context.meta.region == "us":
            raise Gone("No path to region 'us'")
        return complete()(request)

    done = tuple(jobs.RegionWrite(region=name, eval_id=EVAL) for name in ("eu", "us"))
    answers = {**HAS_JOB, EVAL_GET: get, jobs.JOB_REGISTER: lambda _: jobs.JobWriteReply(regions=done)}

    seen = run("job run -", answers, stdin=JOB_FILE)

    assert 'Evaluation "8f0b2a77" finished with status "complete"' in seen.out
    assert seen.out.endswith("Z: Monitoring evaluation \"8f0b2a77\"\nError: No path to region 'us'\n")
    assert seen.code == 1


@pytest.mark.parametrize(("errors", "code"), [(("", ""), 0), (("", "gone"), 2), (("gone", "gone"), 1)])
def test_stopping_everywhere_tells_of_each_region(errors: tuple[str, str], code: int) -> None:
    done = tuple(jobs.RegionWrite(region=name, error=error) for name, error in zip(("eu", "us"), errors, strict=True))

    seen = run("job stop -global web", HAS_JOB, {jobs.JOB_DEREGISTER: lambda _: jobs.JobWriteReply(regions=done)})

    assert [line.split()[1] for line in seen.out.splitlines()[1:3]] == [
        "failed" if one else "stopped" for one in errors
    ]
    assert [request.global_ for request in seen.agent.requests(jobs.JOB_DEREGISTER)] == [True]
    assert seen.code == code


def test_a_plan_has_a_block_per_region_and_the_highest_code_counts() -> None:
    creates = PlanAnnotations(desired_tg_updates={"front": DesiredUpdates(place=2)})
    plans = (
        RegionPlan(region="eu", annotations=creates, job_modify_index=11),
        RegionPlan(region="us", error="No path to region 'us'"),
    )

    seen = run("job plan -", {JOB_PLAN: lambda _: JobPlanReply(regions=plans)}, stdin=JOB_FILE)

    eu, us = seen.out.split("\n\nRegion:")
    assert eu.startswith('Region: "eu"\nScheduler dry-run:\n- All tasks successfully allocated.\n')
    assert eu.endswith("Job Modify Index: 11")
    assert us == " \"us\"\nError: No path to region 'us'\n"
    assert seen.err == "1 of 2 regions could not plan: us\n"
    assert seen.code == 255
    alone = run("job plan -", {JOB_PLAN: lambda _: JobPlanReply(regions=plans[:1])}, stdin=JOB_FILE)
    assert alone.code == 1


PART = a_deployment(S.BLOCKED, is_multiregion=True)
HAS_PART: dict[Any, Any] = {
    **HAS_DEPLOYMENT,
    deployments.DEPLOYMENT_LIST: lambda _: deployments.DeploymentListReply(deployments=(PART,)),
    deployments.DEPLOYMENT_GET: lambda _: deployments.DeploymentGetReply(deployment=PART),
}


def listed(*rollouts: Rollout) -> Any:
    return lambda _: RolloutListReply(rollouts=tuple(RolloutView(rollout=one, is_owner=True) for one in rollouts))


def test_a_deployment_that_is_a_part_of_a_rollout_is_marked_and_shown_with_all_regions() -> None:
    assert "so it goes [part of a rollout]\n" in run("deployment list", HAS_PART).out

    seen = run("deployment status 51c9", HAS_PART, {ROLLOUT_LIST: listed(BLOCKED)})

    assert "\nRollout\nID          = 0f0f0f0f\nStatus      = blocked\n" in seen.out
    assert (
        "\nRegions\nRegion  Deployment  Step     Status   Error\neu      51c9e0d4    run      blocked  <none>\n"
        in seen.out
    )


def test_a_rollout_that_has_been_forgotten_is_said_to_be() -> None:
    other = replace(BLOCKED, regions=())

    assert "is not known here any more" in run("deployment status 51c9", HAS_PART, {ROLLOUT_LIST: listed(other)}).out
    seen = run("deployment fail -global 51c9", HAS_PART, {ROLLOUT_LIST: listed(other)})
    assert (seen.code, "is not a part of a rollout that is known here" in seen.err) == (1, True)


def test_the_share_of_a_region_says_which_rollout_its_deployment_belongs_to() -> None:
    """The owner's record may not have heard of the deployment yet."""
    early = replace(BLOCKED, regions=(RolloutRegion(name="us"),))
    share = RolloutShare(region="us", rollout=early, deployment_id=DEPLOYMENT)
    reply = RolloutListReply(rollouts=(RolloutView(rollout=early, share=share),))

    assert "\nRollout\n" in run("deployment status 51c9", HAS_PART, {ROLLOUT_LIST: lambda _: reply}).out


def test_what_is_decided_for_all_regions_goes_to_the_rollout_and_is_followed() -> None:
    answers = {
        **HAS_PART,
        ROLLOUT_LIST: listed(BLOCKED),
        ROLLOUT_GET: views(DONE),
        ROLLOUT_UNBLOCK: lambda _: RolloutWriteReply(rollout=BLOCKED),
        ROLLOUT_FAIL: lambda _: RolloutWriteReply(rollout=BLOCKED),
    }

    seen = run("deployment unblock -global 51c9", answers)
    assert seen.out.startswith('Rollout "0f0f0f0f" unblocked in all regions\n')
    assert '[ok] Rollout "0f0f0f0f" successful' in seen.out
    assert [(one.rollout_id, one.regions) for one in seen.agent.requests(ROLLOUT_UNBLOCK)] == [(ROLLOUT, ())]

    seen = run("deployment fail -global -revert -detach 51c9", answers)
    assert seen.out == 'Rollout "0f0f0f0f" marked as failed in all regions\n'
    assert [(one.rollout_id, one.reverts) for one in seen.agent.requests(ROLLOUT_FAIL)] == [(ROLLOUT, True)]

    assert "-revert goes with -global" in run("deployment fail -revert 51c9", answers).err


def test_the_status_of_a_job_shows_its_rollout() -> None:
    answers = {**HAS_JOB, jobs.JOB_GET: lambda _: jobs.JobGetReply(job=JOB)}

    seen = run("job status web", answers, {ROLLOUT_GET: views(GOES_ON)})
    assert "\nRollout\nID          = 0f0f0f0f\n" in seen.out
    assert [one.job_id for one in seen.agent.requests(ROLLOUT_GET)] == ["web"]

    def forgotten(_: Any) -> RolloutView:
        raise NotFound("no rollout")

    seen = run("job status web", answers, {ROLLOUT_GET: forgotten})
    assert ("Rollout" in seen.out, seen.err, seen.code) == (False, "", 0)
    seen = run("job status web", answers, {ROLLOUT_GET: views(None)})
    assert (seen.err, seen.code) == ("Error retrieving the rollout: No path to region ''\n", 0)


def test_rollouts_are_listed_newest_first() -> None:
    older = replace(DONE, id="1" * 36, create_time_ns=5)

    seen = run("operator rollout list -active", {ROLLOUT_LIST: listed(older, replace(GOES_ON, create_time_ns=9))})

    assert seen.out == (
        "ID        Job ID  Version  Driven By  Status      Regions\n"
        "0f0f0f0f  web     3        eu         running     eu running, us pending\n"
        "11111111  web     3        eu         successful  eu successful, us successful\n"
    )
    assert [one.active for one in seen.agent.requests(ROLLOUT_LIST)] == [True]
    assert run("operator rollout list", {ROLLOUT_LIST: listed()}).out == "No rollouts found\n"
    everywhere = run("operator rollout list -namespace '*'", {ROLLOUT_LIST: listed(DONE)})
    assert everywhere.out.splitlines()[0].split()[:4] == ["ID", "Job", "ID", "Namespace"]
    assert (
        json.loads(run("operator rollout list -json", {ROLLOUT_LIST: listed(DONE)}).out)[0]["Rollout"]["JobID"] == "web"
    )


def test_one_rollout_is_shown_with_its_strategy_and_every_region() -> None:
    skipped = replace(GOES_ON.regions[1], is_skipped=True, error="it was away")
    known = replace(GOES_ON, regions=(GOES_ON.regions[0], skipped), create_time_ns=NOW_NS)

    seen = run("operator rollout status 0f0f -region us", {ROLLOUT_GET: views(known)})

    assert "Driven By   = eu (as another region last heard it)\n" in seen.out
    assert "Strategy    = 1 at a time; one that fails takes all along\n" in seen.out
    assert "us      <none>      prepare  pending (skipped)  it was away\n" in seen.out
    by_job = run("operator rollout status -job web -json", {ROLLOUT_GET: views(known)})
    assert json.loads(by_job.out)["Rollout"]["ID"] == ROLLOUT
    assert "which rollout is meant?" in run("operator rollout status").err
    assert "[ok]" in run("operator rollout status -monitor 0f0f", {ROLLOUT_GET: views(GOES_ON, DONE)}).out


def adopt(line: str, rollout: Rollout = GOES_ON, **options: Any) -> Seen:
    driven = replace(rollout, owner="us", epoch=2)
    answers = {ROLLOUT_GET: views(rollout), ROLLOUT_ADOPT: lambda _: RolloutWriteReply(rollout=driven)}
    return run(line, answers, **options)


def test_a_rollout_is_adopted_when_a_person_says_that_its_region_is_lost() -> None:
    seen = adopt("operator rollout adopt -region us 0f0f", typed="y\n")

    assert 'driven by region "eu". Is that region lost, and shall region "us" drive it from now on? [y/N]' in seen.out
    assert 'Rollout "0f0f0f0f" is driven by region "us" now\n' in seen.out
    assert [(one.rollout_id, one.force) for one in seen.agent.requests(ROLLOUT_ADOPT)] == [(ROLLOUT, False)]
    assert [meta.region for meta in seen.agent.metas(ROLLOUT_ADOPT)] == ["us"]


def test_without_a_yes_nothing_is_adopted_and_force_is_no_yes() -> None:
    seen = adopt("operator rollout adopt -force 0f0f", typed="n\n")

    assert (seen.code, seen.agent.requests(ROLLOUT_ADOPT)) == (1, [])
    assert [one.force for one in adopt("operator rollout adopt -force -yes 0f0f").agent.requests(ROLLOUT_ADOPT)] == [
        True
    ]


def test_a_rollout_that_is_over_is_not_adopted() -> None:
    seen = adopt("operator rollout adopt -yes 0f0f", DONE)

    assert "is successful: there is nothing left to drive" in seen.err
    assert (seen.code, seen.agent.requests(ROLLOUT_ADOPT)) == (1, [])
