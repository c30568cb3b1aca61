from __future__ import annotations

import pytest

from fedsched.model.deployment import DeploymentStatus
from fedsched.model.errors import Conflict
from fedsched.model.evaluation import EvaluationStatus
from fedsched.model.job import Job, JobStatus
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, Reap
from fedsched.state.tables.deployments import DeploymentsUpsert, deployment_write
from fedsched.state.tables.evaluations import EvaluationsUpsert, EvaluationWrite, evaluation_write
from fedsched.state.tables.jobs import JobDeregister, JobStable, JobTag, spec_bytes
from fedsched.state.tables.plans import StoppedBatch
from tests.builders import a_deployment, a_group, a_job, an_evaluation, an_id
from tests.state.worlds import SECOND, World, ids


def the_job(world: World, job_id: str = "web") -> Job:
    job = world.store.jobs.get("default", job_id)
    assert job is not None
    return job


def versions(world: World, job_id: str = "web") -> list[int]:
    return [job.version for job in world.store.jobs.versions("default", job_id)]


def test_a_first_registration_is_version_0_at_its_index() -> None:
    world = World()
    world.nodes(2)
    done = world.register(a_job("web", meta={"owner": "ann"}))

    job = the_job(world)
    assert (job.version, job.create_index, job.modify_index, job.job_modify_index) == (0, 3, 3, 3)
    assert job.meta == {"owner": "ann"}
    assert done.result.value["job_modify_index"] == 3
    assert [change.table for change in done.changes.rows] == ["job_versions", "jobs"]


def test_a_stored_job_reads_back_as_it_was_registered() -> None:
    world = World()
    job = a_job(groups=[a_group("a", count=3), a_group("b")])
    world.register(job)

    stored = the_job(world)
    assert spec_bytes(stored) == spec_bytes(job)
    assert stored.task_groups == job.task_groups


def test_the_same_specification_again_writes_only_its_evaluation() -> None:
    world = World()
    world.register(a_job(meta={"a": "1", "b": "2"}))
    before = the_job(world)
    done = world.register(a_job(meta={"b": "2", "a": "1"}), evaluation=EvaluationWrite(id=an_id(1), job_id="web"))

    after = the_job(world)
    assert (after.version, after.job_modify_index) == (before.version, before.job_modify_index)
    assert done.result.value["version"] == 0
    evaluation = world.store.evaluations.row(an_id(1))
    assert evaluation is not None
    assert evaluation.job_modify_index == before.job_modify_index


def test_a_changed_specification_is_a_new_version() -> None:
    world = World()
    world.register(a_job())
    world.register(a_job(priority=80))

    job = the_job(world)
    assert (job.version, job.create_index, job.job_modify_index) == (1, 1, 2)
    assert versions(world) == [1, 0]
    old = world.store.jobs.version("default", "web", 0)
    assert old is not None
    assert old.priority == 50
    assert world.store.jobs.version("default", "web", 9) is None
    assert world.store.jobs.versions("default", "nobody") == []


@pytest.mark.parametrize(
    ("exists", "check_index", "message"),
    [
        (True, 0, "Enforcing job modify index 0: job 'web' already exists"),
        (False, 7, "Enforcing job modify index 7: job 'web' does not exist"),
        (True, 7, "Enforcing job modify index 7: job 'web' is now at modify index 1"),
        (True, 1, ""),
        (False, 0, ""),
    ],
)
def test_a_check_index_must_match(exists: bool, check_index: int, message: str) -> None:
    world = World()
    if exists:
        world.register(a_job())
    done = world.register(a_job(priority=9), enforce_index=True, check_index=check_index)

    assert done.result.message == message
    assert done.result.is_done == (not message)
    if message:
        assert isinstance(done.result.error(), Conflict)
        assert not done.changes


def test_stopping_adds_a_version_every_time_and_registering_starts_it_again() -> None:
    world = World()
    world.register(a_job())
    for _ in range(2):
        world.do(JobDeregister(namespace="default", id="web", submit_time_ns=5))
    assert versions(world) == [2, 1, 0]
    assert the_job(world).stop
    assert the_job(world).status is JobStatus.DEAD

    world.register(a_job())
    assert the_job(world).version == 3
    assert not the_job(world).stop


def test_stopping_an_unknown_job_is_accepted() -> None:
    world = World()
    done = world.do(JobDeregister(namespace="default", id="nobody", evaluation=EvaluationWrite(id=an_id(1))))

    assert done.result.is_done
    assert done.result.value["was_known"] is False
    assert world.store.evaluations.row(an_id(1)) is not None


def test_a_purged_job_is_gone_and_comes_back_as_a_new_one() -> None:
    world = World()
    world.register(a_job())
    world.register(a_job(priority=9))
    world.do(JobDeregister(namespace="default", id="web", purge=True))
    assert world.store.jobs.get("default", "web") is None
    assert len(world.store.jobs.version_rows) == 0

    world.register(a_job())
    assert (the_job(world).version, the_job(world).create_index) == (0, 4)


def test_the_newest_six_versions_the_latest_stable_one_and_tagged_ones_are_kept() -> None:
    world = World()
    world.register(a_job(priority=1))
    world.do(JobTag(namespace="default", id="web", version=0, name="golden", tagged_time_ns=SECOND))
    world.register(a_job(priority=2))
    world.do(JobStable(namespace="default", id="web", version=1))
    for priority in range(3, 13):
        world.register(a_job(priority=priority))

    assert versions(world) == [11, 10, 9, 8, 7, 1, 0]
    tagged = world.store.jobs.version("default", "web", 0)
    assert tagged is not None
    assert tagged.version_tag is not None
    assert (tagged.version_tag.name, tagged.version_tag.tagged_time_ns) == ("golden", SECOND)

    world.do(JobTag(namespace="default", id="web", version=0))
    world.do(JobStable(namespace="default", id="web", version=1, is_stable=False))
    world.register(a_job(priority=99))
    assert versions(world) == [12, 11, 10, 9, 8, 7]


