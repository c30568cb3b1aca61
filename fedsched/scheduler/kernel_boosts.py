"""Spread blocks and distinct_property while allocations are placed: what each value of an attribute gets, kept in step.

Nodes with the same values under all blocks form a *group*; a block says the same to all nodes of a group. After each
placement `placed` says which groups must be looked at again.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedsched.scheduler.fleet_columns import Slots
from fedsched.scheduler.kernel_request import NO_VALUE, PlaceRequest, SpreadBlock
from fedsched.scheduler.score import MISSING, desired_counts, even_boost, in_units, target_boost

POOL: Final = -2
"""The number under which values without a target of their own are counted together."""
EVERYONE: Final = None


class Groups(NamedTuple):
    """How the candidates fall into groups."""

    of: NDArray[np.int64]
    """The group of each candidate."""
    values: list[tuple[int, ...]]
    """Per group its value under each block: the spread blocks, then the limits."""


def make_groups(request: PlaceRequest, slots: Slots) -> Groups:
    """Divide these nodes into groups."""
    columns = [_counted_as(block, slots) for block in request.spreads]
    columns += [limit.values[slots] for limit in request.limits]
    numbers = np.zeros(len(slots), dtype=np.int64)
    if not columns:  # nothing ties them: one group
        return Groups(numbers, [()] if len(slots) else [])
    for column in columns:
        kinds, place = _numbered(column)
        numbers = place if column is columns[0] else _numbered(numbers * kinds + place)[1]
    first = np.zeros(int(numbers.max()) + 1 if len(numbers) else 0, dtype=np.int64)
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    return Groups(numbers, list(zip(*(column[first].tolist() for column in columns), strict=True)))


def _numbered(column: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """How many different numbers there are, and the place of each among them."""
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    if high - low > 4 * len(column) + 1024:
        values, place = np.unique(column, return_inverse=True)
        return len(values), place
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    seen[column - low] = True
    numbers = np.cumsum(seen) - 1
    return int(numbers[-1]) + 1, numbers[column - low]


def _counted_as(block: SpreadBlock, slots: Slots) -> NDArray[np.int64]:
    values = block.values[slots]
    if not block.targets:
        return values
    listed = np.isin(values, list(block.targets))
    return np.where(listed | (values == NO_VALUE), values, POOL)


class Boosts:
    """What the spread blocks add to each group's score, in units."""

    def __init__(self, request: PlaceRequest, groups: Groups) -> None:
        self.groups = groups
        weights = sum(block.weight for block in request.spreads)
        present = np.flatnonzero(request.mask)
        self._blocks: list[_Targets | _Even] = []
        for number, block in enumerate(request.spreads):
            members = _members(groups, number)
            if block.targets:
                seen = set(_counted_as(block, present).tolist()) - {NO_VALUE}
                self._blocks.append(_Targets(block, request.group_count, block.weight / weights, members, seen))
            else:
                self._blocks.append(_Even(block, members))
        self._limits = [
            _Limit(dict(limit.used), limit.limit, _members(groups, len(request.spreads) + number))
            for number, limit in enumerate(request.limits)
        ]
        self._lowest = self._find_lowest()
        self._has_zero = any(isinstance(block, _Targets) and block.zeros for block in self._blocks)
        self.units = [self._units_of(group) for group in range(len(groups.values))]
        """Per group the total of all blocks."""

    def placed(self, group: int) -> tuple[list[int] | None, list[int]]:
        """Count a placement: the groups whose boost may differ now (`EVERYONE`: all), and those that are full."""
        values = self.groups.values[group]
        everyone = False
        concerned = [group]
        for at, block in enumerate(self._blocks):
            everyone |= block.count(values[at])
        if self._has_zero:
            lowest = self._find_lowest()
            everyone |= lowest != self._lowest
            self._lowest = lowest
        full: list[int] = []
        for at, limit in enumerate(self._limits, len(self._blocks)):
            if limit.count(values[at]):
                full += limit.members[values[at]]
        if everyone:
            self.units = [self._units_of(number) for number in range(len(self.units))]
            return EVERYONE, full
        for at, block in enumerate(self._blocks):
            if len(block.members[values[at]]) > 1:
                concerned += block.members[values[at]]
        for number in concerned:
            self.units[number] = self._units_of(number)
        return concerned, full

    def _units_of(self, group: int) -> int:
        values, lowest = self.groups.values[group], self._lowest
        return in_units(sum(block.boost(values[at], lowest) for at, block in enumerate(self._blocks)))

    def _find_lowest(self) -> float:
        return min([MISSING, *(block.lowest() for block in self._blocks if isinstance(block, _Targets))])


