"""What a scheduler hands back: the plan of one attempt, and how the evaluation ends if all of it is committed.

An evaluation is worked on in *attempts*. Each looks at one state and yields at most one plan, already in the columns
that the log will hold. The leader's plan applier commits what still fits. If that is all of it, the evaluation is over,
and its end (with the blocked evaluation it may leave behind) is written by the same log entry as the plan: no second
trip. If something was refused, the next attempt looks at a newer state.

    worker                      scheduler                         leader
    attempt(state, fleet, now)  -> Attempt(plan, ends)    -> checked, committed
    heard(outcome)              -> over | once more | gave up
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fedsched.model.alloc import AllocListStub
from fedsched.model.evaluation import Evaluation
from fedsched.model.plan import DesiredUpdates
from fedsched.scheduler.fleet import Fleet
from fedsched.state.store import State
from fedsched.state.tables.plans import PlanApply


class Attempt(NamedTuple):
    """One pass over one state."""

    plan: PlanApply | None
    """What to commit; None if nothing has to change. Evaluations in it (follow-ups) are stored whatever is refused."""
    ends: tuple[Evaluation, ...]
    """To be stored with the plan if all of it is committed, or at once if there is none: the evaluation itself, and the
    blocked one that it leaves behind. Empty if a further attempt is needed even then."""
    reblock: bool = False
    """The evaluation was a blocked one and stays it: `ends` holds it with what is known of classes now."""
    priority: int = 50
    all_at_once: bool = False
    desired: dict[str, DesiredUpdates] = {}  # noqa: RUF012 - never written to
    """What the plan does, by group, for people."""
    preempted: tuple[AllocListStub, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a plan."""

    is_whole: bool
    """Everything was committed, `ends` too."""
    is_progress: bool
    """At least something was."""
    refresh_index: int = 0
    """The state to look at before the next attempt."""
    index: int = 0
    """Of the log entry; 0 if nothing was committed."""


class Scheduling(Protocol):
    """One evaluation being worked on; made by a scheduler for each delivery."""

    def attempt(self, state: State, fleet: Fleet, now_ns: int) -> Attempt:
        """Decide what should change, seen from this state. Never waits, never touches what it is given."""

    def heard(self, outcome: Outcome, now_ns: int) -> tuple[Evaluation, ...] | None:
        """What to do after a plan: None is "attempt again"; otherwise the evaluation is over and these are to be stored

        (nothing if `ends` were committed with the plan; the failed evaluation and a blocked one if it gave up).
        """
