"""How long a suspect has, and how others shorten it."""

from __future__ import annotations

import pytest

from fedsched.gossip.profiles import FED, LAN, LOCAL, WAN, Profile
from fedsched.gossip.suspicion import Suspicion, timeout_s


@pytest.mark.parametrize(
    ("profile", "members", "waits"),
    [
        (LOCAL, 9, [18.0, 3.0]),
        (LAN, 3, [4.0]),
        (LAN, 9, [24.0, 11.38, 4.0]),
        (LAN, 48, [40.35, 19.13, 6.72]),
        (WAN, 9, [180.0, 115.4, 77.6, 50.8, 30.0]),
        (WAN, 48, [302.6, 194.0, 130.5, 85.4, 50.4]),
        (FED, 9, [24.0, 11.38, 4.0]),
    ],
)
def test_each_confirmation_shortens_the_wait_as_tabulated(profile: Profile, members: int, waits: list[float]) -> None:
    shortest, longest = profile.suspicion_bounds_s(members)
    wanted = profile.confirmations_wanted(members)

    assert wanted == len(waits) - 1
    found = [timeout_s(count, wanted, shortest, longest) for count in range(len(waits))]
    assert found == pytest.approx(waits, rel=2e-3)


def test_the_first_accuser_is_no_confirmation_and_nobody_counts_twice() -> None:
    suspicion = Suspicion(1, "a", 0.0, (4.0, 24.0), 2)

    assert not suspicion.confirm("a")
    assert suspicion.ends_at(within_reach=9) == 24.0
    assert suspicion.confirm("b")
    assert not suspicion.confirm("b")
    assert suspicion.confirm("c")
    assert suspicion.ends_at(within_reach=9) == 4.0
    assert not suspicion.confirm("d")  # enough already


def test_no_more_confirmations_are_wanted_than_there_are_members_in_reach() -> None:
    suspicion = Suspicion(1, "a", 0.0, (4.0, 24.0), 4)
    suspicion.confirm("b")

    assert suspicion.ends_at(within_reach=1) == 4.0
    assert suspicion.ends_at(within_reach=8) > 10


def test_whoever_hears_nobody_at_all_keeps_the_long_wait() -> None:
    assert Suspicion(1, "a", 0.0, (4.0, 24.0), 2).ends_at(within_reach=0) == 24.0
