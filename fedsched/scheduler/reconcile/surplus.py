"""Which allocations go when a group has more than its count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fedsched.scheduler.reconcile.held import Held


def surplus(
    stayers: Sequence[Held], migrating: Sequence[Held], canaries: Iterable[Held], count: int, *, is_canarying: bool
) -> list[Held]:
    """Choose whom to stop of those that stay and those that are on the move.

    `stayers` are the untainted ones whose client can be reached; while canaries wait for their promotion they are not
    among them. First go old allocations whose place a promoted canary took, then movers with the highest places, then
    whatever stands beyond the count, then second copies of a place, then the highest places.
    """
    remove = len(stayers) + len(migrating) - count
    if remove <= 0:
        return []
    chosen: list[Held] = []
    if not is_canarying:
        promoted = set(canaries)
        places = {held.name_index for held in promoted}
        chosen = [held for held in _highest(stayers) if held not in promoted and held.name_index in places][:remove]
    chosen += _highest(migrating)[: remove - len(chosen)]
    if len(chosen) == remove:
        return chosen
    gone = set(chosen)
    rest = [held for held in _highest(stayers) if held not in gone]
    moving = {held.name_index for held in migrating if held not in gone}
    return chosen + _by_rank(rest, moving, count)[: remove - len(chosen)]


def _highest(helds: Iterable[Held]) -> list[Held]:
    """Highest place first; of one place the youngest first."""
    return sorted(helds, key=lambda held: (-held.name_index, -held.at))


def _by_rank(rest: list[Held], moving: set[int], count: int) -> list[Held]:
    """Beyond the count, then second copies, then the others; each from the highest place down."""
    seen = set(moving)
    copies: set[Held] = set()
    for held in reversed(rest):
        if held.name_index in seen:
            copies.add(held)
        seen.add(held.name_index)
    return sorted(rest, key=lambda held: (held.name_index < count, held not in copies))
