"""The planted bugs: every patch fits, and a quick choice of them is caught (the `mutants` command hunts them all)."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fedsched.raft.core import RaftCore
from fedsched.sim import hunt as hunting
from fedsched.sim.hunt import Catch
from fedsched.sim.mutant_list import BY_NAME, EMPTY_PROBES, MUTANTS
from fedsched.sim.mutants import Mutant, Patch, PatchFailed, patched_source, plant
from fedsched.sim.options import THEMES
from fedsched.sim.scenarios import SCENARIOS

QUICK = {
    "forget_vote_on_step_down": "promises_kept",
    "majority_over_peers_only": "election_safety",
    "acknowledge_before_sync": "promises_kept",
    "skip_prev_check": "",
    "count_own_unsynced_entries": "durable_first",
    "stored_ignores_term": "durable_first",
    "change_without_joint": "configs_overlap",
    "called_lost_when_unsettled": "outcomes_true",
    "joint_never_left": "liveness",
    "read_confirmed_by_any_reply": "reads_fresh",
    "vote_compares_length_only": "leader_completeness",
    "snapshot_drops_matching_suffix": "promises_kept",
}
"""Caught within a second each, with the invariant that must catch them where only one fits."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_patch_fits_the_source_and_changes_it(mutant: Mutant) -> None:
    for module in sorted({patch.module for patch in mutant.patches}):
        source = patched_source(module, mutant.patches)
        compile(source, module, "exec")
        assert source != patched_source(module, ())


def test_names_are_unique_and_themes_exist() -> None:
    assert len(BY_NAME) == len(MUTANTS) >= 20
    assert {mutant.theme for mutant in MUTANTS} <= set(THEMES)


def test_a_patch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PatchFailed, match="0 places"):
        patched_source("fedsched.raft.core", [Patch("fedsched.raft.core", "no such text", "")])


def test_a_bug_cannot_be_planted_too_late() -> None:
    assert "fedsched.raft.core" in sys.modules
    with pytest.raises(PatchFailed, match="imported before"):
        plant(Mutant("late", "", (Patch("fedsched.raft.core", "x", "y"),)))


def hunt(name: str, *extra: str) -> tuple[int, Catch]:
    done = subprocess.run(
        [sys.executable, "-m", "fedsched.sim.hunt", name, *extra], capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, msgspec.json.decode(done.stdout, type=Catch)


@pytest.mark.sim
@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_planted_bug_is_caught(name: str) -> None:
    status, catch = hunt(name, "--seeds", "60")

    assert status == 0, f"{name} got away: {BY_NAME[name].what}"
    assert QUICK[name] in (catch.invariant, "")


PLANT_AND_RUN = """
import sys
from fedsched.sim.mutants import Mutant, Patch, plant
from fedsched.sim.mutant_list import EMPTY_PROBES
plant(Mutant("probes", "", (Patch(*EMPTY_PROBES),)))
from fedsched.sim.runner import run_seed
from fedsched.raft.office import Office
failures = [result.failure for result in map(run_seed, range(20)) if result.failure]
sys.exit(f"{failures}" if failures else 0)
"""


@pytest.mark.sim
def test_the_change_that_some_mutants_build_on_is_no_bug_by_itself() -> None:
    assert EMPTY_PROBES[0] == "fedsched.raft.office"

    done = subprocess.run([sys.executable, "-c", PLANT_AND_RUN], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_a_hunt_that_finds_nothing_says_so_and_one_that_does_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = Mutant("harmless", "", (), theme="reads")

    catch = hunting.hunt(harmless, seeds_max=1)

    assert (catch.invariant, catch.runs) == ("", 1 + hunting.SCENARIO_SEEDS * len(SCENARIOS))
    monkeypatch.setattr(RaftCore, "tick", lambda self: None)
    assert hunting.hunt(harmless, seeds_max=1).invariant == "liveness"
    monkeypatch.setattr(hunting, "SCENARIO_SEEDS", 0)
    assert hunting.hunt(harmless, seeds_max=1).where.startswith("seed ")


def test_the_hunt_command_plants_and_hunts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    planted: list[Mutant] = []
    monkeypatch.setattr(hunting, "plant", planted.append)
    monkeypatch.setattr(hunting, "SCENARIO_SEEDS", 0)

    assert hunting.main(["vote_before_sync", "--seeds", "0"]) == 1

    assert planted == [BY_NAME["vote_before_sync"]]
    assert msgspec.json.decode(capsys.readouterr().out, type=Catch).name == "vote_before_sync"


def test_a_planted_module_is_the_patched_one_and_is_never_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "innocent_module.py").write_text("ANSWER = 'true'\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])

    plant(Mutant("lie", "", (Patch("innocent_module", "'true'", "'false'"),)))
    module = importlib.import_module("innocent_module")
    sys.modules.pop("innocent_module")

    assert module.ANSWER == "false"
    assert not (tmp_path / "__pycache__").exists()