class EvenBoosts:
    """The same for the most common case: one block without targets and nothing else."""

    def __init__(self, request: PlaceRequest, groups: Groups) -> None:
        (block,) = request.spreads
        self._values = [values[0] for values in groups.values]
        known = block.used
        self._used = [known.get(value, 0) for value in self._values]
        outside = [used for value, used in known.items() if used and value not in set(self._values)]
        self._at: dict[int, int] = {}
        for used in [*outside, *(used for used in self._used if used)]:
            self._at[used] = self._at.get(used, 0) + 1
        self._least, self._most = min(self._at, default=0), max(self._at, default=0)
        self.units: list[int] = []
        self._set_all()

    def placed(self, group: int) -> tuple[list[int] | None, list[int]]:
        """See `Boosts.placed`."""
        if self._values[group] == NO_VALUE:
            return [group], []
        was, at = self._used[group], self._at
        self._used[group] = now = was + 1
        at[now] = at.get(now, 0) + 1
        least = self._least
        if not was:
            least = 1
        elif at[was] == 1:
            del at[was]
            if was == least:
                least = now
        else:
            at[was] -= 1
        if least != self._least or now > self._most:
            self._least, self._most = least, max(self._most, now)
            self._set_all()
            return EVERYONE, []
        self.units[group] = in_units(even_boost(now, least, self._most))
        return [group], []

    def _set_all(self) -> None:
        least, most = self._least, self._most
        by_use = {used: in_units(even_boost(used, least, most)) for used in {*self._used}}
        self.units = [by_use[used] for used in self._used]
        if NO_VALUE in self._values:
            self.units[self._values.index(NO_VALUE)] = in_units(MISSING)


def make_boosts(request: PlaceRequest, groups: Groups) -> Boosts | EvenBoosts:
    """What keeps the boosts of this request."""
    if len(request.spreads) == 1 and not request.limits and not request.spreads[0].targets:
        return EvenBoosts(request, groups)
    return Boosts(request, groups)


def _members(groups: Groups, number: int) -> dict[int, list[int]]:
    members: dict[int, list[int]] = {}
    for group, values in enumerate(groups.values):
        members.setdefault(values[number], []).append(group)
    return members


class _Targets:
    """A block with targets."""

    def __init__(
        self, block: SpreadBlock, count: int, share: float, members: dict[int, list[int]], seen: set[int]
    ) -> None:
        self.members = members
        self._share = share
        self._desired, rest = desired_counts(block.targets, count)
        self._used: dict[int, int] = dict.fromkeys(self._desired, 0)
        if rest:
            self._desired[POOL] = rest
            self._used[POOL] = 0
        for value, used in block.used.items():
            key = value if value in block.targets else POOL
            self._used[key] = self._used.get(key, 0) + used
        self._seen = [value for value in sorted(seen) if self._desired.get(value)]
        self.zeros = any(not desired for desired in self._desired.values())

    def boost(self, value: int, lowest: float) -> float:
        desired = self._desired.get(value)
        if desired is None:  # no such attribute, or a value that nothing is left for
            return MISSING
        return target_boost(desired, self._used[value], self._share) if desired else lowest

    def count(self, value: int) -> bool:
        if value in self._used:
            self._used[value] += 1
        return False

    def lowest(self) -> float:
        return min((self.boost(value, 0.0) for value in self._seen), default=MISSING)


class _Even:
    """A block without targets."""

    def __init__(self, block: SpreadBlock, members: dict[int, list[int]]) -> None:
        self.members = members
        self._used = {value: used for value, used in block.used.items() if used}
        self._at: dict[int, int] = {}
        for used in self._used.values():
            self._at[used] = self._at.get(used, 0) + 1
        self._least = min(self._at, default=0)
        self._most = max(self._at, default=0)

    def boost(self, value: int, lowest: float) -> float:
        if value == NO_VALUE:
            return MISSING
        return even_boost(self._used.get(value, 0), self._least, self._most)

    def count(self, value: int) -> bool:
        """Whether the boost of other values differs now too."""
        if value == NO_VALUE:
            return False
        was = self._used.get(value, 0)
        self._used[value] = was + 1
        at = self._at
        at[was + 1] = at.get(was + 1, 0) + 1
        if was:
            at[was] -= 1
            if not at[was]:
                del at[was]
        before = (self._least, self._most)
        if not was:
            self._least = 1
        elif was == self._least and was not in at:
            self._least = was + 1
        self._most = max(self._most, was + 1)
        return before != (self._least, self._most)


class _Limit:
    """A distinct_property."""

    def __init__(self, used: dict[int, int], limit: int, members: dict[int, list[int]]) -> None:
        self.members = members
        self._used = used
        self._limit = limit

    def count(self, value: int) -> bool:
        """Whether nothing more may be placed under this value."""
        self._used[value] = self._used.get(value, 0) + 1
        return self._used[value] >= self._limit
