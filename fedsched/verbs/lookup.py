"""Finding the one thing a person means by a prefix of its id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol, TypeVar

from fedsched.model.errors import BadRequest, NotFound

PAGE: Final = 1000
"""Rows asked for at once: well within one message, whatever the rows hold."""

PREFIX_MIN: Final = 2

LISTED_BY: Final = {
    "job": "`fedsched job status` lists them, with -namespace '*' those of all namespaces",
    "node": "`fedsched node status` lists them",
    "allocation": "`fedsched alloc list` lists them, with -namespace '*' those of all namespaces",
    "evaluation": "`fedsched eval list` lists them; those that are done are forgotten after a while",
    "deployment": "`fedsched deployment list` lists them",
}


class HasId(Protocol):
    @property
    def id(self) -> str:
        """What it is called."""


T = TypeVar("T", bound=HasId)


class Ambiguous(BadRequest):
    """Several things begin with what was typed; the message ends with the table of them."""

    code = "ambiguous"


def one_of(found: Sequence[T], typed: str, things: str, table: Callable[[Sequence[T]], str]) -> T:
    """Give the one that is meant: the exact id wins over longer ones, else there must be only one."""
    exact = next((one for one in found if one.id == typed), None)
    if exact is not None:
        return exact
    if not found:
        raise NotFound(f'No {things}(s) with prefix or id "{typed}" found', hint=LISTED_BY.get(things, ""))
    if len(found) > 1:
        raise Ambiguous(f"Prefix matched multiple {things}s\n\n{table(found).rstrip()}")
    return found[0]


def check_prefix(typed: str) -> None:
    """Refuse a prefix that could mean anything, for ids that are UUIDs."""
    if len(typed) < PREFIX_MIN:
        raise BadRequest("Identifier must contain at least two characters.", hint="the first two of its id will do")


def pages(fetch: Callable[[str], tuple[Sequence[T], str]]) -> Iterator[T]:
    """Walk through a list page by page; `fetch` takes a token and gives the rows and the next token."""
    token = ""
    while True:
        rows, following = fetch(token)
        yield from rows
        if not following:
            return
        if following == token:
            raise BadRequest(f"the server's list does not move on from {token!r}", hint="try again")
        token = following
