"""The broker in office: it lives on the state, and writes what its cores decide."""

from __future__ import annotations

import pytest
import trio
from msgspec import structs

from fedsched.codec import dumps, to_bytes
from fedsched.model.errors import Unavailable
from fedsched.model.evaluation import EvaluationStatus
from fedsched.model.node import DrainStrategy, Eligibility, NodeStatus
from fedsched.server.leader.broker import Handed
from fedsched.server.leader.broker_core import BrokerLimits, Ticket
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, Reap
from fedsched.state.tables.meta import SchedulerConfigSet
from fedsched.state.tables.namespaces import NodePoolUpsert
from fedsched.state.tables.node_updates import NodeDrainUpdate, NodeDrainWrite
from fedsched.state.tables.plans import PlanApply
from tests.builders import a_job, an_id
from tests.server.leader.counter import (
    SERVICE,
    WALL_S,
    Counter,
    blocked,
    class_node,
    done,
    nothing,
    pending,
    run_at_counter,
    take,
)
from tests.server.leader.site import COMPLETE, placing, stopping
from tests.state.worlds import ids


def test_a_stored_evaluation_reaches_whoever_waits_for_one_at_once() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        found: list[Handed] = []

        async def wait() -> None:
            found.extend(await counter.broker.dequeue(SERVICE, wait_s=8))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(3)
            counter.put(pending(1))

        assert [one.delivery.ticket.id for one in found] == [an_id(1)]
        assert trio.current_time() - began < 3.1

    began = 0.0

    async def timed(counter: Counter) -> None:
        nonlocal began
        began = trio.current_time()
        await scenario(counter)

    run_at_counter(timed)


def test_several_can_be_taken_at_once_and_none_comes_when_the_time_is_up() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1, "a"), pending(2, "b"), pending(3, "c"))

        assert len(await counter.broker.dequeue(SERVICE, limit=2, wait_s=1)) == 2
        assert len(await counter.broker.dequeue(SERVICE, limit=2, wait_s=1)) == 1
        assert await counter.broker.dequeue(SERVICE, limit=2, wait_s=1) == []

    run_at_counter(scenario)


def test_eleven_evaluations_of_a_job_end_as_two_handed_out_and_nine_stored_as_cancelled() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        for number in range(1, 12):
            counter.put(pending(number))

        for _ in range(2):
            handed = await take(counter)
            evaluation = counter.store.evaluations.get(handed.delivery.ticket.id)
            assert evaluation is not None
            counter.put(structs.replace(evaluation, status=EvaluationStatus.COMPLETE))
            done(counter, handed)
        assert await nothing(counter)

        statuses = [counter.status(number) for number in range(1, 12)]
        assert statuses == ["complete", *["canceled"] * 9, "complete"]
        assert {one.status_description for one in counter.all() if one.status == "canceled"} == {
            "canceled after more recent eval was processed"
        }

    run_at_counter(scenario)


def test_a_released_evaluation_that_a_plan_ended_meanwhile_does_not_overtake_a_newer_one() -> None:
    """A job that finds room for everything ends its blocked evaluation, also one that is released and pending already.
    If that were kept for its priority, a newer one would be cancelled, and nobody would look at what it asked for."""

    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put(blocked(1, priority=80))
        counter.put(pending(2))
        handed = await take(counter)
        counter.put_nodes(class_node(1, "large"))  # releases the blocked one, which waits behind the one in hand
        counter.put(pending(3))
        counter.put(structs.replace(blocked(1, priority=80), status=EvaluationStatus.CANCELLED))

        done(counter, handed)

        assert (await take(counter)).delivery.ticket.id == an_id(3)
        assert counter.status(3) == "pending"

    run_at_counter(scenario)


def test_what_could_not_be_stored_as_cancelled_is_stored_later() -> None:
    async def scenario(counter: Counter) -> None:
        for number in (1, 2, 3):
            counter.put(pending(number))
        handed = await take(counter)
        counter.proposals.refuse = Unavailable("no quorum")

        done(counter, handed)
        await trio.sleep(1)
        assert counter.status(2) == "pending"
        counter.proposals.refuse = None
        await trio.sleep(6)

        assert counter.status(2) == "canceled"

    run_at_counter(scenario)


