"""Placing what has a story, many at a time: replacements of lost, failed, moved and outdated allocations, canaries.

Each goes where it would go if they were placed one after the other, with what it replaces linked to it; but alike ones
are handed to the kernel together, five thousand as easily as one. Three things keep them apart:

- What a placement stops is free for all of its batch. If not all of a batch find a place, nothing of it is kept, and as
  many are tried as did; so nobody ends up in a place whose holder stays after all.
- One that wants back to its node (sticky disks, jobs that run on every node) is tried there first, alone on its node.
- What is left out of a plan that is full must look untouched to the next attempt: a lost allocation is then not marked
  lost yet, or its replacement would not know what it replaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from fedsched.model.alloc_metric import AllocMetric
from fedsched.scheduler.ask import Offer
from fedsched.scheduler.choose import NO_SLOTS, Chooser, Chosen, Slots
from fedsched.scheduler.field import GroupField
from fedsched.scheduler.fresh_ids import fresh_ids
from fedsched.scheduler.plan_build import NO_ID, Older
from fedsched.scheduler.reconcile.held import CANARY, Held
from fedsched.scheduler.reconcile.wanted import GroupWanted, Reason, Single
from fedsched.scheduler.stored import own_fields, shared_fields

if TYPE_CHECKING:
    from fedsched.scheduler.run import Run


class Replacements:
    """The placements of one attempt that have a story."""

    def __init__(self, run: Run, chooser: Chooser) -> None:
        self._run = run
        self._chooser = chooser

    def place(self, wanted: GroupWanted, singles: Sequence[Single]) -> Iterator[None]:
        """Place these in their order, as far as there is room in the plan and on the nodes."""
        for _, alike in groupby(singles, key=lambda one: (one.job_version, one.deployment_id, one.is_canary)):
            part = list(alike)
            group, older = self._run.field_for(wanted, part[0])
            yield from _Batch(self._run, self._chooser, wanted, group, older).place(part)


class _Batch:
    """Alike ones of one group."""

    def __init__(self, run: Run, chooser: Chooser, wanted: GroupWanted, group: GroupField, older: Older) -> None:
        self._run = run
        self._chooser = chooser
        self._wanted = wanted
        self._group = group
        self._older = older

    def place(self, singles: list[Single]) -> Iterator[None]:
        run, group = self._run, self._group
        while singles:
            if run.has_failed(self._wanted):
                self._fail(singles, run.failed[self._wanted.name])
                return
            room = min(run.room_for(group), run.piece_of(group, is_tied=True))
            if not room:
                self._leave_for_later(singles)
                return
            now, singles = singles[:room], singles[room:]
            run.note_looks(group, len(now))
            rest = self._place_at_home(now)
            if rest:
                self._place_anywhere(rest)
            yield

    def _leave_for_later(self, singles: list[Single]) -> None:
        self._run.has_more = True
        untouched = {one.previous.identity for one in singles if one.previous is not None and one.stop is None}
        self._run.builder.take_back_stops(untouched)

    # ------------------------------------------------------------------------ anywhere

    def _place_anywhere(self, singles: list[Single]) -> None:
        size = len(singles)
        while singles:
            part, mark = singles[:size], self._chooser.mark()
            chosen = self._try(part)
            placed = len(chosen.node_slots)
            if not chosen.unplaced or not _stops(part):
                self._write(part[:placed], chosen)
                singles = singles[placed:]
                if chosen.unplaced:
                    singles = self._evict_for(singles, chosen.metric)
                    self._fail(singles, chosen.metric)
                    return
                size = min(len(singles), 2 * size)
                continue
            self._chooser.back_to(mark)
            self._chooser.take_back(_stops(part))
            if size == 1:
                left = self._evict_for(singles[:1], chosen.metric)
                if left:
                    self._fail(singles, chosen.metric)
                    return
                singles = singles[1:]
            size = max(1, placed)

    def _try(self, singles: list[Single]) -> Chosen:
        """Choose places with everything free that these stop."""
        self._chooser.free(_stops(singles))
        avoid = [self._avoided(one) for one in singles]
        some = avoid if any(len(one) for one in avoid) else ()
        return self._chooser.choose(self._group, [one.name_index for one in singles], avoid=some)

    def _avoided(self, single: Single) -> Slots:
        """Where it failed just now, and wherever its forerunners failed."""
        nodes = single.penalty_nodes() if single.node < 0 else set()
        found = {slot for node_id in nodes if (slot := self._run.fleet.slot_of(node_id)) is not None}
        return np.array(sorted(found), dtype=np.int64) if found else NO_SLOTS

    # ------------------------------------------------------------------------- at home

    def _place_at_home(self, singles: list[Single]) -> list[Single]:
        """Those that want a node of their own get it if it has room; the others, which may go anywhere, come back."""
        homes = [self._run.home_of(self._group, one) for one in singles]
        if max(homes) < 0:
            return singles
        turns: list[dict[int, Single]] = []  # several on one node have to wait for one another
        seen: Counter[int] = Counter()
        for home, single in zip(homes, singles, strict=True):
            if home >= 0:
                number = len(turns) if self._goes_alone else seen[home]
                if number == len(turns):
                    turns.append({})
                turns[number][home] = single
                seen[home] += 1
        away = {id(single) for turn in turns for single in self._take_turn(turn)}
        return [one for home, one in zip(homes, singles, strict=True) if home < 0 or id(one) in away]

    @property
    def _goes_alone(self) -> bool:
        """Whether one placement rules out nodes for the next, which then has to wait for it."""
        needs = self._group.needs
        return self._run.is_ranked and bool(needs.distinct_hosts is not None or needs.property_limits)

    def _take_turn(self, turn: dict[int, Single]) -> list[Single]:
        """Try each of these on its node; those that found no room there and may go elsewhere."""
        self._chooser.free(_stops(turn.values()))
        nodes = np.array(list(turn), dtype=np.int64)
        names = [single.name_index for single in turn.values()]
        if self._goes_alone:
            chosen = self._chooser.choose(self._group, names, only=nodes)
        else:
            chosen = self._chooser.choose_each(self._group, names, nodes, is_ranked=self._run.is_ranked)
        placed = [turn.pop(slot) for slot in chosen.node_slots.tolist()]
        if placed:
            self._write(placed, chosen)
        self._chooser.take_back(_stops(turn.values()))
        if self._run.is_ranked:
            return list(turn.values())
        for home, single in turn.items():
            is_made = self._run.may_preempt and self._group.mask[home] and self._evict_for_one(single, chosen.metric)
            if not is_made:
                self._run.not_placed(self._wanted, self._group, home, chosen.metric)
        return []

    # ------------------------------------------------------------------ writing down

    def _write(self, singles: list[Single], chosen: Chosen) -> None:
        """The first of the choice's places for these."""
        if not singles:
            return
        run, ask = self._run, self._group.ask
        run.left -= len(singles)
        offers: list[Offer | None] = [*chosen.offers] if chosen.offers is not None else [None] * len(singles)
        own = {
            at: own_fields(ask, offer, tracker=single.tracker)
            for at, (single, offer) in enumerate(zip(singles, offers, strict=True))
            if offer is not None or single.tracker is not None
        }
        run.write_stops([single.stop for single in singles if single.stop is not None])
        run.builder.place_many(
            self._wanted.name,
            fresh_ids(run.new_id(), len(singles)),
            chosen.node_slots,
            np.array([single.name_index for single in singles], dtype=np.int64),
            shared_fields(ask, chosen.metric),
            scores=chosen.scores,
            previous=_links(singles),
            own=own,
            flags=CANARY if singles[0].is_canary else 0,
            older=self._older,
        )

    def _evict_for(self, singles: list[Single], metric: AllocMetric) -> list[Single]:
        """Place these by evicting others, one after the other, as long as that can be done; the rest comes back."""
        if not self._run.may_preempt:
            return singles
        for number, single in enumerate(singles):
            if not self._evict_for_one(single, metric):
                return singles[number:]
        return []

    def _evict_for_one(self, single: Single, metric: AllocMetric) -> bool:
        self._chooser.free(_stops([single]))
        made = self._run.evict_one(
            self._wanted,
            self._group,
            single.name_index,
            metric,
            single.node,
            previous=_links([single]),
            tracker=single.tracker,
            flags=CANARY if single.is_canary else 0,
            older=self._older,
            avoid=self._avoided(single),
        )
        if not made:
            self._chooser.take_back(_stops([single]))
        elif single.stop is not None:
            self._run.write_stops([single.stop])
        return made

    def _fail(self, singles: list[Single], metric: AllocMetric) -> None:
        """There is no node for these; what they would have replaced goes on."""
        if not singles:
            return
        self._run.fail(self._wanted, self._group, metric, len(singles))
        for single in singles:
            if single.reason is Reason.RESCHEDULE:
                self._run.mark_unplaced(single)


def _stops(singles: Iterable[Single]) -> list[Held]:
    """What these stop."""
    return [single.stop.held for single in singles if single.stop is not None]


def _links(singles: Sequence[Single]) -> bytes:
    """The ids of those that they replace; nothing if none replaces anybody."""
    if all(single.previous is None for single in singles):
        return b""
    return b"".join(single.previous.identity if single.previous is not None else NO_ID for single in singles)
