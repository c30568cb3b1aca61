"""Plans in flight and planned allocations are counted in advance and taken back; copies; the log of touched nodes."""

from __future__ import annotations

import numpy as np
import pytest

from fedsched.model.alloc import DesiredStatus
from fedsched.scheduler.fleet_columns import LOG_MAX, FleetColumns
from fedsched.scheduler.fleet_usage import Usage
from fedsched.scheduler.special import Special
from fedsched.state.tables.alloc_columns import DESIRED_CODES
from fedsched.state.tables.nodes import NodeDeregister, node_upsert
from fedsched.state.tables.plans import StoppedBatch, UpdatedGroup
from tests.builders import a_node, an_id
from tests.scheduler.fleets import a_fleet, slots
from tests.scheduler.followed import (
    STATUS,
    Followed,
    a_plan,
    fields_of,
    given_resources,
    held,
    own,
    picture,
    used,
)
from tests.state.worlds import ids, placed_group

pytestmark = pytest.mark.plans_by_hand


class TestInAdvance:
    """Plans in flight and planned allocations are counted and taken back."""

    def test_a_plan_in_flight_takes_room_until_it_is_released(self) -> None:
        world = Followed()
        world.begin()
        before = picture(world.fleet)
        plan = a_plan(world, [1, 2], [0, 1], given_resources(ports=(80,)))
        made = world.fleet.reserve(world.store, plan)
        assert used(world.fleet, 0) == held(world.fleet, 0) == (100, 200, 30, 1)
        ((key, special),) = world.fleet.specials(0, held=True)
        assert key < 0
        assert special.ports[0].value == 80
        world.fleet.release(made)
        assert picture(world.fleet) == before
        world.fleet.release(made)
        assert picture(world.fleet) == before

    def test_committed_after_its_release_it_is_counted_once(self) -> None:
        world = Followed()
        world.begin()
        plan = a_plan(world, [1, 2], [0, 1], given_resources())
        made = world.fleet.reserve(world.store, plan)
        world.fleet.release(made)
        world.do(plan)
        assert used(world.fleet, 0) == (100, 200, 30, 1)
        world.check()

    def test_what_it_stops_no_longer_holds_its_place_but_still_occupies_it(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        made = world.fleet.reserve(
            world.store, a_plan(world, [], [], given_resources(), stopped=(StoppedBatch(ids=ids([1, 7])),))
        )
        assert used(world.fleet, 0) == (100, 200, 30, 1)
        assert held(world.fleet, 0) == (0, 0, 0, 0)
        world.fleet.release(made)
        world.check()

    def test_a_plan_can_be_counted_against_a_snapshot_too(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        stop = a_plan(world, [], [], given_resources(), stopped=(StoppedBatch(ids=ids([1, 7])),))
        made = world.fleet.reserve(world.store.snapshot(), stop)
        assert held(world.fleet, 0) == (0, 0, 0, 0)
        world.fleet.release(made)
        world.check()

    def test_what_it_only_notes_something_about_goes_on_to_hold_its_place(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        noted = StoppedBatch(ids=ids([1]), desired=DESIRED_CODES[DesiredStatus.RUN], client_status=STATUS["unknown"])
        made = world.fleet.reserve(world.store, a_plan(world, [], [], given_resources(), stopped=(noted,)))
        assert held(world.fleet, 0) == used(world.fleet, 0) == (100, 200, 30, 1)
        world.fleet.release(made)
        world.check()

    def test_what_it_declares_lost_is_gone_altogether(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        lost = StoppedBatch(ids=ids([1]), client_status=STATUS["lost"])
        made = world.fleet.reserve(world.store, a_plan(world, [], [], given_resources(), stopped=(lost,)))
        assert used(world.fleet, 0) == held(world.fleet, 0) == (0, 0, 0, 0)
        world.fleet.release(made)
        world.check()

    def test_a_report_in_between_is_not_counted_twice(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        made = world.fleet.reserve(
            world.store, a_plan(world, [], [], given_resources(), stopped=(StoppedBatch(ids=ids([1])),))
        )
        world.report([1], "failed")
        assert held(world.fleet, 0) == used(world.fleet, 0) == (0, 0, 0, 0)
        world.fleet.release(made)
        world.check()

    def test_updates_in_place_change_what_is_taken(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        update = UpdatedGroup(group="group", ids=ids([1, 9]), shared=fields_of(given_resources(cpu=300)))
        made = world.fleet.reserve(world.store, a_plan(world, [], [], given_resources(), updated=(update,)))
        assert used(world.fleet, 0) == (300, 200, 30, 1)
        world.fleet.release(made)
        unknown = UpdatedGroup(group="group", ids=ids([9]), shared=fields_of(given_resources()))
        world.fleet.release(
            world.fleet.reserve(world.store, a_plan(world, [], [], given_resources(), updated=(unknown,)))
        )
        world.check()

    def test_an_evaluation_may_use_the_place_of_what_its_own_plan_stops(self) -> None:
        world = Followed()
        world.begin()
        world.start([1, 2], [0, 0], given_resources(ports=(80,)))
        made = world.fleet.set_aside(slots(0, 0))
        assert used(world.fleet, 0) == (100, 200, 30, 1)
        assert [slot for slot, _ in world.fleet.specials(0)] == [1]
        world.fleet.release(made)
        world.check()

    def test_planned_allocations_can_be_counted_one_per_slot_given(self) -> None:
        world = Followed()
        world.begin()
        special = Special(cores=(1,))
        made = world.fleet.place(slots(0, 0, 1), Usage(10, 20, 30), [special, None, None])
        assert used(world.fleet, 0) == (20, 40, 60, 2)
        assert list(world.fleet.specials(0)) == [(-1, special)]
        world.fleet.release(made)
        world.check()

    def test_slots_beyond_the_fleet_are_left_to_whoever_carries_the_plan_out(self) -> None:
        world = Followed()
        world.begin()
        made = world.fleet.reserve(world.store, a_plan(world, [1, 2], [0, 4000], given_resources(ports=(1,))))
        assert used(world.fleet, 0) == (100, 200, 30, 1)
        world.fleet.release(made)
        world.check()

    def test_own_fields_of_a_plan_in_flight_count(self) -> None:
        world = Followed()
        world.begin()
        group = placed_group([1, 2], [0, 0], shared=fields_of(given_resources()), **own({1: given_resources(cpu=7)}))
        made = world.fleet.reserve(world.store, a_plan(world, [], [], given_resources(), placed=(group,)))
        assert used(world.fleet, 0) == (107, 400, 60, 2)
        world.fleet.release(made)
        world.check()


class TestCopies:
    def test_a_copy_goes_its_own_way(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources(ports=(80,)))
        copy, before = world.fleet.copy(), picture(world.fleet)
        world.start([2], [1], given_resources(ports=(81,)))
        world.do(NodeDeregister(ids=(an_id(3),)))
        world.do(node_upsert(a_node(8, attributes={"x": "y"})))
        assert picture(copy) == before
        assert copy.kinds.mask("any", lambda node: True).sum() == 3


class TestTouched:
    """Whoever keeps something per node learns which nodes to look at again."""

    def test_the_log_names_what_was_touched_since(self) -> None:
        fleet = a_fleet([(1000, 1000)] * 5)
        before = fleet.touched
        fleet.place(slots(3, 1, 1), Usage(1, 1, 1))
        touched = fleet.touched_since(before)
        assert touched is not None
        assert touched.tolist() == [3, 1, 1]

    def test_it_wraps_around_and_admits_what_it_forgot(self) -> None:
        columns = FleetColumns()
        columns.touch(np.arange(LOG_MAX - 2))
        at = columns.touched
        columns.touch(slots(7, 8, 9, 10))
        assert columns.touched_since(at) is not None
        assert columns.touched_since(at).tolist() == [7, 8, 9, 10]  # type: ignore[union-attr]
        columns.touch(np.arange(LOG_MAX - 1))
        assert columns.touched_since(at) is None
        columns.touch(np.arange(LOG_MAX + 1))
        assert columns.touched_since(at) is None
