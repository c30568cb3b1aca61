"""What an isolation plan makes of directories, commands and mounts, before any process is started."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fedsched.drivers.driver import DriverError, Mount
from fedsched.drivers.isolation import probe
from fedsched.drivers.isolation.plan import (
    Bind,
    find_command,
    host_path,
    landlock_rules,
    system_binds,
    target_path,
    task_binds,
)
from tests.drivers.jails import REPOSITORY, a_config, a_plan


@pytest.mark.parametrize(
    "written",
    ["../up", "/a/../../b", "/", "//", "/proc", "//proc/sys", "proc/", "/sys/fs", "/dev", "private", "/a\0b", ""],
)
def test_mounts_that_leave_the_root_or_cover_the_kernels_places_are_refused(written: str) -> None:
    with pytest.raises(DriverError, match="cannot mount at"):
        target_path(written)


@given(st.text(alphabet="ab/.~ \0", max_size=12))
def test_a_place_that_is_taken_is_plain_and_below_the_root(written: str) -> None:
    try:
        path = target_path(written)
    except DriverError:
        return

    assert path.startswith("/")
    assert not {"", ".", ".."} & set(path[1:].split("/"))


def test_outer_mounts_come_before_inner_ones(tmp_path: Path) -> None:
    mounts = (Mount(tmp_path, "/srv/a/b"), Mount(tmp_path, "srv", is_read_only=True), Mount(tmp_path, "/srv/a"))
    binds = task_binds(a_config(tmp_path, mounts=mounts))

    assert [bind.target for bind in binds] == ["/alloc", "/secrets", "/srv", "/srv/a", "/srv/a/b"]
    assert [bind.is_read_only for bind in binds] == [False, False, True, False, False]
    assert [bind.is_no_exec for bind in binds][:2] == [False, True]


def test_a_local_directory_that_is_elsewhere_is_mounted(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    moved = replace(config, dirs=replace(config.dirs, local=tmp_path / "other"))

    assert Bind(str(tmp_path / "other"), "/local", is_read_only=False) in task_binds(moved)


def test_what_the_host_lacks_is_not_mounted(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    asked = {str(tmp_path / "there"): "/a/b", str(tmp_path / "missing"): "/c", "/usr": "/usr"}

    assert system_binds(asked) == (Bind("/usr", "/usr"), Bind(str(tmp_path / "there"), "/a/b"))


def test_commands_are_found_as_the_task_would_find_them(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "tool").write_text("")
    system = (Bind(str(tools), "/usr/bin"),)
    config = a_config(tmp_path)
    (config.dirs.local / "serve").write_text("")
    (config.dirs.local / "bin").mkdir()
    (config.dirs.local / "bin/x").symlink_to("/no/where")
    (config.dirs.task / "top").write_text("")

    assert find_command("/any/path", config, system) == "/any/path"
    assert find_command("serve", config, system) == "/local/serve"
    assert find_command("bin/x", config, system) == "/local/bin/x"
    assert find_command("local/serve", config, system) == "/local/serve"
    assert find_command("top", config, system) == "/top"
    assert find_command("tool", config, system) == "/usr/bin/tool"
    with pytest.raises(DriverError, match="no command 'tool' inside the task"):
        find_command("tool", replace(config, env={"PATH": "/elsewhere:relative:"}), system)
    for bad in ("missing", "bin/missing", "", "a\0b"):
        with pytest.raises(DriverError, match="command"):
            find_command(bad, config, system)


def test_a_command_that_climbs_out_stays_a_path_inside(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    (tmp_path / "outside").write_text("")

    assert find_command("../../../outside", config, ()) == "/outside"


def test_paths_inside_are_where_the_innermost_mount_says(tmp_path: Path) -> None:
    binds = (Bind("/host/usr", "/usr"), Bind("/host/lib", "/usr/lib"))

    assert host_path("/usr/lib/x", tmp_path, binds) == "/host/lib/x"
    assert host_path("/usr/library", tmp_path, binds) == "/host/usr/library"
    assert host_path("/usr", tmp_path, binds) == "/host/usr"
    assert host_path("/local/x", tmp_path, binds) == f"{tmp_path}/local/x"


@pytest.mark.parametrize(("version", "size", "scoped"), [(2, 8, 0), (4, 16, 0), (6, 24, 1), (7, 24, 1)])
def test_landlock_uses_what_the_kernel_has(tmp_path: Path, version: int, size: int, scoped: int) -> None:
    (tmp_path / "file").write_text("")
    binds = (
        Bind(str(tmp_path), "/data", is_read_only=False),
        Bind(str(tmp_path), "/frozen"),
        Bind(str(tmp_path / "file"), "/one", is_read_only=False),
    )
    rules = landlock_rules(binds, version)
    allowed = dict(rules["paths"])

    assert (rules["size"], rules["scoped"]) == (size, scoped)
    assert "/frozen" not in allowed
    assert allowed["/data"] == rules["handled"]
    assert allowed["/one"] == rules["handled"] & (1 << 1 | 1 << 14 | 1 << 15)


def test_landlock_that_the_kernel_lacks_is_an_error() -> None:
    with pytest.raises(DriverError, match="no Landlock"):
        landlock_rules((), 0)


def test_a_plan_travels_as_json(tmp_path: Path) -> None:
    encoded = a_plan(tmp_path, uses_landlock=False).encode()

    assert json.loads(json.dumps(encoded)) == encoded


def test_what_supervisors_load_is_light() -> None:
    script = "import sys; sys.path[:0] = sys.argv[1:]; import fedsched.drivers.isolation.enter; print(*sys.modules)"
    argv = [sys.executable, "-I", "-S", "-c", script, str(REPOSITORY)]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()

    ours = {name for name in loaded if name.startswith("fedsched.")}
    assert not {"trio", "msgspec", "dataclasses", "inspect", "asyncio", "subprocess", "logging", "json"} & set(loaded)
    assert ours == {
        "fedsched.drivers",
        *(f"fedsched.drivers.isolation{name}" for name in ("", ".enter", ".frozen", ".kernel", ".mounts", ".sleeper")),
    }


def test_a_trial_that_fails_says_what_failed(tmp_path: Path) -> None:
    told = a_plan(tmp_path, root=Path("/no/such/root")).encode()

    assert "/no/such/root" in trio.run(probe._attempt, json.dumps(told).encode())
    assert "JSON" in trio.run(probe._attempt, b"{")
    assert "failed" in trio.run(probe._attempt, b"{}")


def test_a_trial_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TRIAL", ("sleep", "60"))
    monkeypatch.setattr(probe, "PROBE_S", 0.05)

    assert "did not end" in trio.run(probe.why_not, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_trial_without_rights_names_the_step_that_failed() -> None:
    script = (
        "import os, sys; sys.path[:0] = sys.argv[1:]; from fedsched.drivers.isolation import trial\n"
        "os.setgroups([]); os.setresuid(65534, 65534, 65534); trial.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(REPOSITORY)],
        input=json.dumps({"is_rootless": False, "has_own_pids": True, "uid": 65534}),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "cannot open new namespaces (pid): Operation not permitted"
