from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from fedsched.client import alloc_dir_work, mounts
from fedsched.client.alloc_dirs import UNFINISHED, AllocDirs, TaskPlan, entry_name, sweep
from fedsched.client.mounts import mounts_below, unmount_below
from fedsched.client.paths import Owner, PathEscapes
from tests.builders import an_id


def can_mount(tmp: Path) -> bool:
    tmp.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp)], check=False, capture_output=True)
    if done.returncode == 0:
        subprocess.run(["umount", str(tmp)], check=True)
    return done.returncode == 0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    left = mounts_below(tmp_path)
    unmount_below(tmp_path)
    assert left == [], "a test left mounts behind"


@pytest.fixture
def mounting(place: Path) -> None:
    if os.geteuid() != 0 or not can_mount(place / "probe"):
        pytest.skip("this process may not mount")


def built(root: Path, *tasks: str, **fields: object) -> AllocDirs:
    dirs = AllocDirs(root)

    async def main() -> None:
        await dirs.build()
        for task in tasks:
            await dirs.build_task(task, **fields)  # type: ignore[arg-type]

    trio.run(main)
    return dirs


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_layout_has_its_modes(place: Path) -> None:
    root = place / "allocs" / an_id(1)
    dirs = built(root, "web")
    task = dirs.task("web")

    assert {str(path.relative_to(root)): oct(mode(path)) for path in (root, *(path for path in root.rglob("*")))} == {
        ".": "0o711",
        "alloc": "0o755",
        "alloc/data": "0o777",
        "alloc/logs": "0o755",
        "alloc/tmp": "0o1777",
        "web": "0o755",
        "web/local": "0o777",
        "web/secrets": "0o700",
        "web/private": "0o700",
        "web/tmp": "0o1777",
    }
    assert (task.alloc, task.shared, task.logs) == (root, root / "alloc", root / "alloc" / "logs")
    assert (task.local, task.secrets, task.private) == (
        task.task / "local",
        task.task / "secrets",
        task.task / "private",
    )
    trio.run(dirs.destroy)


def test_building_again_changes_nothing_and_brings_back_what_is_missing(place: Path) -> None:
    dirs = built(place / "a", "web")
    task = dirs.task("web")
    (task.local / "file").write_text("mine")
    task.local.chmod(0o700)
    (task.secrets / "token").write_text("t")
    (dirs.shared / "data").rmdir()

    built(place / "a", "web")

    assert (task.local / "file").read_text() == "mine"
    assert mode(task.local) == 0o700
    assert (task.secrets / "token").read_text() == "t"
    assert mode(dirs.shared / "data") == 0o777
    trio.run(dirs.destroy)


def test_secrets_are_in_memory_of_their_size_and_cannot_be_run(place: Path, mounting: None) -> None:
    dirs = built(place / "a", "web", secrets_mb=3, owner=Owner(1234, 1235))
    task = dirs.task("web")
    options = {
        line.split()[1]: line.split()[3].split(",")
        for line in Path("/proc/mounts").read_text().splitlines()
        if line.split()[1].startswith(str(place))
    }

    assert set(options) == {str(task.secrets), str(task.private)}
    assert "size=3072k" in options[str(task.secrets)]
    assert {"noexec", "nosuid", "nodev"} <= set(options[str(task.secrets)])
    assert mounts.has_noswap() == ("noswap" in options[str(task.secrets)])
    assert (task.secrets.stat().st_uid, mode(task.secrets)) == (1234, 0o700)
    assert (task.private.stat().st_uid, mode(task.private)) == (0, 0o700)
    assert task.local.stat().st_uid == 1234
    with pytest.raises(OSError, match="No space"):
        (task.secrets / "large").write_bytes(b"x" * (4 << 20))
    trio.run(dirs.destroy)
    assert mounts_below(place) == []
    assert not (place / "a").exists()


def test_secrets_of_an_image_are_open_to_whoever_the_image_is(place: Path, mounting: None) -> None:
    dirs = built(place / "a", "web", is_open=True)

    assert mode(dirs.task("web").secrets) == 0o777
    assert mode(dirs.task("web").task) == 0o700
    assert mode(dirs.task("web").private) == 0o700
    trio.run(dirs.destroy)


def test_without_the_right_to_mount_secrets_are_plain_directories(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "_mount", lambda *_: 1)
    dirs = AllocDirs(place / "a")

    async def main() -> bool:
        await dirs.build()
        return await dirs.build_task("web")

    assert trio.run(main) is False
    assert dirs.mounts() == []
    assert dirs.task("web").secrets.is_dir()
    trio.run(dirs.destroy)


def test_a_mount_that_is_busy_is_still_removed(place: Path, mounting: None) -> None:
    dirs = built(place / "a", "web")
    busy = os.open(dirs.task("web").secrets, os.O_RDONLY)
    try:
        trio.run(dirs.destroy)
    finally:
        os.close(busy)

    assert not (place / "a").exists()


def test_mounts_inside_mounts_and_of_odd_names_go_too(place: Path, mounting: None) -> None:
    dirs = built(place / "a", "web")
    odd = dirs.task("web").local / "a b\\c\nd"
    odd.mkdir()
    for _ in range(2):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(odd)], check=True)
    (odd / "inner").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(odd / "inner")], check=True)

    trio.run(dirs.destroy)

    assert list(place.glob("a*")) == []


