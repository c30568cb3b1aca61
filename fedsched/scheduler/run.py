"""One attempt at work: from what is wanted to the columns of a plan.

What needs no node comes first (stops, in-place updates, allocations of cut-off clients), because what it frees may be
used. Then nodes are chosen: destructive updates first, then what has a story, then the plain new ones. What finds no
place is explained and counted. How an evaluation ends is for its scheduler; see `generic` and `system`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from msgspec.structs import replace

from fedsched.codec import dumps
from fedsched.model.alloc import ClientStatus, RescheduleTracker
from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.deployment import Deployment, DeploymentStatusUpdate
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.scheduler.ask import Offer
from fedsched.scheduler.choose import NO_SLOTS, Chooser, Chosen, Slots
from fedsched.scheduler.effort import piece_of
from fedsched.scheduler.evict import Eviction, Evictions, may_preempt
from fedsched.scheduler.field import GroupField, JobField, taints_of_fleet
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.fresh_ids import fresh_ids
from fedsched.scheduler.pieces import Pieces
from fedsched.scheduler.plan_build import CURRENT, Older, PlanBuilder
from fedsched.scheduler.reconcile.deployments import superseded
from fedsched.scheduler.reconcile.held import EVICT, LOST, NO_PLACE_FOUND, RUN, STOP, UNKNOWN, Held, Roster
from fedsched.scheduler.reconcile.service import Ground, reconcile_in_pieces
from fedsched.scheduler.reconcile.wanted import GroupWanted, Single, Stop, Wanted
from fedsched.scheduler.replace import Replacements
from fedsched.scheduler.settings import config_of
from fedsched.scheduler.stored import became, own_fields, said_fields, shared_fields, wished_fields
from fedsched.state.store import EvaluationView, State
from fedsched.state.tables.alloc_columns import CLIENT_CODES
from fedsched.state.tables.deployments import deployment_write
from fedsched.state.tables.evaluations import evaluation_write

PLACEMENTS_MAX: Final = 4_000
"""Placed by one plan; a larger job takes several, so that no step holds up the event loop."""

LOOKS_MAX: Final = 256
"""Of these, with ports, cores, devices or volumes, for which single nodes are looked at."""
DRY_PLACEMENTS_MAX: Final = 50_000
"""A dry run has one plan to show, however large; no job may have more."""

NewId = Callable[[], str]


class Run:
    """One attempt at work."""

    is_ranked = True
    """Whether nodes are compared; otherwise each placement has its node."""

    chooser_type: ClassVar[type[Chooser]] = Chooser
    """Who picks the nodes; a scheduler of somebody's own may have another idea."""

    def __init__(
        self, evaluation: Evaluation, new_id: NewId, state: State, fleet: Fleet, view: EvaluationView, now_ns: int
    ) -> None:
        self.evaluation = evaluation
        self.new_id = new_id
        self.state = state
        self.fleet = fleet
        self.job = view.job
        self.now_ns = now_ns
        self.roster = Roster.of(view, state.allocations.records)
        self.builder = PlanBuilder(
            view.job,
            namespace=evaluation.namespace,
            job_id=evaluation.job_id,
            evaluation_id=evaluation.id,
            snapshot_index=state.index,
        )
        config = config_of(state, view.job)
        self.field = None
        if view.job is not None:
            self.field = JobField(state, fleet, view.job, config, is_stored=not evaluation.annotate_plan)
        self.chooser = self.chooser_type(self.field, self.roster, evaluation.id) if self.field is not None else None
        self.evictions = Evictions(state, fleet, view.job)
        self.may_preempt = view.job is not None and may_preempt(config, view.job.type)
        self.failed: dict[str, AllocMetric] = {}
        self.queued = {group.name: 0 for group in view.job.task_groups} if view.job is not None else {}
        """How many of each group found no place; that none did has to be said too, or the last number would stand."""
        self.deployment_id = ""
        self.has_more = False
        self.pauses = False
        """Whether others get a turn now and then; the state and the fleet are then its own."""
        self.waits_for_follow_up = False
        self.wanted = Wanted()
        is_dry = evaluation.annotate_plan
        self.left = DRY_PLACEMENTS_MAX if is_dry else PLACEMENTS_MAX
        self._looks_left = DRY_PLACEMENTS_MAX if is_dry else LOOKS_MAX

    def close(self) -> None:
        if self.chooser is not None:
            self.chooser.close()

    def steps(self) -> Iterator[None]:
        """Do all of it, with a pause now and then; unless it `pauses`, pieces are as large as they come."""
        latest = self._latest_deployment()
        ground = Ground(
            evaluation=self.evaluation,
            job=self.job,
            roster=self.roster,
            taints=taints_of_fleet(self.fleet),
            deployment=latest,
            now_ns=self.now_ns,
            new_id=self.new_id,
            can_stay=self._can_stay,
            job_at=self._job_at,
            deployments=self._deployments,
        )
        if self.pauses and self.field is not None:
            for one in self.field.job.task_groups:
                yield from self.field.group(one).look()
        self.wanted = yield from self.reconcile(ground)
        yield
        self._deploy(latest)
        self._stop_what_goes()
        yield
        for group in self.wanted.groups.values():
            self._change_in_place(group)
            yield
        for group in self.wanted.groups.values():
            yield from self._place(group, group.destructive)
        for group in self.wanted.groups.values():
            yield from self._place(group, group.special)
            yield from self.place_fresh(group)
        self._follow_up()

    def reconcile(self, ground: Ground) -> Pieces[Wanted]:
        """Compare what is wanted with what is there."""
        return reconcile_in_pieces(ground)

    # ---------------------------------------------------------------- what is known

    def _latest_deployment(self) -> Deployment | None:
        row = self.state.deployments.latest(
            self.evaluation.namespace, self.evaluation.job_id, self.job.create_index if self.job is not None else None
        )
        return row.deployment() if row is not None else None

    def _deployments(self) -> Iterator[Deployment]:
        for row in self.state.deployments.of_job(self.evaluation.namespace, self.evaluation.job_id):
            yield row.deployment()

    def _job_at(self, create_index: int, version: int) -> Job | None:
        key = (self.evaluation.namespace, self.evaluation.job_id, create_index, version)
        return self.state.jobs.version_by_key(key)

    def _can_stay(self, helds: Sequence[Held], group: TaskGroup) -> list[bool]:
        """Whether allocations may go on where they are under the job as it is now; resources did not change."""
        assert self.field is not None
        slots = np.array([held.node for held in helds], dtype=np.int64)
        stay: list[bool] = self.field.group(group).allows(slots).tolist()
        return stay

    # -------------------------------------------------------------- what needs no node

    def _deploy(self, latest: Deployment | None) -> None:
        wanted = self.wanted
        if wanted.deployment is not None:
            self.builder.deployment(deployment_write(wanted.deployment))
            self.deployment_id = wanted.deployment.id
        elif latest is not None and latest.is_active and self._is_of_job(latest):
            self.deployment_id = latest.id
        for update in (*wanted.deployment_updates, *self._orphans(latest)):
            self.builder.deployment_status(update)
        self.builder.deployment_id = self.deployment_id

    def _orphans(self, latest: Deployment | None) -> list[DeploymentStatusUpdate]:
        """Active deployments beside the latest: of a purged namesake of the job, which nobody else would end."""
        seen = latest.id if latest is not None else ""
        rows = self.state.deployments.rows.by("active", self.evaluation.namespace, self.evaluation.job_id)
        return [superseded(row.deployment(), self.now_ns) for row in rows if row.id != seen]

    def _is_of_job(self, deployment: Deployment) -> bool:
        job = self.job
        return job is not None and (deployment.job_create_index, deployment.job_version) == (
            job.create_index,
            job.version,
        )

    def _stop_what_goes(self) -> None:
        """Stops that hang on no placement come first: what they free may be used."""
        for held in self.wanted.gone:
            self.builder.stop([held.id], desired=held.desired, client_status=LOST, fields=wished_fields(held))
        stops = [stop for group in self.wanted.groups.values() for stop in group.stops]
        if self.chooser is not None:
            self.chooser.free(stop.held for stop in stops)
        self.write_stops(stops)
        for evaluation_id in self.wanted.dropped_evaluations:
            known = self.state.evaluations.get(evaluation_id)
            if known is not None and not known.status.is_terminal:
                cancelled = replace(known, status=EvaluationStatus.CANCELLED, modify_time_ns=self.now_ns)
                self.builder.evaluations([evaluation_write(cancelled)])

    def write_stops(self, stops: Sequence[Stop]) -> None:
        """The plan stops these. Nearly all of many say the same."""
        said: dict[tuple[str, str, ClientStatus | None], list[bytes]] = {}
        for stop in stops:
            if not stop.held.has_story:
                key = (stop.description, stop.followup_id, stop.client_status)
                said.setdefault(key, []).append(stop.held.identity)
                continue
            fields = wished_fields(stop.held, description=stop.description, followup_id=stop.followup_id)
            self.builder.stop_known([stop.held.identity], STOP, _code(stop.client_status), dumps(fields))
        for (description, followup_id, status), ids in said.items():
            fields = said_fields(description, followup_id)
            self.builder.stop_known(ids, STOP, _code(status), dumps(fields) if fields else b"")

    def _change_in_place(self, group: GroupWanted) -> None:
        for held in group.in_place:
            self.builder.update(group.name, [held.id], held.origin.shared)
        for entry in group.disconnecting:
            state = became(ClientStatus.UNKNOWN, self.now_ns)
            fields = wished_fields(entry.held, followup_id=entry.followup_id, state=state)
            self.builder.stop([entry.held.id], desired=RUN, client_status=UNKNOWN, fields=fields)
        for held in group.reconnecting:
            back = became(ClientStatus(held.record.client_status), self.now_ns)
            self.builder.stop([held.id], desired=RUN, fields=wished_fields(held, state=back, is_back=True))
        if not self.evaluation.wait_until_ns:
            for followed in group.followed:
                fields = wished_fields(followed.held, followup_id=followed.followup_id)
                self.builder.stop([followed.held.id], desired=RUN, fields=fields)

    def _follow_up(self) -> None:
        """Evaluations that come back to what has to wait.

        One that is itself such makes no more of them for reschedules, which it was made for; but what is cut off or
        held up needs somebody to come back in any case.
        """
        groups = self.wanted.groups.values()
        later = [one for group in groups for one in group.follow_ups]
        if self.evaluation.wait_until_ns:
            needed = {entry.followup_id for group in groups for entry in group.disconnecting}
            needed |= {stop.followup_id for group in groups for stop in group.stops}
            needed |= {group.held_up_until for group in groups}
            later = [one for one in later if one.id in needed]
        if later:
            self.builder.evaluations([evaluation_write(one) for one in later])
        self.waits_for_follow_up = bool(later) and self.evaluation.wait_until_ns > self.now_ns

    # --------------------------------------------------------------------- placing

    def _place(self, wanted: GroupWanted, singles: list[Single]) -> Iterator[None]:
        if singles:
            assert self.chooser is not None
            yield from Replacements(self, self.chooser).place(wanted, singles)

    def piece_of(self, group: GroupField, *, is_tied: bool = False) -> int:
        """How many of a group are placed between two pauses."""
        return piece_of(group, is_tied=is_tied) if self.pauses else DRY_PLACEMENTS_MAX

    def has_failed(self, wanted: GroupWanted) -> bool:
        """Whether nothing more of a group need be tried: where one found no place, no other will."""
        return wanted.name in self.failed

    def room_for(self, group: GroupField) -> int:
        """How many more of a group may be placed by this plan."""
        return max(0, min(self.left, self._looks_left) if group.ask.needs_special else self.left)

    def note_looks(self, group: GroupField, count: int) -> None:
        """So many are about to be placed; count those for which single nodes are looked at."""
        if group.ask.needs_special:
            self._looks_left -= count

    def home_of(self, group: GroupField, single: Single) -> int:
        """The slot of the node that is tried first and alone; -1 if there is none."""
        held, disk = single.previous, group.group.ephemeral_disk
        if held is None or not (disk.sticky or disk.migrate) or not group.mask[held.node]:
            return -1
        return held.node

    def not_placed(self, wanted: GroupWanted, group: GroupField, node: int, metric: AllocMetric) -> None:
        """There is no room on the only node that will do."""
        self.fail(wanted, group, metric, 1)

    def place_fresh(self, wanted: GroupWanted) -> Iterator[None]:
        """Place what differs only in its name, many at a time."""
        count = len(wanted.fresh)
        if not count or wanted.group is None:
            return
        assert self.chooser is not None
        assert self.field is not None
        group = self.field.group(wanted.group)
        if wanted.name in self.failed:
            self.fail(wanted, group, self.failed[wanted.name], count)
            return
        names = wanted.fresh[: self.room_for(group)]
        self.note_looks(group, len(names))
        at, piece = 0, self.piece_of(group)
        while at < len(names):
            part = names[at : at + piece]
            chosen = self.chooser.choose(group, part)
            placed = len(chosen.node_slots)
            self.left -= placed
            if placed:
                self.add_fresh(wanted, group, chosen, part[:placed])
            at += placed
            if chosen.unplaced:
                at += yield from self._evict_for_fresh(wanted, group, names[at:], chosen.metric)
                if at < len(names):
                    self.fail(wanted, group, chosen.metric, count - at)
                    return
            yield
        self.has_more = self.has_more or len(names) < count

    def _evict_for_fresh(self, wanted: GroupWanted, group: GroupField, names: Any, metric: AllocMetric) -> Pieces[int]:
        """Place these by evicting others, as long as that can be done; how many were placed."""
        placed = 0
        for name in names.tolist() if self.may_preempt else ():
            if not self.evict_one(wanted, group, name, metric):
                break
            placed += 1
            yield
        return placed

    def add_fresh(self, wanted: GroupWanted, group: GroupField, chosen: Chosen, names: Any) -> None:
        own = {at: own_fields(group.ask, offer) for at, offer in enumerate(chosen.offers or ())}
        self.builder.place_many(
            wanted.name,
            fresh_ids(self.new_id(), len(names)),
            chosen.node_slots,
            names,
            shared_fields(group.ask, chosen.metric),
            scores=chosen.scores,
            own=own,
        )

    def evict_one(
        self,
        wanted: GroupWanted,
        group: GroupField,
        name: int,
        metric: AllocMetric,
        node: int = -1,
        *,
        avoid: Slots = NO_SLOTS,
        tracker: RescheduleTracker | None = None,
        **told: Any,
    ) -> bool:
        """Place one more of a group by evicting others (anywhere, or on one node), if that can be done.

        `told` is what else the plan says about it, see `PlanBuilder.place_many`.
        """
        assert self.chooser is not None
        only = np.array([node], dtype=np.int64) if node >= 0 else None
        eviction = self.evictions.find(self.chooser, group, name, only, avoid=avoid, is_ranked=self.is_ranked)
        if eviction is None:
            return False
        identity = fresh_ids(self.new_id(), 1)
        offer = self._evict_for(eviction, group, identity)
        self.builder.place_many(
            wanted.name,
            identity,
            np.array([eviction.slot], dtype=np.int64),
            np.array([name], dtype=np.int64),
            shared_fields(group.ask, metric),
            scores={name: np.array([value]) for name, value in eviction.scores.items()},
            own={0: own_fields(group.ask, offer, tracker=tracker, preempted=eviction.ids)},
            **told,
        )
        self.left -= 1
        return True

    def _evict_for(self, eviction: Eviction, group: GroupField, identity: bytes) -> Offer | None:
        """Write the eviction down, and take the place that it makes."""
        assert self.chooser is not None
        self.builder.stop(eviction.ids, desired=EVICT, fields=self.evictions.fields(identity))
        self.chooser.free_others(eviction.alloc_slots)
        offer = eviction.offer if group.ask.needs_special else None
        where = np.array([eviction.slot], dtype=np.int64)
        self.chooser.take(group, where, [offer] if offer is not None else None)
        return offer

    # --------------------------------------------------------------------- failing

    def fail(self, wanted: GroupWanted, group: GroupField, metric: AllocMetric, count: int) -> None:
        """So many of a group found no place; only the first is explained, the others failed alike."""
        known = self.failed.get(wanted.name)
        if known is None:
            group.note_classes()
            self.failed[wanted.name] = replace(metric, coalesced_failures=count - 1)
        else:
            self.failed[wanted.name] = replace(known, coalesced_failures=known.coalesced_failures + count)
        self.queued[wanted.name] = self.queued.get(wanted.name, 0) + count

    def mark_unplaced(self, single: Single) -> None:
        """A failed one that could not be replaced remembers it, so that the next evaluation tries again."""
        held = single.previous
        if held is None or single.tracker is None or not held.is_terminal or held.last_reschedule_failed:
            return  # who still runs is looked at again anyway
        known = held.tracker
        tracker = replace(known if known is not None else single.tracker, last_reschedule=NO_PLACE_FOUND)
        if known is None:
            tracker = replace(tracker, events=())
        self.builder.stop([held.id], desired=held.desired, fields=wished_fields(held, tracker=tracker))

    # --------------------------------------------------------------------- helping

    def field_for(self, wanted: GroupWanted, single: Single) -> tuple[GroupField, Older]:
        assert self.field is not None
        assert wanted.group is not None
        if single.job_version is None or self.job is None or single.job_version == self.job.version:
            return self.field.group(wanted.group), CURRENT
        job = self._job_at(self.job.create_index, single.job_version)
        group = job.group(wanted.name) if job is not None else None
        if job is None or group is None:
            return self.field.group(wanted.group), CURRENT
        return self.field.group(group, job), Older(job.version, single.deployment_id or "")


def _code(status: ClientStatus | None) -> int:
    return CLIENT_CODES[status] if status is not None else 0
