"""When checks are due, what their results mean, and when they restart a task."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from fedsched.client.check_book import CheckBook
from fedsched.client.checks_core import NS, CheckCore, CheckRules, Judged, Outcome, RestartRule, TaskUp
from fedsched.model.check import CheckMode, CheckResult, CheckStatus

PASS, WARN, FAIL = (Outcome(status) for status in (CheckStatus.SUCCESS, CheckStatus.WARNING, CheckStatus.FAILURE))
DOWN = TaskUp(False)


def a_core(now: float = 0.0, **fields: Any) -> CheckCore:
    known: dict[str, Any] = {"id": "c", "name": "alive", "service": "web", "task": "", "group": "shop.web[0]"}
    return CheckCore(CheckRules(**{**known, "interval_s": 10.0, **fields}), now)


def took(core: CheckCore, outcome: Outcome, up: TaskUp = DOWN, now_ns: int = 1) -> Judged:
    return core.took(outcome, up, now_ns)


def test_a_check_runs_after_half_an_interval_and_then_every_interval() -> None:
    core = a_core(now=100.0)
    assert core.due_at == 105.0
    core.begin(105.0)
    assert core.due_at == 115.0
    core.begin(115.2)  # a late start does not shift the ones after it
    assert core.due_at == 125.0
    core.begin(150.0)  # what was missed is not made up for
    assert core.due_at == 150.0


def test_the_first_result_ends_the_waiting() -> None:
    core = a_core()
    assert core.result.status is CheckStatus.PENDING
    result = took(core, Outcome(CheckStatus.SUCCESS, "fine", 204), now_ns=77).result

    assert (result.status, result.output, result.status_code, result.timestamp_ns) == ("success", "fine", 204, 77)
    assert (result.check, result.service, result.group, result.mode) == ("alive", "web", "shop.web[0]", "healthiness")
    assert took(core, FAIL).result.status is CheckStatus.FAILURE


def test_a_status_changes_after_as_many_results_in_a_row_as_asked_for() -> None:
    core = a_core(success_before_passing=2, failures_before_critical=3)
    statuses = [took(core, outcome).result.status.value for outcome in (PASS, FAIL, PASS, PASS, FAIL, FAIL, FAIL, PASS)]

    assert statuses == ["pending", "pending", "pending", "success", "success", "success", "failure", "failure"]


@pytest.mark.parametrize(("said", "status"), [("passing", "success"), ("critical", "failure"), ("", "pending")])
def test_a_check_may_say_how_it_begins(said: str, status: str) -> None:
    assert a_core(initial_status=said).result.status == status


def test_an_ignored_check_is_about_readiness() -> None:
    assert a_core(on_update="ignore").result.mode is CheckMode.READINESS


def test_output_is_kept_up_to_a_limit_without_half_a_character() -> None:
    output = took(a_core(), Outcome(CheckStatus.FAILURE, "é" * 4000)).result.output

    assert output == "é" * 1536


def up(since_s: float) -> TaskUp:
    return TaskUp(True, round(since_s * NS))


def restarts(core: CheckCore, *steps: tuple[float, Outcome, TaskUp]) -> list[bool]:
    return [bool(core.took(outcome, task, round(at * NS)).restart_reason) for at, outcome, task in steps]


def test_failures_in_a_row_after_the_grace_restart_the_task() -> None:
    core = a_core(restart=RestartRule(limit=3, grace_s=20.0))
    found = restarts(
        core,
        (5, FAIL, up(0)),
        (15, FAIL, up(0)),
        (25, FAIL, up(0)),
        (35, PASS, up(0)),
        (45, FAIL, up(0)),
        (55, FAIL, up(0)),
        (65, FAIL, up(0)),
    )

    assert found == [False] * 6 + [True]


def test_a_restart_begins_a_new_grace_and_a_new_count() -> None:
    core = a_core(restart=RestartRule(limit=2, grace_s=10.0))
    found = restarts(
        core,
        (15, FAIL, up(0)),
        (25, FAIL, DOWN),
        (35, FAIL, up(30)),
        (45, FAIL, up(30)),
        (55, FAIL, up(30)),
        (65, FAIL, up(30)),
    )

    assert found == [False, False, False, False, True, False]


@pytest.mark.parametrize(("ignores", "restarted"), [(False, True), (True, False)])
def test_warnings_count_unless_they_are_ignored(ignores: bool, restarted: bool) -> None:
    core = a_core(restart=RestartRule(limit=2, grace_s=0.0, ignore_warnings=ignores))

    assert restarts(core, (1, WARN, up(0)), (2, WARN, up(0)))[-1] is restarted


def test_without_a_limit_nothing_is_ever_restarted() -> None:
    for rule in (None, RestartRule(limit=0)):
        assert not any(restarts(a_core(restart=rule), *[(n, FAIL, up(0)) for n in range(100)]))


def a_result(status: CheckStatus, identity: str = "c", at: int = 5, **fields: Any) -> CheckResult:
    return CheckResult(id=identity, status=status, timestamp_ns=at, **fields)


def test_the_book_knows_since_when_all_that_matter_pass() -> None:
    book = CheckBook()
    assert book.passing_since_ns("a") == 0
    book.expect("a", [a_result(CheckStatus.PENDING), a_result(CheckStatus.PENDING, "d", on_update="ignore")], 1)
    assert book.passing_since_ns("a") is None
    book.put("a", a_result(CheckStatus.SUCCESS, at=7))
    book.put("a", a_result(CheckStatus.SUCCESS, at=9))
    assert book.passing_since_ns("a") == 7
    book.put("a", a_result(CheckStatus.FAILURE, "d", at=10, on_update="ignore"))
    assert book.passing_since_ns("a") == 7
    book.put("a", a_result(CheckStatus.WARNING, at=11))
    assert book.passing_since_ns("a") is None
    book.put("a", a_result(CheckStatus.WARNING, at=12, on_update="ignore_warnings"))
    assert book.passing_since_ns("a") == 12
    book.forget("a")
    assert (book.of("a"), book.passing_since_ns("a")) == ({}, 0)


def test_expected_checks_keep_results_that_are_known_and_lose_the_others() -> None:
    book = CheckBook()
    book.put("a", a_result(CheckStatus.SUCCESS, "one"))
    book.put("a", a_result(CheckStatus.SUCCESS, "two"))
    book.expect("a", [a_result(CheckStatus.PENDING, "one"), a_result(CheckStatus.PENDING, "three")], 9)

    assert {key: one.status.value for key, one in book.of("a").items()} == {"one": "success", "three": "pending"}
    book.expect("a", [a_result(CheckStatus.PENDING, "four", on_update="ignore")], 9)
    assert book.passing_since_ns("a") == 0


def test_whoever_waits_for_the_book_hears_of_the_next_change() -> None:
    async def main() -> None:
        book = CheckBook()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(book.wait_changed)
            await trio.testing.wait_all_tasks_blocked()
            book.put("a", a_result(CheckStatus.SUCCESS))
        event = book.changed
        book.forget("nobody")
        assert not event.is_set()
        book.forget("a")
        assert event.is_set()

    trio.run(main)
