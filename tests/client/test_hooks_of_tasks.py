from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs

from fedsched.client.alloc_dirs import AllocDirs
from fedsched.client.context import TaskContext
from fedsched.client.hooks import disk
from fedsched.client.hooks.dirs import AllocDirHook, TaskDirHook
from fedsched.client.hooks.disk import DiskHook, excess
from fedsched.client.hooks.hook import AllocHook, HookFailed, HookResult, TaskHook
from fedsched.client.hooks.order import ALLOC_HOOKS, TASK_HOOKS
from fedsched.client.hooks.payload import PayloadHook
from fedsched.client.hooks.validate import ValidateHook
from fedsched.client.hooks.volumes import VolumesHook
from fedsched.client.paths import DiskUse, Owner
from fedsched.client.settings import ClientSettings
from fedsched.client.users import task_owner
from fedsched.drivers.driver import FsIsolation, Mount
from fedsched.model.node import HostVolumeInfo
from fedsched.model.policies import EphemeralDisk
from fedsched.model.task import DispatchPayload
from fedsched.model.volume import VolumeMount, VolumeRequest
from tests.builders import a_node
from tests.client.hook_contexts import a_driver, a_task_context, actions_of

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root hands files over")
NOBODY = Owner(pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid)
CHROOT = a_driver("exec", isolation=FsIsolation.CHROOT)
IMAGE = a_driver("docker", isolation=FsIsolation.IMAGE)


def prestart(hook: type[TaskHook], task: TaskContext) -> HookResult:
    """Run one hook of a task whose directories are there."""

    async def main() -> HookResult:
        dirs = AllocDirs(task.alloc.root)
        await dirs.build()
        await dirs.build_lasting(["web"])
        return await hook(task).prestart({})

    return trio.run(main)


def with_payload(tmp_path: Path, file: str, payload: bytes = b"input", **fields: Any) -> TaskContext:
    fields.setdefault("task", {})["dispatch_payload"] = DispatchPayload(file=file)
    return a_task_context(tmp_path, job={"payload": payload, "dispatched": True}, **fields)


@pytest.mark.parametrize("payload", [b"input", bytes(range(256)) * 64])
def test_the_payload_is_a_file_below_local(tmp_path: Path, payload: bytes) -> None:
    task = with_payload(tmp_path, "deep/in.json", payload)

    prestart(PayloadHook, task)
    prestart(PayloadHook, task)

    assert (task.dirs.local / "deep" / "in.json").read_bytes() == payload
    assert stat.S_IMODE((task.dirs.local / "deep" / "in.json").stat().st_mode) == 0o644


def test_tasks_that_do_not_ask_or_have_none_get_no_payload(tmp_path: Path) -> None:
    for task in (a_task_context(tmp_path, job={"payload": b"x"}), with_payload(tmp_path, "x", b"")):
        prestart(PayloadHook, task)
        assert list(task.dirs.local.iterdir()) == []


@pytest.mark.parametrize("file", ["../x", "/etc/x", "a/../../x", "link/x", "..", "x\0y", "dir"])
def test_a_payload_stays_in_local(tmp_path: Path, file: str) -> None:
    task = with_payload(tmp_path, file)
    prestart(PayloadHook, a_task_context(tmp_path))
    (task.dirs.local / "link").symlink_to("..")
    (task.dirs.local / "dir").mkdir()

    with pytest.raises(HookFailed):
        prestart(PayloadHook, task)

    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_payload_is_not_written_through_a_local_that_became_a_symlink(tmp_path: Path) -> None:
    task = with_payload(tmp_path, "passwd")
    (tmp_path / "etc").mkdir()
    task.dirs.task.mkdir(parents=True)
    task.dirs.local.symlink_to(tmp_path / "etc")

    with pytest.raises(HookFailed, match="symbolic links"):
        trio.run(PayloadHook(task).prestart, {})

    assert list((tmp_path / "etc").iterdir()) == []


@needs_root
def test_a_payload_belongs_to_the_task_s_user(tmp_path: Path) -> None:
    task = with_payload(tmp_path, "in", task={"user": "nobody"})

    prestart(PayloadHook, task)

    assert (task.dirs.local / "in").stat().st_uid == 65534


