"""A rollout: one submission of a multi-region job, and how far every region has come with it.

Three records. `Rollout` is the owner's: it lies in the log of one region, the owner, and holds all that was decided, so
that any server there can go on from it. `RolloutShare` is a region's: what it was told and has done, with a copy of the
owner's record as of the last command. `RolloutReport` is what a region answers.

A step is what the owner decided for a region; a status is what the region's deployment came to. They are kept apart
because between the two lies a network.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fedsched.model.deployment import DeploymentStatus
from fedsched.model.job import Job, JobSubmission, MultiregionStrategy
from fedsched.model.record import Record, TimeNs
from fedsched.model.states import Moves


class RolloutStep(StrEnum):
    """What the owner decided for one region; each at most once."""

    PREPARE = "prepare"
    """Register the job's version; its deployment waits."""
    RUN = "run"
    """It is this region's turn."""
    UNBLOCK = "unblock"
    """Every region is healthy: this version stands."""
    FAIL = "fail"
    """The rollout failed for this region."""
    WITHDRAW = "withdraw"
    """Nothing was started anywhere: forget the preparation, also one that arrives late."""

    @property
    def rank(self) -> int:
        """Later decisions have higher ranks, and the last ones exclude each other."""
        return {RolloutStep.PREPARE: 0, RolloutStep.RUN: 1}.get(self, 2)

    @property
    def is_last(self) -> bool:
        return self.rank == 2


_P = RolloutStep
STEP_MOVES = Moves(
    RolloutStep,
    {_P.PREPARE: {_P.RUN, _P.FAIL, _P.WITHDRAW}, _P.RUN: {_P.UNBLOCK, _P.FAIL}},
)


class RolloutStatus(StrEnum):
    """How the rollout as a whole stands."""

    PREPARING = "preparing"
    RUNNING = "running"
    BLOCKED = "blocked"
    """At rest until a person decides: healthy regions stand beside failed ones, or the canary waits to be let go."""
    UNBLOCKING = "unblocking"
    SUCCESSFUL = "successful"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """A newer version took its place."""
    ADOPTED = "adopted"
    """Another region drives it now; this record is history."""

    @property
    def is_over(self) -> bool:
        return self in (_O.SUCCESSFUL, _O.FAILED, _O.CANCELLED, _O.ADOPTED)


_O = RolloutStatus
ROLLOUT_MOVES = Moves(
    RolloutStatus,
    {
        _O.PREPARING: {_O.RUNNING, _O.BLOCKED, _O.UNBLOCKING, _O.SUCCESSFUL, _O.FAILED, _O.CANCELLED, _O.ADOPTED},
        _O.RUNNING: {_O.BLOCKED, _O.UNBLOCKING, _O.SUCCESSFUL, _O.FAILED, _O.CANCELLED, _O.ADOPTED},
        _O.BLOCKED: {_O.RUNNING, _O.UNBLOCKING, _O.SUCCESSFUL, _O.FAILED, _O.CANCELLED, _O.ADOPTED},
        _O.UNBLOCKING: {_O.SUCCESSFUL, _O.FAILED, _O.CANCELLED, _O.ADOPTED},
    },
)


class RolloutRegion(Record):
    """One region in the owner's record."""

    name: str
    step: RolloutStep = RolloutStep.PREPARE
    reverts: Annotated[bool, "Failing it also brings the last stable version back, whatever its `auto_revert`."] = False
    status: DeploymentStatus = DeploymentStatus.INITIALIZING
    deployment_id: str = ""
    error: Annotated[str, "Why it failed, or what stands in the way."] = ""
    decided_time_ns: Annotated[TimeNs, "When its step was decided."] = 0
    is_skipped: Annotated[bool, "It could not be reached, and the job goes on without it."] = False
    healthy_time_ns: Annotated[TimeNs, "When the owner heard that it is healthy, if there is a bake time."] = 0
    is_unsure: Annotated[bool, "Adopted without a word from it: it may have come further than is known."] = False


