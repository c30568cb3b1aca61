"""A supervisor's loop, stepped by hand in this very process: what it answers, in which order, and what it leaves."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsched.drivers.supervisor import child, rehearsal, state_file, supervise, warm
from fedsched.drivers.supervisor.child import LaunchFailed
from fedsched.drivers.supervisor.connections import MAX_CONNECTIONS, Connection
from fedsched.drivers.supervisor.frames import BadFrame, Frames, encode, from_json
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.supervise import Supervisor
from tests.drivers.supervised import Host


class Stepped:
    """A supervisor and its agent's end of their connection."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec = spec
        ours, self.agent = socket.socketpair()
        self.agent.settimeout(0.01)
        self.frames = Frames()
        self.come: list[dict[str, Any]] = []
        self.files: list[int] = []
        self.it = Supervisor(spec, "boot")
        self.it.launch()
        self.it.begin(Connection(ours))

    def until(self, happened: Callable[[], bool]) -> None:
        give_up = time.monotonic() + 20
        while not happened():
            assert time.monotonic() < give_up, (self.it.phase, self.come)
            self.it._again_at = min(self.it._again_at, time.monotonic() + 0.02)  # never sleep for good in a test
            self.it.step()
            self.hear()

    def hear(self) -> None:
        try:
            data, files, _, _ = socket.recv_fds(self.agent, 1 << 16, 3)
        except TimeoutError:
            return
        self.files += files
        self.come += self.frames.feed(data)

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        number = len(self.come) + 1000
        self.agent.send(encode({"id": number, "op": operation} | arguments))
        self.until(lambda: any(message.get("id") == number for message in self.come))
        return next(message for message in self.come if message.get("id") == number)

    def finish(self) -> None:
        if self.it.phase == "running":
            self.agent.send(encode({"id": 1, "op": "stop", "signal": int(signal.SIGKILL), "timeout": 0}))
        self.until(lambda: self.it.is_over)
        self.it.end()
        self.agent.close()
        state_file.remove(self.spec.directory, self.spec.key)
        for fd in self.files:
            os.close(fd)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    before = signal.getsignal(signal.SIGCHLD)
    found = Host(tmp_path)
    found.directory.mkdir()
    yield found
    supervise.forget_children()
    signal.signal(signal.SIGCHLD, before)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    assert state_file.keys(str(found.directory)) == []


def test_the_end_is_stored_then_told(host: Host) -> None:
    spec = host.spec("echo out; echo err >&2; exit 5")
    stepped = Stepped(spec)
    stepped.until(lambda: any(message.get("event") == "ended" for message in stepped.come))

    stored = state_file.read(spec.directory, spec.key)
    assert stored is not None
    assert (stored["phase"], stored["result"]["exit_code"]) == ("ended", 5)
    assert [message["result"] for message in stepped.come] == [stored["result"]]
    stepped.finish()
    assert (host.log(spec), host.log(spec, "stderr")) == ("out\n", "err\n")


@pytest.mark.parametrize("fields", [{}, {"limits": {"CORE": [0, 0]}, "oom_score_adj": 5}])
def test_requests_are_answered_while_the_task_runs(host: Host, fields: dict[str, Any]) -> None:
    stepped = Stepped(host.spec(["/bin/sleep", "3600"], **fields))

    assert stepped.ask("ping")["ok"]["phase"] == "running"
    assert stepped.ask("attach")["ok"]["child"][0] == stepped.it.child
    assert stepped.ask("update", max_files=3, max_file_bytes=9)["ok"] == {}
    assert "unknown" in stepped.ask("dance")["error"]
    assert "signal" in stepped.ask("signal")["error"]
    assert stepped.ask("signal", signal=int(signal.SIGCONT))["ok"] == {}
    stepped.finish()


def test_after_the_end_nothing_can_be_started_or_signalled(host: Host) -> None:
    stepped = Stepped(host.spec("exit 0"))
    stepped.until(lambda: stepped.it.phase == "ended")

    assert "has ended" in stepped.ask("signal", signal=2)["error"]
    assert "has ended" in stepped.ask("exec", argv=["/bin/true"])["error"]
    stepped.finish()


def test_a_stop_waits_and_then_kills(host: Host) -> None:
    spec = host.spec("trap '' TERM; echo deaf; while :; do sleep 0.05; done")
    stepped = Stepped(spec)
    stepped.until(lambda: "deaf" in host.log(spec))
    began = time.monotonic()
    answer = stepped.ask("stop", signal=int(signal.SIGTERM), timeout=0.2)

    assert answer["ok"]["result"]["signal"] == signal.SIGKILL
    assert time.monotonic() - began >= 0.2
    stepped.finish()


