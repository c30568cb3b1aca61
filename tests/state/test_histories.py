"""Properties of the whole state over long random histories of commands."""

from __future__ import annotations

from collections import Counter

import pytest

from fedsched.state.image import Restorer, save
from fedsched.state.store import Snapshot, Store
from tests.state.chance import Chance
from tests.state.worlds import World, dump, problems

SEEDS = range(25)
STEPS = 72


def restored(store: Store | Snapshot) -> Store:
    restorer = Restorer()
    for chunk in save(store.snapshot() if isinstance(store, Store) else store):
        restorer.feed(chunk)
    return restorer.finish()


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_logs_make_equal_stores_and_digests(seed: int) -> None:
    world = World()
    Chance(seed).steps(world, STEPS)
    other = world.replayed()

    assert other.digest() == world.store.digest()
    assert dump(other) == dump(world.store)


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_derived_equals_a_fresh_computation_at_any_time(seed: int) -> None:
    world = World()
    chance = Chance(seed)
    for _ in range(6):
        chance.steps(world, STEPS // 6)
        assert problems(world.store) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restored_store_is_the_same_and_goes_on_the_same(seed: int) -> None:
    world, other = World(), World()
    chance = Chance(seed)
    chance.steps(world, STEPS)
    other.store = restored(world.store)
    assert other.store.digest() == world.store.digest()
    assert dump(other.store) == dump(world.store)
    assert problems(other.store) == []

    for _ in range(STEPS // 3):
        command, request = chance.command(world), chance.request()
        assert other.do(command, request=request).result == world.do(command, request=request).result
    assert other.store.digest() == world.store.digest()
    assert dump(other.store) == dump(world.store)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_never_changes_and_its_image_is_that_of_its_moment(seed: int) -> None:
    world = World()
    chance = Chance(seed)
    chance.steps(world, STEPS // 3)
    held: list[tuple[Snapshot, dict[str, object], bytes]] = []
    for _ in range(STEPS):
        if chance.rng.random() < 0.15:
            held.append((world.store.snapshot(), dump(world.store), world.store.digest()))
        if held and chance.rng.random() < 0.1:
            held.pop(chance.rng.randrange(len(held)))
        world.do(chance.command(world), request=chance.request())

    for snapshot, then, digest in held:
        assert dump(snapshot) == then
        other = restored(snapshot)
        assert other.digest() == digest
        assert dump(other) == then
    assert world.store.keeper.held() == len({id(snapshot) for snapshot, _, _ in held})


def test_the_histories_are_worth_checking() -> None:
    """Chance must lead somewhere: most commands are carried out, and every kind of change happens often."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        world = World()
        chance = Chance(seed)
        chance.steps(world, 0)
        for _ in range(STEPS):
            command = chance.command(world)
            done = world.do(command, request=chance.request())
            assert not done.alarm
            seen["done" if done.result.is_done else "refused"] += 1
            for what in ("placed", "changed", "updated", "allocs"):
                seen[what] += int(done.result.value.get(what) or 0)

    assert seen["done"] > 3 * seen["refused"] > 0
    assert min(seen["placed"], seen["changed"], seen["updated"], seen["allocs"]) > 200, seen