def test_a_worker_waits_for_the_newest_write_about_any_evaluation_of_its_job() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register(a_job("web"), a_job("db"))
        counter.put(pending(1))
        handed = await take(counter)
        counter.put(pending(2))
        counter.put(pending(9, "db"))
        row = counter.store.jobs.row("default", "web")
        assert row is not None
        counter.apply(
            PlanApply(
                namespace="default",
                job_id="web",
                job_create_index=row.create_index,
                job_version=0,
                evaluation_id=an_id(1),
                snapshot_index=counter.store.index,
            )
        )
        committed = counter.store.index
        counter.put(pending(8, "db", triggered_by="node-update"))

        done(counter, handed)

        second = await take(counter)
        while second.delivery.ticket.job_id != "web":
            second = await take(counter)
        assert second.wait_index == committed > second.delivery.ticket.modify_index

    run_at_counter(scenario)


def test_for_a_job_with_very_many_evaluations_the_whole_tables_index_does() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(*(pending(number, status=EvaluationStatus.COMPLETE) for number in range(1, 80)))
        counter.put(pending(80))
        counter.put(pending(90, "db", type="batch"))

        assert (await take(counter)).wait_index == counter.store.index

    run_at_counter(scenario)


def test_a_delivery_that_nobody_answers_is_handed_out_again() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1))
        first = await take(counter)

        second = await take(counter, wait_s=62)

        assert second.delivery.ticket == first.delivery.ticket
        assert second.delivery.number == 2
        assert trio.current_time() >= 61
        assert counter.said("evaluation_timed_out")[0]["delivery"] == 1

    run_at_counter(scenario)


def test_an_evaluation_that_fails_too_often_is_stored_as_failed_with_another_one_later() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put(pending(1, priority=70))
        for _ in range(3):
            handed = await take(counter, wait_s=30)
            counter.broker.nack(handed.delivery.ticket.id, handed.delivery.token)
        await trio.sleep(0.1)

        failed = counter.store.evaluations.get(an_id(1))
        assert failed is not None
        assert (failed.status, failed.status_description) == ("failed", "evaluation reached delivery limit (3)")
        later = counter.store.evaluations.get(failed.next_eval)
        assert later is not None
        assert (later.previous_eval, later.triggered_by, later.status) == (an_id(1), "failed-follow-up", "pending")
        assert (later.priority, later.type, later.job_id) == (70, "service", "web")
        assert later.wait_s is not None
        assert 60 <= later.wait_s < 360
        before = trio.current_time()
        again = await take(counter, wait_s=361)
        assert again.delivery.ticket.id == later.id
        assert trio.current_time() - before == pytest.approx(later.wait_s, abs=0.2)

    run_at_counter(scenario)


def test_a_failed_evaluation_of_a_job_that_is_gone_or_of_clean_up_work_gets_no_second_one() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1, "gone"))
        counter.broker.enqueue(Ticket("gc", "-", "gc", "_core", 32767))
        for _ in range(2):
            handed = await take(counter, "service", "_core")
            counter.broker.nack(handed.delivery.ticket.id, handed.delivery.token)
        await trio.sleep(0.1)

        assert counter.status(1) == "failed"
        assert len(counter.all()) == 1
        assert not counter.broker.core.knows("gc")

    run_at_counter(scenario, limits=BrokerLimits(delivery_limit=1))


def test_giving_up_is_tried_again_when_it_cannot_be_stored() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1))
        handed = await take(counter)
        counter.proposals.refuse = Unavailable("no quorum")
        counter.broker.nack(handed.delivery.ticket.id, handed.delivery.token)
        await trio.sleep(3)
        assert counter.status(1) == "pending"

        counter.proposals.refuse = None
        await trio.sleep(2)

        assert counter.status(1) == "failed"

    run_at_counter(scenario, limits=BrokerLimits(delivery_limit=1))


def test_an_evaluation_that_waits_for_a_moment_is_handed_out_then() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1, wait_until_ns=int((WALL_S + 100) * 1e9)), pending(2, "db"))

        first = await take(counter)
        assert first.delivery.ticket.job_id == "db"
        done(counter, first)
        await take(counter, wait_s=101)
        assert trio.current_time() == pytest.approx(100, abs=0.1)

    run_at_counter(scenario)