def a_volume_task(tmp_path: Path, mount: dict[str, Any] | None = None, **fields: Any) -> TaskContext:
    volume = tmp_path / "volume"
    volume.mkdir(exist_ok=True)
    offered = fields.pop("offered", {"data": HostVolumeInfo(name="data", path=str(volume))})
    request = {"name": "v", "type": "host", "source": "data", **fields.pop("request", {})}
    wanted = VolumeMount(**{"volume": "v", "destination": "/srv/data", **(mount or {})})
    return a_task_context(
        tmp_path,
        node=a_node(host_volumes=offered),
        group={"volumes": {"v": VolumeRequest(**request)}},
        task={"volume_mounts": (wanted,)},
        **{"driver": CHROOT, **fields},
    )


def test_a_host_volume_becomes_a_mount(tmp_path: Path) -> None:
    result = prestart(VolumesHook, a_volume_task(tmp_path))

    assert result.mounts == (Mount(tmp_path / "volume", "/srv/data"),)


@pytest.mark.parametrize("who", ["operator", "group", "mount"])
def test_anybody_s_read_only_makes_it_so(tmp_path: Path, who: str) -> None:
    task = a_volume_task(
        tmp_path,
        {"read_only": who == "mount"},
        request={"read_only": who == "group"},
        offered={"data": HostVolumeInfo(name="data", path=str(tmp_path), read_only=who == "operator")},
    )

    assert prestart(VolumesHook, task).mounts[0].is_read_only


def test_each_allocation_may_have_its_own_volume(tmp_path: Path) -> None:
    offered = {f"data[{number}]": HostVolumeInfo(path=str(tmp_path / "volume")) for number in range(2)}
    task = a_volume_task(tmp_path, request={"per_alloc": True}, offered=offered, alloc_fields={"index": 1})

    assert prestart(VolumesHook, task).mounts[0].host_path == tmp_path / "volume"


