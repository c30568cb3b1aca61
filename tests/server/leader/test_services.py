"""The leader's services in office: they live on the state, outlast bad weather, and end with their term."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from fedsched.codec import to_bytes
from fedsched.model.alloc import ClientStatus
from fedsched.model.deployment import Deployment, DeploymentState
from fedsched.model.errors import NotFound, Unavailable
from fedsched.model.evaluation import Evaluation, EvaluationStatus
from fedsched.model.job import Job, PeriodicConfig
from fedsched.model.node import DrainStrategy, NodeStatus
from fedsched.server.leader import state_watch
from fedsched.server.leader.client_updates import ClientUpdatesService
from fedsched.server.leader.client_updates_core import Report
from fedsched.server.leader.core_service import CoreService
from fedsched.server.leader.deployments import DeploymentsService
from fedsched.server.leader.drain import DrainService
from fedsched.server.leader.gc import GcService
from fedsched.server.leader.heartbeats import HeartbeatsService
from fedsched.server.leader.office import LeaderService
from fedsched.server.leader.periodic import PeriodicService
from fedsched.server.leader.state_watch import StateWatch
from fedsched.state.tables.alloc_columns import CLIENT_CODES, Flag
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, AllocTransition, Reap
from fedsched.state.tables.deployments import DeploymentsUpsert, deployment_write
from fedsched.state.tables.evaluations import EvaluationsUpsert
from fedsched.state.tables.jobs import JobDeregister
from fedsched.state.tables.node_updates import NodeDrainUpdate, NodeDrainWrite, NodeStatusUpdate, NodeStatusWrite
from fedsched.state.tables.plans import PlanApply
from tests.builders import a_job, a_node, an_id
from tests.server.leader.counter import WALL_S, Counter, pending, run_at_counter
from tests.state.worlds import ids, placed_group

Make = Callable[[Counter], LeaderService]


def serve(make: Make, scenario: Callable[[Counter, Any], Awaitable[None]]) -> None:
    """Run a scenario beside one service in office."""

    async def main(counter: Counter) -> None:
        service = make(counter)
        async with trio.open_nursery() as nursery:
            await nursery.start(service.run)
            await scenario(counter, service)
            nursery.cancel_scope.cancel("the scenario is over")

    run_at_counter(main, office=False)


def place(counter: Counter, numbers: list[int], *, job: str = "web", deployment: str = "") -> None:
    row = counter.store.jobs.row("default", job)
    slot = counter.store.nodes.slot_of(an_id(1))
    assert row is not None
    assert slot is not None
    counter.apply(
        PlanApply(
            namespace="default",
            job_id=job,
            job_create_index=row.create_index,
            job_version=row.version,
            evaluation_id=an_id(0xE),
            snapshot_index=counter.store.index,
            deployment_id=deployment,
            placed=(placed_group(numbers, [slot] * len(numbers)),),
        )
    )


def report(counter: Counter, numbers: list[int], status: ClientStatus, health: int = 0) -> None:
    codes = bytes([CLIENT_CODES[status]]) * len(numbers)
    counter.apply(AllocStatusUpdate(ids=ids(numbers), statuses=codes, healths=bytes([health]) * len(numbers)))


def set_drain(counter: Counter, strategy: DrainStrategy) -> None:
    counter.apply(NodeDrainUpdate(updates=(NodeDrainWrite(id=an_id(1), strategy=to_bytes(strategy)),)))


def status_of(counter: Counter, number: int = 1) -> str:
    row = counter.store.nodes.get(an_id(number))
    return row.status if row is not None else "gone"


def a_minutely() -> Job:
    submitted = int(WALL_S * 1e9)
    return a_job("tick", type="batch", periodic=PeriodicConfig(specs=("* * * * *",)), submit_time_ns=submitted)


def children(counter: Counter) -> list[str]:
    return [row.id for row in counter.store.jobs.children("default", "tick")]


def test_periodic_jobs_are_launched_as_their_times_come() -> None:
    async def scenario(counter: Counter, service: PeriodicService) -> None:
        counter.register(a_minutely())

        await trio.sleep(185)

        assert len(children(counter)) == 3
        assert len(counter.said("periodic_launch")) == 3

    serve(lambda counter: PeriodicService(counter.desk), scenario)


def test_a_launch_that_could_not_be_written_is_made_up_for_once() -> None:
    async def scenario(counter: Counter, service: PeriodicService) -> None:
        counter.register(a_minutely())
        await trio.sleep(10)
        counter.proposals.refuse = Unavailable("no quorum")
        await trio.sleep(125)
        assert children(counter) == []

        counter.proposals.refuse = None
        await trio.sleep(5)

        assert len(children(counter)) == 1

    serve(lambda counter: PeriodicService(counter.desk), scenario)


def test_a_skipped_launch_is_told() -> None:
    async def scenario(counter: Counter, service: PeriodicService) -> None:
        config = PeriodicConfig(specs=("* * * * *",), prohibit_overlap=True)
        counter.register(a_job("tick", type="batch", periodic=config, submit_time_ns=int(WALL_S * 1e9)))

        await trio.sleep(125)

        assert len(children(counter)) == 1
        assert len(counter.said("periodic_launch_skipped")) >= 1

    serve(lambda counter: PeriodicService(counter.desk), scenario)


def test_drains_are_carried_out_and_ended() -> None:
    async def scenario(counter: Counter, service: DrainService) -> None:
        counter.put_nodes(a_node(1))
        counter.register()
        place(counter, [1])
        report(counter, [1], ClientStatus.RUNNING, health=1)
        set_drain(counter, DrainStrategy(deadline_s=3600.0, force_deadline_ns=int((WALL_S + 3600) * 1e9)))
        await trio.sleep(1.5)
        marks = [command for command in counter.proposals.said if isinstance(command, AllocTransition)]
        assert [(command.ids, command.flags) for command in marks] == [(ids([1]), int(Flag.MIGRATE))]

        report(counter, [1], ClientStatus.COMPLETE)
        await trio.sleep(0.5)

        row = counter.store.nodes.get(an_id(1))
        assert row is not None
        assert not row.draining
        assert counter.said("drain_ended") == [{"nodes": [an_id(1)], "forced": False}]

    serve(lambda counter: DrainService(counter.desk), scenario)


def test_an_idle_drainer_proposes_nothing() -> None:
    async def scenario(counter: Counter, service: DrainService) -> None:
        counter.put_nodes(a_node(1))
        await trio.sleep(60)

        assert counter.proposals.said == []

    serve(lambda counter: DrainService(counter.desk), scenario)


def deploy(counter: Counter, **fields: Any) -> str:
    counter.put_nodes(a_node(1))
    counter.register()
    row = counter.store.jobs.row("default", "web")
    assert row is not None
    state = DeploymentState(desired_total=1, progress_deadline_s=60.0, **fields)
    deployment = Deployment(
        id=an_id(0xD), job_id="web", job_create_index=row.create_index, task_groups={"group": state}
    )
    counter.apply(DeploymentsUpsert(deployments=(deployment_write(deployment),)))
    return deployment.id


def test_a_deployment_without_progress_is_failed_at_its_deadline() -> None:
    async def scenario(counter: Counter, service: DeploymentsService) -> None:
        deployment = deploy(counter)
        place(counter, [1], deployment=deployment)

        await trio.sleep(59)
        assert counter.store.deployments.rows.get(deployment).status == "running"  # type: ignore[union-attr]
        await trio.sleep(2)

        assert counter.store.deployments.rows.get(deployment).status == "failed"  # type: ignore[union-attr]
        assert len(counter.said("deployment_failed")) == 1

    serve(lambda counter: DeploymentsService(counter.desk), scenario)


def test_health_lets_a_deployment_go_on_within_two_seconds_even_through_bad_weather() -> None:
    async def scenario(counter: Counter, service: DeploymentsService) -> None:
        deployment = deploy(counter)
        place(counter, [1], deployment=deployment)
        counter.proposals.refuse = Unavailable("no quorum")
        report(counter, [1], ClientStatus.RUNNING, health=1)
        await trio.sleep(10)
        assert len(counter.said("not_written")) > 0
        counter.proposals.refuse = None

        await trio.sleep(4)

        made = [command for command in counter.proposals.said if isinstance(command, EvaluationsUpsert)]
        assert len(made) == 1

    serve(lambda counter: DeploymentsService(counter.desk), scenario)


def test_canaries_are_promoted_and_that_is_told() -> None:
    async def scenario(counter: Counter, service: DeploymentsService) -> None:
        deployment = deploy(counter, desired_canaries=1, auto_promote=True)
        row = counter.store.jobs.row("default", "web")
        assert row is not None
        counter.apply(
            PlanApply(
                namespace="default",
                job_id="web",
                job_create_index=row.create_index,
                job_version=row.version,
                evaluation_id=an_id(0xE),
                snapshot_index=counter.store.index,
                deployment_id=deployment,
                placed=(placed_group([1], [0], flags=int(Flag.CANARY)),),
            )
        )
        report(counter, [1], ClientStatus.RUNNING, health=1)
        await trio.sleep(1)

        assert len(counter.said("deployment_promoted_itself")) == 1

    serve(lambda counter: DeploymentsService(counter.desk), scenario)


def test_a_node_that_falls_silent_is_down_and_one_that_is_heard_is_not() -> None:
    async def scenario(counter: Counter, service: HeartbeatsService) -> None:
        counter.put_nodes(a_node(1), a_node(2))
        await trio.sleep(1)
        assert 10 <= service.beat(an_id(1)) < 20
        assert service.tracked() == 2

        for _ in range(8):
            service.beat(an_id(2))
            await trio.sleep(5)

        assert (status_of(counter, 1), status_of(counter, 2)) == ("down", "ready")
        assert service.tracked() == 1

    serve(lambda counter: HeartbeatsService(counter.desk), scenario)


def test_after_a_change_of_leader_nodes_have_five_minutes() -> None:
    def make(counter: Counter) -> LeaderService:
        counter.put_nodes(a_node(1))
        return HeartbeatsService(counter.desk)

    async def scenario(counter: Counter, service: HeartbeatsService) -> None:
        await trio.sleep(299)
        assert status_of(counter) == "ready"
        await trio.sleep(2)

        assert status_of(counter) == "down"

    serve(make, scenario)


def test_silence_that_could_not_be_written_is_written_later() -> None:
    async def scenario(counter: Counter, service: HeartbeatsService) -> None:
        counter.put_nodes(a_node(1))
        service.beat(an_id(1))
        counter.proposals.refuse = Unavailable("no quorum")
        await trio.sleep(60)
        assert status_of(counter) == "ready"
        counter.proposals.refuse = None
        await trio.sleep(3)

        assert status_of(counter) == "down"

    serve(lambda counter: HeartbeatsService(counter.desk), scenario)


def test_a_server_that_does_not_lead_takes_neither_heartbeats_nor_reports() -> None:
    async def scenario(counter: Counter) -> None:
        with pytest.raises(Unavailable):
            HeartbeatsService(counter.desk).beat(an_id(1))
        with pytest.raises(Unavailable):
            await ClientUpdatesService(counter.desk).report(Report(an_id(1), b"", b""))
        assert HeartbeatsService(counter.desk).tracked() == 0

    run_at_counter(scenario, office=False)


def running(numbers: list[int]) -> Report:
    return Report(an_id(1), ids(numbers), bytes([CLIENT_CODES[ClientStatus.RUNNING]]) * len(numbers))


def test_reports_that_come_together_are_one_entry_and_all_are_answered_when_it_is_written() -> None:
    async def scenario(counter: Counter, service: ClientUpdatesService) -> None:
        counter.put_nodes(a_node(1))
        counter.register()
        place(counter, [1, 2, 3])
        began = trio.current_time()

        async with trio.open_nursery() as nursery:
            for number in (1, 2, 3):
                nursery.start_soon(service.report, running([number]))

        assert trio.current_time() - began == pytest.approx(0.05)
        (command,) = counter.proposals.said
        assert isinstance(command, AllocStatusUpdate)
        assert {command.ids[at : at + 16] for at in (0, 16, 32)} == {ids([one]) for one in (1, 2, 3)}
        assert counter.store.allocations.get(an_id(3)).client_status is ClientStatus.RUNNING  # type: ignore[union-attr]

        await service.report(running([1]))
        assert len(counter.proposals.said) == 2

    serve(lambda counter: ClientUpdatesService(counter.desk), scenario)


def test_a_report_that_could_not_be_written_is_answered_with_the_reason() -> None:
    async def scenario(counter: Counter, service: ClientUpdatesService) -> None:
        counter.put_nodes(a_node(1))
        with pytest.raises(NotFound):
            await service.report(Report(an_id(9), b"", b""))
        counter.proposals.refuse = Unavailable("no quorum")

        with pytest.raises(Unavailable, match="no quorum"):
            await service.report(running([1]))

    serve(lambda counter: ClientUpdatesService(counter.desk), scenario)


def test_whoever_waits_when_the_term_ends_is_told_so() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put_nodes(a_node(1))
        service = ClientUpdatesService(counter.desk)
        answers: list[str] = []

        async def tell() -> None:
            try:
                await service.report(running([1]))
            except Unavailable as error:
                answers.append(str(error))

        async with trio.open_nursery() as outer, trio.open_nursery() as office:
            await office.start(service.run)
            outer.start_soon(tell)
            await trio.sleep(0.01)
            office.cancel_scope.cancel("leadership lost")

        assert len(answers) == 1

    run_at_counter(scenario, office=False)


def leftovers(counter: Counter) -> None:
    """A stopped job with an evaluation and an ended allocation, and a node that is down."""
    counter.put_nodes(a_node(1))
    counter.register(a_job(submit_time_ns=int(WALL_S * 1e9)))
    counter.put(pending(0xE, status=EvaluationStatus.COMPLETE))
    place(counter, [1])
    report(counter, [1], ClientStatus.COMPLETE)
    counter.apply(JobDeregister(namespace="default", id="web"))
    counter.apply(NodeStatusUpdate(updates=(NodeStatusWrite(id=an_id(1), status=NodeStatus.DOWN.value),)))


def test_a_forced_clean_up_forgets_everything_that_nobody_needs() -> None:
    async def scenario(counter: Counter, service: GcService) -> None:
        leftovers(counter)

        assert await service.force() > 0

        assert counter.store.jobs.row("default", "web") is None
        assert len(counter.store.allocations) == 0
        assert status_of(counter) == "gone"
        assert await service.force() == 0

    serve(lambda counter: GcService(counter.desk), scenario)


def test_clean_up_comes_every_five_minutes_and_outlasts_bad_weather() -> None:
    async def scenario(counter: Counter, service: GcService) -> None:
        counter.put_nodes(a_node(1))
        old = Evaluation(id=an_id(7), job_id="nobody", type="service", status=EvaluationStatus.COMPLETE)
        counter.put(old)  # its times are zero: very old
        counter.proposals.refuse = Unavailable("no quorum")
        await trio.sleep(301)
        assert len(counter.said("gc_interrupted")) == 1
        counter.proposals.refuse = None
        await trio.sleep(300)

        assert any(isinstance(command, Reap) for command in counter.proposals.said)
        assert counter.status(7) == "missing"

    serve(lambda counter: GcService(counter.desk), scenario)


def test_a_service_that_falls_far_behind_is_told_that_everything_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(counter: Counter) -> None:
        monkeypatch.setattr(state_watch, "GATHER_MAX", 3)
        watch = StateWatch(counter.machine)
        counter.put_nodes(a_node(1))
        with watch.open():
            assert [change.is_everything for change in await watch.wait()] == [True]
            for number in range(2, 5):
                counter.put_nodes(a_node(number))
            assert [change.is_everything for change in await watch.wait()] == [False] * 3
            for number in range(2, 6):
                counter.put_nodes(a_node(number))
            assert [change.is_everything for change in await watch.wait()] == [True]
            assert await watch.wait(1.0) == []
            watch.poke()
            assert await watch.wait() == []
        counter.put_nodes(a_node(9))
        assert watch.take_nowait() == []

    run_at_counter(scenario, office=False)


def test_a_bare_service_has_no_duty() -> None:
    async def scenario(counter: Counter) -> None:
        with pytest.raises(NotImplementedError):
            CoreService(counter.desk, "nothing").begin()

    run_at_counter(scenario, office=False)


class SteppedEnv:
    """The counter's world with a wall clock that somebody sets."""

    def __init__(self, counter: Counter) -> None:
        self._env = counter.env
        self.step_s = 0.0
        counter.env = self  # type: ignore[assignment]
        counter.desk.env = self

    def wall(self) -> float:
        return self._env.wall() + self.step_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)