@pytest.mark.parametrize(("jump_s", "expected_s"), [(60.0, 40.0), (200.0, 11.0), (-50.0, 150.0)])
def test_a_delayed_evaluation_follows_a_wall_clock_that_jumps(
    monkeypatch: pytest.MonkeyPatch, jump_s: float, expected_s: float
) -> None:
    async def scenario(counter: Counter) -> None:
        began = trio.current_time()
        counter.put(pending(1, wait_until_ns=int((WALL_S + began + 100) * 1e9)))
        assert await counter.broker.dequeue(SERVICE, wait_s=10) == []

        monkeypatch.setattr(counter.env, "wall", lambda: WALL_S + trio.current_time() + jump_s)
        counter.put(pending(2, "db", wait_until_ns=int((WALL_S + began + 1000) * 1e9)))

        assert (await take(counter, wait_s=200)).delivery.ticket.id == an_id(1)
        assert trio.current_time() - began == pytest.approx(expected_s, abs=1.1)

    run_at_counter(scenario)


def test_a_delayed_evaluation_can_be_dropped() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1, wait_until_ns=int((WALL_S + 10) * 1e9)))

        assert counter.broker.drop_waiting(an_id(1))
        assert await counter.broker.dequeue(SERVICE, wait_s=20) == []

    run_at_counter(scenario)


# ---------------------------------------------------------------------- blocked evaluations


@pytest.mark.parametrize("how", ["registered", "ready again", "eligible again", "no longer drained"])
def test_a_node_that_comes_up_frees_blocked_evaluations(how: str) -> None:
    async def scenario(counter: Counter) -> None:
        if how == "ready again":
            counter.put_nodes(class_node(1, "large", status=NodeStatus.DOWN))
        if how == "eligible again":
            counter.put_nodes(class_node(1, "large", scheduling_eligibility=Eligibility.INELIGIBLE))
        if how == "no longer drained":
            counter.put_nodes(class_node(1, "large"))
            strategy = to_bytes(DrainStrategy())
            counter.apply(NodeDrainUpdate(updates=(NodeDrainWrite(id=an_id(1), strategy=strategy),)))
        counter.put(blocked(1, snapshot_index=counter.store.index))
        counter.put(blocked(2, "db", snapshot_index=counter.store.index, class_eligibility={"large": False}))
        assert await nothing(counter)

        if how == "no longer drained":
            counter.apply(NodeDrainUpdate(updates=(NodeDrainWrite(id=an_id(1), mark_eligible=True),)))
        else:
            counter.put_nodes(class_node(1, "large"))

        assert (await take(counter)).delivery.ticket.id == an_id(1)
        assert await nothing(counter)

    run_at_counter(scenario)


def test_a_node_that_takes_nothing_frees_nobody() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(blocked(1))

        counter.put_nodes(class_node(1, "large", status=NodeStatus.INITIALIZING))
        counter.put_nodes(class_node(2, "large", scheduling_eligibility=Eligibility.INELIGIBLE))

        assert await nothing(counter)

    run_at_counter(scenario)


def test_room_appears_when_a_client_says_so_and_not_when_a_server_wishes_it() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(class_node(1, "large"))
        row = counter.store.jobs.row("default", "web")
        assert row is not None
        plan = PlanApply(
            namespace="default",
            job_id="web",
            job_create_index=row.create_index,
            job_version=0,
            evaluation_id=an_id(0xE),
            snapshot_index=counter.store.index,
            placed=(placing([1], [0]),),
        )
        counter.apply(plan)
        counter.put(blocked(1, "db", snapshot_index=counter.store.index))

        counter.apply(structs.replace(plan, placed=(), stopped=(stopping([1]),)))
        counter.apply(AllocStatusUpdate(ids=ids([1]), statuses=bytes([2])))
        assert await nothing(counter)
        counter.apply(AllocStatusUpdate(ids=ids([1]), statuses=bytes([COMPLETE])))

        assert (await take(counter)).delivery.ticket.job_id == "db"

    run_at_counter(scenario)