@pytest.mark.parametrize(
    ("mount", "fields", "message"),
    [
        ({"volume": "other"}, {}, "no host volume of the group"),
        ({}, {"request": {"type": "csi"}}, "no host volume of the group"),
        ({}, {"request": {"source": "gone"}}, "no host volume 'gone'"),
        ({}, {"offered": {"data": HostVolumeInfo(name="data", path="/does/not/exist")}}, "No such file"),
        ({}, {"offered": {"data": HostVolumeInfo(name="data", path="/etc/passwd")}}, "no directory"),
        ({"propagation_mode": "bidirectional"}, {}, "not served"),
        ({"destination": "/"}, {}, "no place"),
        ({"destination": "/a/../../b"}, {}, "no place"),
        ({"destination": "/secrets"}, {}, "agent's"),
        ({"destination": "private/x"}, {}, "agent's"),
    ],
)
def test_volumes_that_cannot_be_had_fail_the_task(
    tmp_path: Path, mount: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(HookFailed, match=message):
        prestart(VolumesHook, a_volume_task(tmp_path, mount, **fields))


def test_a_driver_without_isolation_gets_a_symlink(tmp_path: Path) -> None:
    task = a_volume_task(tmp_path, driver=a_driver())

    assert prestart(VolumesHook, task).mounts == ()
    prestart(VolumesHook, task)
    (tmp_path / "volume" / "file").write_text("x")

    assert (task.dirs.task / "srv/data/file").read_text() == "x"
    (task.dirs.task / "srv/data").unlink()
    (task.dirs.task / "srv/data").symlink_to("/old")
    prestart(VolumesHook, task)
    assert os.readlink(task.dirs.task / "srv/data") == str(tmp_path / "volume")


def test_a_symlink_cannot_keep_anybody_from_writing_and_replaces_nothing(tmp_path: Path) -> None:
    with pytest.raises(HookFailed, match="cannot keep up"):
        prestart(VolumesHook, a_volume_task(tmp_path, {"read_only": True}, driver=a_driver()))
    task = a_volume_task(tmp_path, driver=a_driver())
    (task.dirs.task / "srv" / "data").mkdir(parents=True)
    with pytest.raises(HookFailed, match="File exists"):
        prestart(VolumesHook, task)
    (task.dirs.task / "srv" / "data").rmdir()
    (task.dirs.task / "srv").rmdir()
    (task.dirs.task / "srv").symlink_to("/tmp")
    with pytest.raises(HookFailed, match="leads out"):
        prestart(VolumesHook, task)


def test_good_settings_pass_and_bad_ones_are_named(tmp_path: Path) -> None:
    prestart(ValidateHook, a_task_context(tmp_path, task={"config": {"command": "${NOMAD_TASK_NAME}"}}))
    for config, message in (
        ({"comand": "x"}, "comand is unknown"),
        ({}, "command is required"),
        ({"command": "${nope}"}, "nope"),
        ({"command": "x", "args": "y"}, "not a list"),
        ({f"k{number}": 1 for number in range(9)}, "and 5 more"),
    ):
        with pytest.raises(HookFailed, match=message) as caught:
            prestart(ValidateHook, a_task_context(tmp_path, task={"config": config}))
        assert caught.value.event == "Failed Validation"
        assert not caught.value.is_recoverable


def test_a_driver_that_was_switched_off_since_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(HookFailed, match="not enabled") as caught:
        prestart(ValidateHook, a_task_context(tmp_path, drivers={}))

    assert caught.value.event == "Failed Validation"


@pytest.mark.parametrize("user", ["root", "0", "root:nogroup", "${NOMAD_META_who}"])
def test_root_is_denied_by_whatever_name(tmp_path: Path, user: str) -> None:
    task = a_task_context(tmp_path, driver=CHROOT, task={"user": user}, job={"meta": {"who": "root"}})

    with pytest.raises(HookFailed, match="may not run as") as caught:
        prestart(ValidateHook, task)
    assert caught.value.event == "Failed Validation"


def test_users_are_free_where_the_operator_does_not_check(tmp_path: Path) -> None:
    prestart(ValidateHook, a_task_context(tmp_path, task={"user": "root"}))
    prestart(ValidateHook, a_task_context(tmp_path, driver=CHROOT, task={"user": "nobody"}))
    prestart(ValidateHook, a_task_context(tmp_path, driver=IMAGE, task={"user": "someone-in-the-image"}))


@pytest.mark.parametrize("denied", ["0-999,65534", "65534", "nonsense", "1-x"])
def test_ranges_of_users_are_denied_per_driver_and_a_slip_denies_as_well(tmp_path: Path, denied: str) -> None:
    settings = ClientSettings(
        state_dir=tmp_path, alloc_dir=tmp_path, drivers={"raw_exec": {"denied_host_uids": denied}}
    )

    with pytest.raises(HookFailed, match=r"denied_host_uids|range of ids"):
        prestart(ValidateHook, a_task_context(tmp_path, settings=settings, task={"user": "nobody"}))
    settings = ClientSettings(state_dir=tmp_path, alloc_dir=tmp_path, drivers={"raw_exec": {"denied_host_gids": "1-5"}})
    prestart(ValidateHook, a_task_context(tmp_path, settings=settings, task={"user": "nobody"}))


@pytest.mark.parametrize("user", ["no-such-user", "99999999999", "nobody:no-such-group"])
def test_a_user_that_is_not_here_fails_the_task(tmp_path: Path, user: str) -> None:
    with pytest.raises(HookFailed) as caught:
        prestart(ValidateHook, a_task_context(tmp_path, task={"user": user}))

    assert caught.value.event == "Failed Validation"


@needs_root
def test_files_belong_to_whom_the_driver_runs_tasks_as(tmp_path: Path) -> None:
    assert task_owner(a_task_context(tmp_path)) is None
    assert task_owner(a_task_context(tmp_path, task={"user": "nobody"})) == NOBODY
    assert task_owner(a_task_context(tmp_path, driver=CHROOT)) == NOBODY
    assert task_owner(a_task_context(tmp_path, driver=IMAGE, task={"user": "whoever"})) is None


def test_directories_come_and_go_with_the_allocation(tmp_path: Path) -> None:
    task = a_task_context(tmp_path)

    async def main() -> None:
        await AllocDirHook(task.alloc).prerun()
        await TaskDirHook(task).prestart({})
        await TaskDirHook(task).prestart({})
        assert task.dirs.secrets.is_dir()
        await AllocDirHook(task.alloc).destroy()

    trio.run(main)
    assert not task.alloc.root.exists()


def test_directories_that_cannot_be_made_are_told(tmp_path: Path) -> None:
    task = a_task_context(tmp_path)
    (tmp_path / "allocs").write_text("a file")

    async def main() -> None:
        with pytest.raises(HookFailed, match="cannot be made"):
            await AllocDirHook(task.alloc).prerun()
        with pytest.raises(HookFailed, match="cannot be made"):
            await TaskDirHook(task).prestart({})

    trio.run(main)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring happens in threads, which virtual time does not wait for."""
    monkeypatch.setattr(disk, "PAUSE_S", 0.001)


def test_what_outgrows_its_disk_is_killed_and_told_why(tmp_path: Path, no_pause: None) -> None:
    settings = ClientSettings(state_dir=tmp_path, alloc_dir=tmp_path, enforce_disk=True)
    task = a_task_context(tmp_path, settings=settings, group={"ephemeral_disk": EphemeralDisk(size_mb=1)})
    prestart(PayloadHook, task)

    async def main() -> None:
        with trio.move_on_after(0.1):
            await DiskHook(task.alloc).run()
        assert actions_of(task).kills == []
        (task.dirs.local / "big").write_bytes(b"x" * (2 << 20))
        with trio.fail_after(30):
            await DiskHook(task.alloc).run()

    trio.run(main)
    assert actions_of(task).kills == [("2 MiB are used of 1 MiB", True)]
    assert [(event.type, event.disk_limit) for event in actions_of(task).events] == [
        ("Disk Resources Exceeded", 1 << 20)
    ]


def test_nothing_is_measured_where_nobody_asked_for_it(tmp_path: Path) -> None:
    assert DiskHook(a_task_context(tmp_path).alloc).is_idle


def test_a_disk_that_cannot_be_measured_is_looked_at_again(tmp_path: Path, no_pause: None) -> None:
    settings = ClientSettings(state_dir=tmp_path, alloc_dir=tmp_path, enforce_disk=True)
    task = a_task_context(tmp_path, settings=settings)

    async def main() -> None:
        with trio.move_on_after(0.1) as scope:
            await DiskHook(task.alloc).run()
        assert scope.cancelled_caught

    trio.run(main)


def test_what_counts_as_too_much() -> None:
    assert excess(DiskUse(1 << 20, 1, False), 1) == ""
    assert "used" in excess(DiskUse((1 << 20) + 1, 1, False), 1)
    assert "nested" in excess(DiskUse(0, 1, True), 1)


def test_hooks_run_in_the_order_that_was_promised() -> None:
    tasks = [hook.name for hook in TASK_HOOKS]
    allocs = [hook.name for hook in ALLOC_HOOKS]
    promised = ["validate", "task_dir", "dispatch_payload", "volumes", "artifacts"]

    assert [name for name in tasks if name in promised] == promised
    assert allocs[:3] == ["alloc_dir", "upstream_allocs", "migrate_disk"]
    assert len(set(tasks)) == len(tasks)
    assert len(set(allocs)) == len(allocs)
    assert all(issubclass(hook, TaskHook) for hook in TASK_HOOKS)
    assert all(issubclass(hook, AllocHook) for hook in ALLOC_HOOKS)


def test_a_changed_job_is_seen_by_the_same_hook(tmp_path: Path) -> None:
    task = with_payload(tmp_path, "in", b"one")
    prestart(PayloadHook, task)
    task.alloc.alloc = structs.replace(task.alloc.alloc, job=structs.replace(task.alloc.job, payload=b"two"))

    prestart(PayloadHook, task)

    assert (task.dirs.local / "in").read_bytes() == b"two"


def test_a_task_that_an_agent_came_back_to_is_left_alone(tmp_path: Path) -> None:
    for task, hook in (
        (with_payload(tmp_path, "in"), PayloadHook),
        (a_volume_task(tmp_path, {"volume": "gone"}), VolumesHook),
        (a_task_context(tmp_path, drivers={}), ValidateHook),
    ):
        task.task_id = "running"
        assert prestart(hook, task) == HookResult()
        assert list(task.dirs.local.iterdir()) == []
