"""System and sysbatch jobs: one allocation per place on every node that qualifies.

Most nodes need nothing, and those that do mostly need the same; both are told from columns. Only allocations about
which some rule has something to say become objects.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedsched.model.alloc import ClientStatus
from fedsched.model.deployment import DeploymentState
from fedsched.model.evaluation import Trigger
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, JobType
from fedsched.scheduler.reconcile.deployments import Draft, first_state, is_healthy_enough, is_rolling, standing
from fedsched.scheduler.reconcile.disconnect import CutOff
from fedsched.scheduler.reconcile.held import CANARY, PENDING, RUN, RUNNING, UNKNOWN, Held, Mask, Taint, Taints, Where
from fedsched.scheduler.reconcile.reschedule import follow_ups, no_longer_awaited
from fedsched.scheduler.reconcile.service import NOWHERE, Ground, finish, stop_all, stopped_and_gone
from fedsched.scheduler.reconcile.updates import Comparer, Updates
from fedsched.scheduler.reconcile.wanted import (
    DELAYED_TIMEOUT,
    LOST,
    NODE_TAINTED,
    NOT_NEEDED,
    UPDATING,
    Disconnect,
    GroupWanted,
    Reason,
    Single,
    Stop,
    Wanted,
)


class NodeField(NamedTuple):
    """The fleet as one system job sees it, by node slot."""

    ready: Mask
    """Ready, eligible, not draining."""
    in_scope: Mask
    """In the job's pool and datacenters."""
    feasible: Callable[[TaskGroup], Mask] | None = None
    """Which nodes can run the group at all; None: not known here, so all are counted."""


class Fate(Enum):
    """What becomes of one live allocation."""

    STOP = "stop it"
    MOVE = "somebody asked for its end"
    LOST = "its node is gone"
    IGNORE = "leave it alone"
    RECONNECT = "its client is back"
    DISCONNECT = "its client was cut off just now"
    UPDATE = "the job has changed"


def fate_of(
    held: Held,
    *,
    count: int,
    cut_off: CutOff,
    taint: Taint,
    is_ready: bool,
    in_scope: bool,
    is_changed: bool,
    is_sysbatch: bool,
    now_ns: int,
) -> Fate:
    """Decide about one live allocation of a system job; the first rule that fits counts."""
    if held.name_index >= count:
        return Fate.STOP
    if held.should_migrate:
        return Fate.MOVE
    if held.client == UNKNOWN:
        # Without a limit an unknown allocation waits for its node, but not for one that is gone.
        is_over = cut_off.is_over(held.unknown_since_ns, now_ns) or (taint.is_gone and not cut_off.lost_after_ns)
        return Fate.LOST if is_over else Fate.IGNORE
    if taint is Taint.NONE and held.needs_reconnect:
        return Fate.RECONNECT
    if taint is not Taint.NONE:
        return _on_tainted(held, taint, is_sysbatch)
    if not is_ready:
        return Fate.STOP if is_changed else Fate.IGNORE
    if not in_scope:
        return Fate.STOP
    return Fate.UPDATE if is_changed else Fate.IGNORE


def _on_tainted(held: Held, taint: Taint, is_sysbatch: bool) -> Fate:
    if is_sysbatch and held.ran_successfully:
        return Fate.IGNORE
    if taint is Taint.DISCONNECTED and held.client == RUNNING:
        return Fate.DISCONNECT
    return Fate.LOST if taint.is_gone else Fate.IGNORE


def reconcile_system(ground: Ground, nodes: NodeField) -> Wanted:
    """Compare a system or sysbatch job with its allocations and the fleet."""
    job, roster = ground.job, ground.roster
    wanted = Wanted()
    taint = roster.taint(ground.taints)
    wanted.gone = stopped_and_gone(roster, taint)
    latest = ground.deployment if job is None or job.type == JobType.SYSTEM.value else None
    now = standing(job, latest, ground.now_ns)
    wanted.deployment_updates += now.updates
    by_group = roster.by_group()
    if job is None or job.stop:
        for name, where in by_group.items():
            wanted.groups[name] = stop_all(roster, name, where, taint)
        return wanted
    scene = _SystemScene(ground, nodes, job, taint, Draft(now, job, ground.evaluation, ground.new_id))
    are_done = True
    for group in job.task_groups:
        work = _GroupWork(scene, group, by_group.pop(group.name, NOWHERE))
        are_done = work.run() and are_done
        wanted.groups[group.name] = work.wanted
    for name, where in by_group.items():
        if not now.is_waiting:
            wanted.groups[name] = stop_all(roster, name, where, taint)
    finish(wanted, scene.draft, are_done, ground.now_ns)
    wanted.dropped_evaluations = list(dict.fromkeys(scene.dropped))
    return wanted


