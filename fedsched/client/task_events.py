"""The events of a task, in the words and with the fields that readers of Nomad know."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import structs

from fedsched.client.restarts import WITHIN_POLICY
from fedsched.drivers.driver import ExitResult
from fedsched.model.task_state import MAX_TASK_EVENTS, TaskEvent, TaskState
from fedsched.model.units import NS_PER_S, format_duration


class EventType(StrEnum):
    RECEIVED = "Received"
    SETUP = "Task Setup"
    BUILDING_DIRECTORY = "Building Task Directory"
    SETUP_FAILURE = "Setup Failure"
    DRIVER = "Driver"
    DRIVER_FAILURE = "Driver Failure"
    STARTED = "Started"
    TERMINATED = "Terminated"
    RESTARTING = "Restarting"
    NOT_RESTARTING = "Not Restarting"
    RESTART_SIGNALED = "Restart Signaled"
    SIGNALING = "Signaling"
    KILLING = "Killing"
    KILLED = "Killed"
    WAITING_FOR_SHUTDOWN_DELAY = "Waiting for shutdown delay"
    SKIPPING_SHUTDOWN_DELAY = "Skipping shutdown delay"
    SIBLING_FAILED = "Sibling Task Failed"
    LEADER_DEAD = "Leader Task Dead"
    MAIN_DEAD = "Main Tasks Dead"
    HOOK_FAILED = "Task hook failed"
    RESTORE_FAILED = "Failed Restoring Task"
    RECONNECTED = "Reconnected"
    UNHEALTHY = "Alloc Unhealthy"
    FAILED_VALIDATION = "Failed Validation"
    FAILED_DOWNLOAD = "Failed Artifact Download"


def with_event(state: TaskState, event: TaskEvent, now_ns: int) -> TaskState:
    """The state with one event more; the oldest falls off."""
    event = structs.replace(event, type=str(event.type), time_ns=event.time_ns or now_ns)
    if not event.display_message:
        event = structs.replace(event, display_message=event.message)
    return structs.replace(state, events=(*state.events, event)[-MAX_TASK_EVENTS:])


def plain(kind: str, message: str, *, details: Mapping[str, str] | None = None, fails: bool = False) -> TaskEvent:
    return TaskEvent(type=kind, message=message, display_message=message, details=dict(details or {}), fails_task=fails)


def received() -> TaskEvent:
    return plain(EventType.RECEIVED, "Task received by client")


def setup() -> TaskEvent:
    return plain(EventType.SETUP, "Building Task Directory")


def started() -> TaskEvent:
    return plain(EventType.STARTED, "Task started by client")


def terminated(result: ExitResult) -> TaskEvent:
    parts = [f"Exit Code: {result.exit_code}"]
    if result.signal:
        parts.append(f"Signal: {result.signal}")
    if result.error:
        parts.append(f'Exit Message: "{result.error}"')
    if result.oom_killed:
        parts.append("OOM Killed")
    return TaskEvent(
        type=EventType.TERMINATED,
        message=result.error,
        display_message=", ".join(parts),
        exit_code=result.exit_code,
        signal=result.signal,
        # The time it really ended: after an agent's absence that is not now.
        time_ns=result.finished_at_ns,
        details={
            "exit_code": str(result.exit_code),
            "signal": str(result.signal),
            "exit_message": result.error,
            "oom_killed": "true" if result.oom_killed else "false",
        },
    )


def restarting(reason: str, delay_s: float) -> TaskEvent:
    told = f"Task restarting in {format_duration(round(delay_s, 3))}"
    delay_ns = round(delay_s * NS_PER_S)
    return TaskEvent(
        type=EventType.RESTARTING,
        message=reason,
        display_message=told if reason in ("", WITHIN_POLICY) else f"{reason} - {told}",
        restart_reason=reason,
        start_delay=delay_ns,
        details={"restart_reason": reason, "start_delay": str(delay_ns)},
    )


def not_restarting(reason: str) -> TaskEvent:
    return TaskEvent(
        type=EventType.NOT_RESTARTING,
        message=reason,
        display_message=reason,
        restart_reason=reason,
        fails_task=True,
        details={"restart_reason": reason, "fails_task": "true"},
    )


def restart_signaled(reason: str) -> TaskEvent:
    return TaskEvent(
        type=EventType.RESTART_SIGNALED,
        message=reason,
        display_message=reason or "Task signaled to restart",
        restart_reason=reason,
        details={"restart_reason": reason},
    )


def signaling(signal: str, reason: str) -> TaskEvent:
    told = f"Task being sent signal {signal}"
    return TaskEvent(
        type=EventType.SIGNALING,
        message=reason,
        display_message=f"{told}: {reason}" if reason else told,
        task_signal=signal,
        task_signal_reason=reason,
        details={"task_signal": signal, "task_signal_reason": reason},
    )


def killing(timeout_s: float, reason: str) -> TaskEvent:
    sent = f"Sent interrupt. Waiting {format_duration(timeout_s)} before force killing"
    return TaskEvent(
        type=EventType.KILLING,
        message=reason,
        display_message=f"{reason}. {sent}" if reason else sent,
        kill_timeout_s=timeout_s,
        kill_reason=reason,
        details={"kill_timeout": format_duration(timeout_s), "kill_reason": reason},
    )


def killed(error: str = "") -> TaskEvent:
    return TaskEvent(
        type=EventType.KILLED,
        message=error,
        display_message=error or "Task successfully killed",
        kill_error=error,
        details={"kill_error": error} if error else {},
    )


def waiting_for_shutdown_delay(delay_s: float) -> TaskEvent:
    told = f"Waiting for shutdown_delay of {format_duration(delay_s)} before killing the task."
    return plain(EventType.WAITING_FOR_SHUTDOWN_DELAY, told)


def skipping_shutdown_delay(delay_s: float) -> TaskEvent:
    told = f"Skipping shutdown_delay of {format_duration(delay_s)} before killing the task."
    return plain(EventType.SKIPPING_SHUTDOWN_DELAY, told)


def sibling_failed(name: str) -> TaskEvent:
    return TaskEvent(
        type=EventType.SIBLING_FAILED,
        message=f"Task's sibling {name!r} failed",
        display_message=f'Task\'s sibling "{name}" failed',
        failed_sibling=name,
        details={"failed_sibling": name},
    )


def leader_dead() -> TaskEvent:
    return plain(EventType.LEADER_DEAD, "Leader Task in Group dead")


def main_dead() -> TaskEvent:
    return plain(EventType.MAIN_DEAD, "Main tasks in the group died")


def setup_failure(reason: str) -> TaskEvent:
    return TaskEvent(
        type=EventType.SETUP_FAILURE,
        message=reason,
        display_message=reason,
        setup_error=reason,
        fails_task=True,
        details={"setup_error": reason},
    )


def driver_failure(reason: str) -> TaskEvent:
    return TaskEvent(
        type=EventType.DRIVER_FAILURE,
        message=reason,
        display_message=reason,
        driver_error=reason,
        details={"driver_error": reason},
    )


def driver_message(message: str, details: Mapping[str, str]) -> TaskEvent:
    return TaskEvent(
        type=EventType.DRIVER,
        message=message,
        display_message=message,
        driver_message=message,
        details={"driver_message": message, **details},
    )


def hook_failed(kind: str, reason: str) -> TaskEvent:
    """An event of the type that the hook names, with the field that readers of that type look at."""
    event = plain(kind or EventType.HOOK_FAILED, reason)
    if kind == EventType.FAILED_VALIDATION:
        return structs.replace(event, validation_error=reason, details={"validation_error": reason})
    if kind == EventType.FAILED_DOWNLOAD:
        return structs.replace(event, download_error=reason, details={"download_error": reason})
    if kind == EventType.SETUP_FAILURE:
        return structs.replace(event, setup_error=reason, details={"setup_error": reason})
    return event


def restore_failed(reason: str, *, waits: bool) -> TaskEvent:
    then = "will not run until server is contacted" if waits else "will be started again"
    return plain(EventType.RESTORE_FAILED, f"failed to restore task; {then}", details={"reason": reason})


def reconnected() -> TaskEvent:
    return plain(EventType.RECONNECTED, "Client reconnected")


def unhealthy(reason: str) -> TaskEvent:
    return structs.replace(plain(EventType.UNHEALTHY, reason), generic_source=EventType.UNHEALTHY.value)
