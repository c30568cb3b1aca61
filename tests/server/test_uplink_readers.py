"""Many readers, slow ones among them: all catch up, start over when they lag too far behind, and end in order."""

from __future__ import annotations

import pytest
import trio

from fedsched.server import uplinks as uplinks_module
from fedsched.server.pace import SHORTEST_S
from fedsched.server.uplinks import PENDING_MAX
from fedsched.state.changes import Changes
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, Reap
from fedsched.state.tables.nodes import NodeDeregister
from tests.builders import an_id
from tests.server.uplink_kit import Site, run
from tests.state.worlds import ids


def test_a_slow_reader_gets_what_it_missed_in_one_frame_when_it_reads_again() -> None:
    async def story(site: Site) -> None:
        client = await site.join(room=1)
        for number in range(1, 6):
            site.place([number], [0])
            await trio.sleep(1)
        assert len(client.unread) == 1
        client.frames()
        await trio.sleep(1)
        client.frames()
        await trio.sleep(1)
        client.frames()
        assert client.knows == [an_id(number) for number in range(1, 6)]
        await trio.sleep(1)
        assert client.frames() == []

    run(story)


def test_a_slow_reader_is_no_trouble_to_others() -> None:
    async def story(site: Site) -> None:
        slow, quick = await site.join(1, room=0), await site.join(2)
        quick.frames()
        site.place([1, 2], [0, 1])
        await trio.sleep(1)
        assert (len(slow.unread), quick.frame().is_whole) == (0, False)

    run(story)


def test_many_that_do_not_read_are_sent_fewer_and_larger_frames() -> None:
    async def story(site: Site) -> None:
        clients = [await site.join(number, room=2) for number in range(1, 41)]
        assert not site.reports.pace.is_behind
        for turn in range(30):
            numbers = list(range(1 + 40 * turn, 41 + 40 * turn))
            site.place(numbers, list(range(40)))
            await trio.sleep(2 * SHORTEST_S)
        assert site.reports.pace.is_behind
        for client in clients:
            client.room = 1_000
        await trio.sleep(5)
        assert all(len(client.frames()) <= 4 and len(client.knows) == 30 for client in clients)

    run(story, nodes=40)


def test_a_reader_that_lags_too_far_behind_starts_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PENDING_MAX == 20_000
    monkeypatch.setattr(uplinks_module, "PENDING_MAX", 4)

    async def story(site: Site) -> None:
        site.place([1], [0])
        client = await site.join(room=1)
        for number in range(2, 10):
            site.place([number], [0])
            await trio.sleep(1)
        frames = client.frames()
        while True:
            await trio.sleep(1)
            more = client.frames()
            if not more:
                break
            frames += more
        assert [frame.is_whole for frame in frames] == [True, False, True]
        assert len(client.knows) == 9

    run(story)


def test_more_changes_than_can_be_gathered_start_everybody_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uplinks_module, "GATHERED_MAX", 3)

    async def story(site: Site) -> None:
        client = await site.join()
        client.frames()
        site.place([1, 2, 3, 4], [0] * 4)
        await trio.sleep(1)
        assert (client.frame().is_whole, len(client.knows)) == (True, 4)

    run(story)


def test_nothing_is_lost_that_changes_while_others_are_served() -> None:
    async def story(site: Site) -> None:
        site.place([1, 2], [0, 1])
        first, second = await site.join(1), await site.join(2)
        first.frames(), second.frames()
        site.do(AllocStatusUpdate(ids=ids([1, 2]), statuses=b"\x03\x03"))
        taken = first.try_send

        def change_then_take(item: bytes) -> bool:
            first.try_send = taken  # type: ignore[method-assign]
            site.place([9], [1])  # of the node that is next
            return taken(item)

        first.try_send = change_then_take  # type: ignore[method-assign]
        site.do(Reap(allocs=ids([1, 2])))
        await trio.sleep(1)
        frames = second.frames()
        assert second.knows == [an_id(9)]
        assert [frame.index for frame in frames] == sorted(frame.index for frame in frames)
        assert frames[-1].index == site.machine.store.index

    run(story)


def test_many_nodes_are_served_in_turns() -> None:
    async def story(site: Site) -> None:
        count = 2 * uplinks_module.NODES_AT_ONCE + 3
        clients = [await site.join(number) for number in range(1, count + 1)]
        for client in clients:
            client.frames()
        site.place(list(range(1, count + 1)), list(range(count)))
        await trio.sleep(1)
        assert [len(client.frames()) for client in clients] == [1] * count
        assert all(client.knows == [an_id(client.number)] for client in clients)

    run(story, nodes=2 * uplinks_module.NODES_AT_ONCE + 3)


@pytest.mark.parametrize("is_early", [True, False])
def test_nodes_beyond_the_first_thousand_slots_are_served(is_early: bool) -> None:
    async def story(site: Site) -> None:
        first = await site.join(1)
        if is_early:
            client = await site.join(1100)
        site.place([1, 2], [1099, 0])
        await trio.sleep(1)
        if not is_early:
            client = await site.join(1100)
        assert (client.knows, first.knows) == ([], [])
        client.frames(), first.frames()
        assert (client.knows, first.knows) == ([an_id(1)], [an_id(2)])

    run(story, nodes=1100)


# ---- how streams end and start over -------------------------------------------------------------------------


def test_a_second_stream_of_a_node_ends_the_first() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        first = await site.join()
        second = await site.join()
        assert (first.ended.is_set(), first.error, second.ended.is_set()) == (True, None, False)
        assert (len(site.uplinks), second.frame().is_whole) == (1, True)
        site.place([2], [0])
        await trio.sleep(1)
        assert len(second.frames()) == 1

    run(story)


def test_the_stream_of_a_node_that_is_forgotten_ends() -> None:
    async def story(site: Site) -> None:
        first, second = await site.join(1), await site.join(2)
        site.do(NodeDeregister(ids=(an_id(1),)))
        await trio.sleep(1)
        assert (first.ended.is_set(), first.error, second.ended.is_set()) == (True, None, False)
        assert len(site.uplinks) == 1

    run(story)


def test_everybody_starts_over_when_the_state_is_replaced() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        first, second = await site.join(1), await site.join(2)
        first.frames(), second.frames()
        site.world.do(NodeDeregister(ids=(an_id(2),)))
        site.changed(Changes(site.machine.store.index, is_everything=True))
        await trio.sleep(1)
        again = first.frame()
        assert (again.is_whole, len(again.jobs), len(again.origins)) == (True, 1, 1)
        assert (second.ended.is_set(), second.frames(), len(site.uplinks)) == (True, [], 1)

    run(story)


def test_changes_without_any_stream_are_nobodys() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        await trio.sleep(1)
        assert (site.uplinks._gathered, len(site.uplinks)) == ([], 0)

    run(story)