class _SystemScene:
    """What all groups of the job share."""

    def __init__(self, ground: Ground, nodes: NodeField, job: Job, taint: Taints, draft: Draft) -> None:
        roster = ground.roster
        self.ground = ground
        self.job = job
        self.taint = taint
        self.draft = draft
        self.comparer = Comparer(job, ground.job_at)
        self.is_sysbatch = job.type == JobType.SYSBATCH.value
        self.current = roster.with_version((job.create_index, job.version))
        self.dropped: list[str] = []
        slots = roster.rows["node"]
        size = max(len(nodes.ready), len(ground.taints), int(slots.max()) + 1 if len(slots) else 0)
        self.ready = _padded(nodes.ready, size)
        self.in_scope = _padded(nodes.in_scope, size)
        self.feasible = nodes.feasible
        self.candidates: Mask = self.ready & self.in_scope & (_padded(ground.taints, size) == Taint.NONE)
        live: Mask = (roster.rows["desired"] == RUN) & ~roster.client_terminal()
        self.live = live


_Number = TypeVar("_Number", np.bool_, np.uint8)


def _padded(values: NDArray[_Number], size: int) -> NDArray[_Number]:
    """The values of the first `size` slots; slots that nobody told of are zero."""
    padded = np.zeros(size, dtype=values.dtype)
    padded[: len(values)] = values[:size]
    return padded