def test_allocations_that_are_cleaned_away_are_no_news() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(class_node(1, "large"))
        row = counter.store.jobs.row("default", "web")
        assert row is not None
        counter.apply(
            PlanApply(
                namespace="default",
                job_id="web",
                job_create_index=row.create_index,
                job_version=0,
                evaluation_id=an_id(0xE),
                snapshot_index=counter.store.index,
                placed=(placing([1], [0]),),
            )
        )
        counter.apply(AllocStatusUpdate(ids=ids([1]), statuses=bytes([COMPLETE])))
        counter.put(blocked(1, "db", snapshot_index=counter.store.index))

        counter.apply(Reap(allocs=ids([1])))

        assert await nothing(counter)

    run_at_counter(scenario)


def test_a_system_evaluation_is_freed_by_room_on_its_own_node() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put_nodes(class_node(1, "large"), class_node(2, "small"))
        newest = counter.store.index
        ruled_out = {"large": False, "small": False}
        for number in (1, 2):
            one = blocked(number, type="system", node_id=an_id(number), snapshot_index=newest)
            counter.put(structs.replace(one, class_eligibility=ruled_out))

        counter.put_nodes(class_node(2, "small"))

        assert (await take(counter, "system")).delivery.ticket.id == an_id(2)
        assert await nothing(counter, "system")

    run_at_counter(scenario)


def test_changed_rules_free_everybody() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(blocked(1, class_eligibility={"large": False}))
        counter.apply(SchedulerConfigSet(config=dumps({"SchedulerAlgorithm": "spread"})))
        await take(counter)

        counter.put(blocked(2, "db", snapshot_index=counter.store.index))
        counter.apply(NodePoolUpsert(name="gpu"))
        assert (await take(counter)).delivery.ticket.job_id == "db"

    run_at_counter(scenario)


def test_an_evaluation_whose_scheduler_missed_the_news_goes_straight_back() -> None:
    async def scenario(counter: Counter) -> None:
        seen = counter.store.index
        counter.put_nodes(class_node(1, "large"))

        counter.put(blocked(1, snapshot_index=seen))

        assert (await take(counter)).delivery.ticket.id == an_id(1)

    run_at_counter(scenario)


def test_the_older_of_two_blocked_evaluations_of_a_job_is_stored_as_cancelled() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(blocked(1))
        counter.put(blocked(2))
        await trio.sleep(6)

        cancelled = counter.store.evaluations.get(an_id(1))
        assert cancelled is not None
        assert cancelled.status == "canceled"
        assert cancelled.status_description == 'existing blocked evaluation exists for job "web"'
        assert counter.status(2) == "blocked"

    run_at_counter(scenario)


def test_once_a_job_found_room_for_everything_nothing_of_it_waits_any_more() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put(blocked(1))
        counter.put(pending(2, status=EvaluationStatus.COMPLETE))

        assert counter.status(1) == "canceled"
        counter.put_nodes(class_node(1, "large"))
        assert await nothing(counter)

    run_at_counter(scenario)


def test_an_evaluation_that_is_blocked_again_while_in_hand_comes_back_after_the_ack() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(blocked(1))
        counter.put_nodes(class_node(1, "large"))
        handed = await take(counter)
        snapshot = counter.store.index

        counter.put_nodes(class_node(2, "large"))
        await counter.work.store(an_id(1), handed.delivery.token, [blocked(1, snapshot_index=snapshot)], ack=False)
        assert await nothing(counter)  # the missed news put it in line, behind its own holder
        done(counter, handed)

        assert (await take(counter)).delivery.ticket.id == an_id(1)

    run_at_counter(scenario)


def test_a_plan_committed_for_a_released_evaluation_does_not_block_it_again() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put(blocked(1))
        counter.put_nodes(class_node(1, "large"))
        handed = await take(counter)
        row = counter.store.jobs.row("default", "web")
        assert row is not None
        counter.apply(
            PlanApply(
                namespace="default",
                job_id="web",
                job_create_index=row.create_index,
                job_version=0,
                evaluation_id=an_id(1),
                snapshot_index=counter.store.index,
                placed=(placing([1], [0]),),
            )
        )
        counter.put_nodes(class_node(2, "large"))

        done(counter, handed)

        assert await nothing(counter)

    run_at_counter(scenario)


def test_an_evaluation_released_and_not_yet_taken_is_left_where_it_is() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(blocked(1))
        counter.put_nodes(class_node(1, "large"))
        counter.put(blocked(1, snapshot_index=counter.store.index))

        done(counter, await take(counter))

        assert await nothing(counter)

    run_at_counter(scenario)
