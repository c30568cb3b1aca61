from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.client import beneath, paths
from fedsched.client.beneath import PathEscapes, has_openat2, open_beneath, walk_beneath
from fedsched.client.paths import (
    Owner,
    directory,
    disk_use,
    exchange,
    makedirs_beneath,
    remove_beneath,
    remove_tree,
    rename_between,
    write_file_beneath,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount and to change owners")

Opener = Callable[[Path, str, int], int]


def _by_kernel(root: Path, path: str, flags: int) -> int:
    return open_beneath(root, path, flags)


def _by_walk(root: Path, path: str, flags: int) -> int:
    handle = os.open(root, os.O_PATH)
    try:
        return walk_beneath(handle, beneath._checked(path), flags, 0)
    finally:
        os.close(handle)


@pytest.fixture(params=["kernel", "walk"])
def opener(request: pytest.FixtureRequest) -> Opener:
    if request.param == "kernel":
        if not has_openat2():
            pytest.skip("this kernel has no openat2")
        return _by_kernel
    return _by_walk


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A root with something in it, and a secret next to it."""
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("inside")
    (tmp_path / "secret").write_text("outside")
    (root / "abs").symlink_to(tmp_path / "secret")
    (root / "up").symlink_to("../secret")
    (root / "dir-out").symlink_to("..")
    (root / "a" / "sideways").symlink_to("../a/b")
    (root / "a" / "b" / "back").symlink_to("../../a/b/file")
    (root / "loop").symlink_to("loop")
    (root / "proc").symlink_to("/proc/self/root")
    return root


def _read(fd: int) -> str:
    try:
        return os.read(fd, 100).decode()
    finally:
        os.close(fd)


@pytest.mark.parametrize("path", ["a/b/file", "./a//b/./file", "a/../a/b/file", "a/sideways/file", "a/b/back"])
def test_what_stays_inside_is_opened(world: Path, opener: Opener, path: str) -> None:
    assert _read(opener(world, path, os.O_RDONLY)) == "inside"


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "a/../../secret",
        "abs",
        "up",
        "dir-out/secret",
        "/etc/passwd",
        "a/b/../../../secret",
        "proc/etc",
        "a\0b",
    ],
)
def test_what_leads_out_is_refused(world: Path, opener: Opener, path: str) -> None:
    with pytest.raises(PathEscapes):
        opener(world, path, os.O_RDONLY)


def test_a_loop_of_symlinks_ends(world: Path, opener: Opener) -> None:
    with pytest.raises(OSError, match="symbolic links"):
        opener(world, "loop", os.O_RDONLY)


def test_a_directory_is_not_created_over(world: Path, opener: Opener) -> None:
    with pytest.raises(IsADirectoryError):
        opener(world, "a/..", os.O_WRONLY | os.O_CREAT)


def test_a_file_with_a_slash_behind_it_is_not_a_directory(world: Path, opener: Opener) -> None:
    with pytest.raises(NotADirectoryError):
        opener(world, "a/b/file/", os.O_RDONLY)


def test_without_following_any_symlink_is_refused(world: Path) -> None:
    for path in ("a/sideways/file", "a/b/back"):
        with pytest.raises(OSError, match="symbolic links"):
            open_beneath(world, path, os.O_RDONLY, follow=False)
        with directory(world) as root, pytest.raises(OSError, match="symbolic links"):
            walk_beneath(root, path, os.O_RDONLY, 0, follow=False)


def test_a_fifo_does_not_hold_us_up(world: Path) -> None:
    os.mkfifo(world / "fifo")

    os.close(open_beneath(world, "fifo", os.O_RDONLY))


def test_without_openat2_the_walk_takes_over(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beneath, "has_openat2", lambda: False)

    assert _read(open_beneath(world, "a/b/file", os.O_RDONLY)) == "inside"
    with pytest.raises(PathEscapes):
        open_beneath(world, "up", os.O_RDONLY)


_PART = st.sampled_from(["a", "b", "c", "..", ".", "", "x", "l1", "l2"])
_PATH = st.lists(_PART, min_size=0, max_size=6).map("/".join)


@given(
    _PATH, _PATH, _PATH, st.sampled_from([os.O_RDONLY, os.O_PATH, os.O_PATH | os.O_NOFOLLOW, os.O_WRONLY | os.O_CREAT])
)
def test_kernel_and_walk_agree_on_any_path_and_links(
    tmp_path_factory: pytest.TempPathFactory, first: str, second: str, path: str, flags: int
) -> None:
    """Two symlinks with any targets, any path: both open the same thing, inside, or both refuse."""
    if not has_openat2():
        pytest.skip("this kernel has no openat2")
    outside = tmp_path_factory.mktemp("world")
    root = outside / "x"
    (root / "a" / "b" / "c").mkdir(parents=True)
    (root / "a" / "x").write_text("x")
    (root / "l1").symlink_to(first or ".")
    (root / "a" / "l2").symlink_to(second or ".")

    answers = []
    for opener in (_by_kernel, _by_walk):
        try:
            fd = opener(root, path, flags)
        except PathEscapes:
            answers.append("escapes")
        except OSError as error:
            answers.append(os.strerror(error.errno or 0))
        else:
            real = os.readlink(f"/proc/self/fd/{fd}")
            assert real == str(root) or real.startswith(f"{root}/"), real
            answers.append(real)
            os.close(fd)
    assert answers[0] == answers[1], (path, first, second)


def test_a_directory_swapped_for_a_symlink_all_the_time_never_lets_anything_out(tmp_path: Path) -> None:
    """The attack of every escape there was: between check and use, a directory becomes a symlink."""
    root = tmp_path / "root"
    (root / "real").mkdir(parents=True)
    (root / "real" / "file").write_text("inside")
    (root / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("outside")
    over = threading.Event()

    def attack() -> None:
        fd = os.open(root, os.O_RDONLY)
        while not over.is_set():
            exchange(fd, "real", fd, "link")
        os.close(fd)

    attacker = threading.Thread(target=attack)
    attacker.start()
    refused = 0
    try:
        for number in range(1500):
            opener = _by_kernel if number % 2 else _by_walk
            try:
                assert _read(opener(root, "real/file", os.O_RDONLY)) == "inside"
            except (PathEscapes, OSError):
                refused += 1
            try:
                write_file_beneath(root, f"real/new-{number % 7}", b"x", makes_directories=bool(number % 3))
            except (PathEscapes, OSError):
                refused += 1
    finally:
        over.set()
        attacker.join()

    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "root"]
    assert (tmp_path / "file").read_text() == "outside"


def test_directories_are_made_with_their_mode_and_left_alone_the_second_time(tmp_path: Path) -> None:
    makedirs_beneath(tmp_path, "a/b/c", 0o750)
    os.chmod(tmp_path / "a", 0o700)
    makedirs_beneath(tmp_path, "a/b/c", 0o777)

    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "a/b/c").stat().st_mode) == 0o750


@pytest.mark.parametrize("path", ["../x", "a/../../x", "/x", "link/x"])
def test_no_directory_is_made_outside(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to("..")

    with pytest.raises(PathEscapes):
        makedirs_beneath(root, path)

    assert [entry.name for entry in tmp_path.iterdir()] == ["root"]


def test_a_file_in_the_way_of_a_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")

    with pytest.raises(NotADirectoryError):
        makedirs_beneath(tmp_path, "a/b")


def test_a_file_is_replaced_as_a_whole_and_a_symlink_in_its_place_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "precious").write_text("mine")
    (root / "file").symlink_to(tmp_path / "precious")

    write_file_beneath(root, "file", b"new", 0o640)

    assert (tmp_path / "precious").read_text() == "mine"
    assert (root / "file").read_text() == "new"
    assert not (root / "file").is_symlink()
    assert stat.S_IMODE((root / "file").stat().st_mode) == 0o640
    assert os.listdir(root) == ["file"]


@pytest.mark.parametrize("path", ["..", ".", "", "a/..", "/"])
def test_a_file_needs_a_name(tmp_path: Path, path: str) -> None:
    with pytest.raises(PathEscapes):
        write_file_beneath(tmp_path, path, b"x")


def test_writing_over_a_directory_is_an_error_and_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()

    with pytest.raises(IsADirectoryError):
        write_file_beneath(tmp_path, "a", b"x")

    assert os.listdir(tmp_path) == ["a"]


def test_a_failed_write_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(paths, "_write_all", full)
    with pytest.raises(OSError, match="No space"):
        write_file_beneath(tmp_path, "a", b"x")

    assert os.listdir(tmp_path) == []


@needs_root
def test_files_and_directories_get_their_owner(tmp_path: Path) -> None:
    write_file_beneath(tmp_path, "a/b", b"x", owner=Owner(1234, 4321))

    for path in ("a", "a/b"):
        found = (tmp_path / path).stat()
        assert (found.st_uid, found.st_gid) == (1234, 4321)


def test_removing_a_tree_leaves_what_symlinks_point_to(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "file").write_text("x")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(tmp_path / "keep")
    (tree / "file-link").symlink_to(tmp_path / "keep" / "file")
    os.mkfifo(tree / "fifo")
    (tree / "closed").mkdir()
    (tree / "closed" / "file").write_text("x")
    (tree / "closed").chmod(0)

    remove_tree(tmp_path, "tree")

    assert [entry.name for entry in tmp_path.iterdir()] == ["keep"]
    assert (tmp_path / "keep" / "file").read_text() == "x"


def test_removing_what_is_not_there_is_fine_and_a_symlink_itself_goes(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "link").symlink_to("keep")

    remove_tree(tmp_path, "nothing")
    remove_tree(tmp_path, "link")
    remove_beneath(tmp_path, "not/there")
    remove_beneath(tmp_path, "keep")

    assert os.listdir(tmp_path) == []


def test_no_depth_is_too_deep_to_remove(tmp_path: Path) -> None:
    """Deeper than any path can be written, and than handles there are."""
    (tmp_path / "tree").mkdir()
    here = os.open(tmp_path / "tree", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("dddd", dir_fd=here)
        inner = os.open("dddd", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)

    assert disk_use(tmp_path).is_too_deep
    remove_tree(tmp_path, "tree")

    assert os.listdir(tmp_path) == []


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    inner = tmp_path / "tree" / "mount"
    inner.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(inner)], check=True)
    try:
        (inner / "file").write_text("x" * 100_000)
        yield tmp_path
    finally:
        subprocess.run(["umount", str(inner)], check=True)


@needs_root
def test_removing_and_measuring_stop_at_mounts(mounted: Path) -> None:
    with pytest.raises(OSError, match="mounted"):
        remove_tree(mounted, "tree")

    assert (mounted / "tree" / "mount" / "file").exists()
    assert disk_use(mounted).used_bytes < 50_000


def test_disk_use_counts_blocks_once_per_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "a", tmp_path / "b")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(10 << 30)
    (tmp_path / "link").symlink_to("/")

    use = disk_use(tmp_path)

    assert 100_000 <= use.used_bytes < 200_000
    assert use.files == 3
    assert not use.is_too_deep


def test_entries_move_between_directories_by_name_only(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "x").write_text("x")
    (tmp_path / "b" / "y").write_text("y")
    with directory(tmp_path, "a") as a, directory(tmp_path, "b") as b:
        with pytest.raises(FileExistsError):
            rename_between(a, "x", b, "y", replace=False)
        rename_between(a, "x", b, "x")
        for name in ("../x", "..", "", "x/y"):
            with pytest.raises(PathEscapes):
                rename_between(a, name, b, "z")

    assert sorted(os.listdir(tmp_path / "b")) == ["x", "y"]
