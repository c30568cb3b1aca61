"""Snapshots appear whole or not at all, are verified to the last byte, and can be fetched in pieces."""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.model.errors import NotFound, TooLarge
from fedsched.raft import snapshot_file, snapshots
from fedsched.raft.messages import SnapshotMeta
from fedsched.raft.snapshots import DamagedSnapshot, SnapshotReader, SnapshotStore, UsableSnapshot, inspect

from .storage_kit import a_config, memory_directory

GOLDEN = Path(__file__).parents[2] / "fixtures" / "raft_store"
CLUSTER = "c-1"
CONFIG = a_config("a", "b", "c")


def a_store(path: Path, cluster_id: str = CLUSTER) -> SnapshotStore:
    return SnapshotStore(path, cluster_id=cluster_id)


def a_snapshot(store: SnapshotStore, index: int, *chunks: bytes, term: int = 1, schema: int = 1) -> SnapshotMeta:
    writer = store.create(index, term, CONFIG, 1, schema)
    for chunk in chunks or (b"state at %d" % index,):
        writer.write(chunk)
    return writer.finish()


def chunks_of(store: SnapshotStore, snapshot_id: str) -> list[bytes]:
    with store.open(snapshot_id) as reader:
        return list(reader.chunks())


def raw(store: SnapshotStore, snapshot_id: str) -> bytes:
    with store.open(snapshot_id) as reader:
        return reader.read(0, reader.size)


# --- making ----------------------------------------------------------------------------------------------------------


