"""Jobs that launch others, scaling, sources and counts of children."""

from __future__ import annotations

from typing import Any

from fedsched.codec import to_bytes
from fedsched.model.job import JobSubmission, ParameterizedJobConfig, PeriodicConfig
from fedsched.model.scaling import ScalingEvent
from fedsched.state.apply import ApplyResult
from fedsched.state.tables.deployments import DeploymentsUpsert, deployment_write
from fedsched.state.tables.evaluations import EvaluationWrite
from fedsched.state.tables.jobs import JobDeregister, JobRegister, job_register, spec_bytes
from fedsched.state.tables.launches import JobDispatch, PeriodicLaunch
from fedsched.state.tables.scaling_events import EVENTS_KEPT, JobScale
from tests.builders import a_deployment, a_group, a_job, an_id
from tests.state.worlds import SECOND, World


def a_child(job_id: str, parent: str, *, token: str = "", **fields: Any) -> JobRegister:
    job = a_job(
        job_id, type="batch", parent_id=parent, dispatched=bool(token), dispatch_idempotency_token=token, **fields
    )
    return job_register(
        job, evaluation=EvaluationWrite(id=an_id(int(job_id.rpartition("-")[2].strip("b"))), job_id=job_id)
    )


def a_parent(world: World) -> None:
    world.register(a_job("greet", type="batch", parameterized_job=ParameterizedJobConfig()))
    world.register(a_job("nightly", type="batch", periodic=PeriodicConfig(specs=("@daily",))))


def dispatch(world: World, child: JobRegister) -> ApplyResult:
    return world.do(JobDispatch(namespace="default", id="greet", child=child))


def launch(world: World, at: int, child: JobRegister | None = None) -> ApplyResult:
    return world.do(PeriodicLaunch(namespace="default", id="nightly", launch_ns=at * SECOND, child=child))


def test_the_same_token_gives_the_earlier_child_and_no_new_evaluation() -> None:
    world = World()
    a_parent(world)
    first = dispatch(world, a_child("greet/dispatch-1", "greet", token="once")).result.value
    again = dispatch(world, a_child("greet/dispatch-2", "greet", token="once")).result.value
    other = dispatch(world, a_child("greet/dispatch-3", "greet", token="twice")).result.value

    assert (first["is_new"], again["is_new"], other["is_new"]) == (True, False, True)
    assert (again["child_id"], again["evaluation_id"]) == ("greet/dispatch-1", "")
    assert again["job_create_index"] == first["job_create_index"]
    world.do(JobDeregister(namespace="default", id="greet/dispatch-1", purge=True))
    assert dispatch(world, a_child("greet/dispatch-4", "greet", token="once")).result.value["is_new"]


def test_a_dispatch_of_nobody_of_a_stopped_job_or_of_a_known_child_is_refused() -> None:
    world = World()
    assert dispatch(world, a_child("greet/dispatch-1", "greet")).result.code == "not_found"
    a_parent(world)
    dispatch(world, a_child("greet/dispatch-1", "greet"))
    assert dispatch(world, a_child("greet/dispatch-1", "greet")).result.code == "conflict"
    world.do(JobDeregister(namespace="default", id="greet"))
    assert "is stopped" in dispatch(world, a_child("greet/dispatch-2", "greet")).result.message


def test_a_launch_happens_once_for_its_moment_and_never_for_an_earlier_one() -> None:
    world = World()
    a_parent(world)
    first = launch(world, 10, a_child("nightly/periodic-10", "nightly")).result.value
    again = launch(world, 10, a_child("nightly/periodic-10b", "nightly")).result.value
    earlier = launch(world, 9, a_child("nightly/periodic-9", "nightly")).result.value

    assert (first["launched"], again["launched"], earlier["launched"]) == (True, False, False)
    assert world.store.jobs.last_launch_ns("default", "nightly") == 10 * SECOND
    assert [row.id for row in world.store.jobs.children("default", "nightly")] == ["nightly/periodic-10"]


def test_a_skipped_launch_is_noted_and_a_stopped_job_launches_nothing() -> None:
    world = World()
    a_parent(world)
    assert launch(world, 10).result.value["launched"] is False
    assert world.store.jobs.last_launch_ns("default", "nightly") == 10 * SECOND
    assert [row.id for row in world.store.jobs.periodic()] == ["nightly"]
    world.do(JobDeregister(namespace="default", id="nightly"))
    assert launch(world, 20, a_child("nightly/periodic-20", "nightly")).result.value["launched"] is False
    assert list(world.store.jobs.periodic()) == []
    world.do(JobDeregister(namespace="default", id="nightly", purge=True))
    assert world.store.jobs.last_launch_ns("default", "nightly") == 0


