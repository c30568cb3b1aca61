from __future__ import annotations

import base64
import hashlib
import os
import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.client.alloc_dirs import AllocDirs
from fedsched.client.context import TaskContext
from fedsched.client.fetch import runner
from fedsched.client.fetch.landlock import landlock_version
from fedsched.client.fetch.limits import FetchFailed
from fedsched.client.fetch.place import place_tree
from fedsched.client.hooks.artifacts import ArtifactsHook
from fedsched.client.hooks.hook import HookFailed, HookResult
from fedsched.client.paths import PathEscapes, directory, exchange
from fedsched.client.settings import ArtifactLimits, ClientSettings
from fedsched.drivers.driver import FsIsolation
from fedsched.model.task import TaskArtifact
from tests.client.archives import Entry, packed, tar, zipped
from tests.client.hook_contexts import LOOPBACK, a_driver, a_task_context, actions_of
from tests.client.web import Web, open_web

is_root = os.geteuid() == 0
needs_root = pytest.mark.skipif(not is_root, reason="needs root to become another user")
needs_landlock = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no landlock")
pytestmark = needs_landlock


@pytest.fixture
def web() -> Iterator[Web]:
    with open_web() as web:
        yield web


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    subprocess.run(
        ["umount", *map(str, tmp_path.rglob("secrets")), *map(str, tmp_path.rglob("private"))],
        check=False,
        stderr=subprocess.DEVNULL,
    )


def a_task_with(
    place: Path, *artifacts: TaskArtifact, settings: ArtifactLimits = LOOPBACK, **fields: Any
) -> TaskContext:
    fields.setdefault("task", {})["artifacts"] = artifacts
    own = ClientSettings(state_dir=place, alloc_dir=place, artifact=settings)
    return a_task_context(place, settings=own, **fields)


def prestart(task: TaskContext, hook: ArtifactsHook | None = None, state: dict[str, str] | None = None) -> HookResult:
    async def main() -> HookResult:
        dirs = AllocDirs(task.alloc.root)
        await dirs.build()
        await dirs.build_task("web")
        return await (hook or ArtifactsHook(task)).prestart(state or {})

    try:
        return trio.run(main)
    finally:
        assert not [name for name in os.listdir(task.alloc.root) if name.startswith(".fetch")], "staging is left"


def get(url: str, **fields: Any) -> TaskArtifact:
    return TaskArtifact(getter_source=url, **fields)


def local(task: TaskContext, name: str) -> Path:
    return task.dirs.local / name


def test_a_file_comes_into_local(place: Path, web: Web) -> None:
    web.files["/app.bin"] = b"program"
    task = a_task_with(place, get(f"{web.url}/app.bin"))

    result = prestart(task)

    assert local(task, "app.bin").read_bytes() == b"program"
    assert [event.type for event in actions_of(task).events] == ["Downloading Artifacts"]
    assert result.is_done
    assert stat.S_IMODE(local(task, "app.bin").stat().st_mode) == 0o644
    assert local(task, "app.bin").stat().st_uid == os.geteuid()


def test_a_task_without_artifacts_hears_of_nothing(place: Path) -> None:
    task = a_task_with(place)

    assert not prestart(task).is_done
    assert actions_of(task).events == []


def test_an_archive_is_unpacked_and_merged_into_what_is_there(place: Path, web: Web) -> None:
    web.files["/app.tar.gz"] = packed(
        tar([Entry("bin/run", b"new", mode=0o755), Entry("l", kind=b"2", target="bin/run")]), "gz"
    )
    web.files["/more.zip"] = zipped([("bin/other", b"o", 0o100644)])
    first = a_task_with(place, get(f"{web.url}/app.tar.gz", relative_dest="local/app"))
    prestart(first)
    second = a_task_with(
        place,
        get(f"{web.url}/more.zip", relative_dest="local/app"),
        get(f"{web.url}/app.tar.gz", relative_dest="local/app"),
    )
    prestart(second)

    assert local(first, "app/bin/run").read_text() == "new"
    assert local(first, "app/bin/other").read_text() == "o"
    assert os.readlink(local(first, "app/l")) == "bin/run"
    assert os.access(local(first, "app/bin/run"), os.X_OK)


