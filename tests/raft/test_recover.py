"""Offline recovery writes one config into one stopped server's log, and says what that means."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedsched.model.errors import BadRequest, NotFound
from fedsched.raft.datadir import DataDirInUse, open_data_dir
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import Config, decode_config, encode_config
from fedsched.raft.messages import HardState, Restored, SnapshotMeta
from fedsched.raft.recover import recover
from fedsched.raft.snapshots import DamagedSnapshot, SnapshotStore
from fedsched.raft.storage import LogStore, StoreWrite

from .storage_kit import a_config, a_mark, a_write, entries

OLD = a_config("a", "b", "c")


def a_server(path: Path, *writes: StoreWrite) -> Path:
    """The data directory of server `a`, stopped."""
    with open_data_dir(path, lambda: "a", ballast_bytes=0) as opened:
        store = LogStore(opened.log_path)
        store.recover()
        for write in writes:
            store.write([write])
        store.close()
    return path


def held(path: Path) -> Restored:
    store = LogStore(path / "raft" / "log.db")
    try:
        return store.recover()
    finally:
        store.close()


def a_life(path: Path) -> Path:
    first = Entry(1, 1, EntryKind.CONFIG, encode_config(OLD))
    return a_server(path, a_write(first, *entries(2, 6, term=4), hard_state=HardState(5, "b", 4)))


def test_the_new_config_follows_the_log_in_a_term_of_its_own(tmp_path: Path) -> None:
    a_life(tmp_path)

    done = recover(tmp_path, a_config("a"))

    found = held(tmp_path)
    assert (done.index, done.term, done.entries_uncertain, done.old_config) == (7, 6, 2, OLD)
    assert found.entries[:-1][1:] == entries(2, 6, term=4)
    assert found.entries[-1] == Entry(7, 6, EntryKind.CONFIG, encode_config(a_config("a")))
    assert decode_config(found.entries[-1].payload) == a_config("a")
    assert found.hard_state == HardState(6, None, 7)


def test_it_tells_what_it_did_and_what_must_not_be_done(tmp_path: Path) -> None:
    done = recover(a_life(tmp_path), a_config("a", "d"))

    text = done.explain()

    assert "index 7 in term 6" in text
    assert "voter   server-d (d) at d:4647" in text
    assert "2 entries of it on its word alone" in text
    assert "Left out: server-b (b), server-c (c)." in text
    assert "wipe them" in text


def test_nobody_left_out_is_said_too(tmp_path: Path) -> None:
    assert "Left out: nobody." in recover(a_life(tmp_path), OLD).explain()


def test_it_may_be_done_again(tmp_path: Path) -> None:
    a_life(tmp_path)
    recover(tmp_path, a_config("a", "b"))

    again = recover(tmp_path, a_config("a"))

    assert (again.index, again.term, again.old_config, again.entries_uncertain) == (8, 7, a_config("a", "b"), 0)


def a_snapshot(path: Path, index: int, term: int) -> SnapshotMeta:
    writer = SnapshotStore(path / "raft" / "snapshots").create(index, term, OLD, 1)
    writer.write(b"state")
    return writer.finish()


def test_a_log_that_is_all_snapshot_goes_on_from_it(tmp_path: Path) -> None:
    meta = a_snapshot(tmp_path, 100, 8)
    a_server(tmp_path, a_write(reset=meta, hard_state=HardState(3)))

    done = recover(tmp_path, a_config("a"))

    assert (done.index, done.term, done.old_config) == (101, 9, OLD)
    assert held(tmp_path).snapshot == meta


def test_a_shortened_log_needs_its_snapshot(tmp_path: Path) -> None:
    a_server(tmp_path, a_write(reset=a_mark(100), hard_state=HardState(3)))

    with pytest.raises(DamagedSnapshot, match="no snapshot"):
        recover(tmp_path, a_config("a"))


@pytest.mark.parametrize(("index", "term"), [(100, 8), (5, 7)])
def test_a_snapshot_that_the_log_had_not_yet_made_way_for_goes_first(tmp_path: Path, index: int, term: int) -> None:
    """Fetched, then a crash: the next start would drop the log for it, and the new config with the log."""
    a_life(tmp_path)
    meta = a_snapshot(tmp_path, index, term)

    done = recover(tmp_path, a_config("a"))

    found = held(tmp_path)
    assert (done.index, done.term, done.old_config) == (index + 1, term + 1, OLD)
    assert (found.prev_index, found.prev_term, found.snapshot) == (index, term, meta)
    assert [entry.kind for entry in found.entries] == [EntryKind.CONFIG]


def test_a_snapshot_that_the_log_agrees_with_changes_nothing(tmp_path: Path) -> None:
    a_life(tmp_path)
    a_snapshot(tmp_path, 5, 4)

    done = recover(tmp_path, a_config("a"))

    assert (done.index, done.entries_uncertain) == (7, 1)
    assert len(held(tmp_path).entries) == 7


def test_a_log_without_any_config_has_an_unknown_past(tmp_path: Path) -> None:
    a_server(tmp_path, a_write(*entries(1, 2)))

    assert recover(tmp_path, a_config("a")).old_config == Config()


def test_it_refuses_while_the_server_runs(tmp_path: Path) -> None:
    a_life(tmp_path)
    before = held(tmp_path)
    with open_data_dir(tmp_path, lambda: "a", ballast_bytes=0), pytest.raises(DataDirInUse):
        recover(tmp_path, a_config("a"))

    assert held(tmp_path) == before


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (Config(), "no voters"),
        (Config(frozenset("ab"), frozenset("a"), servers=a_config("a", "b").servers), "half of a change"),
        (a_config("b", "c"), "server a would not be a voter"),
        (Config(frozenset("ab"), servers=a_config("a").servers), "does not name an address"),
        (Config(frozenset("a"), learners=frozenset("a"), servers=a_config("a").servers), "once"),
    ],
)
def test_a_config_that_could_not_work_changes_nothing(tmp_path: Path, config: Config, says: str) -> None:
    a_life(tmp_path)
    before = held(tmp_path)

    with pytest.raises(BadRequest, match=says):
        recover(tmp_path, config)

    assert held(tmp_path) == before


def test_there_must_be_a_server_and_a_log(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no server's data directory"):
        recover(tmp_path / "nowhere", a_config("a"))
    with pytest.raises(NotFound, match=r"log in .* is empty"):
        recover(a_server(tmp_path / "empty"), a_config("a"))
    assert not (tmp_path / "nowhere").exists()


def test_the_ballast_is_left_alone(tmp_path: Path) -> None:
    a_life(tmp_path)
    open_data_dir(tmp_path, lambda: "a", ballast_bytes=4096).close()

    recover(tmp_path, a_config("a"))

    assert (tmp_path / "ballast").stat().st_size == 4096
