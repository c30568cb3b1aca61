"""The files of an allocation from outside: what is shown, and what never is."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.client import files as files_module
from fedsched.client.files import AllocFiles, FileRefused
from fedsched.client.paths import PathEscapes
from fedsched.client.snapshots import write_snapshot
from fedsched.model.errors import BadRequest, FedschedError, NotFound
from fedsched.rpc.caller import LocalCaller
from fedsched.rpc.methods.alloc_access import (
    FS_CAT,
    FS_LIST,
    FS_READ_AT,
    FS_SNAPSHOT,
    FS_STAT,
    SNAPSHOT_ERROR,
    FsReadRequest,
    FsRequest,
)
from tests.builders import an_id
from tests.client.access_kit import FakeClient, with_client

ALLOC = an_id(1)


async def read(caller: LocalCaller, path: str, method: Any = FS_CAT, **fields: Any) -> bytes:
    request = FsReadRequest(alloc_id=ALLOC, path=path, **fields)
    async with caller.open_stream(method, request) as stream:
        data = b"".join([piece async for piece in stream])
        reply, _ = await stream.wait_reply()
        assert reply.bytes_sent == len(data)
        return data


async def names(caller: LocalCaller, path: str) -> list[str]:
    reply, _ = await caller.call(FS_LIST, FsRequest(alloc_id=ALLOC, path=path))
    return [one.name for one in reply.files]


def test_directories_are_listed_and_files_are_read(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        root = client.add().context.root
        (root / "web" / "local" / "a.txt").write_bytes(b"hello")
        (root / "web" / "local" / "b.bin").write_bytes(b"\0" * 200_000)

        assert await names(caller, "/") == ["alloc", "web"]
        assert await names(caller, "") == ["alloc", "web"]
        assert await names(caller, "web") == ["local", "private", "secrets"]
        reply, _ = await caller.call(FS_LIST, FsRequest(alloc_id=ALLOC, path="/web/local/"))
        assert [(one.name, one.size, one.is_dir, one.file_mode[0]) for one in reply.files] == [
            ("a.txt", 5, False, "-"),
            ("b.bin", 200_000, False, "-"),
        ]
        assert await read(caller, "web/local/a.txt") == b"hello"
        assert await read(caller, "web/local/b.bin") == b"\0" * 200_000
        assert await read(caller, "web/local/a.txt", FS_READ_AT, offset=1, limit=3) == b"ell"
        assert await read(caller, "web/local/a.txt", FS_READ_AT, offset=9) == b""
        stat, _ = await caller.call(FS_STAT, FsRequest(alloc_id=ALLOC, path="/web/local/a.txt"))
        assert (stat.file.name, stat.file.size, stat.file.content_type) == ("a.txt", 5, "text/plain; charset=utf-8")
        stat, _ = await caller.call(FS_STAT, FsRequest(alloc_id=ALLOC, path="/web/local/b.bin"))
        assert stat.file.content_type == "application/octet-stream"
        stat, _ = await caller.call(FS_STAT, FsRequest(alloc_id=ALLOC, path="/web/local"))
        assert stat.file.is_dir
        assert stat.file.content_type == ""

    with_client(tmp_path, story)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("../../../../etc/passwd", PathEscapes),
        ("web/../../other", PathEscapes),
        ("web/local/out", PathEscapes),
        ("web/local/up", PathEscapes),
        ("web/local/none", NotFound),
        ("web/local/dir", BadRequest),
        ("web/local/fifo", BadRequest),
        ("web/local/inside", FileRefused),
        ("web/local/dir/../inside-dir/token", FileRefused),
        ("web/secrets/token", FileRefused),
        ("web/./secrets//token", FileRefused),
        ("web/SECRETS/token", FileRefused),
        ("web/local/../Private/key", FileRefused),
        ("web/private/key", FileRefused),
        ("alloc/../web/secrets/token", FileRefused),
        ("web/local/nul\0", PathEscapes),
        ("web/local/loop", BadRequest),
        ("web/local/file/inner", NotFound),
    ],
)
def test_what_leads_out_or_to_secrets_is_refused(tmp_path: Path, path: str, kind: type[FedschedError]) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        root = client.add().context.root
        local = root / "web" / "local"
        (root / "web" / "secrets" / "token").write_text("hush")
        (root / "web" / "private" / "key").write_text("hush")
        (root.parent / "other").write_text("of somebody else")
        (local / "out").symlink_to("/etc/passwd")
        (local / "up").symlink_to("../../../other")
        (local / "dir").mkdir()
        (local / "file").write_text("x")
        (local / "inside").symlink_to("../secrets/token")
        (local / "inside-dir").symlink_to("../secrets")
        (local / "loop").symlink_to("loop")
        os.mkfifo(local / "fifo")

        with pytest.raises(kind):
            await read(caller, path)

    with_client(tmp_path, story)


@pytest.mark.parametrize("path", ["web/secrets", "web/Secrets/", "web/local/link", "web/local/a.txt"])
def test_neither_secrets_nor_files_are_listed(tmp_path: Path, path: str) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        root = client.add().context.root
        (root / "web" / "local" / "link").symlink_to("../private")
        (root / "web" / "local" / "a.txt").write_text("x")

        with pytest.raises((FileRefused, BadRequest)):
            await names(caller, path)

    with_client(tmp_path, story)


@pytest.mark.parametrize("fields", [{"offset": -1}, {"limit": -1}])
def test_a_part_of_a_file_that_makes_no_sense_is_refused(tmp_path: Path, fields: dict[str, int]) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        with pytest.raises(BadRequest):
            await read(caller, "web/local/a.txt", FS_READ_AT, **fields)
        with pytest.raises(BadRequest, match="file name"):
            await caller.call(FS_STAT, FsRequest(alloc_id=ALLOC, path="/"))

    with_client(tmp_path, story)


def test_a_directory_swapped_for_a_symlink_while_it_is_read_gives_nothing_away(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        root = client.add().context.root
        local = root / "web" / "local"
        outside = tmp_path / "outside"
        outside.mkdir()
        for place in (outside, root / "web" / "secrets", local / "good"):
            place.mkdir(exist_ok=True)
            (place / "file").write_text("fine" if place.name == "good" else "hush")
        targets = [str(outside), "../secrets", "good", "../private"]
        is_over = False

        def swap() -> None:
            turn = 0
            while not is_over:
                turn += 1
                (local / "new").symlink_to(targets[turn % 4])
                (local / "new").rename(local / "swapped")

        seen: set[bytes] = set()
        refused = 0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, swap)
            for _ in range(500):
                try:
                    seen.add(await read(caller, "web/local/swapped/file"))
                except FedschedError:
                    refused += 1
            is_over = True

        assert seen <= {b"fine"}
        assert refused

    with_client(tmp_path, story)


def test_a_long_directory_is_cut_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "LIST_MAX", 3)
    for number in range(5):
        (tmp_path / f"f{number}").touch()

    found, is_cut = AllocFiles(tmp_path).list("/")

    assert len(found) == 3
    assert is_cut


def test_an_allocation_without_a_directory_has_no_files(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no directory"):
        AllocFiles(tmp_path / "gone").list("/")


def test_a_snapshot_holds_what_a_replacement_takes_over(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        root = client.add(tasks=("web", "db")).context.root
        (root / "alloc" / "data" / "deep").mkdir()
        (root / "alloc" / "data" / "deep" / "file").write_bytes(b"d" * 200_000)
        (root / "web" / "local" / "link").symlink_to("/etc/passwd")
        (root / "web" / "local" / "run.sh").write_text("#!/bin/sh\n")
        (root / "web" / "local" / "run.sh").chmod(0o750)
        (root / "web" / "secrets" / "token").write_text("hush")
        (root / "alloc" / "logs" / "web.stdout.0").write_text("log")
        os.mkfifo(root / "db" / "local" / "fifo")

        async with caller.open_stream(FS_SNAPSHOT, FsRequest(alloc_id=ALLOC)) as stream:
            archive = b"".join([piece async for piece in stream])
            reply, _ = await stream.wait_reply()

        assert reply.bytes_sent == len(archive)
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            entries = {one.name: one for one in tar.getmembers()}
            assert sorted(entries) == [
                "alloc/data",
                "alloc/data/deep",
                "alloc/data/deep/file",
                "db/local",
                "web/local",
                "web/local/link",
                "web/local/run.sh",
            ]
            content = tar.extractfile("alloc/data/deep/file")
            assert content is not None
            assert content.read() == b"d" * 200_000
        assert entries["web/local/link"].issym()
        assert entries["web/local/run.sh"].mode == 0o750

    with_client(tmp_path, story)


def test_a_snapshot_that_cannot_be_finished_says_so_in_its_last_entry(tmp_path: Path) -> None:
    deep = tmp_path / "alloc" / "data"
    deep.mkdir(parents=True)
    fd = os.open(deep, os.O_RDONLY)
    for _ in range(250):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    pieces: list[bytes] = []

    write_snapshot(tmp_path, ["web"], pieces.append)

    with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as tar:
        last = tar.getmembers()[-1]
        assert last.name == SNAPSHOT_ERROR
        content = tar.extractfile(last)
        assert content is not None
        assert b"200 directories deep" in content.read()
