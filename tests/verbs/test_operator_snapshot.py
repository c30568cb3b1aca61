from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fedsched.model.errors import Conflict
from fedsched.model.job import Job
from fedsched.raft.membership import Config, ServerInfo
from fedsched.raft.snapshot_file import ChunkWriter, SnapshotHeader
from fedsched.rpc.methods.snapshot import SNAPSHOT_RESTORE, SNAPSHOT_SAVE, SnapshotReply
from fedsched.state.apply import apply_bytes
from fedsched.state.commands import Envelope, encode_command
from fedsched.state.image import DamagedImage, save
from fedsched.state.store import SCHEMA_VERSION, Store
from fedsched.state.tables.jobs import job_register
from fedsched.verbs.snapshot_content import tables_of
from tests.verbs.commands import NOW_NS, fedsched


def a_state(jobs: int = 3) -> Store:
    store = Store()
    for number in range(jobs):
        job = Job(id=f"job-{number}", name="x" * 5000)
        command = Envelope(command=job_register(job, evaluation=None), time_ns=NOW_NS)
        assert apply_bytes(store, number + 1, encode_command(command)).result.is_done
    return store


def a_file(path: Path, jobs: int = 3) -> Path:
    config = Config(voters=frozenset({"id-1"}), servers=(ServerInfo("id-1", "eu-1", "127.0.0.1:4647"),))
    header = SnapshotHeader("cluster-1", 40, 7, config, 1, SCHEMA_VERSION)
    with path.open("wb") as file:
        writer = ChunkWriter(file, header)
        for chunk in save(a_state(jobs).snapshot()):
            writer.write(chunk)
        writer.end()
    return path


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def archive(in_tmp: Path) -> bytes:
    return a_file(in_tmp / "server.snap").read_bytes()


def saving(data: bytes, size: int | None = None) -> Any:
    pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]
    return {SNAPSHOT_SAVE: lambda _: (SnapshotReply(index=40, size=len(data) if size is None else size), pieces)}


def test_save_writes_the_file_only_when_it_is_whole_and_for_its_owner_alone(archive: bytes) -> None:
    seen = fedsched("operator snapshot save backup.snap", saving(archive))

    assert (seen.code, seen.out, seen.err) == (0, "State file written to backup.snap\n", "")
    assert Path("backup.snap").read_bytes() == archive
    assert os.stat("backup.snap").st_mode & 0o777 == 0o600
    assert not Path("backup.snap.partial").exists()


def test_save_names_the_file_after_the_time_if_nobody_else_does(archive: bytes) -> None:
    seen = fedsched("operator snapshot save -stale", saving(archive))

    assert seen.out == f"State file written to backup-{NOW_NS // 10**9}.snap\n"
    assert seen.agent.metas(SNAPSHOT_SAVE)[0].stale is True


def test_save_overwrites_nothing(archive: bytes) -> None:
    Path("backup.snap").write_text("precious")

    seen = fedsched("operator snapshot save backup.snap", saving(archive))

    assert seen.err == "Error: backup.snap exists already\n  name another file, or move that one away\n"
    assert Path("backup.snap").read_text() == "precious"