def test_archives_are_kept_whole_on_request_and_parts_can_be_asked_for(place: Path, web: Web) -> None:
    data = tar([Entry("a/x", b"x"), Entry("b/y", b"y")])
    web.files["/all.tar"] = data
    task = a_task_with(
        place,
        get(f"{web.url}/all.tar?archive=false"),
        get(f"{web.url}/all.tar//b", relative_dest="local/part"),
        get(f"{web.url}/all.tar//a/x", relative_dest="local/one"),
    )

    prestart(task)

    assert local(task, "all.tar").read_bytes() == data
    assert os.listdir(local(task, "part")) == ["y"]
    assert os.listdir(local(task, "one")) == ["x"]


def test_mode_file_names_the_file_and_mode_dir_needs_an_archive(place: Path, web: Web) -> None:
    web.files["/a"] = b"a"
    web.files["/b.gz"] = packed(b"b", "gz")
    web.files["/two.tar"] = tar([Entry("x"), Entry("y")])
    task = a_task_with(
        place,
        get(f"{web.url}/a", getter_mode="file", relative_dest="local/conf/app"),
        get(f"{web.url}/b.gz", getter_mode="file", relative_dest="local/"),
    )

    prestart(task)

    assert local(task, "conf/app").read_text() == "a"
    assert local(task, "b.gz").read_text() == "b"
    for artifact, message in (
        (get(f"{web.url}/a", getter_mode="dir"), "no archive"),
        (get(f"{web.url}/two.tar", getter_mode="file", relative_dest="local/z"), "more than one file"),
    ):
        with pytest.raises(HookFailed, match=message):
            prestart(a_task_with(place, artifact))


@pytest.mark.parametrize("kind", ["md5", "sha1", "sha256", "sha512"])
def test_checksums_are_kept(place: Path, web: Web, kind: str) -> None:
    web.files["/x"] = b"content"
    right = hashlib.new(kind, b"content").hexdigest()
    prestart(a_task_with(place, get(f"{web.url}/x", getter_options={"checksum": f"{kind}:{right}"})))

    wrong = right[::-1]
    with pytest.raises(HookFailed, match=f"expected is {wrong}") as caught:
        prestart(a_task_with(place, get(f"{web.url}/x?checksum={kind}:{wrong}", relative_dest="local/never")))

    assert caught.value.event == "Failed Artifact Download"
    assert caught.value.is_recoverable
    assert not list(place.rglob("never/*"))


def test_a_checksum_may_come_from_a_list(place: Path, web: Web) -> None:
    web.files["/x.bin"] = b"content"
    digest = hashlib.sha256(b"content").hexdigest()
    web.files["/SUMS"] = f"{'0' * 64}  other.bin\n{digest} *x.bin\n".encode()
    task = a_task_with(place, get(f"{web.url}/x.bin", getter_options={"checksum": f"file:{web.url}/SUMS"}))

    prestart(task)
    (task.dirs.local / "sums").write_text(f"SHA256 (x.bin) = {digest}\n")
    again = a_task_with(
        place, get(f"{web.url}/x.bin", getter_options={"checksum": "file:local/sums"}, relative_dest="local/b")
    )
    prestart(again)

    assert local(task, "b/x.bin").exists()
    (task.dirs.local / "sums").write_text("nothing of use\n")
    with pytest.raises(HookFailed, match="no checksum for"):
        prestart(a_task_with(place, get(f"{web.url}/x.bin", getter_options={"checksum": "file:local/sums"})))


def test_a_file_of_the_allocation_can_be_unpacked(place: Path, web: Web) -> None:
    task = a_task_with(place, get("local/in.tar", relative_dest="local/out"))
    prestart(a_task_with(place))
    trio.run(AllocDirs(task.alloc.root).build)
    (task.dirs.local / "in.tar").write_bytes(tar([Entry("x", b"x")]))

    prestart(task)

    assert local(task, "out/x").read_text() == "x"


