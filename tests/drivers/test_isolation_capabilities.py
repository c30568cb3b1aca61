"""Which capabilities a task gets: the sum of defaults, what operators allow, and what jobs drop and add."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.drivers.driver import DriverError
from fedsched.drivers.isolation.capabilities import (
    DEFAULT,
    KERNEL_ORDER,
    mask_of,
    names_of,
    parse,
    task_capabilities,
)

NAMES = st.sets(st.sampled_from(KERNEL_ORDER), max_size=len(KERNEL_ORDER))


@given(allowed=NAMES, add=NAMES, drop=NAMES)
def test_a_task_holds_what_is_usual_and_allowed_less_what_it_drops_and_what_it_adds(
    allowed: set[str], add: set[str], drop: set[str]
) -> None:
    if not add <= allowed:
        with pytest.raises(DriverError, match="does not allow"):
            task_capabilities(allowed, add, drop)
        return

    found = task_capabilities(allowed, add, drop)

    assert found.bounding == ((DEFAULT & allowed) - drop) | add
    assert found.ambient == add
    assert found.bounding <= allowed
    assert found.ambient <= found.bounding
    assert found.masks == (mask_of(found.bounding), mask_of(found.ambient))


@given(names=NAMES)
def test_masks_and_names_are_the_same_thing(names: set[str]) -> None:
    assert names_of(mask_of(names)) == names
    assert mask_of(names).bit_count() == len(names)


@given(names=NAMES)
def test_names_are_read_as_people_write_them(names: set[str]) -> None:
    assert parse([f" CAP_{name.upper()} " for name in names]) == parse(names) == names


def test_the_default_set_is_the_usual_one_without_net_raw() -> None:
    assert mask_of(DEFAULT) == 0xA80405FB
    assert "net_raw" not in DEFAULT


def test_the_kernel_knows_no_capability_that_we_do_not() -> None:
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())

    assert last < len(KERNEL_ORDER) + 8
    assert KERNEL_ORDER[21] == "sys_admin"
    assert KERNEL_ORDER[40] == "checkpoint_restore"


def test_dropping_all_leaves_nothing_but_what_is_added() -> None:
    found = task_capabilities(drop=["ALL"], add=["net_bind_service"])

    assert found.bounding == {"net_bind_service"}


def test_adding_all_is_refused_unless_all_is_allowed() -> None:
    with pytest.raises(DriverError, match="sys_admin"):
        task_capabilities(add=["all"])

    assert len(task_capabilities(["all"], add=["all"]).ambient) == len(KERNEL_ORDER)


@pytest.mark.parametrize(
    ("written", "hint"), [("net_rawr", "net_raw"), ("", "capabilities"), ("sys admin", "sys_admin")]
)
def test_a_word_that_is_no_capability_is_refused_with_the_nearest(written: str, hint: str) -> None:
    with pytest.raises(DriverError, match=hint):
        task_capabilities(add=[written])
