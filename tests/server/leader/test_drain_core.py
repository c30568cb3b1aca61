"""How nodes are emptied: a few at a time, the last ones by force, and never called empty before they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.model.alloc import ClientStatus
from fedsched.model.evaluation import Trigger
from fedsched.model.job import Job
from fedsched.model.node import DrainStatus, Eligibility
from fedsched.model.policies import MigrateStrategy
from fedsched.server.leader.drain_core import DrainCore, DrainEffect, EndDrain, MarkMigrate, allowed_moves, command_of
from fedsched.state.tables.alloc_columns import Flag
from tests.builders import a_group, a_job, an_id
from tests.server.leader.worlds import NS, Region
from tests.state.worlds import ids

TEN = range(1, 11)


def a_service(count: int = 10, max_parallel: int = 1, **fields: Any) -> Job:
    return a_job(groups=[a_group(count=count, migrate=MigrateStrategy(max_parallel=max_parallel))], **fields)


class Drainer:
    """A leader's core over a region."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.core = DrainCore()
        self.core.note(region.store, region.everything())

    def review(self) -> list[DrainEffect]:
        self.core.note(self.region.store, self.region.changes())
        return self.core.review(self.region.store, self.region.now_ns, self.region.new_id)

    def after_batch(self) -> list[DrainEffect]:
        """What is written when the batch is due; the first look only begins it."""
        first = self.review()
        assert not any(isinstance(effect, MarkMigrate) for effect in first)
        self.region.sleep(1)
        return self.review()

    def perform(self, effects: Iterable[DrainEffect]) -> list[DrainEffect]:
        done = list(effects)
        for effect in done:
            self.region.do(command_of(effect))
        return done


def marked(effects: Iterable[DrainEffect]) -> int:
    return sum(len(effect.ids) // 16 for effect in effects if isinstance(effect, MarkMigrate))


def ten_on_one(max_parallel: int) -> Drainer:
    """The situation of the vectors: ten healthy allocations, all on the node that drains."""
    region = Region()
    slot = region.node(1)
    region.node(2)
    region.register(a_service(10, max_parallel))
    region.place(TEN, slot)
    region.run(TEN)
    region.drain(1)
    return Drainer(region)


@pytest.mark.parametrize(("max_parallel", "drained"), [(1, 1), (2, 2), (10, 10)])
def test_of_ten_healthy_ones_as_many_move_as_may_move_at_a_time(max_parallel: int, drained: int) -> None:
    assert marked(ten_on_one(max_parallel).after_batch()) == drained


def mark(region: Region, numbers: list[int]) -> None:
    region.do(command_of(MarkMigrate(ids(numbers), False, ())))


def test_one_at_a_time_with_one_already_moving_moves_none() -> None:
    drainer = ten_on_one(1)
    mark(drainer.region, [1])

    assert drainer.review() == []
    assert drainer.core.wake_at_ns() is None


def test_five_at_a_time_with_four_already_moving_moves_one() -> None:
    drainer = ten_on_one(5)
    mark(drainer.region, [1, 2, 3, 4])

    assert marked(drainer.after_batch()) == 1


def test_three_at_a_time_with_five_moved_one_without_health_and_one_finished_moves_one() -> None:
    drainer = ten_on_one(3)
    region = drainer.region
    mark(region, [1, 2, 3, 4, 5])
    region.stop_allocs([1, 2, 3, 4, 5])
    region.client([1, 2, 3, 4, 5], ClientStatus.COMPLETE)
    other = region.store.nodes.slot_of(an_id(2))
    assert other is not None
    region.place([11, 12, 13, 14, 15], other)
    region.run([11, 12, 13])
    region.run([14], healthy=None)
    region.client([15], ClientStatus.COMPLETE, healthy=True)

    assert marked(drainer.after_batch()) == 1


@pytest.mark.parametrize(
    ("settled", "count", "max_parallel", "allowed"),
    [(10, 10, 1, 1), (10, 10, 10, 10), (9, 10, 1, 0), (6, 10, 5, 1), (8, 10, 3, 1), (3, 10, 1, 0)],
)
def test_a_group_spares_what_is_settled_beyond_its_count_less_max_parallel(
    settled: int, count: int, max_parallel: int, allowed: int
) -> None:
    assert allowed_moves(settled=settled, count=count, max_parallel=max_parallel) == allowed


def test_an_unhealthy_allocation_counts_because_its_health_is_known() -> None:
    drainer = ten_on_one(1)
    drainer.region.run([1, 2, 3], healthy=False)

    assert marked(drainer.after_batch()) == 1


def test_allocations_elsewhere_count_for_their_group_but_do_not_move() -> None:
    region = Region()
    here, there = region.node(1), region.node(2)
    region.register(a_service(4, 2))
    region.place([1, 2, 3, 4], [here, there, there, there])
    region.run([1, 2, 3, 4])
    region.drain(1)

    effects = Drainer(region).after_batch()

    assert effects == [MarkMigrate(ids([1]), False, effects[0].evaluations)]  # type: ignore[union-attr]


def test_groups_of_one_job_are_counted_each_for_itself_with_one_evaluation_for_the_job() -> None:
    region = Region()
    slot = region.node(1)
    groups = [a_group(name, count=2, migrate=MigrateStrategy(max_parallel=1)) for name in ("a", "b")]
    region.register(a_job(groups=groups))
    region.place([1, 2], slot, group="a")
    region.place([3, 4], slot, group="b")
    region.run([1, 2, 3, 4])
    region.drain(1)

    (effect,) = Drainer(region).after_batch()

    assert isinstance(effect, MarkMigrate)
    assert len(effect.ids) == 32
    (evaluation,) = effect.evaluations
    assert evaluation.triggered_by == Trigger.NODE_DRAIN.value
    assert (evaluation.job_id, evaluation.node_id, evaluation.type) == ("web", an_id(1), "service")


def test_two_nodes_that_drain_at_once_share_what_the_group_can_spare() -> None:
    region = Region()
    one, two = region.node(1), region.node(2)
    region.register(a_service(4, 1))
    region.place([1, 2, 3, 4], [one, one, two, two])
    region.run([1, 2, 3, 4])
    region.drain(1)
    region.drain(2)

    assert marked(Drainer(region).after_batch()) == 1


def test_flags_are_written_in_batches_of_a_second() -> None:
    drainer = ten_on_one(2)

    assert drainer.review() == []
    assert drainer.core.wake_at_ns() == drainer.region.now_ns + NS
    drainer.region.sleep(0.999)
    assert drainer.review() == []
    drainer.region.sleep(0.001)
    assert marked(drainer.review()) == 2


def test_moves_of_a_batch_are_those_of_the_newest_state() -> None:
    drainer = ten_on_one(10)
    drainer.review()
    drainer.region.client([1, 2, 3], ClientStatus.FAILED)
    drainer.region.sleep(1)

    assert marked(drainer.review()) == 7


def test_a_flag_is_not_written_twice() -> None:
    drainer = ten_on_one(2)
    drainer.perform(drainer.after_batch())

    assert drainer.review() == []
    drainer.region.sleep(5)
    assert drainer.review() == []


def test_a_stopped_job_and_a_group_that_is_gone_are_left_to_their_evaluations() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job("gone", groups=[a_group("a")]))
    region.register(a_job("less", groups=[a_group("a"), a_group("b")]))
    region.place([1], slot, job="gone", group="a")
    region.place([2], slot, job="less", group="b")
    region.run([1, 2])
    region.stop("gone")
    region.register(a_job("less", groups=[a_group("a")]))
    region.drain(1)

    drainer = Drainer(region)

    assert drainer.review() == []
    assert drainer.core.wake_at_ns() is None


