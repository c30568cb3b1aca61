"""One run from its seed to its verdict: chaos, then healing and the demand for progress.

Phase one carries out the schedule. Phase two ends every fault and asks for liveness (invariant 13): a leader within ten
election timeouts, every open request answered, every server in the same state. At the end the users' history must be
linearizable.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from fedsched.raft import rare
from fedsched.sim import faults, linear
from fedsched.sim.checkers import Checkers
from fedsched.sim.machines import new_machine_of
from fedsched.sim.options import Options, draw_options
from fedsched.sim.region import Region
from fedsched.sim.schedule import Action, draw_schedule
from fedsched.sim.verdict import Broken
from fedsched.sim.workloads import Users
from fedsched.sim.world import World

LEADER_TIMEOUTS = 10
"""Invariant 13: a leader within so many election timeouts after healing."""
SETTLE_TIMEOUTS = 60
"""And everything else within so many: replacing lost servers takes some membership changes in a row."""
CALM_TIMEOUTS = 4
SEARCH_STEPS_MAX = 20_000
EVENTS_MAX = 40_000
"""Far above what any run needs: a run that gets here is going round in circles."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The first invariant that did not hold, and where."""

    invariant: str
    what: str
    event: int
    time_us: int
    servers: tuple[str, ...] = ()
    last_events: tuple[str, ...] = ()


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one run."""

    seed: int
    trace: str
    events: int
    seconds: float
    failure: Failure | None = None
    marks: dict[str, int] = {}
    """Rare paths of the core that were taken, with counts."""
    fired: dict[str, int] = {}
    operations: int = 0
    undecided: int = 0
    """Keys whose history was too tangled to judge within the limit."""


class Run:
    """A world, a region in it, its users and its checkers."""

    def __init__(
        self,
        seed: int,
        options: Options | None = None,
        schedule: list[Action] | None = None,
        *,
        echo: Callable[[str], None] | None = None,
    ) -> None:
        self.seed = seed
        self.options = options or draw_options(seed)
        self.schedule = draw_schedule(seed, self.options) if schedule is None else schedule
        self.world = World(seed, echo=echo)
        self.checkers = Checkers(self._find)
        new_machine, encode = new_machine_of(self.options)
        self.region = Region(self.world, self.options, self.checkers, new_machine)
        self.users = Users(self.region, self.checkers, encode)
        self.world.after_event = self.checkers.after_event
        self.undecided = 0

    def _find(self, server_id: str) -> Any:
        return self.region.find(server_id)

    def go(self, until_event: int | None = None) -> Result:
        """Run to the end, or to an event's number; never raises for a broken invariant."""
        marks: Counter[str] = Counter()
        before, rare.sometimes = rare.sometimes, lambda name: marks.update((name,))
        started = time.process_time()
        failure = None
        try:
            self._chaos(until_event)
            if until_event is None:
                self._heal()
                self._judge_history()
        except Broken as broken:
            failure = self._failure(broken)
        except Exception as error:  # whatever the core stumbles over is a finding of this seed
            failure = self._failure(Broken("error", _where(error)))
        finally:
            rare.sometimes = before
        return Result(
            seed=self.seed,
            trace=self.world.trace.hash(),
            events=self.world.trace.number,
            seconds=time.process_time() - started,
            failure=failure,
            marks=dict(sorted(marks.items())),
            fired=dict(sorted(self.region.fired.items())),
            operations=len(self.users.history),
            undecided=self.undecided,
        )

    # --- the two phases -----------------------------------------------------------------------------------------------

    def _chaos(self, until_event: int | None) -> None:
        world = self.world
        self.region.bootstrap()
        for action in self.schedule:
            world.after(action.at_us, None, "action", self._do, action, detail=f"{action.kind} {action.args}")
        end_us = self.options.chaos_us
        while world.step(end_us):
            if until_event is not None and world.trace.number >= until_event:
                return
            self._count_events()

    def _count_events(self) -> None:
        if self.world.trace.number > EVENTS_MAX:
            raise Broken("liveness", f"more than {EVENTS_MAX} events without an end")

    def _do(self, action: Action) -> None:
        if self.users.knows(action.kind):
            self.users.carry_out(action)
        else:
            faults.carry_out(self.region, action.kind, action.args)

    def _heal(self) -> None:
        """End the faults, first all but one server's, and demand progress each time."""
        world, region, users = self.world, self.region, self.users
        world.trace.remark(world.now, "", "healing")
        region.heal()
        users.is_healed = True
        if self.options.standing:
            self._live_with_one_less(self.options.standing)
        users.last_wishes()
        self._settle()
        users.last_reads()
        self._settle()

    def _settle(self, *, needs_users: bool = True) -> None:
        """Go on until one leader stands, every server is level and every request has its answer."""
        world, region, users = self.world, self.region, self.users
        unit_us = self.options.election_us
        leader_by_us = world.now + LEADER_TIMEOUTS * unit_us
        settled_by_us = world.now + SETTLE_TIMEOUTS * unit_us
        has_led = False
        while True:
            if not world.step(min(world.now + unit_us // 4, settled_by_us)) and world.now >= settled_by_us:
                raise Broken(
                    "liveness", f"not settled {SETTLE_TIMEOUTS} election timeouts after healing: {self._open()}"
                )
            self._count_events()
            has_led = has_led or region.can_lead(region.leader())
            if not has_led and world.now > leader_by_us:
                raise Broken("liveness", f"no leader {LEADER_TIMEOUTS} election timeouts after healing")
            if has_led and (users.is_idle() or not needs_users) and not region.unsettled():
                return

    def _live_with_one_less(self, kind: str) -> None:
        """Hold one server back and demand that the others go on, under a leader that it must not unseat."""
        self._settle(needs_users=False)
        self._pass_us(self.options.election_us)  # until nothing that was sent before healing is under way
        self._settle(needs_users=False)
        if not self.region.stand(kind):
            return
        if kind.endswith("leader"):
            self._settle(needs_users=False)
        self._stay_calm(kind)
        self.users.last_wishes()
        self._settle()
        self.region.unstand()

    def _stay_calm(self, kind: str) -> None:
        """Whoever leads now leads on, in the same term."""
        before = self.region.leader()
        assert before is not None
        assert before.core is not None
        term = before.core.term
        self._pass_us(CALM_TIMEOUTS * self.options.election_us)
        after = self.region.leader()
        if after is not before or after.core is None or after.core.term != term:
            what = f"one server is {kind}, and {before.id}, whom a quorum hears, no longer leads term {term}"
            raise Broken("liveness", what, before.id)

    def _pass_us(self, time_us: int) -> None:
        until_us = self.world.now + time_us
        while self.world.step(until_us):
            pass

    def _open(self) -> str:
        return self.region.unsettled() or "a request has no answer"

    def _judge_history(self) -> None:
        for finding in linear.check(self.users.whole_history(), steps_max=SEARCH_STEPS_MAX):
            if finding.verdict is linear.Verdict.BROKEN:
                raise Broken("linearizability", f"key {finding.key}: {finding.what}")
            self.undecided += 1

    def _failure(self, broken: Broken) -> Failure:
        return Failure(
            invariant=broken.invariant,
            what=broken.what,
            event=self.world.trace.number,
            time_us=self.world.now,
            servers=tuple(sorted(broken.servers)),
            last_events=tuple(self.world.trace.last(broken.servers)),
        )


def _where(error: Exception) -> str:
    """What was raised and the line that raised it."""
    frame = error.__traceback__
    assert frame is not None
    while frame.tb_next is not None:
        frame = frame.tb_next
    code = frame.tb_frame.f_code
    return f"{type(error).__name__} in {code.co_qualname}, line {frame.tb_lineno}: {error}"


def run_seed(seed: int, options: Options | None = None, schedule: list[Action] | None = None) -> Result:
    """Run one seed to its end."""
    return Run(seed, options, schedule).go()
