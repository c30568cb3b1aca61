"""What each placement scored, kept in columns."""

from __future__ import annotations

import numpy as np
import pytest

from fedsched.model.alloc import Allocation
from fedsched.state.tables.alloc_scores import NO_SCORES, Scores, joined
from fedsched.state.tables.nodes import NodeDeregister
from fedsched.state.tables.plans import UpdatedGroup
from tests.builders import a_group, a_job, an_id
from tests.state.worlds import World, dump, ids, placed_group


def a_world(nodes: int = 3) -> World:
    world = World()
    world.nodes(nodes)
    world.register(a_job("web", groups=[a_group("group", count=9)]))
    return world


def figures(*lines: list[float]) -> bytes:
    return np.array(lines, dtype="<f4").tobytes()


def scores_of(world: World, number: int) -> tuple[dict[str, float], float]:
    alloc = world.store.allocations.get(an_id(number))
    assert alloc is not None
    return shown(alloc)


def shown(alloc: Allocation) -> tuple[dict[str, float], float]:
    assert alloc.metrics is not None
    first = alloc.metrics.score_meta_data[0]
    assert first.node_id == alloc.node_id
    return dict(first.scores), first.norm_score


ZEROS = {"job-anti-affinity": 0.0, "node-reschedule-penalty": 0.0}


def test_each_allocation_shows_its_own_and_their_mean() -> None:
    world = a_world()
    scored = placed_group(
        [1, 2], [0, 1], score_names="binpack,job-anti-affinity", scores=figures([0.5, 0.25], [0, -0.75])
    )
    world.plan(placed=(scored,))

    assert scores_of(world, 1) == ({**ZEROS, "binpack": 0.5}, 0.5)
    assert scores_of(world, 2) == ({**ZEROS, "binpack": 0.25, "job-anti-affinity": -0.75}, -0.25)


def test_without_scores_nothing_is_shown() -> None:
    world = a_world()
    world.place([1], [0])
    alloc = world.store.allocations.get(an_id(1))
    assert alloc is not None
    assert alloc.metrics is None


def test_what_a_node_that_is_gone_refuses_leaves_the_others_their_own() -> None:
    world = a_world()
    world.do(NodeDeregister(ids=(an_id(2),)))
    world.plan(placed=(placed_group([1, 2, 3], [0, 1, 2], score_names="binpack", scores=figures([0.5, 0.25, 0.125])),))

    assert scores_of(world, 1)[1] == 0.5
    assert scores_of(world, 3)[1] == 0.125
    assert world.store.allocations.slot_of(an_id(2)) < 0


def test_an_update_in_place_takes_them_along_from_every_plan() -> None:
    world = a_world()
    world.plan(placed=(placed_group([1, 2], [0, 1], score_names="binpack", scores=figures([0.5, 0.25])),))
    world.plan(placed=(placed_group([3], [2]),))
    both = placed_group([4, 5], [2, 2], score_names="binpack,preemption", scores=figures([0.75, 0.5], [1.0, 0.0]))
    world.plan(placed=(both,))
    world.register(a_job("web", groups=[a_group("group", count=9)], priority=70))

    world.plan(updated=(UpdatedGroup(group="group", ids=ids([2, 3, 5])),))

    assert scores_of(world, 2) == ({**ZEROS, "binpack": 0.25}, 0.25)
    assert scores_of(world, 5) == ({**ZEROS, "binpack": 0.5, "preemption": 0.0}, 0.25)
    assert scores_of(world, 4) == ({**ZEROS, "binpack": 0.75, "preemption": 1.0}, 0.875)
    alloc = world.store.allocations.get(an_id(3))
    assert alloc is not None
    assert alloc.metrics is None
    assert dump(world.replayed()) == dump(world.store)


@pytest.mark.parametrize(
    ("names", "data"),
    [
        ("binpack", figures([0.5])),
        ("", figures([0.5, 0.5])),
        ("a,a", figures([1, 2], [3, 4])),
        ("a,b", figures([1, 2])),
    ],
)
def test_scores_for_some_but_not_for_all_are_refused(names: str, data: bytes) -> None:
    world = a_world()
    done = world.plan(placed=(placed_group([1, 2], [0, 1], score_names=names, scores=data),))
    assert not done.result.is_done
    assert world.store.allocations.slot_of(an_id(1)) < 0


def test_positions_beyond_the_columns_say_nothing() -> None:
    scores = Scores.of("binpack", figures([0.5, 0.25]))
    assert scores.at(2) == scores.at(-1) == NO_SCORES.at(0) == {}


def test_joined_batches_have_no_number_where_one_said_nothing() -> None:
    one, two = Scores.of("a", figures([1, 2])), Scores.of("a,b", figures([3], [4]))
    both = joined([(one, 2), (NO_SCORES, 1), (two, 1)])
    assert both.names == ("a", "b")
    assert [both.at(at).get("b") for at in range(4)] == [None, None, None, 4]
    assert [both.at(at).get("a") for at in range(4)] == [1, 2, None, 3]
    assert joined([(NO_SCORES, 3)]) == NO_SCORES
    assert joined([(two, 1)]) is two