@pytest.mark.parametrize(
    "source",
    [
        "../../canary",
        "file:///etc/passwd",
        "/etc/passwd",
        "local/link",
        "private/token",
        "../alloc/logs/web.stdout.0",
        "local",
    ],
)
def test_no_file_outside_or_of_the_agent_can_be_taken(place: Path, source: str) -> None:
    task = a_task_with(place, get(source, relative_dest="local/out"))
    prestart(a_task_with(place))
    (place / "allocs" / "canary").write_text("secret")
    (task.dirs.local / "link").symlink_to(place / "allocs" / "canary")
    (task.dirs.private / "token").write_text("secret")
    (task.dirs.logs / "web.stdout.0").write_text("log")

    with pytest.raises(HookFailed) as caught:
        prestart(task)

    assert caught.value.event == "Failed Artifact Download"
    assert not (task.dirs.local / "out").exists()


@pytest.mark.parametrize(
    "destination",
    [
        "../../x",
        "../../../etc/x",
        "local/../../../x",
        "${NOMAD_META_way}/x",
        "local/link/x",
        "private",
        "../alloc/logs",
        "private/x",
    ],
)
def test_no_destination_is_outside_after_interpolation_or_the_agent_s(place: Path, web: Web, destination: str) -> None:
    web.files["/x"] = b"x"
    task = a_task_with(place, get(f"{web.url}/x", relative_dest=destination), job={"meta": {"way": "../../.."}})
    prestart(a_task_with(place))
    (task.dirs.local / "link").symlink_to(place)
    before = sorted(path.name for path in place.iterdir())

    with pytest.raises(HookFailed) as caught:
        prestart(task)

    assert not caught.value.is_recoverable
    assert sorted(path.name for path in place.iterdir()) == before
    assert not list(task.dirs.private.iterdir())
    assert not list(task.dirs.logs.iterdir())


def test_destinations_may_be_named_as_the_task_sees_them(place: Path, web: Web) -> None:
    web.files["/x"] = b"x"
    plain = a_task_with(place, get(f"{web.url}/x", relative_dest="${NOMAD_TASK_DIR}/plain"))
    isolated = a_task_with(
        place,
        get(f"{web.url}/x", relative_dest="/local/isolated"),
        get(f"{web.url}/x", relative_dest="${NOMAD_ALLOC_DIR}/data"),
        get(f"{web.url}/x", relative_dest="/secrets"),
        driver=a_driver("exec", isolation=FsIsolation.CHROOT),
    )

    prestart(plain)
    prestart(isolated)

    assert local(plain, "plain/x").exists()
    assert local(plain, "isolated/x").exists()
    assert (plain.dirs.shared / "data" / "x").exists()
    assert (plain.dirs.secrets / "x").read_text() == "x"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("git::https://example.org/x.git", "cannot be had by 'git'"),
        ("github.com/some/repository", "cannot be had by 'git'"),
        ("git@example.org:some/repository", "cannot be had by 'git'"),
        ("hg::https://example.org/x", "cannot be had by 'hg'"),
        ("s3::https://bucket/x", "cannot be had by 's3'"),
        ("ftp://example.org/x", "cannot be had by 'ftp'"),
        ("https:///nohost", "names no host"),
        ("http://example.org:99999/x", "port"),
        ("https://example.org/", "file name"),
        ("", "empty"),
        ("http://127.0.0.1/a\nb", "control"),
    ],
)
def test_sources_that_nobody_serves_are_refused_with_a_reason(place: Path, source: str, message: str) -> None:
    with pytest.raises(HookFailed, match=message) as caught:
        prestart(a_task_with(place, get(source)))

    assert not caught.value.is_recoverable


def test_plain_http_and_addresses_of_the_host_are_off_by_default(place: Path, web: Web) -> None:
    web.files["/x"] = b"x"

    with pytest.raises(HookFailed, match=r"artifact\.schemes"):
        prestart(a_task_with(place, get(f"{web.url}/x"), settings=ArtifactLimits()))
    with pytest.raises(HookFailed, match=r"artifact\.allowed_networks"):
        prestart(a_task_with(place, get(f"{web.url}/x"), settings=ArtifactLimits(schemes=("http",))))

    assert web.asked() == []


def test_a_redirect_is_followed_but_judged_like_a_source(place: Path, web: Web) -> None:
    web.files["/x"] = b"x"
    web.redirects["/moved"] = "/x"
    web.redirects["/out"] = "http://169.254.169.254/latest/meta-data"
    web.redirects["/file"] = "file:///etc/passwd"
    web.redirects["/round"] = "/round"
    task = a_task_with(place, get(f"{web.url}/moved"))

    prestart(task)

    assert local(task, "moved").read_text() == "x"
    for path, message in (("/out", "allowed_networks"), ("/file", "cannot be had"), ("/round", "more than 5 times")):
        with pytest.raises(HookFailed, match=message):
            prestart(a_task_with(place, get(web.url + path)))


