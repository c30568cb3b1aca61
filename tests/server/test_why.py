"""Why questions on real servers, answered by any of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsched.model.errors import NotFound
from fedsched.rpc.methods.why import (
    ALLOC_WHY,
    JOB_WHY,
    NODE_WHY_NOT,
    AllocWhyRequest,
    JobWhyRequest,
    NodeWhyNotRequest,
)
from tests.server.region import Region, run_region
from tests.server.test_whole_walk import a_host, a_service, ended, join


def test_a_server_says_why_a_job_is_short_and_what_would_help(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(1)
        leader = await region.leader()
        host = a_host(1, cpu=1200)
        await join(leader, host)
        await ended(leader, (await leader.register(a_service(3))).eval_id)

        job = (await leader.call(JOB_WHY, JobWhyRequest(job_id="web"))).why
        node = (await leader.call(NODE_WHY_NOT, NodeWhyNotRequest(node_id=host.id, job_id="web"))).why
        allocations = leader.server.machine.store.allocations
        (first, *_) = allocations.records(allocations.slots_of_job("default", "web"))
        alloc = (await leader.call(ALLOC_WHY, AllocWhyRequest(alloc_id=first.id))).why

        assert job.verdict == "blocked"
        assert job.words[:2] == (
            'Group "group": 1 allocation without a place.',
            "It fits if cpu is 300 MHz less.",
        )
        assert node.groups[0].words[-1] == "Fits if cpu is 300 MHz less."
        assert alloc.words[0].startswith("It is placed on ")

    run_region(tmp_path, scenario, bootstrap_expect=1)


def test_a_server_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(1)
        leader = await region.leader()
        await ended(leader, (await leader.register(a_service(1))).eval_id)

        with pytest.raises(NotFound, match="job 'no' not found"):
            await leader.call(JOB_WHY, JobWhyRequest(job_id="no"))
        with pytest.raises(NotFound, match="has no group 'no'"):
            await leader.call(JOB_WHY, JobWhyRequest(job_id="web", group="no"))
        with pytest.raises(NotFound, match="node 'no' not found"):
            await leader.call(NODE_WHY_NOT, NodeWhyNotRequest(node_id="no", job_id="web"))
        missing = "00000000-0000-4000-8000-000000000000"
        with pytest.raises(NotFound, match=r"allocation .* not found"):
            await leader.call(ALLOC_WHY, AllocWhyRequest(alloc_id=missing))

    run_region(tmp_path, scenario, bootstrap_expect=1)
