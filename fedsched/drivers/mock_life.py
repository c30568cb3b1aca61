"""The life of a task that is only pretended: what its settings say about it, and how it has ended by a given time.

A mock task has no process. What is known of it (when it began, what it was told, who asked for its end) decides what it
does at any moment, so a driver that comes later, in another agent, sees the same task without anything having run
meanwhile.
"""

from __future__ import annotations

import random
import signal as signals
from collections.abc import Mapping
from typing import Any

from fedsched.drivers.driver import DriverError, ExitResult
from fedsched.drivers.schemas import MOCK_SCHEMA
from fedsched.model.declare import EMPTY, Record, Seconds, TimeNs
from fedsched.model.errors import FedschedError
from fedsched.model.units import parse_duration_ns

_NS = 1_000_000_000


class Script(Record):
    """What something does while it lasts."""

    run_for_s: Seconds = 0.0
    exit_code: int = 0
    exit_signal: int = 0
    exit_error: str = ""
    stdout: str = ""
    stdout_repeat: int = 0
    stdout_every_s: Seconds = 0.0
    stderr: str = ""
    stderr_repeat: int = 0
    stderr_every_s: Seconds = 0.0
    echoes: bool = False


class MockKnobs(Record):
    """A mock task's settings."""

    script: Script = Script()
    inside: Script | None = None
    start_error: str = ""
    start_error_recoverable: bool = False
    start_block_for_s: Seconds = 0.0
    kill_after_s: Seconds = 0.0
    plugin_exit_after_s: Seconds = 0.0
    driver_ip: str = ""
    driver_advertise: bool = False
    driver_port_map: dict[str, int] = EMPTY
    signal_error: str = ""
    recover_error: str = ""
    stop_error: str = ""
    stop_error_count: int = 0
    exit_on_attempt: dict[str, int] = EMPTY
    exit_on_signal: dict[str, int] = EMPTY
    oom: bool = False
    seed: int = 0
    run_for_spread_s: Seconds = 0.0
    fail_chance: float = 0.0


class MockTask(Record):
    """All that there is of a mock task."""

    id: str
    task: str = ""
    log_dir: str = ""
    started_at_ns: TimeNs = 0
    attempt: int = 1
    knobs: MockKnobs = MockKnobs()
    stop_at_ns: TimeNs = 0
    """When its end was asked for."""
    stop_timeout_s: Seconds = 0.0
    stop_signal: int = 0
    stops_failed: int = 0
    signalled_at_ns: TimeNs = 0
    signalled_code: int = 0

    def ending(self) -> tuple[int, ExitResult]:
        """When it ends, and how, if nobody interferes any more."""
        ends = [self._own_end()]
        if self.signalled_at_ns:
            ends.append((self.signalled_at_ns, ExitResult(exit_code=self.signalled_code)))
        if self.stop_at_ns:
            ends.append(self._stopped_end())
        at, result = min(ends, key=lambda end: end[0])
        return at, _at(result, at)

    def _own_end(self) -> tuple[int, ExitResult]:
        knobs, script = self.knobs, self.knobs.script
        dice = random.Random(f"{knobs.seed}/{self.task}/{self.attempt}")
        run_for_s = script.run_for_s + dice.random() * knobs.run_for_spread_s
        code = knobs.exit_on_attempt.get(str(self.attempt), script.exit_code)
        if knobs.fail_chance and dice.random() < knobs.fail_chance:
            code = 1
        signal = signals.SIGKILL if knobs.oom and not script.exit_signal else script.exit_signal
        result = ExitResult(
            exit_code=code or (128 + signal if signal else 0),
            signal=int(signal),
            oom_killed=knobs.oom,
            error=script.exit_error,
        )
        return self.started_at_ns + round(run_for_s * _NS), result

    def _stopped_end(self) -> tuple[int, ExitResult]:
        patience_s = self.stop_timeout_s
        is_deaf = self.knobs.kill_after_s > patience_s
        signal = signals.SIGKILL if is_deaf else self.stop_signal
        after_s = min(self.knobs.kill_after_s, patience_s)
        return self.stop_at_ns + round(after_s * _NS), ExitResult(exit_code=128 + signal, signal=int(signal))


