"""System and sysbatch jobs: node by node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from fedsched.model.alloc import Allocation
from fedsched.model.job import Job
from fedsched.model.policies import DisconnectStrategy, UpdateStrategy
from fedsched.scheduler.reconcile.disconnect import CutOff
from fedsched.scheduler.reconcile.held import Taint
from fedsched.scheduler.reconcile.system import Fate, NodeField, fate_of, reconcile_system
from fedsched.scheduler.reconcile.wanted import GroupWanted, Wanted
from tests.builders import a_group, a_job, an_evaluation, an_id
from tests.scheduler.reconcile.kit import (
    NOW,
    SECOND,
    alloc,
    changed,
    deploying,
    edited,
    ground,
    held_of,
    id_of,
    must_go,
)
from tests.scheduler.reconcile.test_group import numbers

RECENTLY = NOW - 10 * SECOND
LONG_AGO = NOW - 3600 * SECOND


def a_system(*, count: int = 1, version: int = 1, **group: Any) -> Job:
    group.setdefault("reschedule_policy", None)
    return a_job(groups=[a_group(count=count, **group)], type="system", version=version, create_index=5)


def a_sysbatch(*, count: int = 1, **group: Any) -> Job:
    group.setdefault("reschedule_policy", None)
    return a_job(groups=[a_group(count=count, update=None, **group)], type="sysbatch", version=1, create_index=5)


def on(job: Job, nodes: Iterable[int], **fields: Any) -> list[Allocation]:
    return [alloc(node, job, index=0, node=node, **fields) for node in nodes]


def run_system(
    job: Job | None,
    records: Sequence[Allocation] = (),
    *,
    nodes: int = 4,
    unready: Iterable[int] = (),
    outside: Iterable[int] = (),
    infeasible: Iterable[int] | None = None,
    **options: Any,
) -> Wanted:
    ready, in_scope = np.ones(nodes, dtype=np.bool_), np.ones(nodes, dtype=np.bool_)
    ready[[*unready, *(slot for slot in options.get("tainted") or {} if slot < nodes)]] = False
    in_scope[list(outside)] = False
    feasible = np.ones(nodes, dtype=np.bool_)
    feasible[list(infeasible or ())] = False
    field = NodeField(ready, in_scope, None if infeasible is None else lambda _: feasible)
    return reconcile_system(ground(job, records, **options), field)


def run_group(job: Job, records: Sequence[Allocation] = (), **options: Any) -> GroupWanted:
    return run_system(job, records, **options).groups["group"]


def placed_on(wanted: GroupWanted) -> list[tuple[int, int]]:
    """Node and place of everything new that is no update."""
    fresh = [] if wanted.fresh_nodes is None else zip(wanted.fresh_nodes.tolist(), wanted.fresh.tolist(), strict=True)
    return sorted([*fresh, *((one.node, one.name_index) for one in wanted.special)])


class TestFate:
    """The rules for one live allocation, in their order."""

    def fate(self, *, job: Job | None = None, **options: Any) -> Fate:
        job = a_system() if job is None else job
        rules: dict[str, Any] = {
            "count": 1,
            "cut_off": CutOff(lost_after_ns=300 * SECOND),
            "taint": Taint.NONE,
            "is_ready": True,
            "in_scope": True,
            "is_changed": False,
            "is_sysbatch": job.type == "sysbatch",
            "now_ns": NOW,
        }
        mine = {name: options.pop(name) for name in list(options) if name in rules}
        return fate_of(held_of(alloc(0, job, **options)), **{**rules, **mine})

    def test_a_name_that_is_not_required_stops(self) -> None:
        assert self.fate(count=0, flags=["migrate"]) is Fate.STOP
        assert self.fate(index=1) is Fate.STOP

    def test_a_migrate_flag_stops(self) -> None:
        assert self.fate(flags=["migrate"], client="unknown", unknown_at=LONG_AGO) is Fate.MOVE

    def test_unknown_for_too_long_is_lost(self) -> None:
        assert self.fate(client="unknown", unknown_at=LONG_AGO) is Fate.LOST

    def test_unknown_is_ignored(self) -> None:
        assert self.fate(client="unknown", unknown_at=RECENTLY) is Fate.IGNORE
        assert self.fate(client="unknown", unknown_at=RECENTLY, taint=Taint.DISCONNECTED) is Fate.IGNORE
        assert self.fate(client="unknown", unknown_at=RECENTLY, taint=Taint.DOWN) is Fate.IGNORE

    def test_unknown_without_a_limit_waits_for_its_node_but_not_for_one_that_is_gone(self) -> None:
        forever = {"client": "unknown", "unknown_at": LONG_AGO, "cut_off": CutOff()}

        assert self.fate(taint=Taint.DISCONNECTED, **forever) is Fate.IGNORE
        assert self.fate(taint=Taint.DOWN, **forever) is Fate.LOST

    def test_back_on_a_good_node_reconnects(self) -> None:
        assert self.fate(unknown_at=RECENTLY, is_changed=True) is Fate.RECONNECT
        assert self.fate(unknown_at=RECENTLY, taint=Taint.DOWN) is Fate.LOST

    def test_a_sysbatch_that_is_done_is_ignored_on_a_tainted_node(self) -> None:
        done = {"taint": Taint.DOWN, "finished_at": RECENTLY}

        assert self.fate(job=a_sysbatch(), **done) is Fate.IGNORE
        assert self.fate(job=a_system(), **done) is Fate.LOST
        assert self.fate(job=a_sysbatch(), taint=Taint.DOWN) is Fate.LOST

    def test_running_on_a_disconnected_node_becomes_unknown(self) -> None:
        assert self.fate(taint=Taint.DISCONNECTED) is Fate.DISCONNECT
        assert self.fate(taint=Taint.DISCONNECTED, client="pending") is Fate.IGNORE

    @pytest.mark.parametrize("taint", [Taint.DOWN, Taint.MISSING])
    def test_on_a_node_that_is_gone_it_is_lost(self, taint: Taint) -> None:
        assert self.fate(taint=taint) is Fate.LOST

    def test_on_a_draining_node_it_waits_to_be_told(self) -> None:
        assert self.fate(taint=Taint.DRAINING, is_changed=True) is Fate.IGNORE

    def test_on_a_node_that_takes_nothing_new_only_an_unchanged_one_stays(self) -> None:
        assert self.fate(is_ready=False) is Fate.IGNORE
        assert self.fate(is_ready=False, in_scope=False) is Fate.IGNORE
        assert self.fate(is_ready=False, is_changed=True) is Fate.STOP

    def test_a_node_that_left_the_pool_or_datacenters_stops_it(self) -> None:
        assert self.fate(in_scope=False, is_changed=True) is Fate.STOP

    def test_a_changed_job_updates_it(self) -> None:
        assert self.fate(is_changed=True) is Fate.UPDATE

    def test_otherwise_it_is_left_alone(self) -> None:
        assert self.fate() is Fate.IGNORE


class TestPlacing:
    def test_every_candidate_gets_one(self) -> None:
        wanted = run_group(a_system(), unready=[1], outside=[2])

        assert placed_on(wanted) == [(0, 0), (3, 0)]
        assert numbers(wanted) == {"place": 2}

    def test_every_place_of_the_count_is_filled_on_every_node(self) -> None:
        job = a_sysbatch(count=2)

        assert placed_on(run_group(job, on(job, [1]), nodes=2)) == [(0, 0), (0, 1), (1, 1)]

    def test_a_settled_job_needs_nothing(self) -> None:
        job = a_system()

        wanted = run_system(job, on(job, range(4)))

        assert wanted.is_calm
        assert numbers(wanted.groups["group"]) == {"ignore": 4}

    def test_a_plan_of_an_unchanged_job_says_only_what_would_happen(self) -> None:
        job = a_system()

        assert numbers(run_group(job, on(job, range(4)))) == {"ignore": 4}

    def test_a_new_node_gets_one(self) -> None:
        job = a_system()

        assert placed_on(run_group(job, on(job, range(4)), nodes=5)) == [(4, 0)]

    def test_one_that_failed_is_placed_again_on_its_node(self) -> None:
        job = a_system()
        records = [*on(job, [0, 1]), *on(job, [2], client="failed", create_index=7), *on(job, [3])]
        older = alloc(9, job, index=0, node=2, client="failed", create_index=3)

        wanted = run_group(job, [*records, older])

        (single,) = wanted.special
        assert (single.node, single.reason) == (2, "again")
        assert single.previous is not None
        assert single.previous.id == id_of(2)

    def test_ends_of_places_that_are_not_wanted_any_more_do_not_matter(self) -> None:
        job = a_sysbatch()
        beyond = alloc(9, job, index=1, node=0, client="complete")

        assert placed_on(run_group(job, [beyond], nodes=2)) == [(0, 0), (1, 0)]

    def test_places_that_are_not_wanted_any_more_are_stopped_and_cover_nothing(self) -> None:
        job = a_sysbatch()

        wanted = run_group(job, [alloc(9, job, index=1, node=0)], nodes=2)

        assert len(wanted.stops) == 1
        assert placed_on(wanted) == [(0, 0), (1, 0)]

    def test_told_to_move_it_starts_anew_on_a_node_that_takes_it(self) -> None:
        job = a_system()
        records = on(job, range(4), flags=["migrate"])

        wanted = run_group(job, records, tainted={3: Taint.DRAINING})

        assert len(wanted.stops) == 4
        assert {stop.description for stop in wanted.stops} == {"alloc not needed as node is tainted"}
        assert placed_on(wanted) == [(0, 0), (1, 0), (2, 0)]

    def test_lost_ones_are_not_replaced_elsewhere(self) -> None:
        job = a_system()

        wanted = run_group(job, on(job, range(4)), tainted={0: Taint.DOWN})

        assert [(stop.held.node, stop.client_status) for stop in wanted.stops] == [(0, "lost")]
        assert placed_on(wanted) == []

    def test_count_zero_or_a_stopped_job_stops_all(self) -> None:
        job = a_system()

        assert len(run_group(edited(job, count=0), on(job, range(4))).stops) == 4
        assert len(run_group(replace(job, stop=True), on(job, range(4))).stops) == 4
        purged = run_system(None, on(job, range(4)), evaluation=an_evaluation(job=job))
        assert len(purged.groups["group"].stops) == 4

    def test_a_group_that_is_gone_is_stopped(self) -> None:
        old = a_system()
        new = replace(old, task_groups=(a_group("other"),), version=2)

        wanted = run_system(new, on(old, range(4)))

        assert len(wanted.groups["group"].stops) == 4
        assert len(wanted.groups["other"].fresh) == 4


class TestSysbatch:
    def test_what_ended_is_not_run_again_for_the_same_specification(self) -> None:
        job = a_sysbatch()
        records = [*on(job, [0], client="complete"), *on(job, [1], client="failed"), *on(job, [2])]

        assert placed_on(run_group(job, records)) == [(3, 0)]

    def test_a_changed_specification_runs_again_where_it_ended(self) -> None:
        job = a_sysbatch()
        records = [*on(job, [0], client="complete"), *on(job, [1, 2, 3])]

        wanted = run_group(edited(job), records)

        assert [(one.node, one.reason) for one in wanted.special] == [(0, "again")]
        assert len(wanted.in_place) == 3

    def test_the_latest_end_counts(self) -> None:
        old = a_sysbatch()
        new = edited(old)
        records = [*on(new, [0], client="complete", create_index=9), alloc(9, old, index=0, node=0, client="complete")]

        assert placed_on(run_group(new, records, nodes=1)) == []

    def test_told_to_stop_it_is_not_run_again(self) -> None:
        job = a_sysbatch()

        wanted = run_group(job, on(job, [0], flags=["migrate"]), nodes=1)

        assert len(wanted.stops) == 1
        assert placed_on(wanted) == []

    def test_it_has_no_deployment_and_updates_all_at_once(self) -> None:
        job = a_sysbatch()

        wanted = run_system(changed(job), on(job, range(4)))

        assert wanted.deployment is None
        assert len(wanted.groups["group"].destructive) == 4


class TestDisconnect:
    def test_cut_off_it_is_unknown_with_a_timeout(self) -> None:
        job = a_system(disconnect=DisconnectStrategy(lost_after_s=60.0))

        wanted = run_group(job, on(job, range(4)), tainted={1: Taint.DISCONNECTED})

        (entry,) = wanted.disconnecting
        (timeout,) = wanted.follow_ups
        assert (entry.held.node, entry.followup_id) == (1, timeout.id)
        assert (timeout.triggered_by, timeout.wait_until_ns) == ("max-disconnect-timeout", NOW + 60 * SECOND)
        assert placed_on(wanted) == []
        assert numbers(wanted) == {"ignore": 3, "disconnect": 1}

    def test_without_a_limit_there_is_no_timeout(self) -> None:
        job = a_system()

        wanted = run_group(job, on(job, [0]), nodes=1, tainted={0: Taint.DISCONNECTED})

        assert (len(wanted.disconnecting), wanted.follow_ups) == (1, [])

    def test_back_it_reconnects_in_place(self) -> None:
        job = a_system()

        wanted = run_system(job, on(job, [0], unknown_at=RECENTLY, followup_eval_id=an_id(7)), nodes=1)

        assert [held.node for held in wanted.groups["group"].reconnecting] == [0]
        assert wanted.dropped_evaluations == [an_id(7)]

    def test_a_timeout_that_others_wait_for_is_not_dropped(self) -> None:
        job = a_system(disconnect=DisconnectStrategy(lost_after_s=60.0))
        mine = on(job, [0], unknown_at=RECENTLY, followup_eval_id=an_id(7))
        other = on(job, [1], client="unknown", unknown_at=RECENTLY, followup_eval_id=an_id(7))

        wanted = run_system(job, [*mine, *other], nodes=2, tainted={1: Taint.DISCONNECTED})

        assert wanted.dropped_evaluations == []

    def test_expired_on_a_node_that_is_back_it_is_lost_and_placed_again(self) -> None:
        job = a_system(disconnect=DisconnectStrategy(lost_after_s=60.0))

        wanted = run_group(job, on(job, [0], client="unknown", unknown_at=LONG_AGO), nodes=1)

        assert [stop.client_status for stop in wanted.stops] == ["lost"]
        assert placed_on(wanted) == [(0, 0)]


class TestUpdates:
    def test_in_place_where_possible(self) -> None:
        job = a_system()

        assert numbers(run_group(edited(job), on(job, range(4)))) == {"in_place_update": 4}

    def test_some_at_a_time_on_the_same_nodes(self) -> None:
        job = a_system(update=UpdateStrategy(max_parallel=2))

        wanted = run_group(changed(job), on(job, range(4)))

        assert [(one.node, one.name_index) for one in wanted.destructive] == [(0, 0), (1, 0)]
        assert all(one.stop is not None for one in wanted.destructive)
        assert numbers(wanted) == {"destructive_update": 2, "ignore": 2}

    def test_a_node_that_no_longer_suits_needs_a_new_one(self) -> None:
        job = a_system(update=UpdateStrategy(max_parallel=4))

        assert len(run_group(edited(job), on(job, range(4)), can_stay=must_go).destructive) == 4

    def test_a_node_that_can_no_longer_run_it_only_loses_it(self) -> None:
        job = a_system(update=UpdateStrategy(max_parallel=1))

        wanted = run_group(changed(job), on(job, range(4)), infeasible=[2, 3])

        assert [(stop.held.node, stop.description) for stop in wanted.stops] == [
            (2, "alloc not needed due to job update"),
            (3, "alloc not needed due to job update"),
        ]
        assert [one.node for one in wanted.destructive] == [0]
        assert numbers(wanted) == {"stop": 2, "destructive_update": 1, "ignore": 1}

    def test_the_jobs_own_limit_holds_for_groups_without_one(self) -> None:
        job = replace(a_system(update=None), update=UpdateStrategy(max_parallel=3))

        assert len(run_group(changed(job), on(job, range(4))).destructive) == 3

    def test_without_any_limit_all_at_once(self) -> None:
        job = a_system(update=None)

        assert len(run_group(changed(job), on(job, range(4))).destructive) == 4

    def test_what_is_not_yet_healthy_counts_against_the_limit(self) -> None:
        old = a_system(update=UpdateStrategy(max_parallel=2))
        new = changed(old)
        deployment = deploying(new, desired_total=4)
        records = [
            *on(new, [0], health=True, deployment=deployment.id),
            *on(new, [1], deployment=deployment.id),
            *on(old, [2, 3]),
        ]

        assert [one.node for one in run_group(new, records, deployment=deployment).destructive] == [2]

    @pytest.mark.parametrize("status", ["paused", "failed"])
    def test_held_deployments_update_nothing_but_new_nodes_are_served(self, status: str) -> None:
        old = a_system(update=UpdateStrategy(max_parallel=2))
        new = changed(old)

        wanted = run_group(new, on(old, range(3)), deployment=deploying(new, status=status, desired_total=4))

        assert wanted.destructive == []
        assert placed_on(wanted) == [(3, 0)]

    @pytest.mark.parametrize("status", ["pending", "initializing"])
    def test_a_region_that_waits_for_its_turn_places_nothing(self, status: str) -> None:
        job = a_system()

        assert placed_on(run_group(job, deployment=deploying(job, status=status, desired_total=4))) == []


class TestDeployments:
    def test_the_total_is_the_number_of_candidates(self) -> None:
        deployment = run_system(a_system(), unready=[1]).deployment

        assert deployment is not None
        assert deployment.task_groups["group"].desired_total == 3

    def test_nodes_that_cannot_run_it_are_no_candidates(self) -> None:
        deployment = run_system(a_system(), infeasible=[0, 1]).deployment

        assert deployment is not None
        assert deployment.task_groups["group"].desired_total == 2

    def test_a_new_node_of_a_version_that_ran_begins_none(self) -> None:
        job = a_system()

        assert run_system(job, on(job, range(4)), nodes=5).deployment is None

    def test_no_node_at_all_begins_none(self) -> None:
        assert run_system(a_system(), nodes=0).deployment is None

    def test_all_healthy_ends_it(self) -> None:
        job = a_system()
        deployment = deploying(job, desired_total=4, healthy_allocs=4)

        wanted = run_system(job, on(job, range(4), deployment=deployment.id, health=True), deployment=deployment)

        assert [update.status for update in wanted.deployment_updates] == ["successful"]

    def test_nodes_that_cannot_run_it_do_not_keep_it_open(self) -> None:
        job = a_system()
        deployment = deploying(job, desired_total=3, healthy_allocs=3)
        records = on(job, range(3), deployment=deployment.id, health=True)

        closed = run_system(job, records, deployment=deployment, infeasible=[3])
        still_open = run_system(job, records, deployment=deployment, infeasible=[])

        assert [update.status for update in closed.deployment_updates] == ["successful"]
        assert still_open.deployment_updates == []

    def test_a_newer_version_cancels_it(self) -> None:
        job = a_system()

        updates = run_system(edited(job), on(job, range(4)), deployment=deploying(job)).deployment_updates

        assert [update.status for update in updates] == ["cancelled"]


class TestCanaries:
    @pytest.mark.parametrize(
        ("percent", "nodes", "max_parallel", "expected"),
        [(30, 10, 5, 3), (30, 10, 2, 2), (1, 10, 5, 1), (25, 10, 5, 3), (100, 10, 20, 10)],
    )
    def test_they_are_a_share_of_the_outdated_nodes(
        self, percent: int, nodes: int, max_parallel: int, expected: int
    ) -> None:
        job = a_system(update=UpdateStrategy(max_parallel=max_parallel, canary=percent))

        wanted = run_system(changed(job), on(job, range(nodes)), nodes=nodes)
        group = wanted.groups["group"]

        assert len(group.destructive) == expected
        assert all(one.is_canary for one in group.destructive)
        assert numbers(group) == {
            name: number for name, number in {"canary": expected, "ignore": nodes - expected}.items() if number
        }
        assert wanted.deployment is not None
        assert wanted.deployment.task_groups["group"].desired_canaries == expected
        assert "promotion" in wanted.deployment.status_description

    def stage(self, **state: Any) -> tuple[Job, Any, list[Allocation]]:
        old = a_system(update=UpdateStrategy(max_parallel=5, canary=30))
        new = changed(old)
        deployment = deploying(new, desired_total=10, desired_canaries=3, **state)
        canaries = on(new, range(3), canary=True, health=True, deployment=deployment.id)
        return new, deployment, [*canaries, *on(old, range(3, 10))]

    def test_while_they_wait_for_promotion_the_rest_stays(self) -> None:
        new, deployment, records = self.stage()

        assert run_system(new, records, nodes=10, deployment=deployment).is_calm

    def test_a_canary_less_is_made_up_for(self) -> None:
        new, deployment, records = self.stage()
        gone = {0: Taint.DOWN}

        wanted = run_group(new, records, nodes=10, deployment=deployment, tainted=gone)

        assert len(wanted.stops) == 1
        assert wanted.destructive == []
        later = run_group(new, records[1:], nodes=10, deployment=deployment, tainted=gone)
        assert [(one.node, one.is_canary) for one in later.destructive] == [(3, True)]

    def test_a_failed_canary_is_placed_again_as_one(self) -> None:
        new, deployment, records = self.stage()
        failed = on(new, [0], canary=True, client="failed", deployment=deployment.id)

        wanted = run_group(new, [*failed, *records[1:]], nodes=10, deployment=deployment)

        assert [(one.node, one.reason, one.is_canary) for one in wanted.special] == [(0, "again", True)]
        assert wanted.destructive == []

    def test_after_promotion_the_rest_rolls(self) -> None:
        new, deployment, records = self.stage(promoted=True)

        wanted = run_group(new, records, nodes=10, deployment=deployment)

        assert [one.node for one in wanted.destructive] == [3, 4, 5, 6, 7]
        assert not any(one.is_canary for one in wanted.destructive)
