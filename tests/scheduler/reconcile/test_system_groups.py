"""System and sysbatch jobs: several of a group on a node, what is counted, and when a deployment begins and ends."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fedsched.model.deployment import DeploymentState
from fedsched.model.policies import DisconnectStrategy, UpdateStrategy
from fedsched.scheduler.reconcile.held import Taint
from tests.builders import a_group, a_job, a_task
from tests.scheduler.reconcile.kit import alloc, changed, deploying, edited
from tests.scheduler.reconcile.test_group import numbers
from tests.scheduler.reconcile.test_system import (
    RECENTLY,
    a_sysbatch,
    a_system,
    on,
    placed_on,
    run_group,
    run_system,
)


class TestSeveralOnANode:
    def test_each_place_of_each_node_is_looked_at_on_its_own(self) -> None:
        job = a_system(count=2)
        records = [alloc(0, job, index=0, node=0), alloc(1, job, index=1, node=0), alloc(2, job, index=1, node=1)]

        assert placed_on(run_group(job, records, nodes=2)) == [(1, 0)]

    def test_updated_ones_keep_their_places(self) -> None:
        job = a_system(count=2)
        records = [alloc(number, job, index=number % 2, node=number // 2) for number in range(4)]

        wanted = run_group(edited(job), records, nodes=2)

        assert len(wanted.in_place) == 4
        assert placed_on(wanted) == []

    def test_what_ended_is_placed_again_in_its_own_place(self) -> None:
        job = a_system(count=3)
        records = [alloc(number, job, index=number % 3, node=number // 3) for number in range(9)]
        records[7] = alloc(7, job, index=1, node=2, client="failed")

        wanted = run_group(job, records, nodes=4)

        assert [(one.node, one.name_index) for one in wanted.special] == [(2, 1)]
        assert numbers(wanted) == {"ignore": 8, "place": 4}


class TestSettling:
    def test_a_node_outside_pool_or_datacenters_loses_it_and_one_that_takes_nothing_keeps_it(self) -> None:
        job = a_system()

        wanted = run_group(job, on(job, range(3)), nodes=3, unready=[0], outside=[1])

        assert [(stop.held.node, stop.client_status) for stop in wanted.stops] == [(1, None)]
        assert placed_on(wanted) == []
        assert numbers(wanted) == {"ignore": 2, "stop": 1}

    def test_what_is_back_is_counted_as_such(self) -> None:
        job = a_system()

        assert numbers(run_group(job, on(job, [0], unknown_at=RECENTLY), nodes=1)) == {"reconnect": 1}


class TestLimits:
    def test_more_undecided_than_allowed_is_not_less_than_none(self) -> None:
        old = a_system(update=UpdateStrategy(max_parallel=1))
        new = changed(old)
        deployment = deploying(new, desired_total=4)

        wanted = run_group(
            new, [*on(new, [0, 1], deployment=deployment.id), *on(old, [2, 3])], nodes=4, deployment=deployment
        )

        assert wanted.destructive == []

    @pytest.mark.parametrize("update", [UpdateStrategy(max_parallel=1), UpdateStrategy(max_parallel=5, canary=50)])
    def test_a_sysbatch_job_knows_no_limits_canaries_or_deployments(self, update: UpdateStrategy) -> None:
        group = a_group(update=update, reschedule_policy=None)
        job = a_job(groups=[group], type="sysbatch", version=1, create_index=5)

        wanted = run_system(changed(job), on(job, range(4)))

        assert wanted.deployment is None
        assert [one.is_canary for one in wanted.groups["group"].destructive] == [False] * 4

    def test_without_rolling_updates_there_are_no_canaries_and_no_deployment(self) -> None:
        job = a_system(update=UpdateStrategy(max_parallel=0, canary=50))

        wanted = run_system(changed(job), on(job, range(4)))

        assert wanted.deployment is None
        assert [one.is_canary for one in wanted.groups["group"].destructive] == [False] * 4

    def test_in_a_deployment_that_began_without_canaries_there_are_none_later(self) -> None:
        old = a_system(update=UpdateStrategy(max_parallel=2, canary=50))
        new = changed(old)

        wanted = run_group(new, on(old, range(4)), deployment=deploying(new, desired_total=4))

        assert [(one.node, one.is_canary) for one in wanted.destructive] == [(0, False), (1, False)]


class TestPlacedAgain:
    def again(self, **fields: Any) -> list[bool]:
        job = a_system(update=UpdateStrategy(max_parallel=1, canary=50))
        deployment = deploying(job, desired_total=2, desired_canaries=1)
        if fields.pop("of_this", False):
            fields["deployment"] = deployment.id
        is_over = fields.pop("is_over", False)
        records = [*on(job, [0], client="failed", **fields), *on(job, [1], deployment=deployment.id)]
        wanted = run_group(job, records, nodes=2, deployment=None if is_over else deployment)
        return [one.is_canary for one in wanted.special]

    def test_only_a_canary_of_the_current_deployment_is_one_again(self) -> None:
        assert self.again(canary=True, of_this=True) == [True]
        assert self.again(canary=False, of_this=True) == [False]
        assert self.again(canary=True, deployment="earlier") == [False]
        assert self.again(canary=True, of_this=True, is_over=True) == [False]


class TestDeployments:
    @pytest.mark.parametrize("change", [changed, edited])
    def test_a_change_begins_one_also_if_the_version_runs_somewhere(self, change: Any) -> None:
        old = a_system()
        new = change(old)

        assert run_system(new, [*on(new, [0]), *on(old, [1, 2, 3])]).deployment is not None

    def test_no_group_joins_a_failed_one(self) -> None:
        job = a_system()
        failed = replace(deploying(job, status="failed"), task_groups={"other": DeploymentState()})

        assert run_system(job, deployment=failed).deployment is None

    def open(self, *records: Any, healthy: int = 3, **options: Any) -> bool:
        job = a_system(disconnect=DisconnectStrategy(lost_after_s=60.0))
        deployment = deploying(job, desired_total=3, healthy_allocs=healthy)
        mine = on(job, range(3), deployment=deployment.id, health=True)
        return not run_system(job, [*mine, *records], deployment=deployment, **options).deployment_updates

    def test_what_is_left_to_do_keeps_it_open(self) -> None:
        others = a_system(disconnect=DisconnectStrategy(lost_after_s=60.0), version=0)
        different = a_system(
            disconnect=DisconnectStrategy(lost_after_s=60.0), version=0, tasks=[a_task(env={"A": "1"})]
        )

        assert not self.open(nodes=3)
        assert self.open(nodes=4)
        assert self.open(*on(others, [3]), nodes=4)
        assert self.open(*on(different, [3]), nodes=4)
        assert self.open(nodes=3, healthy=2)
        assert self.open(nodes=3, tainted={1: Taint.DISCONNECTED})


def test_an_ended_place_of_a_changed_sysbatch_is_run_again_on_its_own_node() -> None:
    job = a_sysbatch(count=2)
    records = [alloc(number, job, index=number % 2, node=number // 2, client="complete") for number in range(4)]

    wanted = run_group(edited(job), records, nodes=2)

    assert [(one.node, one.name_index) for one in wanted.special] == [(0, 0), (0, 1), (1, 0), (1, 1)]