class _GroupWork:
    """One group on its way through the steps."""

    def __init__(self, scene: _SystemScene, group: TaskGroup, where: Where) -> None:
        self.scene = scene
        self.ground = scene.ground
        self.rows = scene.ground.roster.rows
        self.group = group
        self.where = where
        self.wanted = GroupWanted(group.name, group)
        self.tally = self.wanted.tally
        self.standing = scene.draft.standing
        self.covered: Mask = np.zeros(len(scene.ready) * group.count, dtype=np.bool_)
        """Which places (node by node, `count` each) are taken care of."""
        known = self.standing.state(group.name)
        self.is_known = known is not None
        self.state: DeploymentState = known if known is not None else first_state(group.update)
        size = len(scene.ready)
        self.reach: Mask = _padded(scene.feasible(group), size) if scene.feasible else np.ones(size, dtype=np.bool_)

    def run(self) -> bool:
        changed = self._go_through_live()
        updates = self._split(changed)
        if self.standing.is_waiting:
            self.tally.ignore += len(updates.in_place)
        else:
            self.wanted.in_place = updates.in_place
            self.tally.in_place_update += len(updates.in_place)
        self.tally.ignore += len(updates.ignored)
        left = self._place_missing()
        self._update(updates)
        self._deploy(updates)
        is_done = not (updates.in_place or updates.destructive or left or self.wanted.disconnecting)
        state = self.standing.state(self.group.name)
        return is_done and (state is None or is_healthy_enough(state))

    def _split(self, changed: list[Held]) -> Updates:
        """Sort by what the change means; where nothing can come after an allocation, its end is all there is."""
        updates = self.scene.comparer.split(changed, self.group, self.ground.can_stay)
        for held in updates.destructive:
            if not self.reach[held.node]:
                self._settle(held, Fate.STOP)
        stay = [held for held in updates.destructive if self.reach[held.node]]
        return updates._replace(destructive=stay)

    def _go_through_live(self) -> list[Held]:
        """Settle every live allocation; gives those that the job's present version means something for."""
        scene, rows = self.scene, self.rows
        live = self.where[scene.live[self.where]]
        nodes, places = rows["node"][live], rows["name_index"][live]
        fine = np.isin(rows["client_status"][live], (PENDING, RUNNING)) & (rows["desired_crc"][live] == 0)
        fine &= (rows["flags"][live] & ~np.uint32(CANARY)) == 0
        fine &= (scene.taint[live] == Taint.NONE) & scene.ready[nodes] & scene.in_scope[nodes]
        fine &= (places < self.group.count) & scene.current[live]
        self._cover(live[fine])
        self.tally.ignore += int(fine.sum())
        changed: list[Held] = []
        cut_off = CutOff.of(self.group)
        disconnecting: list[Held] = []
        odd = self.ground.roster.held(live[~fine])
        for held in odd:
            fate = self._fate(held, cut_off)
            if fate is Fate.UPDATE:
                changed.append(held)
            elif fate is Fate.DISCONNECT:
                disconnecting.append(held)
            else:
                self._settle(held, fate)
            if fate not in (Fate.MOVE, Fate.LOST, Fate.STOP) or scene.is_sysbatch:
                self._cover_one(held)
        self._disconnect(disconnecting, cut_off)
        back = set(self.wanted.reconnecting)
        self.scene.dropped += no_longer_awaited(back, odd, self.ground.evaluation.id) if back else []
        return changed

    def _fate(self, held: Held, cut_off: CutOff) -> Fate:
        scene = self.scene
        return fate_of(
            held,
            count=self.group.count,
            cut_off=cut_off,
            taint=Taint(int(scene.taint[held.at])),
            is_ready=bool(scene.ready[held.node]),
            in_scope=bool(scene.in_scope[held.node]),
            is_changed=not scene.current[held.at],
            is_sysbatch=scene.is_sysbatch,
            now_ns=self.ground.now_ns,
        )

    def _settle(self, held: Held, fate: Fate) -> None:
        if fate is Fate.IGNORE:
            self.tally.ignore += 1
        elif fate is Fate.RECONNECT:
            self.wanted.reconnecting.append(held)
            self.tally.reconnect += 1
        else:
            words = {Fate.MOVE: NODE_TAINTED, Fate.LOST: LOST}.get(fate, NOT_NEEDED)
            status = ClientStatus.LOST if fate is Fate.LOST else None
            self.wanted.stops.append(Stop(held, words, status))
            self.tally.stop += 1

    def _cover(self, at: Where) -> None:
        keys = self.rows["node"][at].astype(np.int64) * self.group.count + self.rows["name_index"][at]
        self.covered[keys] = True

    def _cover_one(self, held: Held) -> None:
        if held.name_index < self.group.count:
            self.covered[held.node * self.group.count + held.name_index] = True

    def _disconnect(self, helds: list[Held], cut_off: CutOff) -> None:
        ids: dict[Held, str] = {}
        if helds and cut_off.lost_after_ns:
            result = follow_ups(
                [(self.ground.now_ns + cut_off.lost_after_ns, held) for held in helds],
                job=self.scene.job,
                evaluation=self.ground.evaluation,
                now_ns=self.ground.now_ns,
                new_id=self.ground.new_id,
                first=Trigger.MAX_DISCONNECT_TIMEOUT,
                later=Trigger.MAX_DISCONNECT_TIMEOUT,
                description=DELAYED_TIMEOUT,
            )
            self.wanted.follow_ups, ids = result.evaluations, result.ids
        self.wanted.disconnecting = [Disconnect(held, ids.get(held, "")) for held in helds]
        self.tally.disconnect += len(helds)

    def _place_missing(self) -> int:
        """Fill places on nodes that qualify; gives how many of those are on nodes that can run the group."""
        if self.standing.is_waiting:
            return 0
        current = self.standing.current
        count = self.group.count
        missing = np.repeat(self.scene.candidates, count) & ~self.covered
        over = self._over()
        if self.scene.is_sysbatch:
            missing[[key for key, at in over.items() if self.scene.current[at]]] = False
        again = sorted(key for key in over if missing[key])
        for held, key in zip(self._held([over[key] for key in again]), again, strict=True):
            is_canary = held.is_canary and current is not None and held.deployment_id == current.id
            self.wanted.special.append(Single(key % count, Reason.AGAIN, held, is_canary=is_canary, node=key // count))
        missing[again] = False
        keys = np.flatnonzero(missing)
        if len(keys):
            self.wanted.fresh = (keys % count).astype(np.int32)
            self.wanted.fresh_nodes = (keys // count).astype(np.int32)
        self.tally.place += len(keys) + len(again)
        nodes = [*self.wanted.fresh_nodes.tolist()] if self.wanted.fresh_nodes is not None else []
        nodes += [single.node for single in self.wanted.special]
        return int(self.reach[nodes].sum()) if nodes else 0

    def _over(self) -> dict[int, int]:
        """The latest allocation of each place that has come to an end, by its position in the roster."""
        over = self.where[~self.scene.live[self.where]]
        over = over[self.rows["name_index"][over] < self.group.count]
        over = over[np.argsort(self.rows["create_index"][over], kind="stable")]
        keys = self.rows["node"][over].astype(np.int64) * self.group.count + self.rows["name_index"][over]
        return dict(zip(keys.tolist(), over.tolist(), strict=True))

    def _held(self, at: list[int]) -> list[Held]:
        return self.ground.roster.held(np.array(at, dtype=np.int64))

    def _update(self, updates: Updates) -> None:
        """Replace some of the outdated: canaries first, then as many as may be touched at a time."""
        destructive = sorted(updates.destructive, key=lambda held: (held.node, held.name_index))
        is_canarying = self._begin_canaries(len(destructive))
        if self.standing.is_paused or self.standing.is_failed:
            chosen = []
        elif is_canarying:
            chosen = destructive[: max(0, self.state.desired_canaries - self._canary_count())]
            self.tally.canary += len(chosen)
        else:
            chosen = destructive[: self._may_touch(len(destructive))]
            self.tally.destructive_update += len(chosen)
        self.wanted.destructive = [
            Single(
                held.name_index, Reason.DESTRUCTIVE, held, Stop(held, UPDATING), is_canary=is_canarying, node=held.node
            )
            for held in chosen
        ]
        self.tally.ignore += len(destructive) - len(chosen)

    def _begin_canaries(self, outdated: int) -> bool:
        """Whether canaries come before all others; how many is settled once, with the deployment."""
        update = self.group.update
        if self.scene.is_sysbatch or update is None or not is_rolling(update) or self.state.promoted:
            return False
        if not self.is_known and update.canary and outdated:
            share = math.ceil(update.canary * outdated / 100)
            self.state = replace(self.state, desired_canaries=min(share, update.max_parallel))
        return self.state.desired_canaries > 0

    def _part(self) -> Where:
        """Live allocations of the current deployment."""
        current = self.standing.current
        if current is None:
            return NOWHERE
        roster = self.ground.roster
        ours = np.array([origin.deployment_id == current.id for origin in roster.origins], dtype=np.bool_)
        live = self.where[self.scene.live[self.where]]
        part: Where = live[ours[roster.which[live]]] if len(live) else live
        return part

    def _canary_count(self) -> int:
        flagged = (self.rows["flags"][self._part()] & np.uint32(CANARY)) != 0
        return int(flagged.sum()) + sum(single.is_canary for single in self.wanted.special)

    def _may_touch(self, outdated: int) -> int:
        update = self.group.update
        limit = (update.max_parallel if update is not None else 0) or self.scene.job.update.max_parallel
        if not limit or self.scene.is_sysbatch:
            return outdated
        undecided = int((self.rows["health"][self._part()] != 1).sum())
        return max(0, limit - undecided)

    def _deploy(self, updates: Updates) -> None:
        if self.is_known or self.scene.is_sysbatch or self.standing.is_failed or not is_rolling(self.group.update):
            return
        total = int((self.scene.candidates & self.reach).sum()) * self.group.count
        has_updates = bool(updates.destructive or updates.in_place)
        if total and (has_updates or not bool(self.scene.current[self.where].any())):
            self.scene.draft.add(self.group.name, replace(self.state, desired_total=total))