class Rollout(Record):
    """The owner's record."""

    id: str
    namespace: str = "default"
    job_id: str = ""
    job_version: Annotated[int, "The same in every region."] = 0
    job: Annotated[Job | None, "As it was submitted; only what prepares a region carries it."] = None
    owner: Annotated[str, "The region that drives it."] = ""
    epoch: Annotated[int, "Raised by every adoption; a region listens to the highest only."] = 1
    revision: Annotated[int, "Counts the writes; one that does not follow its predecessor is refused."] = 0
    strategy: MultiregionStrategy = MultiregionStrategy()
    regions: Annotated[tuple[RolloutRegion, ...], "In the order in which they have their turn."] = ()
    leaves: Annotated[tuple[str, ...], "Regions that the job was in before: stopped there once this one runs."] = ()
    status: RolloutStatus = RolloutStatus.PREPARING
    status_description: str = ""
    create_time_ns: TimeNs = 0
    modify_time_ns: TimeNs = 0

    @property
    def ballot(self) -> tuple[int, str]:
        """Of two that want to drive, the one whose ballot is higher."""
        return (self.epoch, self.owner)

    def region(self, name: str) -> RolloutRegion | None:
        return next((region for region in self.regions if region.name == name), None)


class RolloutCommand(Record):
    """What the owner says to a region. Said again under the same key it changes nothing."""

    key: str
    region: str
    rollout: Annotated[Rollout, "The owner's record; with the job only if it prepares."]
    step: Annotated[RolloutStep | None, "None asks for the status alone."] = None
    seen: Annotated[DeploymentStatus, "A question for the status is answered once it differs from this."] = (
        DeploymentStatus.INITIALIZING
    )
    adopts: Annotated[bool, "Asks the region to listen to this epoch from now on."] = False
    submission: Annotated[JobSubmission | None, "With a preparation: the text that the job came from."] = None


class RolloutReport(Record):
    """What a region answers to every command."""

    region: str
    rollout_id: str
    epoch: Annotated[int, "The highest that the region has agreed to."] = 0
    owner: Annotated[str, "The region that drives, as far as this one has agreed."] = ""
    step: Annotated[RolloutStep | None, "The last one that was carried out; None: it knows nothing of the rollout."] = (
        None
    )
    status: DeploymentStatus = DeploymentStatus.INITIALIZING
    deployment_id: str = ""
    error: str = ""
    superseded_by: Annotated[str, "The newer rollout that the region takes part in."] = ""
    seen: Annotated[Rollout | None, "The owner's record as the region last saw it; told to whoever adopts."] = None

    @property
    def ballot(self) -> tuple[int, str]:
        return (self.epoch, self.owner)


class RolloutStanding(Record):
    """What one listed region's leader says to another that has not heard the owner."""

    region: str
    rollout_id: str
    is_known: Annotated[bool, "It drives the rollout or takes part in it."] = False
    drives: Annotated[bool, "It is the owner itself, or adopts just now."] = False
    epoch: Annotated[int, "The highest that it has agreed to."] = 0
    owner: Annotated[str, "The region that drives, as far as this one has agreed."] = ""
    heard_ago_s: Annotated[
        float | None, "How long ago its leader last heard the owner; None if it has not, or does not count."
    ] = None

    @property
    def ballot(self) -> tuple[int, str]:
        return (self.epoch, self.owner)


class RolloutShare(Record):
    """A region's own record of its part."""

    region: str
    rollout: Annotated[Rollout, "The owner's record as of the last command."]
    epoch: Annotated[int, "The highest that it has agreed to; the copy may still be the former owner's."] = 0
    owner: str = ""
    step: RolloutStep = RolloutStep.PREPARE
    status: DeploymentStatus = DeploymentStatus.INITIALIZING
    deployment_id: str = ""
    error: str = ""

    @property
    def ballot(self) -> tuple[int, str]:
        return max((self.epoch, self.owner), self.rollout.ballot)
