"""Exact greedy placement: every allocation goes to the node that is then the best of all.

Re-scoring all nodes for each of a thousand placements is not needed. A placement changes the score of one node only,
so each node is a list of scores (with none, one, two... new allocations on it), and greedy placement merges those
lists: it always takes the best head. Within a list scores may go up again; whatever follows a head and is better than
it is taken right after it. Therefore an element's place in the merged order is given by the *lowest score up to it* in
its list, then by the tie order of its node, and the whole sequence comes out of a partial sort over columns.

    list of node A   5 7 4      lowest so far   5 5 4
    list of node B   6 3                        6 3        order: B6 A5 A7 A4 B3

Only the best `count` nodes can get anything, and of their later elements only those that beat the `count`-th best so
far. Spread blocks and distinct_property tie nodes to one another: see `kernel_spread`. Placements that each have nodes
of their own to avoid are not alike: see `kernel_avoiding`. `reference` does it slowly.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedsched.scheduler.fits import NO_FIT, Units, fit_scores
from fedsched.scheduler.fleet_columns import Slots
from fedsched.scheduler.kernel_avoiding import place_avoiding
from fedsched.scheduler.kernel_candidates import MANY, Candidates, Places
from fedsched.scheduler.kernel_placed import BEST, Placed
from fedsched.scheduler.kernel_request import PlaceRequest, Verdict
from fedsched.scheduler.kernel_spread import place_grouped
from fedsched.scheduler.score import Ties

SAMPLE: Final = 512
"""Nodes looked at to guess the score that about `count` nodes reach."""
BLOCK: Final = 4096
"""Elements computed in one go, when nodes take many allocations each."""
SPARE: Final = 32
"""How many more nodes than needed are put in order when some may be refused."""
_LAST: Final = np.iinfo(np.int64).max


def place(request: PlaceRequest) -> Placed:
    """Place as many of the request's allocations as there is room for. The fleet is as before afterwards."""
    if request.penalties:
        return place_avoiding(request)
    if request.spreads or request.limits:
        return place_grouped(request)
    if request.check is not None:
        return _place_checked(request)
    slots = greedy(request, request.candidates(), request.count)
    return Placed(request, slots, lambda: _best(request))


def greedy(request: PlaceRequest, mask: NDArray[np.bool_], count: int) -> Slots:
    """The node slots in the order of placement."""
    ties = Ties(request.seed, request.fleet.size)
    fit = fit_scores(request.fleet, request.ask, request.algorithm)
    if count == 1 and _is_plain(request):
        return _single(fit, mask, ties)
    candidates, at, order = _ranked(request, fit, mask, count, ties)
    if count > 1 and not request.distinct_hosts and len(at):
        at = _merge(candidates, at, order, count, ties)
    return candidates.slots[at]


def _best(request: PlaceRequest) -> tuple[Slots, Units | None]:
    """The best few nodes for the first placement."""
    ties = Ties(request.seed, request.fleet.size)
    fit = fit_scores(request.fleet, request.ask, request.algorithm)
    candidates, at, _ = _ranked(request, fit, request.candidates(), BEST, ties)
    return candidates.slots[at], None


def _is_plain(request: PlaceRequest) -> bool:
    """Whether nothing but fit tells nodes apart."""
    return not request.bonuses and all(part is None or not len(part) for part in (request.collisions, request.penalty))


def _single(fit: Units, mask: NDArray[np.bool_], ties: Ties) -> Slots:
    """The one best node by fit, if there is any."""
    scores = np.where(mask, fit, NO_FIT)
    top = scores.max(initial=NO_FIT)
    if top == NO_FIT:
        return np.empty(0, dtype=np.int64)
    slots = np.flatnonzero(scores == top)
    return slots[ties.ranks(slots).argmin()][None] if len(slots) > 1 else slots


def _ranked(
    request: PlaceRequest, fit: Units, mask: NDArray[np.bool_], count: int, ties: Ties
) -> tuple[Candidates, Places, Units]:
    """The best `count` nodes for one allocation, in order, and their place in the order of all."""
    candidates = Candidates(request, _leaders(request, fit, mask, count, ties))
    slots = candidates.slots
    order = (-candidates.keys(slice(None), 0, fit[slots]) << ties.bits) + ties.ranks(slots)
    at = _first(order, count)
    return candidates, at, order[at]


def _first(order: Units, count: int) -> Places:
    """The positions of the `count` smallest, in order."""
    if len(order) > count:
        head = np.argpartition(order, count - 1)[:count]
        return head[np.argsort(order[head])]
    return np.argsort(order)


