"""R-65, commit by commit: what the logs of a simulated federation say about its rollouts.

Two kinds of entries tell the story: records, in the log of the region that drives, and deeds, in the log of the region
that does them. Every rule is counted anew from both; nothing here asks the rules that servers decide by.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from fedsched.codec import from_bytes
from fedsched.model.job import Job
from fedsched.model.rollout import Rollout, RolloutRegion
from fedsched.raft.entry import Entry
from fedsched.sim.verdict import Broken
from fedsched.state.commands import decode_command
from fedsched.state.result import Result
from fedsched.state.store import State
from fedsched.state.tables.plans import PlanApply
from fedsched.state.tables.rollout_steps import RolloutStepCarry
from fedsched.state.tables.rollouts import RolloutWrite

if TYPE_CHECKING:
    from fedsched.sim.federation_region import FederationRegion
    from fedsched.sim.federation_world import Federation

HEALTHY: Final = ("blocked", "unblocking", "successful")
WRONG: Final = ("failed", "cancelled")
ENDED: Final = (*WRONG, "successful")
LAST: Final = ("unblock", "fail", "withdraw")
NEXT: Final = {"prepare": ("run", "fail", "withdraw"), "run": ("unblock", "fail")}
DEEDS: Final = {"running": "run", "unblocking": "unblock", "failed": "fail", "cancelled": "withdraw"}
"""By what a deed makes of the region's deployment."""
OVER: Final = ("successful", "failed", "cancelled", "adopted")
ONCE: Final = "R-65 decided once"
TURNS: Final = "R-65 regions have their turn"
ON_FAILURE: Final = "R-65 on_failure is honoured"
PENDING: Final = "R-65 nothing before its turn"

Part = tuple[str, str]
"""A rollout, and a region that takes part in it."""


