"""What a node's client is sent: everything once, then only what changed, and no part of it twice."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from fedsched.rpc.methods.node_frames import WatchFrame
from fedsched.rpc.node_watch import FRAME_MAX, KNOWN_MAX
from fedsched.server.uplink_frames import ENCODED_MAX, Encoded
from fedsched.server.uplinks import ENCODED_AT_ONCE
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, Reap
from tests.builders import a_group, a_job, a_task, an_id
from tests.server.leader.worlds import Region as World
from tests.server.uplink_kit import Site, run
from tests.state.worlds import ids


def test_a_new_stream_gets_everything_and_then_only_news() -> None:
    async def story(site: Site) -> None:
        site.place([1, 2], [0, 1])
        client = await site.join()
        first = client.frame()
        assert (first.is_whole, len(first.jobs), len(first.origins), client.knows) == (True, 1, 1, [an_id(1)])
        site.place([3, 4], [0, 1])
        await trio.sleep(1)
        second = client.frame()
        assert (second.is_whole, second.jobs, len(second.origins)) == (False, (), 1)
        assert client.knows == [an_id(1), an_id(3)]
        assert second.index == site.machine.store.index

    run(story)


def test_a_node_with_nothing_to_run_is_told_so() -> None:
    async def story(site: Site) -> None:
        client = await site.join()
        assert client.frame() == WatchFrame(index=site.machine.store.index, is_whole=True)

    run(story)


def test_many_changes_in_a_row_make_one_frame() -> None:
    async def story(site: Site) -> None:
        client = await site.join()
        client.frames()
        for number in range(1, 8):
            site.place([number], [0])
        site.touch([1])
        await trio.sleep(1)
        client.frame()
        assert len(client.knows) == 7
        assert client.seen.allocations[an_id(1)].desired_transition.migrate is True

    run(story)


def test_what_a_client_said_itself_is_not_sent_back() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        client = await site.join()
        client.frames()
        site.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x02"))
        await trio.sleep(1)
        assert client.frames() == []
        site.touch([1])
        await trio.sleep(1)
        assert client.frame().rows
        assert client.seen.allocations[an_id(1)].client_status.value == "running"

    run(story)


def test_changes_of_other_nodes_are_not_told() -> None:
    async def story(site: Site) -> None:
        client = await site.join(1)
        client.frames()
        site.place([1], [1])
        site.touch([1])
        await trio.sleep(1)
        assert client.frames() == []

    run(story)


def test_what_servers_forget_is_named() -> None:
    async def story(site: Site) -> None:
        site.place([1, 2], [0, 1])
        client, other = await site.join(1), await site.join(2)
        client.frames(), other.frames()
        site.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x03"))
        site.do(Reap(allocs=ids([1])))
        await trio.sleep(1)
        assert (client.frame().removed, client.knows, other.frames()) == (ids([1]), [], [])

    run(story)


def test_what_changes_and_is_forgotten_in_one_moment_is_only_named() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        client = await site.join()
        client.frames()
        site.touch([1])
        site.do(AllocStatusUpdate(ids=ids([1]), statuses=b"\x03"))
        site.do(Reap(allocs=ids([1])))
        await trio.sleep(1)
        frame = client.frame()
        assert (frame.removed, frame.rows) == (ids([1]), b"")

    run(story)


def test_kin_and_own_fields_come_along() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        client = await site.join()
        client.frames()
        site.place([2], [0], previous=[1])
        await trio.sleep(1)
        client.frames()
        seen = client.seen.allocations
        assert seen[an_id(2)].previous_allocation == an_id(1)
        assert seen[an_id(1)].next_allocation == an_id(2)

    run(story)


def test_more_allocations_than_a_frame_holds_come_in_several() -> None:
    async def story(site: Site) -> None:
        count = FRAME_MAX + 5
        site.place(list(range(1, count + 1)), [0] * count)
        client = await site.join()
        frames = client.frames()
        assert [frame.is_whole for frame in frames] == [True, False]
        assert len(client.knows) == count

    run(story)


def test_a_job_larger_than_an_item_arrives_whole() -> None:
    async def story(site: Site) -> None:
        large = a_task(env={f"V{number}": "x" * 1000 for number in range(700)})
        site.world.register(a_job("large", groups=[a_group(tasks=[large])]))
        site.place([1], [0], job="large")
        client = await site.join()
        assert len(client.unread) == 3
        client.frame()
        job = client.seen.allocations[an_id(1)].job
        assert job is not None
        assert job.task_groups[0].tasks[0].env == large.env

    run(story)


def test_an_origin_and_its_job_are_sent_once_and_again_when_long_forgotten() -> None:
    async def story(site: Site) -> None:
        client = await site.join()
        client.frames()
        site.place([1], [0], evaluation=0xE0)
        await trio.sleep(1)
        assert len(client.frame().jobs) == 1
        for number in range(2, KNOWN_MAX + 2):
            site.world.register(a_job(f"job{number}"))
            site.place([number], [0], job=f"job{number}", evaluation=0xE0 + number)
            await trio.sleep(1)
            frame = client.frame()
            assert (len(frame.jobs), len(frame.origins)) == (1, 1)
        site.touch([5])
        await trio.sleep(1)
        assert (client.frames()[0].origins) == ()
        site.touch([1])
        await trio.sleep(1)
        frame = client.frame()
        assert (len(frame.jobs), len(frame.origins)) == (1, 1)
        assert all(alloc.job is not None for alloc in client.seen.allocations.values())

    run(story)


def test_what_is_kept_encoded_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.node(1)
    encoded = Encoded()
    monkeypatch.setattr("fedsched.server.uplink_frames._keep.__defaults__", (3,))
    for number in range(1, 6):
        world.register(a_job(f"job{number}"))
        world.place([number], [0], job=f"job{number}", evaluation=0xE0 + number)
    refs = sorted(
        {int(row["origin"]) for row in world.store.allocations.columns.read(world.store.allocations.slots_of_node(0))}
    )
    for ref in refs:
        encoded.job(world.store, encoded.origin(world.store, ref).version)
    assert (len(encoded._origins), len(encoded._jobs), ENCODED_MAX > 3) == (3, 3, True)
    assert encoded.origin(world.store, refs[-1]) is encoded.origin(world.store, refs[-1])
    assert encoded.job(world.store, ("default", "nobody", 1, 0)) == b""
    encoded.forget()
    assert (encoded._origins, encoded._jobs) == ({}, {})


def test_what_servers_forget_while_frames_are_being_made_harms_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsched.server.uplinks.NODES_AT_ONCE", 1)

    async def story(site: Site) -> None:
        first, second = await site.join(1), await site.join(2)
        assert len(first.frames()) == len(second.frames()) == 1
        site.world.register(a_job("other"))
        site.place([1], [0])
        site.place([2], [1], job="other", evaluation=0xEE)
        taken = first.try_send

        def forget_the_second(item: bytes) -> bool:
            if site.world.store.allocations.slot_of(an_id(2)) >= 0:
                site.do(AllocStatusUpdate(ids=ids([2]), statuses=b"\x03"))
                site.do(Reap(allocs=ids([2])))
            return taken(item)

        first.try_send = forget_the_second  # type: ignore[method-assign]
        await trio.sleep(2)
        frame = second.frame()
        assert (frame.rows, frame.removed, second.knows) == (b"", ids([2]), [])
        assert len(first.frames()) == 1
        assert first.knows == [an_id(1)]

    run(story)


def test_many_nodes_are_served_in_portions_cut_where_a_node_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsched.server.uplinks.PORTION", 2)

    async def story(site: Site) -> None:
        clients = [await site.join(number) for number in (1, 2, 3)]
        for client in clients:
            client.frames()
        site.place([1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 2, 2])
        await trio.sleep(1)
        frames = [client.frame() for client in clients]
        assert [client.knows for client in clients] == [
            [an_id(1), an_id(2), an_id(3)],
            [an_id(4)],
            [an_id(5), an_id(6)],
        ]
        assert {frame.index for frame in frames} == {site.machine.store.index}

    run(story, nodes=3)


def test_what_changes_between_two_portions_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsched.server.uplinks.PORTION", 1)
    told: list[int] = []

    async def story(site: Site) -> None:
        first, second = await site.join(1), await site.join(2)
        first.frames(), second.frames()
        real = site.uplinks._send_portion

        async def send_portion(state: Any, slots: Any) -> None:
            await real(state, slots)
            if not told:
                told.append(1)
                site.touch([1])  # of the node that was just served
                site.touch([2])  # of the one that comes next: it is read as it is then, and told once more

        monkeypatch.setattr(site.uplinks, "_send_portion", send_portion)
        site.place([1, 2], [0, 1])
        await trio.sleep(1)
        assert (told, len(first.frames()), len(second.frames())) == ([1], 2, 2)
        for number, client in ((1, first), (2, second)):
            assert client.seen.allocations[an_id(number)].desired_transition.migrate is True

    run(story)


def test_jobs_are_encoded_with_turns_for_everybody_else() -> None:
    """A client that comes back with allocations of many jobs does not hold up the event loop."""

    async def story(site: Site) -> None:
        for number in range(1, 21):
            site.world.register(a_job(f"job-{number}"))
            site.place([number], [0], job=f"job-{number}")
        encoded, real = [0], site.uplinks._encoded.ahead

        def ahead(*args: Any) -> None:
            encoded[-1] += 1
            real(*args)

        class Turns(trio.abc.Instrument):
            def after_task_step(self, task: trio.lowlevel.Task) -> None:
                encoded.append(0)

        site.uplinks._encoded.ahead = ahead  # type: ignore[method-assign]
        trio.lowlevel.add_instrument(Turns())
        client = await site.join()
        assert (len(client.frame().jobs), len(client.knows)) == (20, 20)
        assert (sum(encoded), max(encoded)) == (20, ENCODED_AT_ONCE)

    run(story)
