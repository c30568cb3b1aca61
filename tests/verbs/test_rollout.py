"""Following a deployment: one line per change into a file, a picture on a screen, and the way back after a failure."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.deployment import Deployment, DeploymentState, DeploymentStatus
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.rpc.methods import deployment as deployments
from fedsched.rpc.methods import evaluation as evaluations
from fedsched.rpc.methods import job_extras as extras
from tests.verbs.scenes import DEPLOYMENT, EVAL, HAS_JOB, WRITTEN, a_deployment, a_stub, in_sequence, run

WAY_BACK = "77777777-0000-4000-8000-000000000000"
RUNNING = a_deployment()
FURTHER = a_deployment(task_groups={"front": DeploymentState(desired_total=2, placed_allocs=2, healthy_allocs=2)})
DONE = a_deployment(DeploymentStatus.SUCCESSFUL)
CLEAR = "\x1b["


def rollout(*steps: Deployment, latest: Deployment | None = None, kind: str = "service", **own: Any) -> dict[Any, Any]:
    """A job whose evaluation began a deployment, which looks like these steps one after the other."""
    evaluation = Evaluation(id=EVAL, job_id="web", status=EvaluationStatus.COMPLETE, type=kind, **own)
    return {
        **HAS_JOB,
        extras.JOB_EVALUATE: lambda _: WRITTEN,
        extras.JOB_LATEST_DEPLOYMENT: lambda _: extras.JobDeploymentReply(deployment=latest),
        evaluations.EVAL_GET: lambda _: evaluations.EvaluationGetReply(evaluation=evaluation),
        deployments.DEPLOYMENT_GET: in_sequence(*(deployments.DeploymentGetReply(deployment=one) for one in steps)),
        deployments.DEPLOYMENT_ALLOCS: lambda _: deployments.DeploymentAllocsReply(allocs=(a_stub(),)),
    }


def test_into_a_file_each_change_is_one_line_and_nothing_is_drawn() -> None:
    seen = run("job eval web", rollout(RUNNING, RUNNING, FURTHER, DONE, deployment_id=DEPLOYMENT))

    assert seen.out.count("1 of 2 healthy") == 1
    assert seen.out.count("2 of 2 healthy") == 1
    assert CLEAR not in seen.out
    assert seen.code == 0


def test_on_a_screen_the_picture_is_drawn_over_itself_and_gone_at_the_end() -> None:
    seen = run("job eval web -no-color", rollout(RUNNING, FURTHER, DONE, deployment_id=DEPLOYMENT), screen=True)

    first, second, last = seen.out.split(CLEAR + "7A" + CLEAR + "J")
    assert "  / Deployment is running; front: 1 of 2 healthy" in first
    assert "\n    a3d1f1b9  6e01b7c2  front " in first
    assert "  - Deployment is running; front: 2 of 2 healthy" in second
    assert last.startswith('  [ok] Deployment "51c9e0d4" successful\n')


def test_a_terminal_that_cannot_be_drawn_over_gets_lines() -> None:
    answers = rollout(RUNNING, DONE, deployment_id=DEPLOYMENT)

    assert CLEAR not in run("job eval web -no-color", answers, screen=True, environ={"TERM": "dumb"}).out


def test_a_failed_deployment_exits_with_1_and_the_way_back_is_followed() -> None:
    failed = replace(a_deployment(DeploymentStatus.FAILED), status_description="Failed; going back to version 0")
    back = replace(DONE, id=WAY_BACK, job_version=1)

    seen = run("job eval web", rollout(failed, back, latest=back, deployment_id=DEPLOYMENT))

    assert seen.code == 1
    assert '[!!] Deployment "51c9e0d4" failed' in seen.out
    assert 'Monitoring deployment "77777777"' in seen.out
    assert '[ok] Deployment "77777777" successful' in seen.out


def test_a_way_back_that_never_comes_up_is_not_waited_for_forever() -> None:
    failed = replace(a_deployment(DeploymentStatus.FAILED), status_description="Failed; going back to version 0")

    seen = run("job eval web", rollout(failed, latest=failed, deployment_id=DEPLOYMENT))

    assert seen.code == 1
    assert seen.out.count("Monitoring deployment") == 1


@pytest.mark.parametrize(("kind", "is_followed"), [("system", True), ("round-robin", True), ("sysbatch", False)])
def test_whoever_may_have_a_deployment_has_it_followed(kind: str, is_followed: bool) -> None:
    seen = run("job eval web", rollout(DONE, latest=DONE, kind=kind))

    assert ("Monitoring deployment" in seen.out) is is_followed
