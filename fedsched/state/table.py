"""Frozen rows in plain dicts, with secondary indexes, a rolling digest, and snapshots that cost nothing to take.

`OrderedMap` is one dict with its keys in order. `Table` is one map of rows, one map per index, and the table's part of
the state digest; it is the only thing that keeps these in step. Readers see a `TableReader`, which is the same over
the live maps and over those of a snapshot (how that works is told in `past`).

Rows are flat: text, numbers, booleans, bytes. What is deep inside a job or a node stays encoded in one bytes field, for
three reasons: the garbage collector has nothing to walk through, an image copies the bytes as they are, and a server
that knows fewer fields than the one that wrote them loses none.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

import msgspec
from msgspec import structs

from fedsched.state.digest import ROW_HASH_MODULUS, row_hash
from fedsched.state.fields import Stored
from fedsched.state.past import Keeper, Past
from fedsched.state.sorted_keys import SortedKeys

Key = tuple[Any, ...]
"""Rows are found by a tuple of text and numbers, of the same shape within one table."""

PAGE: Final = 128
"""Rows fetched at once by a scan. A scan looks its place up again after each page, so changes in between do no harm."""


PLAIN_DEFAULTS: Final = ("", 0, False, b"")
"""All that a row's field may have as default. Fields at their default do not count for the digest, and msgspec tells
them by identity: of these values there is only one object each, of any other text there may be many."""


class Row(Stored):
    """What a table holds."""

    table: ClassVar[str]

    @property
    def key(self) -> Key:
        raise NotImplementedError

    def hashed(self) -> object:
        """What counts for the state digest: all of it, unless a row holds words that may differ between versions."""
        return self


class WideRow(Row):
    """A row that has grown beyond fifteen fields.

    The encoder that hashes are made with writes the head of a record by how many fields it could have, and takes a
    longer one from the sixteenth on: a row that got there later would change its hash by that alone. This one is hashed
    as a plain map of what it says, which has the head that the shorter row had.
    """

    def hashed(self) -> object:
        always = type(self).__struct_fields__[: -len(type(self).__struct_defaults__) or None]
        values = zip(type(self).__struct_fields__, structs.astuple(self), strict=True)
        return {name: value for name, value in values if value or name in always}


R = TypeVar("R", bound=Row)
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class MapReader(Protocol[V_co]):
    """Reads one ordered map, live or as a snapshot saw it."""

    def get(self, key: Key) -> V_co | None: ...

    def page(self, start: Key | None, limit: int, *, after: bool = False, back: bool = False) -> list[Key]: ...

    def __len__(self) -> int: ...


class _Absent:
    """Noted as the old value of a key that was not there."""


_ABSENT: Final = _Absent()


class MapBook(Generic[V]):
    """The old values of one map, keys in order too so that a snapshot can be paged through."""

    __slots__ = ("keys", "length", "old")

    def __init__(self, length: int) -> None:
        self.old: dict[Key, V | _Absent] = {}
        self.keys: SortedKeys[Key] = SortedKeys()
        self.length = length

    def note(self, key: Key, value: V | _Absent) -> None:
        if key not in self.old:
            self.old[key] = value
            self.keys.add(key)

    def absorb(self, newer: MapBook[V]) -> None:
        for key, value in newer.old.items():
            self.note(key, value)


class OrderedMap(Generic[V]):
    """A dict with its keys in order, which remembers old values for snapshots."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._number = keeper.enrol()
        self._values: dict[Key, V] = {}
        self._keys: SortedKeys[Key] = SortedKeys()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Key) -> V | None:
        return self._values.get(key)

    def page(self, start: Key | None, limit: int, *, after: bool = False, back: bool = False) -> list[Key]:
        return self._keys.page(start, limit, after=after, back=back)

    def put(self, key: Key, value: V) -> None:
        old: V | _Absent = self._values.get(key, _ABSENT)
        if self._keeper.past is not None:
            self._note(self._keeper.past, key, old)
        if old is _ABSENT:
            self._keys.add(key)
        self._values[key] = value

    def pop(self, key: Key) -> V | None:
        old = self._values.pop(key, None)
        if old is not None:
            if self._keeper.past is not None:
                self._note(self._keeper.past, key, old, length=len(self._values) + 1)
            self._keys.remove(key)
        return old

    def view(self, past: Past) -> MapView[V]:
        return MapView(self, self._number, past)

    def _note(self, past: Past, key: Key, old: V | _Absent, *, length: int | None = None) -> None:
        before = len(self._values) if length is None else length
        book: MapBook[V] = past.book(self._number, lambda: MapBook(before))
        book.note(key, old)