def test_children_are_counted_as_they_come_change_and_go() -> None:
    world = World()
    a_parent(world)
    for number in (1, 2, 3):
        dispatch(world, a_child(f"greet/dispatch-{number}", "greet"))
    assert world.store.jobs.child_counts("default", "greet").pending == 3
    world.do(JobDeregister(namespace="default", id="greet/dispatch-1", purge=True))
    row = world.store.jobs.child_counts("default", "greet")
    assert (row.pending, row.running, row.dead) == (2, 0, 0)
    for number in (2, 3):
        world.do(JobDeregister(namespace="default", id=f"greet/dispatch-{number}", purge=True))
    assert world.store.jobs.children_rows.get("default", "greet") is None


def test_a_payload_is_stored_small_and_read_whole() -> None:
    world = World()
    a_parent(world)
    child = a_job("greet/dispatch-1", type="batch", parent_id="greet", dispatched=True, payload=b"ab" * 8000)
    dispatch(world, job_register(child, evaluation=None))

    stored = next(world.store.jobs.version_rows.scan("default", "greet/dispatch-1"))
    assert len(stored.spec) < 4000
    assert stored.job().payload == b"ab" * 8000


def test_the_source_of_a_version_is_kept_with_it() -> None:
    world = World()
    world.register(a_job(), submission=to_bytes(JobSubmission(source="job {}", format="hcl2")))
    world.register(a_job(priority=60))

    sources = [row.source() for row in world.store.jobs.version_rows.scan("default", "web")]
    assert [one.source if one else None for one in sources] == ["job {}", None]


def scale(world: World, count: int | None, **fields: Any) -> ApplyResult:
    row = world.store.jobs.row("default", "web")
    job = a_job(groups=[a_group(count=count or 1)])
    fields.setdefault("check_index", row.job_modify_index if row else 0)
    event = ScalingEvent(count=count, message=fields.pop("message", ""))
    return world.do(
        JobScale(
            namespace="default",
            id="web",
            group="group",
            spec=spec_bytes(job) if count is not None else b"",
            event=to_bytes(event),
            **fields,
        )
    )


def test_scaling_makes_a_version_and_an_event_and_the_latest_twenty_are_kept() -> None:
    world = World()
    world.register(a_job(groups=[a_group(count=1)]))
    for count in range(2, 2 + EVENTS_KEPT + 3):
        evaluation = EvaluationWrite(id=an_id(count), job_id="web")
        scale(world, count, evaluation=evaluation)

    (row,) = world.store.jobs.scaling_events("default", "web")
    events = row.events()
    assert [event.count for event in events] == list(range(24, 4, -1))
    assert (events[0].eval_id, events[0].create_index) == (an_id(24), world.index)
    job = world.store.jobs.get("default", "web")
    assert job is not None
    assert job.task_groups[0].count == 24
    world.do(JobDeregister(namespace="default", id="web", purge=True))
    assert list(world.store.jobs.scaling_events("default", "web")) == []


def test_a_wish_without_a_count_only_leaves_an_event() -> None:
    world = World()
    world.register(a_job())
    scale(world, None, message="cannot")

    (row,) = world.store.jobs.scaling_events("default", "web")
    job = world.store.jobs.get("default", "web")
    assert job is not None
    assert (row.events()[0].message, row.events()[0].eval_id, job.version) == ("cannot", None, 0)


def test_scaling_is_refused_for_nobody_a_changed_job_and_during_a_deployment() -> None:
    world = World()
    assert scale(world, 3).result.code == "not_found"
    world.register(a_job())
    assert scale(world, 3, check_index=99).result.code == "conflict"
    world.do(DeploymentsUpsert(deployments=(deployment_write(a_deployment(9, job=a_job())),)))
    assert "active deployment" in scale(world, 3).result.message
    bad = JobScale(namespace="default", id="web", group="group", event=b"\x01")
    assert world.do(bad).alarm


def test_system_jobs_and_jobs_of_a_pool_are_found_by_index() -> None:
    world = World()
    world.register(a_job("everywhere", type="system"))
    world.register(a_job("deep", node_pool="gpu"))

    assert [row.id for row in world.store.jobs.on_every_node()] == ["everywhere"]
    assert [row.id for row in world.store.jobs.rows.by("pool", "gpu")] == ["deep"]
    world.do(JobDeregister(namespace="default", id="everywhere"))
    assert list(world.store.jobs.on_every_node()) == []
