"""Distinct hosts and distinct properties."""

from __future__ import annotations

import pytest

from fedsched.model.constraint import Constraint
from fedsched.scheduler.distinct import PropertyCount, PropertyLimit, Scope, distinct_hosts, property_limits
from tests.builders import a_group, a_job, a_node

RACK = "${meta.rack}"


def hosts(value: str = "") -> tuple[Constraint, ...]:
    return (Constraint(operand="distinct_hosts", r_target=value),)


def by_rack(value: str = "") -> tuple[Constraint, ...]:
    return (Constraint(operand="distinct_property", l_target=RACK, r_target=value),)


def a_count(limit: int = 1) -> PropertyCount:
    return PropertyCount(PropertyLimit(RACK, limit, Scope.JOB))


@pytest.mark.parametrize(
    ("value", "is_on"), [("", True), ("true", True), ("1", True), ("nonsense", True), ("false", False), ("0", False)]
)
def test_distinct_hosts_is_on_unless_it_clearly_says_false(value: str, is_on: bool) -> None:
    assert distinct_hosts(a_job(constraints=hosts(value)), a_group()) is (Scope.JOB if is_on else None)
    assert distinct_hosts(a_job(), a_group(constraints=hosts(value))) is (Scope.GROUP if is_on else None)


def test_the_jobs_wish_for_distinct_hosts_covers_the_groups() -> None:
    assert distinct_hosts(a_job(constraints=hosts()), a_group(constraints=hosts())) is Scope.JOB
    assert distinct_hosts(a_job(constraints=hosts("false")), a_group(constraints=hosts())) is Scope.GROUP
    assert distinct_hosts(a_job(), a_group()) is None
    assert distinct_hosts(a_job(constraints=by_rack()), a_group(constraints=by_rack())) is None


@pytest.mark.parametrize(("value", "limit"), [("", 1), ("1", 1), ("3", 3), ("0", 1), ("x", 1), ("٣", 1)])
def test_a_property_may_be_used_once_unless_said_otherwise(value: str, limit: int) -> None:
    limits = property_limits(a_job(constraints=by_rack(value)), a_group(constraints=by_rack()))

    assert limits == (PropertyLimit(RACK, limit, Scope.JOB), PropertyLimit(RACK, 1, Scope.GROUP))


def test_a_value_is_open_until_its_limit_is_reached() -> None:
    count = a_count(limit=2)
    count.add("a", "r1")

    assert count.why_not("r1") is None
    assert (count.used("r1"), count.left("r1")) == (1, 1)
    count.add("b", "r1")
    assert count.why_not("r1") == "distinct_property: ${meta.rack}=r1 used by 2 allocs"
    assert count.why_not("r2") is None


def test_a_node_without_the_property_is_infeasible() -> None:
    count = a_count()

    assert count.why_not_on(a_node()) == 'missing property "${meta.rack}"'
    assert count.why_not_on(a_node(meta={"rack": "r1"})) is None


def test_an_allocation_counts_once_however_often_it_is_named() -> None:
    count = a_count(limit=2)
    count.add("a", "r1")
    count.add("a", "r1")

    assert count.used("r1") == 1
    count.remove("a")
    count.remove("a")
    assert count.used("r1") == 0


def test_an_allocation_that_moved_counts_where_it_is_now() -> None:
    count = a_count()
    count.add("a", "r1")
    count.add("a", "r2")

    assert (count.used("r1"), count.used("r2")) == (0, 1)
    count.add("a", None)
    assert count.used("r2") == 0


def test_stopping_what_was_never_counted_frees_nothing() -> None:
    count = a_count()
    count.add("a", "r1")
    count.remove("stranger")

    assert count.used("r1") == 1


def test_many_can_be_counted_at_once() -> None:
    count = a_count(limit=5)
    count.add_many("r1", 3)
    count.add("a", "r1")

    assert count.left("r1") == 1
