"""Who tasks run as: looked up on the host, and refused where operators say so."""

from __future__ import annotations

import pytest

from fedsched.drivers.driver import DriverError
from fedsched.drivers.isolation.users import DeniedUsers, TaskUser, find_user, parse_ranges


def test_nobody_is_the_default() -> None:
    user = find_user("")

    assert user.name == "nobody"
    assert user.uid != 0
    DeniedUsers().check(user)


@pytest.mark.parametrize("written", ["root", "0", "root:nogroup", "0:0", "0000"])
def test_root_is_refused_by_whatever_name(written: str) -> None:
    with pytest.raises(DriverError, match="may not run as user root"):
        DeniedUsers().check(find_user(written))


def test_root_is_let_through_once_the_list_is_cleared() -> None:
    DeniedUsers(names=()).check(find_user("root"))


def test_numbers_need_no_entry_on_the_host() -> None:
    assert find_user("81234") == TaskUser("81234", 81234, 81234)
    assert find_user("81234:5").gid == 5


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("no-such-user", "no user"),
        ("nobody:no-such-group", "no group"),
        ("4294967295", "highest"),
        ("nobody:99999999999999", "highest"),
        ("no\0body", "name"),
        ("nobody:\0", "no group"),
    ],
)
def test_users_that_cannot_be_are_refused(written: str, why: str) -> None:
    with pytest.raises(DriverError, match=why):
        find_user(written)


def test_ranges_of_ids_are_refused_with_both_ends() -> None:
    denied = DeniedUsers(names=(), uids=parse_ranges("0, 100-200"), gids=parse_ranges(["7", "8-9,11"]))

    for uid in (99, 201):
        denied.check(TaskUser("u", uid, 10))
    for uid in (0, 100, 150, 200):
        with pytest.raises(DriverError, match=f"uid {uid} is refused"):
            denied.check(TaskUser("u", uid, 10))
    for gid in (7, 8, 9, 11):
        with pytest.raises(DriverError, match=f"gid {gid} is refused"):
            denied.check(TaskUser("u", 1, gid))


@pytest.mark.parametrize("written", ["a", "5-", "9-3", "-5", "1-2-3", "1;2", "99999999999"])
def test_a_range_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(DriverError):
        parse_ranges(written)


def test_empty_ranges_are_none() -> None:
    assert parse_ranges("") == parse_ranges([]) == ()
