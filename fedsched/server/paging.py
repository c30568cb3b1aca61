"""Pages of a list: by key, so that a page costs what it holds and not what the table holds.

A token is the id that the next page begins with. Every list is walked from there, forwards or backwards, and a prefix
is only another place to begin at: no page looks at what comes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol, TypeVar

from fedsched.model.errors import BadRequest
from fedsched.rpc.methods.paging import ListRequest
from fedsched.state.table import LAST, Key, Row, TableReader

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R", bound=Row)

PAGE_MAX: Final = 10_000
"""What one reply holds at most when the caller names no limit; the token leads to the rest."""

TOP: Final = "\U0010ffff"
"""Comes after every character of an id."""


class Walk(Protocol[T_co]):
    """Gives rows in the order of their ids, from the first at or after `start`; with `back` the other way round.

    Without a start it begins at the very first (or last) one.
    """

    def __call__(self, start: str, *, back: bool) -> Iterator[T_co]: ...


def page_of(walk: Walk[T], request: ListRequest, *, id_of: Callable[[T], str]) -> tuple[list[T], str]:
    """The rows of one page and the token of the next."""
    limit = limit_of(request)
    page: list[T] = []
    for row in walk(_start(request), back=request.reverse):
        identity = id_of(row)
        if not identity.startswith(request.prefix):
            break
        if len(page) == limit:
            return page, identity
        page.append(row)
    return page, ""


def limit_of(request: ListRequest) -> int:
    """How many rows the page may have."""
    if request.per_page < 0:
        raise BadRequest(f"per_page is {request.per_page}", hint="0 for all, or how many you want at a time")
    return min(request.per_page or PAGE_MAX, PAGE_MAX)


def _start(request: ListRequest) -> str:
    if not request.reverse:
        return max(request.next_token, request.prefix)
    if not request.prefix:
        return request.next_token
    return min(request.next_token or TOP, request.prefix + TOP)


def by_id(table: TableReader[R], *prefix: Any) -> Walk[R]:
    """All rows of a table whose keys are ids, or such a prefix and an id."""

    def walk(start: str, *, back: bool) -> Iterator[R]:
        return table.scan(*prefix, start=(*prefix, start) if start else None, back=back)

    return walk


def by_index(table: TableReader[R], index: str, value: str) -> Walk[R]:
    """Those rows of a table whose keys are ids that an index files under one value."""

    def walk(start: str, *, back: bool) -> Iterator[R]:
        return table.by(index, value, start=((start,),) if start else None, back=back)

    return walk


def only(walk: Walk[T], is_wanted: Callable[[T], bool]) -> Walk[T]:
    """Those of them that are wanted; what is passed over costs too, so this is for what leaves most of them in."""

    def wanted(start: str, *, back: bool) -> Iterator[T]:
        return filter(is_wanted, walk(start, back=back))

    return wanted


def of_few(rows: Iterable[T], *, id_of: Callable[[T], str]) -> Walk[T]:
    """Rows that are few, in whatever order they come."""

    def walk(start: str, *, back: bool) -> Iterator[T]:
        found = sorted(rows, key=id_of, reverse=back)
        return (row for row in found if not start or (id_of(row) <= start if back else id_of(row) >= start))

    return walk


def across_namespaces(table: TableReader[R], prefix: str) -> Walk[R]:
    """The rows of all namespaces whose id has this prefix; what else a namespace holds is jumped over.

    The table's keys are namespace and id, and the ids that the walk starts at are both, with a dot between.
    """

    def walk(start: str, *, back: bool) -> Iterator[R]:
        namespace, _, identity = start.partition(".")
        at: Key | None = (namespace, identity) if start else None
        while True:
            for row in table.scan(start=at, back=back):
                if not row.key[1].startswith(prefix):
                    at = _beyond(row.key, prefix, back)
                    break
                yield row
            else:
                return

    return walk


def _beyond(key: Key, prefix: str, back: bool) -> Key:
    """Where to go on from a row without the prefix: at those that have it if they are still to come."""
    namespace, identity = key
    if back:
        return (namespace, prefix + TOP) if identity > prefix else (namespace,)
    return (namespace, prefix) if identity < prefix else (namespace, LAST)
