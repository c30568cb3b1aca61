"""What a server makes of the data directory it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsched.model.errors import FedschedError
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.errors import OutcomeUnknown
from fedsched.raft.storage import DamagedStore
from fedsched.server.machine import StateMachine
from fedsched.telemetry.log import Hub
from tests.server.region import Member, Region, run_region


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_a_damaged_snapshot_is_reported_and_the_log_is_used_where_it_still_reaches(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await leader.register("web")
        await leader.server.raft.snapshotter.make()
        await region.stop(leader)
        (snapshot,) = (leader.options.data_dir / "raft" / "snapshots").glob("*")
        flip(snapshot, snapshot.stat().st_size // 2)

        again = await region.restart(leader)

        await region.leader()
        assert len(again.said("snapshot_unusable")) == 1
        assert (await again.job("web")).id == "web"

    run_region(tmp_path, scenario)


def test_a_damaged_log_is_refused_and_the_directory_let_go(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await leader.register("web")
        await region.stop(leader)
        log = leader.options.data_dir / "raft" / "log.db"
        log.write_bytes(b"\x00" * log.stat().st_size)

        for _ in range(2):  # the second attempt meets the same damage, not a directory that is still locked
            with pytest.raises(DamagedStore):
                await Member(leader.options).server.run()

    run_region(tmp_path, scenario)


def test_an_entry_that_is_not_understood_is_an_alarm_and_changes_nothing() -> None:
    hub = Hub()
    told = hub.subscribe("error")
    machine = StateMachine(hub.logger("test"))
    before = machine.digest()

    result = machine.apply(Entry(5, 1, EntryKind.COMMAND, b"\xff\xff"))
    machine.after_apply(5)

    assert isinstance(result.error(), FedschedError)
    assert machine.alarms == 1
    assert [event.name for event in told.take()] == ["entry_not_understood"]
    assert machine.digest() != before  # the index moved on; the tables did not
    assert machine.store.index == 5


def test_a_server_that_has_ended_writes_nothing_more_whatever_still_arrives(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await region.stop(leader)
        raft = leader.server.raft

        with pytest.raises(OutcomeUnknown, match="stopping"):
            await raft.propose(b"too late")
        raft.store_done(1 << 40)  # as the disk's thread says when it finished what it had begun
        raft.deliver([])

        assert raft.core.has_effects

    run_region(tmp_path, scenario)
