"""Long attempts pause for others, and decide the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from fedsched.model.alloc import ClientStatus
from fedsched.model.constraint import Affinity, Constraint, Spread
from fedsched.model.job import Job
from fedsched.model.job_defaults import canonicalise
from fedsched.model.network import NetworkResource, Port
from fedsched.model.node import NodeStatus
from fedsched.scheduler import effort, generic
from fedsched.scheduler.decision import Attempt
from fedsched.scheduler.dry_run import dry_run, dry_run_in_pieces
from fedsched.scheduler.effort import LONG_US, effort_us
from fedsched.scheduler.explain import job_why, job_why_in_pieces
from fedsched.scheduler.generic import GenericScheduling
from fedsched.scheduler.pieces import Pieces, at_once
from fedsched.scheduler.schedule import scheduler_for
from fedsched.state.tables.nodes import NodeDeregister, node_upsert
from tests.scheduler.test_generic import a_numbered, a_simple, preempting, some_nodes
from tests.scheduler.toy_region import ToyRegion

LARGE = {"cpu": 100_000, "memory_mb": 100_000, "disk_mb": 1_000_000}
RACK = Spread(attribute="${node.datacenter}", weight=50)
NINE_PER_RACK = Constraint(operand="distinct_property", l_target="${node.datacenter}", r_target="9")
UNIQUE = Constraint(l_target="${node.unique.name}", operand="regexp", r_target="n.*")


def driven(work: Pieces[Any], between: Any = None) -> tuple[Any, int]:
    """The answer and how many pauses it took; `between` is called in each."""
    pauses = 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value, pauses
        pauses += 1
        if between is not None:
            between()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is long, and pieces are tiny."""
    monkeypatch.setattr(generic, "LONG_US", -1)
    monkeypatch.setattr(effort, "PIECE_US", 40)


def scheduling_of(region: ToyRegion, job: Job) -> GenericScheduling:
    made = scheduler_for(job.type)(region.register(job), region.new_id)
    assert isinstance(made, GenericScheduling)
    return made


def where(attempt: Attempt) -> dict[tuple[str, int], int]:
    """Node slots by group and place in it."""
    assert attempt.plan is not None
    return {
        (group.group, name): slot
        for group in attempt.plan.placed
        for name, slot in zip(
            np.frombuffer(group.name_indexes, dtype="<u4").tolist(),
            np.frombuffer(group.node_slots, dtype="<u4").tolist(),
            strict=True,
        )
    }


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "spread": {"spreads": (RACK,)},
    "ports": {"networks": (NetworkResource(dynamic_ports=(Port(label="http"),)),)},
    "distinct": {
        "constraints": (Constraint(operand="distinct_property", l_target="${node.datacenter}", r_target="9"),)
    },
    "unique": {"constraints": (UNIQUE,)},
    "affinity": {"affinities": (Affinity(l_target="${node.datacenter}", operand="=", r_target="dc1", weight=20),)},
    "too large": {"cpu": 30_000},
    "system": {"type": "system", "reschedule_policy": None, "migrate": None},
}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("shape", SHAPES)
def test_in_pieces_everything_goes_where_it_would_go_at_once(shape: str) -> None:
    region = ToyRegion(a_numbered(n, datacenter=f"dc{n % 3}", **LARGE) for n in range(1, 10))
    fields = {"cpu": 100, "datacenters": ("*",), **SHAPES[shape]}
    scheduling = scheduling_of(region, a_simple(1 if shape == "system" else 50, **fields))
    whole = scheduling.attempt(region.store, region.fleet, region.now_ns)

    found, pauses = driven(scheduling.attempt_in_pieces(region.store, region.fleet, region.now_ns))

    assert where(found) == where(whole)
    assert [one.failed_tg_allocs.keys() for one in found.ends] == [one.failed_tg_allocs.keys() for one in whole.ends]
    assert [one.queued_allocations for one in found.ends] == [one.queued_allocations for one in whole.ends]
    assert pauses > 5


