"""The broker when leaders change: nothing is lost with one, nothing is left over from one."""

from __future__ import annotations

import pytest
import trio
from msgspec import structs

from fedsched.codec import dumps
from fedsched.model.errors import Unavailable
from fedsched.model.evaluation import EvaluationStatus
from fedsched.raft.errors import NotLeader
from fedsched.server.leader.broker import BrokerService
from fedsched.state.tables.alloc_updates import Reap
from fedsched.state.tables.evaluations import EvaluationsUpsert
from fedsched.state.tables.jobs import JobDeregister
from fedsched.state.tables.meta import SchedulerConfigSet
from fedsched.state.tables.plans import OfficeBegin
from tests.builders import an_id
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


async def hold(counter: Counter, service: BrokerService, nursery: trio.Nursery) -> trio.CancelScope:
    scope = trio.CancelScope()

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        with scope:
            await service.run(task_status=task_status)

    await nursery.start(run)
    return scope


def test_an_office_begins_by_making_older_plans_void() -> None:
    async def scenario(counter: Counter) -> None:
        assert counter.proposals.said[0] == OfficeBegin(term=3)
        assert counter.store.meta.number("office_term") == 3

    run_at_counter(scenario)


def test_an_office_that_cannot_begin_keeps_trying_and_hands_out_nothing_until_then() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1))
        counter.proposals.refuse = Unavailable("no quorum")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(counter.broker.run)
            await trio.sleep(5)
            with pytest.raises(NotLeader):
                await counter.broker.dequeue(SERVICE, wait_s=1)
            counter.proposals.refuse = None
            await trio.sleep(1.1)
            await take(counter)
            nursery.cancel_scope.cancel()

    run_at_counter(scenario, office=False)


def test_a_new_leader_hands_out_everything_that_is_stored_as_pending() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(*(pending(number, f"job{number}") for number in range(1, 1001)))
        async with trio.open_nursery() as nursery:
            first = await hold(counter, counter.broker, nursery)
            assert len(await counter.broker.dequeue(SERVICE, limit=300, wait_s=1)) == 300
            first.cancel()
            await trio.sleep(0.1)
            with pytest.raises(NotLeader):
                await counter.broker.dequeue(SERVICE, wait_s=1)

            second = await hold(counter, counter.broker, nursery)
            handed = await counter.broker.dequeue(SERVICE, limit=2000, wait_s=1)
            assert {one.delivery.ticket.id for one in handed} == {an_id(number) for number in range(1, 1001)}
            assert {one.delivery.number for one in handed} == {1}
            second.cancel()

    run_at_counter(scenario, office=False)


def test_what_the_former_leader_freed_and_nobody_finished_gets_another_look() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(blocked(1, snapshot_index=counter.store.index))
        counter.put_nodes(class_node(1, "large"))
        counter.put(blocked(2, "db", snapshot_index=counter.store.index))
        async with trio.open_nursery() as nursery:
            first = await hold(counter, counter.broker, nursery)
            await trio.lowlevel.checkpoint()
            first.cancel()
            await trio.sleep(0.1)

            second = await hold(counter, counter.broker, nursery)
            began = trio.current_time()
            assert (await take(counter, wait_s=1)).delivery.ticket.id == an_id(1)
            assert trio.current_time() - began < 1
            assert await nothing(counter)
            second.cancel()

    run_at_counter(scenario, office=False)


@pytest.mark.parametrize("when", ["in office", "while nobody leads", "in hand when the leader was lost"])
def test_a_blocked_evaluation_is_handed_out_within_a_second_of_its_capacity_whoever_leads(when: str) -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(blocked(1, snapshot_index=counter.store.index))
        async with trio.open_nursery() as nursery:
            office = await hold(counter, counter.broker, nursery)
            await trio.sleep(100)
            assert await nothing(counter)

            if when == "while nobody leads":
                office.cancel()
                await trio.sleep(0.1)
            counter.put_nodes(class_node(1, "large"))
            appeared = trio.current_time()
            if when == "in hand when the leader was lost":
                await take(counter)  # released, delivered, never finished: stored, it is still blocked
                office.cancel()
                await trio.sleep(0.1)
            if when != "in office":
                office = await hold(counter, counter.broker, nursery)

            assert (await take(counter, wait_s=2)).delivery.ticket.id == an_id(1)
            assert trio.current_time() - appeared < 1
            office.cancel()

    run_at_counter(scenario, office=False)


def test_whoever_waits_for_an_evaluation_when_the_office_ends_is_told() -> None:
    async def scenario(counter: Counter) -> None:
        async with trio.open_nursery() as nursery:
            scope = await hold(counter, counter.broker, nursery)
            caught: list[Exception] = []

            async def wait() -> None:
                try:
                    await counter.broker.dequeue(SERVICE, wait_s=100)
                except NotLeader as error:
                    caught.append(error)

            nursery.start_soon(wait)
            await trio.sleep(1)
            scope.cancel()
            await trio.sleep(0.1)
            assert len(caught) == 1

    run_at_counter(scenario, office=False)


