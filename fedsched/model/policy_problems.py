"""What can be wrong with the policies of a group, each on its own."""

from __future__ import annotations

from collections.abc import Iterator

from fedsched.model.job import JobType
from fedsched.model.policies import (
    DelayFunction,
    DisconnectStrategy,
    HealthCheck,
    MigrateStrategy,
    ReconcileOption,
    ReschedulePolicy,
    RestartMode,
    RestartPolicy,
    UpdateStrategy,
)
from fedsched.model.problem import Problem, one_of
from fedsched.model.units import MAX_NS, NS_PER_S, format_duration

MIN_RESTART_INTERVAL_S = 5.0
MIN_RESCHEDULE_DELAY_S = 5.0
MIN_RESCHEDULE_INTERVAL_S = 15.0

Found = Iterator[Problem]


def restart_problems(policy: RestartPolicy, path: str) -> Found:
    """Check a restart policy."""
    if policy.mode not in set(RestartMode):
        yield Problem(
            f"{path}.Mode", f'Unsupported restart mode: "{policy.mode}"', hint=one_of(policy.mode, RestartMode)
        )
    if policy.attempts == 0 and policy.mode != RestartMode.FAIL:
        yield Problem(f"{path}.Attempts", f'Restart policy "{policy.mode}" with 0 attempts is ambiguous')
    if policy.attempts < 0:
        yield Problem(f"{path}.Attempts", f"Restart attempts cannot be negative; got {policy.attempts}")
    if policy.interval_s < MIN_RESTART_INTERVAL_S:
        yield Problem(
            f"{path}.Interval",
            f"Interval can not be less than {format_duration(MIN_RESTART_INTERVAL_S)} "
            f"(got {format_duration(policy.interval_s)})",
        )
    if policy.attempts * policy.delay_s > policy.interval_s:
        yield Problem(
            path,
            f"Task group can't be restarted {policy.attempts} times in an interval of "
            f"{format_duration(policy.interval_s)} with a delay of {format_duration(policy.delay_s)}",
        )


def reschedule_problems(policy: ReschedulePolicy, path: str) -> Found:
    """Check a reschedule policy; one that never reschedules is fine whatever else it says."""
    if policy.attempts <= 0 and not policy.unlimited:
        return
    if policy.attempts > 0 and policy.unlimited:
        yield Problem(path, "Reschedule Policy with Attempts and Unlimited is ambiguous: set one of the two")
    if policy.delay_function not in set(DelayFunction):
        valid = ", ".join(DelayFunction)
        yield Problem(
            f"{path}.DelayFunction", f'Invalid delay function "{policy.delay_function}", must be one of {valid}'
        )
        return
    if policy.delay_s < MIN_RESCHEDULE_DELAY_S:
        yield Problem(
            f"{path}.Delay",
            f"Delay cannot be less than {format_duration(MIN_RESCHEDULE_DELAY_S)} "
            f"(got {format_duration(policy.delay_s)})",
        )
    if policy.delay_function != DelayFunction.CONSTANT:
        if policy.max_delay_s < MIN_RESCHEDULE_DELAY_S:
            yield Problem(
                f"{path}.MaxDelay",
                f"Max Delay cannot be less than {format_duration(MIN_RESCHEDULE_DELAY_S)} "
                f"(got {format_duration(policy.max_delay_s)})",
            )
        if policy.max_delay_s < policy.delay_s:
            yield Problem(
                f"{path}.MaxDelay",
                f"Max Delay cannot be less than Delay {format_duration(policy.delay_s)} "
                f"(got {format_duration(policy.max_delay_s)})",
            )
    if not policy.unlimited:
        yield from _attempts_fit(policy, path)


def _attempts_fit(policy: ReschedulePolicy, path: str) -> Found:
    """All attempts must fit into the interval, or the policy promises what it cannot keep."""
    if policy.interval_s < MIN_RESCHEDULE_INTERVAL_S:
        yield Problem(
            f"{path}.Interval",
            f"Interval cannot be less than {format_duration(MIN_RESCHEDULE_INTERVAL_S)} "
            f"(got {format_duration(policy.interval_s)})",
        )
        return
    needed = total_delay(policy, policy.attempts)
    if needed > policy.interval_s:
        possible = _possible_attempts(policy)
        yield Problem(
            path,
            f"Reschedule Policy can only make {possible} attempts (taking {_shown(total_delay(policy, possible))}) "
            f"in an interval of {format_duration(policy.interval_s)}: set the interval to at least {_shown(needed)} "
            f"to fit {policy.attempts} attempts",
        )


def nth_delay(policy: ReschedulePolicy, attempt: int) -> float:
    """Give the delay before the attempt (0 is the first), capped at the maximum where the function grows."""
    growing = _growing_delays(policy)
    return growing[min(attempt, len(growing) - 1)]


def total_delay(policy: ReschedulePolicy, attempts: int) -> float:
    """Give how long the first `attempts` delays take together."""
    growing = _growing_delays(policy)
    return sum(growing[:attempts]) + max(0, attempts - len(growing)) * growing[-1]