def test_what_arrives_damaged_or_short_is_not_kept(archive: bytes) -> None:
    flipped = bytearray(archive)
    flipped[len(flipped) // 2] ^= 1

    damaged = fedsched("operator snapshot save backup.snap", saving(bytes(flipped)))
    short = fedsched("operator snapshot save backup.snap", saving(archive[:-100], size=len(archive)))

    assert "fails its checksum" in damaged.err
    assert short.err.startswith(f"Error: {len(archive) - 100} of {len(archive)} bytes arrived\n")
    assert (damaged.code, short.code) == (1, 1)
    assert sorted(os.listdir()) == ["server.snap"]


def test_a_refusal_leaves_no_file_behind(in_tmp: Path) -> None:
    def refuse(_: Any) -> Any:
        raise Conflict("a snapshot is being made")

    seen = fedsched("operator snapshot save backup.snap", {SNAPSHOT_SAVE: refuse})

    assert seen.err == "Error: a snapshot is being made\n"
    assert os.listdir() == []


def test_a_directory_that_is_not_there_is_said(archive: bytes) -> None:
    seen = fedsched("operator snapshot save no/such/backup.snap", saving(archive))

    assert seen.err == "Error: no/such/backup.snap cannot be written: No such file or directory\n"


def test_inspect_shows_what_the_file_is_of(archive: bytes) -> None:
    seen = fedsched("operator snapshot inspect server.snap")

    lines = seen.out.splitlines()
    assert lines[0].startswith("ID      = 40-7-")
    assert lines[1:5] == [
        f"Size    = {len(archive)}",
        "Index   = 40",
        "Term    = 7",
        f"Version = {SCHEMA_VERSION}",
    ]
    assert lines[6].split() == ["Type", "Count", "Size"]
    assert any(line.split()[:2] == ["jobs", "3"] for line in lines)
    assert lines[-1].startswith("Total")
    assert seen.code == 0


def test_inspect_as_json(archive: bytes) -> None:
    parsed = json.loads(fedsched("operator snapshot inspect -json server.snap").out)

    assert (parsed["Index"], parsed["Term"], parsed["ClusterID"], parsed["Size"]) == (40, 7, "cluster-1", len(archive))
    counts = {one["Name"]: one["Count"] for one in parsed["Stats"]}
    assert counts["jobs"] == 3
    assert all(one["Size"] > 0 for one in parsed["Stats"])


def test_inspect_refuses_what_is_damaged_or_no_saved_state(archive: bytes) -> None:
    Path("cut.snap").write_bytes(archive[:-1])
    Path("text.snap").write_text("hello " * 100)

    assert "ends in the middle" in fedsched("operator snapshot inspect cut.snap").err
    assert "this is not a snapshot" in fedsched("operator snapshot inspect text.snap").err
    assert fedsched("operator snapshot inspect none.snap").err == (
        "Error: none.snap cannot be read: No such file or directory\n  name a saved state\n"
    )


def test_restore_checks_the_file_and_streams_it_up(archive: bytes) -> None:
    seen = fedsched("operator snapshot restore server.snap", {SNAPSHOT_RESTORE: lambda _: SnapshotReply(index=99)})

    assert seen.out == "Snapshot Restored (index 99)\n"
    assert seen.agent.uploaded == archive


def test_restore_asks_a_person_first(archive: bytes) -> None:
    question = "Are you sure you want to replace the state of the region by server.snap? [y/N] "
    answers = {SNAPSHOT_RESTORE: lambda _: SnapshotReply(index=99)}

    refused = fedsched("operator snapshot restore server.snap", answers, typed="n\n")
    agreed = fedsched("operator snapshot restore server.snap", answers, typed="y\n")
    assured = fedsched("operator snapshot restore -yes server.snap", answers, typed="")

    assert refused.out == question + "Cancelled\n"
    assert refused.agent.asked == []
    assert agreed.out == question + "Snapshot Restored (index 99)\n"
    assert assured.out == "Snapshot Restored (index 99)\n"


def test_restore_sends_nothing_of_a_damaged_file(archive: bytes) -> None:
    Path("cut.snap").write_bytes(archive[:-1])

    seen = fedsched("operator snapshot restore cut.snap", {SNAPSHOT_RESTORE: lambda _: SnapshotReply()})

    assert seen.code == 1
    assert seen.agent.asked == []
    assert "cannot be read: No such file" in fedsched("operator snapshot restore none.snap").err


def test_an_image_is_read_however_its_chunks_are_cut() -> None:
    whole = b"".join(save(a_state(jobs=300).snapshot()))

    expected = tables_of([whole])
    assert tables_of(whole[at : at + 997] for at in range(0, len(whole), 997)) == expected
    assert ("jobs", 300) in [(one.name, one.count) for one in expected]


def test_an_image_that_is_cut_changed_or_huge_is_refused() -> None:
    whole = b"".join(save(a_state().snapshot()))
    flipped = whole[:20] + bytes([whole[20] ^ 1]) + whole[21:]

    for data, message in ((whole[:-1], "cut short"), (flipped, "checksum"), (b"\xff" * 8, "at most")):
        with pytest.raises(DamagedImage, match=message):
            tables_of([data])
