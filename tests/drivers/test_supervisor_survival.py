"""Whoever is killed with -9, and whenever: no task is lost, doubled or left behind, and no end is told wrongly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import trio

from fedsched.drivers.driver import TaskUnknown
from fedsched.drivers.supervisor import processes, state_file, warm
from fedsched.drivers.supervisor.control import Control, SupervisorGone, dial
from fedsched.drivers.supervisor.supervisors import LaunchError
from tests.drivers.supervised import Host, gone, processes_of, retire, run

ROOT = Path(__file__).parents[2]


def _claim(host: Host, key: str, table: dict[str, object]) -> None:
    file = state_file.claim(str(host.directory), key, table)
    assert file is not None
    file.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    found = Host(tmp_path)
    yield found
    retire(found.directory)


class KilledAgent:
    """An agent in another process, dead after it has said so many lines."""

    def __init__(self, host: Host, script: str, count: int, lines: int) -> None:
        command = [sys.executable, "-m", "tests.drivers.agent_script", str(host.directory), str(host.logs), str(count)]
        self.process = subprocess.Popen([*command, script], stdout=subprocess.PIPE, text=True, cwd=ROOT)
        output: IO[str] = self.process.stdout  # type: ignore[assignment]
        said = [output.readline().split() for _ in range(lines)]
        self.process.kill()
        said += [line.split() for line in output.read().splitlines(keepends=True) if line.endswith("\n")]
        output.close()
        self.process.wait()
        self.intended = {words[1] for words in said if words[0] == "intend"}
        self.started = {words[1]: int(words[2]) for words in said if words[0] == "started"}


@pytest.mark.parametrize("lines", [1, 2, 5, 8, 9, 10, 12, 16])
def test_an_agent_killed_anywhere_loses_and_doubles_no_task(host: Host, lines: int) -> None:
    killed = KilledAgent(host, "echo run $NUMBER; exec sleep 3600", 8, lines)

    async def scenario() -> None:
        found = {}
        async with host.agent() as agent:
            for key in sorted(killed.intended):
                try:
                    found[key] = await agent.find(key)
                except TaskUnknown:
                    continue
            assert set(killed.started) <= set(found)
            for key, pid in killed.started.items():
                assert found[key].pid == pid
                assert processes.is_running(*found[key].table["child"])
            for task in found.values():
                await task.stop(signal.SIGKILL, 0)
                await task.acknowledge()
            for path in host.logs.glob("*.stdout.*"):
                assert path.read_text().count("run") <= 1

    run(scenario)


def test_what_happens_while_no_agent_is_there_is_told_truly(host: Host) -> None:
    script = "while [ ! -e $0.go ]; do sleep 0.02; done; echo more; exit $((40 + NUMBER))"
    go = host.logs / "go"
    killed = KilledAgent(host, script.replace("$0.go", str(go)), 4, 8)
    go.touch()

    async def scenario() -> None:
        for pid in killed.started.values():
            await gone(pid)
        async with host.agent() as agent:
            for number in range(4):
                task = await agent.find(f"killed.{number}")
                assert (await task.wait()).exit_code == 40 + number
                assert (host.logs / f"killed.{number}.stdout.0").read_text() == "more\n"
                await task.acknowledge()

    run(scenario)


def test_a_stop_goes_on_when_its_agent_is_killed(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("trap '' TERM; echo ready; while :; do sleep 0.1; done")
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await host.logged(spec, "ready")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(task.stop, signal.SIGTERM, 0.3)
                await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
        async with host.agent() as agent:
            found = await agent.find(spec.key)
            assert (await found.wait()).signal == signal.SIGKILL
            await found.acknowledge()

    run(scenario)


def test_a_killed_supervisor_means_a_lost_task_and_nothing_left_of_it(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await agent.launch(host.spec("sleep 3600 & sleep 3600 & wait"))
            os.kill(task.supervisor_pid, signal.SIGKILL)
            result = await task.wait()
            assert "supervisor was killed" in result.error
            assert not result.is_success
            await gone(task.pid)
            await task.acknowledge()
            assert agent.keys() == []

    run(scenario)


def test_a_supervisor_killed_while_no_agent_was_there_is_noticed(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("exec sleep 3600")
        async with host.agent() as agent:
            task = await agent.launch(spec)
        os.kill(task.supervisor_pid, signal.SIGKILL)
        await gone(task.supervisor_pid)
        assert processes.start_time(task.pid)
        async with host.agent() as agent:
            with pytest.raises(TaskUnknown, match="supervisor"):
                await agent.find(spec.key)
            await gone(task.pid)
            assert agent.keys() == []

    run(scenario)


def test_an_end_that_was_stored_counts_when_the_supervisor_is_gone(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("exit 21")
        async with host.agent() as agent:
            task = await agent.launch(spec)
            await task.wait()
        await gone(task.supervisor_pid)  # free, and without an agent
        async with host.agent() as agent:
            found = await agent.find(spec.key)
            assert (await found.wait()).exit_code == 21
            await found.acknowledge()
            assert agent.keys() == []

    run(scenario)


def test_after_a_reboot_nothing_of_before_is_believed_or_killed(host: Host) -> None:
    async def scenario() -> None:
        bystander = await trio.lowlevel.open_process(["sleep", "3600"], start_new_session=True)
        me = [bystander.pid, processes.start_time(bystander.pid)]
        host.directory.mkdir(exist_ok=True)
        table = {"version": 1, "phase": "running", "boot_id": "another", "supervisor": me, "child": me}
        _claim(host, "old", table)
        async with host.agent() as agent:
            with pytest.raises(TaskUnknown, match="started anew"):
                await agent.find("old")
            assert agent.keys() == []
        assert bystander.poll() is None
        bystander.kill()
        await bystander.wait()

    run(scenario)


def test_a_pid_that_is_somebody_else_now_is_not_killed(host: Host) -> None:
    async def scenario() -> None:
        bystander = await trio.lowlevel.open_process(["sleep", "3600"], start_new_session=True)
        reused = [bystander.pid, processes.start_time(bystander.pid) - 1]
        host.directory.mkdir(exist_ok=True)
        table = {"version": 1, "phase": "running", "boot_id": processes.boot_id(), "supervisor": reused}
        _claim(host, "old", table | {"child": reused})
        async with host.agent() as agent:
            with pytest.raises(TaskUnknown):
                await agent.find("old")
        assert bystander.poll() is None
        bystander.kill()
        await bystander.wait()

    run(scenario)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"phase": 7}', b"\xff" * 100, b'{"supervisor": "x"}'])
def test_a_damaged_state_file_is_no_task_and_no_crash(
    host: Host, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedsched.drivers.supervisor.supervisors.ATTACH_S", 0.1)

    async def scenario() -> None:
        host.directory.mkdir(exist_ok=True)
        (host.directory / "bad.state").write_bytes(content)
        async with host.agent() as agent:
            with pytest.raises(TaskUnknown):
                await agent.find("bad")
            assert agent.keys() == []

    run(scenario)


def test_a_task_known_not_to_run_is_never_launched_later(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("exit 0")
        async with host.agent() as agent:
            with pytest.raises(TaskUnknown):
                await agent.find(spec.key)
            with pytest.raises(LaunchError, match="known to be gone"):
                await agent.launch(spec)

    run(scenario)


def test_a_note_against_a_launch_goes_when_it_is_old(host: Host) -> None:
    async def scenario() -> None:
        host.directory.mkdir()
        _claim(host, "old", {"phase": "never", "claimed_at": 1.0})
        async with host.agent() as agent:
            assert agent.keys() == []
            with pytest.raises(TaskUnknown):
                await agent.find("new")
        async with host.agent() as agent:
            assert agent.keys() == ["new"]

    run(scenario)


def test_the_same_key_is_launched_once(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("exec sleep 3600")
        async with host.agent() as agent:
            task = await agent.launch(spec)
            with pytest.raises(LaunchError, match="started before"):
                await agent.launch(spec)
            assert task.result is None
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)


def test_a_killed_warm_process_is_started_again_and_its_tasks_run_on(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            first = await agent.launch(host.spec("exec sleep 3600"))
            for pid in set(processes_of(host.directory)) - {first.supervisor_pid}:
                os.kill(pid, signal.SIGKILL)
                await gone(pid)
            second = await agent.launch(host.spec("exit 4"))
            assert (await second.wait()).exit_code == 4
            assert (await first.ping())["phase"] == "running"
            await first.stop(signal.SIGKILL, 0)
            for task in (first, second):
                await task.acknowledge()

    run(scenario)


def test_a_warm_process_that_nobody_can_reach_any_more_ends(host: Host, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await agent.launch(host.spec("exit 0"))
            await task.wait()
            await task.acknowledge()
            await gone(task.supervisor_pid)
            (pid,) = processes_of(host.directory)
            os.unlink(host.directory / warm.NAME)
        await gone(pid)

    run(scenario)


def test_a_warm_process_is_used_by_the_next_agent(host: Host) -> None:
    async def scenario() -> None:
        pids = []
        for _ in range(2):
            async with host.agent() as agent:
                task = await agent.launch(host.spec("exit 0"))
                pids.append(set(processes_of(host.directory)) - {task.supervisor_pid})
                await task.wait()
                await task.acknowledge()
        assert pids[0] == pids[1]
        assert len(pids[0]) == 1

    run(scenario)


def test_a_warm_process_of_another_version_is_replaced_and_its_tasks_run_on(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        spec = host.spec("exec sleep 3600")
        async with host.agent() as agent:
            first = await agent.launch(spec)
            before = set(processes_of(host.directory)) - {first.supervisor_pid}
        (old,) = before
        real = Control.next_message

        async def other_version(control: Control) -> dict[str, object]:
            message = await real(control)
            return message | {"version": "0/old"} if message.get("pid") == old else message

        monkeypatch.setattr(Control, "next_message", other_version)
        async with host.agent() as agent:
            second = await agent.launch(host.spec("exit 0"))
            await second.wait()
            await second.acknowledge()
            assert old not in processes_of(host.directory)
            found = await agent.find(spec.key)
            assert found.pid == first.pid
            await found.stop(signal.SIGKILL, 0)
            await found.acknowledge()

    run(scenario)


def test_a_cancelled_launch_leaves_nothing(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            warmed = await agent.launch(host.spec("exit 0"))
            await warmed.wait()
            await warmed.acknowledge()
            spec = host.spec("exec sleep 3600")
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(agent.launch, spec)
                    await trio.testing.wait_all_tasks_blocked()
                    scope.cancel()
            await agent.undo(spec.key)
            await agent.undo(spec.key)

    run(scenario)


def test_an_agent_that_is_cut_off_dials_again(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            task = await agent.launch(host.spec("exec sleep 3600"))
            first = task._control
            assert first is not None
            first.close()
            while task._control in (None, first):
                await trio.sleep(0.01)
            await task.stop(signal.SIGTERM, 5)
            assert task.result is not None
            assert task.result.signal == signal.SIGTERM
            await task.acknowledge()

    run(scenario)


def test_a_supervisor_of_an_unknown_version_is_not_talked_to(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        spec = host.spec("exec sleep 3600")
        async with host.agent() as agent:
            await agent.launch(spec)
        monkeypatch.setattr("fedsched.drivers.supervisor.supervised_task.SPOKEN", frozenset({99}))
        async with host.agent() as agent:
            with pytest.raises(Exception, match="does not answer"):
                await agent.find(spec.key)
        monkeypatch.undo()
        async with host.agent() as agent:
            task = await agent.find(spec.key)
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)


def test_the_sockets_are_for_their_owner_alone(host: Host) -> None:
    async def scenario() -> None:
        spec = host.spec("exec sleep 3600")
        async with host.agent() as agent:
            task = await agent.launch(spec)
        while not (host.directory / f"{spec.key}.sock").exists():
            await trio.sleep(0.01)
        assert (host.directory / f"{spec.key}.sock").stat().st_mode & 0o777 == 0o600
        assert (host.directory / warm.NAME).stat().st_mode & 0o777 == 0o600
        assert host.directory.stat().st_mode & 0o777 == 0o700
        async with host.agent() as agent:
            task = await agent.find(spec.key)
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)


def test_a_path_may_be_longer_than_a_socket_address(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.directory = tmp_path / ("long" * 30) / "tasks"

    async def scenario() -> None:
        spec = host.spec("exec sleep 3600", directory=str(host.directory))
        async with host.agent() as agent:
            await agent.launch(spec)
        async with host.agent() as agent:
            task = await agent.find(spec.key)
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)
    retire(host.directory)


def test_garbage_on_the_control_socket_cuts_its_sender_off_and_nobody_else(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            spec = host.spec("exec sleep 3600")
            task = await agent.launch(spec)
            await task._ask("door")
            for garbage in (b"\xff" * 8, b"\0\0\0\x02[]", b"\0\0\0\x05{nope", b"GET / HTTP/1.1\r\n\r\n"):
                peer = dial(host.directory, f"{spec.key}.sock")
                await peer.send_raw(garbage)
                with pytest.raises(SupervisorGone):
                    await peer.next_message()
                peer.close()
            assert (await task.ping())["phase"] == "running"
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "nonsense"},
        {"op": "signal"},
        {"op": "signal", "signal": "x"},
        {"op": "signal", "signal": 9999},
        {"op": "stop", "timeout": "soon"},
        {"op": "update", "max_files": []},
        {"op": "exec"},
        {"op": "exec", "argv": []},
        {"op": "exec", "argv": ["/bin/true"], "env": [1]},
        {"op": "exec", "argv": ["/bin/true"], "tty": True, "height": "tall"},
        {},
    ],
)
def test_a_bad_request_is_answered_and_harms_nothing(host: Host, request_: dict[str, object]) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            spec = host.spec("exec sleep 3600")
            task = await agent.launch(spec)
            await task._ask("door")
            peer = dial(host.directory, f"{spec.key}.sock")
            await peer.send({"id": 5} | request_)
            answer = await peer.next_message()
            assert answer["id"] == 5
            assert "error" in answer
            peer.close()
            assert task.result is None
            await task.stop(signal.SIGKILL, 0)
            await task.acknowledge()

    run(scenario)


def test_peers_that_never_read_or_never_finish_do_not_hold_a_task_up(host: Host) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            spec = host.spec("exec sleep 3600")
            task = await agent.launch(spec)
            await task._ask("door")
            silent = dial(host.directory, f"{spec.key}.sock")
            await silent.send_raw(b"\0\0")
            greedy = dial(host.directory, f"{spec.key}.sock")
            with pytest.raises(SupervisorGone):
                await _ask_without_end(greedy)
            crowd = [await _dial(host.directory, f"{spec.key}.sock") for _ in range(100)]
            assert (await task.ping())["phase"] == "running"
            await task.stop(signal.SIGTERM, 5)
            for peer in (silent, greedy, *crowd):
                peer.close()
            await task.acknowledge()

    run(scenario)


async def _ask_without_end(peer: Control) -> None:
    while True:
        await peer.send({"id": 1, "op": "ping"})


async def _dial(directory: Path, name: str) -> Control:
    while True:
        try:
            return dial(directory, name)
        except SupervisorGone:
            await trio.sleep(0.01)


@pytest.mark.parametrize("sent", [b"", b"\0\0\0\x02[]", b'\0\0\0\x0d{"wrong": 17}', b"\xff\xff\xff\xff"])
def test_nonsense_instead_of_a_launch_starts_nothing(host: Host, sent: bytes) -> None:
    async def scenario() -> None:
        async with host.agent() as agent:
            first = await agent.launch(host.spec("exit 0"))
            await first.wait()
            await first.acknowledge()
            ours, theirs = socket.socketpair()
            assert agent._warm is not None
            socket.send_fds(agent._warm, [warm.LAUNCH], [theirs.fileno()])
            theirs.close()
            ours.sendall(sent)
            ours.shutdown(socket.SHUT_WR)
            assert await trio.to_thread.run_sync(ours.recv, 100) == b""
            ours.close()
            second = await agent.launch(host.spec("exit 0"))
            await second.wait()
            await second.acknowledge()

    run(scenario)