def test_destroying_never_leaves_the_tree(place: Path, mounting: None) -> None:
    """A bind mount of something precious, and symlinks to it: the task's last trick."""
    precious = place / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    dirs = built(place / "a", "web")
    (dirs.task("web").local / "link").symlink_to(precious)
    bind = dirs.task("web").local / "bind"
    bind.mkdir()
    subprocess.run(["mount", "--bind", str(precious), str(bind)], check=True)

    trio.run(dirs.destroy)

    assert (precious / "file").read_text() == "keep"
    assert not (place / "a").exists()


def test_destroying_twice_or_nothing_at_all_is_fine(place: Path) -> None:
    dirs = built(place / "a")

    trio.run(dirs.destroy)
    trio.run(dirs.destroy)
    trio.run(AllocDirs(place / "never" / "built").destroy)

    assert not (place / "a").exists()


def test_a_symlink_in_place_of_a_directory_is_not_built_upon(place: Path) -> None:
    dirs = built(place / "a", "web")
    (dirs.shared / "data").rmdir()
    (dirs.shared / "data").symlink_to(place)

    with pytest.raises(OSError, match=r"symbolic|directory"):
        built(place / "a")

    trio.run(dirs.destroy)


@pytest.mark.parametrize("name", ["", ".", "..", "alloc", "a/b", "../x", "a\0b"])
def test_a_task_is_not_named_like_something_else(name: str) -> None:
    with pytest.raises(PathEscapes):
        entry_name(name)
    with pytest.raises(PathEscapes):
        AllocDirs(Path("/x")).task(name)


def test_a_replacement_takes_over_what_lasts(place: Path) -> None:
    old = built(place / "old", "web", "side")
    new = built(place / "new", "web", "side")
    (old.shared / "data" / "db").write_text("data")
    (old.task("web").local / "state").write_text("state")
    (old.task("web").secrets / "token").write_text("secret")

    async def take() -> list[str]:
        return await new.take_over(old.root, ["web", "side"])

    assert trio.run(take) == ["alloc/data", "web/local"]
    assert trio.run(take) == []
    assert (new.shared / "data" / "db").read_text() == "data"
    assert (new.task("web").local / "state").read_text() == "state"
    assert not (new.task("web").secrets / "token").exists()
    assert list((old.shared / "data").iterdir()) == []
    for dirs in (old, new):
        trio.run(dirs.destroy)


def test_nothing_is_taken_from_a_symlink_or_over_what_is_there(place: Path) -> None:
    precious = place / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    old = built(place / "old", "web")
    new = built(place / "new", "web")
    (old.shared / "data").rmdir()
    (old.shared / "data").symlink_to(precious)
    (old.task("web").local / "state").write_text("old")
    (new.task("web").local / "state").write_text("new")

    async def take() -> list[str]:
        return await new.take_over(old.root, ["web", "gone"])

    with pytest.raises(OSError, match="symbolic links"):
        trio.run(take)
    (old.shared / "data").unlink()
    assert trio.run(take) == []
    assert (new.task("web").local / "state").read_text() == "new"
    for dirs in (old, new):
        trio.run(dirs.destroy)


def test_what_is_in_memory_does_not_count_as_disk(place: Path, mounting: None) -> None:
    dirs = built(place / "a", "web")
    (dirs.task("web").secrets / "token").write_bytes(b"x" * 500_000)
    (dirs.task("web").local / "file").write_bytes(b"x" * 100_000)

    use = trio.run(dirs.use)

    assert 100_000 <= use.used_bytes < 400_000
    trio.run(dirs.destroy)


def test_a_directory_that_cannot_be_given_away_leaves_nothing_half_made(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(alloc_dir_work, "rename_between", fails)
    with pytest.raises(OSError, match="No space"):
        built(place / "a")

    assert os.listdir(place) == []


def test_a_new_allocation_gets_all_its_directories_at_once_as_if_made_one_by_one(place: Path) -> None:
    one_by_one = built(place / "allocs" / an_id(1), "web", "db")
    at_once = AllocDirs(place / "allocs" / an_id(2))

    made = trio.run(at_once.build, (TaskPlan("web"), TaskPlan("db")))

    assert made == {"web", "db"}
    assert layout(at_once.root) == layout(one_by_one.root)
    assert trio.run(at_once.build, (TaskPlan("web"), TaskPlan("db"))) == frozenset()
    for dirs in (one_by_one, at_once):
        trio.run(dirs.destroy)


def layout(root: Path) -> dict[str, tuple[int, int]]:
    found = [root, *root.rglob("*")]
    return {str(path.relative_to(root)): (mode(path), path.stat().st_uid) for path in found}


def test_what_a_killed_agent_left_unfinished_is_swept_away(place: Path) -> None:
    (place / f"{UNFINISHED}0123" / "alloc" / "data").mkdir(parents=True)
    (place / an_id(1)).mkdir()

    sweep(place)

    assert [path.name for path in place.iterdir()] == [an_id(1)]
