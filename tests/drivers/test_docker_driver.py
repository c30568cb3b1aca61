"""The docker driver against an engine that misbehaves by script, in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from fedsched.drivers.docker.container import OOM_NAME
from fedsched.drivers.docker.driver import DockerDriver, make_driver, make_podman, signal_name
from fedsched.drivers.docker.labels import container_name
from fedsched.drivers.driver import (
    DriverError,
    DriverFingerprint,
    ExitResult,
    Health,
    LogLimits,
    RunState,
    TaskUnknown,
)
from fedsched.drivers.registry import DriverHost
from tests.drivers.docker_driving import a_task, drive, only
from tests.drivers.fake_engine import FakeContainer, FakeEngine, Request, frame

# starting


def test_a_start_gives_a_handle_an_address_and_later_the_true_end(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        begun = await driver.start_task(config)
        assert begun.network is not None
        assert begun.network.ip == "172.17.0.5"
        assert only(fake).name == container_name(config)
        assert (await driver.inspect_task(config.id)).state is RunState.RUNNING
        with pytest.raises(DriverError, match="started before"):
            await driver.start_task(config)
        only(fake).end(3)
        result = await driver.wait_task(config.id)
        assert result == ExitResult(exit_code=3, finished_at_ns=1767225609 * 10**9)
        assert (await driver.inspect_task(config.id)).exit == result
        await driver.destroy_task(config.id)
        assert fake.containers == {}
        with pytest.raises(TaskUnknown):
            await driver.wait_task(config.id)

    drive(script)


@pytest.mark.parametrize("status", [500, 503])
def test_a_start_that_fails_at_the_engine_is_tried_again(tmp_path: Path, status: int) -> None:
    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.script_reply("POST /containers/.*/start", status, {"message": "try later"}, times=3)
        await driver.start_task(a_task(tmp_path))
        assert only(fake).status == "running"

    assert drive(script).count("POST /containers/.*/start") == 4


def test_a_start_that_hangs_is_tried_again(tmp_path: Path) -> None:
    async def hang(request: Request) -> None:
        await trio.sleep_forever()

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.script("POST /containers/.*/start", hang, times=1)
        await driver.start_task(a_task(tmp_path))
        assert trio.current_time() > 120

    assert drive(script).count("POST /containers/.*/start") == 2


def test_a_start_that_worked_without_a_word_is_not_repeated(tmp_path: Path) -> None:
    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        async def lie(request: Request) -> None:
            only(fake).status = "running"
            await request.reply(500, {"message": "context deadline exceeded"})

        fake.script("POST /containers/.*/start", lie, times=1)
        await driver.start_task(a_task(tmp_path))

    assert drive(script).count("POST /containers/.*/start") == 1


@pytest.mark.parametrize(
    ("status", "message", "is_recoverable", "tries"),
    [
        (500, "always", True, 5),
        (400, "bad config", False, 1),
        (500, 'exec: "/nope": executable file not found in $PATH', False, 1),
    ],
)
def test_a_start_that_never_works_leaves_nothing(
    tmp_path: Path, status: int, message: str, is_recoverable: bool, tries: int
) -> None:
    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.script_reply("POST /containers/.*/start", status, {"message": message})
        with pytest.raises(DriverError) as caught:
            await driver.start_task(a_task(tmp_path))
        assert caught.value.is_recoverable is is_recoverable
        assert fake.containers == {}

    assert drive(script).count("POST /containers/.*/start") == tries


def test_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    async def hang(request: Request) -> None:
        await trio.sleep_forever()

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.script("POST /containers/.*/start", hang)
        with trio.move_on_after(1):
            await driver.start_task(a_task(tmp_path))
        assert fake.containers == {}

    drive(script)


def test_an_address_that_was_wanted_and_is_not_there_ends_the_start(tmp_path: Path) -> None:
    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        with pytest.raises(DriverError, match="no IPv6 address"):
            await driver.start_task(a_task(tmp_path, config={"advertise_ipv6_address": True}))
        assert fake.containers == {}

    drive(script)


def test_a_create_that_was_never_answered_is_found_by_its_name(tmp_path: Path) -> None:
    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        async def silent(request: Request) -> None:
            name = request.query["name"]
            fake.containers["f" * 64] = FakeContainer("f" * 64, name, request.json)

        fake.script("POST /containers/create", silent, times=1)
        await driver.start_task(a_task(tmp_path))
        assert only(fake).id != "f" * 64

    drive(script)


def test_a_name_that_stays_taken_is_given_up(tmp_path: Path) -> None:
    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        taken = {"message": "container name is already in use by x"}
        fake.script_reply("POST /containers/create", 500, taken)
        with pytest.raises(DriverError, match="3 attempts") as caught:
            await driver.start_task(a_task(tmp_path, config={"container_exists_attempts": 3}))
        assert caught.value.is_recoverable

    drive(script)


def test_a_refusal_to_create_is_passed_on(tmp_path: Path) -> None:
    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.script_reply("POST /containers/create", 400, {"message": "invalid mount config"})
        with pytest.raises(DriverError, match="invalid mount config") as caught:
            await driver.start_task(a_task(tmp_path))
        assert not caught.value.is_recoverable

    drive(script)


def test_pull_progress_is_told_as_messages_of_the_task(tmp_path: Path) -> None:
    config = a_task(tmp_path, config={"image": "new"})

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        await driver.start_task(config)
        stream = driver.messages()
        message = await anext(stream)
        assert (message.task_id, message.message) == (config.id, "Pulling new:latest")
        await stream.aclose()  # type: ignore[attr-defined]

    drive(script)


def test_a_local_image_is_used_unless_its_name_moves_or_a_pull_is_wanted(tmp_path: Path) -> None:
    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.images["app:latest"] = fake.images["app:1"]
        for config, pulls in (({}, 0), ({"force_pull": True}, 1), ({"image": "app"}, 2)):
            await driver.start_task(a_task(tmp_path, config=config))
            assert fake.count("POST /images/create") == pulls

    drive(script)


def test_an_image_goes_some_time_after_its_last_task(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        await driver.start_task(config)
        await trio.sleep(1000)
        assert fake.removed_images == []
        await driver.destroy_task(config.id, force=True)
        await trio.sleep(200)
        assert len(fake.removed_images) == 1

    drive(script)


# the end


def test_an_engine_that_goes_away_while_a_task_runs_is_waited_for(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.script_reply("POST /containers/.*/wait", 500, {"message": "restarting"}, times=2)
        await driver.start_task(config)
        await trio.sleep(5)
        fake.is_down = True
        only(fake).end(9)
        await trio.sleep(60)
        fake.is_down = False
        assert (await driver.wait_task(config.id)).exit_code == 9

    drive(script)


def test_a_container_removed_from_outside_ends_its_task_with_words(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        await driver.start_task(config)
        container = only(fake)
        fake.containers.clear()
        container.ended.set()
        result = await driver.wait_task(config.id)
        assert "removed from outside" in result.error
        assert not result.is_success
        assert (await driver.inspect_task(config.id)).state is RunState.EXITED
        await driver.destroy_task(config.id)

    drive(script)


def test_a_container_that_is_being_stopped_has_not_ended_yet(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        await driver.start_task(config)
        only(fake).status = "stopping"
        only(fake).ended.set()
        with trio.move_on_after(10) as waited:
            await driver.wait_task(config.id)
        assert waited.cancelled_caught
        only(fake).end(137)
        assert (await driver.wait_task(config.id)).exit_code == 137

    drive(script)


@pytest.mark.parametrize(
    ("flag", "mark", "code", "is_oom"),
    [
        (True, False, 137, True),
        (True, False, 1, True),
        (False, True, 137, True),
        (False, True, 1, False),
        (False, False, 137, False),
    ],
)
def test_lack_of_memory_is_known_by_the_engines_flag_or_an_earlier_agents_mark(
    tmp_path: Path, flag: bool, mark: bool, code: int, is_oom: bool
) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        await driver.start_task(config)
        if mark:
            (config.dirs.private / OOM_NAME).write_text(only(fake).id)
        only(fake).end(code, is_oom=flag)
        assert (await driver.wait_task(config.id)).oom_killed is is_oom
        await driver.destroy_task(config.id)
        assert not (config.dirs.private / OOM_NAME).exists()

    drive(script)


def test_the_end_waits_for_the_rest_of_the_output_but_not_for_ever(tmp_path: Path) -> None:
    config = a_task(tmp_path, logs=LogLimits(max_files=2, max_file_bytes=1 << 20))

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        async def stuck(request: Request) -> None:
            await request.start_chunks("application/vnd.docker.multiplexed-stream")
            await request.chunk(frame(1, "2026-01-01T00:00:00Z", b"first\n"))
            await trio.sleep_forever()

        fake.script("GET /containers/.*/logs", stuck)
        await driver.start_task(config)
        await trio.sleep(5)
        began = trio.current_time()
        only(fake).end(0)
        await driver.wait_task(config.id)
        assert 2 <= trio.current_time() - began < 5
        await driver.destroy_task(config.id)
        assert 10 <= trio.current_time() - began < 20
        assert (config.dirs.logs / "web.stdout.0").read_text() == "first\n"

    drive(script, patience_s=0.05)


# stopping


def test_without_a_signal_the_engine_is_asked_to_stop_it(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        await driver.start_task(config)
        await driver.stop_task(config.id, 4.2, "")
        assert only(fake).kills == ["stop 5"]
        await driver.stop_task(config.id, 4.2, "")
        assert only(fake).kills == ["stop 5"]

    drive(script)


def test_with_a_signal_that_comes_first_and_the_engine_after_the_timeout(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        await driver.start_task(config)
        began = trio.current_time()
        await driver.stop_task(config.id, 7, "SIGUSR1")
        assert trio.current_time() - began == pytest.approx(7, abs=0.5)
        assert only(fake).kills == ["SIGUSR1", "stop 0"]

    drive(script)


def test_a_task_that_ends_by_the_signal_is_not_killed(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        async def obey(request: Request) -> None:
            await request.reply(204)
            only(fake).end(0)

        fake.script("POST /containers/.*/kill", obey)
        await driver.start_task(config)
        await driver.stop_task(config.id, 7, "SIGINT")
        assert only(fake).kills == []

    drive(script)


def test_a_signal_that_comes_too_late_does_no_harm(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        async def late(request: Request) -> None:
            only(fake).end(0)
            await request.reply(409, {"message": "is not running"})

        fake.script("POST /containers/.*/kill", late)
        await driver.start_task(config)
        await driver.stop_task(config.id, 7, "SIGINT")
        assert (await driver.wait_task(config.id)).exit_code == 0

    drive(script)


def test_a_container_that_does_not_die_is_told(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        fake.script_reply("POST /containers/.*/stop", 204)
        await driver.start_task(config)
        with pytest.raises(DriverError, match="still runs") as caught:
            await driver.stop_task(config.id, 1, "SIGINT")
        assert caught.value.is_recoverable

    drive(script)


@pytest.mark.parametrize("name", ["SIGTERM", "TERM", "15", " sigterm "])
def test_signals_have_several_names(name: str) -> None:
    assert signal_name(name) == "SIGTERM"


@pytest.mark.parametrize("name", ["", "SIGNOT", "99", "-9", "SIG", "SIGTERM; x"])
def test_signals_that_do_not_exist_are_refused(name: str) -> None:
    with pytest.raises(DriverError):
        signal_name(name)


# fingerprint


def test_the_fingerprint_tells_what_the_engine_is_and_when_that_changes() -> None:
    seen: list[DriverFingerprint] = []

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        async def watch() -> None:
            async for found in driver.fingerprint():
                seen.append(found)  # noqa: PERF401 - they must be there when the watching is cancelled

        fake.is_down = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.sleep(100)
            fake.is_down = False
            await trio.sleep(100)
            fake.script_reply("GET /networks/bridge", 404, {"message": "no"}, times=1)
            fake.version["Version"] = "28"
            await trio.sleep(100)
            fake.is_down = True
            await trio.sleep(100)
            nursery.cancel_scope.cancel()

    drive(script, pids_limit=100)

    undetected, healthy, *changed, unhealthy = seen
    assert (undetected.health, undetected.attributes) == (Health.UNDETECTED, {})
    assert "refused" in undetected.description
    assert healthy.health is Health.HEALTHY
    assert healthy.attributes == {
        "driver.docker": "1",
        "driver.docker.version": "27.1.0",
        "driver.docker.privileged.enabled": "false",
        "driver.docker.volumes.enabled": "false",
        "driver.docker.os_type": "linux",
        "driver.docker.runtimes": "io.containerd.runc.v2,runc",
        "driver.docker.bridge_ip": "172.17.0.1",
        "driver.docker.pids.limit": "100",
    }
    assert "driver.docker.bridge_ip" not in changed[0].attributes
    assert changed[-1].attributes["driver.docker.version"] == "28"
    assert unhealthy.health is Health.UNHEALTHY


def test_the_driver_is_made_under_two_names(tmp_path: Path) -> None:
    host = DriverHost(state_dir=tmp_path, settings={"enabled": True}, node_id="n")

    docker, podman = make_driver(host), make_podman(host)

    assert (docker.name, podman.name) == ("docker", "podman")
    assert docker._engine.address != podman._engine.address
    assert docker.capabilities.default_kill_signal == ""
