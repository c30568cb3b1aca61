"""Simulated pools: what must hold, what is promised, and bugs that must be noticed."""

from __future__ import annotations

import pytest

from fedsched.gossip.messages import State
from fedsched.gossip.profiles import FED
from fedsched.sim.gossip_mutants import MUTANTS, noticed_at
from fedsched.sim.gossip_net import NetOptions
from fedsched.sim.gossip_run import run_seed
from fedsched.sim.gossip_world import GossipWorld

SEEDS = 24
"""Part of every run; `fedsched/sim/gossip_run.py` takes any number."""


@pytest.mark.sim
@pytest.mark.parametrize("first", range(0, SEEDS, 8))
def test_seeds_hold_every_invariant(first: int) -> None:
    for seed in range(first, first + 8):
        run_seed(seed)


@pytest.mark.sim
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_noticed(name: str) -> None:
    assert noticed_at(name, 0, 12) is not None


def test_a_seed_tells_the_same_story_twice() -> None:
    one, other = run_seed(3), run_seed(3)

    assert one.counts == other.counts
    assert one.failures == other.failures


@pytest.mark.parametrize("seed", range(3))
def test_a_death_is_known_to_all_of_48_in_time(seed: int) -> None:
    world = GossipWorld(seed, 48)
    world.run(5.0)
    victim = world.hosts[seed]
    world.kill(victim)

    assert world.run_until(lambda: world.all_hold(victim.name, State.DEAD), 30) <= 9


def test_a_member_that_was_away_for_a_moment_is_nobodys_dead() -> None:
    world = GossipWorld(1, 24)
    world.run(5.0)
    sleeper = world.hosts[7]
    world.pause(sleeper)
    world.run(7.0)
    world.resume(sleeper)

    world.run(30.0)

    assert world.failures == []
    assert world.all_hold(sleeper.name, State.ALIVE)


def test_a_member_that_was_away_for_long_is_back_at_once_when_it_is_back() -> None:
    world = GossipWorld(1, 24)
    sleeper = world.hosts[7]
    world.pause(sleeper)
    world.run(30.0)
    assert world.all_hold(sleeper.name, State.DEAD)
    world.resume(sleeper)

    assert world.run_until(lambda: world.all_hold(sleeper.name, State.ALIVE), 30) <= 5


def test_frozen_members_do_not_take_healthy_ones_with_them() -> None:
    world = GossipWorld(2, 48)
    frozen = world.hosts[:4]
    for _ in range(2):
        for host in frozen:
            world.pause(host)
        world.run(world.now + 12)
        for host in frozen:
            world.resume(host)
        world.run(world.now + 3)

    names = {host.name for host in frozen}
    assert {name for _, _, name in world.failures} <= names


def test_a_one_way_cut_between_two_regions_kills_nobody() -> None:
    world = GossipWorld(3, 9, net=NetOptions(far_s=0.04))
    world.run(5.0)
    world.net.region_cuts.add((0, 1))

    world.run(105.0)

    assert world.failures == []


def test_a_region_that_was_cut_off_is_noticed_on_both_sides_and_found_again() -> None:
    world = GossipWorld(4, 9, net=NetOptions(far_s=0.04))
    world.run(5.0)
    world.net.region_cuts |= {(0, 1), (0, 2), (1, 0), (2, 0)}
    lost = [host for host in world.hosts if host.region == 0]
    rest = [host for host in world.hosts if host.region != 0]

    def split() -> bool:
        one = all(world.state_of(a, b.name) is State.DEAD for a in rest for b in lost)
        return one and all(world.state_of(b, a.name) is State.DEAD for a in rest for b in lost)

    assert world.run_until(split, 60) <= 30
    world.net.heal()
    assert world.run_until(lambda: all(world.all_hold(h.name, State.ALIVE) for h in world.hosts), 60) <= 10


def test_a_large_pool_costs_a_member_no_more_than_a_small_one() -> None:
    costs = []
    for count in (10, 300):
        world = GossipWorld(5, count)
        world.run(10.0)
        costs.append(world.counts["packets"] / count)

    assert costs[1] <= 1.1 * costs[0]


def test_ten_thousand_members_stand_on_one_table() -> None:
    world = GossipWorld(6, 10_000)

    world.run(0.2)

    assert world.counts["packets"] > 2_000
    assert world.hosts[0].core is not None
    assert world.hosts[0].core.members.up == 10_000
    assert world.profile is FED
