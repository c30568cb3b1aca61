"""What became of a command: done, or refused with the words an operator needs. The same on every server."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fedsched.model.errors import BadRequest, Conflict, FedschedError, NotFound, TooLarge, Unavailable

_ERRORS: Final[dict[str, type[FedschedError]]] = {
    kind.code: kind for kind in (BadRequest, Conflict, FedschedError, NotFound, TooLarge, Unavailable)
}


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The outcome of one command."""

    index: int
    """Where in the log it was decided. For a repeated request: where it was decided the first time."""
    code: str = ""
    """Empty if it was done, else the code of the refusal."""
    message: str = ""
    hint: str = ""
    value: dict[str, Any] = {}

    @property
    def is_done(self) -> bool:
        return not self.code

    def error(self) -> FedschedError | None:
        """The refusal as the error to raise to the caller."""
        if self.is_done:
            return None
        kind = _ERRORS.get(self.code, FedschedError)
        return kind(self.message, hint=self.hint)


def refused(index: int, code: str, message: str, *, hint: str = "") -> Result:
    return Result(index=index, code=code, message=message, hint=hint)


class InvalidCommand(Exception):
    """A command that no proposer of ours makes. Raised before anything is written; becomes a refusal and an alarm."""
