"""Replacements, however many, each linked to what it replaces."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.constraint import Constraint
from fedsched.model.evaluation import Trigger
from fedsched.model.ids import uuid_bytes
from fedsched.model.job import Job
from fedsched.model.network import NetworkResource, Port
from fedsched.model.node import NodeStatus
from fedsched.model.policies import EphemeralDisk, ReschedulePolicy, UpdateStrategy
from fedsched.scheduler import run
from fedsched.state.tables.alloc_columns import CLIENT_CODES, Flag
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, AllocTransition
from fedsched.state.tables.nodes import node_upsert
from tests.builders import a_task
from tests.scheduler.test_generic import a_numbered, a_simple, preempting, some_nodes
from tests.scheduler.toy_region import ToyRegion

LARGE = {"cpu": 1_000_000, "memory_mb": 1_000_000, "disk_mb": 10_000_000}
AT_ONCE = ReschedulePolicy(unlimited=True, delay_s=0.0, delay_function="constant")
IN_HALF_A_MINUTE = ReschedulePolicy(unlimited=True, delay_s=30.0, delay_function="constant")


def with_lost(job: Job, *, nodes: int = 2, spare: int = 3) -> tuple[ToyRegion, list[Allocation]]:
    """A region in which all of a job's allocations have just lost their nodes, and the allocations."""
    region = ToyRegion(some_nodes(nodes, **LARGE))
    old = region.go(job)
    region.report(old, ClientStatus.RUNNING)
    for number in range(1, nodes + 1):
        region.do(node_upsert(replace(a_numbered(number, **LARGE), status=NodeStatus.DOWN)))
    for number in range(nodes + 1, nodes + spare + 1):
        region.do(node_upsert(a_numbered(number, **LARGE)))
    return region, old


def links(region: ToyRegion, job: Job) -> dict[str, str]:
    """What replaces what."""
    return {one.id: one.previous_allocation for one in region.live(job) if one.previous_allocation}


def linked_both_ways(region: ToyRegion, job: Job, old: list[Allocation]) -> bool:
    """Whether each of these has a replacement of the same name, and both know one another."""
    known = {one.id: one for one in region.allocs(job)}
    found = {before: known[after] for after, before in links(region, job).items()}
    return all(
        one.id in found and found[one.id].name == one.name and known[one.id].next_allocation == found[one.id].id
        for one in old
    )


