"""What a node's client is sent: everything once, then what changed, and all anew when it lags too far behind."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from fedsched.model.errors import Unavailable
from fedsched.rpc.node_watch import WatchedAllocations
from fedsched.server.duties import no_duties
from fedsched.server.leader.client_updates_core import Report
from fedsched.server.machine import StateMachine
from fedsched.server.uplinks import FRAME_MAX, PENDING_MAX, Uplink, Uplinks
from fedsched.state.apply import ApplyResult
from fedsched.state.changes import Changes
from fedsched.state.store import Store
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, Reap
from fedsched.state.tables.nodes import NodeDeregister
from fedsched.telemetry.log import Hub
from tests.builders import a_group, a_job, an_id
from tests.state.worlds import World, ids


def a_world() -> World:
    world = World()
    world.nodes(2)
    world.register(a_job(groups=[a_group(count=9)]))
    return world


def tell(uplink: Uplink, done: ApplyResult) -> None:
    for change in done.changes.allocs:
        mine = change.node_slots == uplink.node_slot
        kept = [change.ids[16 * at : 16 * at + 16] for at in np.flatnonzero(mine).tolist()]
        uplink.note(change.slots[mine], b"".join(kept), removed=change.removed)


def test_a_new_stream_gets_everything_and_then_only_news() -> None:
    world, seen = a_world(), WatchedAllocations(an_id(1))
    world.place([1, 2], [0, 1])
    uplink = Uplink(an_id(1), 0)
    assert uplink.has_news
    (first,) = uplink.take(world.store)
    seen.take(first)
    assert (first.is_whole, list(seen.allocations), uplink.has_news) == (True, [an_id(1)], False)

    tell(uplink, world.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x02")))
    assert uplink.take(world.store) == []  # the client said so itself
    tell(uplink, world.place([3, 4], [0, 1]))
    (second,) = uplink.take(world.store)

    assert ([one.id for one in seen.take(second)], second.jobs) == ([an_id(3)], ())


def test_what_servers_forget_is_named() -> None:
    world, seen = a_world(), WatchedAllocations(an_id(1))
    world.place([1], [0])
    uplink = Uplink(an_id(1), 0)
    seen.take(uplink.take(world.store)[0])
    tell(uplink, world.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x03")))
    tell(uplink, world.do(Reap(allocs=ids([1]))))
    (frame,) = uplink.take(world.store)
    seen.take(frame)

    assert (frame.removed, seen.allocations) == (ids([1]), {})


def test_a_stream_that_lags_too_far_behind_starts_over() -> None:
    world = a_world()
    world.place([1], [0])
    uplink = Uplink(an_id(1), 0)
    uplink.take(world.store)
    uplink.note(np.arange(PENDING_MAX + 1), b"", removed=False)
    (frame,) = uplink.take(world.store)

    assert (frame.is_whole, len(frame.origins)) == (True, 1)


def test_many_allocations_come_in_several_frames() -> None:
    world = a_world()
    count = FRAME_MAX + 5
    world.place(list(range(1, count + 1)), [0] * count)
    seen = WatchedAllocations(an_id(1))
    frames = Uplink(an_id(1), 0).take(world.store)
    for frame in frames:
        seen.take(frame)

    assert ([frame.is_whole for frame in frames], len(seen.allocations)) == ([True, False], count)


def test_a_stream_ends_with_its_node_and_starts_over_when_the_state_is_replaced() -> None:
    machine = StateMachine(Hub().logger("test"))
    world = World()
    world.store = machine.store
    world.nodes(1)
    uplinks = Uplinks(machine)

    def changed(changes: Changes) -> None:
        for listener in machine._listeners:
            listener([changes])

    async def story() -> None:
        frames = uplinks.watch(an_id(1), 0)
        assert (await anext(frames)).is_whole
        assert len(uplinks) == 1
        changed(Changes(world.index, is_everything=True))
        assert (await anext(frames)).is_whole
        world.do(NodeDeregister(ids=(an_id(1),)))
        changed(Changes(world.index, is_everything=True))
        with pytest.raises(StopAsyncIteration):
            await anext(frames)
        assert len(uplinks) == 0

    trio.run(story)


def test_changes_of_other_nodes_wake_nobody() -> None:
    machine = StateMachine(Hub().logger("test"))
    world = World()
    world.store = machine.store
    world.nodes(2)
    world.register(a_job())
    uplinks = Uplinks(machine)

    async def story() -> None:
        frames = uplinks.watch(an_id(1), 0)
        await anext(frames)
        elsewhere = world.place([1], [1])
        here = world.place([2, 3], [0, 0])
        for listener in machine._listeners:
            listener([elsewhere.changes, here.changes])
        seen = WatchedAllocations(an_id(1))
        seen.take(await anext(frames))
        assert sorted(seen.allocations) == [an_id(2), an_id(3)]
        await frames.aclose()  # type: ignore[attr-defined]

    trio.run(story)


def test_services_that_do_not_run_say_so() -> None:
    duties = no_duties()

    async def story() -> None:
        with pytest.raises(Unavailable):
            await duties.client_updates.report(Report(node_id=an_id(1), ids=b"", statuses=b""))
        with pytest.raises(Unavailable):
            await duties.collect()

    trio.run(story)
    with pytest.raises(Unavailable):
        duties.heartbeats.beat(an_id(1))
    with pytest.raises(Unavailable):
        duties.dry_run(Store(), a_job(), True)
