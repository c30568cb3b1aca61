"""Transition tables, and what statuses mean."""

from __future__ import annotations

import pytest

from fedsched.model.alloc import CLIENT_MOVES, DESIRED_MOVES, ClientStatus, DesiredStatus, client_status_of
from fedsched.model.deployment import DEPLOYMENT_MOVES, DeploymentStatus
from fedsched.model.evaluation import EVALUATION_MOVES, EvaluationStatus
from fedsched.model.node import NODE_MOVES, NodeStatus
from fedsched.model.states import ImpossibleMove, Moves
from fedsched.model.task_state import TASK_MOVES, TaskState, TaskStatus


def test_impossible_move_names_both_states_and_the_story() -> None:
    with pytest.raises(ImpossibleMove) as caught:
        DESIRED_MOVES.check(DesiredStatus.STOP, DesiredStatus.RUN, about="allocation a1, plan of evaluation e1")

    assert "allocation a1" in str(caught.value)
    assert "from stop to run, only to nothing, it is final" in str(caught.value)


def test_staying_put_and_listed_moves_are_allowed() -> None:
    EVALUATION_MOVES.check(EvaluationStatus.PENDING, EvaluationStatus.PENDING, about="e1")
    EVALUATION_MOVES.check(EvaluationStatus.BLOCKED, EvaluationStatus.PENDING, about="e1")
    assert not EVALUATION_MOVES.allows(EvaluationStatus.COMPLETE, EvaluationStatus.PENDING)


@pytest.mark.parametrize(
    ("moves", "final"),
    [
        (EVALUATION_MOVES, {s for s in EvaluationStatus if s.is_terminal}),
        (DESIRED_MOVES, {s for s in DesiredStatus if s.is_terminal}),
        (DEPLOYMENT_MOVES, {s for s in DeploymentStatus if not s.is_active}),
        (NODE_MOVES, set()),
        (CLIENT_MOVES, set()),
        (TASK_MOVES, set()),
    ],
)
def test_final_states_are_those_without_a_way_out(moves: Moves[DesiredStatus], final: set[str]) -> None:
    assert {state for state in moves.table if moves.is_final(state)} == final


def test_disconnected_node_comes_back_through_initializing() -> None:
    assert not NODE_MOVES.allows(NodeStatus.DISCONNECTED, NodeStatus.READY)
    assert NODE_MOVES.allows(NodeStatus.DISCONNECTED, NodeStatus.INITIALIZING)
    assert NodeStatus.DOWN.is_terminal


@pytest.mark.parametrize(
    ("states", "status"),
    [
        ([TaskState(state=TaskStatus.RUNNING), TaskState(state=TaskStatus.DEAD, failed=True)], ClientStatus.FAILED),
        ([TaskState(state=TaskStatus.PENDING), TaskState(state=TaskStatus.RUNNING)], ClientStatus.RUNNING),
        ([TaskState(state=TaskStatus.PENDING), TaskState(state=TaskStatus.DEAD)], ClientStatus.PENDING),
        ([TaskState(state=TaskStatus.DEAD)], ClientStatus.COMPLETE),
    ],
)
def test_client_status_sums_the_tasks_up(states: list[TaskState], status: ClientStatus) -> None:
    assert client_status_of(states) is status


def test_dead_task_without_failure_was_successful() -> None:
    assert TaskState(state=TaskStatus.DEAD).is_successful
    assert not TaskState(state=TaskStatus.DEAD, failed=True).is_successful
    assert not TaskState(state=TaskStatus.RUNNING).is_successful
