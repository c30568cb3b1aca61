"""The parts of `bench spawn` that need no agent, at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from fedsched.bench import spawn
from tests.drivers.supervised import left_alive


def test_launching_is_measured_against_a_bare_loop_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawn, "SLEEPERS", 3)
    rounds, pss = trio.run(spawn._launching, tmp_path, 10)

    assert len(rounds) == spawn.ROUNDS
    assert all(0 < one["ratio"] < 10 for one in rounds)
    assert 0.1 < pss < 20
    assert left_alive(tmp_path / "supervised") == []


def test_the_tasks_of_complete_starts_have_limits_and_logs() -> None:
    job = spawn.a_job("x", 7)
    (group,) = job.task_groups
    (task,) = group.tasks

    assert (group.count, task.driver) == (7, "raw_exec")
    assert task.resources.memory_mb > 0
    assert not task.log_config.disabled
