"""From one job to the job of each region."""

from __future__ import annotations

import pytest

from fedsched.federation.multiregion import (
    job_for_region,
    jobs_by_region,
    left_regions,
    multiregion_problems,
    owner_of,
    region_names,
    strategy_of,
)
from fedsched.model.job import Job, MultiregionRegion, MultiregionStrategy
from fedsched.model.policies import UpdateStrategy
from fedsched.model.problem import InvalidJob
from fedsched.model.record import from_api, to_api
from tests.builders import a_group, a_job
from tests.federation.builders import THREE, a_multiregion_job


def test_a_count_of_zero_is_left_to_the_region() -> None:
    job = a_multiregion_job(
        [MultiregionRegion(name="eu", count=5), MultiregionRegion(name="us", count=2)],
        groups=[a_group("web", count=0), a_group("db", count=3)],
    )

    counts = {name: [group.count for group in one.task_groups] for name, one in jobs_by_region(job).items()}
    assert counts == {"eu": [5, 3], "us": [2, 3]}


def test_a_region_replaces_datacenters_and_pool_and_the_job_speaks_for_those_that_do_not() -> None:
    job = a_multiregion_job(
        [MultiregionRegion(name="eu", datacenters=("fra", "ams"), node_pool="gpu"), "us"],
        datacenters=("dc1",),
        node_pool="plain",
    )
    eu, us = jobs_by_region(job).values()

    assert (eu.region, eu.datacenters, eu.node_pool) == ("eu", ("fra", "ams"), "gpu")
    assert (us.region, us.datacenters, us.node_pool) == ("us", ("dc1",), "plain")


def test_what_nobody_says_has_the_usual_defaults() -> None:
    job = job_for_region(a_multiregion_job(["eu"], datacenters=(), node_pool=""), "eu")

    assert (job.datacenters, job.node_pool, job.task_groups[0].count) == (("*",), "default", 1)


def test_the_meta_of_a_region_wins_over_the_meta_of_the_job() -> None:
    job = a_multiregion_job(
        [MultiregionRegion(name="eu", meta={"tier": "gold", "tz": "CET"})], meta={"tier": "tin", "x": "1"}
    )

    assert job_for_region(job, "eu").meta == {"tier": "gold", "x": "1", "tz": "CET"}
    assert job.meta == {"tier": "tin", "x": "1"}


def test_every_region_keeps_the_block_so_that_it_can_show_the_whole() -> None:
    job = a_multiregion_job()

    assert all(region_names(one) == THREE for one in jobs_by_region(job).values())


def test_a_region_that_is_not_listed_has_no_job() -> None:
    with pytest.raises(InvalidJob, match=r'does not list region "mars"[\s\S]*it lists eu, us, asia'):
        job_for_region(a_multiregion_job(), "mars")


@pytest.mark.parametrize(("received_at", "owner"), [("us", "us"), ("mars", "eu")])
def test_the_owner_is_where_it_was_submitted_if_that_is_listed_else_the_first(received_at: str, owner: str) -> None:
    assert owner_of(a_multiregion_job(), received_at) == owner


def test_regions_that_were_taken_off_the_list_are_known() -> None:
    assert left_regions(a_multiregion_job(["eu", "us", "asia"]), a_multiregion_job(["us", "mars"])) == ("eu", "asia")
    assert left_regions(None, a_multiregion_job()) == ()
    assert left_regions(a_job(), a_multiregion_job()) == ()


def test_a_strategy_says_everything_that_the_job_leaves_open() -> None:
    slow = a_group(count=0, update=UpdateStrategy(progress_deadline_s=900.0))
    strategy = strategy_of(a_multiregion_job(groups=[slow, a_group("b")]))

    assert strategy == MultiregionStrategy(on_unreachable="fail", region_deadline_s=1500.0)


def test_one_shot_jobs_start_everywhere_at_once() -> None:
    strategy = MultiregionStrategy(max_parallel=1)

    assert strategy_of(a_multiregion_job(strategy=strategy, type="batch")).max_parallel == 0
    assert strategy_of(a_multiregion_job(strategy=strategy)).max_parallel == 1


