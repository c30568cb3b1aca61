"""A dry run says what a run does, and writes nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fedsched.model.alloc import ClientStatus
from fedsched.model.constraint import Affinity, Constraint, Spread
from fedsched.model.evaluation import EvaluationStatus
from fedsched.model.job import Job
from fedsched.model.job_defaults import canonicalise
from fedsched.model.network import NetworkResource, Port
from fedsched.model.policies import UpdateStrategy
from fedsched.scheduler.dry_run import dry_run
from fedsched.state.tables.plans import PlanApply
from tests.builders import a_task
from tests.overcommit import ids_of
from tests.scheduler.test_generic import a_numbered, a_simple, some_nodes
from tests.scheduler.toy_region import ToyRegion

BATCHES = 20
PER_BATCH = 100


def test_a_new_job_is_all_placements() -> None:
    region = ToyRegion(some_nodes(3))

    found = dry_run(region.store, region.fleet, canonicalise(a_simple(4)), region.now_ns)

    assert found.annotations.desired_tg_updates["group"].place == 4
    assert (found.stored, found.job.version, found.failed, found.created) == (None, 0, {}, ())
    assert region.live(a_simple()) == []
    assert found.diff().type.value == "Added"


def test_a_count_going_up_updates_the_rest_in_place() -> None:
    region = ToyRegion(some_nodes(3))
    region.go(a_simple(2))

    found = dry_run(region.store, region.fleet, canonicalise(a_simple(3)), region.now_ns)

    counts = found.annotations.desired_tg_updates["group"]
    assert (counts.in_place_update, counts.place) == (2, 1)
    assert found.stored is not None
    assert (found.stored.version, found.job.version) == (0, 1)


def test_what_would_not_fit_is_explained_and_the_blocked_evaluation_named() -> None:
    region = ToyRegion(some_nodes(1, cpu=1000))
    before = region.store.index

    found = dry_run(region.store, region.fleet, canonicalise(a_simple(3, cpu=400)), region.now_ns)

    assert found.failed["group"].dimension_exhausted == {"cpu": 1}
    assert [one.status for one in found.created] == [EvaluationStatus.BLOCKED]
    assert region.store.index == before


def test_an_unchanged_job_would_do_nothing() -> None:
    region = ToyRegion(some_nodes(2))
    region.go(a_simple(2))

    found = dry_run(region.store, region.fleet, canonicalise(a_simple(2)), region.now_ns)

    assert found.plan is None
    assert found.annotations.desired_tg_updates["group"].ignore == 2


def test_constraints_that_were_only_tried_are_not_remembered() -> None:
    region = ToyRegion(some_nodes(2))
    region.go(a_simple(1))
    wish = Constraint(l_target="${node.class}", operand="=", r_target="gpu")
    dry_run(region.store, region.fleet, canonicalise(a_simple(2, constraints=(wish,))), region.now_ns)

    assert len(region.go(a_simple(2))) == 2


def test_nodes_that_a_system_job_cannot_use_are_no_placements() -> None:
    region = ToyRegion([*some_nodes(2), a_numbered(3, node_class="gpu", computed_class="g")])
    wish = Constraint(l_target="${node.class}", operand="=", r_target="gpu")
    job = a_simple(1, type="system", reschedule_policy=None, migrate=None, constraints=(wish,))

    found = dry_run(region.store, region.fleet, canonicalise(job), region.now_ns)

    assert found.annotations.desired_tg_updates["group"].place == 1
    assert found.failed == {}


def a_random_job(dice: random.Random, job_id: str) -> Job:
    network = NetworkResource(reserved_ports=(Port(label="http", value=dice.choice((80, 8080))),))
    fields: dict[str, Any] = {
        "update": dice.choice(
            (UpdateStrategy(max_parallel=0), UpdateStrategy(max_parallel=2), UpdateStrategy(canary=1))
        ),
        "networks": dice.choice(((), (), (network,))),
        "constraints": dice.choice(((), (), (Constraint(operand="distinct_hosts"),))),
        "tasks": [
            a_task(
                cpu=dice.choice((100, 500, 900)),
                memory_mb=dice.choice((64, 256, 1024)),
                env=dice.choice(({}, {}, {"A": "1"})),
            )
        ],
    }
    if dice.random() < 0.3:
        fields["spreads"] = (Spread(attribute="${meta.rack}", weight=50),)
    if dice.random() < 0.3:
        fields["affinities"] = (Affinity(l_target="${meta.rack}", operand="=", r_target="r1", weight=50),)
    kind = dice.choice(("service", "service", "service", "batch", "batch", "system"))
    if kind == "batch":
        fields["update"] = fields["migrate"] = None
    if kind == "system":
        fields |= {"migrate": None, "reschedule_policy": None, "affinities": (), "spreads": ()}
        fields["update"] = UpdateStrategy(max_parallel=2)
        return a_simple(1, job_id=f"{job_id}-{kind}", type=kind, priority=dice.choice((50, 60)), **fields)
    return a_simple(dice.randrange(6), job_id=f"{job_id}-{kind}", type=kind, priority=dice.choice((50, 60)), **fields)


def shape(plan: PlanApply | None) -> Any:
    """A plan without what chance gives: ids, which of several equally good nodes is taken, and who comes first."""
    if plan is None:
        return None
    return (
        plan.job_version,
        [(part.group, part.name_indexes, part.flags, bool(part.own)) for part in plan.placed],
        sorted((sorted(ids_of([part])), part.desired, part.client_status) for part in plan.stopped),
        sorted((part.group, part.ids) for part in plan.updated),
        [(one.status, one.groups) for one in plan.deployments],
    )


@pytest.mark.parametrize("batch", range(BATCHES))
def test_a_dry_run_decides_what_the_run_then_does(batch: int) -> None:
    dice = random.Random(batch)
    region = ToyRegion(
        a_numbered(number, cpu=3000, memory_mb=4096, meta={"rack": f"r{number % 2}"}, computed_class=f"c{number % 2}")
        for number in (1, 2, 3)
    )
    for _ in range(PER_BATCH):
        job = a_random_job(dice, dice.choice(("a", "b")))
        found = dry_run(region.store, region.fleet, canonicalise(job), region.now_ns)

        attempts = region.run(region.register(job))

        assert shape(attempts[0].plan) == shape(found.plan)
        assert attempts[0].desired == found.annotations.desired_tg_updates
        for one in region.live(job):
            region.report([one], dice.choice((ClientStatus.RUNNING, ClientStatus.RUNNING, ClientStatus.FAILED)))
