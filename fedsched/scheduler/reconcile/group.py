"""One group of a service or batch job: from what there is to what is wanted.

The steps are those of the group algorithm in their order; `_Work` carries the sets from one to the next. A group in
which nothing is out of the ordinary is recognised from its columns alone, without an object per allocation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from fedsched.model.group import TaskGroup
from fedsched.scheduler.pieces import Pieces
from fedsched.scheduler.reconcile.deployments import (
    OlderVersion,
    is_rolling,
    version_before_canaries,
)
from fedsched.scheduler.reconcile.held import (
    UNKNOWN,
    Held,
    Taint,
    Where,
    by_name,
)
from fedsched.scheduler.reconcile.names import Places, canary_names, fresh_names
from fedsched.scheduler.reconcile.reschedule import (
    last_event_ns,
    tracker_after,
)
from fedsched.scheduler.reconcile.scene import Scene, has_canaries, is_state_done, still_of_interest
from fedsched.scheduler.reconcile.sorting import Sorting, has_copy
from fedsched.scheduler.reconcile.updates import Updates
from fedsched.scheduler.reconcile.wanted import (
    MIGRATING,
    NOT_NEEDED,
    RESCHEDULED,
    UPDATING,
    Followed,
    GroupWanted,
    Reason,
    Single,
    Stop,
)


class GroupOutcome(NamedTuple):
    wanted: GroupWanted
    is_done: bool
    """Nothing is left to do, so a deployment may end."""


def reconcile_group(scene: Scene, group: TaskGroup, where: Where) -> Pieces[GroupOutcome]:
    """Compare one group with its allocations, which stand at `where` in the roster."""
    wanted = GroupWanted(group.name, group)
    kept = still_of_interest(scene, where, wanted)
    if len(kept) == group.count and not has_canaries(scene, group.name) and bool(scene.calm[kept].all()):
        wanted.tally.ignore += len(kept)
        return GroupOutcome(wanted, is_state_done(scene, group.name))
    work = _Work(scene, group, where, kept, wanted)
    yield
    return GroupOutcome(wanted, (yield from work.run()))


class _Work(Sorting):
    """The later steps: updates, canaries, placements, moves, deployment."""

    def run(self) -> Pieces[bool]:
        yield from self.sort()
        updates = self._split_updates()
        yield
        if self.is_canarying:
            canaries = set(self.canaries)
            self.untainted = [held for held in self.untainted if held not in canaries]
        needs_canaries = self._place_canaries(updates)
        may_touch = self._may_touch(updates)
        yield
        singles, fresh = self._placements()
        placed = len(singles) + len(fresh)
        if not self.is_known:
            self._expect(placed)
        may_touch = self._place(singles, fresh, may_touch)
        yield
        self._update_destructively(updates, may_touch)
        self._migrate()
        self._deploy(updates)
        left = (updates.in_place, updates.destructive, self.migrating, self.due_now, self.due_later)
        return not (any(left) or placed or needs_canaries) and is_state_done(self.scene, self.group.name)

    def _split_updates(self) -> Updates:
        scene = self.scene
        # One that has a copy is settled when its client is back; one that was cut off just now is looked at again then.
        asked = [held for held in self.untainted if held not in self.cut and not has_copy(held)]
        updates = scene.comparer.split(by_name(asked), self.group, scene.can_stay)
        coming = {held for held in updates.in_place if scene.taint[held.at] == Taint.COMING}
        if coming:  # their node is not ready for anything yet; its readiness is looked at anew
            updates.ignored.extend(coming)
            updates = updates._replace(in_place=[held for held in updates.in_place if held not in coming])
        self.tally.ignore += len(updates.ignored) + len(self.untainted) - len(asked)
        if not self.is_known:
            self._expect(len(updates.destructive) + len(updates.in_place))
        if self.standing.is_waiting:
            self.tally.ignore += len(updates.in_place)
            return updates
        self.tally.in_place_update += len(updates.in_place)
        self.wanted.in_place = updates.in_place
        return updates

    def _expect(self, more: int) -> None:
        self.state = replace(self.state, desired_total=self.state.desired_total + more)

    def _place_canaries(self, updates: Updates) -> bool:
        update = self.group.update
        if update is None or not is_rolling(update) or not updates.destructive or self.state.promoted:
            return False
        missing = update.canary - len(self.canaries)
        if missing <= 0:
            return False
        self.state = replace(self.state, desired_canaries=update.canary)
        if not self.standing.is_paused and not self.standing.is_failed:
            names = canary_names(self.taken, self.canaries, updates.destructive, self.group.count, missing)
            self.wanted.special += [Single(index, Reason.CANARY, is_canary=True) for index in names]
            self.tally.canary += len(names)
        return True

    def _may_touch(self, updates: Updates) -> int:
        """How many allocations may be brought down or up in this pass."""
        update, current = self.group.update, self.standing.current
        if update is None or not is_rolling(update) or not (updates.destructive or self.migrating):
            return self.group.count
        if current is None:
            return update.max_parallel
        if not self.is_ready:
            return 0
        part = [held for held in self.untainted if held.deployment_id == current.id]
        if any(held.is_unhealthy for held in part):
            return 0
        return max(0, update.max_parallel - sum(not held.is_healthy for held in part))

    def _placements(self) -> tuple[list[Single], np.ndarray[tuple[int], np.dtype[np.int32]]]:
        """Everything missing: replacements under the same name first, fresh names for the rest."""
        count = self.group.count
        stay = [held for held in self.untainted if not has_copy(held)]
        existing = len(stay) + len(self.migrating)
        places = Places({held.name_index for held in (*stay, *self.migrating)}, self.taken, count)
        singles: list[Single] = []
        beside = set(self.canaries) if self.is_canarying else set()
        for held in by_name(self.due_now):
            if held in beside:  # canaries stand beside the count
                singles.append(self._replacement(held, held.name_index))
            elif existing < count:
                existing += 1
                singles.append(self._replacement(held, places.take(held.name_index, self._alike(held))))
            else:  # its place is not wanted any more
                self._stop_unneeded(held)
        if self.is_held_up:
            return [], fresh_names((), 0, 0)
        for held in by_name(self.lost):
            if existing < count and held.name_index not in places.used:
                existing += 1
                place = places.take(held.name_index, self._alike(held))
                singles.append(replace(self._single(held, Reason.LOST), name_index=place))
        return singles, fresh_names(places.used, count, count - existing)

    def _stop_unneeded(self, held: Held) -> None:
        """Let it go without a replacement, unless it is cut off: that is settled when its client is back."""
        if held.client != UNKNOWN and held not in self.cut:
            self._stop(held, NOT_NEEDED)
            self.tally.stop += 1

    def _older(self, held: Held) -> OlderVersion:
        """The version to replace it from."""
        if self.standing.is_waiting:  # what runs goes on as it is
            return OlderVersion(held.origin.job_version, "")
        if not self.is_canarying or held.is_canary:
            return OlderVersion(None)
        return version_before_canaries(self.scene.job, held, self.scene.deployments, self.scene.job_at)

    def _alike(self, held: Held) -> set[int]:
        """Places of canaries that its replacement would be a double of: those of its own version.

        While canaries wait for their promotion, others are replaced from an older version, and may share their places.
        If no older version is known it is the current one, and the names would meet when the canaries are promoted.
        """
        if not self.is_canarying or held.is_canary or self._older(held).job_version is not None:
            return set()
        return {canary.name_index for canary in self.canaries}

    def _single(self, held: Held, reason: Reason, stop: Stop | None = None) -> Single:
        version, deployment_id = self._older(held)
        return Single(held.name_index, reason, held, stop, held.is_canary, version, deployment_id)

    def _replacement(self, held: Held, name_index: int) -> Single:
        """The replacement of a failed allocation, or the second copy of one that is cut off (which is not stopped)."""
        is_cut_off = held.client == UNKNOWN or held in self.cut
        since_ns = self.scene.now_ns if is_cut_off else last_event_ns(held)
        tracker = tracker_after(held, self.group.reschedule_policy, since_ns, self.scene.now_ns)
        stop = None if is_cut_off or held.is_server_terminal else Stop(held, RESCHEDULED)
        reason = Reason.DISCONNECT if is_cut_off else Reason.RESCHEDULE
        return replace(self._single(held, reason, stop), name_index=name_index, tracker=tracker)

    def _place(self, singles: list[Single], fresh: np.ndarray[tuple[int], np.dtype[np.int32]], may_touch: int) -> int:
        """Place all if the deployment lets us, else only what replaces something; gives what may still be touched."""
        placed = len(singles) + len(fresh)
        if not self.is_ready:
            singles, fresh = [single for single in singles if self._is_urgent(single)], fresh[:0]
        self.wanted.special += singles
        self.wanted.fresh = fresh
        rescheduled = [single for single in singles if single.reason is not Reason.LOST]
        self.tally.place += len(singles) + len(fresh)
        self.tally.stop += sum(single.stop is not None for single in rescheduled)
        self.tally.reschedule_now += len(rescheduled)
        return may_touch - min(placed, may_touch)

    def _is_urgent(self, single: Single) -> bool:
        current, previous = self.standing.current, single.previous
        if single.reason is Reason.LOST or current is None or previous is None:
            return True
        return not (self.standing.is_failed and previous.deployment_id == current.id)

    def _update_destructively(self, updates: Updates, may_touch: int) -> None:
        chosen = updates.destructive[:may_touch] if self.is_ready else []
        going = {*chosen, *(held for held in self.untainted if has_copy(held))}
        used = {held.name_index for held in (*self.untainted, *self.migrating) if held not in going}
        used.update(single.name_index for single in self.wanted.special)
        used.update(self.wanted.fresh.tolist())
        places = Places(used, {held.name_index for held in chosen}, self.group.count)
        self.wanted.destructive = []
        for held in chosen:
            if not places.has_free:  # it is cut off, and its place is not wanted any more
                self._stop(held, NOT_NEEDED)
                self.tally.stop += 1
                continue
            single = self._single(held, Reason.DESTRUCTIVE, Stop(held, UPDATING))
            self.wanted.destructive.append(replace(single, name_index=places.take(held.name_index)))
        self.tally.destructive_update += len(self.wanted.destructive)
        self.tally.ignore += len(updates.destructive) - len(chosen)

    def _migrate(self) -> None:
        if not self.migrating:
            return
        moving = by_name(self.migrating)
        places = Places(self._names_in_use(), {held.name_index for held in moving}, self.group.count)
        later = {entry.held: entry.followup_id for entry in self.wanted.followed}
        for held in moving:
            if held in self.unplaced:  # it goes now, and whoever comes back to it is remembered with that
                self.wanted.stops.append(Stop(held, MIGRATING, followup_id=later.pop(held, "")))
                self.tally.stop += 1
                continue
            # Somebody wants it gone from there, whether or not there is room elsewhere.
            self.wanted.stops.append(Stop(held, MIGRATING))
            single = self._single(held, Reason.MIGRATE)
            place = places.take(held.name_index, self._alike(held))
            self.wanted.special.append(replace(single, name_index=place))
            self.tally.migrate += 1
        self.wanted.followed = [Followed(held, identity) for held, identity in later.items()]

    def _names_in_use(self) -> set[int]:
        """Places of what stays and of what this pass places."""
        updated = {single.previous for single in self.wanted.destructive}
        stay = {held.name_index for held in self.untainted if held not in updated and not has_copy(held)}
        placed = {single.name_index for single in (*self.wanted.special, *self.wanted.destructive)}
        return stay | placed | set(self.wanted.fresh.tolist())

    def _deploy(self, updates: Updates) -> None:
        """Let a deployment watch over the group if this is a change, or the first time that the version runs."""
        if (
            self.is_known
            or not is_rolling(self.group.update)
            or not self.state.desired_total
            or self.standing.is_failed
        ):
            return
        has_updates = bool(updates.destructive or updates.in_place)
        if has_updates or not bool(self.scene.current[self.where].any()):
            self.scene.draft.add(self.group.name, self.state)