def words(job: Job) -> list[str]:
    return [f"{one.path}: {one.message}" for one in multiregion_problems(job, {"eu", "us", "asia"})]


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        (
            a_multiregion_job(["eu", "uss"]),
            'Multiregion.Regions[1].Name: multiregion names region "uss", which no server here has heard of',
        ),
        (
            a_multiregion_job([MultiregionRegion(name="eu", count=-1)]),
            'Multiregion.Regions[0].Count: region "eu": count can\'t be negative: -1',
        ),
        (
            a_multiregion_job([MultiregionRegion(name="eu", datacenters=("",))]),
            'Multiregion.Regions[0].Datacenters: region "eu": a datacenter has no name',
        ),
        (
            a_multiregion_job([MultiregionRegion(name="eu", count=50_001)]),
            'Multiregion.Regions[0].Count: region "eu" would run 50001 allocations, more than 50000',
        ),
        (
            a_multiregion_job([MultiregionRegion(name="eu", count=2)], type="system"),
            'Multiregion.Regions[0].Count: region "eu": a system job runs once per node, so its count is 1 at most',
        ),
        (
            a_multiregion_job(strategy=MultiregionStrategy(max_parallel=-1)),
            "Multiregion.Strategy.MaxParallel: multiregion max_parallel can't be negative: -1",
        ),
        (
            a_multiregion_job(strategy=MultiregionStrategy(on_unreachable="skipp")),
            'Multiregion.Strategy.OnUnreachable: unknown on_unreachable "skipp"',
        ),
        (
            a_multiregion_job(strategy=MultiregionStrategy(region_deadline_s=-1.0)),
            "Multiregion.Strategy.RegionDeadline: multiregion region_deadline can't be negative",
        ),
        (
            a_multiregion_job(strategy=MultiregionStrategy(max_parallel=1, bake_time_s=-1.0)),
            "Multiregion.Strategy.BakeTime: multiregion bake_time can't be negative",
        ),
        (
            a_multiregion_job(strategy=MultiregionStrategy(bake_time_s=60.0)),
            "Multiregion.Strategy.BakeTime: multiregion bake_time does nothing while all regions run at once",
        ),
        (
            a_multiregion_job(strategy=MultiregionStrategy(adopt_after_s=-1.0)),
            "Multiregion.Strategy.AdoptAfter: multiregion adopt_after can't be negative",
        ),
        (
            a_multiregion_job(strategy=MultiregionStrategy(adopt_after_s=10.0)),
            "Multiregion.Strategy.AdoptAfter: multiregion adopt_after is 10 s, less than 60 s",
        ),
        (
            a_multiregion_job(["eu", "us"], strategy=MultiregionStrategy(adopt_after_s=600.0)),
            "Multiregion.Strategy.AdoptAfter: multiregion adopt_after needs 3 listed regions, and there are 2",
        ),
    ],
)
def test_what_is_wrong_is_said_in_words_with_its_place(job: Job, problem: str) -> None:
    assert words(job) == [problem]


def test_a_misspelt_region_is_put_right() -> None:
    [problem] = multiregion_problems(a_multiregion_job(["asai"]), {"eu", "asia"})

    assert problem.hint == 'did you mean "asia"?'


def test_a_sound_block_and_a_job_without_one_have_no_problems() -> None:
    assert words(a_multiregion_job()) == []
    assert words(a_job()) == []


def test_our_own_fields_of_a_strategy_are_in_json_only_when_they_are_said() -> None:
    plain = to_api(MultiregionStrategy(max_parallel=1))
    full = to_api(MultiregionStrategy(on_unreachable="skip", region_deadline_s=60.0))

    assert plain == {"MaxParallel": 1, "OnFailure": ""}
    assert full == {"MaxParallel": 0, "OnFailure": "", "OnUnreachable": "skip", "RegionDeadline": 60_000_000_000}
    assert from_api(MultiregionStrategy, full).region_deadline_s == 60.0
