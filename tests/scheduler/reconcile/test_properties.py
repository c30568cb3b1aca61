"""Whatever happens to a job, it settles: the right number, each place once, and then nothing more is wanted."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fedsched.model.job import Job
from fedsched.model.policies import DisconnectStrategy, ReschedulePolicy, UpdateStrategy
from tests.builders import a_task
from tests.scheduler.reconcile.kit import a_batch, a_service
from tests.scheduler.reconcile.world import SystemWorld, World

COUNTS = st.integers(min_value=0, max_value=9)
UPDATES = st.builds(
    UpdateStrategy, max_parallel=st.integers(min_value=0, max_value=4), canary=st.integers(min_value=0, max_value=3)
)
STRATEGIES = st.sampled_from(
    [
        None,
        DisconnectStrategy(lost_after_s=600.0),
        DisconnectStrategy(lost_after_s=600.0, replace=False),
        DisconnectStrategy(lost_after_s=600.0, reconcile="keep_replacement"),
        DisconnectStrategy(stop_on_client_after_s=30.0),
    ]
)
POLICIES = st.sampled_from(
    [
        ReschedulePolicy(),
        ReschedulePolicy(delay_s=0.0, delay_function="constant"),
        ReschedulePolicy(attempts=50, interval_s=3600.0, delay_s=5.0, delay_function="constant", unlimited=False),
    ]
)
SHOCKS = ("count", "destructive", "in place", "fail", "complete", "migrate", "lose", "cut", "back", "back silently")


@st.composite
def jobs(draw: Any) -> Job:
    return a_service(
        draw(COUNTS), update=draw(UPDATES), disconnect=draw(STRATEGIES), reschedule_policy=draw(POLICIES), version=0
    )


def with_group(job: Job, **fields: Any) -> Job:
    return replace(job, task_groups=(replace(job.task_groups[0], **fields),))


def shock(world: World, draw: Any) -> None:
    """Something happens to the job, an allocation or a node."""
    what = draw(st.sampled_from(SHOCKS))
    if what == "count":
        world.change(with_group(world.job, count=draw(COUNTS)))
    elif what == "destructive":
        world.change(with_group(world.job, tasks=(a_task(config={"n": str(world.job.version)}),)))
    elif what == "in place":
        world.change(replace(world.job, priority=50 + world.job.version % 40))
    elif what.startswith("back"):
        for node in sorted(world.tainted):
            world.bring_back(node, silent=what == "back silently")
    else:
        hit_one(world, what, draw)


def hit_one(world: World, what: str, draw: Any) -> None:
    live = [one for one in world.live() if one.client_status == "running"]
    if not live:
        return
    one = draw(st.sampled_from(live))
    node = int(one.node_id[-12:], 16) - 0x200
    if what in ("fail", "complete", "migrate"):
        getattr(world, {"fail": "fail", "complete": "complete", "migrate": "migrate"}[what])(one)
    elif what == "lose":
        world.lose_node(node)
    else:
        world.cut_off(node)


def check_settled(world: World) -> None:
    names = world.names()
    assert len(set(names)) == len(names), f"a place is taken twice: {names}"
    assert len(world.live()) >= world.group.count
    assert len(names) <= world.group.count
    assert world.look().is_calm


@settings(max_examples=150)
@given(jobs(), st.data())
def test_one_shock_at_a_time_ends_with_each_place_taken_once(job: Job, data: st.DataObject) -> None:
    world = World(job)
    world.settle()
    for _ in range(data.draw(st.integers(min_value=1, max_value=6))):
        shock(world, data.draw)
        world.settle()
        check_settled(world)
    assert all(name < world.group.count for name in world.names())


@settings(max_examples=150)
@given(jobs(), st.data())
def test_many_shocks_at_once_end_with_the_right_number(job: Job, data: st.DataObject) -> None:
    world = World(job)
    world.settle()
    for _ in range(data.draw(st.integers(min_value=2, max_value=6))):
        shock(world, data.draw)
    world.settle()
    check_settled(world)


@settings(max_examples=60)
@given(COUNTS, COUNTS)
def test_a_count_that_changes_is_reached(before: int, after: int) -> None:
    world = World(a_service(before))
    world.settle()
    world.change(with_group(world.job, count=after))
    world.settle()

    assert world.names() == list(range(after))


@settings(max_examples=60)
@given(st.integers(min_value=1, max_value=12), st.integers(min_value=1, max_value=5), st.integers(0, 3))
def test_a_rolling_update_never_touches_more_than_max_parallel(count: int, max_parallel: int, canary: int) -> None:
    world = World(a_service(count, update=UpdateStrategy(max_parallel=max_parallel, canary=canary)))
    world.settle()
    world.touched.clear()
    world.fewest = count
    world.change(with_group(world.job, tasks=(a_task(config={"new": "yes"}),)))
    world.settle()

    assert {one.job.version for one in world.live() if one.job} == {world.job.version}
    assert world.names() == list(range(count))
    assert all(touched <= max_parallel for touched in world.touched)
    assert world.fewest == count
    assert str(world.deployments[-1].status) == "successful"


@settings(max_examples=60)
@given(st.integers(min_value=1, max_value=8), st.data())
def test_a_batch_job_runs_each_place_to_its_end_once(count: int, data: st.DataObject) -> None:
    world = World(a_batch(count))
    world.settle()
    for _ in range(40):
        running = [one for one in world.live() if one.client_status == "running"]
        if not running:
            break
        one = data.draw(st.sampled_from(running))
        what = data.draw(st.sampled_from(("complete", "complete", "fail", "migrate")))
        getattr(world, what)(one)
        world.settle()
    for one in world.live():
        world.complete(one)
    world.settle()

    done = [one for one in world.records.values() if one.client_status == "complete" and one.desired_status == "run"]
    assert sorted(one.name for one in done) == sorted({one.name for one in done})
    assert len(done) == count
    assert world.look().is_calm


@settings(max_examples=150)
@given(st.integers(min_value=0, max_value=8), UPDATES, STRATEGIES, st.data())
def test_a_system_job_ends_up_once_on_every_node_that_takes_it(
    nodes: int, update: UpdateStrategy, disconnect: DisconnectStrategy | None, data: st.DataObject
) -> None:
    update = replace(update, canary=update.canary * 25)
    group = {"update": update, "disconnect": disconnect, "reschedule_policy": None}
    world = SystemWorld(replace(a_service(1, version=0, **group), type="system"), nodes)
    world.settle()
    for _ in range(data.draw(st.integers(min_value=1, max_value=6))):
        what = data.draw(st.sampled_from(("destructive", "in place", "back", "join", *SHOCKS[3:8])))
        if what == "join":
            world.nodes += 1
        elif what == "destructive":
            world.change(with_group(world.job, tasks=(a_task(config={"n": str(world.job.version)}),)))
        elif what == "in place":
            world.change(replace(world.job, priority=50 + world.job.version % 40))
        elif what == "back":
            for node in sorted(world.tainted):
                world.bring_back(node)
        else:
            hit_one(world, what, data.draw)
        world.settle()

        assert world.where() == world.candidates()
        assert {one.job.version for one in world.live() if one.job and one.client_status == "running"} <= {
            world.job.version
        }