class Steps:
    """What was decided and done so far."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self.records: dict[str, Rollout] = {}
        """By rollout, the newest record that was committed anywhere."""
        self.deeds: dict[Part, list[str]] = {}
        self.status: dict[Part, str] = {}
        """How the region itself has its part."""
        self.by_hand: set[str] = set()
        """Rollouts that people decided something about."""
        self.began: Counter[str] = Counter()
        """By the key of who asked for it."""
        self._in_log: dict[Part, Rollout] = {}
        """The record of each rollout as each region's log has it."""
        self._versions: dict[tuple[str, str, int], str] = {}
        """By region, job and version: the rollout that brought it there."""

    def committed(self, region: FederationRegion, state: State, entry: Entry, result: Result) -> None:
        """The first server of a region has applied this."""
        if region.region in self._federation.plan.left_alone or not result.is_done:
            return
        command = decode_command(entry.payload).command
        match command:
            case RolloutWrite():
                row = state.rollouts.row(command.id)
                is_repeated = command.is_new and (row is None or row.create_index != entry.index)
                if not is_repeated:
                    self._written(region.region, command)
            case RolloutStepCarry():
                self._done(region.region, command)
                self._one_deployment(region.region, state, command.job_id)
            case PlanApply():
                self._placed(region.region, command)
                if command.deployments:
                    self._one_deployment(region.region, state, command.job_id)
        for share in state.rollouts.share_rows.scan():
            self.status[share.rollout_id, region.region] = share.status

    def waits(self, region: str, job_id: str, version: int) -> bool:
        """Whether this version was brought there by a rollout that has not told the region to run it."""
        rollout_id = self._versions.get((region, job_id, version))
        return rollout_id is not None and "run" not in self.deeds[rollout_id, region]

    # ------------------------------------------------------------------ records

    def _written(self, region: str, command: RolloutWrite) -> None:
        after = from_bytes(command.record, Rollout)
        before = self._in_log.get((after.id, region))
        self._in_log[after.id, region] = after
        if command.is_new:
            self.began[from_bytes(command.job, Job).meta["key"]] += 1
        newest = self.records.get(after.id)
        if newest is None or (after.ballot, after.revision) > (newest.ballot, newest.revision):
            self.records[after.id] = after
        self._federation.counts[f"rollout: {after.status.value}"] += before is None or before.status != after.status
        if before is not None and before.ballot == after.ballot and after.status.value != "adopted":
            self._follows(before, after)
        if after.status.value in ("running", "blocked", "failed"):
            self._takes_along(after)

    def _follows(self, before: Rollout, after: Rollout) -> None:
        """Nothing that was decided is decided again."""
        if before.status.value in OVER and after.status != before.status:
            raise Broken(ONCE, f"{after.id} was over as {before.status.value}, and then {after.status.value}")
        for old, new in zip(before.regions, after.regions, strict=True):
            name = f"{after.id} in {new.name}"
            is_next = new.step.value in (old.step.value, *NEXT.get(old.step.value, ()))
            if not is_next and not old.is_unsure:  # what a former owner decided is learned, not decided
                raise Broken(ONCE, f"{name}: {old.step.value} was decided, and then {new.step.value}")
            if old.status.value in ENDED and new.status != old.status:
                raise Broken(ONCE, f"{name}: it had ended as {old.status.value}, and then {new.status.value}")
            if new.step.value == "unblock" and old.step.value == "run":
                self._may_unblock(after, new)

    def _may_unblock(self, record: Rollout, region: RolloutRegion) -> None:
        """Whoever goes on has its own part healthy; and so have all, unless people decided otherwise."""
        asked = [region] if record.id in self.by_hand else [one for one in record.regions if not one.is_skipped]
        unwell = {one.name: self.status.get((record.id, one.name), "") for one in asked}
        unwell = {name: status for name, status in unwell.items() if status not in (*HEALTHY, *WRONG)}
        if unwell:
            raise Broken(TURNS, f"{record.id}: {region.name} is unblocked, and there are {unwell}")

    def _takes_along(self, record: Rollout) -> None:
        """Once a region has failed, nothing is left undecided for those that the job says fail with it."""
        regions = [one for one in record.regions if not one.is_skipped]
        wrong = [at for at, one in enumerate(regions) if one.status.value in WRONG or one.step.value in LAST[1:]]
        if not wrong or record.id in self.by_hand:
            return
        on_failure = record.strategy.on_failure
        taken = {"fail_all": regions, "fail_local": []}.get(on_failure, regions[wrong[0] + 1 :])
        free = [one.name for one in taken if one.step.value not in LAST and one.status.value not in ENDED]
        if free:
            what = f"{record.id}: {regions[wrong[0]].name} failed, on_failure is {on_failure!r}, and {free} go on"
            raise Broken(ON_FAILURE, what)
        if on_failure == "fail_local" and record.status.value == "running":
            taken = [one for one in regions if one.step.value == "fail" and one.error.endswith(" failed")]
            if taken:
                raise Broken(ON_FAILURE, f"{record.id}: {taken[0].name} was taken along: {taken[0].error}")

    # ------------------------------------------------------------------ deeds

    def _done(self, region: str, command: RolloutStepCarry) -> None:
        rollout_id = command.share.rollout_id
        deed = "prepare" if command.registration is not None else ""
        if command.status is not None:
            deed = DEEDS[command.status.status]
        if not deed:
            return
        done = self.deeds.setdefault((rollout_id, region), [])
        done.append(deed)
        self._federation.counts[f"deed: {deed}"] += 1
        if len(done) != len(set(done)):
            raise Broken(ONCE, f"{rollout_id} in {region}: {deed} was done twice: {done}")
        if sum(one in LAST for one in done) > 1:
            raise Broken(ONCE, f"{rollout_id} in {region}: two ends: {done}")
        if deed == "prepare":
            self._versions[region, command.job_id, command.version] = rollout_id
        self._was_decided(rollout_id, region, deed)
        if deed == "run":
            self._may_start(rollout_id, region)

    def _was_decided(self, rollout_id: str, region: str, deed: str) -> None:
        record = self.records.get(rollout_id)
        mine = record.region(region) if record is not None else None
        if mine is None:
            raise Broken(ONCE, f"{rollout_id} in {region}: {deed} was done, and no log has the rollout")
        is_later = mine.step.value in NEXT.get(deed, ()) or mine.step.value in LAST
        if deed != "prepare" and mine.step.value != deed and not (deed == "run" and is_later) and not mine.is_unsure:
            raise Broken(ONCE, f"{rollout_id} in {region}: {deed} was done, {mine.step.value} was decided")

    def _may_start(self, rollout_id: str, region: str) -> None:
        """Everybody was prepared before, and no more than the job says have their turn at once, in order."""
        record = self.records[rollout_id]
        names = [one.name for one in record.regions]
        given_up = {one.name for one in record.regions if one.is_skipped or one.step.value in LAST}
        deeds = {name: self.deeds.get((rollout_id, name), []) for name in names}
        unprepared = [name for name in names if name not in given_up and "prepare" not in deeds[name]]
        if unprepared:
            raise Broken(TURNS, f"{rollout_id}: {region} was started while {unprepared} were not prepared")
        places = record.strategy.max_parallel
        busy = [
            name
            for name in names
            if name not in given_up
            and "run" in deeds[name]
            and (name == region or self.status.get((rollout_id, name)) not in (*HEALTHY, *ENDED))
        ]
        if places and len(busy) > places:
            raise Broken(TURNS, f"{rollout_id}: {busy} have their turn at once, {places} may")
        earlier = [
            name
            for name in names[: names.index(region)]
            if "run" not in deeds[name]
            and self.status.get((rollout_id, name)) not in ENDED  # somebody stopped the job there before its turn
        ]
        if places == 1 and set(earlier) - given_up:
            raise Broken(TURNS, f"{rollout_id}: {region} was started before {earlier}")

    def _one_deployment(self, region: str, state: State, job_id: str) -> None:
        versions = Counter(row.job_version for row in state.deployments.of_job("default", job_id))
        for version, count in sorted(versions.items()):
            if count > 1 and (region, job_id, version) in self._versions:
                raise Broken(ONCE, f"{region} has {count} deployments of version {version} of {job_id}")

    def _placed(self, region: str, plan: PlanApply) -> None:
        """A region starts nothing of a version until it was told to; cut off or not."""
        for group in plan.placed:
            version = group.of_version if group.of_version >= 0 else plan.job_version
            if self.waits(region, plan.job_id, version):
                rollout_id = self._versions[region, plan.job_id, version]
                status = self.status.get((rollout_id, region))
                raise Broken(PENDING, f"{region} placed version {version} of {plan.job_id}, whose part is {status}")