def _at(result: ExitResult, at: int) -> ExitResult:
    return ExitResult(
        exit_code=result.exit_code,
        signal=result.signal,
        oom_killed=result.oom_killed,
        error=result.error,
        finished_at_ns=at,
    )


def signal_number(name: str) -> int:
    """The number of a signal; `DriverError` for one that does not exist."""
    try:
        return int(signals.Signals[name])
    except KeyError:
        raise DriverError(f"there is no signal {name!r}", hint="give a name such as SIGHUP") from None


def knobs_from(config: Mapping[str, Any]) -> MockKnobs:
    """Read a task's settings, checked against the schema already or not."""
    problems = MOCK_SCHEMA.problems(config)
    if problems:
        raise DriverError("; ".join(problems), hint="see the settings of mock_driver")
    inside = _block(config.get("exec_command"))
    return MockKnobs(
        script=_script(config),
        inside=None if inside is None else _script(inside),
        start_error=_text(config, "start_error"),
        start_error_recoverable=_flag(config, "start_error_recoverable"),
        start_block_for_s=_seconds(config, "start_block_for"),
        kill_after_s=_seconds(config, "kill_after"),
        plugin_exit_after_s=_seconds(config, "plugin_exit_after"),
        driver_ip=_text(config, "driver_ip"),
        driver_advertise=_flag(config, "driver_advertise"),
        driver_port_map=_port_map(_text(config, "driver_port_map")),
        signal_error=_text(config, "signal_error"),
        recover_error=_text(config, "recover_error"),
        stop_error=_text(config, "stop_error"),
        stop_error_count=_whole(config, "stop_error_count"),
        exit_on_attempt=_codes(config, "exit_on_attempt"),
        exit_on_signal=_codes(config, "exit_on_signal"),
        oom=_flag(config, "oom"),
        seed=_whole(config, "seed"),
        run_for_spread_s=_seconds(config, "run_for_spread"),
        fail_chance=float(config.get("fail_chance") or 0.0),
    )


def _script(config: Mapping[str, Any]) -> Script:
    return Script(
        run_for_s=_seconds(config, "run_for"),
        exit_code=_whole(config, "exit_code"),
        exit_signal=_whole(config, "exit_signal"),
        exit_error=_text(config, "exit_err_msg"),
        stdout=_text(config, "stdout_string"),
        stdout_repeat=_whole(config, "stdout_repeat"),
        stdout_every_s=_seconds(config, "stdout_repeat_duration"),
        stderr=_text(config, "stderr_string"),
        stderr_repeat=_whole(config, "stderr_repeat"),
        stderr_every_s=_seconds(config, "stderr_repeat_duration"),
        echoes=_flag(config, "echo_input"),
    )


def _text(config: Mapping[str, Any], name: str) -> str:
    return str(config.get(name) or "")


def _whole(config: Mapping[str, Any], name: str) -> int:
    return int(config.get(name) or 0)


def _flag(config: Mapping[str, Any], name: str) -> bool:
    return config.get(name) in (True, "true", "1", 1)


def _seconds(config: Mapping[str, Any], name: str) -> float:
    value = config.get(name) or 0
    if isinstance(value, (int, float)):
        return float(value)
    try:
        return parse_duration_ns(str(value)) / _NS
    except FedschedError as error:
        raise DriverError(f"config.{name}: {error}", hint='write a duration such as "30s"') from error


def _block(value: Any) -> Mapping[str, Any] | None:
    """A block stands for itself or in a list of one, whichever form the job was written in."""
    if isinstance(value, (list, tuple)):
        value = value[0] if value else None
    return value if isinstance(value, Mapping) else None


def _codes(config: Mapping[str, Any], name: str) -> dict[str, int]:
    codes = _block(config.get(name)) or {}
    try:
        return {str(key): int(code) for key, code in codes.items()}
    except ValueError as error:
        raise DriverError(f"config.{name}: {error}", hint="give exit codes as numbers") from error


def _port_map(text: str) -> dict[str, int]:
    if not text:
        return {}
    label, _, number = text.partition(":")
    if not number.isdigit():
        raise DriverError(f"config.driver_port_map = {text!r} is not label:number", hint='such as "http:8080"')
    return {label: int(number)}