def test_a_clock_set_forward_brings_a_progress_deadline_within_ten_seconds() -> None:
    async def scenario(counter: Counter, service: DeploymentsService) -> None:
        deployment = deploy(counter)
        place(counter, [1], deployment=deployment)
        await trio.sleep(1)
        counter.env.step_s = 3600.0  # type: ignore[attr-defined]

        await trio.sleep(10)

        assert counter.store.deployments.rows.get(deployment).status == "failed"  # type: ignore[union-attr]

    def make(counter: Counter) -> LeaderService:
        SteppedEnv(counter)
        return DeploymentsService(counter.desk)

    serve(make, scenario)


def test_a_clock_set_forward_takes_no_node_down_and_one_set_back_keeps_none_up() -> None:
    async def scenario(counter: Counter, service: HeartbeatsService) -> None:
        counter.put_nodes(a_node(1))
        service.beat(an_id(1))
        counter.env.step_s = 86400.0  # type: ignore[attr-defined]
        await trio.sleep(15)
        assert status_of(counter) == "ready"
        counter.env.step_s = -86400.0  # type: ignore[attr-defined]
        await trio.sleep(20)

        assert status_of(counter) == "down"

    def make(counter: Counter) -> LeaderService:
        SteppedEnv(counter)
        return HeartbeatsService(counter.desk)

    serve(make, scenario)


