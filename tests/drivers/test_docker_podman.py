"""The docker driver against a real engine: podman's compatible socket."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.drivers.docker.config import settings_from
from fedsched.drivers.docker.driver import DockerDriver
from fedsched.drivers.docker.labels import NODE_ID, container_name
from fedsched.drivers.driver import (
    Driver,
    DriverError,
    ExecCommand,
    ExitResult,
    LogLimits,
    Mount,
    RunState,
    TaskConfig,
    TaskLimits,
    TaskPort,
)
from tests.drivers.conformance import DriverConformance, drain, received_until
from tests.drivers.podman import IMAGE, Podman, open_podman

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    # Not below pytest's own directories: podman takes no path of more than 50 characters.
    with tempfile.TemporaryDirectory(prefix="fedsched-") as place, open_podman(Path(place)) as podman:
        yield podman


@asynccontextmanager
async def opened(podman: Podman, **settings: Any) -> AsyncIterator[DockerDriver]:
    """A driver that runs. Leaving the block is the end of its agent; containers run on."""
    driver = DockerDriver("docker", settings_from({"endpoint": podman.endpoint, "gc": {"image": False}, **settings}))
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        yield driver
        nursery.cancel_scope.cancel()


class TestDockerDriver(DriverConformance):
    """Everything that all drivers do, and what only containers do."""

    name = "docker"
    podman: Podman

    @pytest.fixture(autouse=True)
    def _engine(self, podman: Podman) -> Iterator[None]:
        self.podman = podman
        before = podman.containers()
        yield
        assert podman.containers() == before

    def open_driver(self, place: Path) -> AbstractAsyncContextManager[Driver]:
        return opened(self.podman)

    def shell(self, script: str) -> Mapping[str, Any]:
        return {"image": IMAGE, "network_mode": "host", "command": "/bin/sh", "args": ["-c", script]}

    def sleep_forever(self) -> Mapping[str, Any]:
        # The first process of a container is not ended by signals that it does not handle.
        return self.shell("trap 'exit 143' TERM INT; while :; do sleep 0.05; done")

    def end_by_signal(self) -> Mapping[str, Any]:
        return self.shell("sh -c 'kill -TERM $$; sleep 5'; exit $?")

    # what only containers do

    def scenario(self, body: Callable[[DockerDriver], Awaitable[None]], **settings: Any) -> None:
        async def within() -> None:
            async with opened(self.podman, **settings) as driver:
                await body(driver)

        self.run(within)

    async def said(self, driver: DockerDriver, config: TaskConfig) -> tuple[str, ExitResult]:
        """All a task writes to its standard output, and its end."""
        async with self.started(driver, config):
            result = await driver.wait_task(config.id)
            return (config.dirs.logs / "web.stdout.0").read_text(), result

    def test_a_task_sees_its_directories_its_environment_and_its_limits(self, tmp_path: Path) -> None:
        script = "cat /alloc/a /local/b /secrets/c /extra/d; echo $GREETING; hostname; id -u; touch /extra/e; exit 0"
        config = self.task(
            tmp_path,
            {**self.shell(script), "hostname": "inner", "network_mode": "none"},
            env={"GREETING": "good day"},
            user="65534",
            mounts=(Mount(tmp_path / "extra", "/extra", is_read_only=True),),
            limits=TaskLimits(cpu_mhz=100, memory_mb=64, memory_max_mb=128),
        )
        (tmp_path / "extra").mkdir()
        for path in (
            config.dirs.shared / "a",
            config.dirs.local / "b",
            config.dirs.secrets / "c",
            tmp_path / "extra/d",
        ):
            path.write_text(path.name + "\n")

        async def body(driver: DockerDriver) -> None:
            text, _ = await self.said(driver, config)
            assert text.split() == ["a", "b", "c", "d", "good", "day", "inner", "65534"]

        self.scenario(body)
        assert not (tmp_path / "extra/e").exists()

    def test_a_task_that_takes_too_much_memory_is_known_to_have(self, tmp_path: Path) -> None:
        config = self.task(
            tmp_path, {**self.shell("sleep 1; exec tail /dev/zero")}, limits=TaskLimits(cpu_mhz=100, memory_mb=16)
        )

        async def body(driver: DockerDriver) -> None:
            _, result = await self.said(driver, config)
            assert (result.exit_code, result.oom_killed) == (137, True)

        self.scenario(body)

    def test_a_kill_from_outside_is_no_lack_of_memory(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, self.sleep_forever(), limits=TaskLimits(cpu_mhz=100, memory_mb=64))

        async def body(driver: DockerDriver) -> None:
            async with self.started(driver, config):
                await driver.signal_task(config.id, "SIGKILL")
                result = await driver.wait_task(config.id)
                assert (result.exit_code, result.oom_killed) == (137, False)

        self.scenario(body)

    def test_a_container_joins_its_groups_network_by_its_path(self, tmp_path: Path) -> None:
        (tmp_path / "resolv.conf").write_text("nameserver 10.9.9.9\n")
        (tmp_path / "hosts").write_text("172.26.64.2 web-1\n")
        begin = "ip link add there type veth peer name fspeer; echo ready; exec sleep 100"
        with subprocess.Popen(["unshare", "--net", "sh", "-c", begin], stdout=subprocess.PIPE) as group:
            assert group.stdout is not None
            assert group.stdout.readline() == b"ready\n"
            config = self.task(
                tmp_path,
                self.shell("hostname; cat /etc/resolv.conf /etc/hosts /proc/net/dev"),
                network_namespace=Path(f"/proc/{group.pid}/ns/net"),
                network_files=tuple(Mount(tmp_path / name, f"/etc/{name}", True) for name in ("resolv.conf", "hosts")),
                hostname="web-1",
            )
            del config.config["network_mode"]  # type: ignore[attr-defined]

            async def body(driver: DockerDriver) -> None:
                text, _ = await self.said(driver, config)
                assert text.splitlines()[:3] == ["web-1", "nameserver 10.9.9.9", "172.26.64.2 web-1"]
                assert "there:" in text

            try:
                self.scenario(body)
            finally:
                group.kill()

    def test_a_published_port_is_reached(self, tmp_path: Path) -> None:
        config = self.task(
            tmp_path,
            {**self.shell("while :; do echo hello from inside | nc -l -p 80; done"), "ports": ["http"]},
            ports=(TaskPort("http", "127.0.0.1", 18080, to=80),),
        )
        del config.config["network_mode"]  # type: ignore[attr-defined]

        async def body(driver: DockerDriver) -> None:
            begun = await driver.start_task(config)
            try:
                assert begun.network is not None
                assert begun.network.port_map == {"http": 80}
                assert begun.network.ip.startswith("10.")
                words = ("busybox", "nc", "-w", "1", begun.network.ip, "80")
                while True:
                    heard = await trio.to_thread.run_sync(self.podman.inside_network, *words)
                    if heard.stdout == "hello from inside\n":
                        break
                    await trio.sleep(0.05)
            finally:
                await driver.destroy_task(config.id, force=True)

        self.scenario(body)

    def test_without_a_kill_signal_the_engine_stops_it_its_own_way(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, self.exit_on_signal("SIGTERM", 12))

        async def body(driver: DockerDriver) -> None:
            async with self.started(driver, config):
                await self.output(config, "stdout", "ready")
                await driver.stop_task(config.id, 10, "")
                assert (await driver.wait_task(config.id)).exit_code == 12

        self.scenario(body)

    def test_what_was_left_under_its_name_is_replaced_if_it_is_ours(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, self.exit_with(3))
        label = f"com.hashicorp.nomad.alloc_id={config.alloc_id}"

        async def body(driver: DockerDriver) -> None:
            name = container_name(config)
            left = self.podman.run("create", "--name", name, "--label", label, IMAGE, "/bin/true").stdout.strip()
            _, result = await self.said(driver, config)
            assert result.exit_code == 3
            assert left not in self.podman.containers()

        self.scenario(body)

    def test_what_is_not_ours_keeps_its_name(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, self.exit_with(3))
        foreign = self.podman.run("create", "--name", container_name(config), IMAGE, "/bin/true").stdout.strip()

        async def body(driver: DockerDriver) -> None:
            with pytest.raises(DriverError, match="not ours"):
                await driver.start_task(config)

        self.scenario(body)
        assert foreign in self.podman.containers()
        self.podman.run("rm", foreign)

    def test_a_command_that_is_not_there_is_not_tried_again_and_leaves_nothing(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, {"image": IMAGE, "network_mode": "host", "command": "/nowhere"})

        async def body(driver: DockerDriver) -> None:
            with pytest.raises(DriverError) as caught:
                await driver.start_task(config)
            assert not caught.value.is_recoverable

        self.scenario(body)

    def test_an_image_comes_out_of_an_archive_in_the_tasks_directory(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, {**self.exit_with(0), "image": "fedsched/loaded:2", "load": "image.tar"})
        self.podman.run("tag", IMAGE, "fedsched/loaded:2")
        self.podman.run("save", "-o", str(config.dirs.local / "image.tar"), "fedsched/loaded:2")
        self.podman.run("untag", IMAGE, "fedsched/loaded:2")

        async def body(driver: DockerDriver) -> None:
            _, result = await self.said(driver, config)
            assert result.exit_code == 0

        self.scenario(body)
        self.podman.run("untag", IMAGE, "fedsched/loaded:2")

    def test_an_image_that_is_nowhere_fails_the_start_with_words(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, {"image": "127.0.0.1:9/nobody/none:1", "command": "/bin/true"})

        async def body(driver: DockerDriver) -> None:
            with pytest.raises(DriverError, match=r"127\.0\.0\.1:9/nobody/none:1"):
                await driver.start_task(config)

        self.scenario(body)

    def test_capabilities_are_only_those_that_are_allowed(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, {**self.shell("cat /proc/self/status"), "cap_drop": ["kill"]})

        async def body(driver: DockerDriver) -> None:
            text, _ = await self.said(driver, config)
            effective = int(next(line for line in text.splitlines() if line.startswith("CapEff")).split()[1], 16)
            names = {"chown": 0, "kill": 5, "net_raw": 13, "sys_admin": 21, "sys_chroot": 18}
            held = {name for name, bit in names.items() if effective >> bit & 1}
            assert held == {"chown", "sys_chroot"}

        self.scenario(body)

    def test_a_terminal_has_the_size_that_it_is_given(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, self.sleep_forever())

        async def body(driver: DockerDriver) -> None:
            command = ExecCommand(("/bin/sh",), is_tty=True)
            async with self.started(driver, config), driver.exec_session(config.id, command) as session:
                await session.resize(33, 77)
                await session.send_input(b"stty size; exit 4\n")
                assert b"33 77" in await received_until(session, b"33 77")
                await drain(session)
                assert (await session.wait()).exit_code == 4

        self.scenario(body)

    def test_output_and_errors_of_a_command_are_told_apart(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, self.sleep_forever())

        async def body(driver: DockerDriver) -> None:
            command = ExecCommand(("/bin/sh", "-c", "echo out; echo err >&2; echo $X"), env={"X": "set"})
            async with self.started(driver, config), driver.exec_session(config.id, command) as session:
                seen = {True: b"", False: b""}
                while b"set" not in seen[False] or b"err" not in seen[True]:
                    piece = await session.receive()
                    seen[piece.is_stderr] += piece.data
                assert seen == {False: b"out\nset\n", True: b"err\n"}

        self.scenario(body)

    def test_a_session_that_is_left_takes_its_command_along(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, self.sleep_forever())

        async def body(driver: DockerDriver) -> None:
            async with self.started(driver, config):
                async with driver.exec_session(config.id, ExecCommand(("/bin/sh", "-c", "sleep 4321; true"))):
                    while "sleep 4321" not in await self.processes(driver, config):
                        await trio.sleep(0.02)
                while "sleep 4321" in await self.processes(driver, config):
                    await trio.sleep(0.02)

        self.scenario(body)

    async def processes(self, driver: DockerDriver, config: TaskConfig) -> str:
        return (await driver.exec_task(config.id, ExecCommand(("/bin/ps",)), 10)).output.decode()

    def test_stats_count_processor_time_and_memory(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, self.shell("while :; do :; done"))

        async def body(driver: DockerDriver) -> None:
            async with self.started(driver, config):
                while True:
                    use = await driver.task_stats(config.id)
                    if use.cpu_user_ns and use.memory_usage:
                        break
                assert {"cpu_user_ns", "memory_usage"} <= set(use.measured)

        self.scenario(body)

    def test_containers_that_nobody_knows_are_removed_and_others_are_not(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, self.sleep_forever())
        alloc = "com.hashicorp.nomad.alloc_id=00000000-0000-0000-0000-00000000dddd"

        async def body(driver: DockerDriver) -> None:
            async with self.started(driver, config):
                lost = self.podman.run(
                    *("run", "-d", "--network=host", "--label", alloc, "--label", f"{NODE_ID}={config.node_id}"),
                    *(IMAGE, "/bin/sleep", "1000"),
                ).stdout.strip()
                foreign = self.podman.run(
                    "create", "--label", alloc, "--label", f"{NODE_ID}=other", IMAGE, "/bin/sleep", "1000"
                ).stdout.strip()
                await trio.sleep(2.1)  # the engine tells whole seconds, and the grace is over after more than one

                assert await driver.sweep() == [lost]

                left = self.podman.containers()
                assert lost not in left
                assert foreign in left
                assert (await driver.inspect_task(config.id)).state is RunState.RUNNING
                self.podman.run("rm", foreign)

        self.scenario(body, gc={"image": False, "dangling_containers": {"creation_grace": "1s"}})

    # logs

    def test_every_line_arrives_once_through_rotation(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, self.shell("seq 1 60000"), logs=LogLimits(max_files=100, max_file_bytes=64 << 10))

        async def body(driver: DockerDriver) -> None:
            async with self.started(driver, config):
                await driver.wait_task(config.id)
            assert numbers(config) == list(range(1, 60001))

        self.scenario(body)

    @pytest.mark.parametrize("is_asked", [False, True], ids=["from its file", "from the engine"])
    def test_no_line_is_lost_or_doubled_by_agents_and_engines_that_come_and_go(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked: bool
    ) -> None:
        if is_asked:
            monkeypatch.setattr("fedsched.drivers.docker.log_follower._open_log", lambda found: -1)
        script = "i=0; while [ $i -lt 4000 ]; do i=$((i+1)); echo $i; [ $((i % 20)) = 0 ] && usleep 10000; done"
        config = self.task(tmp_path, self.shell(script), logs=LogLimits(max_files=100, max_file_bytes=8 << 10))

        async def scenario() -> None:
            handle = None
            for cut in range(6):
                async with opened(self.podman) as driver:
                    if handle is None:
                        handle = (await driver.start_task(config)).handle
                    else:
                        await driver.recover_task(handle)
                    await trio.sleep(0.25)
                    if cut == 3:
                        await trio.to_thread.run_sync(self.podman.stop_service)
                        await trio.to_thread.run_sync(self.podman.start_service)
            async with opened(self.podman) as driver:
                assert handle is not None
                await driver.recover_task(handle)
                assert (await driver.wait_task(config.id)).exit_code == 0
                await driver.destroy_task(config.id)

        self.run(scenario)
        assert numbers(config) == list(range(1, 4001))

    def test_the_output_of_a_terminal_is_collected_too(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, {**self.shell("seq 1 2000"), "tty": True})

        async def body(driver: DockerDriver) -> None:
            async with self.started(driver, config):
                await driver.wait_task(config.id)
            assert numbers(config) == list(range(1, 2001))

        self.scenario(body)

    def test_logs_that_are_disabled_leave_no_file(self, tmp_path: Path) -> None:
        config = self.task(tmp_path, self.shell("echo nothing"), logs=LogLimits(is_disabled=True))

        async def body(driver: DockerDriver) -> None:
            async with self.started(driver, config):
                await driver.wait_task(config.id)
            assert list(config.dirs.logs.iterdir()) == []

        self.scenario(body)


def numbers(config: TaskConfig) -> list[int]:
    """The lines of a task's output, over all its files."""
    files = sorted(config.dirs.logs.glob("web.stdout.*"), key=lambda path: int(path.suffix[1:]))
    assert all(path.read_bytes().endswith(b"\n") for path in files if path.stat().st_size)
    return [int(line) for path in files for line in path.read_text().split()]
