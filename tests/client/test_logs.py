"""Logs read from real files, while they are written and rotated."""

from __future__ import annotations

import os
import resource
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel

from fedsched.client.file_wakes import IN_IGNORED, IN_Q_OVERFLOW, FileWakes, events_in
from fedsched.client.files import AllocFiles
from fedsched.client.logs import LogSource
from fedsched.model.errors import BadRequest, NotFound
from fedsched.rpc.caller import LocalCaller
from fedsched.rpc.methods.alloc_access import (
    ALLOC_LOGS,
    FILE_DELETED,
    FILE_TRUNCATED,
    FS_STREAM,
    AllocLogsRequest,
    FileFrame,
    FsStreamRequest,
    LogPlace,
)
from fedsched.telemetry.log import Hub
from tests.builders import an_id
from tests.client.access_kit import FakeClient, LogWriter, with_client

ALLOC = an_id(1)
Take = Callable[[FileFrame], Awaitable[bool]]


def logs_of(client: FakeClient) -> Path:
    return client.runners[ALLOC].context.root / "alloc" / "logs"


async def collect(caller: LocalCaller, request: Any, until: Callable[[bytes], bool] | None = None) -> list[FileFrame]:
    """The frames of a log until enough is there, or to its end."""
    method = ALLOC_LOGS if isinstance(request, AllocLogsRequest) else FS_STREAM
    frames: list[FileFrame] = []
    data = b""
    async with caller.open_stream(method, request) as stream:
        async for frame in stream:
            frames.append(frame)
            data += frame.data
            if until is not None and until(data):
                return frames
        await stream.wait_reply()
    return frames


def joined(frames: list[FileFrame]) -> bytes:
    return b"".join(frame.data for frame in frames)


def test_a_log_is_read_over_all_its_files_and_ends(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        for number, text in enumerate((b"one\n", b"two\n", b"three\n")):
            (logs_of(client) / f"web.stdout.{number}").write_bytes(text)
        (logs_of(client) / "web.stderr.0").write_bytes(b"trouble\n")
        (logs_of(client) / "web.stdout.tmp").write_bytes(b"no part of it")

        frames = await collect(caller, AllocLogsRequest(alloc_id=ALLOC, task="web"))

        assert joined(frames) == b"one\ntwo\nthree\n"
        assert [(frame.file, frame.offset) for frame in frames] == [
            ("alloc/logs/web.stdout.0", 4),
            ("alloc/logs/web.stdout.1", 4),
            ("alloc/logs/web.stdout.2", 6),
        ]
        assert joined(await collect(caller, AllocLogsRequest(alloc_id=ALLOC, type="stderr"))) == b"trouble\n"
        tail = AllocLogsRequest(alloc_id=ALLOC, origin="end", offset=8)
        assert joined(await collect(caller, tail)) == b"o\nthree\n"

    with_client(tmp_path, story)


def test_a_task_that_wrote_nothing_has_an_empty_log(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()

        assert await collect(caller, AllocLogsRequest(alloc_id=ALLOC)) == []

    with_client(tmp_path, story)


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"alloc_id": an_id(9)}, NotFound),
        ({"task": "db"}, NotFound),
        ({"type": "both"}, BadRequest),
        ({"origin": "middle"}, BadRequest),
        ({"offset": -1}, BadRequest),
        ({"place": LogPlace(file=-1, offset=0)}, BadRequest),
        ({"place": LogPlace(file=0, offset=-7)}, BadRequest),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(tmp_path: Path, fields: dict[str, Any], kind: type) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        with pytest.raises(kind):
            await collect(caller, AllocLogsRequest(**{"alloc_id": ALLOC, **fields}))

    with_client(tmp_path, story)


