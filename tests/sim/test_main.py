from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fedsched import __version__
from fedsched.raft.following import Following
from fedsched.raft.messages import AppendReply
from fedsched.sim import main as cli
from fedsched.sim.main import main
from fedsched.sim.options import draw_options, load
from fedsched.sim.runner import run_seed


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def acknowledge(self: Following, leader: str, index: int) -> None:
        self._send(AppendReply(sender=self.server_id, to=leader, term=self.term, ok=True, index=index))

    monkeypatch.setattr(Following, "_acknowledge", acknowledge)


def test_a_batch_reports_what_it_reached(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "PROGRESS_EVERY_S", 0.0)

    assert main(["run", "--seeds", "3", "--first", "20"]) == 0

    out, err = capsys.readouterr()
    assert out.startswith("3 seeds, ")
    assert "marks never reached: " in out
    assert "3/3 seeds" in err


def test_seeds_can_be_spread_over_processes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--jobs", "2", "21", "22"]) == 0

    assert capsys.readouterr().out.startswith("2 seeds, ")


def test_a_failure_comes_with_everything_needed_to_replay_it(broken: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--seeds", "5", "--first", "20"]) == 1

    out = capsys.readouterr().out
    assert out.startswith("FAILED seed 20\n  broken   promises_kept: ")
    assert "  replay   python -m fedsched.sim run --trace --until " in out
    assert f"  version  fedsched {__version__}, commit " in out
    assert '  options  {"servers":' in out
    assert "last 200 events:" in out or "last " in out
    assert "FAILED seeds: 20" in out


def test_all_failures_are_shown_when_asked_for(broken: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--keep-going", "20", "23"]) == 1

    assert "FAILED seeds: 20 23" in capsys.readouterr().out


def test_the_printed_command_replays_to_the_failure(broken: None, capsys: pytest.CaptureFixture[str]) -> None:
    failure = run_seed(20).failure
    assert failure is not None

    assert main(["run", "--trace", "--until", str(failure.event), "20"]) == 1

    out = capsys.readouterr().out
    assert failure.what in out
    assert f"{failure.event} events, trace " in out


def test_every_event_can_be_watched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--trace", "--until", "40", "20"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert sum("tick" in line for line in lines) > 3
    assert lines[-1].startswith("seed 20: 40 events, trace ")


def test_options_can_be_shown_saved_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "options.json"

    assert main(["options", "20"]) == 0
    assert load(capsys.readouterr().out) == draw_options(20)
    assert main(["options", "20", str(file)]) == 0
    assert load(file.read_bytes()) == draw_options(20)
    assert main(["run", "--options", str(file), "--until", "40", "21"]) == 0


def test_a_failure_under_saved_options_names_them(
    broken: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "options.json"
    main(["options", "20", str(file)])

    assert main(["run", "--options", str(file), "99"]) == 1

    assert f"--options {file} 99" in capsys.readouterr().out


def test_the_same_seeds_twice_give_the_same_traces(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["twice", "20", "21"]) == 0

    assert "2 seeds gave the same trace twice" in capsys.readouterr().out


def test_a_trace_that_differs_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    true = [run_seed(20), run_seed(21)]
    answers = iter([[true[0]], [true[1]]])
    monkeypatch.setattr(cli.batch, "run_elsewhere", lambda *args, **kwargs: _as_seed_20(next(answers)))

    assert main(["twice", "20"]) == 1

    assert "NOT THE SAME: seed 20" in capsys.readouterr().out


def _as_seed_20(results: list[object]) -> list[object]:
    return [msgspec.structs.replace(result, seed=20) for result in results]


def test_a_failure_in_either_run_of_two_fails(monkeypatch: pytest.MonkeyPatch, broken: None) -> None:
    result = run_seed(20)
    monkeypatch.setattr(cli.batch, "run_elsewhere", lambda *args, **kwargs: [result])

    assert main(["twice", "20"]) == 1


def test_scenarios_can_be_run_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "overwritten_and_back"]) == 0

    assert "stored_in_old_term" in capsys.readouterr().out


def test_a_scenario_that_fails_says_how_to_see_it(broken: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios"]) == 1

    assert "python -m fedsched.sim scenarios --trace overwritten_and_back" in capsys.readouterr().out


def test_shrinking_keeps_what_it_found(broken: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", "20", "--into", str(tmp_path)]) == 0

    assert (tmp_path / "promises_kept-20.json").exists()
    assert "promises_kept: " in capsys.readouterr().out


def test_shrinking_a_seed_that_holds_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shrink", "20", "--into", str(tmp_path)]) == 1

    assert "seed 20 does not fail" in capsys.readouterr().out


@pytest.mark.sim
def test_planted_bugs_are_hunted_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "vote_before_sync", "campaign_before_sync", "--jobs", "2"]) == 0

    out = capsys.readouterr().out
    assert "2 of 2 planted bugs caught" in out
    assert "promises_kept" in out


@pytest.mark.sim
def test_a_bug_that_gets_away_fails_the_hunt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mutants", "stale_leader_not_answered", "--seeds", "0"]) == 1

    assert "SURVIVED: stale_leader_not_answered" in capsys.readouterr().out


def test_a_hunt_that_dies_is_noticed() -> None:
    with pytest.raises(cli.batch.WorkerDied, match="no_such_bug"):
        main(["mutants", "no_such_bug"])
