"""Who waits for which change: the core of blocking queries. Nothing polls; a change finds its waiters by hashing.

A reader says what it looked at (a table, one row, or all rows under a prefix) and at which index. If that has not moved
on already it becomes a waiter, and the first change that concerns it hands it back, once. The number of waiters is
bounded: one more is refused, because a refusal is better than a server that runs out of memory.

Pure: the trio side keeps an event per waiter and says when one has given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np

from fedsched.model.errors import Busy
from fedsched.model.ids import uuid_bytes
from fedsched.state.changes import ALLOCATIONS, AllocChange, Changes
from fedsched.state.table import Key

WAITERS_MAX: Final = 100_000
BY_JOB: Final = "job"
BY_NODE: Final = "node"
BY_ID: Final = "id"


class Topic(NamedTuple):
    """What somebody waits for."""

    table: str
    key: Key = ()
    """The row's key, or the beginning of it."""
    is_exact: bool = False
    """Whether `key` is all of the row's key."""
    text: str = ""
    """Without `is_exact`: how the part of the key after `key` must begin."""


def whole_table(table: str) -> Topic:
    return Topic(table)


def one_row(table: str, *key: Any) -> Topic:
    return Topic(table, key, is_exact=True)


def rows_under(table: str, *key: Any, text: str = "") -> Topic:
    """All rows whose key begins with `key` and goes on with something that begins with `text`."""
    return Topic(table, key, text=text)


def allocs_of_job(namespace: str, job_id: str) -> Topic:
    return Topic(ALLOCATIONS, (BY_JOB, namespace, job_id), is_exact=True)


def allocs_of_node(node_slot: int) -> Topic:
    return Topic(ALLOCATIONS, (BY_NODE, node_slot), is_exact=True)


def one_alloc(alloc_id: str) -> Topic:
    return Topic(ALLOCATIONS, (BY_ID, uuid_bytes(alloc_id)), is_exact=True)


class Waiter:
    """One reader that waits. Handed back by `wake`, or taken out by whoever put it in."""

    __slots__ = ("after", "topic")

    def __init__(self, topic: Topic, after: int) -> None:
        self.topic = topic
        self.after = after


class Waits:
    """All waiters."""

    def __init__(self, limit: int = WAITERS_MAX) -> None:
        self._limit = limit
        self._waiters: dict[Topic, dict[Waiter, None]] = {}
        self._shapes: dict[str, Counter[tuple[int, int]]] = {}
        """Per table: how long the prefixes are that somebody waits under, as (parts, characters)."""
        self._alloc_kinds: Counter[str] = Counter()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, topic: Topic, *, after: int, current: int) -> Waiter | None:
        """Wait until `topic` has an index above `after`; None if `current`, its index now, already is.

        Raises `Busy` if there are too many waiters.
        """
        if current > after:
            return None
        if self._count >= self._limit:
            raise Busy(
                f"{self._count} blocking queries are waiting on this server, which is its limit",
                hint="ask another server, or ask without waiting",
            )
        waiter = Waiter(topic, after)
        self._waiters.setdefault(topic, {})[waiter] = None
        self._note(topic, 1)
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """The reader gave up. Nothing happens if it was woken already."""
        waiting = self._waiters.get(waiter.topic)
        if waiting is None or waiter not in waiting:
            return
        del waiting[waiter]
        if not waiting:
            del self._waiters[waiter.topic]
        self._note(waiter.topic, -1)

    def wake(self, changes: Changes) -> list[Waiter]:
        """Everybody whom these changes concern, each once; they wait no longer."""
        if changes.is_everything:
            return self.wake_all()
        if not self._waiters:
            return []
        woken: list[Waiter] = []
        for topic in self._topics(changes):
            waiting = self._waiters.pop(topic, None)
            if waiting:
                self._note(topic, -len(waiting))
                woken += waiting
        return woken

    def wake_all(self) -> list[Waiter]:
        """Everybody: the state was replaced, or the server stops."""
        woken = [waiter for waiting in self._waiters.values() for waiter in waiting]
        self._waiters.clear()
        self._shapes.clear()
        self._alloc_kinds.clear()
        self._count = 0
        return woken

    def _note(self, topic: Topic, by: int) -> None:
        self._count += by
        if topic.is_exact:
            if topic.table == ALLOCATIONS:
                self._alloc_kinds[topic.key[0]] += by
            return
        shapes = self._shapes.setdefault(topic.table, Counter())
        shape = (len(topic.key), len(topic.text))
        shapes[shape] += by
        if not shapes[shape]:
            del shapes[shape]

    def _topics(self, changes: Changes) -> Iterator[Topic]:
        """Every topic that somebody may wait for and that these changes touch."""
        for change in changes.rows:
            yield Topic(change.table, change.key, is_exact=True)
            for parts, characters in list(self._shapes.get(change.table, ())):
                rest = change.key[parts] if characters and parts < len(change.key) else ""
                if not characters:
                    yield Topic(change.table, change.key[:parts])
                elif isinstance(rest, str) and len(rest) >= characters:
                    yield Topic(change.table, change.key[:parts], text=rest[:characters])
        if changes.allocs:
            yield Topic(ALLOCATIONS)
            for batch in changes.allocs:
                yield from self._alloc_topics(batch)

    def _alloc_topics(self, batch: AllocChange) -> Iterator[Topic]:
        if self._alloc_kinds[BY_JOB]:
            for namespace, job_id in batch.jobs:
                yield allocs_of_job(namespace, job_id)
        if self._alloc_kinds[BY_NODE]:
            for node_slot in np.unique(batch.node_slots).tolist():
                yield allocs_of_node(node_slot)
        if self._alloc_kinds[BY_ID]:
            for at in range(0, len(batch.ids), 16):
                yield Topic(ALLOCATIONS, (BY_ID, batch.ids[at : at + 16]), is_exact=True)
