from __future__ import annotations

from pathlib import Path

import pytest

from fedsched.raft.following import Following
from fedsched.raft.messages import AppendReply
from fedsched.sim.options import changed, draw_options
from fedsched.sim.runner import run_seed
from fedsched.sim.schedule import Action, draw_schedule
from fedsched.sim.shrink import ddmin, load, save, shrink


@pytest.fixture
def acknowledges_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a bug that needs no fault at all: an append is acknowledged before it is durable."""

    def acknowledge(self: Following, leader: str, index: int) -> None:
        self._send(AppendReply(sender=self.server_id, to=leader, term=self.term, ok=True, index=index))

    monkeypatch.setattr(Following, "_acknowledge", acknowledge)


def some_actions(count: int) -> list[Action]:
    return [Action(number, "operation", {}) for number in range(count)]


@pytest.mark.parametrize("needed", [{3}, {0, 19}, {5, 6, 7}, {2, 9, 11, 17}])
def test_what_is_left_is_exactly_what_is_needed(needed: set[int]) -> None:
    def fails(part: list[Action]) -> bool:
        return needed <= {action.at_us for action in part}

    assert {action.at_us for action in ddmin(some_actions(20), fails)} == needed


def test_a_failure_that_needs_nothing_shrinks_to_nothing() -> None:
    assert ddmin(some_actions(20), lambda part: True) == []


def test_a_planted_failure_becomes_small_and_is_kept(acknowledges_too_early: None, tmp_path: Path) -> None:
    options = draw_options(3)
    before = len(draw_schedule(3, options))

    case = shrink(3, options)

    assert case is not None
    assert case.invariant == "promises_kept"
    assert len(case.schedule) <= 1 < before
    assert len(case.options.features) < len(options.features)
    path = save(case, tmp_path / "kept")
    assert path.name == "promises_kept-3.json"
    assert load(path) == case


def test_a_kept_case_still_fails_while_the_bug_is_there(acknowledges_too_early: None) -> None:
    case = shrink(3, draw_options(3), runs_max=40)
    assert case is not None

    failure = run_seed(case.seed, case.options, case.schedule).failure

    assert failure is not None
    assert failure.invariant == case.invariant


def test_what_comes_after_the_failure_is_left_out_first(acknowledges_too_early: None) -> None:
    options = changed(draw_options(3), chaos_us=30_000_000)
    late = Action(29_000_000, "operation", {"client": 0, "op": "put", "key": "k0", "slot": 0, "size": 0})

    case = shrink(3, options, [late], runs_max=1)

    assert case is not None
    assert case.schedule == []


def test_a_run_that_holds_is_not_shrunk() -> None:
    assert shrink(3, draw_options(3)) is None
