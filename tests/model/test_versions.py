"""Version constraints: the vectors of the specification, and the rules around them."""

from __future__ import annotations

import pytest

from fedsched.model.versions import compare, parse_constraint, parse_version, satisfies


@pytest.mark.parametrize(
    ("version", "constraint", "expected"),
    [
        ("1.2.3", "~> 1.0", True),
        ("2.0.1", "~> 1.0", False),
        ("1.4", ">= 1.0, < 1.4", False),
        ("1.3.0-beta1", ">= 0.6.1", False),
        ("1.7.0-alpha1", ">= 1.6.0-beta1", False),
        ("1.3.0-beta1+ent", "= 1.3.0-beta1", True),
        ("1.0.9", "~> 1.0.3", True),
        ("1.1.0", "~> 1.0.3", False),
        ("1.0.2", "~> 1.0.3", False),
        ("2.5", "~> 2", True),
        ("1.9", "~> 2", False),
        ("1.2", "~> 1.2.0.4", False),
        ("1.2.0.5", "~> 1.2.0.4", True),
        ("1.2.3", "1.2.3", True),
        ("v1.2.3", "= 1.2.3", True),
        ("1.2", "= 1.2.0", True),
        ("1.2.3", "!= 1.2.3", False),
        ("1.2.4", "!= 1.2.3", True),
        ("1.2.4", "> 1.2.3", True),
        ("1.2.3", "> 1.2.3", False),
        ("1.2.3", "<= 1.2.3", True),
        ("1.2.3", "< 1.2.3", False),
        ("1.2.3", ">=1.0,<2", True),
        ("1.6.0-rc1", ">= 1.6.0-beta1", True),
        ("1.6.0", ">= 1.6.0-beta1", True),
        ("1.6.0", "~> 1.6.0-beta1", False),
        ("1.6.0-rc1", "~> 1.6.0-beta1", True),
        ("1.3.0-beta1", "!= 1.2.0", True),
        ("1.2.3beta", "= 1.2.3-beta", True),
        ("not a version", ">= 1.0", False),
        ("1.2.3", "nonsense", False),
        ("1.2.3", ">= 1.0, nonsense", False),
        ("1.2.3", "", False),
        ("99999999999999999999", ">= 1.0", False),
        ("1" * 600, ">= 1.0", False),
        ("1.2.3", ">= 1.0," * 200 + ">= 1.0", False),
        ("\u0661.2.3", ">= 1.0", False),
    ],
)
def test_version_constraint(version: str, constraint: str, expected: bool) -> None:
    assert satisfies(version, constraint) is expected


@pytest.mark.parametrize(
    ("version", "constraint", "expected"),
    [
        ("1.3.0-beta1", ">= 0.6.1", True),
        ("1.7.0-alpha1", ">= 1.6.0-beta1", True),
        ("1.3.0-beta1+ent", "= 1.3.0-beta1", True),
        ("1.2.3", "~> 1.0", False),
        ("1.0.0", "~> 1.0", False),
        ("1.3.0-beta1", "< 1.3.0", True),
        ("1.3.0", "< 1.3.0", False),
        ("1.3.0", "<= 1.3.0", True),
        ("1.3.0", "> 1.3.0-rc.1", True),
        ("1.3.0-rc.2", "!= 1.3.0-rc.1", True),
        ("1.2.3beta", ">= 1.0", False),
    ],
)
def test_semver_constraint(version: str, constraint: str, expected: bool) -> None:
    assert satisfies(version, constraint, semver=True) is expected


def test_pre_releases_are_ordered_as_semantic_versioning_2_lists_them() -> None:
    order = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
    ]
    versions = [parse_version(text) for text in [*order, "1.0.0", "1.0.0.1"]]

    for place, left in enumerate(versions):
        for other, right in enumerate(versions):
            assert left is not None
            assert right is not None
            assert compare(left, right) == (place > other) - (place < other)


def test_build_metadata_and_leading_zeros_of_a_pre_release_number_do_not_count() -> None:
    left, right = parse_version("1.0.0-rc.01+a"), parse_version("1.0.0-rc.1+b")

    assert left is not None
    assert right is not None
    assert compare(left, right) == 0


def test_a_comparison_without_operator_means_equal() -> None:
    terms = parse_constraint("1.2")

    assert terms is not None
    assert [(term.operator, term.version.numbers, term.version.written) for term in terms] == [("=", (1, 2, 0), 2)]
