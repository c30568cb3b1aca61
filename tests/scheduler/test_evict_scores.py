"""Where somebody is evicted is decided by everything that a node is scored by, and by the loss."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.constraint import Affinity, Spread, SpreadTarget
from fedsched.model.evaluation import Trigger
from fedsched.model.policies import ReschedulePolicy
from fedsched.model.resources import RequestedDevice, Resources
from fedsched.model.score_names import (
    AFFINITY,
    ANTI_AFFINITY,
    DEVICES,
    FIT,
    PREEMPTION,
    RESCHEDULE_PENALTY,
    SPREAD,
    mean_of,
)
from tests.builders import a_task
from tests.scheduler.places import a_device
from tests.scheduler.test_generic import a_numbered, a_simple, preempting
from tests.scheduler.toy_region import ToyRegion


def full(count: int = 3, **fields: Any) -> ToyRegion:
    """Nodes that are all filled alike by something unimportant."""
    region = ToyRegion(a_numbered(n, cpu=1000, datacenter=f"dc{n}", **fields) for n in range(1, count + 1))
    preempting(region)
    region.go(a_simple(count, job_id="low", cpu=900, priority=10, datacenters=("*",)))
    assert region.by_node(a_simple(job_id="low")) == {f"n{n}": 1 for n in range(1, count + 1)}
    return region


def important(count: int = 1, **fields: Any) -> Any:
    return a_simple(count, job_id="high", cpu=400, priority=90, datacenters=("*",), **fields)


def scores(alloc: Allocation) -> dict[str, float]:
    assert alloc.metrics is not None
    own = alloc.metrics.score_meta_data[0]
    assert own.node_id == alloc.node_id
    assert own.norm_score == pytest.approx(mean_of(own.scores), abs=2e-6)
    return dict(own.scores)


@pytest.mark.parametrize("wanted", ["dc1", "dc2", "dc3"])
def test_an_affinity_decides_among_equal_losses(wanted: str) -> None:
    likes = Affinity(l_target="${node.datacenter}", operand="=", r_target=wanted, weight=50)

    (alloc,) = full().go(important(affinities=(likes,)))

    assert alloc.node_name == f"n{wanted[-1]}"
    assert scores(alloc)[AFFINITY] == 1
    assert scores(alloc)[PREEMPTION] == pytest.approx(0.99994, abs=1e-4)


def test_those_of_one_group_evict_on_nodes_of_their_own() -> None:
    region = full()

    allocs = region.go(important(3))

    assert region.by_node(important()) == {"n1": 1, "n2": 1, "n3": 1}
    assert all(len(one.preempted_allocations) == 1 for one in allocs)
    assert all(scores(one)[ANTI_AFFINITY] == 0 for one in allocs)


@pytest.mark.parametrize("wanted", ["dc1", "dc3"])
def test_a_spread_decides_among_equal_losses(wanted: str) -> None:
    target = (SpreadTarget(value=wanted, percent=100),)
    spread = Spread(attribute="${node.datacenter}", weight=100, spread_target=target)

    alloc, _ = full().go(important(2, spreads=(spread,)))

    assert alloc.node_name == f"n{wanted[-1]}"
    assert scores(alloc)[SPREAD] == 0.5


@pytest.mark.parametrize("bad", [1, 2])
def test_a_replacement_evicts_where_its_forerunner_did_not_fail(bad: int) -> None:
    region = ToyRegion(a_numbered(n, cpu=1000) for n in (1, 2))
    preempting(region)
    at_once = ReschedulePolicy(unlimited=True, delay_s=0.0, delay_function="constant")
    here = Affinity(l_target="${node.unique.name}", operand="=", r_target=f"n{bad}", weight=1)
    job = a_simple(1, job_id="high", cpu=400, priority=90, reschedule_policy=at_once, affinities=(here,))
    (failed,) = region.go(job)
    assert failed.node_name == f"n{bad}"
    region.report([failed], ClientStatus.FAILED)
    region.go(a_simple(2, job_id="low", cpu=900, priority=10))

    region.run(region.evaluate(job, Trigger.ALLOC_FAILURE))

    (new,) = region.live(job)
    assert new.previous_allocation == failed.id
    assert new.node_name != failed.node_name
    assert scores(new)[RESCHEDULE_PENALTY] == 0


def test_a_system_job_looks_at_fit_and_loss_alone() -> None:
    region = full(1)
    likes = Affinity(l_target="${node.datacenter}", operand="=", r_target="dc1", weight=50)

    (alloc,) = region.go(important(type="system", affinities=(likes,), reschedule_policy=None, migrate=None))

    assert scores(alloc).keys() == {FIT, PREEMPTION, ANTI_AFFINITY, RESCHEDULE_PENALTY}


# ------------------------------------------------------------------------------ devices


def with_gpu(count: int = 1, *, likes: str, weight: int = 50, **fields: Any) -> Any:
    affinity = Affinity(l_target="${device.model}", operand="=", r_target=likes, weight=weight)
    wanted = Resources(cpu=100, memory_mb=100, devices=(RequestedDevice(name="gpu", affinities=(affinity,)),))
    return a_simple(count, tasks=[a_task(resources=wanted)], **fields)


def gpu_nodes(*models: tuple[str, ...]) -> ToyRegion:
    """One node per argument, with one instance of each model."""
    region = ToyRegion()
    for number, names in enumerate(models, 1):
        devices = tuple(a_device(f"nvidia/gpu/{name}", (f"{number}{name}",)) for name in names)
        from fedsched.state.tables.nodes import node_upsert

        region.do(node_upsert(a_numbered(number, devices=devices)))
    return region


@pytest.mark.parametrize("likes", ["old", "new"])
def test_the_node_with_the_liked_device_is_taken(likes: str) -> None:
    region = gpu_nodes(("old",), ("new",), ("old",), ("new",))

    for one in region.go(with_gpu(2, likes=likes)):
        assert one.allocated_resources is not None
        assert one.allocated_resources.tasks["web"].devices[0].name == likes
        assert scores(one)[DEVICES] == 1


def test_once_the_liked_one_is_taken_the_node_is_worth_less() -> None:
    region = gpu_nodes(("new", "old"), ("new",))

    allocs = region.go(with_gpu(3, likes="new"))

    assert [scores(one)[DEVICES] for one in allocs] == [1, 1, 0]
    assert {one.node_name for one in allocs[:2]} == {"n1", "n2"}
    assert allocs[2].node_name == "n1"


def test_a_disliked_device_is_the_last_choice() -> None:
    region = gpu_nodes(("new",), ("old",))

    (alloc,) = region.go(with_gpu(1, likes="new", weight=-100))

    assert alloc.node_name == "n2"


def test_more_than_there_are_devices_is_one_failure() -> None:
    region = gpu_nodes(("new",), ("old",))
    evaluation = region.register(with_gpu(4, likes="new"))

    region.run(evaluation)

    done = region.evaluation(evaluation.id)
    assert done.queued_allocations == {"group": 2}
    assert done.failed_tg_allocs["group"].dimension_exhausted == {"devices: no devices match request": 2}
