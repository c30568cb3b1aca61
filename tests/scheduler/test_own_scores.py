"""Every allocation shows what its own placement scored, however many were placed with it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from fedsched.codec import dumps, to_builtins
from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.alloc_metric import NodeScoreMeta
from fedsched.model.constraint import Affinity, Spread
from fedsched.model.score_names import AFFINITY, ANTI_AFFINITY, FIT, RESCHEDULE_PENALTY, SPREAD, mean_of
from fedsched.scheduler.explain import alloc_why
from fedsched.scheduler.schedule import scheduler_for
from fedsched.state.commands import Envelope, encode_command
from tests.scheduler.test_generic import a_numbered, a_simple, some_nodes
from tests.scheduler.toy_region import ToyRegion


def own(alloc: Allocation) -> NodeScoreMeta:
    assert alloc.metrics is not None
    first = alloc.metrics.score_meta_data[0]
    assert first.node_id == alloc.node_id
    return first


def test_each_of_a_batch_has_the_figures_of_its_own_placement() -> None:
    region = ToyRegion([a_numbered(1, cpu=4000, memory_mb=8192)])

    allocs = region.go(a_simple(3, cpu=500, memory_mb=256))

    assert [own(one).scores[FIT] for one in allocs] == pytest.approx([0.177519, 0.317608, 0.429145], abs=2e-6)
    assert [own(one).scores[ANTI_AFFINITY] for one in allocs] == pytest.approx([0, -2 / 3, -1], abs=2e-6)
    assert [own(one).scores[RESCHEDULE_PENALTY] for one in allocs] == [0, 0, 0]
    finals = [own(one).norm_score for one in allocs]
    assert finals == pytest.approx([0.177519, (0.317608 - 2 / 3) / 2, (0.429145 - 1) / 2], abs=2e-6)


def test_an_affinity_of_0_counts_and_is_shown() -> None:
    region = ToyRegion(some_nodes(2))
    nowhere = Affinity(l_target="${node.class}", operand="=", r_target="gpu", weight=100)

    allocs = region.go(a_simple(2, affinities=(nowhere,)))

    for one in allocs:
        scores = own(one).scores
        assert scores[AFFINITY] == 0
        assert own(one).norm_score == pytest.approx(scores[FIT] / 2, abs=2e-6)


def test_the_boost_of_a_spread_is_the_one_at_its_turn() -> None:
    region = ToyRegion([a_numbered(1, datacenter="dc1"), a_numbered(2, datacenter="dc2")])
    job = a_simple(3, datacenters=("*",), spreads=(Spread(attribute="${node.datacenter}", weight=50),))

    allocs = region.go(job)

    assert [own(one).scores.get(SPREAD, 0.0) for one in allocs] == [0, 1, -1]
    assert all(own(one).norm_score == pytest.approx(mean_of(own(one).scores), abs=2e-6) for one in allocs)


def test_beside_it_stand_the_best_nodes_of_its_batch_each_once() -> None:
    region = ToyRegion(some_nodes(9))

    for one in region.go(a_simple(9)):
        assert one.metrics is not None
        shown = [score.node_id for score in one.metrics.score_meta_data]
        assert len(shown) == len(set(shown)) == 5


def test_an_update_in_place_keeps_them() -> None:
    region = ToyRegion(some_nodes(2))
    job = a_simple(6)
    before = {one.id: own(one) for one in region.go(job)}

    region.run(region.register(replace(job, priority=70)))

    after = region.live(job)
    assert {region.store.allocations.origin_of(region.store.allocations.slot_of(one.id)).job_version for one in after}
    assert {one.id: own(one) for one in after} == before


def test_updates_in_place_of_several_plans_are_told_apart() -> None:
    region = ToyRegion(some_nodes(3))
    region.go(a_simple(4))
    region.run(region.register(a_simple(9)))
    before = {one.id: own(one) for one in region.live(a_simple())}

    region.run(region.register(a_simple(9, priority=70)))

    assert {one.id: own(one) for one in region.live(a_simple())} == before


def test_an_allocation_explains_its_own_score() -> None:
    region = ToyRegion([a_numbered(1, cpu=4000, memory_mb=8192)])
    allocs = region.go(a_simple(2, cpu=500, memory_mb=256))

    first, second = (alloc_why(region.store, one, region.now_ns) for one in allocs)

    assert "Node n1 scored 0.178, the best of 1 looked at." in first.words
    assert "Node n1 scored -0.341, the best of 1 looked at." in second.words
    assert second.candidates[0].scores[ANTI_AFFINITY] == -1


def test_it_is_said_when_the_others_are_shown_as_they_were_before_its_batch() -> None:
    region = ToyRegion(some_nodes(2))
    allocs = region.go(a_simple(4))

    first, *_, last = (alloc_why(region.store, one, region.now_ns) for one in allocs)

    said = "The other nodes are shown as they were before any of its plan was placed."
    assert said not in first.words
    assert said in last.words


def test_a_lost_one_that_comes_back_is_judged_by_its_own_score() -> None:
    region = ToyRegion(some_nodes(1))
    job = a_simple(3)
    allocs = region.go(job)
    region.report(allocs, ClientStatus.RUNNING)

    from fedsched.scheduler.reconcile.disconnect import score

    assert [score(one) for one in allocs] == [own(one).norm_score for one in allocs]
    assert len({score(one) for one in allocs}) == 3


@pytest.mark.parametrize("spreads", [(), (Spread(attribute="${node.datacenter}", weight=50),)])
def test_a_placement_takes_at_most_forty_bytes_of_the_log(spreads: tuple[Spread, ...]) -> None:
    region = ToyRegion(some_nodes(20, cpu=100_000, memory_mb=100_000, disk_mb=1_000_000))
    evaluation = region.register(a_simple(1000, cpu=10, memory_mb=10, spreads=spreads))
    attempt = region.attempt(scheduler_for("service")(evaluation, region.new_id))
    assert attempt.plan is not None
    (group,) = attempt.plan.placed
    shared = len(group.shared) + len(dumps(to_builtins(attempt.ends[0])))

    size = len(encode_command(Envelope(command=attempt.plan, time_ns=0))) - shared

    assert size <= 40 * 1000
