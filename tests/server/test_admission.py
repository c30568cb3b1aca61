"""Letting jobs in: defaults, refusals, and what is kept of the job that is there."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.errors import BadRequest, NotFound
from fedsched.model.job import Job
from fedsched.model.job_problems import MAX_COUNT
from fedsched.model.problem import InvalidJob
from fedsched.server.admission import admitted, with_counts_of, with_resources_of
from fedsched.state.store import Store
from tests.builders import a_group, a_job, a_task


def let_in(job: Job, *, namespace: str = "default", lacking: str = "") -> Job:
    return admitted(Store(), job, namespace=namespace, region="eu", now_ns=5, lacking=lacking)


def test_a_job_gets_its_region_its_time_and_the_callers_namespace() -> None:
    job = let_in(a_job(region=""))

    assert (job.region, job.submit_time_ns, job.namespace) == ("eu", 5, "default")
    with pytest.raises(NotFound, match="namespace 'prod' does not exist"):
        let_in(a_job(), namespace="prod")
    assert let_in(a_job(), namespace="*").namespace == "default"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dispatched": True}, "says that it was dispatched"),
        ({"payload": b"x"}, "says that it was dispatched"),
        ({"node_pool": "gpu"}, "node pool 'gpu' does not exist"),
        ({"groups": [a_group(count=MAX_COUNT + 1)]}, "total count was greater"),
    ],
)
def test_what_cannot_run_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        let_in(a_job(**fields))


def test_a_type_that_nobody_takes_is_refused_with_what_is_lacking() -> None:
    assert let_in(a_job(type="turns")).type == "turns"
    with pytest.raises(InvalidJob, match='Invalid job type: "turns"') as caught:
        let_in(a_job(type="turns"), lacking="enable it on s1")
    assert caught.value.hint == "enable it on s1"
    with pytest.raises(InvalidJob) as caught:
        let_in(a_job(job_id="a b", type="turns"))
    assert caught.value.hint == ""


def test_counts_and_resources_of_a_running_job_can_be_kept() -> None:
    wanted = a_job(groups=[a_group(count=1, tasks=[a_task(cpu=100)]), a_group("new", count=7)])
    current = a_job(groups=[a_group(count=5, tasks=[a_task(cpu=900)])])

    assert [group.count for group in with_counts_of(wanted, current).task_groups] == [5, 7]
    assert with_resources_of(wanted, current).task_groups[0].tasks[0].resources.cpu == 900
    for gone in (None, replace(current, stop=True)):
        assert with_counts_of(wanted, gone) is wanted
        assert with_resources_of(wanted, gone) is wanted
