"""The checks of an allocation from before its tasks start to its end, on a virtual clock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from fedsched.client.checks import Target
from fedsched.client.checks_core import CheckKind, Outcome
from fedsched.client.context import AllocContext
from fedsched.client.hooks import checks as module
from fedsched.client.hooks.checks import ChecksHook, planned_checks, time_limit_s
from fedsched.drivers.driver import DriverNetwork, ExecResult
from fedsched.model.check import CheckMode, CheckResult, CheckStatus
from fedsched.model.network import PortMapping
from fedsched.model.resources import AllocatedResources, AllocatedSharedResources
from fedsched.model.service import CheckRestart, Service, ServiceCheck
from fedsched.model.task_state import TaskState, TaskStatus
from tests.builders import a_group, a_task
from tests.client.fake_region import START_NS, FakeRegion, an_alloc_context, asked, driver_of

PORTS = AllocatedResources(
    shared=AllocatedSharedResources(ports=(PortMapping(label="http", value=22000, host_ip="10.0.0.1"),))
)


class Scene:
    """An allocation with checks, and what they were asked and found."""

    def __init__(self, root: Path, nursery: trio.Nursery, group: list[Service], task: list[Service]) -> None:
        tasks = [a_task("main", services=tuple(task)), a_task("side")]
        wanted = a_group("group", tasks=tasks, services=tuple(group))
        self.alloc: AllocContext = an_alloc_context(root, FakeRegion(), group=wanted, allocated_resources=PORTS)
        self.hook = ChecksHook(self.alloc)
        self.outcome = Outcome(CheckStatus.SUCCESS)
        self.asked: list[tuple[CheckKind, Target, float, float]] = []
        self._nursery = nursery

    async def start(self) -> None:
        await self.hook.prerun()
        self._nursery.start_soon(self.hook.run)
        self.run_tasks()

    def run_tasks(self, status: TaskStatus = TaskStatus.RUNNING) -> None:
        now_ns = self.alloc.parts.now_ns()
        for task in self.alloc.tasks.values():
            task.state = TaskState(state=status, started_at_ns=now_ns)
            task.task_id = "id"

    async def answer(self, kind: CheckKind, target: Target, timeout_s: float) -> Outcome:
        self.asked.append((kind, target, timeout_s, trio.current_time()))
        await trio.lowlevel.checkpoint()
        return self.outcome

    def results(self) -> list[CheckResult]:
        return list(self.alloc.parts.checks.of(self.alloc.alloc.id).values())

    def statuses(self) -> list[str]:
        return [result.status.value for result in self.results()]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    def run(
        story: Callable[[Scene], Awaitable[None]],
        *,
        group: list[Service] | None = None,
        task: list[Service] | None = None,
    ) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                scene = Scene(tmp_path, nursery, group or [], task or [])
                monkeypatch.setattr(module, "run_check", scene.answer)
                await story(scene)
                nursery.cancel_scope.cancel()

        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


def a_service(*checks: ServiceCheck, **fields: Any) -> Service:
    return Service(**{"name": "web", "port_label": "http", "checks": checks, **fields})


def a_check(**fields: Any) -> ServiceCheck:
    return ServiceCheck(
        **{"name": "alive", "type": "http", "path": "/", "interval_s": 10.0, "timeout_s": 2.0, **fields}
    )


Play = Callable[..., None]


def test_checks_are_expected_before_tasks_start_and_run_by_their_intervals(play: Play) -> None:
    async def story(scene: Scene) -> None:
        await scene.start()
        assert scene.statuses() == ["pending"]
        assert scene.alloc.parts.checks.passing_since_ns(scene.alloc.alloc.id) is None
        await trio.sleep(4.9)
        assert scene.asked == []
        await trio.sleep(20.2)
        assert [at for *_, at in scene.asked] == [5.0, 15.0, 25.0]
        (result,) = scene.results()
        assert (result.status, result.group, result.service) == ("success", "shop.group[0]", "web")
        assert result.timestamp_ns == START_NS + 25 * 10**9
        assert scene.alloc.parts.checks.passing_since_ns(scene.alloc.alloc.id) == START_NS + 5 * 10**9
        await scene.hook.postrun()
        await scene.hook.destroy()
        assert scene.results() == []

    play(story, group=[a_service(a_check())])


def test_a_check_asks_where_and_how_the_job_says(play: Play) -> None:
    async def story(scene: Scene) -> None:
        scene.alloc.tasks["main"].network = DriverNetwork(ip="172.17.0.2", port_map={"http": 80})
        await scene.start()
        await trio.sleep(6)
        kind, target, timeout_s, _ = scene.asked[0]
        assert (kind, timeout_s) == (CheckKind.HTTP, 2.0)
        assert target == Target(
            host="172.17.0.2",
            port=80,
            path="/health/main",
            method="POST",
            headers={"X-Job": ("shop",)},
            body="b",
            is_tls=True,
            skip_verify=True,
            server_name="shop.example",
        )

    check = a_check(
        address_mode="driver",
        path="/health/${NOMAD_TASK_NAME}",
        method="POST",
        header={"X-Job": ("${NOMAD_JOB_ID}",)},
        body="b",
        protocol="https",
        tls_skip_verify=True,
        tls_server_name="shop.example",
    )
    play(story, task=[a_service(check)])


def test_a_check_may_have_a_port_of_its_own(play: Play) -> None:
    async def story(scene: Scene) -> None:
        await scene.start()
        await trio.sleep(6)
        assert sorted((kind, target.host, target.port) for kind, target, *_ in scene.asked) == [
            (CheckKind.GRPC, "10.9.9.9", 9090),
            (CheckKind.TCP, "10.0.0.1", 22000),
        ]

    play(
        story,
        group=[a_service(a_check(type="tcp"), a_check(name="rpc", type="grpc", port_label="9090", grpc_use_tls=True))],
    )


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (a_check(port_label="nope"), "there is no port"),
        (a_check(type="odd"), "cannot be run"),
        (a_check(type="script", command="x", task_name="nobody"), "needs a task"),
    ],
)
def test_what_cannot_be_asked_fails_with_the_reason(play: Play, check: ServiceCheck, words: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.start()
        await trio.sleep(6)
        (result,) = scene.results()
        assert result.status is CheckStatus.FAILURE
        assert words in result.output

    play(story, group=[a_service(check)])


def test_scripts_run_in_their_task(play: Play) -> None:
    async def story(scene: Scene) -> None:
        driver = driver_of(scene.alloc.tasks["side"])
        driver.result = ExecResult(1, output=b"hm")
        await scene.start()
        await trio.sleep(6)
        assert driver.commands == [("/bin/check", "shop")]
        (result,) = scene.results()
        assert (result.status, result.output, result.status_code) == ("warning", "hm", 1)

    check = a_check(type="script", command="/bin/check", args=("${NOMAD_JOB_ID}",), task_name="side")
    play(story, group=[a_service(check)])


def test_a_task_whose_check_goes_on_failing_is_restarted_as_a_failure(play: Play) -> None:
    async def story(scene: Scene) -> None:
        scene.outcome = Outcome(CheckStatus.FAILURE, "down", 500)
        await scene.start()
        await trio.sleep(20)
        assert asked(scene.alloc.tasks["main"]).restarts == []
        await trio.sleep(16)
        reason = "check 'alive' of service 'web' failed 2 times in a row"
        assert asked(scene.alloc.tasks["main"]).restarts == [(reason, True)]
        assert asked(scene.alloc.tasks["side"]).restarts == []
        scene.run_tasks()
        await trio.sleep(16)
        assert len(asked(scene.alloc.tasks["main"]).restarts) == 1

    play(story, task=[a_service(a_check(check_restart=CheckRestart(limit=2, grace_s=20.0)))])


def test_a_groups_check_restarts_the_task_it_names_or_all(play: Play) -> None:
    async def story(scene: Scene) -> None:
        scene.outcome = Outcome(CheckStatus.FAILURE)
        await scene.start()
        await trio.sleep(6)
        assert len(asked(scene.alloc.tasks["main"]).restarts) == 1
        assert len(asked(scene.alloc.tasks["side"]).restarts) == 2

    rule = CheckRestart(limit=1, grace_s=0.0)
    play(
        story,
        group=[
            a_service(a_check(check_restart=rule, task_name="side")),
            a_service(a_check(), name="all", check_restart=rule),
        ],
    )


def test_nothing_is_asked_of_a_task_that_has_ended(play: Play) -> None:
    async def story(scene: Scene) -> None:
        await scene.start()
        scene.run_tasks(TaskStatus.DEAD)
        await trio.sleep(60)
        assert (scene.asked, scene.statuses()) == ([], ["pending"])

    play(story, task=[a_service(a_check())])


def test_an_update_keeps_what_did_not_change_and_begins_the_rest(play: Play) -> None:
    async def story(scene: Scene) -> None:
        await scene.start()
        await trio.sleep(7)
        kept, gone = scene.results()
        services = (a_service(a_check(), a_check(name="new", on_update="ignore")),)
        group = replace(scene.alloc.group, services=services)
        scene.alloc.alloc = replace(scene.alloc.alloc, job=replace(scene.alloc.job, task_groups=(group,)))
        await scene.hook.update()
        now = scene.results()
        assert now[0] == kept
        assert (now[1].check, now[1].status, now[1].mode) == ("new", "pending", CheckMode.READINESS)
        assert gone.id not in {one.id for one in now}
        await trio.sleep(9)
        assert [at for *_, at in scene.asked] == [5.0, 5.0, 12.0, 15.0]

    play(story, group=[a_service(a_check(), a_check(name="old"))])


def test_all_checks_of_group_and_tasks_are_planned(play: Play) -> None:
    async def story(scene: Scene) -> None:
        assert [(one.task, one.check.name) for one in planned_checks(scene.alloc)] == [("", "g"), ("main", "t")]
        await trio.lowlevel.checkpoint()

    play(story, group=[a_service(a_check(name="g"))], task=[a_service(a_check(name="t"))])


def test_a_check_without_a_timeout_takes_an_interval_at_most() -> None:
    assert time_limit_s(a_check(timeout_s=0.0)) == 10.0
    assert time_limit_s(a_check(timeout_s=0.2)) == 1.0
