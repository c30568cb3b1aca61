"""Leaders that are killed while much is left to do: whatever was acknowledged is done in the end, and done once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fedsched.model.alloc import AllocListStub
from fedsched.model.evaluation import Evaluation
from fedsched.rpc.methods.alloc import ALLOC_LIST, AllocListRequest
from fedsched.rpc.methods.evaluation import EVAL_LIST, EvaluationListRequest
from fedsched.rpc.methods.node import NODE_REGISTER, NODE_UPDATE_STATUS, NodeRegisterRequest, NodeStatusRequest
from tests.builders import a_node
from tests.e2e.calls import Caller, look, register_all
from tests.e2e.region import Region, running_region
from tests.e2e.view import wait_leader, wait_until

pytestmark = pytest.mark.processes

JOBS = 1000
ROOM = JOBS * 9 // 10
WITHIN_S = 60.0
"""Far more than a crowded machine needs; it takes a few seconds."""
MEMORY_MB = 300
"""What one allocation of a job from `register_all` asks for."""


def every_evaluation(caller: Caller) -> list[Evaluation]:
    found: list[Evaluation] = []
    token = ""
    while True:
        reply, _ = caller.call(EVAL_LIST, EvaluationListRequest(next_token=token))
        found += reply.evaluations
        if not (token := reply.next_token):
            return found


def every_allocation(caller: Caller) -> list[AllocListStub]:
    found: list[AllocListStub] = []
    token = ""
    while True:
        reply, _ = caller.call(ALLOC_LIST, AllocListRequest(next_token=token, task_states=False))
        found += reply.allocs
        if not (token := reply.next_token):
            return found


def none_is(status: str, caller: Caller) -> bool:
    """Whether no evaluation has this status: asked for with a page of one, because it is asked often."""
    reply, _ = caller.call(EVAL_LIST, EvaluationListRequest(status=status, per_page=1))
    return not reply.evaluations


def some_placed(caller: Caller) -> bool:
    reply, _ = caller.call(ALLOC_LIST, AllocListRequest(task_states=False, per_page=1))
    return bool(reply.allocs)


def join(caller: Caller, number: int, room: int) -> None:
    """A node with room for so many of the jobs' allocations and no more."""
    node = a_node(
        number, cpu=1_000_000, disk_mb=1_000_000, memory_mb=room * MEMORY_MB, secret_id=f"secret of node {number}"
    )
    caller.call(NODE_REGISTER, NodeRegisterRequest(node=node))
    caller.call(NODE_UPDATE_STATUS, NodeStatusRequest(node_id=node.id, secret_id=node.secret_id))


def kill(region: Region, name: str) -> None:
    region.servers[name].kill()


def come_back(region: Region, name: str) -> None:
    """Start it again, now with workers."""
    region.servers[name].extra = ""
    region.start([name])


def test_two_leaders_killed_while_a_thousand_evaluations_are_pending_lose_none(tmp_path: Path) -> None:
    with running_region(tmp_path, extra="num_schedulers = 0") as region:
        first = wait_leader(region, look)
        names = {f"job-{number}" for number in range(JOBS)}
        with Caller(region.servers[region.others(first)[0]]) as caller:
            register_all(region.servers[first], sorted(names))
            join(caller, 1, ROOM)
            assert Counter(one.status for one in every_evaluation(caller)) == {"pending": JOBS}

        kill(region, first)
        second = wait_leader(region, look, needed=2)
        come_back(region, first)
        with Caller(region.servers[first]) as caller:
            wait_until("some are decided", lambda: some_placed(caller), WITHIN_S, region, poll_s=0.02)
            kill(region, second)
            wait_leader(region, look, needed=2)
            _all_end_or_are_blocked(region, caller, names)

            join(caller, 2, JOBS)
            _all_are_placed_once(region, caller, names)


def _all_end_or_are_blocked(region: Region, caller: Caller, names: set[str]) -> None:
    """Every registration was decided; nine in ten found room, and each of the rest waits with one of its own."""
    wait_until("no evaluation is pending", lambda: none_is("pending", caller), WITHIN_S, region)
    evaluations = every_evaluation(caller)
    decided = Counter(one.job_id for one in evaluations if one.triggered_by == "job-register")
    assert decided == dict.fromkeys(names, 1)
    assert {one.status for one in evaluations if one.triggered_by == "job-register"} == {"complete"}
    placed = Counter(one.job_id for one in every_allocation(caller))
    waiting = Counter(one.job_id for one in evaluations if one.status == "blocked")
    assert len(placed) == ROOM
    assert placed + waiting == dict.fromkeys(names, 1)


def _all_are_placed_once(region: Region, caller: Caller, names: set[str]) -> None:
    wait_until("none is blocked any more", lambda: none_is("blocked", caller), WITHIN_S, region)
    wait_until("none is pending any more", lambda: none_is("pending", caller), WITHIN_S, region)
    assert Counter(one.job_id for one in every_allocation(caller)) == dict.fromkeys(names, 1)
    assert {one.status for one in every_evaluation(caller)} <= {"complete", "canceled"}
