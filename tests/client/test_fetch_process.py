"""The process that downloads: what it gives up, what it does, and that it ends with its agent."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedsched.client.fetch import child, runner
from fedsched.client.fetch.landlock import landlock_version
from fedsched.client.fetch.limits import FetchLimits
from fedsched.client.settings import ArtifactLimits
from tests.client.archives import Entry, tar
from tests.client.web import Web, open_web

is_root = os.geteuid() == 0
needs_root = pytest.mark.skipif(not is_root, reason="needs root to become another user")
pytestmark = pytest.mark.skipif(landlock_version() < 1, reason="this kernel has no landlock")


@pytest.fixture
def web() -> Iterator[Web]:
    with open_web() as web:
        yield web


def test_the_environment_of_a_download_holds_only_what_the_operator_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "x")
    monkeypatch.setenv("SECRET", "y")

    assert runner._environment(ArtifactLimits(set_environment_variables=("AWS_PROFILE", "NOT_SET"))) == {
        "AWS_PROFILE": "x"
    }


def test_a_download_dies_with_its_agent(tmp_path: Path, web: Web) -> None:
    staging = tmp_path / "staging"
    staging.mkdir()
    fd = os.open(staging, os.O_RDONLY)
    order = child.Order(fd, "stall", url=f"{web.url}/stall", schemes=("http",), allowed_networks=("127.0.0.0/8",))
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", runner.START, runner.PACKAGE_ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        pass_fds=[fd],
        start_new_session=True,
        env={},
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(dataclasses.asdict(order)).encode() + b"\n")
        process.stdin.flush()
        _until(lambda: "/stall" in web.asked())
        process.stdin.close()

        assert process.wait(timeout=10) == -signal.SIGIO
    finally:
        process.kill()
        process.wait()
        os.close(fd)


def _in_child(script: str, *, uid: int, staging: Path) -> list[str]:
    """Run some lines in a process that has given up what a download gives up; what they print."""
    code = (
        "import os, sys\n"
        f"sys.path.insert(0, {runner.PACKAGE_ROOT!r})\n"
        "from fedsched.client.fetch import child\n"
        f"fd = os.open({str(staging)!r}, os.O_RDONLY)\n"
        f"child.give_up(child.Order(fd, 'x', uid={uid}))\n"
        "def attempt(name, function, *args, **kw):\n"
        "    try:\n"
        "        function(*args, **kw)\n"
        "        print(name, 'works')\n"
        "    except OSError as error:\n"
        "        print(name, error.strerror)\n" + script
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False, env={})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_download_can_touch_nothing_but_its_staging_directory(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()
    (tmp_path / "staging").chmod(0o777)
    (tmp_path / "outside").write_text("secret")
    tmp_path.chmod(0o755)
    lines = _in_child(
        f"""
attempt("read outside", open, {str(tmp_path / "outside")!r})
attempt("write outside", open, {str(tmp_path / "new")!r}, "w")
attempt("list outside", os.listdir, {str(tmp_path)!r})
attempt("list home", os.listdir, "/root")
attempt("read shadow", open, "/etc/shadow")
attempt("write inside", os.mkdir, "d", dir_fd=fd)
attempt("device inside", os.mknod, "n", 0o20666, os.makedev(1, 3), dir_fd=fd)
attempt("certificates", os.listdir, "/etc/ssl/certs")
attempt("name service", open, "/etc/resolv.conf")
import socket
listener = socket.socket()
attempt("listen", listener.bind, ("127.0.0.1", 0))
""",
        uid=runner.FETCH_UID if is_root else -1,
        staging=tmp_path / "staging",
    )

    allowed = {line.removesuffix(" works") for line in lines if line.endswith(" works")}
    assert {"write inside", "name service"} <= allowed <= {"write inside", "name service", "certificates", "listen"}
    if landlock_version() >= 4:
        assert "listen" not in allowed


@needs_root
def test_a_download_is_nobody_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "staging").mkdir()

    lines = _in_child(
        "print(os.getresuid(), os.getresgid(), os.getgroups())\n"
        "attempt('fork', os.fork)\n"
        "attempt('root', os.setuid, 0)\n",
        uid=runner.FETCH_UID,
        staging=tmp_path / "staging",
    )

    who = runner.FETCH_UID
    assert lines[0] == f"{(who, who, who)} {(who, who, who)} []"
    assert lines[1:] == ["fork Resource temporarily unavailable", "root Operation not permitted"]


def test_without_landlock_a_download_is_refused_unless_the_operator_says_otherwise(tmp_path: Path) -> None:
    lines = _in_child(
        """
