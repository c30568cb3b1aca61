"""What a disk's refusals are called here: one error that stops the server, with words about what to do next."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fedsched.model.errors import FedschedError

FULL: Final = (errno.ENOSPC, errno.EDQUOT)
FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


class StoreFailed(FedschedError):
    """The disk did not do what was asked. Nothing may be acknowledged any more; the server has to stop."""

    code = "store_failed"


def disk_hint(error: BaseException) -> str:
    """What an operator can do about an error from the disk."""
    number = error.errno if isinstance(error, OSError) else None
    if number in FULL:
        return "the disk is full: make room (the ballast file may go) and start the server again"
    if number in FORBIDDEN:
        return "the agent's user must be able to write there"
    return "look at the disk and the kernel's log; a restart recovers everything that was acknowledged"


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Let an error of the disk out as `StoreFailed`: "`what` failed: why"."""
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"{what} failed: {error}", hint=disk_hint(error)) from error
