"""Seeds of pools and of rollouts, as `just sim-pools` runs them."""

from __future__ import annotations

import pytest

from fedsched.sim import gossip_run, pool_seeds, rollout_seeds
from fedsched.sim.gossip_world import WorldBroken
from fedsched.sim.many_seeds import Kind, run_many


@pytest.mark.parametrize("kind", [pool_seeds.KIND, rollout_seeds.KIND], ids=lambda kind: kind.noun)
def test_seeds_that_hold_are_counted(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_many(kind, ["--seeds", "2", "--jobs", "2"]) == 0

    assert f"2 {kind.noun}, 0 broken" in capsys.readouterr().out


def test_a_seed_that_breaks_is_told_with_the_way_to_replay_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(seed: int) -> None:
        raise WorldBroken("somebody was left uninformed")

    monkeypatch.setattr(gossip_run, "run_seed", breaks)

    assert run_many(pool_seeds.KIND, ["--first", "7"]) == 1

    said = capsys.readouterr().out
    assert "somebody was left uninformed" in said
    assert "python -m fedsched.sim.pool_seeds --first 7" in said
