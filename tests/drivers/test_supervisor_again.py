"""A supervisor whose task has ended serves another: no task can tell, and none of them stays for good."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.drivers.driver import ExecCommand
from fedsched.drivers.supervisor import processes, state_file, supervisors, warm
from fedsched.drivers.supervisor.connections import listen
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.supervised_task import SupervisedTask
from fedsched.drivers.supervisor.supervisors import Supervisors
from tests.drivers.supervised import Host, gone, processes_of, retire, run

PROBE = (
    "env | sort; pwd; umask; ulimit -a; cd /proc/$$/fd; echo *; "
    "grep -E 'Sig|Shd|Uid|Gid|Groups|Seccomp|CapEff' /proc/$$/status | grep -v SigQ; "
    "cat /proc/$$/oom_score_adj /proc/$$/cgroup; cut -d' ' -f5-8 /proc/$$/stat | sed \"s/$$/own/g\""
)
"""Everything that a task could inherit from whoever started it, without what differs anyway."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path)
    yield found
    retire(found.directory)


async def ended(agent: Supervisors, spec: LaunchSpec) -> SupervisedTask:
    """Run a task to its end, and acknowledge it."""
    task = await agent.launch(spec)
    await task.wait()
    await task.acknowledge()
    return task


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"umask": 0o077, "cwd": "/tmp", "env": {"PATH": "/bin:/usr/bin", "SECRET": "x"}},
        {"limits": {"NOFILE": [64, 64], "CORE": [0, 0]}, "oom_score_adj": 300, "umask": 0o007},
        {"uid": 65534, "gid": 65534, "groups": [65534], "cwd": "/tmp"},
    ],
)
def test_a_task_cannot_tell_whom_its_supervisor_served_before(host: Host, fields: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            probe = host.spec(PROBE)
            first = await ended(agent, probe)
            script = "trap '' HUP TERM PIPE; (trap '' TERM; exec sleep 3600) & echo out; exit 3"
            between = await ended(agent, host.spec(script, **fields))
            again = host.spec(PROBE)
            last = await ended(agent, again)

            assert first.supervisor_pid == between.supervisor_pid == last.supervisor_pid
            assert (between.result is not None, between.result and between.result.exit_code) == (True, 3)
            assert host.log(again) == host.log(probe) != ""

    run(scenario)


def test_a_supervisor_keeps_nothing_open_stays_small_and_serves_a_bounded_number_of_tasks(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            files: dict[int, list[int]] = {}
            sizes = []
            for _ in range(warm.MAX_TASKS + 2):
                task = await agent.launch(host.spec(["/bin/cat", "/dev/null"]))
                await task.wait()
                await task.acknowledge()
                if processes.start_time(task.supervisor_pid):
                    try:
                        opened = len(os.listdir(f"/proc/{task.supervisor_pid}/fd"))
                        sizes.append(_own_kib(task.supervisor_pid))
                    except OSError:
                        opened = 0  # its last task: it is leaving
                    files.setdefault(task.supervisor_pid, []).append(opened)

            assert len(files) <= 2
            assert max(map(len, files.values())) <= warm.MAX_TASKS
            assert max(map(max, files.values())) <= 14
            assert max(sizes) < 2048
            assert max(sizes) - sizes[0] < 512

    run(scenario)


def test_a_task_that_took_others_in_leaves_no_free_supervisor(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await agent.launch(host.spec("exec sleep 3600"))
            async with task.open_session(ExecCommand(argv=("/bin/true",))) as session:
                await session.wait()
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()
            await gone(task.supervisor_pid)

    run(scenario)


def test_free_supervisors_go_with_their_agent_and_when_they_are_not_needed(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await ended(agent, host.spec("exit 0"))
            await gone(task.supervisor_pid)
        async with host.agent() as agent:
            task = await ended(agent, host.spec("exit 0"))
        await gone(task.supervisor_pid)

    run(scenario)


def test_a_free_supervisor_that_was_killed_costs_no_task(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            free = await ended(agent, host.spec("exit 0"))
            os.kill(free.supervisor_pid, signal.SIGKILL)
            await gone(free.supervisor_pid)
            task = await ended(agent, host.spec("exit 9"))
            assert task.result is not None
            assert (task.result.exit_code, task.result.error) == (9, "")

    run(scenario)


def test_a_free_supervisor_that_is_frozen_holds_a_launch_up_no_longer_than_any_other(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisors, "START_S", 0.2)

    async def scenario() -> None:
        async with host.agent() as agent:
            free = await ended(agent, host.spec("exit 0"))
            os.kill(free.supervisor_pid, signal.SIGSTOP)
            spec = host.spec("exit 9")
            with pytest.raises(trio.TooSlowError):
                await agent.launch(spec)
            os.kill(free.supervisor_pid, signal.SIGCONT)
            await agent.undo(spec.key)

    run(scenario)


def test_no_more_free_supervisors_are_kept_than_are_useful(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisors, "FREE_MAX", 2)

    async def scenario() -> None:
        async with host.agent() as agent:
            tasks = [await agent.launch(host.spec("exec sleep 3600")) for _ in range(4)]
            for task in tasks:
                await task.stop(signal.SIGKILL, 0)
                await task.acknowledge()
            for task in tasks[:2]:
                await gone(task.supervisor_pid)

    run(scenario)


def test_how_a_task_ended_is_known_after_its_supervisor_went_to_another(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("exit 31")
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await task.wait()
            other = await agent.launch(host.spec("exec sleep 3600"))
            assert other.supervisor_pid == task.supervisor_pid
            async with host.agent() as next_agent:
                found = await next_agent.find(spec.key)
                assert (await found.wait()).exit_code == 31
                await found.acknowledge()
            assert processes.is_running(*other.table["child"])
            await other.stop(signal.SIGKILL, 0)
            await other.acknowledge()

    run(scenario)


def test_a_claim_counts_for_a_free_supervisor_too(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            await ended(agent, host.spec("exit 0"))
            spec = host.spec("exec sleep 3600")
            await agent.undo(spec.key)
            with pytest.raises(supervisors.LaunchError, match="known to be gone"):
                await agent.launch(spec)

    run(scenario)


def test_a_retired_warm_process_is_gone(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await ended(agent, host.spec("exit 0"))
            (pid,) = set(processes_of(host.directory)) - {task.supervisor_pid}
            await agent.retire()
            assert pid not in processes_of(host.directory)

    run(scenario)


def test_a_warm_process_without_agents_and_supervisors_goes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "IDLE_MS", 1)
    for name in ("disable", "freeze"):
        monkeypatch.setattr(gc, name, lambda: None)
    host.directory.mkdir()
    here = os.getcwd()
    listener = listen(str(host.directory), "w.sock")
    os.chdir(here)
    child = os.posix_spawn("/bin/cat", ["cat"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, (ends := os.pipe())[0], 0)])
    looks = iter(range(3))
    real = warm._has_children

    def look() -> bool:
        found = real()
        if next(looks, None) == 1:
            os.close(ends[1])  # the last supervisor goes
        return found

    monkeypatch.setattr(warm, "_has_children", look)
    warm.Warm(listener, str(host.directory / "w.sock"), "boot").run()
    listener.close()
    os.close(ends[0])

    with pytest.raises(ChildProcessError):
        os.waitpid(child, 0)
    assert state_file.keys(str(host.directory)) == []


def _own_kib(pid: int) -> int:
    """Memory that no other process shares with it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
