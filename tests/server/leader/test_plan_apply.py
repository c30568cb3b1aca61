"""The applier in office: plans become entries, in order, and nobody is promised anything twice."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from msgspec import structs

from fedsched.model.errors import BadRequest, FedschedError, Unavailable
from fedsched.model.evaluation import EvaluationStatus
from fedsched.model.node import NodeStatus
from fedsched.server.leader import plan_apply
from fedsched.server.leader.broker_core import NotOutstanding
from fedsched.server.leader.plan_apply import IN_FLIGHT_MAX, PlanAnswer
from fedsched.server.leader.plan_queue_core import PlanQueueDisabled
from fedsched.server.leader.rejections import RejectionSettings
from fedsched.state.tables.evaluations import evaluation_write
from fedsched.state.tables.nodes import NodeDeregister, node_upsert
from fedsched.state.tables.plans import PlanApply
from tests.builders import a_job, a_node, an_id
from tests.server.leader.counter import Counter, blocked, nothing, pending, run_at_counter, take
from tests.server.leader.site import EVICT, placing, stopping


def a_plan(counter: Counter, number: int = 1, job: str = "web", **fields: Any) -> PlanApply:
    row = counter.store.jobs.row("default", job)
    fields.setdefault("snapshot_index", counter.store.index)
    return PlanApply(
        namespace="default",
        job_id=job,
        job_create_index=row.create_index if row else 1,
        job_version=0,
        evaluation_id=an_id(number),
        **fields,
    )


def done(number: int = 1, job: str = "web") -> Any:
    return evaluation_write(pending(number, job, status=EvaluationStatus.COMPLETE))


async def in_hand(counter: Counter, *numbers: int, jobs: bool = False) -> dict[int, str]:
    """Evaluations of these numbers, delivered: their tokens. With `jobs`, each of a job of its own."""
    counter.put(*(pending(number, f"job{number}" if jobs else "web") for number in numbers))
    handed = await counter.broker.dequeue(("service",), limit=len(numbers), wait_s=1)
    return {int(one.delivery.ticket.id[-12:], 16): one.delivery.token for one in handed}


class Submissions:
    """Plans on their way at the same time."""

    def __init__(self, counter: Counter, nursery: trio.Nursery) -> None:
        self._counter = counter
        self._nursery = nursery
        self.answers: dict[int, PlanAnswer | Exception] = {}
        self.order: list[int] = []

    def send(self, number: int, token: str, plan: PlanApply, **options: Any) -> None:
        async def run() -> None:
            try:
                self.answers[number] = await self._counter.applier.submit(an_id(number), token, plan, **options)
            except Exception as error:
                self.answers[number] = error
            self.order.append(number)

        self._nursery.start_soon(run)


def test_a_plan_is_committed_and_its_evaluation_ends_with_it_in_one_entry() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1))
        tokens = await in_hand(counter, 1)
        before = counter.store.index

        answer = await counter.applier.submit(
            an_id(1), tokens[1], a_plan(counter, placed=(placing([1, 2], [0, 0]),), ends=(done(),))
        )

        assert counter.store.index == before + 1
        assert (answer.outcome.is_whole, answer.outcome.is_progress, answer.is_acked) == (True, True, True)
        assert (answer.outcome.index, answer.outcome.refresh_index) == (before + 1, 0)
        assert counter.status(1) == "complete"
        assert not counter.broker.core.knows(an_id(1))
        assert counter.store.allocations.get(an_id(2)) is not None
        assert counter.proposals.said[-1].term == 3  # type: ignore[attr-defined]

    run_at_counter(scenario)


def test_without_its_end_the_evaluation_stays_with_its_worker() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1))
        tokens = await in_hand(counter, 1)

        answer = await counter.applier.submit(an_id(1), tokens[1], a_plan(counter, placed=(placing([1], [0]),)))

        assert (answer.outcome.is_whole, answer.is_acked) == (True, False)
        counter.broker.ack(an_id(1), tokens[1])

    run_at_counter(scenario)


def test_of_a_plan_that_holds_in_part_that_part_is_committed_and_the_evaluation_is_not_over() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1, cpu=100), a_node(2))
        tokens = await in_hand(counter, 1)

        answer = await counter.applier.submit(
            an_id(1), tokens[1], a_plan(counter, placed=(placing([1, 2], [0, 1]),), ends=(done(),))
        )

        assert (answer.outcome.is_whole, answer.outcome.is_progress, answer.is_acked) == (False, True, False)
        assert answer.outcome.refresh_index == answer.outcome.index == counter.store.index
        assert answer.rejected_nodes == (an_id(1),)
        assert counter.status(1) == "pending"
        assert counter.store.allocations.get(an_id(1)) is None
        assert counter.broker.core.token_of(an_id(1)) == tokens[1]

    run_at_counter(scenario)


def test_a_plan_that_is_refused_as_a_whole_writes_nothing() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1, cpu=100))
        newest = counter.store.index
        tokens = await in_hand(counter, 1)
        before = counter.store.index

        answer = await counter.applier.submit(
            an_id(1), tokens[1], a_plan(counter, placed=(placing([1], [0]),), ends=(done(),))
        )

        assert (answer.outcome.is_whole, answer.outcome.is_progress, answer.outcome.index) == (False, False, 0)
        assert answer.outcome.refresh_index == newest
        assert counter.store.index == before

    run_at_counter(scenario)


def test_all_or_nothing_is_nothing_when_a_node_refuses() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1, cpu=100), a_node(2))
        tokens = await in_hand(counter, 1)

        answer = await counter.applier.submit(
            an_id(1), tokens[1], a_plan(counter, placed=(placing([1, 2], [0, 1]),)), all_at_once=True
        )

        assert not answer.outcome.is_progress
        assert counter.store.allocations.get(an_id(2)) is None

    run_at_counter(scenario)


def test_only_the_holder_of_the_evaluation_may_submit() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        await in_hand(counter, 1)

        with pytest.raises(NotOutstanding):
            await counter.applier.submit(an_id(1), "other", a_plan(counter))

    run_at_counter(scenario)


def test_a_plan_out_of_shape_is_refused_before_anything_looks_at_it() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        tokens = await in_hand(counter, 1)
        crooked = structs.replace(placing([1, 2], [0, 0]), node_slots=b"123")

        with pytest.raises(BadRequest, match="columns of different length"):
            await counter.applier.submit(an_id(1), tokens[1], a_plan(counter, placed=(crooked,)))

    run_at_counter(scenario)


def test_a_plan_that_cannot_be_judged_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1))
        tokens = await in_hand(counter, 1)
        plan = a_plan(counter, placed=(placing([1], [0]),))
        with monkeypatch.context() as broken:
            broken.setattr(plan_apply, "check_plan", lambda *args, **options: 1 / 0)
            with pytest.raises(FedschedError, match="could not be judged"):
                await counter.applier.submit(an_id(1), tokens[1], plan)
        assert counter.said("plan_not_judged")

        assert (await counter.applier.submit(an_id(1), tokens[1], plan)).outcome.is_whole

    run_at_counter(scenario)


def test_a_plan_in_the_queue_does_not_time_out() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1))
        tokens = await in_hand(counter, 1)
        counter.proposals.is_held = True
        async with trio.open_nursery() as nursery:
            sent = Submissions(counter, nursery)
            sent.send(1, tokens[1], a_plan(counter, placed=(placing([1], [0]),), ends=(done(),)))
            await trio.sleep(500)
            assert not counter.said("evaluation_timed_out")
            counter.proposals.apply()
        assert isinstance(sent.answers[1], PlanAnswer)
        assert sent.answers[1].is_acked

    run_at_counter(scenario)


def test_the_next_plan_is_checked_while_the_one_before_is_replicated() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register(*(a_job(f"job{number}") for number in (1, 2, 3)))
        counter.put_nodes(a_node(1, cpu=1000))
        tokens = await in_hand(counter, 1, 2, 3, jobs=True)
        counter.proposals.is_held = True
        async with trio.open_nursery() as nursery:
            sent = Submissions(counter, nursery)
            for number in (1, 2, 3):
                plan = a_plan(counter, number, f"job{number}", placed=(placing([number], [0], cpu=500),))
                sent.send(number, tokens[number], plan, priority=60 - number)
                await trio.sleep(0.1)
            assert len(counter.proposals._queue) == 2  # the third found no room, with nothing committed yet
            assert sent.answers == {}  # and is told when it has a newer state to look at
            counter.proposals.apply()
        refused = sent.answers[3]
        assert isinstance(refused, PlanAnswer)
        assert refused.outcome.refresh_index == counter.store.index
        assert not refused.outcome.is_whole

    run_at_counter(scenario)


def test_a_plan_may_use_what_a_plan_in_flight_frees() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register(a_job("job1"), a_job("job2"))
        counter.put_nodes(a_node(1, cpu=1000))
        counter.apply(a_plan(counter, 9, "job1", placed=(placing([1], [0], cpu=1000),)))
        tokens = await in_hand(counter, 1, 2, jobs=True)
        counter.proposals.is_held = True
        async with trio.open_nursery() as nursery:
            sent = Submissions(counter, nursery)
            sent.send(1, tokens[1], a_plan(counter, 1, "job1", stopped=(stopping([1]),)))
            await trio.sleep(0.1)
            sent.send(2, tokens[2], a_plan(counter, 2, "job2", placed=(placing([2], [0], cpu=1000),)))
            await trio.sleep(0.1)
            counter.proposals.apply()
        assert all(isinstance(one, PlanAnswer) and one.outcome.is_whole for one in sent.answers.values())

    run_at_counter(scenario)


def test_at_most_eight_plans_are_in_flight_and_the_most_urgent_of_the_rest_is_next() -> None:
    async def scenario(counter: Counter) -> None:
        count = IN_FLIGHT_MAX + 2
        counter.register(*(a_job(f"job{number}") for number in range(1, count + 1)))
        counter.put_nodes(a_node(1, cpu=100_000, memory_mb=100_000))
        tokens = await in_hand(counter, *range(1, count + 1), jobs=True)
        counter.proposals.is_held = True
        async with trio.open_nursery() as nursery:
            sent = Submissions(counter, nursery)
            for number in range(1, count + 1):
                plan = a_plan(counter, number, f"job{number}", placed=(placing([number], [0], disk_mb=0),))
                sent.send(number, tokens[number], plan, priority=number)
                await trio.sleep(0.01)
            assert len(counter.proposals._queue) == IN_FLIGHT_MAX
            assert counter.gauge("plan.queue_depth") == 2
            assert counter.gauge("plan.in_flight") == IN_FLIGHT_MAX
            counter.proposals.apply(1)
            await trio.sleep(0.01)
            newest = counter.proposals.said[-1]
            assert isinstance(newest, PlanApply)
            assert newest.evaluation_id == an_id(count)
            counter.proposals.is_held = False
            counter.proposals.apply()
        assert len(sent.answers) == count

    run_at_counter(scenario)


def test_when_a_commit_fails_what_was_counted_for_it_is_taken_back() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1, cpu=1000))
        tokens = await in_hand(counter, 1)
        plan = a_plan(counter, placed=(placing([1], [0], cpu=1000),))
        counter.proposals.refuse = Unavailable("no quorum")

        with pytest.raises(Unavailable):
            await counter.applier.submit(an_id(1), tokens[1], plan)

        assert counter.feed.fleet.held_cpu[0] == 0
        assert counter.broker.core.token_of(an_id(1)) == tokens[1]
        counter.proposals.refuse = None
        assert (await counter.applier.submit(an_id(1), tokens[1], plan)).outcome.is_whole

    run_at_counter(scenario)


def test_a_plan_from_before_another_leadership_is_void_and_leaves_no_trace() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1, cpu=1000))
        tokens = await in_hand(counter, 1)
        counter.applier._term = 2

        with pytest.raises(Exception, match="leader of term 3"):
            await counter.applier.submit(an_id(1), tokens[1], a_plan(counter, placed=(placing([1], [0], cpu=1000),)))

        assert counter.feed.fleet.held_cpu[0] == 0

    run_at_counter(scenario)


def test_a_node_that_leaves_between_check_and_commit_keeps_the_evaluation_open() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1), a_node(2))
        tokens = await in_hand(counter, 1)
        counter.proposals.is_held = True
        async with trio.open_nursery() as nursery:
            sent = Submissions(counter, nursery)
            sent.send(1, tokens[1], a_plan(counter, placed=(placing([1, 2], [0, 1]),), ends=(done(),)))
            await trio.sleep(0.1)
            counter.proposals.overtake(NodeDeregister(ids=(an_id(1),)))
            counter.proposals.apply()
        answer = sent.answers[1]
        assert isinstance(answer, PlanAnswer)
        assert (answer.outcome.is_whole, answer.outcome.is_progress, answer.is_acked) == (False, True, False)
        assert answer.outcome.refresh_index == counter.store.index
        assert counter.status(1) == "pending"

    run_at_counter(scenario)


def test_a_node_that_goes_down_between_check_and_commit_has_its_job_looked_at_again() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1))
        tokens = await in_hand(counter, 1)
        counter.proposals.is_held = True
        async with trio.open_nursery() as nursery:
            sent = Submissions(counter, nursery)
            sent.send(1, tokens[1], a_plan(counter, placed=(placing([1], [0]),), ends=(done(),)))
            await trio.sleep(0.1)
            counter.proposals.overtake(node_upsert(a_node(1, status=NodeStatus.DOWN)))
            counter.proposals.is_held = False
            counter.proposals.apply()
        await trio.sleep(0.1)

        follow = [one for one in counter.all() if one.triggered_by == "node-update"]
        assert [(one.job_id, one.status) for one in follow] == [("web", "pending")]

    run_at_counter(scenario)


def test_jobs_that_lose_allocations_to_a_plan_get_an_evaluation_each_in_the_same_entry() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register(a_job("web"), a_job("small", priority=20, type="batch"), a_job("tiny", priority=10))
        counter.put_nodes(a_node(1, cpu=1000))
        counter.apply(a_plan(counter, 8, "small", placed=(placing([1, 2], [0, 0], cpu=300),)))
        counter.apply(a_plan(counter, 9, "tiny", placed=(placing([3], [0], cpu=300),)))
        tokens = await in_hand(counter, 1)
        before = counter.store.index

        await counter.applier.submit(
            an_id(1),
            tokens[1],
            a_plan(counter, stopped=(stopping([1, 2, 3], desired=EVICT),), placed=(placing([4], [0], cpu=1000),)),
        )

        assert counter.store.index == before + 1
        made = {one.job_id: one for one in counter.all() if one.triggered_by == "preemption"}
        assert sorted(made) == ["small", "tiny"]
        assert (made["small"].type, made["small"].priority, made["small"].status) == ("batch", 20, "pending")

    run_at_counter(scenario)


def test_a_node_that_refuses_too_often_is_made_ineligible_with_the_plan() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1, cpu=100), a_node(2))
        tokens = await in_hand(counter, 1)

        await counter.applier.submit(an_id(1), tokens[1], a_plan(counter, placed=(placing([1, 2], [0, 1]),)))

        row = counter.store.nodes.get(an_id(1))
        assert row is not None
        assert row.eligibility == "ineligible"

    run_at_counter(scenario, rejections=RejectionSettings(is_enabled=True, threshold=1))


def test_plans_that_are_refused_as_a_whole_count_against_their_node_too() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1, cpu=100))
        tokens = await in_hand(counter, 1)
        answers = []
        for number in (1, 2, 3):
            plan = a_plan(counter, placed=(placing([number], [0]),))
            answers.append(await counter.applier.submit(an_id(1), tokens[1], plan))

            row = counter.store.nodes.get(an_id(1))
            assert row is not None
            assert row.eligibility == ("ineligible" if number == 3 else "eligible")

        assert all(not answer.outcome.is_progress for answer in answers)
        assert {answer.rejected_nodes for answer in answers} == {(an_id(1),)}
        assert answers[-1].outcome.refresh_index == counter.store.index

    run_at_counter(scenario, rejections=RejectionSettings(is_enabled=True, threshold=3))


def test_a_plan_made_ahead_of_the_leaders_own_state_waits_for_it_for_ten_seconds_at_most() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1))
        tokens = await in_hand(counter, 1)
        ahead = a_plan(counter, placed=(placing([1], [0]),), snapshot_index=counter.store.index + 1)
        async with trio.open_nursery() as nursery:
            sent = Submissions(counter, nursery)
            sent.send(1, tokens[1], ahead)
            await trio.sleep(5)
            assert not sent.answers
            counter.put_nodes(a_node(2))
        assert isinstance(sent.answers[1], PlanAnswer)

        far = a_plan(counter, placed=(placing([2], [0]),), snapshot_index=counter.store.index + 100)
        began = trio.current_time()
        with pytest.raises(PlanQueueDisabled, match="the plan was made at"):
            await counter.applier.submit(an_id(1), tokens[1], far)
        assert trio.current_time() - began == pytest.approx(10)

    run_at_counter(scenario)


def test_when_the_office_ends_whoever_waits_is_told_and_nothing_stays_counted() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register(*(a_job(f"job{number}") for number in range(1, 11)))
        counter.put_nodes(a_node(1, cpu=100_000, memory_mb=100_000))
        async with trio.open_nursery() as nursery:
            await nursery.start(counter.broker.run)
            tokens = await in_hand(counter, *range(1, 11), jobs=True)
            counter.proposals.is_held = True
            sent = Submissions(counter, nursery)
            async with trio.open_nursery() as office:
                await office.start(counter.applier.run)
                for number in range(1, 11):
                    plan = a_plan(counter, number, f"job{number}", placed=(placing([number], [0], disk_mb=0),))
                    sent.send(number, tokens[number], plan)
                await trio.sleep(1)
                office.cancel_scope.cancel()
            await trio.sleep(0.1)
            assert len(sent.answers) == 10
            assert {type(answer) for answer in sent.answers.values()} == {PlanQueueDisabled}
            assert counter.feed.fleet.held_cpu[0] == 0
            with pytest.raises(PlanQueueDisabled):
                await counter.applier.submit(an_id(1), tokens[1], a_plan(counter, 1, "job1"))
            nursery.cancel_scope.cancel()

    run_at_counter(scenario, office=False)


def test_refusals_are_counted_and_those_without_a_reason_apart() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1, cpu=100))
        tokens = await in_hand(counter, 1)
        plan = a_plan(counter, placed=(placing([1], [0]),))
        stale = structs.replace(plan, snapshot_index=counter.store.index - 2)
        await counter.applier.submit(an_id(1), tokens[1], plan)

        assert counter.gauge("plan.nodes_rejected") == 1
        assert counter.gauge("plan.refused_at_same_index") == 1  # it was made from this very state: a defect
        counter.put_nodes(a_node(1, cpu=100, status=NodeStatus.DOWN))
        await counter.applier.submit(an_id(1), tokens[1], stale)
        assert counter.gauge("plan.refused_at_same_index") == 1

    run_at_counter(scenario)


@pytest.mark.parametrize("leaves", [False, True], ids=["all of it is taken", "a node leaves"])
def test_room_that_a_plan_did_not_take_in_the_end_is_news_to_those_who_found_none_beside_it(leaves: bool) -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1), a_node(2))
        tokens = await in_hand(counter, 1)
        counter.put(blocked(2, "db", snapshot_index=counter.store.index))
        counter.proposals.is_held = True
        async with trio.open_nursery() as nursery:
            sent = Submissions(counter, nursery)
            sent.send(1, tokens[1], a_plan(counter, placed=(placing([1, 2], [0, 1]),)))
            await trio.sleep(0.1)
            if leaves:
                counter.proposals.overtake(NodeDeregister(ids=(an_id(1),)))
            assert await nothing(counter)
            counter.proposals.apply()

        if leaves:
            assert (await take(counter)).delivery.ticket.id == an_id(2)
        assert await nothing(counter)

    run_at_counter(scenario)


def test_room_of_a_plan_that_could_not_be_committed_is_news_too() -> None:
    async def scenario(counter: Counter) -> None:
        counter.register()
        counter.put_nodes(a_node(1))
        tokens = await in_hand(counter, 1)
        counter.put(blocked(2, "db", snapshot_index=counter.store.index))
        counter.proposals.refuse = Unavailable("no quorum")

        with pytest.raises(Unavailable):
            await counter.applier.submit(an_id(1), tokens[1], a_plan(counter, placed=(placing([1], [0]),)))

        assert (await take(counter)).delivery.ticket.id == an_id(2)

    run_at_counter(scenario)
