from __future__ import annotations

from pathlib import Path

import pytest
import trio

from fedsched.bench.bare_quorum import rounds_per_s
from fedsched.bench.frame import BenchOptions
from fedsched.bench.raft import run
from fedsched.bench.raft_server import BenchServer, CountingMachine
from fedsched.model.errors import Unavailable
from fedsched.raft.entry import Entry, EntryKind
from tests.raft.mini import open_region


@pytest.mark.processes
def test_bench_raft_measures_three_real_servers_and_a_failover(tmp_path: Path) -> None:
    said: list[str] = []

    result = run(BenchOptions(tmp_path, duration_s=1.2, count=1, say=said.append))

    assert set(result.figures) >= {
        "commits_per_s_1",
        "commits_per_s_16",
        "commits_per_s_256",
        "fdatasync_per_s",
        "bare_rounds_per_s",
        "failover_p50_s",
        "failover_max_s",
        "longest_stall_ms",
    }
    assert all(value > 0 for value in result.figures.values())
    assert result.figures["commits_per_s_256"] > result.figures["commits_per_s_1"]
    assert any("killing" in line for line in said)


@pytest.mark.processes
def test_a_bare_quorum_whose_follower_ends_says_so(tmp_path: Path) -> None:
    (tmp_path / "follower0.bench").mkdir()  # it cannot open its file, and ends

    with pytest.raises(Unavailable, match="follower"):
        rounds_per_s(tmp_path, 0.1)


def test_a_bench_server_answers_for_the_runner_it_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with open_region(tmp_path, 1) as region:
            leader = await region.leader()
            server = BenchServer(leader.runner)

            load = await server.answer({"do": "load", "outstanding": 4, "size": 10, "seconds": 0.05})
            reads = await server.answer({"do": "reads", "outstanding": 4, "seconds": 0.05})
            commit = await server.answer({"do": "commit"})
            status = await server.answer({"do": "status"})

            assert load["per_s"] > 0
            assert reads["p50_ms"] > 0
            assert commit["at"] > 0
            assert status["is_ready"] is True
            with pytest.raises(ValueError, match="dance"):
                await server.answer({"do": "dance"})

    trio.run(main)


def test_the_counting_machine_comes_back_from_its_image() -> None:
    machine, other = CountingMachine(), CountingMachine()
    for index in range(3):
        machine.apply(Entry(index, 1, EntryKind.COMMAND, b"x%d" % index))

    loader = other.load()
    for chunk in machine.image():
        loader.feed(chunk)
    loader.finish()

    assert other.digest() == machine.digest()
    assert other.count == 3
