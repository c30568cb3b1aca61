"""Sorting one group's allocations: who stays, who goes, who moves, who is replaced now or later.

These are the first steps of the group algorithm, up to and including the surplus; what the job's changes and its
deployment make of the rest is in `group`.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedsched.model.alloc import ClientStatus
from fedsched.model.deployment import DeploymentState
from fedsched.model.evaluation import Trigger
from fedsched.model.group import TaskGroup
from fedsched.scheduler.reconcile.classify import Kind, classify
from fedsched.scheduler.reconcile.deployments import (
    first_state,
)
from fedsched.scheduler.reconcile.disconnect import CutOff, reunite
from fedsched.scheduler.reconcile.held import (
    COMPLETE,
    LOST,
    UNKNOWN,
    Held,
    Where,
    by_name,
)
from fedsched.scheduler.reconcile.reschedule import (
    Verdict,
    decide,
    decide_cut_off,
    follow_ups,
    no_longer_awaited,
)
from fedsched.scheduler.reconcile.scene import Scene, holding_up
from fedsched.scheduler.reconcile.surplus import surplus
from fedsched.scheduler.reconcile.wanted import (
    DELAYED_RESCHEDULE,
    DELAYED_TIMEOUT,
    MIGRATING,
    NOT_NEEDED,
    Disconnect,
    Followed,
    GroupWanted,
    Stop,
)
from fedsched.scheduler.reconcile.wanted import LOST as LOST_WORDS


class Sorting:
    """The sets of one group's allocations, from the raw list to those that stay, go, move or wait."""

    def __init__(self, scene: Scene, group: TaskGroup, where: Where, kept: Where, wanted: GroupWanted) -> None:
        self.scene = scene
        self.group = group
        self.wanted = wanted
        self.tally = wanted.tally
        self.standing = scene.draft.standing
        self.cut_off = CutOff.of(group)
        self.where = where
        self.everyone = scene.roster.held(kept)
        self.canaries: list[Held] = []
        self.untainted: list[Held] = []
        self.migrating: list[Held] = []
        self.lost: list[Held] = []
        self.disconnecting: list[Held] = []
        self.reconnecting: list[Held] = []
        self.cut: set[Held] = set()
        """Those that were cut off just now."""
        self.due_now: list[Held] = []
        self.due_later: list[tuple[int, Held]] = []
        self.unplaced: set[Held] = set()
        """Migrating ones whose replacement is left to the reschedule decision."""
        self.taken: set[int] = set()
        """Places that somebody holds, those that are about to be replaced included."""
        self.holding_up = holding_up(scene, self.cut_off, where)
        self.is_held_up = bool(self.holding_up)
        known = self.standing.state(group.name)
        self.is_known = known is not None
        self.state: DeploymentState = known if known is not None else first_state(group.update)

    @property
    def is_canarying(self) -> bool:
        return self.state.desired_canaries > 0 and not self.state.promoted

    @property
    def is_ready(self) -> bool:
        return not (self.standing.is_paused or self.standing.is_failed or self.is_canarying)

    def sort(self) -> Iterator[None]:
        """Go through the steps that do not depend on the job's changes; of thousands, each takes some milliseconds."""
        self._stop_old_canaries()
        self._classify()
        yield
        self._decide_reschedules()
        yield
        self._reunite()
        self._disconnect()
        self._hold_up_lost()
        self._remember_later()
        yield
        self.taken = {held.name_index for held in (*self.untainted, *self.migrating, *self.due_now, *self.lost)}
        self._stop_surplus()

    def _stop(self, held: Held, words: str, status: ClientStatus | None = None, followup_id: str = "") -> None:
        """Stop an allocation, unless servers did long ago and there is nothing new to say about it."""
        if not held.is_server_terminal or status is not None:
            self.wanted.stops.append(Stop(held, words, status, followup_id))

    def _stop_old_canaries(self) -> None:
        """Unpromoted canaries of a superseded or failed deployment go; the current ones' troubles are settled here."""
        unwanted: set[str] = set()
        for deployment in (self.standing.old, self.standing.current if self.standing.is_failed else None):
            state = deployment.task_groups.get(self.group.name) if deployment is not None else None
            if state is not None and not state.promoted:
                unwanted.update(state.placed_canaries)
        ours = set(self.state.placed_canaries) - unwanted
        if not unwanted and not ours:
            return
        rest: list[Held] = []
        for held in self.everyone:
            identity = held.id
            if identity in unwanted:
                self._stop(held, NOT_NEEDED)
                self.tally.stop += 1
            elif identity not in ours or self._keep_canary(held):
                rest.append(held)
        self.everyone = rest

    def _keep_canary(self, held: Held) -> bool:
        kind = classify(held, self.cut_off, int(self.scene.taint[held.at]), self.scene.now_ns)
        if kind is Kind.MIGRATE:
            self._stop(held, MIGRATING)
            return False
        if kind in (Kind.LOST, Kind.EXPIRING):
            self._stop(held, LOST_WORDS, ClientStatus.LOST)
            return False
        if held.client not in (COMPLETE, LOST):
            self.canaries.append(held)
        return True

    def _classify(self) -> None:
        sets = {
            Kind.UNTAINTED: self.untainted,
            Kind.MIGRATE: self.migrating,
            Kind.LOST: self.lost,
            Kind.EXPIRING: self.lost,
            Kind.DISCONNECTING: self.disconnecting,
            Kind.RECONNECTING: self.reconnecting,
        }
        taint, cut_off, now_ns = self.scene.taint, self.cut_off, self.scene.now_ns
        calm, stay = self.scene.calm.tolist(), self.untainted.append  # most are: no more than a look at each
        for held in self.everyone:
            if calm[held.at]:
                stay(held)
                continue
            kind = classify(held, cut_off, int(taint[held.at]), now_ns)
            if kind is Kind.RECONNECTING and held.client == UNKNOWN:
                # Its node is back, but nothing was said about it yet: there is nothing to choose between.
                kind = Kind.UNTAINTED
            if kind is Kind.IGNORE:
                self.tally.ignore += 1
            else:
                sets[kind].append(held)

    def _decide_reschedules(self) -> None:
        calm = self.scene.calm.tolist()
        self.untainted = [held for held in self.untainted if calm[held.at] or self._stays(held)]
        self.migrating = [held for held in self.migrating if self._stays(held, moves=True)]

    def _stays(self, held: Held, *, moves: bool = False) -> bool:
        """Whether the allocation keeps its place for now; otherwise it was dropped, or is replaced now."""
        scene = self.scene
        verdict, due_ns = decide(
            held,
            self.group.reschedule_policy,
            is_batch=scene.is_batch,
            evaluation_id=scene.evaluation.id,
            deployment=self.standing.current,
            now_ns=scene.now_ns,
        )
        if verdict is Verdict.NOW:
            self.due_now.append(held)
        elif verdict is Verdict.LATER:
            self.due_later.append((due_ns, held))
        if moves and scene.is_batch and (held.should_reschedule or held.needs_no_placement):
            self.unplaced.add(held)
        return verdict in (Verdict.KEEP, Verdict.LATER)

    def _reunite(self) -> None:
        if not self.reconnecting:
            return
        everyone = {held.id: held for held in self.everyone}
        result = reunite(self.reconnecting, everyone, self.group, self.cut_off, self.scene.version)
        gone = {stop.held for stop in result.stops}
        for stop in result.stops:
            self._stop(stop.held, stop.description)
        self.tally.stop += len(gone)
        self.tally.reconnect += len(result.kept)
        for name in ("untainted", "migrating", "lost", "disconnecting", "due_now"):
            setattr(self, name, [held for held in getattr(self, name) if held not in gone])
        self.due_later = [due for due in self.due_later if due[1] not in gone]
        self.untainted += result.kept
        self.wanted.reconnecting = result.kept
        back = {*result.kept, *gone}
        self.scene.dropped_evaluations += no_longer_awaited(back, self.everyone, self.scene.evaluation.id)

    def _disconnect(self) -> None:
        if not self.disconnecting:
            return
        scene = self.scene
        self.cut = set(self.disconnecting)
        for held in self.disconnecting:
            verdict, due_ns = Verdict.KEEP, 0
            if self.cut_off.may_replace and not held.next_id:
                verdict, due_ns = decide_cut_off(
                    held, self.group.reschedule_policy, deployment=self.standing.current, now_ns=scene.now_ns
                )
            (self.due_now if verdict is Verdict.NOW else self.untainted).append(held)
            if verdict is Verdict.LATER:
                self.due_later.append((due_ns, held))
        timeouts: dict[Held, str] = {}
        if self.cut_off.lost_after_ns:
            until_ns = scene.now_ns + self.cut_off.lost_after_ns
            timeouts = self._follow(
                [(until_ns, held) for held in self.disconnecting],
                first=Trigger.MAX_DISCONNECT_TIMEOUT,
                later=Trigger.MAX_DISCONNECT_TIMEOUT,
                words=DELAYED_TIMEOUT,
            )
        self.wanted.disconnecting = [Disconnect(held, timeouts.get(held, "")) for held in self.disconnecting]
        self.tally.disconnect += len(self.disconnecting)

    def _follow(self, dues: list[tuple[int, Held]], *, first: Trigger, later: Trigger, words: str) -> dict[Held, str]:
        scene = self.scene
        result = follow_ups(
            dues,
            job=scene.job,
            evaluation=scene.evaluation,
            now_ns=scene.now_ns,
            new_id=scene.new_id,
            first=first,
            later=later,
            description=words,
        )
        self.wanted.follow_ups += result.evaluations
        return result.ids

    def _hold_up_lost(self) -> None:
        """Mark lost allocations; if their clients may still run them, nothing of the group is placed for a while."""
        ids: dict[Held, str] = {}
        self._come_back_for_held_up()
        if self.lost and self.cut_off.stop_after_ns is not None:
            until_ns = self.scene.now_ns + self.cut_off.stop_after_ns
            self.is_held_up = True
            ids = self._follow(
                [(until_ns, held) for held in self.lost],
                first=Trigger.ALLOC_RESCHEDULE,
                later=Trigger.ALLOC_FAILURE,
                words=DELAYED_RESCHEDULE,
            )
        for held in self.lost:
            self._stop(held, LOST_WORDS, ClientStatus.LOST, ids.get(held, ""))
        self.tally.stop += len(self.lost)

    def _come_back_for_held_up(self) -> None:
        """See to it that somebody comes back when the group is free again.

        What was stopped before its node was lost has nobody who does, and who comes for another may come too early.
        """
        last = max(self.holding_up, key=lambda held: held.modify_time_ns, default=None)
        if last is None:
            return
        assert self.cut_off.stop_after_ns is not None
        ids = self._follow(
            [(last.modify_time_ns + self.cut_off.stop_after_ns, last)],
            first=Trigger.ALLOC_RESCHEDULE,
            later=Trigger.ALLOC_FAILURE,
            words=DELAYED_RESCHEDULE,
        )
        self.wanted.held_up_until = ids[last]

    def _remember_later(self) -> None:
        if not self.due_later:
            return
        ids = self._follow(
            self.due_later, first=Trigger.ALLOC_RESCHEDULE, later=Trigger.ALLOC_FAILURE, words=DELAYED_RESCHEDULE
        )
        self.wanted.disconnecting = [
            Disconnect(entry.held, ids.get(entry.held, entry.followup_id)) for entry in self.wanted.disconnecting
        ]
        self.wanted.followed = [Followed(held, identity) for held, identity in ids.items() if held not in self.cut]
        self.tally.reschedule_later += len(ids)

    def _stop_surplus(self) -> None:
        canaries = set(self.canaries) if self.is_canarying else set()
        wants_none = self.group.count == 0  # then nobody waits for clients that are cut off either
        stayers = [
            held
            for held in self.untainted
            if held not in canaries and (wants_none or (held not in self.cut and held.client != UNKNOWN))
        ]
        if self.standing.is_waiting:
            return
        chosen = surplus(stayers, self.migrating, self.canaries, self.group.count, is_canarying=self.is_canarying)
        gone = set(chosen)
        for held in by_name(chosen):
            self._stop(held, NOT_NEEDED)
        self.tally.stop += len(chosen)
        if gone:
            self.untainted = [held for held in self.untainted if held not in gone]
            self.migrating = [held for held in self.migrating if held not in gone]
            self.due_later = [due for due in self.due_later if due[1] not in gone]
            self.wanted.followed = [entry for entry in self.wanted.followed if entry.held not in gone]
            self.wanted.reconnecting = [held for held in self.wanted.reconnecting if held not in gone]
            self.wanted.disconnecting = [entry for entry in self.wanted.disconnecting if entry.held not in gone]


def has_copy(held: Held) -> bool:
    """Whether it is cut off and something was placed in its stead, which then counts instead of it."""
    return held.client == UNKNOWN and bool(held.next_id)
