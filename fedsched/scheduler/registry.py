"""Which schedulers a server runs: those that come with fedsched, and those that installed packages offer.

A package offers a scheduler for a job type of its own under the entry-point group `fedsched.schedulers`; the name of
the entry point is the job type. Nothing of it is imported unless a server names the type in `enabled_schedulers`. What
is named must be there, must load and must fit: a server that cannot do what it was told to do refuses to start.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

from fedsched.model.errors import BadRequest
from fedsched.model.job import is_type_name
from fedsched.model.problem import one_of
from fedsched.scheduler.schedule import BUILT_IN, MakeScheduling

ENTRY_POINTS: Final = "fedsched.schedulers"
"""The group under which an installed package offers a scheduler for a job type of its own."""

SETTING: Final = "enabled_schedulers"
_WHAT_FITS: Final = "it is called with an evaluation and a maker of ids, and gives something with attempt() and heard()"


class UnknownScheduler(BadRequest):
    """`enabled_schedulers` names a job type that nothing here can schedule."""

    code = "unknown_scheduler"


class UnfitScheduler(BadRequest):
    """`enabled_schedulers` names a job type whose scheduler cannot be loaded, or is not one."""

    code = "unfit_scheduler"


@dataclass(frozen=True, slots=True)
class Schedulers:
    """What one server can schedule."""

    enabled: Mapping[str, MakeScheduling] = field(default_factory=lambda: dict(BUILT_IN))
    """By job type: what its workers take."""
    idle: tuple[str, ...] = ()
    """Types that an installed package offers and that are not enabled."""


def schedulers_of(wanted: tuple[str, ...], built_in: Mapping[str, MakeScheduling] = BUILT_IN) -> Schedulers:
    """All built-in schedulers, or those that are named; a type that is not built in only if it is named.

    A package cannot take the place of a built-in scheduler: for such a type its offer is passed over.
    """
    offered = _offered(built_in)
    chosen: dict[str, MakeScheduling] = {}
    for kind in wanted or built_in:
        if kind in built_in:
            chosen[kind] = built_in[kind]
        elif kind in offered:
            chosen[kind] = _loaded(kind, offered[kind])
        else:
            raise UnknownScheduler(
                f"{SETTING} has {kind!r}, and there is no scheduler for such jobs here",
                hint=f"{one_of(kind, {*built_in, *offered})}; a package offers one under {ENTRY_POINTS}",
            )
    return Schedulers(chosen, tuple(sorted(offered.keys() - chosen.keys())))


def _offered(built_in: Mapping[str, MakeScheduling]) -> dict[str, list[metadata.EntryPoint]]:
    found: dict[str, list[metadata.EntryPoint]] = {}
    for point in metadata.entry_points(group=ENTRY_POINTS):
        if point.name not in built_in:
            found.setdefault(point.name, []).append(point)
    return found


def _loaded(kind: str, points: list[metadata.EntryPoint]) -> MakeScheduling:
    if not is_type_name(kind):
        raise UnfitScheduler(
            f"{_origin(points[0])} offers a scheduler for {kind!r}, which is no name of a job type",
            hint="a letter, then letters, digits and dashes, at most 64",
        )
    if len({point.value for point in points}) > 1:
        raise UnfitScheduler(
            f"there are several schedulers for {kind!r}: {', '.join(map(_origin, points))}",
            hint="keep one of these packages installed",
        )
    point = points[0]
    try:
        made: Any = point.load()
    except Exception as error:  # whatever a package does when it is imported
        raise UnfitScheduler(
            f"the scheduler for {kind!r}, {_origin(point)}, cannot be loaded: {type(error).__name__}: {error}",
            hint=f"mend or reinstall the package, or take {kind!r} out of {SETTING}",
        ) from error
    wrong = _misfit(made)
    if wrong:
        raise UnfitScheduler(f"the scheduler for {kind!r}, {_origin(point)}, {wrong}", hint=_WHAT_FITS)
    fit: MakeScheduling = made
    return fit


def _misfit(made: Any) -> str:
    """Why this cannot be a scheduler, as far as can be told without an evaluation; empty if it can."""
    if not callable(made):
        return "cannot be called"
    try:
        inspect.signature(made).bind(None, None)
    except TypeError as error:
        return f"does not take two arguments: {error}"
    except ValueError:  # something written in C that does not say
        return ""
    missing = [name for name in ("attempt", "heard") if not callable(getattr(made, name, None))]
    return f"has no {' and no '.join(f'{name}()' for name in missing)}" if missing and inspect.isclass(made) else ""


def _origin(point: metadata.EntryPoint) -> str:
    package = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"{point.value}{package}"
