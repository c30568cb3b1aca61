"""Users that exist for one task only: one each, never the same twice at once, kept over restarts of the agent."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from fedsched.client.dynamic_users import HOOK, DynamicUsers, claim_stored
from fedsched.client.hooks.dirs import AllocDirHook
from fedsched.client.hooks.dynamic_user import DynamicUserHook
from fedsched.client.hooks.hook import HookFailed
from fedsched.client.journal_records import StoredAlloc, TaskLocal
from fedsched.client.task_config import task_config
from fedsched.client.users import task_owner
from fedsched.drivers.driver import Capabilities, Driver
from fedsched.model.errors import Unavailable
from fedsched.model.task_state import TaskState
from tests.builders import an_alloc
from tests.client.hook_contexts import a_driver, a_task_context


def test_every_task_has_a_number_of_its_own_and_keeps_it() -> None:
    users = DynamicUsers()

    assert [users.take(("a", "web")), users.take(("a", "db")), users.take(("b", "web"))] == [80_000, 80_001, 80_002]
    assert users.take(("a", "db")) == 80_001


def test_a_number_that_is_free_again_is_used_last() -> None:
    users = DynamicUsers(10, 12)
    for name in ("one", "two"):
        users.take((name, ""))
    users.free(("one", ""))
    users.free(("nobody", ""))

    assert [users.take(("three", "")), users.take(("four", ""))] == [12, 10]
    with pytest.raises(Unavailable, match="10 to 12 are taken"):
        users.take(("five", ""))


def test_users_that_the_host_knows_are_left_alone() -> None:
    users = DynamicUsers(10, 12, exists=lambda uid: uid == 10)

    assert users.take(("a", "web")) == 11


def test_what_tasks_of_the_last_agent_have_nobody_else_is_given() -> None:
    def stored(number: int, uid: str, **fields: Any) -> StoredAlloc:
        local = TaskLocal(hooks={HOOK: {"uid": uid}}, **fields)
        return StoredAlloc(alloc=an_alloc(number), tasks={"web": (local, TaskState())})

    users = DynamicUsers()
    claim_stored(users, [stored(1, "80000"), stored(2, "80001", is_stopped=True), stored(3, "nonsense")])

    assert users.take(("new", "web")) == 80_001
    assert users.take((an_alloc(1).id, "web")) == 80_000


def a_wanting_driver() -> Driver:
    driver = a_driver()
    return cast(Driver, SimpleNamespace(**{**vars(driver), "capabilities": Capabilities(dynamic_workload_users=True)}))


def test_a_task_runs_as_its_own_user_and_its_files_belong_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    task = a_task_context(tmp_path, driver=a_wanting_driver())
    hook = DynamicUserHook(task)
    assert not hook.is_idle
    assert list(AllocDirHook(task.alloc)._plans()) == []  # not before it is known whose they are

    first = trio.run(hook.prestart, {})
    again = trio.run(hook.prestart, first.state)

    assert first.state == again.state == {"uid": "80000"}
    assert task_config(task, "id", ()).user == "80000"
    owner = task_owner(task)
    assert owner is not None
    assert owner.uid == 80_000
    trio.run(hook.stop)
    assert task.parts.users.take(("other", "web")) == 80_001


@pytest.mark.parametrize(
    ("driver", "user", "uid"), [(a_driver(), "", 0), (a_wanting_driver(), "nobody", 0), (a_wanting_driver(), "", 1000)]
)
def test_whoever_names_a_user_or_has_a_driver_that_wants_none_gets_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Driver, user: str, uid: int
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    task = a_task_context(tmp_path, driver=driver, task={"user": user})

    assert DynamicUserHook(task).is_idle


def test_a_task_waits_for_a_free_user_by_its_restart_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    task = a_task_context(tmp_path, driver=a_wanting_driver())
    object.__setattr__(task.alloc.parts, "users", DynamicUsers(10, 10, exists=lambda uid: True))

    with pytest.raises(HookFailed, match="are taken") as failed:
        trio.run(DynamicUserHook(task).prestart, {})
    assert failed.value.is_recoverable