def _merge(candidates: Candidates, at: Places, order: Units, count: int, ties: Ties) -> Places:
    """Add the second, third... allocation on each node; `at` has the best nodes for a first one, in order."""
    bar = order[-1] if len(at) == count else _LAST
    room = candidates.room(at)
    alive = np.flatnonzero(room > 1)
    nodes, worst, room = at[alive], order[alive], room[alive]
    level, width = 1, 1
    while len(nodes):
        block = _block(candidates, nodes, level, max(1, min(width, BLOCK // len(nodes))), room, ties)
        np.maximum(block, worst[:, None], out=block)
        np.maximum.accumulate(block, axis=1, out=block)
        rows, columns = np.nonzero(block < bar)
        at = np.concatenate((at, nodes[rows]))
        order = np.concatenate((order, block[rows, columns]))
        if len(at) > count:
            head = np.argpartition(order, count - 1)[:count]
            at, order = at[head], order[head]
            bar = order.max()
        elif len(at) == count:
            bar = order.max()
        worst = block[:, -1]
        alive = np.flatnonzero(worst < bar)
        nodes, worst, room = nodes[alive], worst[alive], room[alive]
        level += block.shape[1]
        width *= 4
    return at[np.argsort(order, kind="stable")]


def _block(candidates: Candidates, nodes: Places, level: int, width: int, room: Places, ties: Ties) -> Units:
    """Per node and number of new allocations on it the place in the order; the last of all where there is no room."""
    more = np.arange(level, level + width, dtype=np.int64)
    rows = nodes[:, None]
    keys = candidates.keys(rows, more[None, :])
    block: Units = (-keys << ties.bits) + ties.ranks(candidates.slots[rows])
    block[more[None, :] >= room[:, None]] = _LAST
    return block


def _leaders(request: PlaceRequest, fit: Units, mask: NDArray[np.bool_], count: int, ties: Ties) -> Slots:
    """Slots, ascending, among which the best `count` for a first allocation are; as few as can be told cheaply."""
    if request.bonuses:
        return np.flatnonzero(mask & (fit > NO_FIT))
    parts = [part for part in (request.collisions, request.penalty) if part is not None and len(part)]
    special = _distinct(np.concatenate(parts), len(mask)) if parts else None
    found = _leading(fit, mask, count, ties, special)
    if special is None:
        return found
    special = special[mask[special] & (fit[special] > NO_FIT)]
    return np.union1d(found, special)


def _distinct(slots: Slots, size: int) -> Slots:
    """Each of these once, ascending."""
    if len(slots) <= MANY:
        return np.unique(slots)
    marks = np.zeros(size, dtype=np.bool_)
    marks[slots] = True
    return np.flatnonzero(marks)


def _leading(fit: Units, mask: NDArray[np.bool_], count: int, ties: Ties, without: Slots | None) -> Slots:
    """The same by fit alone, for nodes that nothing else tells apart."""
    bar = _guess(fit, mask, count)
    if bar is None:
        return _where(mask & (fit > NO_FIT), without)
    above = _where(mask & (fit > bar), without)
    if len(above) >= count:
        return above
    level = _level(fit, mask, bar, count - len(above), ties, without)
    if level is None:
        return _where(mask & (fit > NO_FIT), without)
    return np.sort(np.concatenate((above, level)))


def _where(marks: NDArray[np.bool_], without: Slots | None) -> Slots:
    if without is not None:
        marks[without] = False
    return np.flatnonzero(marks)


def _guess(fit: Units, mask: NDArray[np.bool_], count: int) -> int | None:
    """A score that probably somewhat more than `count` nodes reach; None if looking at all is as good."""
    stride = len(fit) // SAMPLE
    if stride < 2:
        return None
    sample = fit[::stride][mask[::stride]]
    wanted = count * 3 // (2 * stride) + 4
    if wanted * 2 > len(sample):
        return None
    bar = int(np.partition(sample, len(sample) - wanted)[len(sample) - wanted])
    return bar if bar > NO_FIT else None


def _level(fit: Units, mask: NDArray[np.bool_], bar: int, need: int, ties: Ties, without: Slots | None) -> Slots | None:
    """The first `need` nodes, in the order of ties, that have exactly this score; None if there are not so many."""
    found: list[Slots] = []
    barred = np.empty(0, dtype=np.int64) if without is None else without
    start, length, missing = 0, max(1024, need * 4), need
    while missing > 0 and start < ties.count:
        slots = ties.slots(start, start + length)
        slots = slots[slots < len(fit)]
        slots = slots[mask[slots] & (fit[slots] == bar)]
        if len(barred):
            slots = slots[~np.isin(slots, barred)]
        found.append(slots[:missing])
        missing -= len(found[-1])
        start, length = start + length, length * 4
    return None if missing > 0 else np.concatenate(found)


def _place_checked(request: PlaceRequest) -> Placed:
    """Ask for a closer look at each node when its turn comes; after a refusal the order of all others still holds."""
    fleet = request.fleet
    mask = request.candidates().copy()
    chosen: list[int] = []
    not_now: set[int] = set()
    while len(chosen) < request.count:
        placed = np.array(chosen, dtype=np.int64)
        left = request.count - len(chosen)
        counted = fleet.place(placed, request.ask)
        try:
            slots = greedy(_with(request, placed), _without(mask, not_now), left + left // 8 + SPARE)
        finally:
            fleet.release(counted)
        if not len(slots):
            break
        _walk(request, slots.tolist(), mask, not_now, chosen)
    return Placed(request, np.array(chosen, dtype=np.int64), lambda: _best(request), mask=mask)


def _walk(
    request: PlaceRequest, slots: list[int], mask: NDArray[np.bool_], not_now: set[int], chosen: list[int]
) -> None:
    """Follow the order as far as it holds. Refused nodes leave the mask, for good or until something was placed."""
    check, count = request.check, request.count
    assert check is not None
    never: set[int] = set()
    for slot in slots:
        if slot in never or slot in not_now:
            continue
        verdict = check(slot)
        if verdict is Verdict.YES:
            chosen.append(slot)
            if request.distinct_hosts:
                mask[slot] = False
            if not_now or len(chosen) == count:
                not_now.clear()  # they are to be asked again for the next placement
                return
        elif verdict is Verdict.NEVER:
            never.add(slot)
            mask[slot] = False
        else:
            not_now.add(slot)


def _without(mask: NDArray[np.bool_], slots: set[int]) -> NDArray[np.bool_]:
    if not slots:
        return mask
    mask = mask.copy()
    mask[list(slots)] = False
    return mask


def _with(request: PlaceRequest, placed: Slots) -> PlaceRequest:
    """The same request after these placements."""
    if not len(placed):
        return request
    known = request.collisions
    collisions = placed if known is None else np.concatenate((known, placed))
    return replace(request, collisions=collisions)
