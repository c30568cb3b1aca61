"""Errors across the wire, by their stable code.

An error the receiving process knows (some class defines its code) comes back as that class; an unknown one as a
`RemoteError`, which keeps code, message, hint and status. So a newer server's refusal still reads well in an older CLI.

A refusal is an answer, too, and says like any other which state it reflects: "no such job" at an index can be waited
above until there is one. `with_meta` puts that beside an error, `meta_of` takes it out at the other end.
"""

from __future__ import annotations

from collections.abc import Iterator

from fedsched.codec import CodecError, dumps, from_builtins, loads
from fedsched.model.errors import FedschedError
from fedsched.model.plain_form import to_plain
from fedsched.rpc.context import ReplyMeta
from fedsched.wire.errors import Failure, RemoteError, failure_of

__all__ = ["RemoteError", "error_of", "failure_of", "known_errors", "meta_of", "with_meta"]

_classes: dict[str, type[FedschedError]] = {}


def error_of(failure: Failure) -> FedschedError:
    """The error a failure stands for, ready to raise."""
    if not 400 <= failure.http_status <= 599:
        failure = failure._replace(http_status=500)
    kind = _class_of(failure.code)
    if kind is None:
        return RemoteError(failure)
    error = kind.__new__(kind)  # its own __init__ may want facts that stayed at the other side
    FedschedError.__init__(error, failure.message, hint=failure.hint)
    error.details = failure.details
    return error


def with_meta(error: FedschedError, meta: ReplyMeta) -> FedschedError:
    """Let an error say what a reply would have said beside itself."""
    error.details = dumps([to_plain(meta)])
    return error


def meta_of(error: FedschedError) -> ReplyMeta | None:
    """What was said beside an error; None if nothing was, or nothing we understand."""
    if not error.details:
        return None
    try:
        plain = loads(error.details)
        return from_builtins(plain[0], ReplyMeta) if isinstance(plain, list) and plain else None
    except CodecError:
        return None


def known_errors() -> dict[str, type[FedschedError]]:
    """Every error class this process knows, by code; for the reference page."""
    return {kind.code: kind for kind in sorted(_definers(FedschedError), key=lambda kind: kind.code)}


def _class_of(code: str) -> type[FedschedError] | None:
    kind = _classes.get(code)
    if kind is None:
        for definer in _definers(FedschedError):
            _classes.setdefault(definer.code, definer)
        kind = _classes.get(code)
    return kind


def _definers(kind: type[FedschedError]) -> Iterator[type[FedschedError]]:
    """Every class that gives a code of its own, those nearest to the base first."""
    if "code" in kind.__dict__:
        yield kind
    for child in kind.__subclasses__():
        yield from _definers(child)
