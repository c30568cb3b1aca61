"""What operators may say about isolation, and how a task's own wishes meet it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsched.drivers.driver import DriverError
from fedsched.drivers.isolation.capabilities import DEFAULT
from fedsched.drivers.isolation.plan import CHROOT_ENV, Bind
from fedsched.drivers.isolation.settings import AGENT_SCHEMA, IsolationSettings
from tests.drivers.jails import a_config

ROOTED = IsolationSettings(is_rootless=False)


def test_defaults_isolate_everything() -> None:
    settings = IsolationSettings.read({})

    assert settings.pivots
    assert (settings.pid_mode, settings.ipc_mode) == ("private", "private")
    assert settings.allowed_capabilities == DEFAULT
    assert settings.denied.names == ("root", "Administrator")
    assert settings.chroot_env == CHROOT_ENV
    assert settings.filters_system_calls
    assert not settings.uses_landlock


def test_everything_an_operator_can_say_is_understood(tmp_path: Path) -> None:
    given = {
        "no_pivot_root": True,
        "default_pid_mode": "host",
        "default_ipc_mode": "host",
        "allow_caps": ["CAP_NET_RAW", "chown"],
        "denied_host_uids": "0,5-9",
        "denied_host_gids": "7",
        "seccomp": "false",
        "landlock": "true",
    }
    settings = IsolationSettings.read(given, chroot_env={str(tmp_path): "/tools"}, denied_users=("mallory",))

    assert AGENT_SCHEMA.problems(given) == []
    assert not settings.pivots
    assert (settings.pid_mode, settings.ipc_mode) == ("host", "host")
    assert settings.allowed_capabilities == {"net_raw", "chown"}
    assert settings.denied.names == ("mallory",)
    assert (settings.denied.uids, settings.denied.gids) == (((0, 0), (5, 9)), ((7, 7),))
    assert settings.chroot_env == {str(tmp_path): "/tools"}
    assert not settings.filters_system_calls
    assert settings.uses_landlock


@pytest.mark.parametrize(
    "given",
    [
        {"default_pid_mode": "shared"},
        {"default_ipc_mode": "none"},
        {"allow_caps": ["everything"]},
        {"denied_host_uids": "many"},
    ],
)
def test_words_that_mean_nothing_are_refused_before_any_task_starts(given: dict[str, Any]) -> None:
    with pytest.raises(DriverError):
        IsolationSettings.read(given)


@pytest.mark.parametrize("target", ["/../usr", "/proc", "/"])
def test_parts_of_the_host_cannot_be_shown_just_anywhere(target: str) -> None:
    with pytest.raises(DriverError, match="cannot mount at"):
        IsolationSettings.read({}, chroot_env={"/usr": target})


def test_a_task_is_isolated_as_the_operator_says_unless_it_asks_otherwise(tmp_path: Path) -> None:
    config = a_config(tmp_path)
    shared = replace(ROOTED, pid_mode="host", ipc_mode="host")

    assert ROOTED.plan(config).has_own_pids
    assert not shared.plan(config).has_own_pids
    assert not shared.plan(config).has_own_ipc
    private = replace(config, config={"pid_mode": "private", "ipc_mode": "private"})
    assert shared.plan(private).has_own_pids
    assert shared.plan(private).has_own_ipc


def test_the_plan_holds_what_the_task_was_given(tmp_path: Path) -> None:
    told = {"cap_add": ["chown"], "cap_drop": ["all"], "work_dir": "/local"}
    config = a_config(tmp_path, config=told, network_namespace=Path("/run/netns/x"))
    extra = Bind("/opt", "/opt")
    plan = ROOTED.plan(config, extra=(extra,))

    assert plan.root == config.dirs.task
    assert plan.user.name == "nobody"
    assert plan.capabilities.bounding == plan.capabilities.ambient == {"chown"}
    assert plan.work_dir == "/local"
    assert plan.network_namespace == Path("/run/netns/x")
    assert plan.system[-1] == extra


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"pid_mode": "hosts"}, "pid_mode = 'hosts' is not a mode"),
        ({"ipc_mode": "shareable"}, "ipc_mode"),
        ({"work_dir": "relative"}, "work_dir 'relative' is not absolute"),
        ({"work_dir": "/a\0b"}, "work_dir"),
        ({"cap_add": ["sys_admin"]}, "sys_admin, which this client does not allow"),
        ({"cap_drop": ["sys_admn"]}, "did you mean sys_admin"),
    ],
)
def test_what_a_job_may_not_have_is_refused_with_the_reason(tmp_path: Path, told: dict[str, Any], why: str) -> None:
    with pytest.raises(DriverError, match=why):
        ROOTED.plan(a_config(tmp_path, config=told))


def test_a_task_may_not_be_root_unless_the_operator_clears_the_list(tmp_path: Path) -> None:
    config = a_config(tmp_path, user="root")

    with pytest.raises(DriverError, match="may not run as user root"):
        ROOTED.plan(config)
    allowing = IsolationSettings.read({}, denied_users=())
    assert replace(allowing, is_rootless=False).plan(config).user.uid == 0


def test_without_root_a_task_is_whoever_runs_the_agent(tmp_path: Path) -> None:
    settings = IsolationSettings(is_rootless=True)

    assert settings.plan(a_config(tmp_path)).user.uid == os.geteuid()
    assert settings.plan(a_config(tmp_path, user=str(os.geteuid()))).user.uid == os.geteuid()
    with pytest.raises(DriverError, match="does not run as root"):
        settings.plan(a_config(tmp_path, user="61234"))
