"""A leader's desk without Raft: proposals are applied in order, when the test lets them; time is virtual.

def test_something():
    async def scenario(counter: Counter) -> None:
        ...

    run_at_counter(scenario)
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import trio
import trio.testing

from fedsched.model.errors import FedschedError
from fedsched.model.evaluation import Evaluation, EvaluationStatus, Trigger
from fedsched.model.job import Job
from fedsched.model.node import Node
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.messages import RoleChange
from fedsched.server.desk import Desk
from fedsched.server.fleet_feed import FleetFeed
from fedsched.server.leader.broker import BrokerService, Handed
from fedsched.server.leader.broker_core import BrokerLimits
from fedsched.server.leader.plan_apply import PlanApplier
from fedsched.server.leader.rejections import RejectionSettings
from fedsched.server.leader.work import LeaderWork
from fedsched.server.machine import StateMachine
from fedsched.state.commands import Envelope, encode_command
from fedsched.state.fields import Command
from fedsched.state.result import Result
from fedsched.state.store import Store
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.jobs import job_register
from fedsched.state.tables.nodes import node_upsert
from fedsched.state.tables.plans import PlanApply
from fedsched.telemetry.log import Event, Hub
from fedsched.telemetry.metrics import Registry
from tests.builders import a_job, a_node, an_evaluation, an_id
from tests.overcommit import overcommitted
from tests.server.region import _only

WALL_S = 1_700_000_000.0
LIMIT_S = 3600.0
SERVICE = ("service",)


class VirtualEnv:
    """Chance from a seed, time from trio's clock, ids that count up."""

    def __init__(self) -> None:
        self._ids = 0x10_0000

    def now(self) -> float:
        return trio.current_time()

    def wall(self) -> float:
        return WALL_S + trio.current_time()

    def rng(self, stream: str) -> random.Random:
        return random.Random(stream)

    def new_id(self) -> str:
        self._ids += 1
        return an_id(self._ids)


class FakeRaft:
    """Leads from the start, until told otherwise."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self.role = RoleChange("leader", 3, "me", 7)
        self.is_leader = True
        self.is_established = True
        self.applied = trio.Event()
        self.changed = trio.Event()

    async def wait_applied(self, index: int) -> None:
        while self._machine.store.index < index:
            await self.applied.wait()

    async def wait_role_change(self) -> RoleChange:
        await self.changed.wait()
        return self.role

    def lead(self, leads: bool) -> None:
        self.is_leader = self.is_established = leads
        event, self.changed = self.changed, trio.Event()
        event.set()


class FakeProposals:
    """Appends at once, applies in order; `hold` keeps what is appended from being applied."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._last = 0
        self._queue: list[tuple[int, Command, trio.Event]] = []
        self._results: dict[int, Result] = {}
        self.is_held = False
        self.refuse: FedschedError | None = None
        self.said: list[Command] = []

    def now_ns(self) -> int:
        return int(self._counter.env.wall() * 1e9)

    async def propose(
        self,
        command: Command,
        *,
        request: Any = None,
        epoch: int | None = None,
        is_essential: bool = False,
        on_appended: Callable[[int], None] | None = None,
    ) -> Result:
        if self.refuse is not None:
            raise self.refuse
        self._last = max(self._last, self._counter.store.index) + (2 if self.is_held else 1)  # see `overtake`
        index, done = self._last, trio.Event()
        self._queue.append((index, command, done))
        self.said.append(command)
        if on_appended is not None:
            on_appended(index)
        if not self.is_held:
            self.apply()
        await done.wait()
        result = self._results.pop(index)
        if (error := result.error()) is not None:
            raise error
        return result

    def overtake(self, command: Command) -> None:
        """Apply something that was in the log before the oldest of those that wait."""
        self._counter.apply(command, self._queue[0][0] - 1)

    def apply(self, count: int = 1000) -> None:
        """Let so many of those that wait become true."""
        for _ in range(min(count, len(self._queue))):
            index, command, done = self._queue.pop(0)
            self._results[index] = self._counter.apply(command, index)
            done.set()