class MapView(Generic[V]):
    """One map as a snapshot saw it."""

    __slots__ = ("_live", "_number", "_past")

    def __init__(self, live: OrderedMap[V], number: int, past: Past) -> None:
        self._live = live
        self._number = number
        self._past = past

    def __len__(self) -> int:
        book: MapBook[V] | None = next(self._past.chain(self._number), None)
        return len(self._live) if book is None else book.length

    def get(self, key: Key) -> V | None:
        for book in self._past.chain(self._number):
            old = book.old.get(key)
            if old is not None:
                return None if old is _ABSENT else old
        return self._live.get(key)

    def page(self, start: Key | None, limit: int, *, after: bool = False, back: bool = False) -> list[Key]:
        books: list[MapBook[V]] = list(self._past.chain(self._number))
        if not books:
            return self._live.page(start, limit, after=after, back=back)
        found: list[Key] = []
        while len(found) < limit:
            want = limit - len(found)
            pages = [self._live.page(start, want, after=after, back=back)]
            pages += [book.keys.page(start, want, after=after, back=back) for book in books]
            whole = list(heapq.merge(*pages, reverse=back))
            # Beyond the end of a page that was cut short there may be keys of that source which we have not seen.
            ends = [page[-1] for page in pages if len(page) == want]
            end = (max(ends) if back else min(ends)) if ends else None
            seen: Key | None = None
            for key in whole:
                if (end is not None and (key < end if back else key > end)) or len(found) == limit:
                    break
                if key != seen and self.get(key) is not None:
                    found.append(key)
                seen = key
            if end is None:
                break
            start, after = end, True
        return found


class _Last:
    """Stands in a key for what comes after everything else."""

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return True


LAST: Final = _Last()


def scan(
    source: MapReader[V], prefix: Key = (), *, start: Key | None = None, back: bool = False
) -> Iterator[tuple[Key, V]]:
    """All entries whose key begins with `prefix`, in key order, from `start` on; with `back` the other way round."""
    width = len(prefix)
    at, after = start, False
    if at is None and prefix:
        at = (*prefix, LAST) if back else prefix
    while keys := source.page(at, PAGE, after=after, back=back):
        for key in keys:
            if key[:width] != prefix:
                return
            value = source.get(key)
            if value is not None:
                yield key, value
        at, after = keys[-1], True


class TableReader(Generic[R]):
    """Reads rows by key or by index, live or as a snapshot saw them."""

    def __init__(self, row: type[R], rows: MapReader[R], indexes: dict[str, MapReader[bool]]) -> None:
        self.row = row
        self.name = row.table
        self._rows = rows
        self._indexes = indexes

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, *key: Any) -> R | None:
        return self._rows.get(key)

    def scan(self, *prefix: Any, start: Key | None = None, back: bool = False) -> Iterator[R]:
        """Rows in key order, those whose key begins with `prefix`, from `start` on; with `back` the other way round."""
        return (row for _, row in scan(self._rows, prefix, start=start, back=back))

    def by(self, index: str, *value: Any, start: Key | None = None, back: bool = False) -> Iterator[R]:
        """Rows whose index entry begins with `value`, in the order of the rest of the entry and the row's key.

        `start` is such a rest, or the beginning of one.
        """
        entries = self._indexes[index]
        for entry, _ in scan(entries, value, start=None if start is None else (*value, *start), back=back):
            row = self._rows.get(entry[-1])
            assert row is not None, f"index {index} of {self.name} points to a row that is not there: {entry!r}"
            yield row


IndexOf = Callable[[R], Key | None]
"""Where an index files a row; None if it does not."""


class Table(TableReader[R]):
    """Rows, their indexes and their digest, changed together."""

    def __init__(self, keeper: Keeper, row: type[R], indexes: dict[str, IndexOf[R]] | None = None) -> None:
        self._live: OrderedMap[R] = OrderedMap(keeper)
        self._entries: dict[str, OrderedMap[bool]] = {name: OrderedMap(keeper) for name in indexes or {}}
        super().__init__(row, self._live, dict(self._entries))
        odd = [field.name for field in structs.fields(row) if field.default not in (msgspec.NODEFAULT, *PLAIN_DEFAULTS)]
        assert not odd, f"defaults of {row.__name__}.{odd} must be empty or zero"
        self._index_of = indexes or {}
        self.digest = 0
        """The sum of the row hashes: the same for the same rows, whatever the way to them."""

    def put(self, row: R) -> None:
        key = row.key
        old = self._live.get(key)
        self._live.put(key, row)
        added = row_hash(self.name, row)
        self.digest = (self.digest + added - (row_hash(self.name, old) if old is not None else 0)) % ROW_HASH_MODULUS
        self._file(key, old, row)

    def delete(self, *key: Any) -> R | None:
        old = self._live.pop(key)
        if old is not None:
            self.digest = (self.digest - row_hash(self.name, old)) % ROW_HASH_MODULUS
            self._file(key, old, None)
        return old

    def view(self, past: Past) -> TableReader[R]:
        return TableReader(
            self.row, self._live.view(past), {name: entries.view(past) for name, entries in self._entries.items()}
        )

    def index_problems(self) -> list[str]:
        """What a fresh computation of every index, and of the digest, finds different. For tests and inspections."""
        problems = []
        rows = list(self.scan())
        for name, where in self._index_of.items():
            wanted = sorted((*entry, row.key) for row in rows if (entry := where(row)) is not None)
            actual = [key for key, _ in scan(self._entries[name])]
            if wanted != actual:
                problems.append(f"index {name} of {self.name}: {actual!r} instead of {wanted!r}")
        if self.digest != sum(row_hash(self.name, row) for row in rows) % ROW_HASH_MODULUS:
            problems.append(f"digest of {self.name}")
        return problems

    def _file(self, key: Key, old: R | None, new: R | None) -> None:
        for name, where in self._index_of.items():
            before = where(old) if old is not None else None
            now = where(new) if new is not None else None
            if before == now:
                continue
            entries = self._entries[name]
            if before is not None:
                entries.pop((*before, key))
            if now is not None:
                entries.put((*now, key), True)
