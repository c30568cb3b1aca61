"""The restart policy, row by row, and as properties."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.client.journal_records import RestartState
from fedsched.client.restarts import (
    NO_RESTARTS_ALLOWED,
    NS_PER_S,
    UNRECOVERABLE,
    WITHIN_POLICY,
    Decision,
    Ending,
    Verdict,
    decide,
    restarts_on_success,
)
from fedsched.drivers.driver import ExitResult
from fedsched.model.policies import RestartPolicy
from fedsched.model.resources import TaskLifecycle

T0 = 1_700_000_000 * NS_PER_S
OK = Ending(exit=ExitResult())
FAILED = Ending(exit=ExitResult(exit_code=1))
POLICY = RestartPolicy(attempts=2, interval_s=100.0, delay_s=8.0)
FRESH = RestartState()


def ask(
    ending: Ending,
    *,
    policy: RestartPolicy = POLICY,
    used: RestartState = FRESH,
    on_success: bool = True,
    now_ns: int = T0,
    chance: float = 0.0,
) -> Decision:
    return decide(policy, used, ending, on_success=on_success, now_ns=now_ns, chance=chance)


def test_1_a_kill_is_never_followed_by_a_restart_and_costs_nothing() -> None:
    killed = Ending(exit=ExitResult(exit_code=137, signal=9), is_killed=True, is_restart_asked=True)

    assert ask(killed) == Decision(Verdict.KILLED, FRESH)


def test_2_a_restart_that_was_asked_for_is_at_once_and_costs_nothing() -> None:
    used = RestartState(count=2, interval_start_ns=T0)
    decision = ask(
        Ending(exit=ExitResult(exit_code=143), is_restart_asked=True), used=used, policy=RestartPolicy(attempts=0)
    )

    assert (decision.verdict, decision.delay_s, decision.state) == (Verdict.RESTART, 0.0, used)


@pytest.mark.parametrize(
    ("ending", "on_success", "verdict"),
    [
        (OK, False, Verdict.TERMINATED),
        (OK, True, Verdict.NOT_RESTARTING),
        (FAILED, False, Verdict.NOT_RESTARTING),
        (Ending(is_recoverable=True), True, Verdict.NOT_RESTARTING),
    ],
)
def test_3_without_attempts_nothing_is_restarted(ending: Ending, on_success: bool, verdict: Verdict) -> None:
    decision = ask(ending, policy=RestartPolicy(attempts=0), on_success=on_success)

    assert (decision.verdict, decision.state) == (verdict, FRESH)
    assert decision.is_failure is (verdict is Verdict.NOT_RESTARTING)
    if decision.is_failure:
        assert decision.reason == NO_RESTARTS_ALLOWED


def test_4_the_count_begins_anew_only_after_the_interval() -> None:
    used = RestartState(count=2, interval_start_ns=T0)

    assert ask(FAILED, used=used, now_ns=T0 + 100 * NS_PER_S).state.count == 3
    assert ask(FAILED, used=used, now_ns=T0 + 100 * NS_PER_S + 1).state == RestartState(
        count=1, interval_start_ns=T0 + 100 * NS_PER_S + 1
    )


def test_5_a_start_that_cannot_work_is_not_tried_again() -> None:
    decision = ask(Ending(is_recoverable=False))

    assert (decision.verdict, decision.reason, decision.state.count) == (Verdict.NOT_RESTARTING, UNRECOVERABLE, 1)
    assert ask(Ending(is_recoverable=True)).verdict is Verdict.RESTART


def test_6_a_batch_task_that_succeeds_is_done() -> None:
    assert ask(OK, on_success=False).verdict is Verdict.TERMINATED
    assert ask(OK, on_success=True).verdict is Verdict.RESTART


@pytest.mark.parametrize(
    "result",
    [
        ExitResult(exit_code=1),
        ExitResult(signal=9),
        ExitResult(error="lost"),
        ExitResult(exit_code=137, oom_killed=True),
    ],
)
def test_6_anything_but_success_is_a_failure(result: ExitResult) -> None:
    assert ask(Ending(exit=result), on_success=False).verdict is Verdict.RESTART


def test_7_beyond_the_attempts_mode_fail_gives_up() -> None:
    decision = ask(FAILED, used=RestartState(count=2, interval_start_ns=T0), now_ns=T0 + NS_PER_S)

    assert decision.verdict is Verdict.NOT_RESTARTING
    assert decision.reason == 'Exceeded allowed attempts 2 in interval 1m40s and mode is "fail"'


def test_7_beyond_the_attempts_mode_delay_waits_for_the_rest_of_the_interval() -> None:
    policy = RestartPolicy(attempts=2, interval_s=100.0, delay_s=8.0, mode="delay")
    used = RestartState(count=2, interval_start_ns=T0)

    assert ask(FAILED, policy=policy, used=used, now_ns=T0 + 30 * NS_PER_S).delay_s == 70
    assert ask(FAILED, policy=policy, used=used, now_ns=T0 - 500 * NS_PER_S).delay_s == 100


def test_8_otherwise_after_the_delay_and_up_to_a_quarter_more() -> None:
    assert ask(FAILED) == Decision(Verdict.RESTART, RestartState(count=1, interval_start_ns=T0), WITHIN_POLICY, 8.0)
    assert ask(FAILED, chance=0.5).delay_s == 9.0


def test_a_restart_by_a_failing_check_counts() -> None:
    asked = Ending(exit=ExitResult(), is_failure_asked=True)

    assert ask(asked, on_success=False).state.count == 1
    assert ask(asked, on_success=False).verdict is Verdict.RESTART
    assert ask(asked, used=RestartState(count=2, interval_start_ns=T0)).verdict is Verdict.NOT_RESTARTING


def test_a_service_that_keeps_succeeding_uses_up_its_attempts() -> None:
    used, verdicts = FRESH, []
    for second in range(3):
        decision = ask(OK, used=used, now_ns=T0 + second * NS_PER_S)
        used = decision.state
        verdicts.append(decision.verdict)

    assert verdicts == [Verdict.RESTART, Verdict.RESTART, Verdict.NOT_RESTARTING]


@pytest.mark.parametrize(
    ("job_type", "hook", "sidecar", "expected"),
    [
        ("service", "", False, True),
        ("system", "", False, True),
        ("batch", "", False, False),
        ("sysbatch", "", False, False),
        ("service", "prestart", False, False),
        ("service", "poststart", False, False),
        ("service", "poststop", False, False),
        ("service", "prestart", True, True),
        ("batch", "prestart", True, True),
        ("batch", "poststart", True, True),
    ],
)
def test_who_is_restarted_on_success(job_type: str, hook: str, sidecar: bool, expected: bool) -> None:
    assert restarts_on_success(job_type, TaskLifecycle(hook=hook, sidecar=sidecar)) is expected
    if not hook:
        assert restarts_on_success(job_type, None) is expected


policies = st.builds(
    RestartPolicy,
    attempts=st.integers(0, 4),
    interval_s=st.floats(1, 1000),
    delay_s=st.floats(0, 100),
    mode=st.sampled_from(["fail", "delay"]),
)
endings = st.builds(
    Ending,
    exit=st.none() | st.builds(ExitResult, exit_code=st.sampled_from([0, 1]), signal=st.sampled_from([0, 9])),
    is_killed=st.booleans(),
    is_restart_asked=st.booleans(),
    is_failure_asked=st.booleans(),
    is_recoverable=st.booleans(),
)


@settings(max_examples=200)
@given(policies, st.lists(st.tuples(endings, st.integers(0, 400), st.floats(0, 0.999)), max_size=12), st.booleans())
def test_a_policy_is_kept_over_any_story(
    policy: RestartPolicy, story: list[tuple[Ending, int, float]], on_success: bool
) -> None:
    used, now_ns = FRESH, T0
    restarts: list[int] = []
    for ending, later_s, chance in story:
        now_ns += later_s * NS_PER_S
        decision = ask(ending, policy=policy, used=used, on_success=on_success, now_ns=now_ns, chance=chance)
        assert decision.delay_s <= max(policy.delay_s * 1.25, policy.interval_s)
        assert decision.delay_s >= 0
        if ending.is_killed:
            assert decision.verdict is Verdict.KILLED
        if decision.state != used and decision.verdict is Verdict.RESTART and policy.mode == "fail":
            restarts.append(now_ns)
            within = [at for at in restarts if at >= decision.state.interval_start_ns]
            assert len(within) <= policy.attempts
        if decision.is_failure:
            assert decision.reason
        used = decision.state
