"""Pages of a list: by key, so that a page costs what it holds and not what the table holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from fedsched.model.errors import BadRequest
from fedsched.rpc.methods.paging import ListRequest

T = TypeVar("T")

PAGE_MAX: Final = 10_000
"""What one reply holds at most when the caller names no limit; the token leads to the rest."""


def page_of(
    rows: Iterable[T], request: ListRequest, *, id_of: Callable[[T], str], token_of: Callable[[T], str]
) -> tuple[list[T], str]:
    """The rows of one page and the token of the next; `rows` come in the order of their tokens."""
    if request.per_page < 0:
        raise BadRequest(f"per_page is {request.per_page}", hint="0 for all, or how many you want at a time")
    if request.reverse:
        rows = reversed(list(rows))
    limit = min(request.per_page or PAGE_MAX, PAGE_MAX)
    page: list[T] = []
    is_there = not request.next_token
    for row in rows:
        if not id_of(row).startswith(request.prefix):
            continue
        if not is_there:
            token = token_of(row)
            is_there = token <= request.next_token if request.reverse else token >= request.next_token
            if not is_there:
                continue
        if len(page) == limit:
            return page, token_of(row)
        page.append(row)
    return page, ""