@pytest.mark.parametrize("kind", ["batch", "sysbatch"])
def test_batch_work_is_left_alone_until_the_deadline_and_then_stopped_without_a_replacement(kind: str) -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job(type=kind))
    region.place([1], slot)
    region.run([1])
    region.drain(1, deadline_s=60)
    drainer = Drainer(region)
    assert drainer.review() == []
    region.sleep(59)
    assert drainer.review() == []

    region.sleep(1)
    effects = drainer.perform(drainer.review())

    assert [(effect.ids, effect.no_placement) for effect in effects if isinstance(effect, MarkMigrate)] == [
        (ids([1]), True)
    ]
    flags = Flag(int(region.store.allocations.columns.one(region.store.allocations.slot_of(an_id(1)))["flags"]))
    assert flags == Flag.MIGRATE | Flag.MIGRATE_DISABLE_PLACEMENT


def test_at_the_deadline_services_move_all_at_once_whatever_the_group_can_spare() -> None:
    drainer = ten_on_one(1)
    drainer.region.drain(1, deadline_s=30)
    drainer.review()
    drainer.region.sleep(30)

    effects = drainer.review()

    assert marked(effects) == 10
    assert all(not effect.no_placement for effect in effects if isinstance(effect, MarkMigrate))


def test_force_is_a_deadline_that_has_passed() -> None:
    drainer = ten_on_one(1)
    drainer.region.drain(1, deadline_s=-1)

    assert marked(drainer.review()) == 10


def test_no_deadline_is_never_forced() -> None:
    drainer = ten_on_one(1)
    drainer.perform(drainer.after_batch())
    drainer.region.sleep(365 * 86400)

    assert drainer.review() == []