def test_without_an_office_changes_of_the_state_go_by() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1), blocked(2, "db"))

        assert counter.broker.core.statistics().ready == 0
        for act in (counter.work.ack, counter.work.nack, counter.work.extend):
            with pytest.raises(NotLeader):
                act(an_id(1), "token")

    run_at_counter(scenario, office=False)


def test_a_paused_broker_rests_and_goes_on_from_the_state_when_it_is_let() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1))
        counter.apply(SchedulerConfigSet(config=dumps({"PauseEvalBroker": True})))
        counter.put(pending(2, "db"), blocked(3, "cache", snapshot_index=counter.store.index + 5))
        assert await nothing(counter)

        counter.apply(SchedulerConfigSet(config=dumps({"PauseEvalBroker": False})))

        handed = await counter.broker.dequeue(SERVICE, limit=9, wait_s=1)
        assert {one.delivery.ticket.id for one in handed} >= {an_id(1), an_id(2)}

    run_at_counter(scenario)


def test_an_office_that_finds_the_broker_paused_leaves_it_so() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1))
        counter.apply(SchedulerConfigSet(config=dumps({"PauseEvalBroker": True})))
        async with trio.open_nursery() as nursery:
            scope = await hold(counter, counter.broker, nursery)
            assert await nothing(counter)
            scope.cancel()

    run_at_counter(scenario, office=False)


def test_a_state_that_is_put_in_place_of_another_is_looked_through_anew() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1))
        store = counter.store
        handed = await take(counter)

        counter.machine.replace(store)
        counter.machine.after_apply(store.index)

        again = await take(counter)
        assert again.delivery.ticket.id == handed.delivery.ticket.id
        assert again.delivery.token != handed.delivery.token

    run_at_counter(scenario)


def test_evaluations_that_are_deleted_are_forgotten() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put(blocked(1))
        counter.apply(JobDeregister(namespace="default", id="web", purge=True))
        counter.apply(Reap(evaluations=(an_id(1),)))

        assert counter.broker.blocked.statistics().blocked == 0

    run_at_counter(scenario)


def test_a_delayed_evaluation_that_somebody_cancels_is_not_handed_out() -> None:
    async def scenario(counter: Counter) -> None:
        later = pending(1, wait_until_ns=int((WALL_S + 10) * 1e9))
        counter.put(later)
        counter.put(structs.replace(later, status=EvaluationStatus.CANCELLED))

        assert await counter.broker.dequeue(SERVICE, wait_s=20) == []

    run_at_counter(scenario)


def test_at_most_728_evaluations_are_cancelled_by_one_entry() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(*(pending(number) for number in range(1, 1502)))
        done(counter, await take(counter))
        await trio.sleep(0.1)

        sizes = [len(one.evaluations) for one in counter.proposals.said if isinstance(one, EvaluationsUpsert)]
        assert sizes == [728, 728, 43]

    run_at_counter(scenario)


def test_its_figures_can_be_read() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1), pending(2), pending(3, "db"), blocked(4, "cache"))
        await take(counter)

        assert counter.gauge("broker.ready") == 1
        assert counter.gauge("broker.unacked") == 1
        assert counter.gauge("broker.pending") == 1
        assert counter.gauge("blocked.blocked") == 1
        assert counter.broker.statistics()["blocked"]["blocked"] == 1
        token = next(iter(counter.broker.core._out.values())).delivery
        counter.work.extend(token.ticket.id, token.token)

    run_at_counter(scenario)


def test_whoever_waits_is_handed_the_jobs_next_evaluation_as_soon_as_the_former_is_done() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1), pending(2))
        first = await take(counter)
        heard: list[float] = []

        async def wait() -> None:
            await take(counter, wait_s=100)
            heard.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(20)
            done(counter, first)
            freed_at = trio.current_time()

        assert heard == [freed_at]

    run_at_counter(scenario)


def test_a_worker_that_says_it_is_still_at_it_is_not_timed_out() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1))
        handed = await take(counter)
        await trio.sleep(50)
        counter.broker.reset_nack(handed.delivery.ticket.id, handed.delivery.token)
        await trio.sleep(50)

        done(counter, handed)
        assert not counter.broker.core.knows(an_id(1))

    run_at_counter(scenario)


def test_changed_rules_take_nothing_out_of_anybodys_hands() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put(pending(1))
        handed = await take(counter)

        counter.apply(SchedulerConfigSet(config=dumps({"SchedulerAlgorithm": "spread"})))

        assert await nothing(counter)
        done(counter, handed)

    run_at_counter(scenario)
