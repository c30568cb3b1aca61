"""What a worker does with an evaluation, whatever happens on the way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio

from fedsched.model.errors import FedschedError, Unavailable
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.scheduler.decision import Attempt, Outcome, Scheduling
from fedsched.server.dispatch import NoLeader
from fedsched.server.leader.broker_core import Ticket
from fedsched.server.leader.plan_apply import PlanAnswer
from fedsched.server.work_source import Assignment, OwnOffice, WorkSource
from fedsched.server.workers import Workers, active_workers
from fedsched.state.tables.plans import PlanApply
from tests.builders import a_group, a_job, a_node, an_id
from tests.server.leader.counter import Counter, pending, run_at_counter
from tests.server.leader.first_fit import FirstFit

Scenario = Callable[[Counter], Awaitable[None]]


class Recorder:
    """An own office that notes what is asked of it and may fail on purpose."""

    def __init__(self, counter: Counter) -> None:
        self._office = OwnOffice(counter.work)
        self.calls: list[str] = []
        self.fail: dict[str, list[FedschedError]] = {}
        self.polls: list[float] = []

    def _note(self, name: str) -> None:
        self.calls.append(name)
        if self.fail.get(name):
            raise self.fail[name].pop(0)

    async def dequeue(self, types: Sequence[str], *, wait_s: float) -> Assignment | None:
        self.polls.append(trio.current_time())
        if self.fail.get("dequeue"):
            raise self.fail["dequeue"].pop(0)
        return await self._office.dequeue(types, wait_s=wait_s)

    async def submit(self, assignment: Assignment, plan: PlanApply, *, priority: int, all_at_once: bool) -> PlanAnswer:
        self._note("submit")
        return await self._office.submit(assignment, plan, priority=priority, all_at_once=all_at_once)

    async def store(self, assignment: Assignment, evaluations: Sequence[Evaluation], *, ack: bool) -> None:
        self._note("store")
        await self._office.store(assignment, evaluations, ack=ack)

    async def ack(self, assignment: Assignment) -> None:
        self._note("ack")
        await self._office.ack(assignment)

    async def nack(self, assignment: Assignment) -> None:
        self._note("nack")
        await self._office.nack(assignment)


def working(
    scenario: Callable[[Counter, Recorder], Awaitable[None]],
    scheduler: Callable[..., Scheduling] = FirstFit,
    *,
    count: int = 1,
    **options: Any,
) -> None:
    """Run a scenario with workers at the counter."""

    async def main(counter: Counter) -> None:
        recorder = Recorder(counter)

        def source() -> WorkSource:
            return recorder

        workers = Workers(counter.desk, counter.feed, {"service": scheduler}, count=count, source=source)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workers.run)
            await scenario(counter, recorder)
            nursery.cancel_scope.cancel()

    run_at_counter(main, **options)


def test_a_registered_job_becomes_allocations_by_one_plan_and_nothing_else() -> None:
    async def scenario(counter: Counter, recorder: Recorder) -> None:
        counter.put_nodes(a_node(1), a_node(2))
        counter.register(a_job(groups=[a_group(count=10)]))
        counter.put(pending(1))
        await trio.sleep(0.1)

        assert recorder.calls == ["submit"]
        assert counter.status(1) == "complete"
        assert len(counter.store.allocations.slots_of_job("default", "web")) == 10
        ended = counter.store.evaluations.get(an_id(1))
        assert ended is not None
        assert ended.snapshot_index == counter.store.index - 1
        assert ended.modify_time_ns > 0

    working(scenario)


def test_an_evaluation_that_changes_nothing_is_stored_and_done() -> None:
    async def scenario(counter: Counter, recorder: Recorder) -> None:
        counter.register(a_job(groups=[a_group(count=0)]))
        counter.put(pending(1))
        await trio.sleep(0.1)

        assert recorder.calls == ["store"]
        assert counter.status(1) == "complete"
        assert not counter.broker.core.knows(an_id(1))

    working(scenario)


def test_what_finds_no_room_waits_blocked_and_runs_within_a_second_of_room_appearing() -> None:
    async def scenario(counter: Counter, recorder: Recorder) -> None:
        counter.put_nodes(a_node(1, cpu=1000))
        counter.register(a_job(groups=[a_group(count=5)]))
        counter.put(pending(1))
        await trio.sleep(0.1)
        waiting = [one for one in counter.all() if one.status is EvaluationStatus.BLOCKED]
        assert len(waiting) == 1
        assert len(counter.store.allocations.slots_of_job("default", "web")) == 2

        counter.put_nodes(a_node(2, cpu=500))
        await trio.sleep(1)
        assert len(counter.store.allocations.slots_of_job("default", "web")) == 3
        assert counter.broker.blocked.knows(waiting[0].id)  # blocked again, by its own word
        counter.put_nodes(a_node(3))
        await trio.sleep(1)

        assert len(counter.store.allocations.slots_of_job("default", "web")) == 5
        assert {one.status.value for one in counter.all()} == {"complete"}

    working(scenario)


def test_an_evaluation_that_ended_meanwhile_or_is_gone_is_acknowledged_and_that_is_all() -> None:
    async def scenario(counter: Counter, recorder: Recorder) -> None:
        counter.broker.enqueue(Ticket("nowhere", "default", "web", "service", 50))
        await trio.sleep(0.1)

        assert recorder.calls == ["ack"]

    working(scenario)


def test_a_refused_plan_is_made_again_from_a_newer_state() -> None:
    class Stubborn(FirstFit):
        """Looks at an empty fleet the first time."""

        tries = 0

        def _slots(self, fleet: Any, count: int) -> list[int]:
            self.tries += 1
            return [0] * count if self.tries == 1 else super()._slots(fleet, count)

    async def scenario(counter: Counter, recorder: Recorder) -> None:
        counter.put_nodes(a_node(1, cpu=1000), a_node(2))
        counter.register(a_job(groups=[a_group(count=4)]))
        counter.put(pending(1))
        await trio.sleep(0.1)

        assert recorder.calls == ["submit", "submit"]
        assert counter.status(1) == "complete"
        assert len(counter.store.allocations.slots_of_job("default", "web")) == 4

    working(scenario, Stubborn)


def test_a_scheduler_that_gives_up_leaves_a_failed_and_a_blocked_evaluation() -> None:
    class Hopeless(FirstFit):
        def _slots(self, fleet: Any, count: int) -> list[int]:
            return [0] * count

    async def scenario(counter: Counter, recorder: Recorder) -> None:
        counter.put_nodes(a_node(1, cpu=100))
        counter.register()
        counter.put(pending(1))
        await trio.sleep(1)

        assert recorder.calls == ["submit"] * 5 + ["store"]
        assert counter.status(1) == "failed"
        left = [one for one in counter.all() if one.id != an_id(1)]
        assert [(one.status.value, one.triggered_by) for one in left] == [("blocked", "max-plan-attempts")]
        assert left[0].snapshot_index > 0

    working(scenario, Hopeless)


def test_a_scheduler_that_raises_hands_its_evaluation_back_and_the_worker_goes_on() -> None:
    class Broken(FirstFit):
        def attempt(self, *args: Any) -> Attempt:
            if self.evaluation.job_id == "web":
                raise ZeroDivisionError("oops")
            return super().attempt(*args)

    async def scenario(counter: Counter, recorder: Recorder) -> None:
        counter.put_nodes(a_node(1))
        counter.register(a_job("web"), a_job("db"))
        counter.put(pending(1))
        await trio.sleep(0.1)
        assert recorder.calls == ["nack"]
        assert counter.said("scheduler_failed")

        counter.put(pending(2, "db"))
        await trio.sleep(0.1)
        assert counter.status(2) == "complete"
        await trio.sleep(25)
        assert counter.status(1) == "failed"

    working(scenario, Broken)


def test_while_there_is_no_leader_a_plan_is_sent_again_with_growing_pauses() -> None:
    async def scenario(counter: Counter, recorder: Recorder) -> None:
        recorder.fail["submit"] = [NoLeader("none"), NoLeader("none"), NoLeader("none")]
        counter.put_nodes(a_node(1))
        counter.register()
        counter.put(pending(1))
        await trio.sleep(3.4)
        assert counter.status(1) == "pending"
        await trio.sleep(0.2)

        assert recorder.calls == ["submit"] * 4
        assert counter.status(1) == "complete"

    working(scenario)


def test_a_worker_that_cannot_reach_a_leader_for_a_minute_hands_back_what_it_has() -> None:
    async def scenario(counter: Counter, recorder: Recorder) -> None:
        recorder.fail["submit"] = [NoLeader("none") for _ in range(100)]
        counter.put_nodes(a_node(1))
        counter.register()
        counter.put(pending(1))
        await trio.sleep(59)

        assert recorder.calls[:11] == [*["submit"] * 10, "nack"]
        assert counter.said("evaluation_not_done")

    working(scenario)


def test_any_other_refusal_of_a_plan_hands_the_evaluation_back() -> None:
    async def scenario(counter: Counter, recorder: Recorder) -> None:
        recorder.fail = {"submit": [Unavailable("weather")], "nack": [Unavailable("weather")]}
        counter.put_nodes(a_node(1))
        counter.register()
        counter.put(pending(1))
        await trio.sleep(0.1)

        assert recorder.calls == ["submit", "nack"]
        assert counter.said("not_handed_back")
        await trio.sleep(62)  # its delivery timed out
        assert counter.status(1) == "complete"

    working(scenario)


def test_an_evaluation_that_was_taken_away_is_dropped_without_a_word() -> None:
    class Slow(FirstFit):
        def attempt(self, *args: Any) -> Attempt:
            taken(self.evaluation.id)
            return super().attempt(*args)

    taken: Callable[[str], None]

    async def scenario(counter: Counter, recorder: Recorder) -> None:
        nonlocal taken

        def taken(evaluation_id: str) -> None:
            counter.broker.nack(evaluation_id, counter.broker.core.token_of(evaluation_id))

        counter.put_nodes(a_node(1))
        counter.register()
        counter.put(pending(1))
        await trio.sleep(0.1)

        assert recorder.calls == ["submit"]
        assert counter.said("evaluation_taken_away")

    working(scenario, Slow)


def test_a_server_that_lags_hands_back_after_five_seconds_and_rests_until_it_has_caught_up() -> None:
    async def scenario(counter: Counter, recorder: Recorder) -> None:
        counter.register()
        ahead = counter.store.index + 3
        counter.broker._wait_index = lambda ticket: ahead  # type: ignore[method-assign]
        counter.put(pending(1))
        await trio.sleep(5.1)
        assert recorder.calls == ["nack"]
        await trio.sleep(20)
        assert recorder.calls == ["nack"]  # it takes nothing meanwhile

        counter.put_nodes(a_node(1), a_node(2), a_node(3))
        await trio.sleep(5)
        assert counter.status(1) == "complete"

    working(scenario)


def test_an_idle_worker_asks_once_in_eight_seconds() -> None:
    async def scenario(counter: Counter, recorder: Recorder) -> None:
        await trio.sleep(81)

        assert len(recorder.polls) == 11

    working(scenario)


def test_a_worker_that_gets_only_errors_asks_less_and_less_often_up_to_every_ten_seconds() -> None:
    async def scenario(counter: Counter, recorder: Recorder) -> None:
        recorder.fail["dequeue"] = [NoLeader("none") for _ in range(20)]
        await trio.sleep(70)

        pauses = [round(b - a, 2) for a, b in zip(recorder.polls, recorder.polls[1:], strict=False)]
        assert pauses[:5] == [0.02, 0.04, 0.08, 0.16, 0.32]
        assert max(pauses) == 10.0

    working(scenario)


def test_a_scheduler_that_expects_to_take_long_works_on_a_thread() -> None:
    class Large(FirstFit):
        def detach(self, state: Any, fleet: Any, now_ns: int) -> Callable[[], Attempt] | None:
            copied = fleet.copy()
            made = super().attempt(state, copied, now_ns)
            return lambda: made

        def attempt(self, *args: Any) -> Attempt:
            raise AssertionError("not on the event loop")

    async def scenario(counter: Counter, recorder: Recorder) -> None:
        counter.put_nodes(a_node(1))
        counter.register()
        counter.put(pending(1))
        while counter.status(1) != "complete":
            await trio.sleep(0.01)

    working(scenario, Large)


def test_a_long_attempt_pauses_for_others() -> None:
    turns: list[str] = []

    class Long(FirstFit):
        def attempt_in_pieces(self, store: Any, fleet: Any, now_ns: int) -> Any:
            made = self.attempt(store, fleet.copy(), now_ns)
            for _ in range(5):
                turns.append("piece")
                yield
            return made

    async def others() -> None:
        while True:
            turns.append("other")
            await trio.lowlevel.checkpoint()

    async def scenario(counter: Counter, recorder: Recorder) -> None:
        counter.put_nodes(a_node(1))
        counter.register()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others)
            counter.put(pending(1))
            while counter.status(1) != "complete":
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()

    working(scenario, Long)
    pieces = [at for at, turn in enumerate(turns) if turn == "piece"]
    assert len(pieces) == 5
    assert turns[pieces[0] : pieces[-1]].count("other") >= 3  # one per round, in any order


def test_an_attempt_without_a_plan_and_without_an_end_is_followed_by_what_the_scheduler_says() -> None:
    class Unsure(FirstFit):
        def attempt(self, *args: Any) -> Attempt:
            return Attempt(plan=None, ends=())

        def heard(self, outcome: Outcome, now_ns: int) -> tuple[Evaluation, ...] | None:
            assert outcome.is_whole
            return ()

    async def scenario(counter: Counter, recorder: Recorder) -> None:
        counter.put(pending(1))
        await trio.sleep(0.1)

        assert recorder.calls == ["ack"]

    working(scenario, Unsure)


@pytest.mark.parametrize(("count", "leading"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 2), (8, 2), (16, 4)])
def test_a_leader_rests_three_quarters_of_its_workers_and_never_the_only_one(count: int, leading: int) -> None:
    assert active_workers(count, leads=True) == leading
    assert active_workers(count, leads=False) == count


def test_resting_workers_begin_when_leadership_is_lost() -> None:
    async def scenario(counter: Counter, recorder: Recorder) -> None:
        await trio.sleep(1)
        assert len(recorder.polls) == 2
        counter.raft.lead(False)
        await trio.sleep(1)
        assert len(recorder.polls) == 8

    working(scenario, count=8)


def test_without_a_scheduler_there_is_nothing_to_work_on() -> None:
    async def scenario(counter: Counter) -> None:
        await Workers(counter.desk, counter.feed, {}, count=4, source=lambda: OwnOffice(counter.work)).run()

    run_at_counter(scenario)
