from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from fedsched.client import disk_transfer
from fedsched.client.alloc_dirs import AllocDirs
from fedsched.client.context import AllocContext, TaskContext
from fedsched.client.hooks.dirs import AllocDirHook
from fedsched.client.hooks.migrate import DiskMigrationHook, UpstreamHook
from fedsched.client.mounts import unmount_below
from fedsched.client.snapshots import write_snapshot
from fedsched.model.alloc import Allocation, ClientStatus
from fedsched.model.errors import NotFound, Unavailable
from fedsched.model.policies import EphemeralDisk
from fedsched.rpc.context import ReplyMeta
from fedsched.rpc.methods.alloc import ALLOC_GET, AllocGetReply, AllocRequest
from fedsched.rpc.methods.alloc_access import FS_SNAPSHOT, SNAPSHOT_ERROR
from tests.builders import an_alloc, an_id
from tests.client.archives import Entry, tar
from tests.client.hook_contexts import a_task_context

Answer = Allocation | Exception


@pytest.fixture(autouse=True)
def _no_mounts_are_left(tmp_path: Path) -> Iterator[None]:
    yield
    unmount_below(tmp_path)


class FakeServers:
    """Servers that answer from a script, and stream whatever a test has."""

    def __init__(self, *answers: Answer, snapshot: list[bytes] | None = None) -> None:
        self._answers = list(answers)
        self._snapshot = snapshot or []
        self.asked: list[tuple[str, int]] = []
        self.is_connected = True
        self.last_contact = 0.0

    async def caller(self) -> Any:
        await trio.lowlevel.checkpoint()
        return self

    async def call(self, method: Any, request: AllocRequest, meta: Any) -> Any:
        assert method is ALLOC_GET
        self.asked.append((request.alloc_id, meta.min_index))
        await trio.lowlevel.checkpoint()
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return AllocGetReply(alloc=answer), ReplyMeta(index=10 * len(self.asked))

    @asynccontextmanager
    async def open_stream(self, method: Any, request: Any, meta: Any) -> AsyncIterator[Any]:
        assert method is FS_SNAPSHOT
        pieces = iter(self._snapshot)

        class Stream:
            def __aiter__(self) -> Stream:
                return self

            async def __anext__(self) -> bytes:
                await trio.lowlevel.checkpoint()
                if (piece := next(pieces, None)) is None:
                    raise StopAsyncIteration
                return piece

            async def wait_reply(self) -> None:
                await trio.lowlevel.checkpoint()

        yield Stream()


def a_replacement(
    tmp_path: Path, *, disk: EphemeralDisk | None = None, preempts: tuple[str, ...] = (), **fields: Any
) -> TaskContext:
    return a_task_context(
        tmp_path,
        group={"ephemeral_disk": disk or EphemeralDisk()},
        alloc_fields={"id": an_id(2), "previous_allocation": an_id(1), "preempted_allocations": preempts},
        **fields,
    )


def status(state: ClientStatus) -> Allocation:
    return an_alloc(1, client_status=state)


def run(test: Callable[[], Any]) -> Any:
    return trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0.01))


async def prerun(alloc: AllocContext) -> None:
    await AllocDirHook(alloc).prerun()
    await UpstreamHook(alloc).prerun()


def test_it_waits_for_the_ones_before_it_on_this_host(tmp_path: Path) -> None:
    others = {number: a_task_context(tmp_path, alloc_fields={"id": an_id(number)}).alloc for number in (1, 7)}
    by_id = {an_id(number): other for number, other in others.items()}
    alloc = a_replacement(tmp_path, preempts=(an_id(7),), others=by_id.get).alloc

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(prerun, alloc)
            await trio.sleep(100)
            others[1].terminal.set()
            await trio.sleep(100)
            assert not (alloc.root / ".upstream_allocs-done").exists()
            others[7].terminal.set()

    run(main)
    assert (alloc.root / ".upstream_allocs-done").exists()


@pytest.mark.parametrize("end", [ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST, ClientStatus.UNKNOWN])
def test_it_asks_servers_about_one_elsewhere_until_it_is_over(tmp_path: Path, end: ClientStatus) -> None:
    servers = FakeServers(status(ClientStatus.RUNNING), Unavailable("no leader"), status(end))
    alloc = a_replacement(tmp_path, servers=servers).alloc

    run(lambda: prerun(alloc))

    assert servers.asked == [(an_id(1), 0), (an_id(1), 10), (an_id(1), 10)]


def test_one_that_nobody_knows_any_more_is_not_waited_for(tmp_path: Path) -> None:
    servers = FakeServers(NotFound("gone"))

    run(lambda: prerun(a_replacement(tmp_path, servers=servers).alloc))


def test_an_agent_that_comes_back_asks_nobody(tmp_path: Path) -> None:
    servers = FakeServers(NotFound("gone"))
    alloc = a_replacement(tmp_path, servers=servers).alloc
    run(lambda: prerun(alloc))

    run(lambda: prerun(alloc))

    assert len(servers.asked) == 1


async def migrate(alloc: AllocContext) -> None:
    await AllocDirHook(alloc).prerun()
    await DiskMigrationHook(alloc).prerun()


