"""Bugs planted on purpose: if the simulated region does not notice them, it would not notice real ones either."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np

from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.fleet_plans import Reservation
from fedsched.scheduler.reconcile import group as reconcile_group
from fedsched.server.leader import broker as broker_runner
from fedsched.server.leader import plan_apply
from fedsched.server.leader.blocked_core import BlockedCore
from fedsched.server.leader.broker import BrokerService
from fedsched.server.leader.broker_core import BrokerCore
from fedsched.server.leader.plan_check import Verdict


class Mutant(NamedTuple):
    """One bug: what is put in whose place, and which promise has to notice."""

    name: str
    where: Any
    attribute: str
    instead: Callable[..., Any]
    broken: tuple[str, ...]
    """How the names of the invariants begin that may be the first to break."""
    first: int = 0
    """The first seed worth trying."""


def _hold_no_slot(self: BrokerCore, ticket: Any) -> None:
    self._make_ready(ticket, ticket.type)


_FILL: Final = BrokerService._fill


def _fill_without_pending(self: BrokerService) -> None:
    enqueue = BrokerService._enqueue_row
    BrokerService._enqueue_row = lambda *_: None  # type: ignore[method-assign]
    try:
        _FILL(self)
    finally:
        BrokerService._enqueue_row = enqueue  # type: ignore[method-assign]


def _names_from_zero(taken: Any, count: int, wanted: int) -> Any:
    return np.arange(max(0, wanted), dtype=np.int32)


def _always_whole(plan: Any, **_: Any) -> Verdict:
    return Verdict(plan, {})


MUTANTS: Final = (
    Mutant("no evaluation is unblocked by news", broker_runner, "news_of", lambda *_, **__: [], ("R-24",), 3),
    Mutant("missed news are forgotten", BlockedCore, "_missed_news", lambda *_: False, ("R-24",), 17),
    Mutant("blocked ones are lost with their leader", BlockedCore, "restore", lambda *_: None, ("R-24",), 9),
    Mutant("pending ones are lost with their leader", BrokerService, "_fill", _fill_without_pending, ("R-20",), 2),
    Mutant("a job's slot is not held", BrokerCore, "_enqueue_now", _hold_no_slot, ("R-23", "nothing", "R-20")),
    Mutant("plans in flight do not count", Fleet, "reserve", lambda *_: Reservation(), ("R-21",), 10),
    Mutant("plans are not checked", plan_apply, "check_plan", _always_whole, ("R-21",), 2),
    Mutant("names are given twice", reconcile_group, "fresh_names", _names_from_zero, ("R-23",)),
    Mutant("dead workers keep what they have", BrokerCore, "wake_at", lambda self: float("inf"), ("R-20",)),
)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The bug is there inside, and gone afterwards."""
    before = getattr(mutant.where, mutant.attribute)
    setattr(mutant.where, mutant.attribute, mutant.instead)
    try:
        yield
    finally:
        setattr(mutant.where, mutant.attribute, before)