def test_a_version_that_an_allocation_runs_outlives_its_turn_but_is_not_listed() -> None:
    world = World()
    world.nodes(1)
    world.register(a_job(priority=1))
    world.place([1], [0])
    for priority in range(2, 12):
        world.register(a_job(priority=priority))

    assert versions(world) == [10, 9, 8, 7, 6, 5]
    origin = world.store.allocations.origin_of(0)
    job = world.store.jobs.version_by_key(origin.version_key)
    assert job is not None
    assert job.priority == 1

    world.do(Reap(allocs=ids([1])))
    assert world.store.jobs.version_by_key(origin.version_key) is None


def test_a_purged_job_lives_on_in_its_allocations_beside_its_namesake() -> None:
    world = World()
    world.nodes(1)
    world.register(a_job(priority=1))
    world.place([1], [0])
    world.do(JobDeregister(namespace="default", id="web", purge=True))
    world.register(a_job(priority=2))
    world.place([2], [0])

    old, new = (world.store.allocations.origin_of(slot) for slot in (0, 1))
    jobs = [world.store.jobs.version_by_key(origin.version_key) for origin in (old, new)]
    assert [job.priority for job in jobs if job] == [1, 2]
    assert world.store.allocations.slots_of_job("default", "web").tolist() == [0, 1]
    assert versions(world) == [0]

    world.do(Reap(allocs=ids([1])))
    assert world.store.jobs.version_by_key(old.version_key) is None
    assert [row.slot for row in world.store.allocations.groups.scan("default", "web")] == [new.group_slot]


def test_tags_are_unique_and_need_a_version() -> None:
    world = World()
    world.register(a_job(priority=1))
    world.register(a_job(priority=2))
    world.do(JobTag(namespace="default", id="web", version=0, name="golden"))

    again = world.do(JobTag(namespace="default", id="web", version=1, name="golden"))
    assert again.result.code == "conflict"
    assert world.do(JobTag(namespace="default", id="web", version=7, name="x")).result.code == "not_found"
    assert world.do(JobTag(namespace="default", id="nobody", version=0)).result.code == "not_found"
    assert world.do(JobStable(namespace="default", id="web", version=7)).result.code == "not_found"
    assert world.do(JobStable(namespace="default", id="nobody", version=0)).result.code == "not_found"


def test_a_job_goes_from_pending_to_running_to_dead() -> None:
    world = World()
    world.nodes(1)
    job = a_job()
    world.register(job, evaluation=evaluation_write(an_evaluation(1, job=job)))
    assert the_job(world).status is JobStatus.PENDING

    world.place([1], [0])
    assert the_job(world).status is JobStatus.RUNNING
    assert the_job(world).modify_index == world.index

    complete = evaluation_write(an_evaluation(1, job=job, status=EvaluationStatus.COMPLETE))
    world.do(EvaluationsUpsert(evaluations=(complete,)))
    assert the_job(world).status is JobStatus.RUNNING
    world.do(AllocStatusUpdate(ids=ids([1]), statuses=bytes([3])))
    assert the_job(world).status is JobStatus.DEAD


def test_a_stopped_allocation_no_longer_keeps_its_job_running() -> None:
    world = World()
    world.nodes(1)
    world.register(a_job())
    world.place([1], [0])
    world.do(JobDeregister(namespace="default", id="web"))
    assert the_job(world).status is JobStatus.RUNNING

    world.plan(stopped=(StoppedBatch(ids=ids([1])),))
    assert the_job(world).status is JobStatus.DEAD


def test_an_active_deployment_keeps_a_job_running() -> None:
    world = World()
    world.register(a_job())
    deployment = a_deployment(1)
    world.do(DeploymentsUpsert(deployments=(deployment_write(deployment),)))
    assert the_job(world).status is JobStatus.RUNNING

    ended = a_deployment(1, status=DeploymentStatus.SUCCESSFUL, create_time_ns=7)
    world.do(DeploymentsUpsert(deployments=(deployment_write(ended),)))
    assert the_job(world).status is JobStatus.PENDING
    stored = world.store.deployments.get(an_id(1))
    assert stored is not None
    assert (stored.create_index, stored.modify_index, stored.create_time_ns) == (2, 3, 0)
    assert [row.id for row in world.store.deployments.of_job("default", "web")] == [an_id(1)]
    assert world.store.deployments.get("nobody") is None


def test_system_jobs_and_templates_run_until_they_are_stopped() -> None:
    world = World()
    world.register(a_job("sys", type="system"))
    world.register(a_job("child", parent_id="sys"))
    assert the_job(world, "sys").status is JobStatus.RUNNING
    assert [row.id for row in world.store.jobs.children("default", "sys")] == ["child"]

    world.do(JobDeregister(namespace="default", id="sys"))
    assert the_job(world, "sys").status is JobStatus.DEAD


def test_jobs_are_listed_in_order_of_namespace_and_id() -> None:
    world = World()
    for namespace, job_id in (("prod", "a"), ("default", "b"), ("default", "a")):
        world.register(a_job(job_id, namespace=namespace))

    assert [row.key for row in world.store.jobs.scan()] == [("default", "a"), ("default", "b"), ("prod", "a")]
    assert [row.id for row in world.store.jobs.scan("default", start=("default", "b"))] == ["b"]