@pytest.mark.parametrize("is_tty", [False, True])
def test_a_command_inside_ends_and_its_connection_is_told(host: Host, is_tty: bool) -> None:
    stepped = Stepped(host.spec(["/bin/sleep", "3600"]))
    stepped.agent.send(encode({"id": 9, "op": "exec", "argv": ["/bin/sh", "-c", "exit 6"], "tty": is_tty}))
    stepped.until(lambda: any(message.get("event") == "exec_ended" for message in stepped.come))

    assert [message["exit_code"] for message in stepped.come if "exit_code" in message] == [6]
    assert "has had its command" in stepped.ask("exec", argv=["/bin/true"])["error"]
    stepped.finish()


def test_a_caller_that_goes_takes_its_command_with_it_and_others_may_come(host: Host) -> None:
    stepped = Stepped(host.spec(["/bin/sleep", "3600"]))
    assert stepped.ask("door")["ok"] == {}
    assert stepped.ask("door")["ok"] == {}
    peer = socket.socket(socket.AF_UNIX)
    here = os.getcwd()
    os.chdir(host.directory)
    peer.connect(f"{stepped.spec.key}.sock")
    os.chdir(here)
    peer.send(encode({"id": 1, "op": "exec", "argv": ["/bin/sleep", "3600"]}))
    stepped.until(lambda: bool(stepped.it.sessions._running))
    (pid,) = stepped.it.sessions._running
    peer.close()
    stepped.until(lambda: not stepped.it.sessions._running)

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    stepped.finish()


def test_an_agent_that_is_gone_before_the_start_was_told_leaves_an_open_door(host: Host) -> None:
    spec = host.spec(["/bin/sleep", "3600"])
    ours, agent = socket.socketpair()
    supervisor = Supervisor(spec, "boot")
    supervisor.launch()
    agent.close()
    first = Connection(ours)
    first.send({"started": 1})
    assert first.is_closed
    supervisor.begin(first)

    assert (host.directory / f"{spec.key}.sock").exists()
    os.kill(supervisor.child, signal.SIGKILL)
    while supervisor.phase != "ended":
        supervisor.step()
    supervisor.end()
    state_file.remove(spec.directory, spec.key)


def test_a_crowd_is_turned_away(host: Host) -> None:
    stepped = Stepped(host.spec(["/bin/sleep", "3600"]))
    stepped.ask("door")
    here = os.getcwd()
    os.chdir(host.directory)
    crowd = []
    for _ in range(MAX_CONNECTIONS + 5):
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(f"{stepped.spec.key}.sock")
        crowd.append(peer)
        stepped.it.step()
    os.chdir(here)

    assert len(stepped.it.connections) == MAX_CONNECTIONS
    for peer in crowd:
        peer.close()
    stepped.finish()


def test_an_end_that_the_disk_does_not_take_is_not_told_before_it_does(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "STORE_AGAIN_S", 0.01)
    stepped = Stepped(host.spec("exit 0"))
    real = state_file.StateFile.add
    fails = iter([True, True])

    def full(file: state_file.StateFile, news: dict[str, Any]) -> None:
        if next(fails, False):
            raise OSError(28, "No space left on device")
        real(file, news)

    monkeypatch.setattr(state_file.StateFile, "add", full)
    stepped.until(lambda: stepped.it.phase == "ended")

    assert next(fails, False) is False
    stepped.finish()


def test_a_start_that_the_disk_does_not_take_is_undone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    real = state_file.StateFile.add

    def full(file: state_file.StateFile, news: dict[str, Any]) -> None:
        if news["phase"] == "running":
            raise OSError(28, "No space left on device")
        real(file, news)

    monkeypatch.setattr(state_file.StateFile, "add", full)
    supervisor = Supervisor(host.spec(["/bin/sleep", "3600"]), "boot")
    with pytest.raises(LaunchFailed, match="No space"):
        supervisor.launch()
    with pytest.raises(ProcessLookupError):
        os.kill(supervisor.child, 0)


def test_a_second_claim_of_the_same_key_is_refused(host: Host) -> None:
    spec = host.spec("exit 0")
    _claimed(host, spec.key, {})
    with pytest.raises(LaunchFailed, match="known to be gone"):
        Supervisor(spec, "boot").launch()
    state_file.remove(spec.directory, spec.key)


def _claimed(host: Host, key: str, table: dict[str, Any]) -> None:
    file = state_file.claim(str(host.directory), key, table)
    assert file is not None
    file.close()


def test_a_state_is_what_all_its_lines_say_and_a_line_without_an_end_says_nothing(host: Host) -> None:
    directory = str(host.directory)
    file = state_file.claim(directory, "k", {"phase": "launching", "state": "x" * 9000})
    assert file is not None
    file.add({"phase": "running"})
    with (host.directory / "k.state").open("ab") as other:
        other.write(b'{"phase":"ended"}')
    assert state_file.read(directory, "k") == {"phase": "running", "state": "x" * 9000}

    file.add({"phase": "ended", "result": 1})
    file.close()
    assert state_file.read(directory, "k") == {"phase": "ended", "state": "x" * 9000, "result": 1}
    state_file.remove(directory, "k")