class TestLost:
    @pytest.mark.plans_by_hand  # not that they are: it would read the whole records of thousands after every plan
    def test_five_thousand_lost_at_once_are_replaced_by_one_evaluation_and_all_are_linked(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ToyRegion, "check_nodes", lambda *_: None)
        job = a_simple(5000, cpu=10, memory_mb=10)
        region = ToyRegion(some_nodes(4, **LARGE))
        region.run(region.register(job))
        allocations = region.store.allocations
        old = allocations.slots_of_job("default", "web")
        rows = allocations.columns.read(old)
        ids = rows["id"].astype(">u8").tobytes()
        region.do(AllocStatusUpdate(ids=ids, statuses=bytes([CLIENT_CODES[ClientStatus.RUNNING]]) * 5000))
        region.do(node_upsert(a_numbered(5, **LARGE)))
        for number in range(1, 5):
            region.do(node_upsert(replace(a_numbered(number, **LARGE), status=NodeStatus.DOWN)))

        attempts = region.run(region.evaluate(job))

        placed = [group for attempt in attempts if attempt.plan for group in attempt.plan.placed]
        names = dict(
            zip((ids[at : at + 16] for at in range(0, len(ids), 16)), rows["name_index"].tolist(), strict=True)
        )
        links = {
            group.previous[16 * at : 16 * at + 16]: name
            for group in placed
            for at, name in enumerate(np.frombuffer(group.name_indexes, dtype="<u4").tolist())
        }
        assert len(attempts) == 2
        assert links == names
        after = allocations.columns.read(old)
        assert (after["client_status"] == CLIENT_CODES[ClientStatus.LOST]).all()
        assert (after["kin_crc"] != 0).all()

    def test_those_that_one_plan_has_no_room_for_are_lost_only_when_they_are_replaced(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(run, "PLACEMENTS_MAX", 40)
        job = a_simple(100, cpu=10)
        region, old = with_lost(job)

        attempts = region.run(region.evaluate(job))

        told = [sum(len(batch.ids) // 16 for batch in one.plan.stopped) for one in attempts if one.plan]
        assert told == [40, 40, 20]
        assert linked_both_ways(region, job, old)
        assert len(region.live(job)) == 100

    def test_a_plan_that_ends_with_one_group_leaves_the_next_group_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run, "PLACEMENTS_MAX", 5)
        job = a_simple(4, cpu=10)
        group = job.task_groups[0]
        job = replace(job, task_groups=(group, replace(group, name="other")))
        region, old = with_lost(job)

        region.run(region.evaluate(job))

        assert linked_both_ways(region, job, old)

    def test_what_finds_no_place_is_one_failure_and_the_rest_alike(self) -> None:
        job = a_simple(6, cpu=100_000)
        region, _ = with_lost(job, nodes=1, spare=0)
        region.do(node_upsert(a_numbered(9, cpu=400_000, memory_mb=1_000_000, disk_mb=10_000_000)))
        evaluation = region.evaluate(job)

        region.run(evaluation)

        assert len(links(region, job)) == 4
        done = region.evaluation(evaluation.id)
        assert (done.queued_allocations, done.failed_tg_allocs["group"].coalesced_failures) == ({"group": 2}, 1)

    def test_with_ports_each_gets_its_own(self) -> None:
        network = NetworkResource(dynamic_ports=(Port(label="http"),))
        job = a_simple(20, cpu=10, networks=(network,))
        region, old = with_lost(job)

        region.run(region.evaluate(job))

        assert linked_both_ways(region, job, old)

    def test_a_group_without_a_place_does_not_end_the_work_on_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(run, "LOOKS_MAX", 3)
        network = NetworkResource(dynamic_ports=(Port(label="http"),))
        job = a_simple(5, cpu=10, networks=(network,))
        group = job.task_groups[0]
        huge = replace(group, name="huge", networks=(), tasks=(a_task(cpu=10_000_000),))
        region = ToyRegion(some_nodes(2, **LARGE))
        evaluation = region.register(replace(job, task_groups=(group, huge)))

        attempts = region.run(evaluation)

        assert len(attempts) == 2
        assert len(region.live(job)) == 5
        assert region.evaluation(evaluation.id).queued_allocations["huge"] == 5


class TestFailed:
    def test_many_that_failed_at_once_each_avoid_their_own_node_and_carry_their_story(self) -> None:
        region = ToyRegion(some_nodes(3, **LARGE))
        job = a_simple(60, cpu=10, reschedule_policy=AT_ONCE)
        old = {one.id: one for one in region.go(job)}
        region.report(old.values(), ClientStatus.FAILED)

        attempts = region.run(region.evaluate(job, Trigger.ALLOC_FAILURE))

        assert len(attempts) == 1
        new = region.live(job)
        assert len(new) == 60
        for one in new:
            before = old[one.previous_allocation]
            assert one.node_id != before.node_id
            assert one.reschedule_tracker is not None
            assert [(event.prev_alloc_id, event.prev_node_id) for event in one.reschedule_tracker.events] == [
                (before.id, before.node_id)
            ]

    def test_the_second_time_they_avoid_both_nodes(self) -> None:
        region = ToyRegion(some_nodes(3, **LARGE))
        job = a_simple(20, cpu=10, reschedule_policy=AT_ONCE)
        region.go(job)
        been: dict[str, set[str]] = {}
        for _ in range(2):
            for one in region.live(job):
                been.setdefault(one.name, set()).add(one.node_id)
            region.report(region.live(job), ClientStatus.FAILED)
            region.run(region.evaluate(job, Trigger.ALLOC_FAILURE))
        for one in region.live(job):
            assert one.node_id not in been[one.name]
            assert one.reschedule_tracker is not None
            assert len(one.reschedule_tracker.events) == 2

    def test_one_that_finds_no_place_remembers_that_and_goes_on_being_failed(self) -> None:
        region = ToyRegion(some_nodes(1, cpu=1000))
        job = a_simple(2, cpu=400, reschedule_policy=AT_ONCE)
        region.report(region.go(job), ClientStatus.FAILED)
        region.do(node_upsert(a_numbered(1, cpu=500)))

        region.run(region.evaluate(job, Trigger.ALLOC_FAILURE))

        assert len(links(region, job)) == 1
        (left,) = [
            one for one in region.allocs(job) if one.client_status is ClientStatus.FAILED and not one.next_allocation
        ]
        assert left.reschedule_tracker is not None
        assert left.reschedule_tracker.last_reschedule == "no placement"
        assert not left.is_server_terminal

    @pytest.mark.parametrize("kind", ["service", "batch"])
    def test_one_whose_follow_up_found_no_room_is_replaced_as_soon_as_there_is_some(self, kind: str) -> None:
        region = ToyRegion(some_nodes(1))
        only_service: dict[str, Any] = {"update": None, "migrate": None} if kind == "batch" else {}
        job = a_simple(1, type=kind, reschedule_policy=IN_HALF_A_MINUTE, **only_service)
        (old,) = region.go(job)
        region.report([old], ClientStatus.FAILED)
        region.run(region.evaluate(job, Trigger.ALLOC_FAILURE))
        (followup,) = [one for one in region.evaluations(job) if one.wait_until_ns]
        region.do(node_upsert(a_numbered(1, cpu=100)))
        region.now_ns = followup.wait_until_ns
        region.run(followup)
        (left,) = region.allocs(job)
        assert left.reschedule_tracker is not None
        assert left.reschedule_tracker.last_reschedule == "no placement"

        region.run(region.evaluate(job))  # no news, nothing to note
        assert region.allocs(job) == [left]
        region.do(node_upsert(a_numbered(2)))
        region.run(region.blocked(job)[0])

        assert linked_both_ways(region, job, [old])
        assert region.by_node(job) == {"n2": 1}

    def test_one_that_runs_on_because_there_is_no_room_elsewhere_has_nothing_noted_on_it(self) -> None:
        region = ToyRegion(some_nodes(1))
        job = a_simple(1, type="batch", reschedule_policy=AT_ONCE, update=None, migrate=None)
        region.report(region.go(job), ClientStatus.RUNNING)
        wish = int(Flag.RESCHEDULE | Flag.MIGRATE)
        region.do(AllocTransition(ids=uuid_bytes(region.live(job)[0].id), flags=wish))
        region.do(node_upsert(a_numbered(1, cpu=100)))
        before = region.live(job)

        region.run(region.evaluate(job))

        assert region.live(job) == before
        assert len(region.blocked(job)) == 1


class TestMoved:
    def test_all_that_move_are_stopped_and_linked(self) -> None:
        region = ToyRegion(some_nodes(2, **LARGE))
        job = a_simple(50, cpu=10)
        old = region.go(job)
        region.report(old, ClientStatus.RUNNING)
        region.do(AllocTransition(ids=b"".join(uuid_bytes(one.id) for one in old), flags=int(Flag.MIGRATE)))

        attempts = region.run(region.evaluate(job, Trigger.NODE_DRAIN))

        assert len(attempts) == 1
        assert linked_both_ways(region, job, old)
        assert all(one.is_server_terminal for one in region.allocs(job) if one.next_allocation)


class TestUpdated:
    @pytest.mark.parametrize("seed", range(60))
    def test_whatever_fits_is_replaced_and_nothing_is_promised_twice(self, seed: int) -> None:
        rng = random.Random(seed)
        region = ToyRegion(a_numbered(n, cpu=rng.choice([1000, 1500, 2200])) for n in range(1, rng.randint(2, 6)))
        region.go(a_simple(rng.randint(0, 4), job_id="other", cpu=rng.choice([100, 300])))
        job = a_simple(rng.randint(1, 12), cpu=rng.choice([100, 200, 300]))
        before = region.go(job)
        region.report(before, ClientStatus.RUNNING)
        newer = a_simple(len(before) or 1, cpu=rng.choice([150, 350, 600, 900]))

        region.run(region.register(newer))  # the toy region looks at every node after every plan

        known = {one.id: one for one in region.allocs(job)}
        stopped = [one for one in before if known[one.id].is_server_terminal]
        assert len(links(region, job)) == len(stopped)
        if len(stopped) < len(before):
            assert region.blocked(job)

    def test_hundreds_are_replaced_by_one_plan(self) -> None:
        region = ToyRegion(some_nodes(3, **LARGE))
        old = region.go(a_simple(120, cpu=10))
        region.report(old, ClientStatus.RUNNING)
        newer = a_simple(120, cpu=20)

        attempts = region.run(region.register(newer))

        assert len(attempts) == 1
        assert linked_both_ways(region, newer, old)

    def test_as_many_at_a_time_as_the_job_lets(self) -> None:
        region = ToyRegion(some_nodes(3, **LARGE))
        old = region.go(a_simple(100, cpu=10))
        region.report(old, ClientStatus.RUNNING)

        region.run(region.register(a_simple(100, cpu=20, update=UpdateStrategy(max_parallel=70))))

        assert len(links(region, a_simple())) == 70

    def test_canaries_stand_beside_and_replace_nobody(self) -> None:
        region = ToyRegion(some_nodes(3, **LARGE))
        region.report(region.go(a_simple(100, cpu=10)), ClientStatus.RUNNING)

        region.run(region.register(a_simple(100, cpu=20, update=UpdateStrategy(max_parallel=5, canary=60))))

        live = region.live(a_simple())
        assert Counter(one.is_canary for one in live) == {False: 100, True: 60}
        assert not links(region, a_simple())


class TestHome:
    STICKY = EphemeralDisk(sticky=True, size_mb=10)

    def test_all_with_a_sticky_disk_go_home(self) -> None:
        region = ToyRegion(some_nodes(4, **LARGE))
        old = region.go(a_simple(80, cpu=10, ephemeral_disk=self.STICKY))
        region.report(old, ClientStatus.RUNNING)
        newer = a_simple(80, cpu=20, ephemeral_disk=self.STICKY)

        attempts = region.run(region.register(newer))

        assert len(attempts) == 1
        homes = {one.id: one.node_id for one in old}
        assert all(one.node_id == homes[one.previous_allocation] for one in region.live(newer))

    def test_who_finds_no_room_at_home_goes_elsewhere(self) -> None:
        region = ToyRegion(some_nodes(1, cpu=1000))
        job = a_simple(4, cpu=200, ephemeral_disk=self.STICKY)
        old = region.go(job)
        region.report(old, ClientStatus.RUNNING)
        region.do(node_upsert(a_numbered(2, cpu=4000)))
        newer = a_simple(4, cpu=400, ephemeral_disk=self.STICKY)

        region.run(region.register(newer))

        assert linked_both_ways(region, newer, old)
        assert region.by_node(newer) == {"n1": 2, "n2": 2}

    def test_on_hosts_of_their_own_they_take_turns(self) -> None:
        region = ToyRegion(some_nodes(6))
        apart = (Constraint(operand="distinct_hosts"),)
        old = region.go(a_simple(5, cpu=100, ephemeral_disk=self.STICKY, constraints=apart))
        region.report(old, ClientStatus.RUNNING)
        newer = a_simple(5, cpu=200, ephemeral_disk=self.STICKY, constraints=apart)

        region.run(region.register(newer))

        homes = {one.id: one.node_id for one in old}
        assert {one.node_id for one in region.live(newer)} == set(homes.values())
        assert all(one.node_id == homes[one.previous_allocation] for one in region.live(newer))


class TestEveryNode:
    @staticmethod
    def a_system(**fields: object) -> Job:
        return a_simple(1, type="system", reschedule_policy=None, migrate=None, **fields)  # type: ignore[arg-type]

    def test_an_update_reaches_a_hundred_nodes_by_one_plan(self) -> None:
        region = ToyRegion(some_nodes(100))
        old = region.go(self.a_system(cpu=100))
        region.report(old, ClientStatus.RUNNING)
        newer = self.a_system(cpu=200)

        attempts = region.run(region.register(newer))

        assert len(attempts) == 1
        homes = {one.id: one.node_id for one in old}
        assert all(one.node_id == homes[one.previous_allocation] for one in region.live(newer))
        assert len(region.live(newer)) == 100

    def test_a_node_without_room_keeps_the_old_one_and_the_others_are_updated(self) -> None:
        region = ToyRegion([a_numbered(1, cpu=150), a_numbered(2), a_numbered(3, cpu=150), a_numbered(4)])
        old = region.go(self.a_system(cpu=100))
        region.report(old, ClientStatus.RUNNING)
        newer = self.a_system(tasks=[a_task(cpu=200)])

        region.run(region.register(newer))

        assert region.by_node(newer) == {"n1": 1, "n2": 1, "n3": 1, "n4": 1}
        assert sorted(one.node_name for one in region.live(newer) if one.previous_allocation) == ["n2", "n4"]
        assert {one.node_id for one in region.blocked(newer)} == {a_numbered(1).id, a_numbered(3).id}


class TestEvicting:
    def test_a_replacement_that_evicts_keeps_its_link(self) -> None:
        region = ToyRegion(some_nodes(1, cpu=1000))
        preempting(region)
        high = a_simple(2, cpu=400, priority=90, job_id="high", reschedule_policy=AT_ONCE)
        old = region.go(high)
        region.report(old, ClientStatus.FAILED)
        region.go(a_simple(2, cpu=450, priority=10, job_id="low"))

        region.run(region.evaluate(high, Trigger.ALLOC_FAILURE))

        assert linked_both_ways(region, high, old)
        assert all(one.preempted_allocations for one in region.live(high))
        assert all(one.reschedule_tracker is not None for one in region.live(high))