def test_a_clock_set_back_and_forth_launches_every_minute_once() -> None:
    async def scenario(counter: Counter, service: PeriodicService) -> None:
        counter.register(a_minutely())
        for step_s in (0.0, -150.0, 0.0, 90.0, 0.0, -30.0, 0.0):
            counter.env.step_s = step_s  # type: ignore[attr-defined]
            await trio.sleep(61)

        names = children(counter)
        assert len(names) == len(set(names)) >= 5
        launches = [entry["child"] for entry in counter.said("periodic_launch")]
        assert len(launches) == len(set(launches))

    def make(counter: Counter) -> LeaderService:
        SteppedEnv(counter)
        return PeriodicService(counter.desk)

    serve(make, scenario)


def test_a_server_that_leads_again_begins_anew() -> None:
    async def scenario(counter: Counter) -> None:
        counter.put_nodes(a_node(1))
        counter.register(a_minutely())
        heartbeats, periodic = HeartbeatsService(counter.desk), PeriodicService(counter.desk)

        async def term(seconds: float) -> None:
            async with trio.open_nursery() as office:
                await office.start(heartbeats.run)
                await office.start(periodic.run)
                await trio.sleep(seconds)
                office.cancel_scope.cancel("leadership lost")

        await term(70)
        assert len(children(counter)) == 1
        await trio.sleep(600)
        assert heartbeats.tracked() == 0
        await term(5)
        assert len(children(counter)) == 2  # of ten that were missed, the latest
        assert status_of(counter) == "ready"
        await term(301)
        assert status_of(counter) == "down"

    run_at_counter(scenario, office=False)
