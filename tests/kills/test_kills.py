"""The short version of both proofs; `just kills` and `just lines` run the long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kills import lines
from tests.kills.ledger import Line, ends, read, starts
from tests.kills.lines import Lines
from tests.kills.run import REATTACH_S, run

pytestmark = pytest.mark.processes


@pytest.mark.timeout(240)
def test_an_agent_killed_again_and_again_harms_no_task(tmp_path: Path) -> None:
    outcome = run(tmp_path, kills=5, seed=3, say=lambda _: None)
    assert outcome.problems == [], outcome.text()
    assert outcome.kills == 5
    assert outcome.tasks > 3
    assert outcome.slowest_reattach_s < 4 * REATTACH_S  # a crowded machine is slow to start Python


@pytest.mark.timeout(240)
def test_numbered_lines_survive_cuts_and_kills(tmp_path: Path) -> None:
    outcome = lines.run(tmp_path, lines=30_000, cuts=6, agent_kills=1, server_kills=0, seed=2, say=lambda _: None)
    assert (outcome.problem, outcome.lines, outcome.agent_kills) == ("", 30_000, 1)
    assert outcome.files > 1


def test_the_reader_notices_gaps_doubles_and_split_lines() -> None:
    good = Lines()
    for piece in (b"0\n1", b"\n2\n", b"", b"3\n4"):
        good.take(piece)
    assert (good.wanted, good.problem) == (4, "")
    for wrong in (b"0\n2\n", b"0\n0\n", b"0\n\n1\n"):
        seen = Lines()
        seen.take(wrong)
        assert seen.problem.startswith("line 1 is ")


def test_the_ledger_counts_starts_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert read(path) == []
    path.write_text("start a task 7\nstart a task 8\nend a task 3\nusr1 b task 9\n")
    found = read(path)
    assert found[0] == Line("start", "a", "task", 7)
    assert starts(found)[("a", "task")] == 2
    assert ends(found) == {("a", "task"): 3}