@pytest.mark.usefixtures("impatient")
def test_replacements_are_placed_in_pieces_too() -> None:
    region = ToyRegion(some_nodes(2, **LARGE))
    job = a_simple(40, cpu=10)
    region.report(region.go(job), ClientStatus.RUNNING)
    for number in (1, 2):
        region.do(node_upsert(replace(a_numbered(number, **LARGE), status=NodeStatus.DOWN)))
    region.do(node_upsert(a_numbered(3, **LARGE)))
    made = scheduler_for("service")(region.evaluate(job), region.new_id)
    assert isinstance(made, GenericScheduling)

    attempt, pauses = driven(made.attempt_in_pieces(region.store, region.fleet, region.now_ns))

    region.commit(attempt)
    assert pauses > 10
    assert len({one.previous_allocation for one in region.live(job)}) == 40


@pytest.mark.usefixtures("impatient")
def test_evictions_are_pieces_too() -> None:
    region = ToyRegion(some_nodes(4, cpu=1000))
    preempting(region)
    region.go(a_simple(4, job_id="low", cpu=900, priority=10))
    scheduling = scheduling_of(region, a_simple(4, job_id="high", cpu=900, priority=90))

    attempt, pauses = driven(scheduling.attempt_in_pieces(region.store, region.fleet, region.now_ns))

    assert len(where(attempt)) == 4
    assert pauses >= 8


def test_a_short_attempt_has_no_pause() -> None:
    region = ToyRegion(some_nodes(3))
    scheduling = scheduling_of(region, a_simple(20, cpu=10))

    _, pauses = driven(scheduling.attempt_in_pieces(region.store, region.fleet, region.now_ns))

    assert pauses == 0


def test_four_thousand_placements_pause_every_few_milliseconds_worth_of_work() -> None:
    region = ToyRegion(a_numbered(n, datacenter=f"dc{n % 3}", **LARGE) for n in range(1, 10))
    scheduling = scheduling_of(region, a_simple(4000, cpu=10, memory_mb=10, spreads=(RACK,), datacenters=("*",)))

    attempt, pauses = driven(scheduling.attempt_in_pieces(region.store, region.fleet, region.now_ns))

    assert len(where(attempt)) == 4000
    assert pauses > 4000 * effort.TIED_US / effort.PIECE_US


def test_a_dry_run_of_fifty_thousand_pauses_too() -> None:
    region = ToyRegion(some_nodes(9, cpu=1_000_000, memory_mb=1_000_000, disk_mb=100_000_000))
    job = canonicalise(a_simple(50_000, cpu=10, memory_mb=10))

    found, pauses = driven(dry_run_in_pieces(region.store, region.fleet, job, region.now_ns))

    assert found.annotations.desired_tg_updates["group"].place == 50_000
    assert not found.failed
    assert pauses > 50_000 * effort.PLAIN_US / effort.PIECE_US


@pytest.mark.usefixtures("impatient")
def test_what_happens_in_the_pauses_does_not_show() -> None:
    region = ToyRegion(some_nodes(4, **LARGE))
    scheduling = scheduling_of(region, a_simple(30, cpu=100, spreads=(RACK,)))
    whole = scheduling.attempt(region.store, region.fleet, region.now_ns)
    index = region.store.index
    number = iter(range(5, 10_000))

    def between() -> None:
        joins = next(number)
        region.do(node_upsert(a_numbered(joins, **LARGE)))
        if joins < 8:
            region.do(NodeDeregister(ids=(a_numbered(joins - 4).id,)))

    attempt, pauses = driven(scheduling.attempt_in_pieces(region.store, region.fleet, region.now_ns), between)

    assert pauses > 5
    assert attempt.plan is not None
    assert attempt.plan.snapshot_index == index
    assert where(attempt) == where(whole)