def test_several_tasks_and_none_named_is_an_error_that_lists_them(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add(tasks=("db", "web"))
        with pytest.raises(BadRequest, match=r"there are db, web"):
            await collect(caller, AllocLogsRequest(alloc_id=ALLOC))

    with_client(tmp_path, story)


def test_a_follower_sees_what_is_written_while_files_are_rotated_under_it(tmp_path: Path) -> None:
    lines = [b"%07d\n" % number for number in range(20_000)]

    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        writer = LogWriter(logs_of(client), max_bytes=4096, max_files=1_000)

        async def write() -> None:
            for number, line in enumerate(lines):
                writer.write(line)
                if not number % 500:
                    await trio.lowlevel.checkpoint()
            writer.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            request = AllocLogsRequest(alloc_id=ALLOC, follow=True)
            frames = await collect(caller, request, lambda data: data.endswith(lines[-1]))

        assert joined(frames) == b"".join(lines)
        assert not any(frame.missed_files or frame.file_event for frame in frames)

    with_client(tmp_path, story)


def test_a_reader_that_is_cut_off_again_and_again_goes_on_at_its_place(tmp_path: Path) -> None:
    lines = [b"%07d\n" % number for number in range(20_000)]

    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        writer = LogWriter(logs_of(client), max_bytes=4096, max_files=1_000)
        place: LogPlace | None = None
        seen = b""
        cuts = 0

        async def write() -> None:
            for number, line in enumerate(lines):
                writer.write(line)
                if not number % 100:
                    await trio.lowlevel.checkpoint()
            writer.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            while not seen.endswith(lines[-1]):
                async with caller.open_stream(
                    ALLOC_LOGS, AllocLogsRequest(alloc_id=ALLOC, follow=True, place=place)
                ) as stream:
                    for _ in range(1 + cuts % 7):
                        frame = await stream.receive()
                        seen += frame.data
                        if frame.file:
                            place = LogPlace(file=int(frame.file.rpartition(".")[2]), offset=frame.offset)
                cuts += 1

        assert seen == b"".join(lines)
        assert cuts > 5

    with_client(tmp_path, story)


def test_a_follower_that_comes_too_late_jumps_to_the_oldest_file_and_says_so(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        (logs_of(client) / "web.stdout.7").write_bytes(b"still here\n")

        request = AllocLogsRequest(alloc_id=ALLOC, place=LogPlace(file=3, offset=10))
        frames = await collect(caller, request)

        assert [(frame.data, frame.missed_files, frame.file_event) for frame in frames] == [
            (b"still here\n", 4, FILE_DELETED)
        ]

    with_client(tmp_path, story)


def test_what_is_open_is_read_to_its_end_also_after_it_was_rotated_away(tmp_path: Path) -> None:
    logs = tmp_path / "alloc" / "logs"
    logs.mkdir(parents=True)
    (logs / "web.stdout.0").write_bytes(b"x" * 300_000)
    source = LogSource(AllocFiles(tmp_path), "web", "stdout")
    source.open(follow=True, origin="start", offset=0, place=None)

    frames, _ = source.pieces()
    (logs / "web.stdout.0").unlink()
    (logs / "web.stdout.1").write_bytes(b"next")
    rest, is_done = source.pieces()

    assert sum(len(frame.data) for frame in frames) == 4 * 65536
    assert [len(frame.data) for frame in rest] == [300_000 - 4 * 65536, 4]
    assert not is_done
    source.close()


def test_a_deleted_and_a_truncated_log_are_told_of(tmp_path: Path) -> None:
    logs = tmp_path / "alloc" / "logs"
    logs.mkdir(parents=True)
    file = logs / "web.stdout.0"
    file.write_bytes(b"0123456789")
    source = LogSource(AllocFiles(tmp_path), "web", "stdout")
    source.open(follow=True, origin="end", offset=0, place=None)
    assert source.pieces() == ([], False)

    os.truncate(file, 0)
    assert [frame.file_event for frame in source.pieces()[0]] == [FILE_TRUNCATED]
    file.unlink()
    assert [frame.file_event for frame in source.pieces()[0]] == [FILE_DELETED]
    assert source.pieces() == ([], False)
    source.close()


@pytest.mark.parametrize("target", ["../../web/secrets/token", "/etc/passwd"])
def test_a_log_that_is_a_symlink_is_not_read(tmp_path: Path, target: str) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        root = client.add().context.root
        (root / "web" / "secrets" / "token").write_text("hush")
        (logs_of(client) / "web.stdout.0").symlink_to(target)
        (logs_of(client) / "web.stdout.1").write_text("fine")

        assert joined(await collect(caller, AllocLogsRequest(alloc_id=ALLOC))) == b"fine"

    with_client(tmp_path, story)


def test_a_task_that_swaps_its_log_for_a_symlink_shows_nothing_but_logs(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        root = client.add().context.root
        (root / "web" / "secrets" / "token").write_text("hush")
        log, link = logs_of(client) / "web.stdout.0", logs_of(client) / "link"
        is_over = False

        def swap() -> None:
            while not is_over:
                link.symlink_to("../../web/secrets/token")
                link.rename(log)
                (logs_of(client) / "new").write_text("fine")
                (logs_of(client) / "new").rename(log)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, swap)
            seen: list[bytes] = []
            while len(seen) < 5_000 and (len(seen) < 200 or b"fine" not in seen):
                seen.append(joined(await collect(caller, AllocLogsRequest(alloc_id=ALLOC))))
            is_over = True

        assert set(seen) <= {b"", b"fine"}
        assert b"fine" in seen

    with_client(tmp_path, story)


def test_an_idle_follower_gets_a_sign_of_life_every_second(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        started = trio.current_time()
        async with caller.open_stream(ALLOC_LOGS, AllocLogsRequest(alloc_id=ALLOC, follow=True)) as stream:
            assert await stream.receive() == FileFrame()
        assert 0.9 < trio.current_time() - started < 3

    with_client(tmp_path, story)


def test_a_follower_is_woken_and_does_not_poll(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        file = logs_of(client) / "web.stdout.0"
        file.write_bytes(b"a")
        async with caller.open_stream(ALLOC_LOGS, AllocLogsRequest(alloc_id=ALLOC, follow=True)) as stream:
            assert (await stream.receive()).data == b"a"
            with trio.fail_after(0.5):
                with file.open("ab") as out:
                    out.write(b"b")
                assert (await stream.receive()).data == b"b"

    with_client(tmp_path, story)


def test_where_there_is_no_inotify_bells_ring_by_the_clock(tmp_path: Path) -> None:
    async def main() -> None:
        wakes = FileWakes(Hub().logger("test"), use_inotify=False)
        directory = os.open(tmp_path, os.O_RDONLY)
        async with trio.open_nursery() as nursery:
            await nursery.start(wakes.run)
            with trio.fail_after(5), wakes.bell(directory, "web.") as bell:
                await bell.wait()
            nursery.cancel_scope.cancel()
        os.close(directory)

    trio.run(main)


def test_bells_ring_for_their_own_files_only_and_for_all_when_the_kernel_lost_count(tmp_path: Path) -> None:
    async def main() -> None:
        wakes = FileWakes(Hub().logger("test"))
        directory = os.open(tmp_path, os.O_RDONLY)
        async with trio.open_nursery() as nursery:
            await nursery.start(wakes.run)
            with wakes.bell(directory, "web.") as web, wakes.bell(directory, "db.") as db:
                (tmp_path / "web.stdout.0").write_text("x")
                with trio.fail_after(2):
                    await web.wait()
                with trio.move_on_after(0.05) as silence:
                    await db.wait()
                assert silence.cancelled_caught
                wakes._ring((-1).to_bytes(4, "little", signed=True) + IN_Q_OVERFLOW.to_bytes(4, "little") + bytes(8))
                with trio.fail_after(2):
                    await web.wait()
                    await db.wait()
            nursery.cancel_scope.cancel()
        os.close(directory)

    trio.run(main)


def test_a_directory_that_is_removed_leaves_its_bells_to_the_clock(tmp_path: Path) -> None:
    async def main() -> None:
        wakes = FileWakes(Hub().logger("test"))
        place = tmp_path / "logs"
        place.mkdir()
        directory = os.open(place, os.O_RDONLY)
        async with trio.open_nursery() as nursery:
            await nursery.start(wakes.run)
            with trio.fail_after(5), wakes.bell(directory, "web.") as bell:
                os.close(directory)
                place.rmdir()
                for _ in range(3):
                    await bell.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_events_of_the_kernel_are_taken_apart() -> None:
    data = b"\x01\0\0\0" + IN_IGNORED.to_bytes(4, "little") + bytes(4) + b"\x10\0\0\0" + b"web.stdout.0\0\0\0\0"

    assert list(events_in(data + b"cut")) == [(1, IN_IGNORED, "web.stdout.0")]


def test_a_reader_that_does_not_read_costs_no_memory(tmp_path: Path) -> None:
    """A writer far ahead of its reader: what is not read stays in files, and those are few."""

    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        writer = LogWriter(logs_of(client), max_bytes=1 << 20, max_files=3)
        block = b"x" * 65535 + b"\n"
        async with caller.open_stream(ALLOC_LOGS, AllocLogsRequest(alloc_id=ALLOC, follow=True)) as stream:
            writer.write(block)
            await stream.receive()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for number in range(1_600):  # 100 MB
                writer.write(block)
                if not number % 50:
                    await trio.sleep(0.001)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            missed = 0
            with trio.move_on_after(5):
                while not missed:
                    missed = (await stream.receive()).missed_files
        writer.close()
        assert missed > 0
        assert grown < 32 * 1024

    with_client(tmp_path, story)


def test_a_file_is_followed_as_it_grows_shrinks_and_vanishes(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        root = client.add().context.root
        file = root / "web" / "local" / "out.txt"
        file.write_bytes(b"0123456789")
        request = FsStreamRequest(alloc_id=ALLOC, path="/web/local/out.txt", origin="end", offset=3)
        async with caller.open_stream(FS_STREAM, request) as stream:
            first = await stream.receive()
            assert (first.data, first.offset, first.file) == (b"789", 10, "web/local/out.txt")
            file.write_bytes(b"new")
            events = [await stream.receive(), await stream.receive()]
            assert [(frame.file_event, frame.data) for frame in events if frame != FileFrame()] == [
                (FILE_TRUNCATED, b""),
                ("", b"new"),
            ]
            file.unlink()
            rest = [frame async for frame in stream if frame != FileFrame()]
            assert [frame.file_event for frame in rest] == [FILE_DELETED]

    with_client(tmp_path, story)


def test_a_file_that_is_not_followed_ends_where_it_ended_at_the_start(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        root = client.add().context.root
        (root / "alloc" / "data" / "big").write_bytes(b"y" * 600_000)
        request = FsStreamRequest(alloc_id=ALLOC, path="alloc/data/big", follow=False, offset=100)

        assert len(joined(await collect(caller, request))) == 599_900

    with_client(tmp_path, story)
