"""Blocking queries: who waits for what, on a virtual clock; and through real servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from fedsched.model.errors import Busy, FedschedError, NotFound
from fedsched.raft.entry import Entry, EntryKind
from fedsched.rpc.caller import Caller
from fedsched.rpc.context import CallMeta, ReplyMeta
from fedsched.rpc.errors import meta_of
from fedsched.rpc.methods.evaluation import EVAL_GET, EVAL_LIST, EvaluationListRequest, EvaluationRequest
from fedsched.rpc.methods.job import (
    JOB_DEREGISTER,
    JOB_EVALUATIONS,
    JOB_GET,
    JOB_LIST,
    JOB_VERSIONS,
    JobDeregisterRequest,
    JobListRequest,
    JobRequest,
)
from fedsched.server.dialling import Dialer
from fedsched.server.machine import StateMachine
from fedsched.server.peers import PeerLinks
from fedsched.server.waits import Looked, StateWaits, look_at_evaluations, look_at_row
from fedsched.state.commands import Envelope, encode_command
from fedsched.state.fields import Command
from fedsched.state.store import Store
from fedsched.state.tables.alloc_updates import Reap
from fedsched.state.tables.evaluations import EvaluationsUpsert, evaluation_write
from fedsched.state.tables.jobs import JobDeregister, job_register
from fedsched.state.waits import one_row, whole_table
from fedsched.telemetry.log import Hub
from tests.builders import a_job, an_evaluation, an_id
from tests.server.region import Member, Region, run_region, until

SOON_S = 0.1
"""Within this a change must have been told. On the real clock of a crowded machine: the best of several attempts."""


class World:
    """A state machine without Raft under it, and those who wait for it."""

    def __init__(self, *, limit: int = 10) -> None:
        self.machine = StateMachine(Hub().logger("test"))
        self.waits = StateWaits(self.machine, Random(1), limit=limit)
        self.index = 0

    def apply(self, *commands: Command) -> int:
        for command in commands:
            self.index += 1
            payload = encode_command(Envelope(command=command, time_ns=self.index))
            self.machine.apply(Entry(self.index, 1, EntryKind.COMMAND, payload))
        self.machine.after_apply(self.index)
        return self.index

    def register(self, job_id: str, evaluation: int = 0) -> int:
        job = a_job(job_id)
        write = evaluation_write(an_evaluation(evaluation, job=job)) if evaluation else None
        return self.apply(job_register(job, evaluation=write))

    def job_row(self, job_id: str) -> Callable[[], Looked]:
        key = ("default", job_id)
        return self.looking(lambda: look_at_row(self.machine.store, "jobs", *key))

    def evaluations(self, job_id: str) -> Callable[[], Looked]:
        return self.looking(lambda: look_at_evaluations(self.machine.store, "default", job_id))

    def looking(self, look: Callable[[], Looked]) -> Callable[[], Looked]:
        nobody: Any = None
        return lambda: self.waits.look(lambda *_: look(), nobody, nobody)


class Waiting:
    """Somebody who waits, and whether it is over."""

    def __init__(self) -> None:
        self._is_over = False

    def is_over(self) -> bool:
        return self._is_over

    async def run(self, wait: Awaitable[None]) -> None:
        await wait
        self._is_over = True


def on_virtual_time(scenario: Callable[[World, trio.Nursery], Awaitable[None]], **fields: Any) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await scenario(World(**fields), nursery)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0), strict_exception_groups=True)


def test_what_has_moved_on_already_is_not_waited_for() -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        index = world.register("web")
        started = trio.current_time()

        await world.waits.wait_newer(world.job_row("web"), index - 1, 60)

        assert trio.current_time() == started
        assert len(world.waits) == 0

    on_virtual_time(scenario)


def test_a_change_wakes_who_waits_for_it_and_nobody_else() -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        web, other = world.register("web"), world.register("other")
        for_web, for_other = Waiting(), Waiting()
        nursery.start_soon(for_web.run, world.waits.wait_newer(world.job_row("web"), web, 60))
        nursery.start_soon(for_other.run, world.waits.wait_newer(world.job_row("other"), other, 60))
        await trio.testing.wait_all_tasks_blocked()
        assert len(world.waits) == 2

        world.apply(job_register(a_job("web", priority=70), evaluation=None))
        await trio.testing.wait_all_tasks_blocked()

        assert for_web.is_over()
        assert not for_other.is_over()
        assert len(world.waits) == 1

    on_virtual_time(scenario)


def test_a_touch_that_leaves_the_index_where_it_was_does_not_end_the_wait() -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        looked = Looked(5, (whole_table("jobs"),))
        waiting = Waiting()
        nursery.start_soon(waiting.run, world.waits.wait_newer(lambda: looked, 5, 60))
        await trio.testing.wait_all_tasks_blocked()

        world.register("web")
        await trio.testing.wait_all_tasks_blocked()

        assert not waiting.is_over()
        assert len(world.waits) == 1

    on_virtual_time(scenario)


@pytest.mark.parametrize(
    ("asked_s", "least_s"), [(8.0, 8.0), (0.0, 300.0), (-1.0, 300.0), (299.0, 299.0), (301.0, 300.0), (1e9, 300.0)]
)
def test_a_wait_ends_when_its_time_is_up_and_up_to_a_sixteenth_later(asked_s: float, least_s: float) -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        index = world.register("web")
        started = trio.current_time()

        await world.waits.wait_newer(world.job_row("web"), index, asked_s)

        assert least_s < trio.current_time() - started <= least_s * 17 / 16
        assert len(world.waits) == 0

    on_virtual_time(scenario)


def test_evaluations_of_a_job_are_waited_for_by_job() -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        world.register("web", evaluation=1)
        world.register("other", evaluation=2)
        after = world.evaluations("web")().index
        for_web, for_none = Waiting(), Waiting()
        nursery.start_soon(for_web.run, world.waits.wait_newer(world.evaluations("web"), after, 60))
        nursery.start_soon(for_none.run, world.waits.wait_newer(world.evaluations("none"), 2, 60))
        await trio.testing.wait_all_tasks_blocked()

        world.apply(EvaluationsUpsert(evaluations=(evaluation_write(an_evaluation(3, job=a_job("other"))),)))
        await trio.testing.wait_all_tasks_blocked()
        assert not for_web.is_over()
        world.apply(EvaluationsUpsert(evaluations=(evaluation_write(an_evaluation(4, job=a_job("web"))),)))
        await trio.testing.wait_all_tasks_blocked()

        assert for_web.is_over()
        assert not for_none.is_over()  # the table has moved on, but not what it looks at
        assert world.evaluations("web")().index == world.index

    on_virtual_time(scenario)


def test_an_evaluation_that_is_cleaned_away_ends_no_wait() -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        world.register("other", evaluation=2)
        after = world.register("web", evaluation=1)
        waiting = Waiting()
        nursery.start_soon(waiting.run, world.waits.wait_newer(world.evaluations("web"), after, 60))
        await trio.testing.wait_all_tasks_blocked()

        world.apply(Reap(evaluations=(an_id(2),)))
        await trio.testing.wait_all_tasks_blocked()

        assert not waiting.is_over()

    on_virtual_time(scenario)


def test_one_wait_more_than_the_limit_is_refused_and_leaves_nothing_behind() -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        index = world.register("web")
        nursery.start_soon(world.waits.wait_newer, world.job_row("web"), index, 60)
        await trio.testing.wait_all_tasks_blocked()
        two_topics = Looked(index, (one_row("jobs", "default", "web"), whole_table("evaluations")))

        with pytest.raises(Busy, match="2 blocking queries are waiting"):
            await world.waits.wait_newer(lambda: two_topics, index, 60)

        assert len(world.waits) == 1

    on_virtual_time(scenario, limit=2)


def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        index = world.register("web")
        with trio.move_on_after(1):
            await world.waits.wait_newer(world.job_row("web"), index, 60)

        assert len(world.waits) == 0
        world.apply(job_register(a_job("web", priority=70), evaluation=None))

    on_virtual_time(scenario)


def test_a_state_that_is_replaced_wakes_everybody_to_look_again() -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        looks = 0

        def look() -> Looked:
            nonlocal looks
            looks += 1
            return Looked(7, (one_row("jobs", "default", "web"),))

        nursery.start_soon(world.waits.wait_newer, look, 7, 60)
        await trio.testing.wait_all_tasks_blocked()
        assert looks == 1

        world.machine.replace(Store())
        world.machine.after_apply(1)
        await trio.testing.wait_all_tasks_blocked()

        assert looks == 2

    on_virtual_time(scenario)


def test_what_is_not_there_is_waited_for_whatever_happens_to_others() -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        world.register("other", evaluation=2)
        looks = (world.job_row("web"), world.evaluations("web"))
        seen = [look().index for look in looks]
        world.register("one more", evaluation=3)
        waits = []
        for look, index in zip(looks, seen, strict=True):
            waits.append(Waiting())
            nursery.start_soon(waits[-1].run, world.waits.wait_newer(look, index, 60))
        await trio.testing.wait_all_tasks_blocked()
        world.register("other", evaluation=4)
        await trio.testing.wait_all_tasks_blocked()
        assert not any(waiting.is_over() for waiting in waits)

        appeared = world.register("web", evaluation=1)
        await trio.testing.wait_all_tasks_blocked()

        assert all(waiting.is_over() for waiting in waits)
        assert [look().index for look in looks] == [appeared, appeared]

    on_virtual_time(scenario)


def test_whoever_saw_it_before_is_told_at_once_that_it_is_gone_and_then_waits() -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        written = world.register("web")
        gone = world.apply(JobDeregister(namespace="default", id="web", purge=True))
        look, started = world.job_row("web"), trio.current_time()

        await world.waits.wait_newer(look, written, 60)
        assert (look().index, trio.current_time()) == (gone, started)

        world.register("other")
        await world.waits.wait_newer(look, gone, 60)
        assert look().index == gone
        assert trio.current_time() >= started + 60

    on_virtual_time(scenario)


def test_a_server_that_started_from_a_saved_state_does_not_know_what_was_deleted_before() -> None:
    async def scenario(world: World, nursery: trio.Nursery) -> None:
        world.register("web")
        world.register("other")
        late = StateWaits(world.machine, Random(1))
        nobody: Any = None
        look = lambda *_: look_at_row(world.machine.store, "jobs", "default", "gone")  # noqa: E731

        assert late.look(look, nobody, nobody).index == 2
        assert world.waits.look(look, nobody, nobody).index == 1  # has seen everything: nothing was ever deleted

        replaced = Store()
        replaced.index = 40
        world.machine.replace(replaced)
        world.machine.after_apply(40)
        assert world.waits.look(look, nobody, nobody).index == 40

    on_virtual_time(scenario)


# ------------------------------------------------------------------------------------------------ through real servers


async def ask(member: Member, method: Any, request: Any, **meta: Any) -> tuple[Any, ReplyMeta]:
    reply, reply_meta = await member.caller.call(method, request, CallMeta(**meta))
    return reply, reply_meta


class Question:
    """A blocking query under way."""

    def __init__(self, member: Member, method: Any, request: Any, **meta: Any) -> None:
        self.reply: Any = None
        self.meta = ReplyMeta()
        self.error: Exception | None = None
        self.answered_at = 0.0
        self._args = (member, method, request)
        self._meta = meta

    @property
    def is_answered(self) -> bool:
        return self.reply is not None or self.error is not None

    async def run(self) -> None:
        try:
            self.reply, self.meta = await ask(*self._args, **self._meta)
        except Exception as error:
            self.error = error
        self.answered_at = trio.current_time()


def waiters(*members: Member) -> int:
    return sum(len(member.server.waits) for member in members)


QUESTIONS: list[tuple[Any, Any]] = [
    (JOB_GET, JobRequest(job_id="web")),
    (JOB_VERSIONS, JobRequest(job_id="web")),
    (JOB_EVALUATIONS, JobRequest(job_id="web")),
    (JOB_LIST, JobListRequest()),
    (JOB_LIST, JobListRequest(prefix="we")),
    (EVAL_LIST, EvaluationListRequest()),
    (EVAL_LIST, EvaluationListRequest(job_id="web")),
]


def test_every_read_that_can_wait_is_answered_by_its_change_stale_or_not_at_a_leader_or_a_follower(
    tmp_path: Path,
) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, follower = await region.leader(), (await region.followers())[0]
        await leader.register("web")
        questions = []
        async with trio.open_nursery() as nursery:
            for member in (leader, follower):
                for stale in (False, True):
                    for method, request in QUESTIONS:
                        _, seen = await ask(member, method, request)
                        questions.append(Question(member, method, request, min_index=seen.index, stale=stale))
                        nursery.start_soon(questions[-1].run)
            await until("everybody waits", lambda: waiters(leader, follower) >= len(questions))
            assert not any(question.is_answered for question in questions)
            written = await leader.register(a_job("web", region="", priority=70))

        assert [question.error for question in questions] == [None] * len(questions)
        assert {question.meta.index for question in questions} == {written.index}
        assert waiters(leader, follower) == 0

    run_region(tmp_path, scenario, num_schedulers=0)


def test_an_answer_comes_within_a_tenth_of_a_second_of_the_change(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, follower = await region.leader(), (await region.followers())[0]
        index = (await leader.register("web")).index
        took_s = []
        for priority in range(60, 65):
            question = Question(follower, JOB_GET, JobRequest(job_id="web"), min_index=index)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(question.run)
                await until("it waits", lambda: waiters(follower))
                index = (await leader.register(a_job("web", region="", priority=priority))).index
                changed_at = trio.current_time()
            took_s.append(question.answered_at - changed_at)
            assert question.reply.job.priority == priority

        assert min(took_s) < SOON_S, took_s

    run_region(tmp_path, scenario, num_schedulers=0)


def test_news_of_another_job_does_not_answer_and_when_time_is_up_the_old_answer_comes(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await leader.register("web")
        evaluation = (await leader.register("web")).eval_id
        narrow = [
            *(one for one in QUESTIONS if one[1] not in (JobListRequest(), EvaluationListRequest())),
            (EVAL_GET, EvaluationRequest(eval_id=evaluation)),
        ]
        questions = []
        async with trio.open_nursery() as nursery:
            for method, request in narrow:
                reply, seen = await ask(leader, method, request)
                question = Question(leader, method, request, min_index=seen.index, max_wait_s=0.3)
                questions.append((question, reply, seen))
                nursery.start_soon(question.run)
            await until("everybody waits", lambda: waiters(leader) >= len(questions))
            await leader.register("other")
            for question, _, _ in questions:
                assert not question.is_answered

        for question, reply, _ in questions:
            assert question.reply == reply

    run_region(tmp_path, scenario, num_schedulers=0)


def test_whoever_reads_thinks_and_reads_again_waits_though_others_changed_meanwhile(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        written = await leader.register("web")
        for method, request in [
            (JOB_GET, JobRequest(job_id="web")),
            (JOB_VERSIONS, JobRequest(job_id="web")),
            (JOB_EVALUATIONS, JobRequest(job_id="web")),
            (EVAL_GET, EvaluationRequest(eval_id=written.eval_id)),
        ]:
            _, seen = await ask(leader, method, request)
            await leader.register("other")

            _, again = await ask(leader, method, request, min_index=seen.index, max_wait_s=0.02)

            assert seen.index == again.index == written.index

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_purged_job_ends_the_wait_for_it_with_the_news_that_it_is_gone(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        written = await leader.register("web")
        question = Question(leader, JOB_GET, JobRequest(job_id="web"), min_index=written.index)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(question.run)
            await until("it waits", lambda: waiters(leader))

            await leader.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web", purge=True))

        assert isinstance(question.error, NotFound)
        assert _index_of(question.error) > written.index

    run_region(tmp_path, scenario, num_schedulers=0)


MISSING: list[tuple[Any, Any]] = [
    (JOB_GET, JobRequest(job_id="web")),
    (JOB_VERSIONS, JobRequest(job_id="web")),
    (EVAL_GET, EvaluationRequest(eval_id=an_id(7))),
]


@pytest.mark.parametrize("stale", [False, True])
def test_not_found_says_which_state_it_saw_from_any_server_and_over_a_link(tmp_path: Path, stale: bool) -> None:
    async def scenario(region: Region) -> None:
        await region.form(2)
        leader, follower = await region.leader(), (await region.followers())[0]
        await leader.register("other")
        links = PeerLinks(Dialer(), server_id="test", log=Hub().logger("test"))
        async with trio.open_nursery() as nursery:
            await nursery.start(links.run)
            over_link = await links.caller(follower.server.me)
            callers: list[tuple[Caller, Member]] = [(one.caller, one) for one in (leader, follower)]
            for caller, member in [*callers, (over_link, follower)]:
                for method, request in MISSING:
                    with pytest.raises(NotFound) as missing:
                        await caller.call(method, request, CallMeta(stale=stale))
                    meta = meta_of(missing.value)
                    assert meta is not None
                    assert (meta.index >= 1, meta.applied >= 1, meta.server) == (True, True, member.name)
            nursery.cancel_scope.cancel()

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_job_that_does_not_exist_yet_can_be_waited_for_from_the_answer_that_it_does_not(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(2)
        leader, follower = await region.leader(), (await region.followers())[0]
        for number, member in enumerate((leader, follower)):
            request = JobRequest(job_id=f"web-{number}")
            with pytest.raises(NotFound) as missing:
                await ask(member, JOB_GET, request)
            question = Question(member, JOB_GET, request, min_index=_index_of(missing.value))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(question.run)
                await until("it waits", lambda: waiters(leader, follower))
                await leader.register(f"other-{number}")
                assert not question.is_answered
                written = await leader.register(f"web-{number}")

            assert question.error is None
            assert (question.reply.job.id, question.meta.index) == (request.job_id, written.index)

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_wait_in_vain_ends_with_the_same_refusal_and_an_index_to_go_on_from(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        with pytest.raises(NotFound) as first:
            await ask(leader, JOB_GET, JobRequest(job_id="web"))
        index = _index_of(first.value)

        with pytest.raises(NotFound) as second:
            await ask(leader, JOB_GET, JobRequest(job_id="web"), min_index=index, max_wait_s=0.02)

        assert str(second.value) == str(first.value)
        assert _index_of(second.value) == index

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_refused_write_says_which_state_refused_it_through_a_follower_too(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(2)
        leader, follower = await region.leader(), (await region.followers())[0]
        before = (await leader.register("web")).index

        for member in (leader, follower):
            with pytest.raises(NotFound) as missing:
                await member.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="nobody"))
            meta = meta_of(missing.value)
            assert meta is not None
            assert (meta.index > before, meta.server) == (True, leader.name)

    run_region(tmp_path, scenario, num_schedulers=0)


def _index_of(error: Exception | None) -> int:
    assert isinstance(error, FedschedError)
    meta = meta_of(error)
    assert meta is not None
    return meta.index


def test_every_reply_has_an_index_of_at_least_one_to_wait_above(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)

        for method, request in [(JOB_LIST, JobListRequest()), (EVAL_LIST, EvaluationListRequest())]:
            for namespace in ("", "*", "default"):
                _, seen = await ask(leader, method, request, namespace=namespace)
                assert seen.index == 1
                assert seen.applied > 1

    run_region(tmp_path, scenario, num_schedulers=0)
