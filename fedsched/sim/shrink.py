"""Makes a failure small: fewer actions, fewer features, a shorter run; still the same invariant.

The schedule of a failing run is a list, and everything else follows from the seed: leave out a part, run again, and see
whether the same invariant still breaks (delta debugging: halves first, then ever smaller parts, then single actions).
What is left is written as JSON and kept as a regression test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from fedsched.sim.options import Options, changed
from fedsched.sim.provenance import provenance
from fedsched.sim.runner import Failure, run_seed
from fedsched.sim.schedule import Action, draw_schedule

RUNS_MAX = 500
"""At some 20 ms each this takes seconds; more than that hardly ever makes a failure smaller."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, small enough to keep: replaying it needs nothing but this."""

    seed: int
    invariant: str
    what: str
    found_with: str = ""
    """The planted bug that it was found with, if any."""
    found_on: str = ""
    """The code that it was found on, as `provenance` tells it."""
    options: Options
    schedule: list[Action]


def shrink(
    seed: int, options: Options, schedule: list[Action] | None = None, *, runs_max: int = RUNS_MAX
) -> Case | None:
    """The smallest case found that breaks the same invariant; None if this run does not fail."""
    shrinker = _Shrinker(seed, options, draw_schedule(seed, options) if schedule is None else schedule, runs_max)
    return shrinker.go()


class _Shrinker:
    def __init__(self, seed: int, options: Options, schedule: list[Action], runs_max: int) -> None:
        self._seed = seed
        self._options = options
        self._schedule = schedule
        self._runs_left = runs_max
        self._failure: Failure | None = None

    def go(self) -> Case | None:
        provenance()  # before anything runs
        first = run_seed(self._seed, self._options, self._schedule).failure
        if first is None:
            return None
        self._failure = first
        self._cut_the_end()
        self._schedule = ddmin(self._schedule, lambda part: self._still_fails(self._options, part))
        self._drop_features()
        self._schedule = ddmin(self._schedule, lambda part: self._still_fails(self._options, part))
        return Case(
            seed=self._seed,
            invariant=self._failure.invariant,
            what=self._failure.what,
            found_on=provenance(),
            options=self._options,
            schedule=self._schedule,
        )

    def _still_fails(self, options: Options, schedule: list[Action]) -> bool:
        """Whether this still breaks the same invariant; with no runs left, nothing more does."""
        if self._runs_left <= 0 or self._failure is None:
            return False
        self._runs_left -= 1
        failure = run_seed(self._seed, options, schedule).failure
        if failure is None or failure.invariant != self._failure.invariant:
            return False
        self._failure = failure
        return True

    def _cut_the_end(self) -> None:
        """Nothing that comes after the failure can have caused it."""
        assert self._failure is not None
        if self._failure.time_us < self._options.chaos_us:
            before = [action for action in self._schedule if action.at_us <= self._failure.time_us]
            if self._still_fails(self._options, before):
                self._schedule = before

    def _drop_features(self) -> None:
        for feature in self._options.features:
            fewer = changed(self._options, features=tuple(f for f in self._options.features if f != feature))
            if self._still_fails(fewer, self._schedule):
                self._options = fewer


def ddmin(items: list[Action], fails: Callable[[list[Action]], bool]) -> list[Action]:
    """A part of `items` that still fails and of which no tried piece can be left out."""
    parts = 2
    while len(items) >= 2:
        size = max(1, len(items) // parts)
        for start in range(0, len(items), size):
            rest = items[:start] + items[start + size :]
            if fails(rest):
                items = rest
                parts = max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(parts * 2, len(items))
    return [] if len(items) == 1 and fails([]) else items


def save(case: Case, directory: Path) -> Path:
    """Write a case where the regression tests find it."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{case.invariant}-{case.seed}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(case), indent=1) + b"\n")
    return path


def load(path: Path) -> Case:
    """The reverse of `save`; raises `msgspec.ValidationError` for anything else."""
    return msgspec.json.decode(path.read_bytes(), type=Case)
