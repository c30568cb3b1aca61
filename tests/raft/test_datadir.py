"""One directory, one server, one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedsched.model.errors import Conflict
from fedsched.raft.datadir import DataDirInUse, DiskRoom, Space, SpaceLimits, open_data_dir
from fedsched.raft.disk_errors import StoreFailed
from fedsched.raft.storage import DamagedStore

GIB = 1024**3
MIB = 1024**2


def ids(*names: str) -> Callable[[], str]:
    left = list(names)
    return lambda: left.pop(0)


def room(free: int, total: int = 100 * GIB) -> Callable[[Path], DiskRoom]:
    return lambda _: DiskRoom(free, total)


def test_the_first_start_makes_the_directory_and_an_id_that_stays(tmp_path: Path) -> None:
    with open_data_dir(tmp_path / "new" / "dir", ids("id-1"), ballast_bytes=0) as first:
        assert first.server_id == "id-1"
    with open_data_dir(tmp_path / "new" / "dir", ids("id-2"), ballast_bytes=0) as second:
        assert second.server_id == "id-1"


def test_a_wiped_directory_belongs_to_a_new_server(tmp_path: Path) -> None:
    open_data_dir(tmp_path, ids("id-1"), ballast_bytes=0).close()
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()

    with open_data_dir(tmp_path, ids("id-2"), ballast_bytes=0) as again:
        assert again.server_id == "id-2"


def test_a_log_without_a_server_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raft").mkdir()
    (tmp_path / "raft" / "log.db").write_bytes(b"x")

    with pytest.raises(DamagedStore, match="a log but no server id"):
        open_data_dir(tmp_path, ids("id-1"), ballast_bytes=0)


@pytest.mark.parametrize("name", ["server-id", "cluster-id"])
def test_a_flipped_bit_in_any_byte_of_an_id_is_refused(tmp_path: Path, name: str) -> None:
    with open_data_dir(tmp_path, ids("0d4e-id"), ballast_bytes=0) as first:
        first.join_cluster("c-1")
    data = (tmp_path / name).read_bytes()

    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        (tmp_path / name).write_bytes(bytes(damaged))
        with pytest.raises(DamagedStore, match=f"{name} is not what was written"):
            open_data_dir(tmp_path, ids("other"), ballast_bytes=0)
    for length in range(len(data)):
        (tmp_path / name).write_bytes(data[:length])
        with pytest.raises(DamagedStore):
            open_data_dir(tmp_path, ids("other"), ballast_bytes=0)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 65])
def test_an_impossible_id_is_a_bug_of_its_source(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be an id"):
        open_data_dir(tmp_path, ids(name), ballast_bytes=0)
    open_data_dir(tmp_path, ids("fine"), ballast_bytes=0).close()


def test_a_second_user_in_the_same_process_is_refused_until_the_first_lets_go(tmp_path: Path) -> None:
    first = open_data_dir(tmp_path, ids("id-1"), ballast_bytes=0)

    with pytest.raises(DataDirInUse, match=f"in use by process {os.getpid()}"):
        open_data_dir(tmp_path, ids("id-2"), ballast_bytes=0)

    first.close()
    first.close()
    open_data_dir(tmp_path, ids("id-2"), ballast_bytes=0).close()


@pytest.mark.processes
def test_a_second_process_is_refused_by_name_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    script = (
        "import sys; from fedsched.raft.datadir import open_data_dir\n"
        "held = open_data_dir(sys.argv[1], lambda: 'id-1', ballast_bytes=0)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            with pytest.raises(DataDirInUse, match=f"in use by process {holder.pid}") as refusal:
                open_data_dir(tmp_path, ids("id-2"), ballast_bytes=0)
            assert "stop that process" in refusal.value.hint
        finally:
            holder.kill()
            holder.wait()

    with open_data_dir(tmp_path, ids("id-2"), ballast_bytes=0) as again:
        assert again.server_id == "id-1"


def test_a_cluster_is_joined_once_and_for_all(tmp_path: Path) -> None:
    with open_data_dir(tmp_path, ids("id-1"), ballast_bytes=0) as first:
        assert first.cluster_id == ""
        first.join_cluster("c-1")
        first.join_cluster("c-1")
        with pytest.raises(Conflict, match="belongs to cluster c-1, not c-2"):
            first.join_cluster("c-2")

    with open_data_dir(tmp_path, ids("x"), ballast_bytes=0) as again:
        assert again.cluster_id == "c-1"


def test_log_and_snapshots_have_their_place(tmp_path: Path) -> None:
    with open_data_dir(tmp_path, ids("id-1"), ballast_bytes=0) as opened:
        assert opened.log_path == tmp_path / "raft" / "log.db"
        assert opened.snapshots_path == tmp_path / "raft" / "snapshots"


# --- room ------------------------------------------------------------------------------------------------------------


def test_the_ballast_takes_real_room_and_gives_it_back(tmp_path: Path) -> None:
    with open_data_dir(tmp_path, ids("id-1"), ballast_bytes=1 * MIB, room=room(50 * GIB)) as opened:
        assert opened.has_ballast
        assert (tmp_path / "ballast").stat().st_blocks * 512 >= MIB
        opened.release_ballast()
        opened.release_ballast()
        assert not (tmp_path / "ballast").exists()
    with open_data_dir(tmp_path, ids("id-1"), ballast_bytes=1 * MIB, room=room(50 * GIB)) as again:
        assert again.has_ballast


def test_a_ballast_of_another_size_is_replaced_and_one_of_the_same_is_kept(tmp_path: Path) -> None:
    open_data_dir(tmp_path, ids("id-1"), ballast_bytes=4096).close()
    inode = (tmp_path / "ballast").stat().st_ino
    open_data_dir(tmp_path, ids("id-1"), ballast_bytes=4096).close()
    assert (tmp_path / "ballast").stat().st_ino == inode
    open_data_dir(tmp_path, ids("id-1"), ballast_bytes=8192).close()

    assert (tmp_path / "ballast").stat().st_size == 8192


def test_a_short_disk_is_not_made_shorter_by_the_ballast(tmp_path: Path) -> None:
    with open_data_dir(tmp_path, ids("id-1"), ballast_bytes=MIB, room=room(1 * GIB)) as opened:
        assert not opened.has_ballast


def test_a_start_on_a_full_disk_gets_the_ballast_and_takes_it_again_when_there_is_room(tmp_path: Path) -> None:
    free = [50 * GIB]
    with open_data_dir(tmp_path, ids("id-1"), ballast_bytes=MIB, room=lambda _: DiskRoom(free[0], 100 * GIB)):
        pass
    free[0] = 15 * MIB

    with open_data_dir(tmp_path, ids("x"), ballast_bytes=MIB, room=lambda _: DiskRoom(free[0], 100 * GIB)) as again:
        assert not again.has_ballast
        again.take_ballast()
        assert not again.has_ballast
        free[0] = 50 * GIB
        again.take_ballast()
        assert again.has_ballast


def test_a_directory_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    with pytest.raises(StoreFailed, match=r"opening data directory .*/file/data failed: .*Not a directory"):
        open_data_dir(tmp_path / "file" / "data", ids("id-1"))


def test_the_lock_names_its_holder_whoever_held_it_before(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("99999999\n")

    with open_data_dir(tmp_path, ids("id-1"), ballast_bytes=0):
        assert (tmp_path / "lock").read_text().split() == [str(os.getpid())]


def test_a_disk_that_is_full_after_all_goes_without_ballast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with open_data_dir(tmp_path, ids("id-1"), ballast_bytes=MIB) as opened:
        assert not opened.has_ballast


def test_any_other_trouble_with_the_ballast_is_told_and_the_lock_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, offset: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", broken)
        with pytest.raises(StoreFailed, match=f"{tmp_path} failed: .*Input/output"):
            open_data_dir(tmp_path, ids("id-1"), ballast_bytes=MIB)
    open_data_dir(tmp_path, ids("id-1"), ballast_bytes=0).close()


@pytest.mark.parametrize(
    ("free", "total", "expected"),
    [
        (2 * GIB, 100 * GIB, Space.OK),
        (1 * GIB, 100 * GIB, Space.OK),
        (1 * GIB - 1, 100 * GIB, Space.SOFT),
        (256 * MIB, 100 * GIB, Space.SOFT),
        (256 * MIB - 1, 100 * GIB, Space.HARD),
        (60 * MIB, 1 * GIB, Space.OK),
        (40 * MIB, 1 * GIB, Space.SOFT),
        (5 * MIB, 1 * GIB, Space.HARD),
    ],
)
def test_space_is_judged_by_size_or_share_whichever_is_less(
    tmp_path: Path, free: int, total: int, expected: Space
) -> None:
    with open_data_dir(tmp_path, ids("id-1"), ballast_bytes=0, room=room(free, total)) as opened:
        assert opened.space() is expected


def test_space_is_asked_of_the_real_disk_by_default(tmp_path: Path) -> None:
    everything_is_fine = SpaceLimits(soft_bytes=0, hard_bytes=0)
    nothing_is_enough = SpaceLimits(soft_bytes=1 << 62, soft_share=2, hard_bytes=0)

    with open_data_dir(tmp_path, ids("id-1"), ballast_bytes=0, limits=everything_is_fine) as opened:
        assert opened.space() is Space.OK
    with open_data_dir(tmp_path, ids("id-1"), ballast_bytes=0, limits=nothing_is_enough) as opened:
        assert opened.space() is Space.SOFT