def test_a_line_that_the_disk_took_half_of_is_told_anew(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = str(host.directory)
    file = state_file.claim(directory, "k", {"phase": "running"})
    assert file is not None
    real, room = os.pwrite, [5, 0]

    def full(fd: int, data: bytes, at: int) -> int:
        if not room:
            return real(fd, data, at)
        if taken := room.pop(0):
            return real(fd, data[:taken], at)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        file.add({"phase": "ended"})
    assert state_file.read(directory, "k") == {"phase": "running"}
    file.add({"phase": "ended"})
    file.close()
    assert state_file.read(directory, "k") == {"phase": "ended"}
    state_file.remove(directory, "k")


def test_the_state_of_a_supervisor_of_an_older_version_is_read(host: Host) -> None:
    (host.directory / "k.state").write_bytes(b'{"phase":"running"}     ')

    assert state_file.read(str(host.directory), "k") == {"phase": "running"}
    state_file.remove(str(host.directory), "k")


def test_a_rehearsal_leaves_nothing(host: Host) -> None:
    rehearsal.rehearse(str(host.directory), "boot", warm._read_spec)

    assert os.listdir(host.directory) == []


def test_a_rehearsal_that_cannot_be_held_does_no_harm(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGCHLD)
    (tmp_path / "file").touch()
    rehearsal.rehearse(str(tmp_path / "file"), "boot", warm._read_spec)
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"a": NaN}', b"{} ", b"\xff", b"[" * 100_000])
def test_anything_but_one_table_is_no_message(data: bytes) -> None:
    with pytest.raises(BadFrame):
        from_json(data)


def test_commands_are_found_in_the_tasks_own_path(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)

    assert child.find_executable("tool", {"PATH": f"/none:{tmp_path}"}) == str(tool)
    assert child.find_executable("./x", {}) == "./x"
    with pytest.raises(LaunchFailed):
        child.find_executable("folder", {"PATH": str(tmp_path)})


def test_a_spare_file_becomes_the_state_file_and_says_nothing_of_before(tmp_path: Path) -> None:
    directory = str(tmp_path)
    first = state_file.claim(directory, "a", {"phase": "ended", "result": {"exit_code": 3}, "more": "x" * 500})
    assert first is not None
    first.close()
    state_file.put_by(directory, "a", f"{state_file.SPARE}0")
    assert state_file.read(directory, "a") is None
    number = (tmp_path / f"{state_file.SPARE}0").stat().st_ino

    second = state_file.claim(directory, "b", {"phase": "launching"}, f"{state_file.SPARE}0")

    assert second is not None
    second.close()
    assert state_file.read(directory, "b") == {"phase": "launching"}
    assert (tmp_path / f"b{state_file.SUFFIX}").stat().st_ino == number
    assert sorted(os.listdir(directory)) == [f"b{state_file.SUFFIX}"]


def test_a_claim_with_a_spare_file_is_refused_like_any_other(tmp_path: Path) -> None:
    directory = str(tmp_path)
    for key in ("a", "b"):
        file = state_file.claim(directory, key, {"phase": "running"})
        assert file is not None
        file.close()
    state_file.put_by(directory, "a", f"{state_file.SPARE}0")

    assert state_file.claim(directory, "b", {"phase": "launching"}, f"{state_file.SPARE}0") is None
    assert state_file.read(directory, "b") == {"phase": "running"}
    state_file.sweep_spares(directory)
    assert state_file.keys(directory) == ["b"]


@pytest.mark.parametrize("call", ["link", "unlink"])
def test_a_spare_file_that_is_swept_away_meanwhile_costs_no_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    directory, spare = str(tmp_path), f"{state_file.SPARE}0"
    (tmp_path / spare).touch()
    really = getattr(os, call)

    def after_a_sweep(*names: str) -> None:
        monkeypatch.undo()
        state_file.sweep_spares(directory)
        really(*names)

    monkeypatch.setattr(os, call, after_a_sweep)
    file = state_file.claim(directory, "a", {"phase": "running"}, spare)

    assert file is not None
    file.close()
    assert state_file.read(directory, "a") == {"phase": "running"}
    assert os.listdir(directory) == [f"a{state_file.SUFFIX}"]


def test_a_spare_file_that_is_gone_is_replaced_by_a_new_one(tmp_path: Path) -> None:
    file = state_file.claim(str(tmp_path), "a", {"phase": "running"}, f"{state_file.SPARE}7")

    assert file is not None
    file.close()
    assert state_file.read(str(tmp_path), "a") == {"phase": "running"}
