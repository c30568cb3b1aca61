"""exec: the shared promises of all drivers, and that its tasks are alone, weak and limited."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.client.alloc_dirs import AllocDirs
from fedsched.client.paths import Owner
from fedsched.drivers.cgroups import CgroupMode, Cgroups
from fedsched.drivers.driver import (
    Driver,
    DriverError,
    ExecCommand,
    ExecResult,
    ExitResult,
    FsIsolation,
    Health,
    Mount,
    TaskConfig,
    TaskLimits,
)
from fedsched.drivers.exec import ExecDriver, make_driver
from fedsched.drivers.isolation import probe
from fedsched.drivers.registry import DriverHost, open_drivers
from fedsched.telemetry.log import Hub
from tests.drivers.conformance import DriverConformance
from tests.drivers.jails import REPOSITORY, mounts_below, obstacle, processes_with
from tests.drivers.supervised import retire

REASON = obstacle()
pytestmark = pytest.mark.skipif(bool(REASON), reason=f"this host cannot isolate tasks: {REASON}")
NOBODY = 65534
MB = 1 << 20


@asynccontextmanager
async def open_exec(
    place: Path,
    *,
    denied_users: tuple[str, ...] = ("root",),
    chroot_env: Mapping[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[ExecDriver]:
    host = DriverHost(
        state_dir=place / "exec",
        settings=settings,
        cgroup_parent=f"fedsched-test-{os.getpid()}",
        denied_users=denied_users,
        chroot_env=chroot_env or {},
    )
    driver = ExecDriver(host)
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        yield driver
        nursery.cancel_scope.cancel()


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    retire(tmp_path / "exec")
    assert mounts_below(tmp_path) == []
    assert groups_left() == []


def groups_left() -> list[str]:
    """Control groups of tasks of this process; the empty parents go with it."""
    left: list[str] = []
    for parent in Path("/sys/fs/cgroup").glob(f"*/fedsched-test-{os.getpid()}"):
        for folder, _, _ in os.walk(parent, topdown=False):
            try:
                os.rmdir(folder)
                if folder != str(parent) and Path(folder).name not in ("share", "reserve"):
                    left.append(folder)
            except OSError as error:
                left.append(f"{folder}: {error.strerror}")
    return left


class TestExec(DriverConformance):
    name = "exec"

    def open_driver(self, place: Path) -> AbstractAsyncContextManager[Driver]:
        return open_exec(place)


SUITE = TestExec()


async def ended(place: Path, driver: Driver, script: str, **fields: Any) -> tuple[ExitResult, str]:
    """Run a script to its end; how it ended, and all that it said."""
    config = a_task(place, script, **fields)
    async with SUITE.started(driver, config):
        result = await driver.wait_task(config.id)
        logs = config.dirs.logs
        return result, "".join((logs / f"web.{name}.0").read_text() for name in ("stdout", "stderr"))


def a_task(place: Path, script: str, *, told: Mapping[str, Any] | None = None, **fields: Any) -> TaskConfig:
    return SUITE.task(place, {**SUITE.shell(script), **(told or {})}, **fields)


def run(
    place: Path, script: str, *, settings: Mapping[str, Any] | None = None, **fields: Any
) -> tuple[ExitResult, str]:
    async def scenario() -> tuple[ExitResult, str]:
        async with open_exec(place, **(settings or {})) as driver:
            return await ended(place, driver, script, **fields)

    return SUITE.run(scenario)


# Isolation, as a job sees it


def test_a_task_is_nobody_in_a_root_of_its_own(tmp_path: Path) -> None:
    result, said = run(tmp_path, "id -u; pwd; ls -A /; echo $$; ls /proc | grep -c '^[0-9]'")
    words = said.split()

    assert result.is_success
    assert words[:2] == [str(NOBODY), "/"]
    assert not {"root", "home", "var", "work"} & set(words)
    assert words[-2] == "2"
    assert int(words[-1]) <= 4


def test_its_capabilities_are_as_computed(tmp_path: Path) -> None:
    told = {"cap_add": ["net_bind_service"], "cap_drop": ["mknod", "chown"]}
    _, said = run(tmp_path, "grep ^Cap /proc/self/status", told=told)
    sets = [int(line.split()[1], 16) for line in said.splitlines()]

    assert sets == [1 << 10, 1 << 10, 1 << 10, 0xA80405FB & ~(1 << 27) & ~1, 1 << 10]


def test_a_task_works_where_it_says(tmp_path: Path) -> None:
    _, said = run(tmp_path, "pwd; touch here", told={"work_dir": "/local"})

    assert said == "/local\n"


def test_modes_can_be_shared_with_the_host(tmp_path: Path) -> None:
    told = {"pid_mode": "host", "ipc_mode": "host"}
    result, said = run(tmp_path, "readlink /proc/self/ns/pid /proc/self/ns/ipc", told=told)
    _, private = run(tmp_path, "readlink /proc/self/ns/pid /proc/self/ns/ipc")

    assert result.is_success
    assert said.split() == [os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "ipc")]
    assert not set(private.split()) & set(said.split())


def test_operators_choose_chroot_and_what_tasks_see_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/tool").write_text("made by us")
    seen = {path: path for path in ("/bin", "/lib", "/lib64", "/usr")} | {str(tmp_path / "tools"): "/opt/tools"}
    settings = {"no_pivot_root": True, "chroot_env": seen}
    _, said = run(tmp_path, "ls /etc; cat /opt/tools/tool; touch /opt/tools/x", settings=settings)

    assert "cannot access '/etc'" in said
    assert "made by us" in said
    assert "Read-only" in said


def test_volumes_are_where_they_are_asked_for(tmp_path: Path) -> None:
    for name in ("data", "frozen"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    mounts = (Mount(tmp_path / "data", "/srv/data"), Mount(tmp_path / "frozen", "/srv/frozen", is_read_only=True))
    _, said = run(tmp_path, "touch /srv/data/x; touch /srv/frozen/x", mounts=mounts)

    assert (tmp_path / "data/x").exists()
    assert "/srv/frozen/x" in said
    assert not (tmp_path / "frozen/x").exists()


def test_commands_inside_share_the_isolation(tmp_path: Path) -> None:
    script = (
        "id -u; ls /root 2>&1; grep -E '^(CapEff|Seccomp|NoNewPrivs):' /proc/self/status; "
        "cat /proc/self/cgroup | head -1"
    )

    async def scenario() -> ExecResult:
        async with open_exec(tmp_path) as driver:
            config = a_task(tmp_path, "exec sleep 3600")
            async with SUITE.started(driver, config):
                return await driver.exec_task(config.id, ExecCommand(("/bin/sh", "-c", script)), 10.0)

    words = SUITE.run(scenario).output.decode().split()

    assert words[0] == str(NOBODY)
    assert "'/root':" in words
    assert words[-7:-1] == ["CapEff:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"]
    assert words[-1].endswith(":/"), "it sees its own control group as the root of all"


def test_a_task_that_ends_takes_its_commands_and_strays_along(tmp_path: Path) -> None:
    mark = f"8{os.getpid()}.5"

    async def scenario() -> None:
        async with open_exec(tmp_path) as driver:
            config = a_task(tmp_path, f"setsid sh -c 'trap \"\" TERM INT; setsid sleep {mark}' & exec sleep {mark}")
            async with SUITE.started(driver, config):
                async with driver.exec_session(config.id, ExecCommand(("/bin/sleep", mark))):
                    while len(processes_with(f"sleep\0{mark}")) < 3:
                        await trio.sleep(0.01)
                    await driver.stop_task(config.id, 5.0, "SIGTERM")
                assert (await driver.wait_task(config.id)).signal == signal.SIGTERM
                assert processes_with(mark) == []

    SUITE.run(scenario)


def test_a_killed_supervisor_takes_its_task_along_and_the_task_is_reported_lost(tmp_path: Path) -> None:
    mark = f"9{os.getpid()}.5"

    async def scenario() -> ExitResult:
        async with open_exec(tmp_path) as driver:
            config = a_task(tmp_path, f"setsid sleep {mark} & exec sleep {mark}")
            async with SUITE.started(driver, config):
                while len(processes_with(f"sleep\0{mark}")) < 2:
                    await trio.sleep(0.01)
                supervisor = int((await driver.inspect_task(config.id)).attributes["supervisor"])
                os.kill(supervisor, signal.SIGKILL)
                result = await driver.wait_task(config.id)
                while processes_with(mark):
                    await trio.sleep(0.01)
                return result

    assert "not known" in SUITE.run(scenario).error


# Limits


def test_a_task_that_takes_too_much_memory_is_killed_and_it_is_said_why(tmp_path: Path) -> None:
    script = "dd if=/dev/zero of=/dev/null bs=512M count=1"
    result, said = run(tmp_path, f"{script}; echo survived", limits=TaskLimits(memory_mb=32))
    single, _ = run(tmp_path, f"exec {script}", limits=TaskLimits(memory_mb=32))

    assert (single.signal, single.oom_killed) == (signal.SIGKILL, True)
    assert result.oom_killed or "survived" in said, said


def test_memory_within_the_limit_is_no_reason_to_die(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "dd if=/dev/zero of=/dev/null bs=8M count=1", limits=TaskLimits(memory_mb=64))

    assert (result.is_success, result.oom_killed) == (True, False)


def test_files_in_shared_memory_count_to_the_task(tmp_path: Path) -> None:
    result, _ = run(tmp_path, "exec dd if=/dev/zero of=/dev/shm/x bs=1M count=60", limits=TaskLimits(memory_mb=32))

    assert result.oom_killed


def test_a_fork_bomb_meets_its_limit(tmp_path: Path) -> None:
    script = "for i in $(seq 60); do sleep 30 & done; echo all"
    _, said = run(tmp_path, script, limits=TaskLimits(pids_max=20))

    assert "fork" in said.lower()
    assert "all" not in said.split()


# What is refused


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"user": "root"}, "may not run as user root"),
        ({"user": "0"}, "may not run as user root"),
        ({"user": "no-such-user"}, "no user"),
        ({"told": {"cap_add": ["sys_admin"]}}, "does not allow"),
        ({"told": {"command": "no-such-command"}}, "no command 'no-such-command' inside the task"),
        ({"told": {"command": "/no/such/command"}}, "No such file"),
        ({"told": {"command": "/etc/passwd"}}, "Permission denied"),
        ({"told": {"work_dir": "/no/such/dir"}}, "cannot change to /no/such/dir"),
        ({"told": {"work_dir": "up/../here"}}, "is not absolute"),
        ({"told": {"work_dir": "/proc/self/fd/5"}}, "cannot change to /proc/self/fd/5"),
        ({"told": {"pid_mode": "shared"}}, "is not a mode"),
        ({"told": {"args": ["a\0b"]}}, "zero byte"),
        ({"mounts": (Mount(Path("/etc"), "/proc/x"),)}, "cannot mount at"),
        ({"mounts": (Mount(Path("/etc"), "/a/../../x"),)}, "leaves the task's root"),
        ({"mounts": (Mount(Path("/no/such/volume"), "/v"),)}, "cannot take /no/such/volume"),
        ({"network_namespace": Path("/run/netns/none")}, "cannot open network namespace"),
    ],
)
def test_a_task_that_cannot_be_is_refused_with_the_reason_and_nothing_is_left(
    tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    async def scenario() -> None:
        async with open_exec(tmp_path) as driver:
            with pytest.raises(DriverError, match=why):
                await driver.start_task(a_task(tmp_path, "true", **fields))

    SUITE.run(scenario)


@pytest.mark.parametrize("settings", [{"denied_host_uids": "65000-65600"}, {"denied_host_gids": "65534"}])
def test_ranges_of_users_and_groups_are_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with open_exec(tmp_path, **settings) as driver:
            with pytest.raises(DriverError, match="65534 is refused here"):
                await driver.start_task(a_task(tmp_path, "true"))

    SUITE.run(scenario)


def test_root_runs_where_the_operator_lets_it_and_is_weak(tmp_path: Path) -> None:
    program = "id -u; grep CapEff /proc/self/status; mount -t tmpfs none /tmp; cat /proc/1/environ; echo x > /etc/x"
    _, said = run(tmp_path, program, user="root", settings={"denied_users": ()})

    assert said.split()[:3] == ["0", "CapEff:", "00000000a80405fb"]
    assert "permission denied" in said.lower()
    assert "/etc/x" in said
    assert not Path("/etc/x").exists()


def test_links_of_a_former_run_are_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_exec(tmp_path) as driver:
            config = a_task(tmp_path, "true")
            (config.dirs.task / "etc").symlink_to(tmp_path)
            with pytest.raises(DriverError, match="etc is a symbolic link"):
                await driver.start_task(config)

    SUITE.run(scenario)


# Settings and fingerprint


def test_a_capability_that_is_allowed_is_given(tmp_path: Path) -> None:
    told = {"cap_add": ["net_raw"]}
    _, said = run(tmp_path, "grep CapEff /proc/self/status", told=told, settings={"allow_caps": ["net_raw"]})

    assert int(said.split()[1], 16) == 1 << 13


def test_the_fingerprint_says_what_protects_tasks(tmp_path: Path) -> None:
    async def scenario() -> dict[str, str]:
        async with open_exec(tmp_path, landlock=True) as driver:
            found = await driver.detect()
            assert found.health is Health.HEALTHY
            assert await driver.detect() == found
            return dict(found.attributes)

    found = SUITE.run(scenario)

    assert found["driver.exec"] == "1"
    assert found["driver.exec.seccomp"] == "true"
    assert found["driver.exec.rootless"] == str(os.geteuid() != 0).lower()
    assert int(found["driver.exec.landlock"]) > 0
    assert ExecDriver.capabilities.fs_isolation is FsIsolation.CHROOT


def test_a_host_that_cannot_is_undetected_with_the_reason_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with open_exec(tmp_path) as driver:
            monkeypatch.setattr(probe, "TRIAL", ("sh", "-c", "cat > /dev/null; printf 'cannot open new namespaces'"))
            found = await driver.detect()
            assert (found.health, found.description) == (Health.UNDETECTED, "cannot open new namespaces")
            with pytest.raises(DriverError, match="cannot isolate tasks here: cannot open new namespaces"):
                await driver.start_task(a_task(tmp_path, "true"))
            monkeypatch.undo()
            assert (await driver.detect()).health is Health.HEALTHY, "it is tried again"

    SUITE.run(scenario)


def test_without_cgroups_or_root_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        host = DriverHost(state_dir=tmp_path / "exec")
        bare = ExecDriver(host, host_cgroups=Cgroups(CgroupMode.NONE, reason="nothing is mounted"))
        assert (await bare.detect()).description == "no cgroups to limit tasks with: nothing is mounted"

        bare.isolation = replace(bare.isolation, is_rootless=True)
        monkeypatch.setattr(probe, "TRIAL", ("sh", "-c", "cat > /dev/null; printf 'no user namespaces'"))
        assert (await bare.detect()).description == "the agent is not root, and without root: no user namespaces"
        monkeypatch.setattr(probe, "TRIAL", ("sh", "-c", "cat > /dev/null"))
        found = await bare.detect()
        assert found.health is Health.HEALTHY
        assert "tasks have no limits: nothing is mounted" in found.description

    SUITE.run(scenario)


def test_settings_that_are_wrong_are_for_the_operator_to_mend(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="not a mode"):
        make_driver(DriverHost(state_dir=tmp_path, settings={"default_pid_mode": "none"}))
    for settings, why in (({"no_pivot": True}, "no_pivot_root"), ({"allow_caps": "all"}, "a list of texts")):
        with pytest.raises(DriverError, match=why):
            open_drivers(
                lambda _, settings=settings: DriverHost(state_dir=tmp_path, settings=settings),  # type: ignore[misc]
                log=Hub().logger("drivers"),
                built_in={"exec": "fedsched.drivers.exec:make_driver"},
            )


def test_setuid_programs_of_the_host_give_nothing(tmp_path: Path) -> None:
    async def scenario() -> str:
        async with open_exec(tmp_path) as driver:
            config = a_task(tmp_path, "/local/id -u; su -c 'id -u' </dev/null")
            shutil.copy("/usr/bin/id", config.dirs.local / "id")
            os.chown(config.dirs.local / "id", 0, 0)
            (config.dirs.local / "id").chmod(0o4755)
            async with SUITE.started(driver, config):
                await driver.wait_task(config.id)
                return (config.dirs.logs / "web.stdout.0").read_text()

    assert SUITE.run(scenario) == f"{NOBODY}\n"


def test_a_network_namespace_that_is_given_is_joined(tmp_path: Path) -> None:
    with subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep 60"], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            _, said = run(tmp_path, "ls /sys/class/net", network_namespace=Path(f"/proc/{holder.pid}/ns/net"))
        finally:
            holder.kill()

    assert said == "lo\n"


# Together with the client's directories, and without root


def test_the_clients_own_directories_are_seen_as_they_should_be(tmp_path: Path) -> None:
    async def scenario() -> tuple[ExitResult, str]:
        dirs = AllocDirs(tmp_path / "allocs" / "1")
        await dirs.build()
        await dirs.build_task("web", owner=Owner(NOBODY, NOBODY))
        mine = dirs.task("web")
        (mine.secrets / "key").write_text("mine")
        (mine.private / "token").write_text("the agent's")
        script = (
            "cat /secrets/key; ls -A /private | wc -l; touch /local/a /tmp/b /alloc/data/c /secrets/d;"
            "cp /bin/true /secrets; /secrets/true; touch /alloc/logs/x; ls /alloc"
        )
        try:
            async with open_exec(tmp_path) as driver:
                config = replace(a_task(tmp_path, script), dirs=mine)
                async with SUITE.started(driver, config):
                    result = await driver.wait_task(config.id)
                    logs = [mine.logs / f"web.{name}.0" for name in ("stdout", "stderr")]
                    return result, "".join(path.read_text() for path in logs)
        finally:
            await dirs.destroy()

    result, said = SUITE.run(scenario)

    assert said.startswith("mine0\n")
    assert "/secrets/true: Permission denied" in said
    assert "cannot touch '/alloc/logs/x': Permission denied" in said
    assert said.count("denied") == 2
    assert result.is_success


def test_an_agent_without_root_isolates_its_tasks_too() -> None:
    """With the system's interpreter, which an ordinary user may run, unless that is another version than ours."""
    user, packages = 61234, [str(REPOSITORY), *(path for path in sys.path if path.endswith("site-packages"))]
    ordinary: dict[str, Any] = {"user": user, "group": user, "extra_groups": [], "capture_output": True, "text": True}
    python = shutil.which("python3", path="/usr/bin:/bin") or "python3"
    try:
        version = sys.version_info[:2]
        test = f"import sys; sys.path[:0] = sys.argv[1:]; assert sys.version_info[:2] == {version}; import trio"
        tried = subprocess.run([python, "-c", test, *packages], check=False, **ordinary)
    except OSError as error:
        pytest.skip(f"no interpreter for an ordinary user: {error}")
    if tried.returncode:
        pytest.skip(f"no interpreter for an ordinary user: {tried.stderr.splitlines()[-1]}")

    with tempfile.TemporaryDirectory(prefix="fedsched-rootless-") as folder:
        os.chown(folder, user, user)
        agent = [python, "-B", str(REPOSITORY / "tests/drivers/rootless_agent.py"), folder, *packages]
        done = subprocess.run(agent, check=False, timeout=60, cwd="/", **ordinary)
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        if told["health"] == "undetected":
            pytest.skip(told["why"])

        assert told["driver.exec.rootless"] == "true"
        assert told["ran"][0] == 3
        assert f"{user}\n" in told["ran"][1]
        assert told["ran"][1].count("No such file") == 2, "neither /root nor the keeper"
        assert "'/etc/mine': Read-only file system" in told["ran"][1]
        assert (Path(folder) / "alloc/web/local/mine").stat().st_uid == user
        assert told["ended"] == [128 + signal.SIGTERM, signal.SIGTERM]
        assert told["log"] == f"{user}\n"
