"""Properties of the whole state over random histories of commands."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.state.fields import Command
from fedsched.state.image import Restorer, save
from fedsched.state.store import Snapshot, Store
from fedsched.state.tables.sessions import RequestId
from tests.state.worlds import World, dump, histories, problems

History = list[tuple[Command, RequestId | None]]


def restored(store: Store | Snapshot) -> Store:
    restorer = Restorer()
    for chunk in save(store.snapshot() if isinstance(store, Store) else store):
        restorer.feed(chunk)
    return restorer.finish()


@given(histories())
@settings(max_examples=80)
def test_equal_logs_make_equal_stores_and_digests(history: History) -> None:
    world = World()
    for command, request in history:
        world.do(command, request=request)

    other = world.replayed()

    assert other.digest() == world.store.digest()
    assert dump(other) == dump(world.store)


@given(histories())
@settings(max_examples=80)
def test_everything_derived_equals_a_fresh_computation(history: History) -> None:
    world = World()
    for command, request in history:
        world.do(command, request=request)

    assert problems(world.store) == []


@given(histories(), histories(max_size=12))
@settings(max_examples=60)
def test_a_restored_store_is_the_same_and_goes_on_the_same(history: History, more: History) -> None:
    world = World()
    for command, request in history:
        world.do(command, request=request)

    other = World()
    other.store = restored(world.store)
    assert other.store.digest() == world.store.digest()
    assert dump(other.store) == dump(world.store)
    assert problems(other.store) == []

    for command, request in more:
        assert other.do(command, request=request).result == world.do(command, request=request).result
    assert other.store.digest() == world.store.digest()
    assert dump(other.store) == dump(world.store)


@given(histories(max_size=40), st.data())
@settings(max_examples=60)
def test_a_snapshot_never_changes_and_its_image_is_that_of_its_moment(history: History, data: st.DataObject) -> None:
    world = World()
    held: list[tuple[Snapshot, dict[str, object], bytes]] = []
    for command, request in history:
        if data.draw(st.integers(0, 3)) == 0:
            held.append((world.store.snapshot(), dump(world.store), world.store.digest()))
        if held and data.draw(st.integers(0, 4)) == 0:
            held.pop(data.draw(st.integers(0, len(held) - 1)))
        world.do(command, request=request)

    for snapshot, then, digest in held:
        assert dump(snapshot) == then
        other = restored(snapshot)
        assert other.digest() == digest
        assert dump(other) == then
    assert world.store.keeper.held() == len({id(snapshot) for snapshot, _, _ in held})
