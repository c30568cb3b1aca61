"""What can go wrong on a link, as the two ends see it."""

from __future__ import annotations

from typing import NamedTuple

from fedsched.model.errors import FedschedError, Unavailable


class LinkClosed(Unavailable):
    """The link ended before the answer came; whether the other side acted on the call is not known."""


class ProtocolViolation(FedschedError):
    """The other end broke the rules of the wire; the link is closed and the message says which rule."""

    code = "protocol_violation"
    http_status = 502


class Failure(NamedTuple):
    """Why a call ended without a reply, in the form in which it travels."""

    code: str
    message: str
    hint: str = ""
    http_status: int = 500
    details: bytes = b""
    """Encoded by whoever understands the code; opaque here."""


class RemoteError(FedschedError):
    """A failure the other end reported, with the code, hint and status it gave."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, hint=failure.hint)
        self.failure = failure
        self.details = failure.details
        self.__dict__.update(code=failure.code, http_status=failure.http_status)


def failure_of(error: FedschedError) -> Failure:
    """The wire form of an error an operator can act on."""
    return Failure(error.code, error.message, error.hint, error.http_status, error.details)