def test_headers_go_to_the_host_they_are_meant_for_and_no_further(place: Path, web: Web) -> None:
    web.files["/x"] = b"x"
    web.redirects["/away"] = f"http://localhost:{web.server.server_address[1]}/x"
    task = a_task_with(
        place,
        get(f"{web.url}/away", getter_headers={"X-Token": "${NOMAD_TASK_NAME}-secret"}),
        get(web.url.replace("//", "//user:pa%20ss@") + "/x"),
    )

    prestart(task)

    headers = {path: sent for path, sent in web.seen if "Authorization" not in sent}
    assert headers["/away"]["X-Token"] == "web-secret"
    assert "X-Token" not in headers["/x"]
    basic = base64.b64encode(b"user:pa ss").decode()
    assert [sent["Authorization"] for _, sent in web.seen if "Authorization" in sent] == [f"Basic {basic}"]


def test_our_options_are_not_told_to_the_other_side(place: Path, web: Web) -> None:
    web.files["/x"] = b"x"

    prestart(a_task_with(place, get(f"{web.url}/x?archive=false&signature=s&filename=y")))

    assert web.asked() == ["/x?signature=s"]


def test_failures_over_the_net_may_be_tried_again_and_secrets_stay_out_of_them(place: Path, web: Web) -> None:
    web.files["/short"] = b"x"
    web.lies["/short"] = 100
    for path, message in (("/gone", "404"), ("/short", "broke off|IncompleteRead")):
        url = web.url.replace("//", "//user:hunter2@") + f"{path}?token=hunter3"
        with pytest.raises(HookFailed, match=message) as caught:
            prestart(a_task_with(place, get(url)))
        assert caught.value.is_recoverable
        assert "hunter" not in str(caught.value)


def test_what_is_larger_than_allowed_is_not_even_begun(place: Path, web: Web) -> None:
    web.files["/big"] = b"x" * 1001
    small = ArtifactLimits(schemes=("http",), allowed_networks=("127.0.0.1",), http_max_bytes=1000)

    with pytest.raises(HookFailed, match="http_max_size"):
        prestart(a_task_with(place, get(f"{web.url}/big"), settings=small))


def test_hostile_archives_leave_nothing_behind_and_are_not_tried_again(place: Path, web: Web) -> None:
    web.files["/evil.tar"] = tar([Entry("fine", b"x"), Entry("../../../canary", b"x")])
    web.files["/bomb.tgz"] = packed(tar([Entry("zeroes", bytes(40 << 20))]), "gz")
    for name in ("evil.tar", "bomb.tgz"):
        task = a_task_with(place, get(f"{web.url}/{name}"))
        with pytest.raises(HookFailed) as caught:
            prestart(task)
        assert not caught.value.is_recoverable
        assert list(task.dirs.local.iterdir()) == []


def test_a_directory_in_the_way_of_a_file_is_an_error_and_so_is_the_opposite(place: Path, web: Web) -> None:
    web.files["/x"] = b"x"
    web.files["/d.tar"] = tar([Entry("sub/x", b"x")])
    prestart(a_task_with(place))
    task = a_task_with(place, get(f"{web.url}/x"))
    local(task, "x").mkdir()
    local(task, "sub").symlink_to("x")

    with pytest.raises(HookFailed, match="in the way"):
        prestart(task)
    with pytest.raises(HookFailed, match="in the way"):
        prestart(a_task_with(place, get(f"{web.url}/d.tar")))


def test_what_is_done_is_not_done_again(place: Path, web: Web) -> None:
    web.files["/a"] = b"a"
    task = a_task_with(place, get(f"{web.url}/a"), get(f"{web.url}/b"))
    hook = ArtifactsHook(task)
    with pytest.raises(HookFailed):
        prestart(task, hook)
    web.files["/b"] = b"b"

    result = prestart(task, hook)
    prestart(task, ArtifactsHook(task), dict(result.state))

    assert sorted(web.asked()) == ["/a", "/b", "/b"]
    assert len(result.state) == 2


