"""System and sysbatch jobs: one evaluation from what is wanted on every node to a plan.

There is nothing to choose: each placement has its node, and either it fits there or not. A node that cannot run the
group at all is no failure, unless nothing else is left of the group; a node without room is one, and gets a blocked
evaluation of its own, because only a change of that node helps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from fedsched.model.alloc_metric import AllocMetric
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.scheduler.choose import Slots
from fedsched.scheduler.field import GroupField
from fedsched.scheduler.generic import BLOCKED_TO_PLACE, GenericScheduling
from fedsched.scheduler.pieces import Pieces
from fedsched.scheduler.reconcile.service import Ground
from fedsched.scheduler.reconcile.system import NodeField, reconcile_system
from fedsched.scheduler.reconcile.wanted import GroupWanted, Single, Wanted
from fedsched.scheduler.run import Run


class SystemRun(Run):
    """One attempt for a system or sysbatch job."""

    is_ranked = False
    exhausted: dict[int, str]
    """Node slots without room, and the group that wanted it."""
    filtered: dict[str, int]

    def reconcile(self, ground: Ground) -> Pieces[Wanted]:
        self.exhausted, self.filtered = {}, {}
        field = self.field
        if field is None:
            nothing = np.zeros(self.fleet.size, dtype=np.bool_)
            return reconcile_system(ground, NodeField(nothing, nothing))
        yield
        feasible = NodeField(self.fleet.ready, field.in_scope, lambda group: field.group(group).mask)
        return reconcile_system(ground, feasible)

    def has_failed(self, wanted: GroupWanted) -> bool:
        """Never: what one node lacks says nothing about the next."""
        return False

    def home_of(self, group: GroupField, single: Single) -> int:
        return single.node

    def not_placed(self, wanted: GroupWanted, group: GroupField, node: int, metric: AllocMetric) -> None:
        if group.mask[node]:
            self._exhaust(wanted, group, metric, [node])
        else:
            self._filter(wanted, group, 1)

    def place_fresh(self, wanted: GroupWanted) -> Iterator[None]:
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
            room = self.room_for(group)
            self.has_more = self.has_more or len(nodes) > room
            nodes, piece = nodes[:room], self.piece_of(group)
            self.note_looks(group, len(nodes))
            for start in range(0, len(nodes), piece):
                yield from self._place_on(wanted, group, int(name), nodes[start : start + piece])

    def _place_on(self, wanted: GroupWanted, group: GroupField, name: int, nodes: Slots) -> Iterator[None]:
        assert self.chooser is not None
        chosen = self.chooser.choose_each(group, [name] * len(nodes), nodes)
        placed = len(chosen.node_slots)
        self.left -= placed
        if placed:
            self.add_fresh(wanted, group, chosen, np.full(placed, name, dtype=np.int32))
        yield
        full = np.setdiff1d(nodes, chosen.node_slots).tolist() if chosen.unplaced else []
        if self.may_preempt:
            left = []
            for slot in full:
                if not self.evict_one(wanted, group, name, chosen.metric, slot):
                    left.append(slot)
                yield
            full = left
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
        wanted.tally.place -= min(count, wanted.tally.place)  # a dry run tells what would happen
        has_some = bool(wanted.place_count - self.filtered[wanted.name]) or wanted.name in self.roster.by_group()
        if not has_some and wanted.name not in self.failed:
            assert self.chooser is not None
            group.note_classes()
            self.failed[wanted.name] = self.chooser.base_metric(group)
            self.queued.setdefault(wanted.name, 0)


class SystemScheduling(GenericScheduling):
    """One evaluation of a system or sysbatch job."""

    run_type = SystemRun

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
