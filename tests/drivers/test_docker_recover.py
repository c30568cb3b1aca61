"""What a new agent finds of the containers that an earlier one left."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from fedsched.drivers.docker.config import settings_from
from fedsched.drivers.docker.dangling import dangling
from fedsched.drivers.docker.driver import DockerDriver
from fedsched.drivers.docker.labels import ALLOC_ID, HANDLE, NODE_ID, TASK_ID
from fedsched.drivers.docker.records import ContainerListed
from fedsched.drivers.driver import (
    DriverError,
    RunState,
    TaskHandle,
    TaskUnknown,
)
from tests.drivers.docker_driving import a_task, drive, only
from tests.drivers.fake_engine import FakeContainer, FakeEngine

# a new agent


def test_a_task_is_found_again_by_its_handle_or_only_by_its_id(tmp_path: Path) -> None:
    config, fake = a_task(tmp_path), FakeEngine()
    handles: list[TaskHandle] = []

    async def first(driver: DockerDriver, fake: FakeEngine) -> None:
        handles.append((await driver.start_task(config)).handle)

    async def second(driver: DockerDriver, fake: FakeEngine) -> None:
        await driver.recover_task(handles[0])
        await driver.recover_task(handles[0])
        assert (await driver.inspect_task(config.id)).state is RunState.RUNNING

    async def third(driver: DockerDriver, fake: FakeEngine) -> None:
        await driver.recover_task(TaskHandle(driver="docker", task_id=config.id))
        only(fake).end(6)
        assert (await driver.wait_task(config.id)).exit_code == 6
        await driver.destroy_task(config.id)

    for script in (first, second, third):
        drive(script, fake=fake)


def test_a_container_that_never_ran_is_removed_and_unknown(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.containers["a"] = FakeContainer("a", "web", {"Labels": {TASK_ID: config.id, ALLOC_ID: config.alloc_id}})
        with pytest.raises(TaskUnknown):
            await driver.recover_task(TaskHandle(driver="docker", task_id=config.id))
        assert fake.containers == {}

    drive(script)


def test_another_container_under_the_same_id_is_not_taken_for_ours(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        handle = (await driver.start_task(config)).handle
        await driver.destroy_task(config.id, force=True)
        container_id = "0" * 63 + "1"
        fake.containers[container_id] = FakeContainer(
            container_id, "x", {"Labels": {TASK_ID: "else"}}, status="running"
        )
        with pytest.raises(TaskUnknown, match="not of task"):
            await driver.recover_task(handle)

    drive(script)


def test_a_label_of_nonsense_is_refused(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        labels = {TASK_ID: config.id, HANDLE: '{"task_id": ""}'}
        fake.containers["a"] = FakeContainer("a", "web", {"Labels": labels}, status="running")
        with pytest.raises(DriverError, match="handle"):
            await driver.recover_task(TaskHandle(driver="docker", task_id=config.id))

    drive(script)


def test_a_handle_of_another_task_is_refused(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        handle = (await driver.start_task(config)).handle
        with pytest.raises(DriverError, match="is about"):
            await driver.recover_task(TaskHandle(driver="docker", task_id="other", state=handle.state))

    drive(script)


def test_an_engine_that_starts_with_the_agent_is_waited_for(tmp_path: Path) -> None:
    config, fake = a_task(tmp_path), FakeEngine()
    handles: list[TaskHandle] = []

    async def first(driver: DockerDriver, fake: FakeEngine) -> None:
        handles.append((await driver.start_task(config)).handle)

    async def second(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.is_down = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(driver.recover_task, handles[0])
            await trio.sleep(40)
            fake.is_down = False
        assert (await driver.inspect_task(config.id)).state is RunState.RUNNING

    async def third(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.is_down = True
        with pytest.raises(DriverError, match="refused") as caught:
            await driver.recover_task(handles[0])
        assert caught.value.is_recoverable
        assert trio.current_time() >= 60

    for script in (first, second, third):
        drive(script, fake=fake)


def test_what_is_left_of_an_unknown_task_is_removed_by_force_only(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.containers["a"] = FakeContainer("a", "web", {"Labels": {TASK_ID: config.id}}, status="running")
        await driver.destroy_task(config.id)
        assert fake.containers
        await driver.destroy_task(config.id, force=True)
        assert not fake.containers
        fake.is_down = True
        await driver.destroy_task(config.id, force=True)

    drive(script)


def test_containers_stay_where_the_operator_wants_to_look_at_them(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        await driver.start_task(config)
        await driver.destroy_task(config.id, force=True)
        assert only(fake).status == "exited"
        with pytest.raises(TaskUnknown):
            await driver.wait_task(config.id)

    drive(script, removes_containers=False)


# containers that nobody knows


def test_only_old_containers_of_this_node_that_nobody_knows_are_dangling() -> None:
    def listed(
        name: str, node: str = "n", created: int = 100, state: str = "running", **labels: str
    ) -> ContainerListed:
        return ContainerListed(name, created, state, {ALLOC_ID: "a", NODE_ID: node, **labels})

    found = [
        listed("lost"),
        listed("known"),
        listed("young", created=950),
        listed("foreign", node="other"),
        listed("ended", state="exited"),
        listed("timeless", created=0),
        ContainerListed("bare", 100, "running", None),
    ]

    def swept(*, keeps_ended: bool) -> list[str]:
        return dangling(found, known={"known"}, node_ids={"n"}, now_s=1000, grace_s=300, keeps_ended=keeps_ended)

    assert swept(keeps_ended=False) == ["lost", "ended"]
    assert swept(keeps_ended=True) == ["lost"]


def test_the_first_sweep_comes_after_a_period_and_troubles_do_not_end_it(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        await driver.start_task(config)
        lost = FakeContainer("a", "x", {"Labels": {ALLOC_ID: "a", NODE_ID: "node"}}, status="running")
        fake.containers["a"] = lost
        await trio.sleep(299)
        assert "a" in fake.containers
        fake.script_reply("GET /containers/json", 500, {"message": "busy"}, times=1)
        await trio.sleep(2)
        assert "a" in fake.containers
        await trio.sleep(300)
        assert "a" not in fake.containers
        assert (await driver.inspect_task(config.id)).state is RunState.RUNNING

    drive(script)


def test_a_dry_run_only_says_what_it_would_remove() -> None:
    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.containers["a"] = FakeContainer("a", "x", {"Labels": {ALLOC_ID: "a", NODE_ID: "node"}}, status="running")
        assert await driver.sweep() == ["a"]
        assert "a" in fake.containers

    settings = settings_from({"gc": {"dangling_containers": {"dry_run": True}}})
    drive(script, dangling=settings.dangling)