@pytest.mark.usefixtures("impatient")
def test_an_evaluation_that_is_gone_after_the_nodes_were_read_is_cancelled() -> None:
    from fedsched.state.tables.alloc_updates import Reap

    region = ToyRegion(some_nodes(200, **LARGE))
    scheduling = scheduling_of(region, a_simple(3, constraints=(UNIQUE,)))

    attempt, _ = driven(
        scheduling.attempt_in_pieces(region.store, region.fleet, region.now_ns),
        lambda: region.do(Reap(evaluations=(scheduling.evaluation.id,))),
    )

    assert attempt.plan is None
    assert [one.status.value for one in attempt.ends] == ["canceled"]


@pytest.mark.usefixtures("impatient")
def test_a_dry_run_and_an_explanation_in_pieces_say_the_same() -> None:
    region = ToyRegion(some_nodes(3, cpu=1000))
    job = a_simple(12, cpu=300)
    region.run(region.register(job))
    stored = region.store.jobs.get("default", "web")
    assert stored is not None
    changed = canonicalise(a_simple(20, cpu=300))
    whole = dry_run(region.store, region.fleet, changed, region.now_ns)
    why = job_why(region.store, region.fleet, stored, region.now_ns)

    found, pauses = driven(dry_run_in_pieces(region.store, region.fleet, changed, region.now_ns))
    told, more = driven(job_why_in_pieces(region.store, region.fleet, stored, region.now_ns))

    assert min(pauses, more) > 3
    assert (found.annotations, found.failed.keys()) == (whole.annotations, whole.failed.keys())
    assert told == why


def test_what_a_stopped_job_is_needs_no_dry_run() -> None:
    region = ToyRegion(some_nodes(1))
    job = replace(canonicalise(a_simple(1)), stop=True)
    told, pauses = driven(job_why_in_pieces(region.store, region.fleet, job, region.now_ns))
    assert (told.verdict, pauses) == ("stopped", 0)


def test_work_can_be_had_at_once() -> None:
    def work() -> Pieces[int]:
        yield
        yield
        return 7

    assert at_once(work()) == 7


class TestEffort:
    @staticmethod
    def of(job: Job, *, nodes: int = 3, placed: bool = False) -> float:
        region = ToyRegion(some_nodes(nodes, **LARGE))
        evaluation = region.register(job)
        if placed:
            region.run(evaluation)
        view = region.store.view_for(evaluation.id)
        assert view is not None
        return effort_us(view, region.fleet, placements_max=4000, looks_max=256)

    def test_a_job_of_a_thousand_is_short_and_one_of_four_thousand_long(self) -> None:
        assert self.of(a_simple(1000, cpu=10)) < LONG_US < self.of(a_simple(4000, cpu=10))

    def test_what_ties_nodes_to_one_another_takes_longer(self) -> None:
        assert self.of(a_simple(1000, cpu=10, spreads=(RACK,))) > LONG_US
        apart = Constraint(operand="distinct_property", l_target="${node.datacenter}")
        assert self.of(a_simple(1000, cpu=10, constraints=(apart,))) > LONG_US

    def test_ports_take_a_look_at_each(self) -> None:
        network = NetworkResource(dynamic_ports=(Port(label="http"),))
        assert self.of(a_simple(100, cpu=10, networks=(network,))) > LONG_US

    def test_what_nodes_do_not_share_makes_all_of_them_be_looked_at(self) -> None:
        alike = self.of(a_simple(1), nodes=40)
        for job in (
            a_simple(1, constraints=(UNIQUE,)),
            a_simple(1, affinities=(Affinity(l_target="${node.unique.name}", operand="=", r_target="n1"),)),
            a_simple(1, spreads=(Spread(attribute="${node.unique.id}"),)),
        ):
            assert self.of(job, nodes=40) >= alike + 40 * effort.NODE_US

    def test_what_is_there_already_costs_next_to_nothing(self) -> None:
        assert self.of(a_simple(900, cpu=10), placed=True) < 500

    def test_a_stopped_job_has_nothing_to_place(self) -> None:
        region = ToyRegion(some_nodes(2))
        evaluation = region.register(replace(a_simple(4000), stop=True))
        view = region.store.view_for(evaluation.id)
        assert view is not None
        assert effort_us(view, region.fleet, placements_max=4000, looks_max=256) < LONG_US
