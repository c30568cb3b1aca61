"""Failures found once, shrunk and kept: each must pass for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsched.sim.runner import run_seed
from fedsched.sim.shrink import load

CASES = sorted((Path(__file__).parent.parent / "regress" / "sim").glob("*.json"))


def test_there_are_cases() -> None:
    assert CASES


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_kept_failure_no_longer_fails(path: Path) -> None:
    case = load(path)

    result = run_seed(case.seed, case.options, case.schedule)

    assert result.failure is None, f"{result.failure}"
