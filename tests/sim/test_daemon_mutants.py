"""The planted bugs of runners: every patch fits, and the simulation of daemons catches every one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fedsched.sim import daemon_mutants, daemons
from fedsched.sim.daemon_mutants import MUTANTS
from fedsched.sim.mutants import Mutant, patched_source
from fedsched.sim.verdict import Broken


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_patch_fits_the_source_and_changes_it(mutant: Mutant) -> None:
    for module in sorted({patch.module for patch in mutant.patches}):
        source = patched_source(module, mutant.patches)
        compile(source, module, "exec")
        assert source != patched_source(module, ())


CATCHES = {
    "applies_while_held": 2,
    "cancelled_proposal_remembered": 6,
    "dead_links_kept": 9,
    "failed_disk_shrugged_off": 3,
    "half_a_packet_dropped": 3,
    "office_opens_late": 7,
    "read_does_not_wait": 2,
    "snapshot_while_held": 38,
    "unknown_called_lost": 14,
    "writes_after_the_end": 6,
}
"""The seed that is known to catch it, where that is not the first one: tried before all others are."""


def hunt(name: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedsched.sim.daemon_mutants", "--one", name, *flags]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.sim
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(mutant: Mutant) -> None:
    done = hunt(mutant.name, "--first", str(CATCHES.get(mutant.name, 0)), "--seeds", "1")
    if done.returncode == 1:  # what the seed leads to has changed
        done = hunt(mutant.name)

    assert done.returncode == 0, f"{mutant.what}: {done.stdout}{done.stderr}"
    assert f"{mutant.name}: caught by seed" in done.stdout


def test_seeds_are_run_until_one_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        def __init__(self, seed: int) -> None:
            self.broken = Broken("one office", "planted") if seed == 7 else None

    monkeypatch.setattr(daemon_mutants, "plant", lambda mutant: None)
    monkeypatch.setattr(daemons, "run_seed", Ended)

    assert daemon_mutants.catch(MUTANTS[0], 5, 10) == "seed 7: one office: planted"
    assert daemon_mutants.catch(MUTANTS[0], 8, 10) == ""


def test_a_bug_that_survives_makes_the_command_fail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_mutants, "catch", lambda mutant, first, seeds: "")

    assert daemon_mutants.main(["--one", MUTANTS[0].name]) == 1

    assert "NOT CAUGHT" in capsys.readouterr().out


def test_all_of_them_are_hunted_in_processes_of_their_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[command.index("--one") + 1])
        return subprocess.CompletedProcess(command, len(asked) == 2, "said so", "")

    monkeypatch.setattr(subprocess, "run", run)

    assert daemon_mutants.main([]) == 1

    assert asked == [mutant.name for mutant in MUTANTS]
    assert f"not caught: ['{MUTANTS[1].name}']" in capsys.readouterr().out
