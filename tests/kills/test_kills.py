"""The short version of both proofs; `just kills` and `just lines` run the long ones."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fedsched.model.alloc import Allocation, ClientStatus, DesiredStatus
from fedsched.model.task_state import TaskEvent, TaskState, TaskStatus
from fedsched.rpc.methods.alloc_access import FileFrame
from tests.e2e.region import Region
from tests.kills import __main__ as kills_main
from tests.kills import lines
from tests.kills.jobs import a_batch
from tests.kills.ledger import Line, ends, parsed, read, starts
from tests.kills.lines import Lines
from tests.kills.run import REATTACH_S, Outcome, judge, run


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_an_agent_killed_again_and_again_harms_no_task(tmp_path: Path) -> None:
    outcome = run(tmp_path, kills=5, seed=3, say=lambda _: None)
    assert outcome.problems == [], outcome.text()
    assert outcome.kills == 5
    assert outcome.tasks > 3
    assert outcome.slowest_reattach_s < 4 * REATTACH_S  # a crowded machine is slow to start Python


@pytest.mark.processes
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


def test_files_rotated_away_under_a_reader_are_a_problem() -> None:
    reader = lines.Reader(Region(Path()), "alloc", Random(1))

    reader._take(FileFrame(file="alloc/logs/task.stdout.4", offset=2, data=b"0\n", missed_files=2))

    assert reader.seen.problem == "2 files were rotated away"


def test_the_command_for_lines_fails_when_a_line_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [lines.Outcome(lines=7, cuts=2), lines.Outcome(lines=7, problem="line 3 is b'5'")]
    monkeypatch.setattr(lines, "run", lambda *_, **__: outcomes.pop(0))
    monkeypatch.setattr("sys.argv", ["lines"])

    assert [lines.main(), lines.main()] == [0, 1]
    assert "7 lines over 0 files, 2 cuts, 0 agents and 0 servers killed: no gap" in capsys.readouterr().out


def test_the_ledger_counts_starts_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert read(path) == []
    path.write_text("start a task 7\nstart a task 8\nend a task 3\nusr1 b task 9\n")
    found = read(path)
    assert found[0] == Line("start", "a", "task", 7)
    assert starts(found)[("a", "task")] == 2
    assert ends(found) == {("a", "task"): 3}


# ---- what the proof would notice


def an_ended(number: int, code: int, *, status: str = "", told: tuple[int, ...] | None = None) -> Allocation:
    """An allocation of a batch job, as the region tells of it after its task has ended."""
    events = tuple(TaskEvent(type="Terminated", exit_code=one) for one in ((code,) if told is None else told))
    return Allocation(
        id=f"alloc-{number}",
        name=f"job.group[{number}]",
        job_id="job",
        job=a_batch("job", 3, Path("ledger"), tenths=1),
        desired_status=DesiredStatus.RUN,
        client_status=ClientStatus(status or ("failed" if code else "complete")),
        task_states={"task": TaskState(state=TaskStatus.DEAD, events=events)},
    )


def judged(lines: str, *allocs: Allocation) -> Outcome:
    outcome = Outcome()
    judge(outcome, parsed(lines), list(allocs))
    return outcome


GOOD = "start alloc-0 task 7\nend alloc-0 task 0\nstart alloc-1 task 8\nend alloc-1 task 3\n"


def test_two_stories_that_agree_are_no_problem() -> None:
    outcome = judged(GOOD, an_ended(0, 0), an_ended(1, 3))

    assert (outcome.tasks, outcome.exit_codes, outcome.violations()) == (2, 2, [])
    assert "0 ran twice, 0 lost, 0 of 2 exit codes wrong" in outcome.text()


def test_a_task_that_ran_twice_is_found() -> None:
    outcome = judged(GOOD + "start alloc-0 task 9\n", an_ended(0, 0), an_ended(1, 3))

    assert outcome.violations() == outcome.overlaps == ["alloc-0/task was started 2 times"]


def test_a_task_that_never_ran_and_one_that_nobody_knows_are_found() -> None:
    outcome = judged(GOOD, an_ended(0, 0), an_ended(2, 7))

    assert outcome.violations() == outcome.lost
    assert outcome.lost == [
        "alloc-1/task ran, and the region does not know it",
        "alloc-2 of job is failed and never ran",
    ]


@pytest.mark.parametrize(
    ("alloc", "problem"),
    [
        (an_ended(1, 0), "alloc-1: ended with 3, told [0], wanted 3"),
        (an_ended(1, 3, told=(3, 3)), "alloc-1: ended with 3, told [3, 3], wanted 3"),
        (an_ended(1, 3, told=()), "alloc-1: ended with 3, told [], wanted 3"),
        (an_ended(1, 3, status="complete"), "alloc-1 ended with 3 and is complete"),
    ],
    ids=["another code", "told twice", "never told", "another status"],
)
def test_an_exit_code_that_is_told_wrongly_is_found(alloc: Allocation, problem: str) -> None:
    outcome = judged(GOOD, an_ended(0, 0), alloc)

    assert outcome.violations() == outcome.wrong_codes == [problem]


def test_lanes_add_up_and_a_slow_one_or_a_leftover_fails_all() -> None:
    total, slow = Outcome(kills=3, tasks=4), Outcome(kills=2, tasks=1, slowest_reattach_s=REATTACH_S + 1)
    slow.left.append("process 7 is left: sh")

    total.add(slow)

    assert (total.kills, total.tasks) == (5, 5)
    assert total.violations() == [
        "process 7 is left: sh",
        "re-attaching took 6.00 s, 5 s at most are allowed",
    ]


def test_the_command_prints_its_figures_and_fails_on_any_violation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = [Outcome(kills=4), Outcome(kills=4, overlaps=["a/task was started 2 times"])]
    monkeypatch.setattr(kills_main, "run_lanes", lambda *_: outcomes.pop(0))
    monkeypatch.setattr("sys.argv", ["kills", "--kills", "4"])

    codes = [kills_main.main(), kills_main.main()]

    assert codes == [0, 1]
    said = capsys.readouterr().out
    assert "no task noticed" in said
    assert "1 ran twice" in said
    assert "FAILED\n  a/task was started 2 times" in said
