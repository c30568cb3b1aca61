"""How a fleet is told which nodes fail and return: by a caller, in turns, and by another program, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import memory_stream_one_way_pair

from fedsched.bench import nodes as bench_nodes
from fedsched.bench.frame import BenchOptions
from fedsched.bench.region_processes import NodesProcess
from fedsched.bench.simulated_nodes import Shape, SimulatedFleet, make_nodes
from fedsched.model.errors import BadRequest
from tests.agent.agents import a_config, an_agent, run_agents
from tests.bench.simulated_kit import by_hand
from tests.server.region import until

pytestmark = pytest.mark.usefixtures("impatience")


def a_fleet(count: int = 20) -> SimulatedFleet:
    return SimulatedFleet(make_nodes(Shape(count=count)), ["nowhere"], nodes_per_link=7)


def test_nodes_fail_and_return_by_place_number_and_share() -> None:
    async def story() -> None:
        fleet = a_fleet()
        assert fleet.fail([3, 5, 99]) == [3, 5]
        assert len(fleet.fail("10%")) == 2
        assert len(fleet.fail("4 random")) == 4
        assert len(fleet.fail(100)) == 12
        assert fleet.tally.down == 20
        assert fleet.bring_back([3]) == [3]
        fleet.obey('{"return": "all", "fail": [0]}')
        assert [at for at, node in enumerate(fleet.nodes) if node.is_failed] == [0]
        assert fleet.fail("0%") == []

    by_hand(story)


@pytest.mark.parametrize("line", ["", "nonsense", "[]", "{}", '{"fial": 1}', '{"fail": "some"}', '{"fail": [0.5]}'])
def test_what_cannot_be_obeyed_is_refused(line: str) -> None:
    async def story() -> None:
        fleet = a_fleet(3)
        with pytest.raises(BadRequest):
            fleet.obey(line)
        assert fleet.tally.down == 0

    by_hand(story)


def test_turns_let_some_fail_and_those_before_return() -> None:
    async def story() -> None:
        fleet, lines = a_fleet(), list[str]()
        with trio.move_on_after(7):
            await bench_nodes.take_turns(fleet, "25%", 2.0, lines.append)
        assert fleet.tally.down == 5
        assert lines == ["5 nodes fail, 0 return", "5 nodes fail, 5 return", "5 nodes fail, 5 return"]

    by_hand(story)


def test_lines_are_read_whole_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_nodes, "LINE_MAX", 50)

    async def story() -> None:
        sender, receiver = memory_stream_one_way_pair()
        await sender.send_all(b'{"fail": [0]}\n\n{"ret')
        lines = bench_nodes.lines_of(receiver)
        assert await anext(lines) == '{"fail": [0]}'
        await sender.send_all(b'urn": 1}\n' + b"x" * 60)
        assert await anext(lines) == '{"return": 1}'
        with pytest.raises(StopAsyncIteration):
            await anext(lines)

    by_hand(story)


def test_the_bench_is_a_fleet_over_websockets_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = an_agent(a_config(tmp_path))
    said: list[str] = []

    async def scenario() -> None:
        await until("the region has a leader", lambda: agent.server.raft.is_established)
        monkeypatch.setenv("FEDSCHED_ADDR", agent.http_address)
        options = BenchOptions(tmp_path, duration_s=0.6, count=5, say=said.append, fail="2", every_s=0.2)
        result = await trio.to_thread.run_sync(bench_nodes.run, options)
        assert (result.figures["registered"], result.figures["errors"], result.notes) == (5, 0, ())

    run_agents(agent, scenario=scenario)
    assert said[:2] == ["5 nodes are registered", "2 nodes fail, 0 return"]


def test_another_program_runs_a_fleet_and_tells_it_what_to_do(tmp_path: Path) -> None:
    agent = an_agent(a_config(tmp_path))

    async def scenario() -> None:
        await until("the region has a leader", lambda: agent.server.raft.is_established)
        fleet = NodesProcess([agent.http_address], {"count": 4})
        try:
            await trio.to_thread.run_sync(use, fleet)
        finally:
            await trio.to_thread.run_sync(fleet.stop)
        assert fleet.process.returncode == 0

    def use(fleet: NodesProcess) -> None:
        assert fleet.process.stdin is not None
        assert fleet.wait("registered", 4, 15.0), fleet.tally
        fleet.process.stdin.write(b'nonsense\n{"fail": [1, 2]}\n')
        fleet.process.stdin.flush()
        assert fleet.wait("down", 2, 5.0), fleet.tally

    run_agents(agent, scenario=scenario)