def none(*_):
    raise OSError("this kernel has no landlock")
child.restrict = none
child.give_up(child.Order(fd, 'x', is_restricted=False))
try:
    child.give_up(child.Order(fd, 'x'))
except child.FetchFailed as error:
    print(error)
""",
        uid=-1,
        staging=tmp_path,
    )

    assert "disable_filesystem_isolation" in lines[0]


def test_the_child_s_work_in_this_process(tmp_path: Path, web: Web) -> None:
    """The same lines as in the child, where their coverage is seen."""
    web.files["/x.tar"] = tar([Entry("a", b"a")])
    web.files["/y"] = b"y" * 2000
    done = {}
    for number, name in enumerate(("x.tar", "y")):
        staging = tmp_path / str(number)
        staging.mkdir()
        fd = os.open(staging, os.O_RDONLY)
        order = child.Order(
            fd,
            name,
            url=f"{web.url}/{name}",
            schemes=("http",),
            allowed_networks=("127.0.0.0/8",),
            limits=FetchLimits(download_bytes=10240),
        )
        assert child.Order.read(json.dumps(dataclasses.asdict(order))) == order
        child.carry_out(order)
        os.close(fd)
        done[name] = sorted(os.listdir(staging / "tree"))
    assert done == {"x.tar": ["a"], "y": ["y"]}


def _until(condition: Any) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come")


def _answer(order: child.Order, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What the process says to an order, with the parts left out that a test process cannot take back."""
    line = json.dumps(dataclasses.asdict(order)).encode() + b"\n"
    monkeypatch.setattr(child, "die_with_agent", lambda: None)
    monkeypatch.setattr(child, "give_up", lambda _: None)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(line)))
    assert child.main() == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_process_answers_in_one_line_whatever_happens(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = hashlib.sha256(b"content").hexdigest()
    web.files["/SUMS"] = f"{digest}  in\n".encode()
    (tmp_path / "in").write_bytes(b"content")
    told = []
    cases: list[tuple[dict[str, Any], Exception | None]] = [
        ({"checksum": f"file:{web.url}/SUMS", "mode": "file"}, None),
        ({"checksum": f"sha256:{'0' * 64}"}, None),
        ({"mode": "dir"}, None),
        ({"limits": FetchLimits(download_bytes=3)}, None),
        ({"archive": "tar"}, None),
        ({}, MemoryError()),
        ({}, OSError(28, "No space left on device")),
    ]
    for number, (fields, failure) in enumerate(cases):
        staging, source = tmp_path / f"staging-{number}", os.open(tmp_path / "in", os.O_RDONLY)
        staging.mkdir()
        fd = os.open(staging, os.O_RDONLY)
        rules: dict[str, Any] = {"schemes": ("http",), "allowed_networks": ("127.0.0.0/8",), **fields}
        order = child.Order(fd, "in", source_fd=source, **rules)
        with monkeypatch.context() as patched:
            if failure is not None:
                patched.setattr(child, "carry_out", _raises(failure))
            told.append(_answer(order, patched, capsys))
        os.close(fd)
        os.close(source)

    assert told[0] == {"ok": True, "bytes": 7}
    assert [(one["ok"], one["is_recoverable"]) for one in told[1:]] == [
        (False, True),
        (False, False),
        (False, False),
        (False, False),
        (False, False),
        (False, True),
    ]


def _raises(error: BaseException) -> Any:
    def fails(_: object) -> None:
        raise error

    return fails