def test_deadlines_within_five_seconds_are_handled_together_at_the_last_of_them() -> None:
    region = Region()
    region.register(a_job(type="batch"))
    for number in (1, 2, 3):
        region.place([number], region.node(number))
    region.run([1, 2, 3])
    for number, deadline_s in ((1, 10), (2, 14), (3, 16)):
        region.drain(number, deadline_s=deadline_s)
    drainer = Drainer(region)
    began = region.now_ns
    assert drainer.core.wake_at_ns() == began + 14 * NS

    region.now_ns = began + 10 * NS
    assert drainer.review() == []
    region.now_ns = began + 14 * NS
    assert marked(drainer.perform(drainer.review())) == 2
    assert drainer.core.wake_at_ns() == began + 16 * NS
    region.now_ns = began + 16 * NS
    assert marked(drainer.review()) == 1


def test_system_allocations_go_after_everything_else() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_service(1, 1))
    region.register(a_job("agent", type="system"))
    region.place([1], slot)
    region.place([2], slot, job="agent")
    region.run([1, 2])
    region.drain(1)
    drainer = Drainer(region)
    (first,) = drainer.perform(drainer.after_batch())
    assert isinstance(first, MarkMigrate)
    assert first.ids == ids([1])
    assert drainer.review() == []

    region.stop_allocs([1])
    region.client([1], ClientStatus.COMPLETE)

    (second,) = drainer.perform(drainer.after_batch())
    assert isinstance(second, MarkMigrate)
    assert second.ids == ids([2])
    assert not second.no_placement
    assert second.evaluations[0].type == "system"


def test_system_allocations_stay_if_the_drain_leaves_them_alone() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job("agent", type="system"))
    region.place([2], slot, job="agent")
    region.run([2])
    region.drain(1, ignore_system_jobs=True)

    assert Drainer(region).review() == [EndDrain((an_id(1),))]


@pytest.mark.parametrize("ignored", [True, False])
def test_force_takes_system_allocations_too_unless_they_are_left_alone(ignored: bool) -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job("agent", type="system"))
    region.place([2], slot, job="agent")
    region.run([2])
    region.drain(1, deadline_s=-1, ignore_system_jobs=ignored)

    assert marked(Drainer(region).review()) == (0 if ignored else 1)


def test_a_drain_is_done_only_when_the_client_says_that_the_last_allocation_ended() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_service(1, 1))
    region.place([1], slot)
    region.run([1])
    region.drain(1)
    drainer = Drainer(region)
    drainer.perform(drainer.after_batch())
    region.stop_allocs([1])
    region.sleep(3600)
    assert drainer.review() == []  # it takes its time to stop

    region.client([1], ClientStatus.COMPLETE)
    assert drainer.perform(drainer.review()) == [EndDrain((an_id(1),))]

    row = region.store.nodes.get(an_id(1))
    assert row is not None
    node = row.node()
    assert node.drain_strategy is None
    assert node.scheduling_eligibility is Eligibility.INELIGIBLE
    assert node.last_drain is not None
    assert node.last_drain.status is DrainStatus.COMPLETE
    assert node.events[-1].subsystem == "Drain"
    assert drainer.review() == []
    assert drainer.core.draining() == []


def test_a_forced_drain_is_not_called_complete_while_a_task_is_still_stopping() -> None:
    drainer = ten_on_one(1)
    region = drainer.region
    region.drain(1, deadline_s=-1)
    drainer.perform(drainer.review())
    region.stop_allocs(TEN)
    region.client(range(1, 10), ClientStatus.COMPLETE)
    assert drainer.review() == []
    assert drainer.core.wake_at_ns() is None

    region.client([10], ClientStatus.COMPLETE)

    assert drainer.review() == [EndDrain((an_id(1),), is_forced=True)]


def test_an_empty_node_is_done_at_once() -> None:
    region = Region()
    region.node(1)
    region.drain(1)

    assert Drainer(region).review() == [EndDrain((an_id(1),))]


def test_a_drain_that_is_called_off_is_forgotten() -> None:
    drainer = ten_on_one(1)
    drainer.review()
    region = drainer.region
    region.node(1, scheduling_eligibility=Eligibility.ELIGIBLE)

    drainer.core.note(region.store, region.changes())

    assert drainer.core.draining() == []


def test_a_new_leader_goes_on_where_the_other_stopped() -> None:
    drainer = ten_on_one(2)
    drainer.perform(drainer.after_batch())

    successor = Drainer(drainer.region)

    assert successor.core.draining() == [an_id(1)]
    assert successor.review() == []


def test_changes_that_no_drain_cares_about_call_for_no_review() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_service())
    drainer = Drainer(region)
    region.place([1], slot)

    assert drainer.core.note(region.store, region.changes()) is False
    region.drain(1)
    region.run([1])
    assert drainer.core.note(region.store, region.changes()) is True


