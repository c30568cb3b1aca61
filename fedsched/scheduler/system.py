"""System and sysbatch jobs: one evaluation from what is wanted on every node to a plan.

There is nothing to choose: each placement has its node, and either it fits there or not. A node that cannot run the
group at all is no failure, unless nothing else is left of the group; a node without room is one, and gets a blocked
evaluation of its own, because only a change of that node helps.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.scheduler.choose import Chosen, Slots
from fedsched.scheduler.field import GroupField
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.generic import BLOCKED_TO_PLACE, GenericScheduling
from fedsched.scheduler.reconcile.service import Ground
from fedsched.scheduler.reconcile.system import NodeField, reconcile_system
from fedsched.scheduler.reconcile.wanted import GroupWanted, Single, Wanted
from fedsched.scheduler.run import Run
from fedsched.state.store import EvaluationView, State


class SystemRun(Run):
    """One attempt for a system or sysbatch job."""

    exhausted: dict[int, str]
    """Node slots without room, and the group that wanted it."""
    filtered: dict[str, int]

    def reconcile(self, ground: Ground) -> Wanted:
        self.exhausted, self.filtered = {}, {}
        field = self.field
        if field is None:
            nothing = np.zeros(self.fleet.size, dtype=np.bool_)
            return reconcile_system(ground, NodeField(nothing, nothing))
        feasible = NodeField(self.fleet.ready, field.in_scope, lambda group: field.group(group).mask)
        return reconcile_system(ground, feasible)

    def choose_for(self, group: GroupField, single: Single) -> Chosen:
        assert self.chooser is not None
        return self.chooser.choose(group, [single.name_index], only=np.array([single.node], dtype=np.int64))

    def not_placed(self, wanted: GroupWanted, group: GroupField, single: Single, chosen: Chosen) -> None:
        if group.mask[single.node]:
            self._exhaust(wanted, group, chosen.metric, [single.node])
        else:
            self._filter(wanted, group, 1)

    def place_fresh(self, wanted: GroupWanted) -> None:
        """Place what belongs on each node, one place of the group after the other."""
        if not len(wanted.fresh) or wanted.group is None or wanted.fresh_nodes is None:
            return
        assert self.field is not None
        group = self.field.group(wanted.group)
        feasible = group.mask[wanted.fresh_nodes]
        self._filter(wanted, group, int((~feasible).sum()))
        for name in np.unique(wanted.fresh[feasible]).tolist():
            where = np.flatnonzero(feasible & (wanted.fresh == name))
            nodes = wanted.fresh_nodes[where].astype(np.int64)
            if not self.left:
                self.has_more = True
                return
            self.has_more = self.has_more or len(nodes) > self.left
            self._place_on(wanted, group, int(name), nodes[: self.left])

    def _place_on(self, wanted: GroupWanted, group: GroupField, name: int, nodes: Slots) -> None:
        assert self.chooser is not None
        chosen = self.chooser.choose_each(group, name, nodes)
        placed = len(chosen.node_slots)
        self.left -= placed
        if placed:
            self.add_fresh(wanted, group, chosen, np.full(placed, name, dtype=np.int32))
        if not chosen.unplaced:
            return
        full = np.setdiff1d(nodes, chosen.node_slots).tolist()
        if self.may_preempt:
            full = [slot for slot in full if not self.evict_one(wanted, group, name, chosen.metric, slot)]
        if full:
            self._exhaust(wanted, group, chosen.metric, full)

    def _exhaust(self, wanted: GroupWanted, group: GroupField, metric: AllocMetric, slots: list[int]) -> None:
        """No room on these nodes."""
        self.exhausted.update(dict.fromkeys(slots, wanted.name))
        self.fail(wanted, group, metric, len(slots))

    def _filter(self, wanted: GroupWanted, group: GroupField, count: int) -> None:
        """These nodes cannot run the group, so nothing is missing there; with nothing anywhere it must be said."""
        if not count:
            return
        self.filtered[wanted.name] = self.filtered.get(wanted.name, 0) + count
        has_some = bool(wanted.place_count - self.filtered[wanted.name]) or bool(len(self.roster))
        if not has_some and wanted.name not in self.failed:
            assert self.chooser is not None
            group.note_classes()
            self.failed[wanted.name] = self.chooser.base_metric(group)
            self.queued.setdefault(wanted.name, 0)


class SystemScheduling(GenericScheduling):
    """One evaluation of a system or sysbatch job."""

    def make_run(self, state: State, fleet: Fleet, view: EvaluationView, now_ns: int) -> Run:
        return SystemRun(self.evaluation, self.new_id, state, fleet, view, now_ns)

    def ends(self, run: Run) -> tuple[Evaluation, ...]:
        assert isinstance(run, SystemRun)
        own = replace(
            self.evaluation,
            failed_tg_allocs=run.failed,
            queued_allocations=run.queued,
            deployment_id=run.deployment_id or self.evaluation.deployment_id,
        )
        here = run.fleet.slot_of(self.evaluation.node_id) if self.evaluation.node_id else None
        stays = self.evaluation.status is EvaluationStatus.BLOCKED and here in run.exhausted
        slots = [slot for slot in sorted(run.exhausted) if not (stays and slot == here)]
        blocked = [self._blocked_on(run.fleet.node_id(slot), run) for slot in slots]
        if stays:
            return (own, *blocked)
        done = replace(own, status=EvaluationStatus.COMPLETE, status_description="")
        return (replace(done, blocked_eval=blocked[0].id if blocked else ""), *blocked)

    def _blocked_on(self, node_id: str, run: SystemRun) -> Evaluation:
        made = self.follow_up(EvaluationStatus.BLOCKED, Trigger.QUEUED_ALLOCS, BLOCKED_TO_PLACE)
        return replace(
            made,
            id=self.new_id(),
            node_id=node_id,
            queued_allocations=run.queued,
            failed_tg_allocs=run.failed,
        )
