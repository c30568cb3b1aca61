"""The region's state as a file: saved, restored, and refused when it is not what was saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from fedsched.model.errors import BadRequest, NotFound, TooLarge
from fedsched.raft.compaction import CompactionSettings
from fedsched.raft.snapshot_file import DamagedSnapshot
from fedsched.rpc.context import CallMeta
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.job import JOB_GET, JOB_LIST, JobListRequest, JobRequest
from fedsched.rpc.methods.raft import RAFT_SNAPSHOT_CHUNKS, RAFT_STATUS, SnapshotChunksRequest
from fedsched.rpc.methods.snapshot import SNAPSHOT_RESTORE, SNAPSHOT_SAVE, SnapshotReply
from fedsched.server.endpoints import snapshot
from tests.builders import a_job
from tests.server.region import Member, Region, run_region, until

PIECE_BYTES = 1000


async def save(member: Member) -> bytes:
    async with member.caller.open_stream(SNAPSHOT_SAVE, Empty()) as stream:
        data = b"".join([chunk async for chunk in stream])
        reply, _ = await stream.wait_reply()
    assert reply.size == len(data)
    return data


async def restore(member: Member, data: bytes) -> SnapshotReply:
    async with member.caller.open_stream(SNAPSHOT_RESTORE, Empty()) as stream:
        for at in range(0, len(data), PIECE_BYTES):
            if not await stream.send(data[at : at + PIECE_BYTES]):
                break
        stream.end_items()
        reply, _ = await stream.wait_reply()
    return reply


async def job_ids(member: Member) -> list[str]:
    return [job.id for job in (await member.call(JOB_LIST, JobListRequest())).jobs]


def kept_parts(member: Member) -> dict[str, int]:
    """The digests of what users stored; a new leader notes its own term beside it."""
    parts = member.server.machine.store.digest_parts()
    return {name: parts[name] for name in ("jobs", "job_versions", "evaluations", "namespaces", "sessions")}


async def digests(members: list[Member]) -> set[tuple[int, str]]:
    statuses = [await member.call(RAFT_STATUS) for member in members]
    return {(status.state_index, status.state_digest) for status in statuses}


async def settled(region: Region) -> None:
    members = region.running()
    await until(
        "everybody has applied the same", lambda: len({one.server.raft.applier.applied for one in members}) == 1
    )


def test_a_saved_state_comes_back_on_every_server_and_indexes_go_on_rising(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (follower, _) = await region.leader(), await region.followers()
        await leader.register("kept")
        saved = await save(follower)
        await leader.register("lost")
        before = (await leader.register(a_job("kept", region="", priority=90))).index

        reply = await restore(follower, saved)

        assert reply.index > before
        assert reply.size == len(saved)
        for member in region.running():
            assert await job_ids(member) == ["kept"]
            assert (await member.job("kept")).priority == 50
        after = await leader.register("new")
        assert after.index > reply.index
        await settled(region)
        assert len(await digests(region.running())) == 1

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_state_that_has_seen_more_than_the_log_is_taken_and_survives_restarts(tmp_path: Path) -> None:
    saved = b""
    seen = 0

    async def elsewhere(region: Region) -> None:
        nonlocal saved, seen
        leader = await region.form(1)
        for number in range(30):
            seen = (await leader.register(f"job-{number:02}")).index
        saved = await save(leader)

    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        log_index = (await leader.register("here")).index
        assert log_index < seen

        reply = await restore(leader, saved)
        written = await leader.register("after")

        assert seen < reply.index < written.index
        assert await job_ids(leader) == ["after", *(f"job-{number:02}" for number in range(30))]
        before = kept_parts(leader)
        await region.stop(leader)
        again = await region.restart(leader)
        await region.leader()
        await until("the log is replayed", lambda: again.server.raft.applier.applied >= again.server.raft.core.log.last)
        assert kept_parts(again) == before
        assert (await again.register("later")).index > written.index

    run_region(tmp_path / "there", elsewhere, num_schedulers=0)
    run_region(tmp_path / "here", scenario, num_schedulers=0)


def test_a_damaged_upload_is_refused_and_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await leader.register("web")
        saved = await save(leader)
        before = await digests([leader])
        middle = len(saved) // 2

        for damaged in (
            saved[:middle] + bytes([saved[middle] ^ 1]) + saved[middle + 1 :],
            saved[:-1],
            b"something else entirely" * 10,
        ):
            with pytest.raises(DamagedSnapshot):
                await restore(leader, damaged)
        with pytest.raises(BadRequest, match="nothing was sent"):
            await restore(leader, b"")
        monkeypatch.setattr(snapshot, "UPLOAD_BYTES_MAX", len(saved) - 1)
        with pytest.raises(TooLarge, match="bytes were sent"):
            await restore(leader, saved)

        assert await digests([leader]) == before
        assert list(leader.server.raft.restoring.images.directory.glob("*.tmp")) == []

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_restore_answers_every_blocking_query_with_a_higher_index(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await leader.register("web")
        saved = await save(leader)
        seen = (await leader.register(a_job("web", region="", priority=90))).index
        request, answers = JobRequest(job_id="web"), []

        async def ask(after: int, wait_s: float = 0) -> None:
            answers.append(await leader.caller.call(JOB_GET, request, CallMeta(min_index=after, max_wait_s=wait_s)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, seen)
            await until("it waits", lambda: len(leader.server.waits))
            reply = await restore(leader, saved)
        await ask(seen)  # whoever was away meanwhile is told at once as well

        assert [(job.job.priority, meta.index) for job, meta in answers] == [(50, reply.index)] * 2
        await ask(reply.index, 0.01)  # and after that there is no news any more
        assert answers[-1][1].index == reply.index

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_server_that_was_away_takes_part_in_the_restore_when_it_returns(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (away, _) = await region.leader(), await region.followers()
        await leader.register("kept")
        saved = await save(leader)
        await leader.register("lost")
        await region.stop(away)

        await restore(leader, saved)
        back = await region.restart(away)

        assert await job_ids(back) == ["kept"]
        await settled(region)
        assert len(await digests(region.running())) == 1

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_newcomer_is_brought_up_by_a_snapshot_when_the_log_no_longer_reaches_back(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        for number in range(40):
            await leader.register(f"job-{number:02}")
        await leader.server.raft.snapshotter.make()
        await until("the log is cut", lambda: leader.server.raft.core.status().first_index > 1)

        newcomer = await region.add("s2", bootstrap_expect=0)
        await until("it is in", lambda: len(leader.server.raft.core.config.members) == 2)

        assert len(await job_ids(newcomer)) == 40
        assert newcomer.server.raft.snapshotter.installed == 1
        await region.stop(newcomer)
        again = await region.restart(newcomer)
        assert len(await job_ids(again)) == 40

    run_region(
        tmp_path, scenario, num_schedulers=0, compaction=CompactionSettings(snapshot_entries=10_000, trailing_entries=4)
    )


def test_a_snapshot_nobody_has_is_not_found_and_one_that_is_there_can_be_read_from_anywhere(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        whole = await save(leader)
        newest = leader.server.raft.snapshots.latest()
        assert newest is not None

        async def chunks(snapshot_id: str, offset: int) -> bytes:
            request = SnapshotChunksRequest(snapshot_id=snapshot_id, offset=offset)
            async with leader.caller.open_stream(RAFT_SNAPSHOT_CHUNKS, request) as stream:
                return b"".join([chunk async for chunk in stream])

        assert await chunks(newest.id, 0) == whole
        assert await chunks(newest.id, 100) == whole[100:]
        with pytest.raises(NotFound):
            await chunks("0-0-nobody", 0)

    run_region(tmp_path, scenario, num_schedulers=0)
