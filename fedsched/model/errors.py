"""The one family of errors that an operator can act on.

Refusals and weather are `FedschedError`s: they have a stable `code` that travels over every wire, an HTTP status for
the gateway, and a `hint` that says what to try next. Broken promises are not: those are assertions, and stop the
server.
"""

from __future__ import annotations

from typing import ClassVar


class FedschedError(Exception):
    """Something an operator can act on.

    `code` is stable and travels over the wire; `hint` says what to try next.
    """

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    details: bytes = b""
    """What travels beside the words, encoded by whoever understands it (`rpc.errors` does)."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class BadRequest(FedschedError):
    """The caller's words are off; the message names the value and what was expected."""

    code = "bad_request"
    http_status = 400


class NotFound(FedschedError):
    """There is no such thing."""

    code = "not_found"
    http_status = 404


class Conflict(FedschedError):
    """The thing changed since the caller last looked (check-index, compare-and-set)."""

    code = "conflict"
    http_status = 409


class TooLarge(FedschedError):
    """An input is over its limit; the message names both."""

    code = "too_large"
    http_status = 413


class Unavailable(FedschedError):
    """Weather: no leader, link lost, server stopping. Trying again is right."""

    code = "unavailable"
    http_status = 503


class Busy(FedschedError):
    """A queue is full; the request was not taken and may be sent again later."""

    code = "busy"
    http_status = 429


class DeadlineExceeded(FedschedError):
    """The caller's deadline passed before an answer was there."""

    code = "deadline"
    http_status = 504