def test_many_allocations_are_flagged_in_entries_of_limited_size() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_service(8000, 8000))
    region.place(range(1, 8001), slot)
    region.run(range(1, 8001))
    region.drain(1)

    sizes = [len(effect.ids) // 16 for effect in Drainer(region).after_batch() if isinstance(effect, MarkMigrate)]

    assert sizes == [7281, 719]


class Fleet:
    """Plays scheduler and clients: what is marked is stopped and replaced elsewhere, and reported after a while."""

    def __init__(self, region: Region, spare: int, kill_s: float) -> None:
        self.region = region
        self.spare = spare
        self.kill_s = kill_s
        self.stopping: list[tuple[int, int]] = []
        self.next = 1000

    def obey(self, effect: MarkMigrate, jobs: dict[int, str]) -> None:
        for at in range(0, len(effect.ids), 16):
            number = int.from_bytes(effect.ids[at : at + 16], "big")
            job = jobs[number]
            self.region.stop_allocs([number], job=job)
            self.stopping.append((self.region.now_ns + round(self.kill_s * NS), number))
            if not effect.no_placement and job != "agent":
                self.next += 1
                jobs[self.next] = job
                self.region.place([self.next], self.spare, job=job, previous=[number])
                self.region.run([self.next])

    def report(self) -> None:
        due = [number for when, number in self.stopping if when <= self.region.now_ns]
        self.stopping = [one for one in self.stopping if one[0] > self.region.now_ns]
        if due:
            self.region.client(due, ClientStatus.COMPLETE)


@given(
    services=st.integers(0, 6),
    batches=st.integers(0, 3),
    systems=st.integers(0, 2),
    max_parallel=st.integers(1, 3),
    deadline_s=st.sampled_from([-1.0, 7.0, 60.0]),
    kill_s=st.sampled_from([0.0, 2.0, 25.0]),
    successor_at=st.integers(0, 40),
)
@settings(max_examples=60)
def test_a_drain_with_a_deadline_always_ends_and_never_before_the_last_task(
    services: int,
    batches: int,
    systems: int,
    max_parallel: int,
    deadline_s: float,
    kill_s: float,
    successor_at: int,
) -> None:
    region = Region()
    here, spare = region.node(1), region.node(2)
    jobs: dict[int, str] = {}
    for job_id, kind, amount in (
        ("web", "service", services),
        ("sums", "batch", batches),
        ("agent", "system", systems),
    ):
        group = a_group(count=max(1, amount), migrate=MigrateStrategy(max_parallel=max_parallel))
        region.register(a_job(job_id, type=kind, groups=[group]))
        numbers = list(range(len(jobs) + 1, len(jobs) + 1 + amount))
        if numbers:
            region.place(numbers, here, job=job_id)
            region.run(numbers)
        jobs |= dict.fromkeys(numbers, job_id)
    first = dict(jobs)
    region.drain(1, deadline_s=deadline_s)
    drainer, fleet = Drainer(region), Fleet(region, spare, kill_s)

    for second in range(int(max(0.0, deadline_s) + kill_s) + 10):
        if second == successor_at:
            drainer = Drainer(region)
        for effect in drainer.perform(drainer.review()):
            if isinstance(effect, MarkMigrate):
                fleet.obey(effect, jobs)
            else:
                left = [number for number in first if not region.alloc(number).client_status.is_terminal]
                assert left == []
        row = region.store.nodes.get(an_id(1))
        assert row is not None
        if not row.draining:
            return
        region.sleep(1)
        fleet.report()
    pytest.fail("the drain did not end")


def test_allocations_of_a_purged_job_are_left_to_its_evaluation() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_service(1))
    region.place([1], slot)
    region.run([1])
    region.stop("web", purge=True)
    region.drain(1)

    drainer = Drainer(region)

    assert drainer.review() == []
    assert drainer.core.wake_at_ns() is None


def test_a_job_that_can_spare_more_from_now_on_lets_more_go() -> None:
    drainer = ten_on_one(1)
    drainer.perform(drainer.after_batch())
    drainer.region.register(a_service(10, 3))

    assert drainer.core.note(drainer.region.store, drainer.region.changes()) is True
    assert marked(drainer.after_batch()) == 2


def test_those_that_move_get_one_evaluation_of_their_job_with_their_flag() -> None:
    drainer = ten_on_one(2)

    (effect,) = drainer.perform(drainer.after_batch())

    assert isinstance(effect, MarkMigrate)
    made = [row.evaluation() for row in drainer.region.store.evaluations.rows.scan()]
    assert [(one.job_id, one.triggered_by, one.status) for one in made] == [("web", "node-drain", "pending")]
