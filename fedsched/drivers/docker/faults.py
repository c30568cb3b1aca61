"""What can go wrong between the driver and its engine, each with a word on whether trying again may help."""

from __future__ import annotations

from enum import StrEnum

from fedsched.drivers.driver import DriverError


class Fault(StrEnum):
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    GARBLED = "garbled"
    TOO_LARGE = "too large"
    CUT = "cut"


class EngineFault(DriverError):
    """The engine did not answer as an engine does: always worth another try, the engine may be starting again."""

    code = "engine_fault"

    def __init__(self, kind: Fault, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, is_recoverable=True)
        self.kind = kind


class EngineRefused(DriverError):
    """The engine answered, and said no. From 500 up it is the engine's own trouble, which may pass."""

    code = "engine_refused"

    def __init__(self, status: int, message: str, *, what: str) -> None:
        super().__init__(f"{what}: the engine answered {status}: {message}", is_recoverable=status >= 500)
        self.status = status
        self.reason = message
