"""Allocations on virtual time, with mock tasks: hooks, kills, restarts, restores, updates, health, full disks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
from msgspec import structs
from trio.testing import MockClock

from fedsched.client.alloc_runner import AllocRunner
from fedsched.client.hooks.hook import AllocHook, HookFailed, HookResult, TaskHook
from fedsched.client.task_phases import HOOK_PATIENCE_S
from fedsched.drivers.driver import DriverError, DriverMessage, ExitResult, Mount
from fedsched.model.alloc import Allocation, ClientStatus, DesiredStatus, DesiredTransition
from fedsched.model.check import CheckResult, CheckStatus
from fedsched.model.errors import Conflict, NotFound
from fedsched.model.network import AllocNetworkStatus
from fedsched.model.policies import DisconnectStrategy, RestartPolicy, UpdateStrategy
from fedsched.model.resources import TaskLifecycle
from fedsched.model.service import Service, ServiceCheck
from fedsched.model.task_state import TaskStatus
from tests.builders import a_group, a_job, a_task
from tests.client.alloc_world import FakeServers, World, an_allocation, changed, events_of

ONCE = RestartPolicy(attempts=0)
FOREVER = {"run_for": "10000h"}


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """On virtual time. No deadline here: directories are removed in threads, which virtual time does not wait for."""
    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def service(*tasks: Any, **fields: Any) -> Allocation:
    return an_allocation(a_group(tasks=tasks or [a_task(config=FOREVER)], **fields))


def batch(*tasks: Any, **fields: Any) -> Allocation:
    return an_allocation(job=a_job(type="batch", groups=[a_group(tasks=tasks, **fields)]))


def staged(name: str, hook: str, config: Mapping[str, Any], *, sidecar: bool = False) -> Any:
    return a_task(name, config=config, lifecycle=TaskLifecycle(hook=hook, sidecar=sidecar), restart_policy=ONCE)


async def until(runner: AllocRunner, status: TaskStatus, task: str = "web") -> None:
    while runner.task_states[task].state is not status:
        await trio.sleep(0.01)


class Notes:
    """What hooks were asked, in order. Made anew for each test."""

    seen: ClassVar[list[str]] = []


def noting(label: str, **behaviour: Any) -> type[TaskHook]:
    """A hook that notes what it is asked, and does what `behaviour` says."""

    class Noting(TaskHook):
        name = label

        async def prestart(self, state: Mapping[str, str]) -> HookResult:
            Notes.seen.append(f"{label}.prestart {dict(state)}" if state else f"{label}.prestart")
            if "prestart" in behaviour:
                found = behaviour["prestart"](self)
                return await found if hasattr(found, "__await__") else found
            return HookResult()

        async def poststart(self) -> None:
            Notes.seen.append(f"{label}.poststart")
            if "poststart" in behaviour:
                behaviour["poststart"](self)

        async def prekill(self) -> None:
            Notes.seen.append(f"{label}.prekill")

        async def exited(self, result: ExitResult) -> None:
            Notes.seen.append(f"{label}.exited {result.exit_code}")

        async def update(self) -> None:
            Notes.seen.append(f"{label}.update")

        async def run(self) -> None:
            Notes.seen.append(f"{label}.run")
            if "run" in behaviour:
                await behaviour["run"](self)

        async def stop(self) -> None:
            Notes.seen.append(f"{label}.stop")

    return Noting


def alloc_noting(label: str, **behaviour: Any) -> type[AllocHook]:
    class Noting(AllocHook):
        name = label

        async def prerun(self) -> None:
            Notes.seen.append(f"{label}.prerun")
            if "prerun" in behaviour:
                await behaviour["prerun"](self)

        async def prekill(self) -> None:
            Notes.seen.append(f"{label}.prekill")

        async def update(self) -> None:
            Notes.seen.append(f"{label}.update")
            if "update" in behaviour:
                await behaviour["update"](self)

        async def run(self) -> None:
            Notes.seen.append(f"{label}.run")
            await trio.sleep_forever()

        async def postrun(self) -> None:
            Notes.seen.append(f"{label}.postrun")
            if "postrun" in behaviour:
                raise behaviour["postrun"]

        async def destroy(self) -> None:
            Notes.seen.append(f"{label}.destroy")

    return Noting


@pytest.fixture(autouse=True)
def _fresh_notes() -> None:
    Notes.seen.clear()


# -- hooks


def test_hooks_run_in_order_and_are_undone_in_reverse(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(
            tmp_path, task_hooks=[noting("t1"), noting("t2")], alloc_hooks=[alloc_noting("a1"), alloc_noting("a2")]
        )
        async with world.agent() as agent:
            runner = agent.take_up(batch(a_task(config={"run_for": "1s"})))
            await agent.is_over.wait()
            assert runner.context.terminal.is_set()
            await runner.destroy()
            assert world.journal.load() == []

    run(scenario)

    assert [note for note in Notes.seen if not note.endswith(".run")] == [
        "a1.prerun",
        "a2.prerun",
        "t1.prestart",
        "t2.prestart",
        "t1.poststart",
        "t2.poststart",
        "t1.exited 0",
        "t2.exited 0",
        "t2.stop",
        "t1.stop",
        "a2.postrun",
        "a1.postrun",
        "a2.destroy",
        "a1.destroy",
    ]
    assert {note for note in Notes.seen if note.endswith(".run")} == {"a1.run", "a2.run", "t1.run", "t2.run"}


def test_a_hook_that_is_done_is_not_run_again_and_what_it_added_stays(tmp_path: Path) -> None:
    def result(hook: TaskHook) -> HookResult:
        return HookResult(env={"FROM_HOOK": "1"}, mounts=(Mount(tmp_path, "/data"),), state={"k": "v"}, is_done=True)

    async def scenario() -> None:
        world = World(tmp_path, task_hooks=[noting("done", prestart=result), noting("again")])
        config = {"run_for": "5s", "exit_on_attempt": {"1": 1}}
        alloc = batch(a_task(config=config, restart_policy=RestartPolicy(attempts=1, delay_s=1.0)))
        async with world.agent() as first:
            runner = first.take_up(alloc)
            await until(runner, TaskStatus.RUNNING)
            while runner.task_states["web"].restarts == 0:
                await trio.sleep(0.1)
            await until(runner, TaskStatus.RUNNING)
            assert runner.tasks["web"].hooks.mounts == [Mount(tmp_path, "/data")]
        async with world.agent() as second:
            runner = second.take_up()
            await trio.sleep(1)
            assert runner.context.tasks["web"].hook_env == {"FROM_HOOK": "1"}
            await second.is_over.wait()
            assert runner.report().client_status is ClientStatus.COMPLETE

    run(scenario)

    assert Notes.seen.count("done.prestart") == 1
    assert Notes.seen.count("again.prestart") == 3


def test_a_hook_is_told_what_it_returned_the_last_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, task_hooks=[noting("h", prestart=lambda hook: HookResult(state={"n": "1"}))])
        async with world.agent() as first:
            await until(first.take_up(service()), TaskStatus.RUNNING)
        async with world.agent() as second:
            second.take_up()
            await trio.sleep(1)

    run(scenario)

    assert [note for note in Notes.seen if "prestart" in note] == ["h.prestart", "h.prestart {'n': '1'}"]


@pytest.mark.parametrize(
    ("error", "events"),
    [
        (HookFailed("bad user", event="Failed Validation"), ["Failed Validation", "Not Restarting"]),
        (HookFailed("no answer", is_recoverable=True), ["Task hook failed", "Restarting"]),
        (RuntimeError("a bug"), ["Task hook failed", "Restarting"]),
    ],
)
def test_a_hook_that_fails_keeps_the_task_from_starting(tmp_path: Path, error: Exception, events: list[str]) -> None:
    def fail(hook: TaskHook) -> HookResult:
        raise error

    async def scenario() -> None:
        world = World(tmp_path, task_hooks=[noting("h", prestart=fail)])
        async with world.agent() as agent:
            runner = agent.take_up(service())
            await trio.sleep(1)
            assert events_of(runner)[-2:] == events
            assert world.place.lives == {}

    run(scenario)


def test_trouble_in_other_hooks_is_told_and_does_not_end_the_task(tmp_path: Path) -> None:
    def fail(hook: TaskHook) -> None:
        raise HookFailed("no registry")

    async def fail_later(hook: TaskHook) -> None:
        raise RuntimeError("a bug in the background")

    async def scenario() -> None:
        world = World(tmp_path, task_hooks=[noting("h", poststart=fail, run=fail_later)])
        async with world.agent() as agent:
            runner = agent.take_up(service())
            await trio.sleep(1)
            assert runner.task_states["web"].state is TaskStatus.RUNNING
            assert runner.task_states["web"].events[-1].message == "h: no registry"

    run(scenario)


def test_a_failing_prerun_hook_fails_all_tasks_without_a_start(tmp_path: Path) -> None:
    async def fail(hook: AllocHook) -> None:
        raise HookFailed("no network")

    async def scenario() -> None:
        world = World(tmp_path, alloc_hooks=[alloc_noting("a1"), alloc_noting("a2", prerun=fail), alloc_noting("a3")])
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task("a"), a_task("b"), staged("c", "poststop", {})))
            await agent.is_over.wait()
            assert runner.report().client_status is ClientStatus.FAILED
            for name in ("a", "b", "c"):
                assert events_of(runner, name) == ["Received", "Setup Failure"]
                assert runner.task_states[name].events[-1].display_message == "a2: no network"
            assert world.place.lives == {}

    run(scenario)

    assert "a3.prerun" not in Notes.seen
    assert Notes.seen[-3:] == ["a3.postrun", "a2.postrun", "a1.postrun"]


def test_a_stop_during_prerun_starts_nothing(tmp_path: Path) -> None:
    async def wait(hook: AllocHook) -> None:
        await trio.sleep_forever()

    async def scenario() -> None:
        world = World(tmp_path, alloc_hooks=[alloc_noting("a1", prerun=wait)])
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task(), staged("last", "poststop", {})))
            await trio.sleep(5)
            runner.stop()
            await agent.is_over.wait()
            assert runner.report().client_status is ClientStatus.COMPLETE
            assert events_of(runner) == ["Received", "Killing"]
            assert world.place.lives == {}

    run(scenario)


def test_a_stop_before_the_runner_runs_is_not_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service())
            runner.stop()
            await agent.is_over.wait()
            assert world.place.lives == {}
            assert runner.report().client_status is ClientStatus.COMPLETE

    run(scenario)


def test_hooks_that_break_after_the_tasks_do_not_keep_it_from_ending(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(
            tmp_path,
            alloc_hooks=[
                alloc_noting("a1", postrun=HookFailed("busy")),
                alloc_noting("a2", postrun=RuntimeError("a bug")),
            ],
        )
        async with world.agent() as agent:
            runner = agent.take_up(batch(a_task(config={"run_for": "1s"})))
            await agent.is_over.wait()
            assert runner.is_terminal

    run(scenario)


def test_a_hook_that_never_answers_holds_up_the_end_only_for_a_while(tmp_path: Path) -> None:
    class Stuck(TaskHook):
        name = "stuck"

        async def prekill(self) -> None:
            await trio.sleep_forever()

        async def stop(self) -> None:
            await trio.sleep_forever()

    class StuckAlloc(AllocHook):
        name = "stuck"

        async def prekill(self) -> None:
            await trio.sleep_forever()

        async def postrun(self) -> None:
            await trio.sleep_forever()

    async def scenario() -> None:
        world = World(tmp_path, task_hooks=[Stuck], alloc_hooks=[StuckAlloc])
        async with world.agent() as agent:
            runner = agent.take_up(service())
            await until(runner, TaskStatus.RUNNING)
            runner.stop()
            await agent.is_over.wait()
            assert trio.current_time() == pytest.approx(4 * HOOK_PATIENCE_S, abs=1)

    run(scenario)


# -- stages and kills


def test_stages_follow_one_another(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = batch(
            staged("init", "prestart", {"run_for": "5s"}),
            staged("side", "prestart", FOREVER, sidecar=True),
            a_task(config={"run_for": "20s"}),
            staged("post", "poststart", {"run_for": "3s"}),
            staged("last", "poststop", {"run_for": "4s"}),
        )
        async with world.agent() as agent:
            runner = agent.take_up(alloc)
            await agent.is_over.wait()
            states = runner.task_states
            assert runner.report().client_status is ClientStatus.COMPLETE
            assert states["init"].finished_at_ns <= states["web"].started_at_ns
            assert states["side"].started_at_ns <= states["web"].started_at_ns
            assert states["web"].started_at_ns <= states["post"].started_at_ns < states["web"].finished_at_ns
            assert states["last"].started_at_ns >= states["side"].finished_at_ns >= states["web"].finished_at_ns
            assert "Main Tasks Dead" in events_of(runner, "side")

    run(scenario)


def test_a_failed_prestart_task_leaves_main_tasks_unstarted(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = service(
            staged("init", "prestart", {"run_for": "1s", "exit_code": 2}), a_task(), staged("last", "poststop", {})
        )
        async with world.agent() as agent:
            runner = agent.take_up(alloc)
            await agent.is_over.wait()
            assert runner.report().client_status is ClientStatus.FAILED
            assert events_of(runner) == ["Received", "Sibling Task Failed", "Killing"]
            assert not runner.task_states["web"].failed
            assert runner.task_states["last"].started_at_ns

    run(scenario)


def test_a_stop_kills_in_order_with_all_its_delays(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = service(
            a_task("lead", config={**FOREVER, "kill_after": "3s"}, leader=True, kill_timeout_s=10.0),
            a_task("other", config=FOREVER, shutdown_delay_s=5.0),
            staged("side", "prestart", FOREVER, sidecar=True),
            shutdown_delay_s=7.0,
        )
        async with world.agent() as agent:
            runner = agent.take_up(alloc)
            await until(runner, TaskStatus.RUNNING, "other")
            before = trio.current_time()
            runner.stop()
            await agent.is_over.wait()
            ended = {name: life.ended_ns for name in ("lead", "other", "side") for life in world.place.runs(name)}
            times = {name: (at or 0) / 1e9 - 1_700_000_000 - before for name, at in ended.items()}
            assert times["lead"] == pytest.approx(10.0, abs=0.1)
            assert times["other"] == pytest.approx(15.0, abs=0.1)
            assert times["side"] == pytest.approx(15.0, abs=0.1)
            assert times["side"] >= times["other"]
            assert "Waiting for shutdown delay" in events_of(runner, "other")
            assert "Waiting for shutdown delay" not in events_of(runner, "lead")

    run(scenario)


def test_the_kill_timeout_has_a_ceiling(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, settings={"max_kill_timeout_s": 30.0})
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task(config={**FOREVER, "kill_after": "1h"}, kill_timeout_s=600.0)))
            await until(runner, TaskStatus.RUNNING)
            before = trio.current_time()
            runner.stop()
            await agent.is_over.wait()
            assert trio.current_time() - before == pytest.approx(30.0, abs=0.1)
            killing = next(event for event in runner.task_states["web"].events if event.type == "Killing")
            assert killing.kill_timeout_s == 30.0
            killed = next(event for event in runner.task_states["web"].events if event.type == "Terminated")
            assert (killed.exit_code, killed.signal) == (137, 9)

    run(scenario)


def test_a_stop_request_may_skip_all_delays(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = service(a_task(config=FOREVER, shutdown_delay_s=500.0), shutdown_delay_s=500.0)
        async with world.agent() as agent:
            runner = agent.take_up(alloc)
            await until(runner, TaskStatus.RUNNING)
            runner.stop()
            await trio.sleep(100)
            skip = DesiredTransition(no_shutdown_delay=True)
            runner.update(changed(alloc, desired_status=DesiredStatus.STOP, desired_transition=skip))
            await agent.is_over.wait()
            assert trio.current_time() < 105

    run(scenario)


def test_a_stop_that_fails_is_tried_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task(config={**FOREVER, "stop_error": "stuck", "stop_error_count": 3})))
            await until(runner, TaskStatus.RUNNING)
            before = trio.current_time()
            runner.stop()
            await agent.is_over.wait()
            assert trio.current_time() - before == pytest.approx(105, abs=0.5)
            assert events_of(runner)[-1] == "Killed"

    run(scenario)


def test_a_task_that_cannot_be_stopped_is_reported_dead_with_a_warning(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task(config={**FOREVER, "stop_error": "stuck"})))
            await until(runner, TaskStatus.RUNNING)
            runner.stop()
            await agent.is_over.wait()
            assert "may still be running" in runner.task_states["web"].events[-1].kill_error

    run(scenario)


def test_a_kill_while_the_driver_starts_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task(config={**FOREVER, "start_block_for": "5m"})))
            await trio.sleep(10)
            runner.stop()
            await agent.is_over.wait()
            assert trio.current_time() < 11
            assert world.place.tasks == {}
            assert runner.report().client_status is ClientStatus.COMPLETE

    run(scenario)


def test_max_run_duration_survives_agents(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = service(a_task(config=FOREVER), staged("last", "poststop", FOREVER), max_run_duration_s=100.0)
        async with world.agent() as first:
            await until(first.take_up(alloc), TaskStatus.RUNNING)
            await trio.sleep_until(40)
        async with world.agent() as second:
            runner = second.take_up()
            await second.is_over.wait()
            assert trio.current_time() == pytest.approx(100, abs=0.5)
            assert runner.task_states["last"].started_at_ns == 0
            killing = next(event for event in runner.task_states["web"].events if event.type == "Killing")
            assert "max_run_duration of 1m40s" in killing.display_message

    run(scenario)


def test_an_allocation_alone_for_too_long_stops_itself_also_under_the_next_agent(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, servers=FakeServers(last_contact=50.0))
        alloc = service(disconnect=DisconnectStrategy(stop_on_client_after_s=60.0))
        async with world.agent() as first:
            runner = first.take_up(alloc)
            await trio.sleep_until(100)
            assert runner.task_states["web"].state is TaskStatus.RUNNING
        async with world.agent() as second:
            second.take_up()
            await second.is_over.wait()
            assert trio.current_time() == pytest.approx(110, abs=0.5)

    run(scenario)


# -- restarts and signals


def test_a_user_restarts_one_task(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task("a", config=FOREVER), a_task("b", config=FOREVER)))
            await until(runner, TaskStatus.RUNNING, "a")
            await until(runner, TaskStatus.RUNNING, "b")
            await runner.restart("a")
            await trio.sleep(1)
            assert (runner.task_states["a"].restarts, runner.task_states["b"].restarts) == (1, 0)
            assert "Restart Signaled" in events_of(runner, "a")
            await runner.restart()
            await trio.sleep(1)
            assert (runner.task_states["a"].restarts, runner.task_states["b"].restarts) == (2, 1)
            world.place.check_no_overlap()

    run(scenario)


def test_restarting_all_tasks_begins_with_the_first_stage(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = service(staged("init", "prestart", {"run_for": "2s"}), a_task(config=FOREVER))
        async with world.agent() as agent:
            runner = agent.take_up(alloc)
            await until(runner, TaskStatus.RUNNING)
            first_main = runner.task_states["web"].started_at_ns
            await runner.restart(all_tasks=True)
            await trio.sleep(20)
            states = runner.task_states
            assert len(world.place.runs("init")) == 2
            assert len(world.place.runs("web")) == 2
            assert states["web"].started_at_ns >= states["init"].finished_at_ns > first_main
            assert states["web"].state is TaskStatus.RUNNING
            assert not runner.is_terminal
            world.place.check_no_overlap()

    run(scenario)


def test_restarts_and_signals_are_refused_where_they_make_no_sense(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task(config=FOREVER), staged("last", "poststop", {})))
            with pytest.raises(Conflict, match="not running"):
                await runner.restart()
            await until(runner, TaskStatus.RUNNING)
            with pytest.raises(NotFound, match="nobody"):
                await runner.restart("nobody")
            with pytest.raises(Conflict, match="not running"):
                await runner.restart("last")
            with pytest.raises(Conflict, match="not running"):
                await runner.signal("last", "SIGHUP")
            with pytest.raises(DriverError, match="SIGWHAT"):
                await runner.signal("web", "SIGWHAT")
            runner.stop()
            with pytest.raises(Conflict, match="not running"):
                await runner.restart(all_tasks=True)
            await agent.is_over.wait()
            with pytest.raises(Conflict, match="no task is running"):
                await runner.signal("", "SIGHUP")

    run(scenario)


def test_nothing_runs_so_nothing_is_restarted(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task(config={**FOREVER, "start_block_for": "1h"})))
            await trio.sleep(1)
            with pytest.raises(Conflict, match="no task is running"):
                await runner.restart()

    run(scenario)


def test_a_signal_reaches_the_task_and_its_story(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            config = {**FOREVER, "exit_on_signal": {"SIGHUP": 0}}
            runner = agent.take_up(batch(a_task(config=config)))
            await until(runner, TaskStatus.RUNNING)
            runner.tasks["web"].signal("SIGUSR1", "template changed")
            await trio.sleep(1)
            assert runner.task_states["web"].events[-1].display_message == (
                "Task being sent signal SIGUSR1: template changed"
            )
            await runner.signal("", "SIGHUP")
            await agent.is_over.wait()
            runner.tasks["web"].signal("SIGHUP", "too late")
            runner.tasks["web"].emit(runner.task_states["web"].events[0])
            assert runner.report().client_status is ClientStatus.COMPLETE

    run(scenario)


def test_a_signal_that_is_refused_ends_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task(config={**FOREVER, "signal_error": "no"})))
            await until(runner, TaskStatus.RUNNING)
            runner.tasks["web"].signal("SIGHUP", "")
            await trio.sleep(1)
            assert runner.task_states["web"].state is TaskStatus.RUNNING

    run(scenario)


def test_what_a_driver_says_is_in_the_story(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task(config={**FOREVER, "start_block_for": "10s"})))
            await trio.sleep(1)
            task_id = runner.tasks["web"].core.local.intended_id
            runner.driver_message(DriverMessage(task_id, "pulling", {"image": "busybox"}))
            runner.driver_message(DriverMessage("somebody else", "nothing"))
            await trio.sleep(1)
            event = runner.task_states["web"].events[-1]
            assert (event.type, event.driver_message, event.details["image"]) == ("Driver", "pulling", "busybox")

    run(scenario)


def test_a_hook_may_restart_or_kill_its_task(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = service(a_task(config=FOREVER, restart_policy=RestartPolicy(attempts=1, delay_s=10.0)))
        async with world.agent() as agent:
            runner = agent.take_up(alloc)
            await until(runner, TaskStatus.RUNNING)
            runner.tasks["web"].restart("check failed", is_failure=True)
            await trio.sleep(5)
            assert runner.task_states["web"].state is TaskStatus.PENDING
            await trio.sleep(10)
            assert runner.task_states["web"].state is TaskStatus.RUNNING
            runner.tasks["web"].kill("template is broken", is_failure=True)
            await agent.is_over.wait()
            assert runner.report().client_status is ClientStatus.FAILED

    run(scenario)


# -- drivers


def test_a_driver_that_goes_away_is_asked_again_and_the_exit_is_true(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        config = {"run_for": "100s", "exit_code": 7, "plugin_exit_after": "10s"}
        async with world.agent() as agent:
            runner = agent.take_up(batch(a_task(config=config, restart_policy=ONCE)))
            await agent.is_over.wait()
            ended = next(event for event in runner.task_states["web"].events if event.type == "Terminated")
            assert ended.exit_code == 7
            assert trio.current_time() == pytest.approx(100, abs=1)

    run(scenario)


def test_a_task_that_its_driver_lost_counts_as_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(batch(a_task(config=FOREVER, restart_policy=ONCE)))
            await until(runner, TaskStatus.RUNNING)
            await agent.driver.destroy_task(runner.tasks["web"].task_id, force=True)
            await agent.is_over.wait()
            assert runner.report().client_status is ClientStatus.FAILED

    run(scenario)


def test_a_driver_that_is_down_for_a_while_is_waited_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        config = {"run_for": "100s", "exit_code": 7, "plugin_exit_after": "10s"}
        async with world.agent() as agent:
            recover, until_s = agent.driver.recover_task, 50.0

            async def down(handle: Any) -> None:
                if trio.current_time() < until_s:
                    raise DriverError("connection refused", is_recoverable=True)
                await recover(handle)

            agent.driver.recover_task = down  # type: ignore[method-assign]
            runner = agent.take_up(batch(a_task(config=config, restart_policy=ONCE)))
            await agent.is_over.wait()
            ended = next(event for event in runner.task_states["web"].events if event.type == "Terminated")
            assert ended.exit_code == 7

    run(scenario)


def test_a_start_error_is_told_and_follows_the_policy(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        config = {"start_error": "no such image", "start_error_recoverable": True}
        async with world.agent() as agent:
            runner = agent.take_up(
                service(a_task(config=config, restart_policy=RestartPolicy(attempts=2, delay_s=5.0)))
            )
            await agent.is_over.wait()
            assert events_of(runner).count("Driver Failure") == 3
            assert runner.report().client_status is ClientStatus.FAILED
            assert "no such image" in [event.driver_error for event in runner.task_states["web"].events]

    run(scenario)


def test_settings_that_a_driver_does_not_know_fail_the_task(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task(config={"run_fro": "1s"})))
            await agent.is_over.wait()
            event = next(one for one in runner.task_states["web"].events if one.type == "Failed Validation")
            assert "run_fro" in event.validation_error

    run(scenario)


def test_a_driver_that_is_not_here_cannot_be_given_a_task(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path).agent() as agent:
            with pytest.raises(DriverError, match="no_such_driver"):
                agent.take_up(service(a_task(driver="no_such_driver")))

    run(scenario)


# -- the next agent


def test_a_task_goes_on_under_the_next_agent_as_if_nothing_had_happened(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as first:
            runner = first.take_up(service())
            await until(runner, TaskStatus.RUNNING)
            before = runner.report()
        async with world.agent(has_contact=False) as second:
            runner = second.take_up()
            await trio.sleep(3)
            assert runner.report().task_states == before.task_states
            assert len(world.place.lives) == 1
            assert runner.tasks["web"].is_running

    run(scenario)


def test_an_end_without_an_agent_is_told_with_its_true_code_and_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as first:
            config = {"run_for": "30s", "exit_code": 9}
            await until(first.take_up(batch(a_task(config=config, restart_policy=ONCE))), TaskStatus.RUNNING)
        await trio.sleep(1000)
        async with world.agent(has_contact=False) as second:
            runner = second.take_up()
            await second.is_over.wait()
            ended = next(event for event in runner.task_states["web"].events if event.type == "Terminated")
            assert ended.exit_code == 9
            assert (ended.time_ns - 1_700_000_000_000_000_000) / 1e9 == pytest.approx(30, abs=0.1)
            assert runner.task_states["web"].finished_at_ns == ended.time_ns

    run(scenario)


def test_a_lost_task_is_started_again_only_after_contact(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as first:
            await until(first.take_up(service()), TaskStatus.RUNNING)
        world.place.tasks.clear()  # the host was rebooted
        async with world.agent(has_contact=False) as second:
            runner = second.take_up()
            await trio.sleep(100)
            assert runner.task_states["web"].state is TaskStatus.PENDING
            assert events_of(runner)[-1] == "Failed Restoring Task"
            second.parts.has_contact.set()
            await trio.sleep(1)
            assert runner.task_states["web"].state is TaskStatus.RUNNING

    run(scenario)


def test_a_lost_task_of_a_system_job_is_started_again_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = an_allocation(job=a_job(type="system", groups=[a_group(tasks=[a_task(config=FOREVER)])]))
        async with world.agent() as first:
            await until(first.take_up(alloc), TaskStatus.RUNNING)
        world.place.tasks.clear()
        async with world.agent(has_contact=False) as second:
            runner = second.take_up()
            await trio.sleep(1)
            assert runner.task_states["web"].state is TaskStatus.RUNNING
            assert "Failed Restoring Task" in events_of(runner)

    run(scenario)


def test_a_driver_that_is_not_up_yet_is_waited_for_and_its_task_left_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as first:
            await until(first.take_up(service()), TaskStatus.RUNNING)
        async with world.agent() as second:
            recover = second.driver.recover_task

            async def down(handle: Any) -> None:
                if trio.current_time() < 100:
                    raise DriverError("connection refused", is_recoverable=True)
                await recover(handle)

            second.driver.recover_task = down  # type: ignore[method-assign]
            runner = second.take_up()
            await trio.sleep(200)
            assert runner.tasks["web"].is_running
            assert len(world.place.lives) == 1

    run(scenario)


@pytest.mark.parametrize("method", ["recover_task", "stop_task", "destroy_task", "start_task"])
def test_a_driver_with_a_bug_is_treated_like_one_that_refuses(tmp_path: Path, method: str) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        if method == "recover_task":
            async with world.agent() as first:
                await until(first.take_up(service()), TaskStatus.RUNNING)
        async with world.agent() as agent:
            works, failures = getattr(agent.driver, method), []

            async def broken(*arguments: Any, **named: Any) -> Any:
                if len(failures) < 2:
                    failures.append(method)
                    raise RuntimeError("a bug in the driver")
                return await works(*arguments, **named)

            setattr(agent.driver, method, broken)
            runner = agent.take_up(service())
            await trio.sleep(100)
            assert runner.tasks["web"].is_running
            runner.stop()
            await agent.is_over.wait()
            assert failures == [method] * 2
            assert world.place.tasks == {}
            world.place.check_no_overlap()

    run(scenario)


def test_a_task_that_refuses_to_be_found_is_removed_before_it_is_started_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as first:
            await until(first.take_up(service(a_task(config={**FOREVER, "recover_error": "odd"}))), TaskStatus.RUNNING)
        async with world.agent() as second:
            runner = second.take_up()
            await trio.sleep(1)
            assert runner.task_states["web"].state is TaskStatus.RUNNING
            assert len(world.place.lives) == 2
            world.place.check_no_overlap()

    run(scenario)


def test_a_prerun_hook_that_fails_does_not_end_tasks_that_run(tmp_path: Path) -> None:
    async def fail(hook: AllocHook) -> None:
        if Notes.seen.count("a.prerun") > 1:
            raise HookFailed("no server")

    async def scenario() -> None:
        world = World(tmp_path, alloc_hooks=[alloc_noting("a", prerun=fail)])
        async with world.agent() as first:
            await until(first.take_up(service()), TaskStatus.RUNNING)
        async with world.agent() as second:
            runner = second.take_up()
            await trio.sleep(10)
            assert runner.tasks["web"].is_running

    run(scenario)


def test_an_allocation_that_is_over_is_only_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path, alloc_hooks=[alloc_noting("a")])
        async with world.agent() as first:
            first.take_up(batch(a_task(config={"run_for": "1s"})))
            await first.is_over.wait()
        Notes.seen.clear()
        async with world.agent() as second:
            runner = second.take_up()
            await second.is_over.wait()
            assert Notes.seen == []
            assert runner.is_terminal
            assert runner.context.terminal.is_set()
            assert runner.report().client_status is ClientStatus.COMPLETE
            runner.stop()
            await runner.destroy()
            assert world.journal.load() == []

    run(scenario)


# -- a disk that does not take it


def test_nothing_is_started_while_the_journal_cannot_be_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        world.journal.is_full = lambda name: trio.current_time() < 60
        async with world.agent() as agent:
            runner = agent.take_up(service())
            await trio.sleep(59)
            assert world.place.lives == {}
            assert runner.report().client_status is ClientStatus.PENDING
            await trio.sleep(10)
            assert runner.task_states["web"].state is TaskStatus.RUNNING

    run(scenario)


def test_an_intent_that_cannot_be_written_is_not_carried_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = service(a_task(config=FOREVER, restart_policy=RestartPolicy(attempts=5, delay_s=5.0)))
        async with world.agent() as agent:
            world.journal.is_full = lambda name: name == "web" and bool(world.journal.tasks)
            runner = agent.take_up(alloc)
            await trio.sleep(20)
            assert world.place.lives == {}
            world.journal.is_full = lambda name: False
            await trio.sleep(20)
            assert runner.task_states["web"].state is TaskStatus.RUNNING
            assert "no space left" in " ".join(event.driver_error for event in runner.task_states["web"].events)

    run(scenario)


def test_a_task_whose_handle_cannot_be_stored_is_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            world.journal.is_full = lambda name: name == "web" and bool(world.place.lives)
            runner = agent.take_up(service())
            await trio.sleep(20)
            [life] = world.place.lives.values()
            assert world.place.tasks[life.task_id].ending()[0] <= world.now_ns()
            assert runner.task_states["web"].state is TaskStatus.PENDING
            world.journal.is_full = lambda name: False
            await agent.is_over.wait()
            assert runner.report().client_status is ClientStatus.FAILED
            assert "could not be stored" in " ".join(event.kill_reason for event in runner.task_states["web"].events)

    run(scenario)


def test_nothing_is_shown_before_it_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(batch(a_task(config={"run_for": "5s"}), a_task("b", config={"run_for": "6s"})))
            await agent.is_over.wait()
            written = [(task, state) for task, _, state in world.journal.history]
            for _, report in agent.changes:
                for name, state in report.task_states.items():
                    assert (name, state) in written
            assert runner.is_terminal

    run(scenario)


# -- updates


def test_updates_are_taken_one_at_a_time_and_only_the_newest_counts(tmp_path: Path) -> None:
    seen: list[int] = []

    async def slow(hook: AllocHook) -> None:
        seen.append(hook.alloc.alloc.alloc_modify_index)
        await trio.sleep(10)

    async def scenario() -> None:
        world = World(tmp_path, alloc_hooks=[alloc_noting("a", update=slow)], task_hooks=[noting("t")])
        alloc = service()
        async with world.agent() as agent:
            runner = agent.take_up(alloc)
            await until(runner, TaskStatus.RUNNING)
            for index in (1, 2, 3, 4, 5):
                runner.update(changed(alloc, alloc_modify_index=index))
                await trio.sleep(1)
            await trio.sleep(100)
            assert seen == [1, 5]
            assert runner.context.alloc.alloc_modify_index == 5
            assert world.journal.load()[0].alloc.alloc_modify_index == 5
            assert Notes.seen.count("t.update") == 2

    run(scenario)


def test_an_update_changes_the_restart_policy_in_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        task = a_task(config={"run_for": "50s", "exit_code": 1})
        async with world.agent() as agent:
            runner = agent.take_up(service(task))
            await until(runner, TaskStatus.RUNNING)
            runner.update(service(structs.replace(task, restart_policy=ONCE)))
            await agent.is_over.wait()
            assert runner.report().client_status is ClientStatus.FAILED
            assert trio.current_time() < 60

    run(scenario)


def test_an_update_without_its_job_or_with_other_tasks_changes_nothing_of_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = service()
        async with world.agent() as agent:
            runner = agent.take_up(alloc)
            await until(runner, TaskStatus.RUNNING)
            runner.update(changed(alloc, job=None, alloc_modify_index=3))
            await trio.sleep(1)
            assert runner.context.alloc.alloc_modify_index == 3
            assert runner.context.job == alloc.job
            runner.update(changed(service(a_task("other")), alloc_modify_index=4))
            await trio.sleep(1)
            assert runner.context.alloc.alloc_modify_index == 3
            assert runner.tasks["web"].is_running

    run(scenario)


def test_an_update_that_cannot_be_written_is_taken_up_later(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = service()
        async with world.agent() as agent:
            runner = agent.take_up(alloc)
            await until(runner, TaskStatus.RUNNING)
            world.journal.is_full = lambda name: name == "alloc" and trio.current_time() < 20
            runner.update(changed(alloc, alloc_modify_index=8))
            await trio.sleep(10)
            assert runner.context.alloc.alloc_modify_index == 0
            await trio.sleep(20)
            assert runner.context.alloc.alloc_modify_index == 8

    run(scenario)


def test_a_reconnection_is_told_once_per_task_also_over_agents(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        alloc = service()
        unknown = changed(alloc, client_status=ClientStatus.UNKNOWN)
        async with world.agent() as first:
            runner = first.take_up(alloc)
            await until(runner, TaskStatus.RUNNING)
            runner.update(changed(unknown, alloc_modify_index=1))
            await trio.sleep(1)
            runner.update(changed(unknown, alloc_modify_index=2))
            await trio.sleep(1)
        async with world.agent() as second:
            runner = second.take_up()
            await trio.sleep(1)
            runner.update(changed(unknown, alloc_modify_index=3))
            await trio.sleep(1)
            assert events_of(runner).count("Reconnected") == 1
            runner.update(changed(alloc, client_status=ClientStatus.RUNNING, alloc_modify_index=4))
            await trio.sleep(1)
            runner.update(changed(unknown, alloc_modify_index=5))
            await trio.sleep(1)
            assert events_of(runner).count("Reconnected") == 2

    run(scenario)


def test_the_network_that_a_hook_built_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service(a_task(config={**FOREVER, "driver_ip": "10.9.8.7"})))
            await until(runner, TaskStatus.RUNNING)
            network = runner.tasks["web"].network
            assert network is not None
            assert network.ip == "10.9.8.7"
            await runner.context.keep_network(AllocNetworkStatus(address="10.0.0.9"))
            assert world.journal.load()[0].local.network_status == AllocNetworkStatus(address="10.0.0.9")
            runner.update(changed(runner.context.alloc, network_status=None, alloc_modify_index=9))
            await trio.sleep(1)
            assert runner.context.alloc.network_status == AllocNetworkStatus(address="10.0.0.9")
            status = runner.report().network_status
            assert status is not None
            assert status.address == "10.0.0.9"

    run(scenario)


# -- health


def deployed(deployment_id: str = "d1", **update: Any) -> Allocation:
    group = a_group(tasks=[a_task(config=FOREVER)], update=UpdateStrategy(**update))
    return an_allocation(group, deployment_id=deployment_id)


def test_a_deployments_allocation_becomes_healthy_after_its_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(deployed(min_healthy_time_s=20.0))
            await until(runner, TaskStatus.RUNNING)
            await trio.sleep(19)
            assert runner.report().deployment_status is None
            await trio.sleep(2)
            status = runner.report().deployment_status
            assert status is not None
            assert status.is_healthy
            assert status.timestamp_ns

    run(scenario)


def test_a_new_deployment_is_watched_anew_and_a_verdict_is_final(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as first:
            runner = first.take_up(deployed())
            await trio.sleep(15)
            verdict = runner.report().deployment_status
            assert verdict is not None
        async with world.agent() as second:
            runner = second.take_up()
            await trio.sleep(50)
            assert runner.report().deployment_status == verdict
            runner.update(deployed("d2"))
            await trio.sleep(15)
            fresh = runner.report().deployment_status
            assert fresh is not None
            assert fresh.timestamp_ns > verdict.timestamp_ns

    run(scenario)


def test_a_deployments_allocation_that_fails_is_unhealthy_and_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        task = a_task(config={"run_for": "1s", "exit_code": 1}, restart_policy=RestartPolicy(attempts=20, delay_s=5.0))
        group = a_group(tasks=[task], update=UpdateStrategy(healthy_deadline_s=60.0))
        async with world.agent() as agent:
            runner = agent.take_up(an_allocation(group, deployment_id="d1"))
            await trio.sleep(61)
            status = runner.report().deployment_status
            assert status is not None
            assert status.is_unhealthy
            assert "Alloc Unhealthy" in events_of(runner)

    run(scenario)


def test_a_stop_ends_the_watch_without_a_verdict(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(deployed())
            await until(runner, TaskStatus.RUNNING)
            runner.stop()
            await agent.is_over.wait()
            assert runner.report().deployment_status is None

    run(scenario)


def test_a_service_without_a_deployment_is_watched_for_drains(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        async with world.agent() as agent:
            runner = agent.take_up(service())
            await trio.sleep(15)
            status = runner.report().deployment_status
            assert status is not None
            assert status.is_healthy

    run(scenario)


def test_flapping_checks_hold_a_deployment_back(tmp_path: Path) -> None:
    def result(status: CheckStatus) -> CheckResult:
        return CheckResult(id="c", check="up", status=status, timestamp_ns=World.now_ns())

    async def scenario() -> None:
        world = World(tmp_path)
        offered = Service(name="web", checks=(ServiceCheck(name="up"),))
        group = a_group(tasks=[a_task(config=FOREVER, services=(offered,))], update=UpdateStrategy())
        alloc = an_allocation(group, deployment_id="d1")
        async with world.agent() as agent:
            runner = agent.take_up(alloc)
            await trio.sleep_until(30)
            assert runner.report().deployment_status is None, "no check was entered yet"
            world.checks.put(alloc.id, result(CheckStatus.SUCCESS))
            await trio.sleep_until(38)
            world.checks.put(alloc.id, result(CheckStatus.FAILURE))
            await trio.sleep_until(39)
            world.checks.put(alloc.id, result(CheckStatus.SUCCESS))
            await trio.sleep_until(48)
            assert runner.report().deployment_status is None
            await trio.sleep_until(50)
            status = runner.report().deployment_status
            assert status is not None
            assert status.is_healthy

    run(scenario)
