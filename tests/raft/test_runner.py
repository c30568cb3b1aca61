"""The runner over real files and sockets: what only the trio side can get wrong."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from fedsched.raft.errors import DiskPressure, NoQuorumRead, NotLeader, OutcomeUnknown, ProposalRefused
from fedsched.raft.runner import RaftFailed
from fedsched.raft.snapshots import SnapshotWriter
from fedsched.raft.storage import StoreFailed
from tests.raft.mini import TICK_S, MiniRegion, MiniServer, open_region

Story = Callable[[MiniRegion], Awaitable[None]]


def tell(tmp_path: Path, story: Story, count: int = 3) -> None:
    async def main() -> None:
        with trio.fail_after(30):
            async with open_region(tmp_path, count) as region:
                await story(region)

    trio.run(main)


async def follower_of(region: MiniRegion, leader: MiniServer) -> MiniServer:
    return next(server for server in region.servers if server is not leader)


def test_three_servers_elect_one_that_holds_office_and_all_apply_what_it_commits(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()

        index, count = await leader.runner.propose(b"one")
        await region.settled(1)

        assert (index >= 3, count) == (True, 1)
        assert [server.machine.items for server in region.servers] == [[b"one"]] * 3
        assert [server.is_in_office for server in region.servers].count(True) == 1

    tell(tmp_path, story)


def test_a_single_server_is_a_region_too(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()

        assert (await leader.runner.propose(b"alone"))[1] == 1
        assert await leader.runner.read_barrier() > 0

    tell(tmp_path, story, count=1)


def test_many_proposals_at_once_each_get_their_own_result(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        results: dict[int, int] = {}

        async def one(number: int) -> None:
            _, results[number] = await leader.runner.propose(b"%d" % number)

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(one, number)

        assert sorted(results.values()) == list(range(1, 201))
        assert all(leader.machine.items[count - 1] == b"%d" % number for number, count in results.items())

    tell(tmp_path, story)


def test_a_follower_refuses_proposals_and_names_the_leader(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        await leader.runner.propose(b"one")
        follower = await follower_of(region, leader)
        await region.settled(1)

        with pytest.raises(NotLeader) as refused:
            await follower.runner.propose(b"two")

        assert refused.value.leader == leader.name

    tell(tmp_path, story)


def test_a_read_barrier_on_a_follower_waits_for_what_was_acknowledged_before(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        for number in range(20):
            await leader.runner.propose(b"%d" % number)
            for server in region.servers:
                if server is not leader:
                    await server.runner.read_barrier()
                    assert len(server.machine.items) == number + 1

    tell(tmp_path, story)


def test_a_leader_that_lost_its_peers_leaves_outcomes_unknown_and_closes_its_office(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        for server in region.servers:
            if server is not leader:
                await server.stop()

        with pytest.raises(OutcomeUnknown, match="leadership was lost"):
            await leader.runner.propose(b"nobody hears this")
        with pytest.raises(NoQuorumRead):
            await leader.runner.read_barrier()
        assert not leader.is_in_office

    tell(tmp_path, story)


def test_a_restarted_server_has_everything_it_acknowledged(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        for number in range(10):
            await leader.runner.propose(b"%d" % number)
        for server in region.servers:
            await server.stop()
        for server in region.servers:
            await region.start(server)

        again = await region.leader()
        await again.runner.propose(b"after")
        await region.settled(11)

        assert all(server.machine.items == [*(b"%d" % n for n in range(10)), b"after"] for server in region.servers)

    tell(tmp_path, story)


def test_a_server_that_was_away_for_long_gets_a_snapshot_and_then_the_log(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        away = await follower_of(region, leader)
        await away.stop()
        for number in range(60):
            await leader.runner.propose(b"%d" % number)
        while all(peer.is_active for peer in leader.runner.core.status().peers):
            await trio.sleep(TICK_S)
        await leader.runner.snapshotter.make()
        assert leader.runner.core.status().first_index > 20
        for number in range(60, 70):
            await leader.runner.propose(b"%d" % number)

        await region.start(away)
        await region.settled(70)

        assert away.machine.items == [b"%d" % n for n in range(70)]
        assert away.runner.snapshotter.installed == 1

    tell(tmp_path, story)


def test_a_snapshot_shortens_the_log_and_a_restart_begins_from_it(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        for number in range(40):
            await leader.runner.propose(b"%d" % number)
        meta = await leader.runner.snapshotter.make()
        await leader.stop()

        await region.start(leader)
        assert leader.disk.restored.snapshot == meta
        assert leader.disk.restored.prev_index > 0
        await region.leader()
        await region.settled(40)

        assert leader.machine.items == [b"%d" % n for n in range(40)]

    tell(tmp_path, story)


def test_a_snapshot_that_finds_no_room_stops_the_server_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        await leader.runner.propose(b"one")
        monkeypatch.setattr(SnapshotWriter, "finish", full)
        leader.runner.snapshotter.want()
        await leader.wait_stopped()

        assert isinstance(leader.failure, BaseExceptionGroup)
        found = leader.failure.split(StoreFailed)[0]
        assert found is not None
        assert "No space left on device" in repr(found)
        assert list(leader.runner.snapshots.directory.iterdir()) == []

    tell(tmp_path, story)


def test_leadership_is_handed_over_on_request(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        await leader.runner.propose(b"one")
        successor = await follower_of(region, leader)

        await leader.runner.transfer_leadership(successor.name)

        assert (await region.leader()) is successor
        assert not leader.is_in_office

    tell(tmp_path, story)


def test_a_transfer_that_nobody_takes_up_is_reported_and_the_leader_leads_on(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        target = await follower_of(region, leader)
        await target.stop()

        with pytest.raises(ProposalRefused, match="did not take over"):
            await leader.runner.transfer_leadership(target.name)

        await leader.runner.propose(b"still here")
        assert leader.runner.is_leader

    tell(tmp_path, story)


def test_an_entry_that_the_state_cannot_apply_stops_the_server(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        follower = await follower_of(region, leader)
        follower.machine.fails_on = b"poison"

        await leader.runner.propose(b"poison")
        await follower.wait_stopped()

        assert follower.failure is not None
        assert re.search(
            r"entry \d+ \(term \d+\) could not be applied: RuntimeError\('planted'\)", repr(follower.failure)
        )

    tell(tmp_path, story)


def test_a_failing_disk_stops_the_server_and_nothing_is_acknowledged_after_it(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        await leader.runner.propose(b"good")

        def fail(*_: object) -> None:
            raise StoreFailed("planted: no sync")

        leader.disk.log_store.write = fail  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await leader.runner.propose(b"bad")
        await leader.wait_stopped()

        assert leader.failure is not None
        assert leader.failure.split(RaftFailed)[0] is not None  # type: ignore[attr-defined]

    tell(tmp_path, story)


def test_a_store_whose_failure_is_still_on_its_way_ends_the_server_for_the_same_reason(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()

        def fail(*_: object) -> None:
            raise StoreFailed("planted: no sync")

        leader.runner.store.submit = fail  # type: ignore[method-assign]
        with pytest.raises(OutcomeUnknown):
            await leader.runner.propose(b"bad")
        await leader.wait_stopped()

        assert leader.failure is not None
        assert "the log store failed: planted: no sync" in repr(leader.failure.split(RaftFailed)[0])  # type: ignore[attr-defined]

    tell(tmp_path, story)


def test_a_short_disk_refuses_ordinary_writes_and_takes_essential_ones(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        leader.runner.is_short_of_space = True

        with pytest.raises(DiskPressure, match="nearly full"):
            await leader.runner.propose(b"ordinary")
        await leader.runner.propose(b"essential", is_essential=True)

        assert leader.machine.items == [b"essential"]

    tell(tmp_path, story)


def test_work_of_an_old_office_cannot_propose(tmp_path: Path) -> None:
    async def story(region: MiniRegion) -> None:
        leader = await region.leader()
        old = leader.offices[-1].epoch
        await leader.runner.propose(b"mine", epoch=old)

        await leader.runner.transfer_leadership()
        successor = await region.leader()
        await successor.runner.transfer_leadership(leader.name)
        assert (await region.leader()) is leader

        with pytest.raises(Exception, match="stale epoch"):
            await leader.runner.propose(b"old work", epoch=old)

    tell(tmp_path, story)
