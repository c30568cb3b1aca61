"""The whole job: stopping it, groups that are gone, what was stopped on nodes that are gone."""

from __future__ import annotations

from msgspec.structs import replace

from fedsched.scheduler.reconcile.held import Taint
from tests.builders import a_group, a_job, an_evaluation
from tests.scheduler.reconcile.kit import a_batch, a_service, alloc, allocs, id_of, run, stopped


def test_a_stopped_job_stops_whatever_lives() -> None:
    job = a_service(stop=True)
    records = [
        *allocs(job, 3),
        alloc(3, job, client="failed"),
        alloc(4, job, desired="stop"),
        alloc(5, job, node=5, client="unknown"),
    ]

    wanted = run(job, records, tainted={0: Taint.DOWN, 1: Taint.MISSING, 5: Taint.DISCONNECTED})

    stops = wanted.groups["group"].stops
    assert [(stop.held.name_index, stop.client_status, stop.description) for stop in stops] == [
        (0, "lost", "alloc is lost since its node is down"),
        (1, "lost", "alloc is lost since its node is down"),
        (2, None, "alloc not needed due to job update"),
        (5, None, "alloc not needed due to job update"),
    ]
    assert wanted.groups["group"].desired.stop == 4


def test_a_purged_job_does_the_same() -> None:
    job = a_service()

    wanted = run(None, allocs(job, 2), evaluation=an_evaluation(job=job))

    assert stopped(wanted.groups["group"]) == [0, 1]
    assert wanted.groups["group"].group is None


def test_a_group_that_the_job_no_longer_has_is_stopped() -> None:
    old = a_job(groups=[a_group("a", count=2), a_group("b", count=2)], create_index=5, version=1)
    new = replace(old, task_groups=old.task_groups[:1], version=2)
    records = [
        *(alloc(n, old, group="a") for n in range(2)),
        *(alloc(9 + n, old, group="b", index=n) for n in range(2)),
    ]

    wanted = run(new, records)

    assert stopped(wanted.groups["b"]) == [0, 1]
    assert wanted.groups["b"].desired.stop == 2
    assert stopped(wanted.groups["a"]) == []


def test_groups_are_gone_through_on_their_own() -> None:
    job = a_job(groups=[a_group("a", count=2), a_group("b", count=3)], create_index=5)

    wanted = run(job, [alloc(1, job, group="b", index=1)])

    assert wanted.groups["a"].fresh.tolist() == [0, 1]
    assert wanted.groups["b"].fresh.tolist() == [0, 2]


def test_told_to_stop_on_a_node_that_is_gone_is_lost() -> None:
    job = a_service(0)
    records = [
        alloc(0, job, node=0, desired="stop", client="running"),
        alloc(1, job, node=1, desired="evict", client="pending"),
        alloc(2, job, node=0, desired="stop", client="complete"),
        alloc(3, job, node=2, desired="stop", client="running"),
        alloc(4, job, node=3, desired="stop", client="running"),
    ]

    wanted = run(job, records, tainted={0: Taint.DOWN, 1: Taint.MISSING, 2: Taint.DISCONNECTED})

    assert [held.id for held in wanted.gone] == [id_of(0), id_of(1)]
    assert not wanted.is_calm


def test_an_unknown_original_of_a_stopped_job_is_stopped() -> None:
    job = replace(a_batch(1), stop=True)

    wanted = run(job, [alloc(0, job, client="unknown")])

    assert stopped(wanted.groups["group"]) == [0]


def test_nothing_known_and_nothing_wanted_is_calm() -> None:
    assert run(a_service(0)).is_calm
    assert run(None, evaluation=an_evaluation()).is_calm
