"""Operators on attributes of nodes: the table of the specification, line by line."""

from __future__ import annotations

import pytest

from fedsched.model.constraint import Affinity, Constraint
from fedsched.scheduler.attributes import is_unique, lookup
from fedsched.scheduler.constraints import as_bool, as_float, as_integer, escapes, holds, matches, reason_of
from tests.builders import a_node, an_id


@pytest.mark.parametrize("operand", ["=", "==", "is"])
def test_equal_needs_both_sides_and_equal_text(operand: str) -> None:
    assert holds(operand, "a", "a")
    assert not holds(operand, "a", "b")
    assert not holds(operand, None, "a")
    assert not holds(operand, "a", None)
    assert not holds(operand, None, None)


@pytest.mark.parametrize("operand", ["!=", "not"])
def test_an_absent_side_is_a_value_of_its_own_for_unequal(operand: str) -> None:
    assert holds(operand, "a", "b")
    assert holds(operand, None, "x")
    assert holds(operand, "x", None)
    assert not holds(operand, None, None)
    assert not holds(operand, "a", "a")


@pytest.mark.parametrize(
    ("left", "operand", "right", "expected"),
    [
        ("10", "<", "1", False),
        ("1", "<", "10", True),
        ("1.5", "<", "10.5", True),
        ("bar", "<", "foo", True),
        ("1", ">", "foo", False),
        ("9", "<", "10", True),
        ("9007199254740993", ">", "9007199254740992", True),
        ("foo", "<", "foo", False),
        ("foo", "<=", "foo", True),
        ("foo", ">=", "foo", True),
        ("-3", "<", "+2", True),
        ("1", "<=", "1", True),
        ("1", ">=", "1", True),
        ("2", ">", "1", True),
        ("2", ">", "1.5", True),
        ("1e3", ">=", "1000", True),
        ("0x1p4", "<", "17", True),
        ("inf", ">", "1", True),
        (" 9", "<", "10", True),
        ("9_0", "<", "10", False),
        ("9223372036854775808", ">", "9223372036854775807", False),
    ],
)
def test_order_is_by_integers_else_floats_else_text(left: str, operand: str, right: str, expected: bool) -> None:
    assert holds(operand, left, right) is expected


def test_order_needs_both_sides() -> None:
    assert not holds("<", None, "1")
    assert not holds("<", "1", None)


def test_is_set_and_is_not_set_look_at_the_left_alone() -> None:
    assert holds("is_set", "", "")
    assert not holds("is_set", None, "")
    assert holds("is_not_set", None, "")
    assert not holds("is_not_set", "x", "")


def test_version_semver_and_regexp_need_both_sides() -> None:
    assert holds("version", "1.2.3", "~> 1.0")
    assert not holds("version", "1.3.0-beta1", ">= 0.6.1")
    assert holds("semver", "1.3.0-beta1", ">= 0.6.1")
    assert holds("regexp", "linux", "^l.n")
    for operand in ("version", "semver", "regexp", "set_contains", "set_contains_any"):
        assert not holds(operand, None, "1")
        assert not holds(operand, "1", None)


def test_sets_are_comma_lists_of_trimmed_items() -> None:
    assert holds("set_contains", "foo,bar,baz", "foo, bar ")
    assert holds("set_contains_all", "foo, bar,baz", "baz")
    assert holds("set_contains", "foo,bar", "bar,foo")
    assert not holds("set_contains", "foo,bar", "foo,qux")
    assert holds("set_contains_any", "foo,bar", "qux, bar")
    assert not holds("set_contains_any", "foo,bar", "qux")


def test_distinctness_is_always_true_of_the_node() -> None:
    assert holds("distinct_hosts", None, None)
    assert holds("distinct_property", None, "2")


def test_what_cannot_be_judged_is_false() -> None:
    assert not holds("resembles", "a", "a")
    assert not holds("regexp", "a", "(")
    assert not holds("version", "a", "1")
    assert not holds("semver", "1.0.0", "~> 1.0")


def test_every_documented_target_is_found() -> None:
    node = a_node(
        3,
        datacenter="dc7",
        node_class="large",
        node_pool="gpu",
        attributes={"kernel.name": "linux", "unique.x": "u"},
        meta={"rack": "r1"},
    )

    assert lookup("${node.unique.id}", node) == an_id(3)
    assert lookup("${node.unique.name}", node) == "node-3"
    assert lookup("${node.datacenter}", node) == "dc7"
    assert lookup("${node.class}", node) == "large"
    assert lookup("${node.pool}", node) == "gpu"
    assert lookup("${attr.kernel.name}", node) == "linux"
    assert lookup("${attr.unique.x}", node) == "u"
    assert lookup("${meta.rack}", node) == "r1"
    assert lookup("plain text", node) == "plain text"
    assert lookup("${attr.none}", node) is None
    assert lookup("${meta.none}", node) is None
    assert lookup("${node.region}", node) is None
    assert lookup("${device.model}", node) is None


@pytest.mark.parametrize("target", ["${unique.x}", "${node.unique.id}", "${attr.unique.x}", "${meta.unique.x}"])
def test_unique_targets_escape_on_either_side(target: str) -> None:
    assert is_unique(target)
    assert escapes(Constraint(l_target=target, r_target="x"))
    assert escapes(Constraint(l_target="x", r_target=target))


def test_common_targets_do_not_escape() -> None:
    assert not escapes(Constraint(l_target="${attr.kernel.name}", r_target="unique.linux"))
    assert not escapes(Affinity(l_target="${meta.rack}", r_target="r1", weight=10))


def test_both_sides_of_a_constraint_may_refer_to_the_node() -> None:
    node = a_node(attributes={"a": "1", "b": "1", "c": "2"})

    assert matches(Constraint(l_target="${attr.a}", r_target="${attr.b}"), node)
    assert not matches(Constraint(l_target="${attr.a}", r_target="${attr.c}"), node)


def test_a_reason_reads_as_the_constraint_was_written() -> None:
    assert reason_of(Constraint(l_target="${attr.kernel.name}", r_target="linux")) == "${attr.kernel.name} = linux"


def test_numbers_are_read_as_go_reads_them() -> None:
    assert as_integer("+7") == 7
    assert as_integer("-9223372036854775808") == -(2**63)
    assert as_integer("9223372036854775808") is None
    assert as_integer("") is None
    assert as_integer("-") is None
    assert as_integer("٣") is None
    assert as_integer("1" * 5000) is None
    assert as_float("1e999") is None
    assert as_float("-inf") == float("-inf")
    assert as_float("0x10") is None
    assert as_float("0x1p99999") is None
    assert as_float("1_0") is None
    assert as_float("x") is None
    assert as_float("1" * 5000) is None


def test_truth_values_are_read_as_go_reads_them() -> None:
    assert [as_bool(text) for text in ("1", "t", "TRUE", "true")] == [True] * 4
    assert [as_bool(text) for text in ("0", "f", "False", "F")] == [False] * 4
    assert as_bool("yes") is None
