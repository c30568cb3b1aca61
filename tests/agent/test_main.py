"""An agent as a process: signals, exit codes, and the last line it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.agent import dev
from fedsched.agent.agent import Agent
from fedsched.agent.config import AgentConfig, Ports
from fedsched.agent.dev import make_agents, run_dev
from fedsched.agent.main import run_agent, run_until_signal
from fedsched.agent.region_file import RegionFile, read_regions, with_ports_chosen
from fedsched.model.errors import Unavailable
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.agent import AGENT_SELF
from fedsched.rpc.methods.status import STATUS_LEADER
from fedsched.sdk.connect import connect
from fedsched.telemetry.log import Hub
from tests.agent.agents import a_config, an_agent

STOP_S = 5.0
"""What an operator may rely on between SIGTERM and the end."""
ROOT = Path(__file__).parents[2]


class Stub:
    """Stands in for an agent: starts as told, and stops when its `may_stop` is set."""

    def __init__(
        self, *, failing: BaseException | None = None, config: AgentConfig | None = None, is_slow: bool = False
    ) -> None:
        self.config = config or AgentConfig()
        self.left: list[bool] = []
        self.on_stop: Callable[[], None] = lambda: None
        self._failing = failing
        self._is_slow = is_slow
        self._stopped = trio.Event()
        self.may_stop = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        if self._is_slow:
            await trio.sleep_forever()
        task_status.started()
        if self._failing is not None:
            raise self._failing
        await self._stopped.wait()

    async def stop(self, *, leave: bool) -> None:
        self.left.append(leave)
        self.on_stop()
        await self.may_stop.wait()
        self._stopped.set()

    async def wait_stopped(self) -> None:
        await self._stopped.wait()


def run_stubs(*stubs: Callable[[], Stub], ready: Callable[[list[Any]], None] | None = None) -> int:
    made: Any = lambda: [make() for make in stubs]  # noqa: E731 (an annotated function would need the real type)
    return run_until_signal(made, Hub().logger("agent"), ready)


def hit_me(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_stops_real_agents_in_order_and_the_exit_code_is_zero(tmp_path: Path) -> None:
    hub = Hub()
    told = hub.subscribe("info", capacity=10_000)
    agents: list[Agent] = []

    def make() -> list[Agent]:
        agents.extend(an_agent(a_config(tmp_path, name), hub) for name in ("a1", "a2"))
        return agents

    code = run_until_signal(make, hub.logger("agent"), hit_me)

    assert code == 0
    events = [event.name for event in told.take()]
    assert events.count("agent_stopping") == 2
    assert events.index("signal") < events.index("agent_stopping")


def test_a_second_signal_ends_everything_at_once() -> None:
    stuck: list[Stub] = []

    def make() -> Stub:
        stuck.append(Stub())
        return stuck[-1]

    def hit_twice(stubs: list[Stub]) -> None:
        stubs[0].on_stop = hit_me
        hit_me()

    code = run_stubs(make, ready=hit_twice)

    assert code == 0
    assert stuck[0].left == [False]  # it was asked to stop, and never did


def test_a_signal_ends_agents_that_are_still_starting() -> None:
    def make() -> Stub:
        stub = Stub(is_slow=True)
        hit_me_soon = threading.Timer(0.05, hit_me)
        hit_me_soon.start()
        return stub

    assert run_stubs(make) == 0


@pytest.mark.parametrize(
    ("number", "leaves"), [(signal.SIGTERM, [True]), (signal.SIGINT, [False])], ids=["terminate", "interrupt"]
)
def test_whether_an_agent_leaves_for_good_depends_on_the_signal_and_its_settings(
    number: signal.Signals, leaves: list[bool]
) -> None:
    stubs: list[Stub] = []

    def make() -> Stub:
        stub = Stub(config=AgentConfig(leave_on_terminate=True, leave_on_interrupt=False))
        stub.may_stop.set()
        stubs.append(stub)
        return stub

    code = run_stubs(make, ready=lambda _: os.kill(os.getpid(), number))

    assert code == 0
    assert stubs[0].left == leaves


def test_a_crash_is_exit_code_one_with_one_clear_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_stubs(lambda: Stub(failing=RuntimeError("boom")), Stub)

    assert code == 1
    assert capsys.readouterr().err.splitlines() == ["fedsched agent: crashed: RuntimeError('boom')"]


def test_a_refusal_is_exit_code_one_with_its_hint(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = Unavailable("cannot listen on 127.0.0.1:1", hint="choose another port")

    code = run_stubs(lambda: Stub(failing=ExceptionGroup("inside", [refusal])))

    assert code == 1
    last = "fedsched agent: cannot listen on 127.0.0.1:1 (choose another port)"
    assert capsys.readouterr().err.splitlines() == [last]


def test_an_agent_that_cannot_even_be_made_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    code = run_until_signal(lambda: [an_agent(AgentConfig())], Hub().logger("agent"))

    assert code == 1
    assert "nothing to do" in capsys.readouterr().err


def test_ctrl_c_before_signals_are_heard_is_no_crash() -> None:
    def interrupted() -> Stub:
        raise KeyboardInterrupt

    assert run_stubs(interrupted) == 0


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_an_agent_logs_to_its_file_in_the_form_that_is_set(tmp_path: Path, as_json: bool) -> None:
    log = tmp_path / "agent.log"
    config = a_config(tmp_path, log_file=str(log), log_json=as_json)
    waiter = threading.Thread(target=_when_said, args=(log, "agent_started", hit_me))
    waiter.start()

    code = run_agent(config)

    waiter.join()
    assert code == 0
    lines = log.read_text().splitlines()
    assert any("agent_stopping" in line for line in lines)
    if as_json:
        assert {json.loads(line)["level"] for line in lines} <= {"info", "warn"}


def test_an_agent_without_a_file_logs_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_agent(a_config(tmp_path, ports=Ports(http=1, rpc=0, serf=0), bind_addr="192.0.2.1"))

    assert code == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("fedsched agent: cannot listen on 192.0.2.1:1 (HTTP port)")
    assert any("agent_failed" in line for line in lines)


def _when_said(log: Path, word: str, then: Callable[[], None]) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if log.exists() and word in log.read_text():
            break
        time.sleep(0.01)
    then()


# ------------------------------------------------------------------------------------------------------ whole regions


REGION = """
name = "{name}"
[[servers]]
name = "{name}-1"
[[servers]]
name = "{name}-2"
[[clients]]
name = "{name}-node"
"""


@pytest.fixture
def regions(tmp_path: Path) -> tuple[RegionFile, ...]:
    directory = tmp_path / "regions"
    directory.mkdir()
    for name in ("eu", "us"):
        (directory / f"{name}.toml").write_text(REGION.format(name=name))
    return read_regions(directory)


def test_servers_of_a_region_are_given_free_ports_and_told_of_each_other(
    regions: tuple[RegionFile, ...], tmp_path: Path
) -> None:
    chosen = with_ports_chosen(regions[0])
    ports = [port for one in chosen.servers for port in (one.ports.http, one.ports.rpc, one.ports.serf)]
    fixed = with_ports_chosen(replace(chosen, servers=chosen.servers[:1])).servers[0].ports

    async def main() -> list[Agent]:
        return make_agents(regions, str(tmp_path))

    agents = trio.run(main)

    assert len(set(ports)) == 6
    assert 0 not in ports
    assert fixed == chosen.servers[0].ports
    assert [(agent.config.region, agent.config.name) for agent in agents] == [
        ("eu", "eu-1"),
        ("eu", "eu-2"),
        ("us", "us-1"),
        ("us", "us-2"),
        ("eu", "eu-node"),
        ("us", "us-node"),
    ]
    rpc = [agent.config.ports.rpc for agent in agents[:2]]
    assert agents[4].config.client.servers == tuple(f"127.0.0.1:{port}" for port in rpc)
    first, second = agents[0].config, agents[1].config
    assert first.server.server_join.retry_join == (f"127.0.0.1:{second.ports.rpc}",)
    assert first.server.bootstrap_expect == 2
    assert Path(first.data_dir) == tmp_path / "eu" / "eu-1"


def test_dev_boots_all_regions_and_says_how_to_go_on(
    regions: tuple[RegionFile, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    say = dev._say_how_to_go_on
    running: list[Agent] = []

    def say_and_stop(agents: list[Agent]) -> None:
        running.extend(agents)
        say(agents)
        hit_me()

    monkeypatch.setattr(dev, "_say_how_to_go_on", say_and_stop)

    code = run_dev(regions, str(tmp_path / "data"))

    assert code == 0
    said = capsys.readouterr().out
    for agent in running:
        assert f"{agent.config.name:16} {agent.http_address}" in said
    assert "fedsched job run -region us " in said
    assert "fedsched job run fixtures/jobs/everywhere.hcl" in said
    assert f"export FEDSCHED_ADDR={running[0].http_address}" in said
    assert "Ctrl-C stops everything." in said
    for one in running:
        half = "server" if one.config.server.enabled else "client"
        assert (tmp_path / "data" / one.config.region / one.config.name / half).is_dir()


@pytest.mark.processes
def test_a_dev_process_elects_answers_and_ends_within_five_seconds_of_sigterm(tmp_path: Path) -> None:
    (tmp_path / "eu.toml").write_text(REGION.format(name="eu") + '[[servers]]\nname = "eu-3"\n')
    process = subprocess.Popen(
        [sys.executable, "-m", "fedsched", "dev", "-regions", str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "Ctrl-C" in line:
                break
        address = next(line.split("=")[1].strip() for line in lines if "FEDSCHED_ADDR=" in line)
        with connect(address, environ={}, patience_s=20) as client:
            itself = client.call(AGENT_SELF, Empty())
            deadline = time.monotonic() + 20
            while not client.call(STATUS_LEADER, Empty()).leader:
                assert time.monotonic() < deadline, "no leader"

        began = time.monotonic()
        process.terminate()
        _, errors = process.communicate(timeout=STOP_S + 10)

        assert process.returncode == 0, errors
        assert "Traceback" not in errors
        assert time.monotonic() - began < STOP_S
        assert itself.region == "eu"
    finally:
        process.kill()
        process.wait()
