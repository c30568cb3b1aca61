"""The smaller parts of the docker driver: commands inside, measurements, and who ran out of memory."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import trio
import trio.testing

from fedsched.drivers.docker.driver import DockerDriver
from fedsched.drivers.docker.exec_session import kill_session
from fedsched.drivers.docker.oom import OomWatch
from fedsched.drivers.docker.records import CpuStats, CpuUsage, MemoryStats, StatsSample, Throttling
from fedsched.drivers.docker.usage import resource_use
from fedsched.drivers.driver import (
    DriverError,
    ExecCommand,
)
from tests.drivers.conformance import drain
from tests.drivers.docker_driving import a_task, drive
from tests.drivers.fake_engine import FakeEngine, Request

# commands inside


def test_a_command_that_the_engine_upgrades_no_connection_for_works_too(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        async def plain(request: Request) -> None:
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/vnd.docker.raw-stream\r\n\r\n"
            await request.stream.send_all(head + b"\1\0\0\0\0\0\0\3out\2\0\0\0\0\0\0\3err")

        fake.script_reply("POST /containers/.*/exec", 201, {"Id": "e1"})
        fake.script("POST /exec/e1/start", plain)
        fake.script_reply("GET /exec/e1/json", 200, {"Running": True, "Pid": 0}, times=2)
        fake.script_reply("GET /exec/e1/json", 200, {"Running": False, "ExitCode": 4})
        await driver.start_task(config)
        result = await driver.exec_task(config.id, ExecCommand(("x",)), 10)
        assert (result.exit_code, result.output) == (4, b"outerr")

    drive(script)


def test_sessions_with_bad_input_or_bad_output_end_with_words(tmp_path: Path) -> None:
    config = a_task(tmp_path)

    async def script(driver: DockerDriver, fake: FakeEngine) -> None:
        async def garbage(request: Request) -> None:
            await request.stream.send_all(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
            await request.stream.send_all(b"this is no frame")

        fake.script_reply("POST /containers/.*/exec", 201, {"Id": "e1"})
        fake.script("POST /exec/e1/start", garbage)
        fake.script_reply("GET /exec/e1/json", 500, {"message": "?"})
        await driver.start_task(config)
        async with driver.exec_session(config.id, ExecCommand(("x",))) as session:
            with pytest.raises(DriverError, match="cannot have 0 lines"):
                await session.resize(0, 80)
            with pytest.raises(DriverError, match="frame"):
                await drain(session)
            with pytest.raises(DriverError, match="closed"):
                await session.send_input(b"x")
        with pytest.raises(DriverError, match="no command"):
            await driver.exec_task(config.id, ExecCommand(()), 1)

    drive(script)


def test_only_processes_of_the_container_are_killed(tmp_path: Path) -> None:
    """A real process in a session of its own, in a /proc that says to which container it belongs."""
    victim = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        entry = tmp_path / str(victim.pid)
        entry.mkdir()
        (entry / "stat").write_text(f"{victim.pid} (a) b) S 1 {victim.pid} {victim.pid} 0 0")
        (entry / "cgroup").write_text("0::/docker/other\n")
        assert kill_session(victim.pid, "c" * 64, tmp_path) == []
        assert victim.poll() is None

        (entry / "cgroup").write_text(f"0::/docker/{'c' * 64}\n")
        assert kill_session(victim.pid, "c" * 64, tmp_path) == [victim.pid]
        assert victim.wait(timeout=10) == -signal.SIGKILL
        assert kill_session(victim.pid, "c" * 64, tmp_path / "empty") == []
    finally:
        victim.kill()
        victim.wait()


# measurements


def test_what_was_measured_is_told_for_both_kinds_of_cgroups() -> None:
    cpu = CpuStats(CpuUsage(30, 10, 20), Throttling(1, 2))
    old = resource_use(StatsSample("", MemoryStats(100, 200, {"rss": 50, "cache": 9, "swap": 1}), cpu), 5)
    new = resource_use(StatsSample("", MemoryStats(100, 0, {"anon": 60, "file": 8}), CpuStats()), 5)
    none = resource_use(StatsSample(), 5)

    assert (old.memory_rss, old.memory_cache, old.memory_swap, old.memory_max_usage) == (50, 9, 1, 200)
    assert (old.cpu_system_ns, old.cpu_user_ns, old.throttled_periods, old.throttled_ns) == (10, 20, 1, 2)
    assert (new.memory_rss, new.memory_cache, new.memory_usage) == (60, 8, 100)
    assert "memory_max_usage" not in new.measured
    assert none.measured == ("cpu_system_ns", "cpu_user_ns")


def a_proc(place: Path, line: str) -> Path:
    (place / "proc" / "7").mkdir(parents=True)
    (place / "proc" / "7" / "cgroup").write_text(f"3:cpuset:/x\n{line}\n")
    return place / "proc"


def test_newer_cgroups_tell_of_a_lack_of_memory_by_their_events(tmp_path: Path) -> None:
    group = tmp_path / "cg" / "docker-abc.scope"
    group.mkdir(parents=True)
    events = group / "memory.events"
    events.write_text("low 0\noom 0\noom_kill 0\n")
    proc = a_proc(tmp_path, "0::/docker-abc.scope")

    async def main() -> None:
        watch = OomWatch(7, "abc", proc=proc, cgroups=tmp_path / "cg")
        assert watch.is_watching
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await trio.testing.wait_all_tasks_blocked()
            events.write_text("low 1\noom 0\noom_kill 0\n")
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert not watch.found
            events.write_text("low 1\noom 1\noom_kill 1\n")
        assert watch.found
        watch.close()

    trio.run(main)


def test_events_of_a_cgroup_that_is_gone_prove_nothing_with_inotify(tmp_path: Path) -> None:
    group = tmp_path / "cg" / "abc"
    group.mkdir(parents=True)
    (group / "memory.events").write_text("oom_kill 0\n")
    watch = OomWatch(7, "abc", proc=a_proc(tmp_path, "0::/abc"), cgroups=tmp_path / "cg")

    (group / "memory.events").write_text("oom_kill 1\n")
    (group / "memory.events").unlink()
    watch.look()

    assert not watch.found
    assert not watch.is_watching


@pytest.mark.parametrize(("events", "is_oom"), [(1, False), (2, True)])
def test_older_cgroups_tell_by_a_counter_that_outlives_them(tmp_path: Path, events: int, is_oom: bool) -> None:
    group = tmp_path / "cg" / "memory" / "abc"
    group.mkdir(parents=True)
    (group / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    watch = OomWatch(7, "abc", proc=a_proc(tmp_path, "4:memory:/abc"), cgroups=tmp_path / "cg")
    fd = int((group / "cgroup.event_control").read_text().split()[0])

    watch.look()
    assert not watch.found
    (group / "memory.oom_control").unlink()
    os.eventfd_write(fd, events)
    watch.look()

    assert watch.found is is_oom


@pytest.mark.parametrize("line", ["4:memory:/somebody/else", "0::/abc", "broken"])
def test_cgroups_of_others_and_hosts_without_are_not_watched(tmp_path: Path, line: str) -> None:
    if line == "broken":
        watch = OomWatch(8, "abc", proc=a_proc(tmp_path, "0::/abc"), cgroups=tmp_path)
    else:
        watch = OomWatch(7, "abc", proc=a_proc(tmp_path, line), cgroups=tmp_path)
    assert not watch.is_watching
    watch.look()
    watch.close()
