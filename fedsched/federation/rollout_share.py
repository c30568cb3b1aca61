"""A region's side of a rollout: what it does when the owner says something, and that it does it once.

Pure like the rest: the region's endpoint loads its share of the job, asks `received`, and writes the new share together
with the deed in one entry of its log. So a command that comes twice finds the share of the first time and does nothing,
however often servers crash in between. A command for something later is carried out, anything else is answered with how
things stand. Shares are kept per job: a newer version takes the place of an older one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from fedsched.federation.rollout_rules import FINAL
from fedsched.model.deployment import DEPLOYMENT_MOVES, DeploymentStatus
from fedsched.model.rollout import Rollout, RolloutCommand, RolloutReport, RolloutShare, RolloutStep

_S = DeploymentStatus


@dataclass(frozen=True, slots=True)
class Deed:
    """What the region has to do now, in the same log entry that stores the share. `key` is that of the command."""

    step: RolloutStep
    key: str
    reverts: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Received:
    """The outcome of a command: what to store, what to do, what to answer."""

    share: RolloutShare | None
    deed: Deed | None
    report: RolloutReport


def received(share: RolloutShare | None, command: RolloutCommand, *, refusal: str = "") -> Received:
    """Take a command from an owner. `share` is what the region has of this job, of whichever rollout.

    `refusal` is why the region would not register the job (its own checks); it matters only to a preparation.
    """
    if share is not None and share.rollout.id != command.rollout.id:
        if share.rollout.job_version >= command.rollout.job_version:
            return Received(share, None, _taken(share, command))
        share = None  # of an older version
    if share is not None and command.rollout.ballot < share.ballot:
        return Received(share, None, report_of(share))
    if command.adopts:
        return _agreed(share, command)
    if share is not None:
        share = replace(share, rollout=_newest_copy(share.rollout, command.rollout))
    if share is None and command.step in (None, RolloutStep.RUN, RolloutStep.UNBLOCK):
        return Received(None, None, _nothing_known(command))  # prepared once, forgotten since: prepare it again
    if share is not None and (command.step is None or command.step.rank <= share.step.rank):
        return Received(share, None, report_of(share))
    if command.step is RolloutStep.PREPARE and refusal:
        refused = RolloutShare(region=command.region, rollout=command.rollout, status=_S.FAILED, error=refusal)
        return Received(refused, None, report_of(refused))
    return _carried_out(share, command)


def deployment_changed(
    share: RolloutShare, status: DeploymentStatus, *, deployment_id: str = "", error: str = ""
) -> Received:
    """The region's deployment of this version moved by itself, as the region's own rules had it."""
    if share.status in FINAL or not DEPLOYMENT_MOVES.allows(share.status, status):
        return Received(share, None, report_of(share))
    share = replace(share, status=status, deployment_id=deployment_id or share.deployment_id, error=error)
    deed = None
    if status is _S.BLOCKED and share.step is RolloutStep.UNBLOCK:
        deed = Deed(RolloutStep.UNBLOCK, key_of(share.rollout.id, share.region, RolloutStep.UNBLOCK))
    return Received(share, deed, report_of(share))


def report_of(share: RolloutShare) -> RolloutReport:
    """What the region says about its share."""
    return RolloutReport(
        region=share.region,
        rollout_id=share.rollout.id,
        epoch=share.ballot[0],
        owner=share.ballot[1],
        step=share.step,
        status=share.status,
        deployment_id=share.deployment_id,
        error=share.error,
    )


def key_of(rollout_id: str, region: str, step: RolloutStep) -> str:
    """The name of one effect. Without the epoch: what the former owner had done is not done again by the next."""
    return f"{rollout_id}/{region}/{step.value}"


_AFTER: Final = {RolloutStep.PREPARE: _S.PENDING, RolloutStep.RUN: _S.RUNNING}


def _carried_out(share: RolloutShare | None, command: RolloutCommand) -> Received:
    step = command.step
    assert step is not None, "only called for a step"
    before = share or RolloutShare(region=command.region, rollout=command.rollout)
    mine = before.rollout.region(command.region)
    reason = mine.error if mine is not None else ""
    is_over = before.status in FINAL
    status = before.status
    if not is_over:
        status = _AFTER.get(step, status)
        if step in (RolloutStep.FAIL, RolloutStep.WITHDRAW):
            status = _S.FAILED if step is RolloutStep.FAIL else _S.CANCELLED
        elif step is RolloutStep.UNBLOCK and status is _S.BLOCKED:
            status = _S.UNBLOCKING
    after = replace(before, step=step, status=status, error=before.error if is_over else reason)
    waits = step is RolloutStep.UNBLOCK and before.status is not _S.BLOCKED
    never_was = share is None and step is not RolloutStep.PREPARE
    if is_over or waits or never_was:
        return Received(after, None, report_of(after))
    deed = Deed(step, command.key, reverts=mine is not None and mine.reverts, reason=reason)
    return Received(after, deed, report_of(after))


def _agreed(share: RolloutShare | None, command: RolloutCommand) -> Received:
    """Listen to a new owner from now on, and tell it what the former one was last heard to have decided."""
    if share is None:
        return Received(None, None, _nothing_known(command))
    share = replace(share, epoch=command.rollout.epoch, owner=command.rollout.owner)
    return Received(share, None, replace(report_of(share), seen=share.rollout))


def _newest_copy(mine: Rollout, theirs: Rollout) -> Rollout:
    """The owner's record as it was last; commands may overtake one another."""
    newest = max(mine, theirs, key=lambda one: (one.ballot, one.revision))
    return newest if newest.job is not None else replace(newest, job=mine.job or theirs.job)


def _nothing_known(command: RolloutCommand) -> RolloutReport:
    rollout = command.rollout
    return RolloutReport(region=command.region, rollout_id=rollout.id, epoch=rollout.epoch, owner=rollout.owner)


def _taken(share: RolloutShare, command: RolloutCommand) -> RolloutReport:
    """The region takes part in another rollout of the job: a newer one ends this, one as old refuses it."""
    other = share.rollout
    return replace(
        _nothing_known(command),
        step=RolloutStep.PREPARE,
        status=_S.FAILED,
        error=f"the region takes part in rollout {other.id}, version {other.job_version}",
        superseded_by=other.id if other.job_version > command.rollout.job_version else "",
    )
