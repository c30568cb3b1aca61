"""A region's side of a rollout: every deed once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fedsched.codec import from_builtins
from fedsched.federation.rollout_share import Received, deployment_changed, key_of, received, report_of
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.plain_form import to_plain
from fedsched.model.rollout import Rollout, RolloutCommand, RolloutShare, RolloutStep
from tests.federation.builders import a_rollout

PREPARE, RUN, UNBLOCK, FAIL, WITHDRAW = RolloutStep
PENDING, RUNNING, BLOCKED = DeploymentStatus.PENDING, DeploymentStatus.RUNNING, DeploymentStatus.BLOCKED


def said(step: RolloutStep | None, rollout: Rollout | None = None, *, adopts: bool = False) -> RolloutCommand:
    rollout = rollout or a_rollout()
    key = key_of(rollout.id, "us", step) if step is not None else ""
    return RolloutCommand(key=key, region="us", rollout=rollout, step=step, adopts=adopts)


def after(*steps: RolloutStep) -> RolloutShare:
    share: RolloutShare | None = None
    for step in steps:
        share = received(share, said(step)).share
    assert share is not None
    return share


def deed_of(outcome: Received) -> str:
    return outcome.deed.step.value if outcome.deed is not None else ""


def test_a_step_is_carried_out_once_however_often_it_is_said() -> None:
    first = received(None, said(PREPARE))
    again = received(first.share, said(PREPARE))

    assert (deed_of(first), deed_of(again)) == ("prepare", "")
    assert first.report == again.report
    assert again.report.status is PENDING


def test_steps_that_come_late_find_that_things_have_moved_on() -> None:
    share = after(PREPARE, RUN)
    late = received(share, said(PREPARE))

    assert deed_of(late) == ""
    assert late.report.step is RUN


@pytest.mark.parametrize("last", [UNBLOCK, FAIL])
@pytest.mark.parametrize("late", [PREPARE, RUN, UNBLOCK, FAIL, WITHDRAW])
def test_after_the_last_step_nothing_is_carried_out(last: RolloutStep, late: RolloutStep) -> None:
    share = after(PREPARE, RUN)
    share = deployment_changed(share, BLOCKED).share or share
    share = received(share, said(last)).share or share

    assert deed_of(received(share, said(late))) == ""


def test_a_withdrawal_overtakes_the_preparation_that_it_takes_back() -> None:
    outcome = received(None, said(WITHDRAW))
    late = received(outcome.share, said(PREPARE))

    assert (deed_of(outcome), deed_of(late)) == ("", "")
    assert late.report.status is DeploymentStatus.CANCELLED


def test_a_region_that_forgot_says_so_rather_than_run_what_it_does_not_have() -> None:
    outcome = received(None, said(RUN))

    assert (outcome.share, outcome.deed, outcome.report.step) == (None, None, None)


def test_a_refusal_is_remembered() -> None:
    outcome = received(None, said(PREPARE), refusal="no such node pool")

    assert deed_of(outcome) == ""
    assert (outcome.report.status, outcome.report.error) == (DeploymentStatus.FAILED, "no such node pool")
    assert received(outcome.share, said(PREPARE)).report == outcome.report


def test_a_deployment_that_failed_by_itself_stays_failed() -> None:
    share = deployment_changed(after(PREPARE, RUN), DeploymentStatus.FAILED, error="progress deadline").share
    assert share is not None
    outcome = received(share, said(FAIL))

    assert deed_of(outcome) == ""
    assert outcome.report.error == "progress deadline"


def test_an_unblocking_that_comes_early_is_done_when_the_region_is_healthy() -> None:
    share = received(after(PREPARE, RUN), said(UNBLOCK)).share
    assert share is not None
    assert share.status is RUNNING
    outcome = deployment_changed(share, BLOCKED)

    assert deed_of(outcome) == "unblock"


def test_failing_tells_why_and_whether_the_old_version_comes_back() -> None:
    rollout = a_rollout()
    regions = tuple(replace(one, reverts=True, error="wrong image") for one in rollout.regions)
    outcome = received(after(PREPARE, RUN), said(FAIL, replace(rollout, regions=regions, revision=5)))

    assert outcome.deed is not None
    assert (outcome.deed.reverts, outcome.deed.reason) == (True, "wrong image")


def test_a_newer_version_takes_the_place_of_an_older_one() -> None:
    newer = a_rollout(version=2, rollout_id="r2")
    outcome = received(after(PREPARE, RUN), said(PREPARE, newer))
    assert deed_of(outcome) == "prepare"
    late = received(outcome.share, said(FAIL))

    assert deed_of(late) == ""
    assert late.report.superseded_by == "r2"


def test_two_rollouts_of_one_version_exclude_each_other() -> None:
    rival = a_rollout(rollout_id="r2")
    outcome = received(after(PREPARE), said(PREPARE, rival))

    assert deed_of(outcome) == ""
    assert (outcome.report.status, outcome.report.superseded_by) == (DeploymentStatus.FAILED, "")


class TestAdoption:
    def test_whoever_has_agreed_ignores_the_former_owner(self) -> None:
        share = after(PREPARE)
        successor = replace(share.rollout, epoch=2, owner="us", job=None)
        agreed = received(share, said(None, successor, adopts=True))
        ignored = received(agreed.share, said(RUN))

        assert agreed.report.seen == share.rollout
        assert deed_of(ignored) == ""
        assert ignored.report.ballot == (2, "us")
        assert deed_of(received(agreed.share, said(RUN, successor))) == "run"

    def test_the_copy_stays_what_the_former_owner_wrote_until_the_next_one_writes(self) -> None:
        share = after(PREPARE)
        successor = replace(share.rollout, epoch=2, owner="us", job=None)
        again = share
        for _ in range(2):
            outcome = received(again, said(None, successor, adopts=True))
            assert outcome.share is not None
            again = outcome.share

        assert outcome.report.seen == share.rollout

    def test_the_job_is_kept_from_the_preparation(self) -> None:
        share = received(after(PREPARE), said(RUN, replace(a_rollout(), job=None, revision=9))).share

        assert share is not None
        assert share.rollout.revision == 9
        assert share.rollout.job == a_rollout().job


def test_shares_commands_and_reports_cross_the_wire_unchanged() -> None:
    share = after(PREPARE, RUN)

    for record in (share, report_of(share), said(PREPARE)):
        assert from_builtins(to_plain(record), type(record)) == record
