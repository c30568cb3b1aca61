"""Services, checks and templates of a whole allocation: through its life, and through the end of an agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from fedsched.client.alloc_dirs import AllocDirs
from fedsched.client.checks import Target
from fedsched.client.checks_core import CheckKind, Outcome
from fedsched.client.hooks import checks as checks_module
from fedsched.client.hooks import templates as templates_module
from fedsched.client.hooks.checks import ChecksHook
from fedsched.client.hooks.services import GroupServicesHook, TaskServicesHook
from fedsched.client.hooks.templates import TemplatesHook
from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.check import CheckStatus
from fedsched.model.network import PortMapping
from fedsched.model.resources import AllocatedResources, AllocatedSharedResources
from fedsched.model.service import CheckRestart, Service, ServiceCheck
from fedsched.model.task import Template, WaitConfig
from tests.builders import a_group, a_task
from tests.client.alloc_world import World, an_allocation, events_of
from tests.client.fake_region import FakeRegion

OWN = "nomad/jobs/job"
PORTS = AllocatedResources(shared=AllocatedSharedResources(ports=(PortMapping(label="http", value=80, host_ip="::1"),)))


@pytest.fixture(autouse=True)
def _without_threads_and_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    async def inline(function: Any, *arguments: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(templates_module, "_in_thread", inline)


def a_world(root: Path, region: FakeRegion) -> World:
    return World(
        root,
        task_hooks=(TemplatesHook, TaskServicesHook),
        alloc_hooks=(GroupServicesHook, ChecksHook),
        servers=cast(Any, region),
    )


def an_alloc(root: Path, **check: Any) -> Allocation:
    """One task with a template and a service, in a group with a checked service."""
    template = Template(
        embedded_tmpl=f'{{{{ (nomadVar "{OWN}").v }}}}',
        dest_path="local/out",
        splay_s=0.0,
        wait=WaitConfig(min_s=0.0, max_s=0.0),
    )
    checked = ServiceCheck(**{"name": "alive", "type": "tcp", "interval_s": 10.0, "timeout_s": 1.0, **check})
    task = a_task(
        "web",
        driver="mock_driver",
        config={"run_for": "100h"},
        templates=(template,),
        services=(Service(name="own", port_label="http"),),
    )
    group = a_group(tasks=[task], services=(Service(name="shared", port_label="http", checks=(checked,)),))
    alloc = an_allocation(group, allocated_resources=PORTS)
    dirs = AllocDirs(root / "allocs" / alloc.id).task("web")
    dirs.local.mkdir(parents=True)
    return alloc


def names(region: FakeRegion) -> list[str]:
    return sorted(one.service_name for one in region.services.values())


def run(main: Any) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def answering(monkeypatch: pytest.MonkeyPatch, outcome: Outcome) -> None:
    async def answer(kind: CheckKind, target: Target, timeout_s: float) -> Outcome:
        await trio.lowlevel.checkpoint()
        return outcome

    monkeypatch.setattr(checks_module, "run_check", answer)


def test_an_allocation_waits_for_data_serves_follows_changes_and_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, Outcome(CheckStatus.SUCCESS))

    async def main() -> None:
        region = FakeRegion(secret="")
        world = a_world(tmp_path, region)
        async with world.agent() as agent:
            runner = agent.take_up(an_alloc(tmp_path))
            await trio.sleep(10)
            assert runner.report().client_status is ClientStatus.PENDING
            assert "Template" in events_of(runner)
            assert names(region) == ["shared"]
            region.set_variable(OWN, v="1")
            await trio.sleep(10)
            assert runner.report().client_status is ClientStatus.RUNNING
            assert names(region) == ["own", "shared"]
            assert runner.tasks["web"].context.dirs.local.joinpath("out").read_text() == "1"
            assert agent.parts.checks.passing_since_ns(runner.alloc_id)
            region.set_variable(OWN, v="2")
            await trio.sleep(10)
            assert len(world.place.runs("web")) == 2
            assert runner.report().task_states["web"].restarts == 1
            assert names(region) == ["own", "shared"]
            runner.stop()
            await agent.is_over.wait()
            assert names(region) == []
            assert region.services == {}

    run(main)


def test_another_agent_goes_on_where_one_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, Outcome(CheckStatus.SUCCESS))

    async def main() -> None:
        region = FakeRegion(secret="")
        region.set_variable(OWN, v="1")
        world = a_world(tmp_path, region)
        async with world.agent() as agent:
            agent.take_up(an_alloc(tmp_path))
            await trio.sleep(10)
            assert names(region) == ["own", "shared"]
        assert names(region) == ["own", "shared"]  # a killed agent takes nothing out
        region.is_connected = False
        async with world.agent() as agent:
            agent.take_up()
            await trio.sleep(60)
            assert len(world.place.runs("web")) == 1
            region.is_connected = True
            region.services.clear()
            await trio.sleep(200)
            assert names(region) == ["own", "shared"]
            assert len(world.place.runs("web")) == 1
        region.set_variable(OWN, v="2")
        async with world.agent() as agent:
            runner = agent.take_up()
            await trio.sleep(60)
            assert runner.tasks["web"].context.dirs.local.joinpath("out").read_text() == "2"
            assert len(world.place.runs("web")) == 2  # it was started with other data
        world.place.check_no_overlap()

    run(main)


def test_a_check_that_goes_on_failing_uses_up_the_restart_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, Outcome(CheckStatus.FAILURE, "down"))

    async def main() -> None:
        region = FakeRegion(secret="")
        region.set_variable(OWN, v="1")
        world = a_world(tmp_path, region)
        async with world.agent() as agent:
            runner = agent.take_up(an_alloc(tmp_path, check_restart=CheckRestart(limit=2, grace_s=5.0)))
            with trio.fail_after(600):
                await agent.is_over.wait()
            assert runner.report().client_status is ClientStatus.FAILED
            assert runner.report().task_states["web"].restarts == 2
            assert names(region) == []

    run(main)