class Counter:
    """The whole desk and what stands on it."""

    def __init__(self, *, limits: BrokerLimits | None = None, rejections: RejectionSettings | None = None) -> None:
        self.hub = Hub()
        self._events = self.hub.subscribe("debug", capacity=10_000)
        self._heard: list[Event] = []
        self.env = VirtualEnv()
        self.metrics = Registry()
        self.machine = StateMachine(self.hub.logger("server"))
        self.proposals = FakeProposals(self)
        self.raft = FakeRaft(self.machine)
        self.desk = cast(
            Desk,
            _Parts(
                machine=self.machine,
                raft=self.raft,
                proposals=self.proposals,
                env=self.env,
                metrics=self.metrics,
                log=self.hub.logger("server"),
            ),
        )
        self.feed = FleetFeed(self.machine)
        self.broker = BrokerService(self.desk, limits=limits)
        self.applier = PlanApplier(self.desk, self.broker, self.feed, rejections=rejections)
        self.work = LeaderWork(self.desk, self.broker, self.applier)

    @property
    def store(self) -> Store:
        return self.machine.store

    def apply(self, command: Command, index: int | None = None) -> Result:
        """One entry of the log, as the applier of Raft would apply it."""
        index = self.store.index + 1 if index is None else index
        payload = encode_command(Envelope(command=command, time_ns=self.proposals.now_ns()))
        result = self.machine.apply(Entry(index, 3, EntryKind.COMMAND, payload))
        self.machine.after_apply(index)
        if isinstance(command, PlanApply):
            slots = {slot for group in command.placed for slot in memoryview(group.node_slots).cast("I").tolist()}
            assert overcommitted(self.store, slots) == []
        event, self.raft.applied = self.raft.applied, trio.Event()
        event.set()
        return result

    def register(self, *jobs: Job) -> None:
        for job in jobs or (a_job(),):
            self.apply(job_register(job, evaluation=None))

    def put_nodes(self, *nodes: Node) -> None:
        for node in nodes:
            self.apply(node_upsert(node))

    def put(self, *evaluations: Evaluation) -> None:
        self.apply(EvaluationsUpsert(evaluations=tuple(evaluation_write(one) for one in evaluations)))

    def status(self, number: int) -> str:
        row = self.store.evaluations.row(an_id(number))
        return row.status if row else "missing"

    def all(self) -> list[Evaluation]:
        return [row.evaluation() for row in self.store.evaluations.rows.scan()]

    def said(self, event: str) -> list[dict[str, Any]]:
        self._heard += self._events.take()
        return [dict(one.fields) for one in self._heard if one.name == event]

    def gauge(self, name: str) -> float:
        for family in self.metrics.families():
            if family.spec.name == name:
                return float(family.series[()].value)
        raise AssertionError(f"no metric {name}")


class _Parts:
    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


def run_at_counter(scenario: Callable[[Counter], Awaitable[None]], *, office: bool = True, **options: Any) -> None:
    """Run a scenario on a virtual clock, with the services of the office running unless not wanted."""

    async def main() -> None:
        counter = Counter(**options)
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                if office:
                    await nursery.start(counter.applier.run)
                    await nursery.start(counter.broker.run)
                await scenario(counter)
                nursery.cancel_scope.cancel("the scenario is over")

    try:
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseExceptionGroup as group:
        raise _only(group) from None


def pending(number: int, job: str = "web", **fields: Any) -> Evaluation:
    return an_evaluation(number, job=a_job(job), **fields)


def blocked(number: int, job: str = "web", **fields: Any) -> Evaluation:
    return pending(number, job, status=EvaluationStatus.BLOCKED, triggered_by=Trigger.QUEUED_ALLOCS.value, **fields)


async def take(counter: Counter, *types: str, wait_s: float = 0.01) -> Handed:
    handed = await counter.broker.dequeue(types or SERVICE, wait_s=wait_s)
    assert handed, "nothing was handed out"
    return handed[0]


async def nothing(counter: Counter, *types: str) -> bool:
    return await counter.broker.dequeue(types or SERVICE, wait_s=0.01) == []


def done(counter: Counter, handed: Handed) -> None:
    counter.broker.ack(handed.delivery.ticket.id, handed.delivery.token)


def class_node(number: int, name: str, **fields: Any) -> Any:
    return a_node(number, computed_class=name, **fields)