def _possible_attempts(policy: ReschedulePolicy) -> int:
    growing = _growing_delays(policy)
    for attempts in range(1, len(growing) + 1):
        if sum(growing[:attempts]) > policy.interval_s:
            return attempts - 1
    return len(growing) + int((policy.interval_s - sum(growing)) // growing[-1])


def _growing_delays(policy: ReschedulePolicy) -> list[float]:
    """Give the delays until they stop growing: the last one holds from then on. Never more than 200."""
    delays = [policy.delay_s]
    if policy.delay_function == DelayFunction.CONSTANT:
        return delays
    older, newer = 0.0, policy.delay_s
    while delays[-1] < policy.max_delay_s and len(delays) < 200:
        if policy.delay_function == DelayFunction.EXPONENTIAL:
            older, newer = newer, newer * 2
        else:
            older, newer = newer, older + newer
        delays.append(min(newer, policy.max_delay_s))
    return delays


def _shown(seconds: float) -> str:
    """Print a sum of delays, which may be longer than any duration we can hold."""
    return format_duration(seconds) if seconds * NS_PER_S <= MAX_NS else "292 years and more"


def update_problems(update: UpdateStrategy, path: str) -> Found:
    """Check an update strategy; one without deployments (0 at a time) needs nothing else."""
    if update.max_parallel == 0:
        return
    if update.health_check not in set(HealthCheck):
        hint = one_of(update.health_check, HealthCheck)
        yield Problem(f"{path}.HealthCheck", f'Invalid health check given: "{update.health_check}"', hint=hint)
    if update.max_parallel < 0:
        yield Problem(f"{path}.MaxParallel", f"Max parallel can not be less than zero: {update.max_parallel} < 0")
    if update.canary < 0:
        yield Problem(f"{path}.Canary", f"Canary count can not be less than zero: {update.canary} < 0")
    if update.canary == 0 and update.auto_promote:
        yield Problem(f"{path}.AutoPromote", "Auto Promote requires a Canary count greater than zero")
    if update.min_healthy_time_s < 0:
        yield Problem(f"{path}.MinHealthyTime", "Minimum healthy time may not be less than zero")
    if update.healthy_deadline_s <= 0:
        yield Problem(f"{path}.HealthyDeadline", "Healthy deadline must be greater than zero")
    if update.progress_deadline_s < 0:
        yield Problem(f"{path}.ProgressDeadline", "Progress deadline must be zero or greater")
    if update.min_healthy_time_s >= update.healthy_deadline_s > 0:
        yield Problem(f"{path}.MinHealthyTime", "Minimum healthy time must be less than healthy deadline")
    if 0 < update.progress_deadline_s <= update.healthy_deadline_s:
        yield Problem(f"{path}.ProgressDeadline", "Healthy deadline must be less than progress deadline")
    if update.stagger_s <= 0:
        yield Problem(f"{path}.Stagger", "Stagger must be greater than zero")


def migrate_problems(migrate: MigrateStrategy, path: str) -> Found:
    """Check a migrate strategy."""
    if migrate.max_parallel < 0:
        yield Problem(f"{path}.MaxParallel", f"MaxParallel must be >= 0 but found {migrate.max_parallel}")
    if migrate.health_check not in (HealthCheck.CHECKS, HealthCheck.TASK_STATES):
        hint = one_of(migrate.health_check, (HealthCheck.CHECKS, HealthCheck.TASK_STATES))
        yield Problem(f"{path}.HealthCheck", f'Invalid health check given: "{migrate.health_check}"', hint=hint)
    if migrate.min_healthy_time_s < 0:
        yield Problem(f"{path}.MinHealthyTime", "MinHealthyTime must not be negative")
    if migrate.healthy_deadline_s < 0:
        yield Problem(f"{path}.HealthyDeadline", "HealthyDeadline must not be negative")
    if migrate.min_healthy_time_s > migrate.healthy_deadline_s:
        yield Problem(f"{path}.MinHealthyTime", "MinHealthyTime must be less than HealthyDeadline")


def disconnect_problems(strategy: DisconnectStrategy, job_type: str, path: str) -> Found:
    """Check a disconnect strategy."""
    stop_after = strategy.stop_on_client_after_s
    if strategy.lost_after_s < 0:
        yield Problem(f"{path}.LostAfter", "lost_after cannot be a negative duration")
    if stop_after is not None and stop_after < 0:
        yield Problem(f"{path}.StopOnClientAfter", "stop_on_client_after cannot be a negative duration")
    if stop_after is not None and strategy.lost_after_s > 0:
        yield Problem(path, "disconnect cannot be configured with both lost_after and stop_on_client_after")
    if stop_after is not None and job_type not in (JobType.SERVICE, JobType.BATCH):
        yield Problem(f"{path}.StopOnClientAfter", "stop_on_client_after can only be used with service and batch jobs")
    if strategy.reconcile not in {"", *ReconcileOption}:
        hint = one_of(strategy.reconcile, ReconcileOption)
        yield Problem(f"{path}.Reconcile", f'invalid reconcile option "{strategy.reconcile}"', hint=hint)
