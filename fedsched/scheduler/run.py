"""One attempt at work: from what is wanted to the columns of a plan.

What needs no node comes first (stops, in-place updates, allocations of cut-off clients), because what it frees may be
used. Then nodes are chosen: destructive updates first, then what has a story, then the plain new ones. What finds no
place is explained and counted. How an evaluation ends is for its scheduler; see `generic` and `system`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from fedsched.model.alloc import ClientStatus
from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.deployment import Deployment
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.scheduler.ask import Offer
from fedsched.scheduler.choose import NO_SLOTS, Chooser, Chosen, Slots
from fedsched.scheduler.evict import Eviction, Evictions, may_preempt
from fedsched.scheduler.field import GroupField, JobField, taints_of_fleet
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.fresh_ids import fresh_ids
from fedsched.scheduler.plan_build import CURRENT, Older, PlanBuilder
from fedsched.scheduler.reconcile.held import CANARY, EVICT, LOST, NO_PLACE_FOUND, RUN, STOP, UNKNOWN, Held, Roster
from fedsched.scheduler.reconcile.service import Ground, reconcile
from fedsched.scheduler.reconcile.wanted import GroupWanted, Reason, Single, Stop, Wanted
from fedsched.scheduler.settings import config_of
from fedsched.scheduler.stored import became, own_fields, shared_fields, wished_fields
from fedsched.state.store import EvaluationView, State
from fedsched.state.tables.alloc_columns import CLIENT_CODES
from fedsched.state.tables.deployments import deployment_write
from fedsched.state.tables.evaluations import evaluation_write

PLACEMENTS_MAX: Final = 4_000
"""Placed by one plan; a larger job takes several, so that no step holds up the event loop."""

SINGLES_MAX: Final = 48
"""Of these, placed one by one; each looks at the whole fleet."""
LOOKS_MAX: Final = 256
"""Of these, with ports, cores, devices or volumes, for which single nodes are looked at."""
DRY_PLACEMENTS_MAX: Final = 50_000
"""A dry run has one plan to show, however large; no job may have more."""

NewId = Callable[[], str]


class Run:
    """One attempt at work."""

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
        self.chooser = Chooser(self.field, self.roster, evaluation.id) if self.field is not None else None
        self.evictions = Evictions(state, fleet, view.job)
        self.may_preempt = view.job is not None and may_preempt(config, view.job.type)
        self.failed: dict[str, AllocMetric] = {}
        self.queued: dict[str, int] = {}
        self.deployment_id = ""
        self.has_more = False
        self.waits_for_follow_up = False
        self.wanted = Wanted()
        is_dry = evaluation.annotate_plan
        self.left = DRY_PLACEMENTS_MAX if is_dry else PLACEMENTS_MAX
        self._singles_left = DRY_PLACEMENTS_MAX if is_dry else SINGLES_MAX
        self._looks_left = DRY_PLACEMENTS_MAX if is_dry else LOOKS_MAX

    def close(self) -> None:
        if self.chooser is not None:
            self.chooser.close()

    def go(self) -> None:
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
        self.wanted = self.reconcile(ground)
        self._deploy(latest)
        self._stop_what_goes()
        for group in self.wanted.groups.values():
            self._change_in_place(group)
        for group in self.wanted.groups.values():
            self._place(group, group.destructive)
        for group in self.wanted.groups.values():
            self._place(group, group.special)
            self.place_fresh(group)
        self._follow_up()

    def reconcile(self, ground: Ground) -> Wanted:
        """Compare what is wanted with what is there."""
        return reconcile(ground)

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
        for update in wanted.deployment_updates:
            self.builder.deployment_status(update)
        self.builder.deployment_id = self.deployment_id

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
        for group in self.wanted.groups.values():
            for stop in group.stops:
                self._stop(stop)
        for evaluation_id in self.wanted.dropped_evaluations:
            known = self.state.evaluations.get(evaluation_id)
            if known is not None and not known.status.is_terminal:
                cancelled = replace(known, status=EvaluationStatus.CANCELLED, modify_time_ns=self.now_ns)
                self.builder.evaluations([evaluation_write(cancelled)])

    def _stop(self, stop: Stop) -> None:
        status = CLIENT_CODES[stop.client_status] if stop.client_status is not None else 0
        fields = wished_fields(stop.held, description=stop.description, followup_id=stop.followup_id)
        self.builder.stop([stop.held.id], desired=STOP, client_status=status, fields=fields)
        if self.chooser is not None:
            self.chooser.free([stop.held])

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
            later = [one for one in later if one.id in needed]
        if later:
            self.builder.evaluations([evaluation_write(one) for one in later])
        self.waits_for_follow_up = bool(later) and self.evaluation.wait_until_ns > self.now_ns

    # --------------------------------------------------------------------- placing

    def _place(self, wanted: GroupWanted, singles: list[Single]) -> None:
        """Place one after the other what has a story."""
        for single in singles:
            if wanted.name in self.failed:
                self._fail_again(wanted, single)
                continue
            if not self.left or not self._singles_left:
                self.has_more = True
                return
            self._singles_left -= 1
            self.place_single(wanted, single)

    def place_single(self, wanted: GroupWanted, single: Single) -> None:
        assert self.chooser is not None
        group, older = self._field_for(wanted, single)
        if single.stop is not None:
            self._stop(single.stop)
        chosen = self.choose_for(group, single)
        eviction: Eviction | None = None
        if chosen.unplaced and self.may_preempt:
            eviction = self.evict_at(group, single.name_index, single.node)
        if chosen.unplaced and eviction is None:
            if single.stop is not None:
                self._unstop(single)
            self.not_placed(wanted, group, single, chosen)
            return
        self.left -= 1
        identity = fresh_ids(self.new_id(), 1)
        offer = self._evict_for(eviction, group, identity) if eviction is not None else _first(chosen.offers)
        slot = eviction.slot if eviction is not None else int(chosen.node_slots[0])
        victims = eviction.ids if eviction is not None else ()
        self.builder.place_one(
            wanted.name,
            identity,
            slot,
            single.name_index,
            shared_fields(group.ask, chosen.metric),
            flags=CANARY if single.is_canary else 0,
            previous=single.previous.id if single.previous is not None else "",
            own=own_fields(group.ask, offer, tracker=single.tracker, preempted=victims),
            older=older,
        )

    def not_placed(self, wanted: GroupWanted, group: GroupField, single: Single, chosen: Chosen) -> None:
        """There is no node for it."""
        self.fail(wanted, group, chosen.metric, 1)

    def choose_for(self, group: GroupField, single: Single) -> Chosen:
        assert self.chooser is not None
        names = [single.name_index]
        penalty = self._slots_of(single.penalty_nodes())
        disk = group.group.ephemeral_disk
        if single.previous is not None and (disk.sticky or disk.migrate) and group.mask[single.previous.node]:
            home = self.chooser.choose(group, names, only=np.array([single.previous.node], dtype=np.int64))
            if not home.unplaced:
                return home
        return self.chooser.choose(group, names, penalty=penalty)

    def place_fresh(self, wanted: GroupWanted) -> None:
        """Place what differs only in its name, all in one go."""
        count = len(wanted.fresh)
        if not count or wanted.group is None:
            return
        assert self.chooser is not None
        assert self.field is not None
        if wanted.name in self.failed:
            self.fail(wanted, self.field.group(wanted.group), self.failed[wanted.name], count)
            return
        group = self.field.group(wanted.group)
        limit = min(self.left, self._looks_left) if group.ask.needs_special else self.left
        names = wanted.fresh[:limit]
        self.has_more = self.has_more or len(names) < count
        if not len(names):
            return
        if group.ask.needs_special:
            self._looks_left -= len(names)
        chosen = self.chooser.choose(group, names)
        placed = len(chosen.node_slots)
        self.left -= placed
        if placed:
            self.add_fresh(wanted, group, chosen, names[:placed])
        if not chosen.unplaced:
            return
        rest = names[placed:].tolist()
        for name in list(rest) if self.may_preempt else ():
            if not self.evict_one(wanted, group, name, chosen.metric):
                break
            rest.remove(name)
        if rest:
            self.has_more = False
            left_out = count - len(names)
            self.fail(wanted, group, chosen.metric, len(rest) + left_out)

    def add_fresh(self, wanted: GroupWanted, group: GroupField, chosen: Chosen, names: Any) -> None:
        ids = fresh_ids(self.new_id(), len(names))
        shared = shared_fields(group.ask, chosen.metric)
        if chosen.offers is None:
            self.builder.place_many(wanted.name, ids, chosen.node_slots, names, shared)
            return
        places = zip(chosen.node_slots.tolist(), names.tolist(), chosen.offers, strict=True)
        for at, (slot, name, offer) in enumerate(places):
            own = own_fields(group.ask, offer)
            self.builder.place_one(wanted.name, ids[16 * at : 16 * at + 16], slot, name, shared, own=own)

    def evict_at(self, group: GroupField, name: int, node: int = -1) -> Eviction | None:
        """Who has to go for one more of the group: anywhere, or on one node."""
        assert self.chooser is not None
        only = np.array([node], dtype=np.int64) if node >= 0 else None
        return self.evictions.find(self.chooser, group, name, only)

    def evict_one(self, wanted: GroupWanted, group: GroupField, name: int, metric: AllocMetric, node: int = -1) -> bool:
        """Place one more of a group by evicting others, if that can be done."""
        eviction = self.evict_at(group, name, node)
        if eviction is None:
            return False
        identity = fresh_ids(self.new_id(), 1)
        offer = self._evict_for(eviction, group, identity)
        own = own_fields(group.ask, offer, preempted=eviction.ids)
        self.builder.place_one(wanted.name, identity, eviction.slot, name, shared_fields(group.ask, metric), own=own)
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

    def _fail_again(self, wanted: GroupWanted, single: Single) -> None:
        group, _ = self._field_for(wanted, single)
        self.fail(wanted, group, self.failed[wanted.name], 1)
        self._mark_unplaced(single)

    def _unstop(self, single: Single) -> None:
        """No place was found for its replacement: the old one is not stopped after all."""
        assert self.chooser is not None
        assert single.stop is not None
        self.builder.take_back_stop(single.stop.held.id)
        self.chooser.take_back(single.stop.held)
        self._mark_unplaced(single)

    def _mark_unplaced(self, single: Single) -> None:
        """A failed one that could not be replaced remembers it, so that the next evaluation tries again."""
        held = single.previous
        if single.reason is not Reason.RESCHEDULE or held is None or single.tracker is None:
            return
        known = held.tracker
        tracker = replace(known if known is not None else single.tracker, last_reschedule=NO_PLACE_FOUND)
        if known is None:
            tracker = replace(tracker, events=())
        self.builder.stop([held.id], desired=held.desired, fields=wished_fields(held, tracker=tracker))

    # --------------------------------------------------------------------- helping

    def _field_for(self, wanted: GroupWanted, single: Single) -> tuple[GroupField, Older]:
        assert self.field is not None
        assert wanted.group is not None
        if single.job_version is None or self.job is None or single.job_version == self.job.version:
            return self.field.group(wanted.group), CURRENT
        job = self._job_at(self.job.create_index, single.job_version)
        group = job.group(wanted.name) if job is not None else None
        if job is None or group is None:
            return self.field.group(wanted.group), CURRENT
        return self.field.group(group, job), Older(job.version, single.deployment_id or "")

    def _slots_of(self, node_ids: set[str]) -> Slots:
        found = [slot for node_id in sorted(node_ids) if (slot := self.fleet.slot_of(node_id)) is not None]
        return np.array(found, dtype=np.int64) if found else NO_SLOTS


def _first(offers: list[Offer] | None) -> Offer | None:
    return offers[0] if offers else None