def an_old_alloc(tmp_path: Path) -> AllocContext:
    old = a_task_context(tmp_path, alloc_fields={"id": an_id(1)})

    async def main() -> None:
        dirs = AllocDirs(old.alloc.root)
        await dirs.build()
        await dirs.build_lasting(["web"])
        (dirs.shared / "data" / "db").write_text("data")
        (old.dirs.local / "state").write_text("state")
        (old.dirs.local / "deep").mkdir()
        (old.dirs.local / "deep" / "link").symlink_to("/alloc/data/db")

    trio.run(main)
    return old.alloc


@pytest.mark.parametrize("is_sticky", [True, False])
def test_a_sticky_disk_is_taken_over_on_the_same_host(tmp_path: Path, is_sticky: bool) -> None:
    old = an_old_alloc(tmp_path)
    new = a_replacement(tmp_path, disk=EphemeralDisk(sticky=is_sticky), others={an_id(1): old}.get)

    trio.run(migrate, new.alloc)
    trio.run(migrate, new.alloc)

    assert (new.dirs.shared / "data" / "db").exists() is is_sticky
    assert (new.dirs.local / "state").exists() is is_sticky


def snapshot_of(alloc: AllocContext) -> list[bytes]:
    pieces: list[bytes] = []
    write_snapshot(alloc.root, ["web"], pieces.append)
    return pieces


def test_a_disk_comes_from_another_host(tmp_path: Path) -> None:
    servers = FakeServers(snapshot=snapshot_of(an_old_alloc(tmp_path)))
    new = a_replacement(tmp_path / "here", disk=EphemeralDisk(sticky=True, migrate=True), servers=servers)

    trio.run(migrate, new.alloc)

    assert (new.dirs.shared / "data" / "db").read_text() == "data"
    assert (new.dirs.local / "state").read_text() == "state"
    assert os.readlink(new.dirs.local / "deep" / "link") == "/alloc/data/db"
    assert not (new.alloc.root / ".migration").exists()


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        (tar([Entry("web/local/x", b"x"), Entry(SNAPSHOT_ERROR, b"disk on fire")]), "disk on fire"),
        (tar([Entry("web/local/../../../x", b"x")]), "climbs"),
        (tar([Entry("web/local/l", kind=b"2", target="/"), Entry("web/local/l/x", b"x")]), "link and a directory"),
        (tar([Entry("web/local/x", b"x"), Entry("web/local/h", kind=b"1", target="web/local/x")]), "a hard link"),
        (tar([Entry("web/local/x", b"x", size=5000)], ends=False), "cut off"),
        (b"no archive" * 100, "checksum|number"),
        (bytes(40 << 20), "more than"),
    ],
)
def test_a_disk_that_does_not_arrive_is_logged_and_the_allocation_starts_empty(
    tmp_path: Path, snapshot: bytes, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = FakeServers(snapshot=[snapshot[at : at + 65536] for at in range(0, len(snapshot), 65536)])
    new = a_replacement(tmp_path, disk=EphemeralDisk(sticky=True, migrate=True, size_mb=10), servers=servers)
    logged: list[dict[str, Any]] = []
    log = SimpleNamespace(warn=lambda name, **fields: logged.append(fields), info=lambda *_, **__: None)
    object.__setattr__(new.alloc.parts, "log", cast(Any, log))

    trio.run(migrate, new.alloc)

    assert len(logged) == 1
    assert re.search(reason, logged[0]["error"]), logged
    assert list((new.dirs.shared / "data").iterdir()) == []
    assert not new.dirs.local.exists() or list(new.dirs.local.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["allocs"]
    assert not (new.alloc.root / ".migration").exists()


def test_only_what_lasts_is_taken_from_an_archive(tmp_path: Path) -> None:
    archive = tar(
        [
            Entry("web/secrets/token", b"x"),
            Entry("other/local/x", b"x"),
            Entry("web/local/x", b"x", mode=0o6755),
            Entry("alloc/logs/web.stdout.0", b"x"),
        ]
    )
    new = a_replacement(
        tmp_path, disk=EphemeralDisk(sticky=True, migrate=True), servers=FakeServers(snapshot=[archive])
    )

    trio.run(migrate, new.alloc)

    assert [path.name for path in new.dirs.local.iterdir()] == ["x"]
    assert (new.dirs.local / "x").stat().st_mode & 0o7777 == 0o755
    assert not (new.dirs.task / "secrets" / "token").exists()
    assert list(new.dirs.logs.iterdir()) == []


def test_a_transfer_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = a_replacement(tmp_path, disk=EphemeralDisk(sticky=True, migrate=True), servers=FakeServers())

    async def never(*_: object) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(disk_transfer, "_receive", never)
    monkeypatch.setattr(disk_transfer, "TRANSFER_S", 0.05)

    trio.run(migrate, new.alloc)

    assert not (new.alloc.root / ".migration").exists()


def test_a_sticky_disk_elsewhere_is_left_there_without_migrate(tmp_path: Path) -> None:
    new = a_replacement(tmp_path, disk=EphemeralDisk(sticky=True))

    trio.run(migrate, new.alloc)

    assert (new.alloc.root / ".migrate_disk-done").exists()
