"""Small disk work in a process of its own: answers, errors, order, and what happens when the process dies."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from fedsched.client import alloc_dir_work
from fedsched.client.alloc_dirs import AllocDirs, TaskPlan
from fedsched.client.disk_process import DiskProcess
from fedsched.telemetry.log import Hub


def with_process(place: Path, story: Callable[[DiskProcess], Awaitable[None]]) -> None:
    async def main() -> None:
        disk = DiskProcess(place, Hub().logger("test"))
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await nursery.start(disk.run)
                await story(disk)
                nursery.cancel_scope.cancel("done")

    trio.run(main)


async def until_up(disk: DiskProcess) -> int:
    """Its pid, once it answers."""
    while (pid := await disk.do(os.getpid)) == os.getpid():
        await trio.sleep(0.01)
    return pid


def slow(place: Path, name: str, wait_s: float) -> str:
    """For a shell, by `os.system`: the process imports no more than the standard library and what it is made for."""
    return f"sleep {wait_s}; printf {name} >> {place}/order"


def test_it_returns_what_a_function_returns_in_another_process(tmp_path: Path) -> None:
    async def story(disk: DiskProcess) -> None:
        assert await until_up(disk) != os.getpid()
        assert await disk.do(os.path.join, "a", "b") == "a/b"

    with_process(tmp_path, story)


def test_it_raises_what_a_function_raises(tmp_path: Path) -> None:
    async def story(disk: DiskProcess) -> None:
        await until_up(disk)
        with pytest.raises(FileNotFoundError, match="nothing") as raised:
            await disk.do(os.mkdir, tmp_path / "nothing" / "here")
        assert raised.value.filename == str(tmp_path / "nothing" / "here")

    with_process(tmp_path, story)


def test_what_is_asked_for_while_it_is_busy_is_done_afterwards_in_order(tmp_path: Path) -> None:
    async def story(disk: DiskProcess) -> None:
        await until_up(disk)
        async with trio.open_nursery() as nursery:
            for name in "abcdefgh":
                nursery.start_soon(disk.do, os.system, slow(tmp_path, name, 0.01))
                await trio.testing.wait_all_tasks_blocked(0.001)
        assert (tmp_path / "order").read_text() == "abcdefgh"

    with_process(tmp_path, story)


def test_work_goes_on_in_threads_when_the_process_is_killed_in_the_middle(tmp_path: Path) -> None:
    async def story(disk: DiskProcess) -> None:
        pid = await until_up(disk)
        answers: list[int] = []

        async def ask(name: str) -> None:
            answers.append(await disk.do(os.system, slow(tmp_path, name, 0.05)))

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(ask, name)
            await trio.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
        assert answers == [0, 0, 0]
        assert set((tmp_path / "order").read_text()) == {"a", "b", "c"}
        assert await disk.do(threading.current_thread) is not threading.main_thread()

    with_process(tmp_path, story)


def test_what_was_asked_for_is_done_although_everybody_is_cancelled(tmp_path: Path) -> None:
    async def story(disk: DiskProcess) -> None:
        await until_up(disk)
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(disk.do, os.system, slow(tmp_path, name, 0.02))
            await trio.sleep(0.01)
            nursery.cancel_scope.cancel("enough")
        assert sorted((tmp_path / "order").read_text()) == ["a", "b", "c"]

    with_process(tmp_path, story)


def test_the_next_one_waits_until_the_one_before_has_ended(tmp_path: Path) -> None:
    async def story(first: DiskProcess) -> None:
        await until_up(first)
        second = DiskProcess(tmp_path, Hub().logger("test"))
        async with trio.open_nursery() as nursery:
            await nursery.start(second.run)
            while not second.is_up:
                await trio.sleep(0.01)
            nursery.start_soon(second.do, os.system, slow(tmp_path, "2", 0.0))
            await first.do(os.system, slow(tmp_path, "1", 0.3))
            assert (tmp_path / "order").read_text() == "1"
            os.kill(await first.do(os.getpid), signal.SIGKILL)
            while (tmp_path / "order").read_text() != "12":
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel("done")

    with_process(tmp_path, story)


def test_without_a_process_work_is_done_in_threads(tmp_path: Path) -> None:
    disk = DiskProcess(tmp_path, Hub().logger("test"))

    assert trio.run(disk.do, os.getpid) == os.getpid()


def test_directories_are_the_same_whoever_makes_them(tmp_path: Path) -> None:
    plans = [TaskPlan("web"), TaskPlan("side")]

    def modes(root: Path) -> dict[str, int]:
        return {str(path.relative_to(root)): path.lstat().st_mode for path in sorted(root.rglob("*"))}

    async def story(disk: DiskProcess) -> None:
        await until_up(disk)
        mask = os.umask(0o077)
        try:
            by_process, by_thread = AllocDirs(tmp_path / "p", disk), AllocDirs(tmp_path / "t")
            assert await by_process.build(plans) == await by_thread.build(plans) == {"web", "side"}
            assert modes(tmp_path / "p") == modes(tmp_path / "t")
            assert len(modes(tmp_path / "p")) == 4 + 2 * 5
        finally:
            os.umask(mask)
            for dirs in (by_process, by_thread):
                await dirs.forget_secrets(["web", "side"])
                await dirs.destroy()
        assert not (tmp_path / "p").exists()
        assert not (tmp_path / "t").exists()

    with_process(tmp_path, story)


def test_a_name_that_is_no_directory_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    with pytest.raises(alloc_dir_work.PathEscapes):
        trio.run(AllocDirs(tmp_path / "a").build, [TaskPlan("../b")])
    assert not (tmp_path / "a").exists()


def test_a_process_that_cannot_be_started_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    async def story(disk: DiskProcess) -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert await disk.do(os.getpid) == os.getpid()
        assert not disk.is_up

    monkeypatch.setattr(DiskProcess, "_start", fails)
    with_process(tmp_path, story)
