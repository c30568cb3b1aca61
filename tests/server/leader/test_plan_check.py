"""What the applier lets through of a plan, and what it says about the rest."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from fedsched.model.alloc import ClientStatus
from fedsched.model.deployment import DeploymentState
from fedsched.model.node import DrainStrategy, Eligibility, NodeStatus
from fedsched.model.policies import DisconnectStrategy
from fedsched.server.leader.plan_check import Verdict
from fedsched.state.tables.alloc_columns import CLIENT_CODES, Flag
from fedsched.state.tables.deployment_groups import unpack_groups
from fedsched.state.tables.deployments import deployment_write
from fedsched.state.tables.evaluations import EvaluationWrite
from fedsched.state.tables.nodes import NodeDeregister
from fedsched.state.tables.plans import UpdatedGroup
from tests.builders import a_deployment, a_group, a_job, a_node, an_id
from tests.server.leader.site import (
    COMPLETE,
    EVICT,
    LOST,
    RUN,
    RUNNING,
    UNKNOWN,
    Site,
    placing,
    shared,
    stopping,
)
from tests.state.worlds import ids

DONE = EvaluationWrite(id=an_id(0xE), job_id="web", status="complete")


def placed_numbers(verdict: Verdict) -> list[int]:
    return [
        int.from_bytes(group.ids[at : at + 16], "big") & 0xFFFFFFFFFFFF
        for group in verdict.command.placed
        for at in range(0, len(group.ids), 16)
    ]


# ---------------------------------------------------------------------- room


def test_a_plan_that_fits_is_let_through_as_it_is() -> None:
    site = Site(a_node(1), a_node(2))
    plan = site.a_plan(placed=(placing([1, 2, 3], [0, 0, 1]),), ends=(DONE,))

    verdict = site.submit(plan)

    assert verdict.command is plan
    assert (verdict.is_whole, verdict.rejected, verdict.refresh_index) == (True, {}, 0)
    assert site.live() == {1, 2, 3}


@pytest.mark.parametrize(
    ("amounts", "why"),
    [
        ({"cpu": 4001}, "cpu"),
        ({"memory_mb": 8193}, "memory"),
        ({"disk_mb": 100_001}, "disk"),
    ],
)
def test_a_node_without_room_for_its_share_refuses_it_and_says_why(amounts: dict[str, int], why: str) -> None:
    site = Site(a_node(1), a_node(2))
    plan = site.a_plan(placed=(placing([1], [0], **amounts), placing([2], [1])))

    verdict = site.submit(plan)

    assert verdict.rejected == {0: why}
    assert placed_numbers(verdict) == [2]


def test_a_node_that_is_exactly_full_has_room_for_no_more() -> None:
    site = Site(a_node(1, cpu=1000))
    assert site.submit(site.a_plan(placed=(placing([1, 2], [0, 0], cpu=500),))).is_whole

    assert site.submit(site.a_plan(placed=(placing([3], [0], cpu=1),))).rejected == {0: "cpu"}


def test_placements_of_several_groups_on_one_node_are_added_up() -> None:
    site = Site(a_node(1, memory_mb=1000))
    plan = site.a_plan(
        placed=(placing([1], [0], memory_mb=600), placing([2], [0], memory_mb=600, group="other")),
    )

    assert site.submit(plan).rejected == {0: "memory"}
    assert site.live() == set()


def test_the_limit_of_allocations_on_a_node_is_kept() -> None:
    site = Site(a_node(1, node_max_allocs=2))
    assert site.submit(site.a_plan(placed=(placing([1, 2], [0, 0]),))).is_whole

    verdict = site.submit(site.a_plan(placed=(placing([3], [0]),)))

    assert verdict.rejected == {0: "max allocation exceeded"}


def test_what_the_plan_stops_makes_room_for_what_it_places() -> None:
    site = Site(a_node(1, cpu=1000))
    site.submit(site.a_plan(placed=(placing([1, 2], [0, 0], cpu=500),)))

    verdict = site.submit(site.a_plan(stopped=(stopping([1]),), placed=(placing([3], [0], cpu=500),)))

    assert verdict.is_whole
    assert site.live() == {2, 3}


def test_what_the_plan_evicts_makes_room_too() -> None:
    site = Site(a_node(1, cpu=1000))
    site.submit(site.a_plan(placed=(placing([1, 2], [0, 0], cpu=500),)))

    verdict = site.submit(site.a_plan(stopped=(stopping([1, 2], desired=EVICT),), placed=(placing([3], [0], cpu=900),)))

    assert verdict.is_whole


def test_a_stop_elsewhere_makes_no_room_here() -> None:
    site = Site(a_node(1, cpu=1000), a_node(2, cpu=1000))
    site.submit(site.a_plan(placed=(placing([1, 2], [0, 1], cpu=1000),)))

    verdict = site.submit(site.a_plan(stopped=(stopping([2]),), placed=(placing([3], [0], cpu=500),)))

    assert verdict.rejected == {0: "cpu"}
    assert site.live() == {1}  # the stop is on a node that nothing was refused on


def test_one_that_was_stopped_before_no_longer_counts_although_its_client_has_not_ended_it() -> None:
    site = Site(a_node(1, cpu=1000))
    site.submit(site.a_plan(placed=(placing([1], [0], cpu=1000),)))
    site.report([1], RUNNING)
    site.submit(site.a_plan(stopped=(stopping([1]),)))

    assert site.submit(site.a_plan(placed=(placing([2], [0], cpu=1000),))).is_whole


def test_one_that_its_client_has_ended_does_not_count_and_frees_nothing_twice() -> None:
    site = Site(a_node(1, cpu=1000))
    site.submit(site.a_plan(placed=(placing([1, 2], [0, 0], cpu=500),)))
    site.report([1], COMPLETE)

    over = site.check(site.a_plan(stopped=(stopping([1]),), placed=(placing([3, 4], [0, 0], cpu=500),)))
    fits = site.check(site.a_plan(stopped=(stopping([1]),), placed=(placing([3], [0], cpu=500),)))

    assert over.rejected == {0: "cpu"}
    assert fits.is_whole


def test_an_id_that_is_stopped_twice_in_one_plan_frees_its_place_once() -> None:
    site = Site(a_node(1, cpu=1000))
    site.submit(site.a_plan(placed=(placing([1, 2], [0, 0], cpu=500),)))

    verdict = site.submit(
        site.a_plan(stopped=(stopping([1]), stopping([1], desired=EVICT)), placed=(placing([3, 4], [0, 0], cpu=500),))
    )

    assert verdict.rejected == {0: "cpu"}


def test_a_placement_with_amounts_of_its_own_counts_with_those() -> None:
    site = Site(a_node(1, cpu=1000))
    plan = site.a_plan(placed=(placing([1, 2], [0, 0], cpu=100, own={1: shared(cpu=901)}),))

    assert site.submit(plan).rejected == {0: "cpu"}


# ---------------------------------------------------------------------- plans in flight


def test_plans_in_flight_take_their_room_before_they_are_committed() -> None:
    site = Site(a_node(1, cpu=1000))
    first = site.a_plan(placed=(placing([1], [0], cpu=600),))
    second = site.a_plan(placed=(placing([2], [0], cpu=600),))
    made = site.fleet.reserve(site.store, first)

    assert site.check(second).rejected == {0: "cpu"}

    site.fleet.release(made)
    assert site.check(second).is_whole


def test_an_allocation_that_a_plan_in_flight_stops_frees_its_place_for_one_other_only() -> None:
    site = Site(a_node(1, cpu=1000))
    site.submit(site.a_plan(placed=(placing([1, 2], [0, 0], cpu=500),)))
    first = site.a_plan(stopped=(stopping([1]),), placed=(placing([3], [0], cpu=500),))
    made = site.fleet.reserve(site.store, first)

    again = site.check(site.a_plan(stopped=(stopping([1]),), placed=(placing([4], [0], cpu=500),)))

    assert again.rejected == {0: "cpu"}
    site.fleet.release(made)


def test_an_allocation_that_ends_while_the_plan_that_stops_it_is_in_flight_is_not_freed_twice() -> None:
    site = Site(a_node(1, cpu=1000))
    site.submit(site.a_plan(placed=(placing([1, 2], [0, 0], cpu=500),)))
    first = site.a_plan(stopped=(stopping([1]),))
    made = site.fleet.reserve(site.store, first)

    site.report([1], COMPLETE)

    assert site.check(site.a_plan(placed=(placing([3, 4], [0, 0], cpu=500),))).rejected == {0: "cpu"}
    assert site.check(site.a_plan(placed=(placing([3], [0], cpu=500),))).is_whole
    site.fleet.release(made)
    site.commit(first)
    assert site.submit(site.a_plan(placed=(placing([3], [0], cpu=500),))).is_whole


# ---------------------------------------------------------------------- the state of nodes


def test_a_node_that_is_gone_refuses_everything() -> None:
    site = Site(a_node(1), a_node(2))
    plan = site.a_plan(placed=(placing([1, 2], [0, 1]),))
    site.do(NodeDeregister(ids=(an_id(1),)))

    verdict = site.submit(plan)

    assert verdict.rejected == {0: "node does not exist"}
    assert site.live() == {2}


def test_a_slot_that_was_given_to_another_node_since_the_plan_was_made_is_refused() -> None:
    site = Site(a_node(1))
    plan = site.a_plan(placed=(placing([1], [0]),))
    site.do(NodeDeregister(ids=(an_id(1),)))
    assert site.put_node(a_node(2)) == 0

    assert site.submit(plan).rejected == {0: "node does not exist"}


def test_a_slot_that_never_was_is_refused() -> None:
    site = Site(a_node(1))

    assert site.submit(site.a_plan(placed=(placing([1], [4_000_000_000]),))).rejected == {
        4_000_000_000: "node does not exist"
    }


def test_a_node_that_is_initializing_refuses_everything() -> None:
    site = Site(a_node(1))
    site.submit(site.a_plan(placed=(placing([1], [0]),)))
    site.put_node(a_node(1, status=NodeStatus.INITIALIZING))

    new = site.check(site.a_plan(placed=(placing([2], [0]),)))
    kept = site.check(site.a_plan(updated=(UpdatedGroup(group="group", ids=ids([1])),)))

    assert new.rejected == kept.rejected == {0: "node is initializing, not ready for placements"}


@pytest.mark.parametrize(
    "fields",
    [{"scheduling_eligibility": Eligibility.INELIGIBLE}, {"drain_strategy": DrainStrategy()}],
    ids=["ineligible", "draining"],
)
def test_a_ready_node_that_takes_nothing_new_still_lets_updates_through(fields: dict[str, Any]) -> None:
    site = Site(a_node(1))
    site.submit(site.a_plan(placed=(placing([1], [0]),)))
    site.put_node(a_node(1, **fields))
    update = UpdatedGroup(group="group", ids=ids([1]), shared=shared())

    assert site.submit(site.a_plan(updated=(update,))).is_whole
    both = site.check(site.a_plan(updated=(update,), placed=(placing([2], [0]),)))
    assert both.rejected == {0: "node is not eligible"}


def test_updates_pass_on_a_node_that_is_over_its_capacity() -> None:
    site = Site(a_node(1, cpu=4000))
    site.submit(site.a_plan(placed=(placing([1, 2], [0, 0], cpu=2000),)))
    site.put_node(a_node(1, cpu=1000))
    update = UpdatedGroup(group="group", ids=ids([1]), shared=shared(cpu=2000))

    assert site.check(site.a_plan(updated=(update,))).is_whole


def test_an_update_that_takes_more_counts_with_the_difference_when_something_new_comes_beside_it() -> None:
    site = Site(a_node(1, cpu=1000))
    site.submit(site.a_plan(placed=(placing([1], [0], cpu=400),)))

    def with_update(cpu: int) -> Verdict:
        update = UpdatedGroup(group="group", ids=ids([1]), shared=shared(cpu=cpu))
        return site.check(site.a_plan(updated=(update,), placed=(placing([2], [0], cpu=500),)))

    assert with_update(500).is_whole
    assert with_update(501).rejected == {0: "cpu"}


def test_a_disconnected_node_takes_only_the_word_unknown() -> None:
    site = Site(a_node(1))
    site.submit(site.a_plan(placed=(placing([1], [0]),)))
    site.put_node(a_node(1, status=NodeStatus.DISCONNECTED))
    unknown = stopping([1], desired=RUN, client_status=UNKNOWN)
    why = {0: "node is disconnected and allocs are not unknown"}

    assert site.check(site.a_plan(stopped=(unknown,))).is_whole
    assert site.check(site.a_plan(stopped=(stopping([1], desired=RUN),))).rejected == why
    assert site.check(site.a_plan(stopped=(unknown,), placed=(placing([2], [0]),))).rejected == why
    assert site.check(site.a_plan(updated=(UpdatedGroup(group="group", ids=ids([1])),))).rejected == why


def test_a_disconnected_node_lets_what_is_unknown_there_go_on() -> None:
    site = Site(a_node(1))
    site.submit(site.a_plan(placed=(placing([1], [0]),)))
    site.put_node(a_node(1, status=NodeStatus.DISCONNECTED))
    site.submit(site.a_plan(stopped=(stopping([1], desired=RUN, client_status=UNKNOWN),)))

    assert site.check(site.a_plan(updated=(UpdatedGroup(group="group", ids=ids([1])),))).is_whole
    assert site.check(site.a_plan(stopped=(stopping([1], desired=RUN),))).is_whole


@pytest.mark.parametrize(("replace", "passes"), [(False, True), (True, False), (None, False)])
def test_a_node_that_is_down_takes_the_word_unknown_only_for_groups_that_want_no_replacement(
    replace: bool | None, passes: bool
) -> None:
    group = a_group(disconnect=DisconnectStrategy(replace=replace))
    site = Site(a_node(1), job=a_job(groups=[group]))
    site.submit(site.a_plan(placed=(placing([1], [0]),)))
    site.put_node(a_node(1, status=NodeStatus.DOWN))

    verdict = site.check(site.a_plan(stopped=(stopping([1], desired=RUN, client_status=UNKNOWN),)))

    assert verdict.is_whole is passes


def test_a_node_that_is_down_takes_lost_and_nothing_else() -> None:
    site = Site(a_node(1))
    site.submit(site.a_plan(placed=(placing([1], [0]),)))
    site.put_node(a_node(1, status=NodeStatus.DOWN))

    assert site.check(site.a_plan(stopped=(stopping([1], client_status=LOST),))).is_whole
    assert not site.check(site.a_plan(placed=(placing([2], [0]),))).is_whole
    assert not site.check(site.a_plan(updated=(UpdatedGroup(group="group", ids=ids([1])),))).is_whole
    gone = site.check(site.a_plan(stopped=(stopping([7], desired=RUN, client_status=UNKNOWN),)))
    assert gone.is_whole  # nothing is known of such an allocation: there is nothing to refuse


def test_pure_stops_always_pass_whatever_the_node() -> None:
    site = Site(a_node(1), a_node(2))
    site.submit(site.a_plan(placed=(placing([1, 2], [0, 1]),)))
    site.put_node(a_node(1, status=NodeStatus.DOWN))
    site.do(NodeDeregister(ids=(an_id(2),)))

    verdict = site.submit(site.a_plan(stopped=(stopping([1, 2]),)))

    assert verdict.is_whole
    assert site.live() == set()


# ---------------------------------------------------------------------- what is left of a plan


def test_of_a_refused_node_the_whole_share_is_left_out_stops_and_updates_too() -> None:
    site = Site(a_node(1, cpu=1000), a_node(2))
    site.submit(site.a_plan(placed=(placing([1, 2, 3, 4], [0, 1, 0, 1], cpu=100),)))
    plan = site.a_plan(
        stopped=(stopping([1, 2]),),
        updated=(UpdatedGroup(group="group", ids=ids([3, 4])),),
        placed=(placing([5, 6], [0, 1], cpu=2000),),
        ends=(DONE,),
    )

    verdict = site.submit(plan)

    assert verdict.rejected == {0: "cpu"}
    assert site.live() == {1, 3, 4, 6}
    assert verdict.command.updated[0].ids == ids([4])
    assert verdict.command.ends == ()


def test_all_at_once_means_that_one_refusal_empties_the_plan() -> None:
    site = Site(a_node(1, cpu=100), a_node(2))
    site.submit(site.a_plan(placed=(placing([9], [1]),)))
    plan = site.a_plan(
        placed=(placing([1, 2], [0, 1]),),
        stopped=(stopping([9]),),
        evaluations=(EvaluationWrite(id=an_id(5), job_id="web"),),
        ends=(DONE,),
    )

    verdict = site.submit(plan, all_at_once=True)

    assert verdict.is_empty
    assert verdict.rejected == {0: "cpu"}
    assert site.live() == {9}


def test_all_at_once_lets_a_plan_through_that_fits() -> None:
    site = Site(a_node(1))

    assert site.submit(site.a_plan(placed=(placing([1], [0]),)), all_at_once=True).is_whole


def test_whoever_is_refused_is_told_to_look_from_the_newest_write_of_nodes_and_allocations() -> None:
    site = Site(a_node(1, cpu=100))
    site.submit(site.a_plan(placed=(placing([1], [0], cpu=10),)))
    newest = site.index
    site.register(a_job("other"))

    verdict = site.check(site.a_plan(placed=(placing([2], [0], cpu=4000),)))

    assert verdict.refresh_index == newest < site.index


def test_columns_of_what_is_left_stay_in_step() -> None:
    site = Site(a_node(1, cpu=100), a_node(2), a_node(3))
    group = placing(
        [1, 2, 3, 4],
        [1, 0, 2, 0],
        own={0: shared(cpu=1), 1: shared(cpu=2), 2: shared(cpu=3)},
        previous=ids([11, 12, 13, 14]),
        score_names="binpack,devices",
        scores=struct.pack("<8f", 1, 2, 3, 4, 5, 6, 7, 8),
        cpu=500,
    )

    verdict = site.check(site.a_plan(placed=(group,)))

    left = verdict.command.placed[0]
    assert left.ids == ids([1, 3])
    assert left.previous == ids([11, 13])
    assert struct.unpack("<4f", left.scores) == (1, 3, 5, 7)
    assert [int.from_bytes(left.name_indexes[at : at + 4], "little") for at in (0, 4)] == [0, 2]
    assert [int.from_bytes(left.own_at[at : at + 4], "little") for at in (0, 4)] == [0, 1]
    site.commit(verdict.command)
    own = {record.id[-1]: record for record in (site.store.allocations.get(an_id(n)) for n in (1, 3)) if record}
    assert {n: r.allocated_resources.tasks["web"].cpu.cpu_shares for n, r in own.items()} == {"1": 1, "3": 3}


def test_own_fields_of_refused_placements_alone_leave_none() -> None:
    site = Site(a_node(1, cpu=100), a_node(2))
    group = placing([1, 2], [0, 1], own={0: shared(cpu=400)})

    left = site.check(site.a_plan(placed=(group,))).command.placed[0]

    assert (left.own_at, left.own, left.own_sizes) == (b"", b"", b"")


def test_a_deployment_does_not_count_on_canaries_that_were_refused() -> None:
    site = Site(a_node(1, cpu=100), a_node(2))
    deployment = a_deployment(7, task_groups={"group": DeploymentState(placed_canaries=(an_id(1), an_id(2)))})
    plan = site.a_plan(
        placed=(placing([1, 2], [0, 1], flags=int(Flag.CANARY)),),
        deployments=(deployment_write(deployment),),
        deployment_id=deployment.id,
    )

    verdict = site.check(plan)

    groups = unpack_groups(verdict.command.deployments[0].groups)
    assert groups["group"].canary_ids == (ids([2]),)


def test_a_deployment_keeps_its_canaries_when_only_others_were_refused() -> None:
    site = Site(a_node(1, cpu=100), a_node(2))
    write = deployment_write(a_deployment(7, task_groups={"group": DeploymentState(placed_canaries=(an_id(1),))}))
    plan = site.a_plan(placed=(placing([1], [1], flags=int(Flag.CANARY)), placing([2], [0])), deployments=(write,))

    assert site.check(plan).command.deployments == (write,)


def test_a_plan_without_anything_on_nodes_needs_no_look() -> None:
    site = Site()
    plan = site.a_plan(evaluations=(EvaluationWrite(id=an_id(5), job_id="web"),))

    assert site.submit(plan).is_whole


@pytest.mark.parametrize("gone", [True, False])
def test_what_is_noted_about_an_allocation_that_has_ended_asks_nothing_of_its_node(gone: bool) -> None:
    site = Site(a_node(1), a_node(2))
    site.submit(site.a_plan(placed=(placing([1], [0]),)))
    site.report([1], CLIENT_CODES[ClientStatus.FAILED])
    if gone:
        site.do(NodeDeregister(ids=(an_id(1),)))
    else:
        site.put_node(a_node(1, status=NodeStatus.DOWN))

    assert site.check(site.a_plan(stopped=(stopping([1], desired=RUN),))).is_whole
