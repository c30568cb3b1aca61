"""Formulas that grow with the pool."""

from __future__ import annotations

import pytest

from fedsched.gossip.profiles import FED, LAN, PROFILES, WAN


@pytest.mark.parametrize(("members", "limit"), [(1, 4), (9, 4), (10, 8), (99, 8), (100, 12), (1000, 16)])
def test_news_is_repeated_with_the_logarithm_of_the_pool(members: int, limit: int) -> None:
    assert LAN.retransmit_limit(members) == limit


@pytest.mark.parametrize(("members", "wait"), [(9, 60), (32, 60), (33, 120), (48, 120), (65, 180), (1000, 360)])
def test_full_exchanges_become_rarer_in_large_pools(members: int, wait: float) -> None:
    assert WAN.push_pull_s(members) == wait


def test_fed_is_the_only_one_that_adapts_and_keeps_its_promise_at_48() -> None:
    shortest, _ = FED.suspicion_bounds_s(48)
    worst_first_look = FED.ring_every * FED.probe_interval_s

    assert [name for name, profile in PROFILES.items() if profile.is_adaptive] == ["fed"]
    assert worst_first_look + FED.probe_interval_s + shortest < 8.5
