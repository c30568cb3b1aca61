"""A supervised task's life: launched, logged, stopped, its end told; nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import fedsched
from fedsched.drivers.driver import ExecCommand
from fedsched.drivers.supervisor import processes, state_file
from fedsched.drivers.supervisor.control import Refused
from fedsched.drivers.supervisor.supervisors import LaunchError
from tests.drivers.supervised import Host, gone, processes_of, retire, run


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path)
    yield found
    retire(found.directory)


def test_a_task_runs_and_its_end_and_output_are_told(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("echo out; echo err >&2; pwd; exit 7", cwd="/usr", env={"PATH": "/bin", "A": "1"})
        async with host.agent() as agent:
            task = await agent.launch(spec)
            result = await task.wait()
            assert (result.exit_code, result.signal, result.error) == (7, 0, "")
            assert result.finished_at_ns >= task.started_at_ns > 0
            await task.acknowledge()
        assert host.log(spec) == "out\n/usr\n"
        assert host.log(spec, "stderr") == "err\n"

    run(scenario)


def test_the_state_file_tells_the_end_before_anybody_is_told(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            spec = host.spec("exit 3")
            task = await agent.launch(spec)
            await task.wait()
            stored = state_file.read(spec.directory, spec.key)
            assert stored is not None
            assert stored["phase"] == "ended"
            assert stored["result"]["exit_code"] == 3
            assert stored["boot_id"] == processes.boot_id()
            await task.acknowledge()
            assert state_file.read(spec.directory, spec.key) is None

    run(scenario)


def test_the_child_has_a_session_of_its_own_and_only_its_three_streams(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            spec = host.spec("ls -l /proc/self/fd | wc -l; cat /proc/self/stat", umask=0o077)
            task = await agent.launch(spec)
            await task.wait()
            count, stat = host.log(spec).splitlines()
            assert int(count) == 5  # a heading, three streams, and the directory that ls reads
            fields = stat.rpartition(")")[2].split()
            assert fields[2] == fields[3] == str(task.pid)  # process group and session
            await task.acknowledge()

    run(scenario)


def test_rlimits_umask_user_and_oom_score_are_set_before_exec(host: Host) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may run tasks as somebody else")

    async def scenario() -> None:
        script = "id -u; id -g; id -G; umask; ulimit -n; cat /proc/self/oom_score_adj"
        spec = host.spec(
            script, uid=65534, gid=65533, groups=[65533, 1], umask=0o027, limits={"NOFILE": [99, 99]}, oom_score_adj=300
        )
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await task.wait()
            await task.acknowledge()
        assert host.log(spec).split("\n")[:6] == ["65534", "65533", "65533 1", "0027", "99", "300"]

    run(scenario)


def test_a_task_does_not_inherit_the_supervisors_protection(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("cat /proc/$PPID/oom_score_adj; sleep 0.2; cat /proc/self/oom_score_adj")
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await task.wait()
            await task.acknowledge()
        supervisor, own = host.log(spec).split()
        assert supervisor in ("-500", "0")  # without CAP_SYS_RESOURCE nobody may be protected
        assert own == "0"

    run(scenario)


@pytest.mark.parametrize(
    ("argv", "cwd", "reason"),
    [
        (["/no/such/program"], "/", "/no/such/program: No such file"),
        (["no-such-program"], "/", "no-such-program: not found in PATH"),
        (["/etc"], "/", "Permission denied"),
        (["/bin/true"], "/no/such/place", "/no/such/place: No such file"),
    ],
)
@pytest.mark.parametrize("limits", [{}, {"CORE": [0, 0]}])
def test_a_launch_that_fails_says_why_and_leaves_nothing(
    host: Host, argv: list[str], cwd: str, reason: str, limits: dict[str, list[int]]
) -> None:
    async def scenario() -> None:
        spec = host.spec(argv, cwd=cwd, limits=limits)
        async with host.agent() as agent:
            with pytest.raises(LaunchError, match=reason):
                await agent.launch(spec)
            assert agent.keys() == []

    run(scenario)


def test_an_environment_may_be_large_and_need_not_be_text(host: Host) -> None:
    async def scenario() -> None:
        env = {f"NAME{number}": "x" * 1000 for number in range(1000)}
        env |= {"PATH": "/usr/bin:/bin", "RAW": os.fsdecode(b"\xff\xfe"), "UMLAUT": "ä"}
        spec = host.spec("env | wc -c; printf %s $RAW | od -An -tx1; echo $UMLAUT", env=env)
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await task.wait()
            await task.acknowledge()
        size, raw, umlaut = host.log(spec).splitlines()
        assert int(size) > 1_000_000
        assert raw.split() == ["ff", "fe"]
        assert umlaut == "ä"

    run(scenario)


@pytest.mark.parametrize(
    "script",
    [
        "sleep 3600 & sleep 3600 & echo $! ; exit 0",
        "(setsid sleep 3600 & echo $!) ; exit 0",
        "(setsid sh -c 'setsid sleep 3600 & echo $!; exit' &) ; sleep 0.3; exit 0",
    ],
    ids=["background", "own session", "double fork"],
)
def test_what_a_task_leaves_behind_dies_with_it(host: Host, script: str) -> None:
    async def scenario() -> None:
        spec = host.spec(script)
        async with host.agent() as agent:
            task = await agent.launch(spec)
            assert (await task.wait()).exit_code == 0
            left = int(host.log(spec))
            assert not processes.start_time(left)
            await task.acknowledge()

    run(scenario)


def test_stop_reaches_escapees_of_a_deaf_task(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1; done' & wait; wait")
        async with host.agent() as agent:
            task = await agent.launch(spec)
            escapee = int(await host.logged(spec, "\n"))
            await task.stop(signal.SIGTERM, 0.1)
            assert task.result is not None
            assert task.result.signal == signal.SIGKILL
            assert not processes.start_time(escapee)
            await task.acknowledge()

    run(scenario)


def test_zombies_of_a_task_are_reaped(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("(sleep 0.05 & echo $!); exec sleep 3600")
        async with host.agent() as agent:
            task = await agent.launch(spec)
            orphan = int(await host.logged(spec, "\n"))
            while processes.stat_fields(orphan) is not None:
                await trio.sleep(0.01)
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)


def test_a_second_stop_ends_no_earlier(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("trap '' INT; echo ready; while :; do sleep 0.1; done")
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await host.logged(spec, "ready")
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.stop, signal.SIGINT, 0.5)
                await trio.sleep(0.05)
                nursery.start_soon(task.stop, signal.SIGINT, 0.0)
            assert trio.current_time() - began >= 0.5
            await task.acknowledge()

    run(scenario)


def test_output_after_the_end_is_drained_even_if_somebody_holds_the_pipe(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("head -c 50000 /dev/zero | tr '\\0' 'x'; echo; echo end")
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await task.wait()
            await task.acknowledge()
        assert host.log(spec) == "x" * 50000 + "\nend\n"

    run(scenario)


def test_fast_output_rotates_without_a_lost_or_split_line(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec(["seq", "1", "300000"], max_files=1000, max_file_bytes=64 << 10)
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await task.wait()
            await task.acknowledge()
        files = list(host.logs.glob(f"{spec.log_name}.stdout.*"))
        assert len(files) > 30
        assert all(path.stat().st_size <= 64 << 10 and path.read_bytes().endswith(b"\n") for path in files)
        assert host.log(spec) == "".join(f"{number}\n" for number in range(1, 300001))

    run(scenario)


def test_an_unfinished_line_is_in_the_log_soon(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("printf 'name? '; exec sleep 3600", max_file_bytes=1000)
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await host.logged(spec, "name? ")
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)


def test_log_limits_can_be_changed(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("while read line; do :; done; trap : USR1; sleep 3600 & wait; seq 1 20000")
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await task.set_log_limits(2, 4096)
            await trio.sleep(0.05)
            await task.signal(signal.SIGUSR1)
            await task.wait()
            await task.acknowledge()
        files = list(host.logs.glob(f"{spec.log_name}.stdout.*"))
        assert len(files) == 2
        assert host.log(spec).endswith("20000\n")

    run(scenario)


def test_a_full_disk_drops_output_and_never_blocks_the_task(host: Host, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", small], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")

    async def scenario() -> None:
        spec = host.spec(["seq", "1", "200000"], log_directory=str(small))
        async with host.agent() as agent:
            task = await agent.launch(spec)
            assert (await task.wait()).exit_code == 0
            stored = state_file.read(spec.directory, spec.key) or {}
            assert stored["output"]["stdout"][2] > 1_000_000
            await task.acknowledge()
        assert len(host.said) == 1
        assert "dropped" in host.said[0][1]

    try:
        run(scenario)
    finally:
        subprocess.run(["umount", "-l", small], check=True)


def test_commands_inside_share_the_task_and_end_with_it(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await agent.launch(host.spec("exec sleep 3600", env={"PATH": "/bin:/usr/bin", "A": "task"}))
            command = ExecCommand(("/bin/sh", "-c", "echo $A $B; exec sleep 3600"), env={"B": "mine"})
            async with task.open_session(command) as session:
                assert (await session.receive()).data == b"task mine\n"
                await task.stop(signal.SIGKILL, 0)
                assert (await session.wait()).signal == signal.SIGKILL
            await task.acknowledge()

    run(scenario)


def test_leaving_a_session_kills_the_command(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await agent.launch(host.spec("exec sleep 3600"))
            async with task.open_session(ExecCommand(("/bin/sh", "-c", "echo $$; sleep 3600 & wait"))) as session:
                pid = int((await session.receive()).data)
            await gone(pid)
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)


def test_a_terminal_has_a_size_that_can_be_changed(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await agent.launch(host.spec("exec sleep 3600"))
            script = "stty size; read line; stty size; tty; exit 9"
            async with task.open_session(ExecCommand(("/bin/sh", "-c", script), is_tty=True), 30, 100) as session:
                seen = (await session.receive()).data
                await session.resize(50, 200)
                await session.send_input(b"\n")
                try:
                    while True:
                        seen += (await session.receive()).data
                except trio.EndOfChannel:
                    pass
                assert seen.split() == [b"30", b"100", b"50", b"200", *seen.split()[4:]]
                assert b"/dev/pts/" in seen
                assert (await session.wait()).exit_code == 9
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)


def test_a_command_that_cannot_start_says_why(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await agent.launch(host.spec("exec sleep 3600"))
            with pytest.raises(Refused, match="/no/such"):
                async with task.open_session(ExecCommand(("/no/such",))):
                    raise AssertionError("it started")
            assert task.result is None
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)


def test_a_running_task_is_not_acknowledged(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await agent.launch(host.spec("exec sleep 3600"))
            with pytest.raises(Refused, match="not ended"):
                await task.acknowledge()
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)


def test_the_warm_process_imports_next_to_nothing() -> None:
    root = str(Path(fedsched.__file__).parents[1])
    script = (
        f"import sys; sys.path.insert(0, {root!r}); import fedsched.drivers.supervisor.warm;print(*sorted(sys.modules))"
    )
    command = [sys.executable, "-I", "-S", "-E", "-c", script]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    heavy = {"trio", "msgspec", "site", "typing", "re", "enum", "socket", "json", "ctypes", "logging", "subprocess"}
    assert not heavy & set(modules)
    assert len(modules) < 60


def test_a_supervisor_costs_less_than_two_mebibytes(host: Host) -> None:
    async def scenario() -> float:
        async with host.agent() as agent:
            tasks = [await agent.launch(host.spec(["/bin/sleep", "3600"])) for _ in range(20)]
            total = sum(_pss_kib(task.supervisor_pid) for task in tasks)
            for task in tasks:
                await task.stop(signal.SIGKILL, 0)
                await task.acknowledge()
            return total / len(tasks)

    assert run(scenario) < 2048


def test_all_processes_are_gone_after_the_acknowledgement(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await agent.launch(host.spec("exit 0"))
            supervisor = task.supervisor_pid
            assert supervisor in processes_of(host.directory)
            await task.wait()
            await task.acknowledge()
            await gone(supervisor)

    run(scenario)


def _pss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise AssertionError("no Pss")