def test_a_finished_snapshot_comes_back_chunk_by_chunk(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    meta = a_snapshot(store, 10, b"one", b"two" * 1000, b"three")

    assert chunks_of(store, meta.id) == [b"one", b"two" * 1000, b"three"]
    assert store.list() == [meta]
    assert store.latest() == meta
    assert (meta.index, meta.term, meta.config, meta.config_index) == (10, 1, CONFIG, 1)
    assert meta.size == (tmp_path / f"{meta.id}.snapshot").stat().st_size


@settings(max_examples=30)
@given(st.lists(st.binary(min_size=1, max_size=300), max_size=8), st.integers(1, 64))
def test_any_chunks_survive_whatever_the_frame_size(chunks: list[bytes], frame: int) -> None:
    with pytest.MonkeyPatch.context() as patch, memory_directory() as directory:
        patch.setattr(snapshot_file, "FRAME_BYTES_MAX", max(frame, 2))
        patch.setattr(snapshot_file, "SYNC_EVERY_BYTES", 500)
        store = a_store(directory)
        writer = store.create(5, 1, CONFIG, 1)
        for chunk in chunks:
            writer.write(chunk)
        meta = writer.finish()

        assert chunks_of(store, meta.id) == chunks
        info = inspect(directory / f"{meta.id}.snapshot")
        assert (info.chunks, info.payload_bytes, info.meta) == (len(chunks), sum(map(len, chunks)), meta)


def test_a_chunk_larger_than_a_frame_stays_one_chunk(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    large = random.Random(1).randbytes(snapshot_file.FRAME_BYTES_MAX * 2 + 5)

    meta = a_snapshot(store, 10, large, b"small")

    assert chunks_of(store, meta.id) == [large, b"small"]


@pytest.mark.parametrize("size", [0, snapshot_file.CHUNK_BYTES_MAX + 1])
def test_chunks_of_impossible_size_are_a_bug_of_the_maker(tmp_path: Path, size: int) -> None:
    writer = a_store(tmp_path).create(1, 1, CONFIG, 1)

    with pytest.raises(ValueError, match=f"not {size}"):
        writer.write(bytes(size))

    writer.abort()


def test_nothing_is_visible_before_the_end_or_after_an_abort(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    writer = store.create(10, 1, CONFIG, 1)
    writer.write(b"half")

    assert store.list() == []
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_an_abort_after_the_end_is_harmless(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    writer = store.create(10, 1, CONFIG, 1)
    meta = writer.finish()
    writer.abort()

    assert store.list() == [meta]


def test_two_are_kept_and_older_ones_go(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    metas = [a_snapshot(store, index) for index in (9, 10, 100)]

    assert store.list() == [metas[2], metas[1]]
    assert len(list(tmp_path.iterdir())) == 2


def test_where_arrival_counts_what_came_last_is_kept_whatever_its_index(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, keep=2, by_arrival=True)
    for place, index in enumerate((600, 500, 100, 50)):
        meta = a_snapshot(store, index)
        os.utime(tmp_path / f"{meta.id}.snapshot", ns=(place, place))

    assert sorted(meta.index for meta in store.list()) == [50, 100]


def test_a_reader_goes_on_while_its_snapshot_is_replaced(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    first = a_snapshot(store, 1, b"a", b"b")
    with store.open(first.id) as reader:
        chunks = reader.chunks()
        assert next(chunks) == b"a"
        a_snapshot(store, 2)
        a_snapshot(store, 3)

        assert list(chunks) == [b"b"]
        assert len(reader.read(0, 1 << 20)) == first.size
    with pytest.raises(NotFound, match="no snapshot"):
        store.open(first.id)


def test_equal_states_have_equal_ids_and_different_ones_do_not(tmp_path: Path) -> None:
    here, there = a_store(tmp_path / "a"), a_store(tmp_path / "b")

    assert a_snapshot(here, 5, b"x").id == a_snapshot(there, 5, b"x").id
    assert a_snapshot(here, 6, b"x").id != a_snapshot(there, 6, b"y").id


# --- starting --------------------------------------------------------------------------------------------------------


def test_leftovers_of_a_crash_are_swept_away_at_start(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    meta = a_snapshot(store, 5)
    (tmp_path / "6-1.tmp").write_bytes(b"half")
    (tmp_path / "note.txt").write_text("not ours")

    again = a_store(tmp_path)

    assert again.list() == [meta]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{meta.id}.snapshot", "note.txt"]


def test_only_the_newest_of_several_half_fetched_snapshots_survives_a_start(tmp_path: Path) -> None:
    for at, name in enumerate(["1-1-" + "0" * 16, "2-1-" + "0" * 16]):
        path = tmp_path / f"{name}.partial"
        path.write_bytes(b"x")
        os.utime(path, (at, at))

    a_store(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["2-1-0000000000000000.partial"]


def test_the_newest_whole_snapshot_is_the_one_to_start_from(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    a_snapshot(store, 5)
    newer = a_snapshot(store, 9)

    assert store.usable(4) == UsableSnapshot(newer)


def damage(store: SnapshotStore, meta: SnapshotMeta, at: int = 60) -> None:
    path = store.directory / f"{meta.id}.snapshot"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_a_damaged_newest_gives_way_to_the_older_if_the_log_reaches_it(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    older, newer = a_snapshot(store, 5), a_snapshot(store, 9)
    damage(store, newer)

    usable = store.usable(log_prev_index=5)

    assert usable.meta == older
    assert len(usable.problems) == 1
    assert newer.id in usable.problems[0]


def test_without_a_snapshot_that_the_log_reaches_there_is_no_start(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    older, newer = a_snapshot(store, 5), a_snapshot(store, 9)
    damage(store, newer)

    with pytest.raises(DamagedSnapshot, match="the log begins after 6 and no snapshot") as refusal:
        store.usable(log_prev_index=6)

    assert newer.id in refusal.value.message
    assert older.id in refusal.value.message
    assert "rejoin as a new one" in refusal.value.hint


def test_a_whole_log_needs_no_snapshot(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    damage(store, a_snapshot(store, 5))

    assert store.usable(0).meta is None
    assert len(store.usable(0).problems) == 1


def test_a_foreign_or_renamed_snapshot_is_not_started_from(tmp_path: Path) -> None:
    foreign = a_snapshot(a_store(tmp_path, "c-2"), 9)
    renamed = a_snapshot(a_store(tmp_path), 5)
    (tmp_path / f"{renamed.id}.snapshot").rename(tmp_path / f"7-1-{'0' * 16}.snapshot")

    usable = a_store(tmp_path).usable(0)

    assert usable.meta is None
    assert len(usable.problems) == 2
    assert "belongs to cluster 'c-2'" in usable.problems[0]
    assert f"really {renamed.id}" in usable.problems[1]
    assert a_store(tmp_path).list() == [foreign]
    with pytest.raises(DamagedSnapshot, match="calls itself"):
        a_store(tmp_path).open(f"7-1-{'0' * 16}")


@pytest.mark.parametrize("snapshot_id", ["../../etc/passwd", "", "1-1-xyz", "5-1-0000000000000000/../x", "1" * 500])
def test_an_id_from_the_network_never_becomes_another_path(tmp_path: Path, snapshot_id: str) -> None:
    with pytest.raises(NotFound, match="not the id of a snapshot"):
        a_store(tmp_path).open(snapshot_id)


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_flipped_bit_in_any_byte_is_found() -> None:
    outcomes: Counter[str] = Counter()
    with memory_directory() as directory:
        store = a_store(directory)
        meta = a_snapshot(store, 10, b"first chunk", b"second chunk" * 30, b"third")
        path = directory / f"{meta.id}.snapshot"
        data = path.read_bytes()
        for at in range(len(data)):
            for bit in (1 << at % 8, 0x80):
                damaged = bytearray(data)
                damaged[at] ^= bit
                path.write_bytes(bytes(damaged))
                with pytest.raises(DamagedSnapshot):
                    inspect(path)
                outcomes["refused"] += 1
    assert outcomes["refused"] == 2 * len(data)


def test_a_file_cut_short_or_made_longer_is_found() -> None:
    with memory_directory() as directory:
        store = a_store(directory)
        meta = a_snapshot(store, 10, b"first chunk", b"second chunk")
        path = directory / f"{meta.id}.snapshot"
        data = path.read_bytes()
        for damaged in [*(data[:length] for length in range(len(data))), data + b"x"]:
            path.write_bytes(damaged)
            with pytest.raises(DamagedSnapshot):
                inspect(path)


def test_a_restore_never_ends_well_on_a_file_that_fails_its_digest(tmp_path: Path) -> None:
    store = a_store(tmp_path)
    meta = a_snapshot(store, 10, b"one", b"two")
    damage(store, meta, at=meta.size - 1)

    with SnapshotReader(tmp_path / f"{meta.id}.snapshot") as reader:
        chunks = reader.chunks()
        assert [next(chunks), next(chunks)] == [b"one", b"two"]
        with pytest.raises(DamagedSnapshot, match="as a whole"):
            next(chunks)


def rewritten(path: Path, header: object = None, version: int = 1) -> None:
    """A file that is right in every checksum but says something unheard of."""
    from fedsched.codec import cbor

    with path.open("wb") as file:
        writer = snapshot_file.ChunkWriter.__new__(snapshot_file.ChunkWriter)
        writer.__init__(file, snapshot_file.SnapshotHeader(CLUSTER, 1, 1, CONFIG, 1, 1))  # type: ignore[misc]
        writer.write(b"chunk")
        writer.end()
    if version != 1:
        data = bytearray(path.read_bytes())
        data[6:8] = struct.pack(">H", version)
        path.write_bytes(bytes(data))
    if header is not None:
        raw_header = cbor.dumps(header)
        frame = snapshot_file._frame_head(len(raw_header), raw_header) + raw_header
        path.write_bytes(path.read_bytes()[:8] + frame + bytes(100))


def test_a_newer_format_is_refused_by_name(tmp_path: Path) -> None:
    rewritten(tmp_path / "x", version=2)

    with pytest.raises(DamagedSnapshot, match="format 2 is not known here, only 1"):
        inspect(tmp_path / "x")


@pytest.mark.parametrize("header", [[1, 2], {"a": 1}, ["c", 1, 1, b"\xff", 1, 1], ["c", -1, 1, "x", 1, 1]])
def test_a_header_of_unknown_form_is_refused(tmp_path: Path, header: object) -> None:
    rewritten(tmp_path / "x", header=header)

    with pytest.raises(DamagedSnapshot, match="header"):
        inspect(tmp_path / "x")


def test_an_end_mark_where_the_header_should_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"FSSNAP\0\1" + snapshot_file._frame_head(0, b"") + bytes(200))

    with pytest.raises(DamagedSnapshot, match="no header"):
        inspect(tmp_path / "x")


# --- fetching --------------------------------------------------------------------------------------------------------


@pytest.fixture
def offered(tmp_path: Path) -> tuple[SnapshotMeta, bytes]:
    leader = a_store(tmp_path / "leader")
    meta = a_snapshot(leader, 50, random.Random(5).randbytes(5000), b"end")
    return meta, raw(leader, meta.id)


def test_a_fetched_snapshot_becomes_visible_when_all_of_it_is_verified(
    tmp_path: Path, offered: tuple[SnapshotMeta, bytes]
) -> None:
    meta, data = offered
    store = a_store(tmp_path / "follower")
    receiver = store.receive(meta)
    for at in range(0, len(data), 700):
        receiver.write(data[at : at + 700])
        assert store.list() == []

    assert receiver.finish() == meta
    receiver.close()

    assert store.list() == [meta]
    assert raw(store, meta.id) == data


def test_a_fetch_goes_on_where_a_restart_cut_it_off(tmp_path: Path, offered: tuple[SnapshotMeta, bytes]) -> None:
    meta, data = offered
    receiver = a_store(tmp_path / "follower").receive(meta)
    receiver.write(data[:3000])
    receiver.close()

    receiver = a_store(tmp_path / "follower").receive(meta)
    assert receiver.offset == 3000
    receiver.write(data[3000:])
    receiver.finish()

    assert raw(a_store(tmp_path / "follower"), meta.id) == data


def test_a_fetch_that_ends_early_keeps_what_it_has(tmp_path: Path, offered: tuple[SnapshotMeta, bytes]) -> None:
    meta, data = offered
    receiver = a_store(tmp_path / "follower").receive(meta)
    receiver.write(data[:100])

    with pytest.raises(DamagedSnapshot, match=f"after 100 of {meta.size} bytes"):
        receiver.finish()
    receiver.close()

    receiver = a_store(tmp_path / "follower").receive(meta)
    assert receiver.offset == 100
    receiver.close()


def test_a_fetch_with_a_wrong_byte_starts_over(tmp_path: Path, offered: tuple[SnapshotMeta, bytes]) -> None:
    meta, data = offered
    store = a_store(tmp_path / "follower")
    receiver = store.receive(meta)
    receiver.write(data[:2000] + b"\0" + data[2001:])

    with pytest.raises(DamagedSnapshot):
        receiver.finish()

    assert (receiver.offset, store.list()) == (0, [])
    receiver.write(data)
    assert receiver.finish() == meta


def test_a_fetch_whose_sync_fails_starts_over_rather_than_sync_the_same_bytes_again(
    tmp_path: Path, offered: tuple[SnapshotMeta, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    meta, data = offered
    store = a_store(tmp_path / "follower")
    receiver = store.receive(meta)
    receiver.write(data)

    def broken(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="Input/output"):
            receiver.finish()
    receiver.close()

    assert store.list() == []
    receiver = store.receive(meta)
    assert receiver.offset == 0
    receiver.close()


def test_more_bytes_than_offered_are_refused(tmp_path: Path, offered: tuple[SnapshotMeta, bytes]) -> None:
    meta, data = offered
    receiver = a_store(tmp_path / "follower").receive(meta)

    with pytest.raises(TooLarge, match="arrived"):
        receiver.write(data + b"x")

    receiver.close()


def test_a_partial_file_longer_than_the_offer_is_started_over(
    tmp_path: Path, offered: tuple[SnapshotMeta, bytes]
) -> None:
    meta, data = offered
    store = a_store(tmp_path / "follower")
    (store.directory / f"{meta.id}.partial").write_bytes(data + b"more")

    receiver = store.receive(meta)

    assert receiver.offset == 0
    receiver.write(data)
    assert receiver.finish() == meta


def test_a_new_fetch_drops_the_half_of_an_old_one(tmp_path: Path, offered: tuple[SnapshotMeta, bytes]) -> None:
    meta, _ = offered
    store = a_store(tmp_path / "follower")
    (store.directory / f"1-1-{'0' * 16}.partial").write_bytes(b"old")

    store.receive(meta).close()

    assert [path.name for path in store.directory.iterdir()] == [f"{meta.id}.partial"]


def test_an_offer_that_contradicts_itself_is_refused(tmp_path: Path, offered: tuple[SnapshotMeta, bytes]) -> None:
    meta, _ = offered
    store = a_store(tmp_path / "follower")
    forged = SnapshotMeta("../x", meta.index, meta.term, meta.config, 1, meta.size, meta.digest)
    huge = SnapshotMeta(meta.id, meta.index, meta.term, meta.config, 1, snapshots.SIZE_MAX + 1, meta.digest)

    with pytest.raises(DamagedSnapshot, match="contradicts itself"):
        store.receive(forged)
    with pytest.raises(TooLarge, match="at most"):
        store.receive(huge)
    assert list(store.directory.iterdir()) == []


def test_a_snapshot_of_another_cluster_or_config_is_not_taken(
    tmp_path: Path, offered: tuple[SnapshotMeta, bytes]
) -> None:
    meta, data = offered
    elsewhere = a_store(tmp_path / "elsewhere", "c-2").receive(meta)
    elsewhere.write(data)
    other_config = SnapshotMeta(meta.id, meta.index, meta.term, a_config("z"), 1, meta.size, meta.digest)
    deceived = a_store(tmp_path / "follower").receive(other_config)
    deceived.write(data)

    with pytest.raises(DamagedSnapshot, match="belongs to cluster 'c-1', not 'c-2'"):
        elsewhere.finish()
    with pytest.raises(DamagedSnapshot, match="not what was offered"):
        deceived.finish()
    elsewhere.close()
    deceived.close()


def test_a_server_that_knows_no_cluster_yet_takes_any(tmp_path: Path, offered: tuple[SnapshotMeta, bytes]) -> None:
    meta, data = offered
    receiver = a_store(tmp_path / "new", "").receive(meta)
    receiver.write(data)

    assert receiver.finish() == meta


# --- archives and old versions ---------------------------------------------------------------------------------------


def test_an_archive_is_the_same_file_and_tells_everything(tmp_path: Path) -> None:
    store = a_store(tmp_path / "store")
    meta = a_snapshot(store, 77, b"jobs", b"nodes", term=3, schema=2)
    (tmp_path / "backup.snap").write_bytes(raw(store, meta.id))

    info = inspect(tmp_path / "backup.snap")

    assert info.meta == meta
    assert (info.header.cluster_id, info.header.schema_version) == (CLUSTER, 2)
    assert (info.chunks, info.payload_bytes) == (2, 9)


def test_a_snapshot_written_by_version_1_is_still_read() -> None:
    path = GOLDEN / "version-1.snapshot"

    info = inspect(path)

    assert info.meta.id == "4711-3-" + info.meta.digest[:8].hex()
    assert info.header == snapshot_file.SnapshotHeader("golden", 4711, 3, a_config("a", "b", "c"), 12, 1)
    with SnapshotReader(path) as reader:
        assert list(reader.chunks()) == [b"first chunk", bytes(range(256)) * 4, b"last chunk"]