def test_what_went_into_memory_may_be_gone_with_the_agent(place: Path, web: Web) -> None:
    web.files["/a"] = b"a"
    web.files["/b"] = b"b"
    task = a_task_with(place, get(f"{web.url}/a", relative_dest="secrets/"), get(f"{web.url}/b"))
    hook = ArtifactsHook(task)

    result = prestart(task, hook)
    prestart(task, hook, dict(result.state))
    assert sorted(web.asked()) == ["/a", "/b"]
    prestart(task, ArtifactsHook(task), dict(result.state))

    assert sorted(web.asked()) == ["/a", "/a", "/b"]
    assert not result.is_done
    task.task_id = "running"
    prestart(task, ArtifactsHook(task))
    assert len(web.asked()) == 3


def test_three_at_a_time_are_fetched(place: Path, web: Web) -> None:
    for number in range(7):
        web.files[f"/{number}"] = str(number).encode() * 1000
    task = a_task_with(place, *(get(f"{web.url}/{number}") for number in range(7)))

    prestart(task)

    for number in range(7):
        assert local(task, str(number)).read_bytes() == str(number).encode() * 1000


def test_a_destination_swapped_for_a_symlink_all_the_time_never_lets_anything_out(tmp_path: Path) -> None:
    """While results are put into their place, the task exchanges the directory and a symlink to elsewhere."""
    dirs = AllocDirs(tmp_path / "alloc-root").task("web")
    (dirs.local / "app" / "sub").mkdir(parents=True)
    (dirs.local / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "outside" / "sub").mkdir(parents=True)
    over = threading.Event()

    def attack() -> None:
        fd = os.open(dirs.local, os.O_RDONLY)
        while not over.is_set():
            exchange(fd, "app", fd, "link")
        os.close(fd)

    attacker = threading.Thread(target=attack)
    attacker.start()
    done = 0
    try:
        for number in range(300):
            tree = tmp_path / "tree"
            (tree / "sub").mkdir(parents=True)
            (tree / "sub" / f"f{number}").write_text("x")
            with directory(tree) as fd:
                try:
                    place_tree(fd, "", dirs, "web/local/app", None)
                    done += 1
                except (FetchFailed, PathEscapes, OSError):
                    pass
            shutil.rmtree(tree)
    finally:
        over.set()
        attacker.join()

    assert list((tmp_path / "outside").rglob("f*")) == []
    assert done


@needs_root
def test_the_result_is_handed_to_the_task_s_user_on_request(place: Path, web: Web) -> None:
    web.files["/x.tar"] = tar([Entry("d/x", b"x")])
    task = a_task_with(place, get(f"{web.url}/x.tar", chown=True, relative_dest="local/mine"), task={"user": "nobody"})

    prestart(task)

    assert {path.stat().st_uid for path in local(task, "mine").rglob("*")} == {65534}


def test_leftovers_of_a_killed_agent_are_removed(place: Path, web: Web) -> None:
    web.files["/x"] = b"x"
    task = a_task_with(place, get(f"{web.url}/x"))
    (task.alloc.root / ".fetch-web-0011" / "tree").mkdir(parents=True)

    prestart(task)


def test_a_child_that_breaks_is_told_about(place: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files["/x"] = b"x"
    monkeypatch.setattr(runner, "START", "raise SystemExit('no such thing')")

    with pytest.raises(HookFailed, match=r"ended with 1: no such thing") as caught:
        prestart(a_task_with(place, get(f"{web.url}/x")))

    assert caught.value.is_recoverable


def test_a_download_that_takes_too_long_is_ended_with_its_process(place: Path, web: Web) -> None:
    hurried = ArtifactLimits(schemes=("http",), allowed_networks=("127.0.0.0/8",), http_read_timeout_s=1.0)

    with pytest.raises(HookFailed, match="longer than 1 s") as caught:
        prestart(a_task_with(place, get(f"{web.url}/stall"), settings=hurried))

    assert caught.value.is_recoverable
    assert _children() == []


def _children() -> list[str]:
    """Download processes that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if b"fetch.child" in (entry / "cmdline").read_bytes() and (entry / "stat").read_text().split()[
                    3
                ] == str(os.getpid()):
                    found.append(entry.name)
            except OSError:
                continue
    return found
