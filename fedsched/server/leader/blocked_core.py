"""Keeps evaluations that found no room until something changed that could give them some.

An evaluation says which classes of nodes it has seen and which of them can never take it. Capacity on a node of a class
that it ruled out is no news to it; on any other class, also one it has never seen, it is. An *escaped* evaluation asks
for something that classes cannot tell, so everything is news to it.

Most changes concern few of the blocked evaluations, and there may be very many of them. So evaluations with the same
set of ruled-out classes share a bucket, and for each class that was ever heard of it is known which buckets are open to
it: releasing touches what it releases, and nothing else.

Between the moment a scheduler took its snapshot and the moment its blocked evaluation arrives here, capacity may have
come and gone unnoticed. Therefore it is remembered for a while at which index each class last had news; an evaluation
from before that goes straight back to the broker.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from fedsched.model.evaluation import Evaluation, Trigger
from fedsched.server.leader.broker_core import Ticket

REMEMBER_S: Final = 900.0
PRUNE_EVERY_S: Final = 300.0
UNBLOCK_FAILED_EVERY_S: Final = 60.0
RESTORED_PER_S: Final = 50
RESTORED_STEP_S: Final = 0.1
"""Restored evaluations come in tenths of a second's worth: few wake-ups, and still no wave."""

ANY_CLASS: Final = ""
"""Stands for news that no evaluation can rule out."""

PER_NODE_TYPES: Final = ("system", "sysbatch")

OwnerKey = tuple[str, str, str]
"""Namespace, job, and for system jobs the node: one blocked evaluation is kept for each."""


class Blocked(NamedTuple):
    """A blocked evaluation, and what could free it."""

    ticket: Ticket
    ruled_out: frozenset[str] = frozenset()
    """Classes of nodes that can never take it."""
    escaped: bool = False
    quota: str = ""
    resources: tuple[str, ...] = ()
    """Things outside nodes that it waits for."""
    is_failed: bool = False
    """It ran out of attempts rather than out of room."""
    node_id: str = ""
    token: str = ""
    """Of the worker that still has it in hand, if it was blocked again."""

    @property
    def id(self) -> str:
        return self.ticket.id

    @property
    def owner(self) -> OwnerKey:
        ticket = self.ticket
        return (ticket.namespace, ticket.job_id, self.node_id if ticket.type in PER_NODE_TYPES else "")

    @property
    def age(self) -> int:
        """How new the state is that it was decided from."""
        return max(self.ticket.create_index, self.ticket.snapshot_index)


def blocked_of(evaluation: Evaluation, token: str = "") -> Blocked:
    """What matters here of a stored evaluation."""
    ticket = Ticket(
        id=evaluation.id,
        namespace=evaluation.namespace,
        job_id=evaluation.job_id,
        type=evaluation.type,
        priority=evaluation.priority,
        create_index=evaluation.create_index,
        modify_index=evaluation.modify_index,
        snapshot_index=evaluation.snapshot_index,
    )
    escaped = evaluation.escaped_computed_class
    ruled_out = (name for name, fits in evaluation.class_eligibility.items() if not fits)
    return Blocked(
        ticket,
        ruled_out=frozenset() if escaped else frozenset(ruled_out),
        escaped=escaped,
        quota=evaluation.quota_limit_reached,
        resources=evaluation.missing_non_node_resources,
        is_failed=evaluation.triggered_by == Trigger.MAX_PLAN_ATTEMPTS.value,
        node_id=evaluation.node_id,
        token=token,
    )


class BlockedStatistics(NamedTuple):
    blocked: int
    escaped: int
    by_quota: int
    restoring: int


class _News(NamedTuple):
    newest: int
    """The index of the latest."""
    at: float


class _Bucket:
    """Evaluations that the same classes concern, by the quota they wait for (mostly none)."""

    __slots__ = ("by_quota", "count", "ruled_out")

    def __init__(self, ruled_out: frozenset[str]) -> None:
        self.ruled_out = ruled_out
        self.by_quota: dict[str, dict[str, Blocked]] = {}
        self.count = 0


class BlockedCore:
    """Decides when a blocked evaluation is worth another look. Releasing returns what goes back to the broker."""

    def __init__(self) -> None:
        self.is_enabled = False
        self._clear()

    def _clear(self) -> None:
        self._known: dict[str, Blocked] = {}
        self._owners: dict[OwnerKey, str] = {}
        self._buckets: dict[frozenset[str], _Bucket] = {}
        self._open: dict[str, dict[frozenset[str], _Bucket]] = {}
        """Per class that was heard of: the buckets that it concerns."""
        self._by_node: dict[str, set[str]] = {}
        self._by_resource: dict[str, set[str]] = {}
        self._failed: set[str] = set()
        self._escaped = 0
        self._class_news: dict[str, _News] = {}
        self._quota_news: dict[str, _News] = {}
        self._resource_news: dict[str, _News] = {}
        self._duplicates: dict[str, Blocked] = {}
        self._restoring: list[tuple[int, int, str]] = []
        self._restore_at = math.inf
        self._failed_at = math.inf
        self._prune_at = math.inf

    # ------------------------------------------------------------------ in office or not

    def enable(self, now: float) -> None:
        self.is_enabled = True
        self._failed_at = now + UNBLOCK_FAILED_EVERY_S
        self._prune_at = now + PRUNE_EVERY_S

    def disable(self) -> None:
        self.is_enabled = False
        self._clear()

    def restore(self, evaluations: Iterable[Blocked], newest_write: int, now: float) -> None:
        """Take over what is stored as blocked when an office begins.

        The former leader may have released an evaluation that nobody finished: stored, it looks blocked like any other.
        So each one that has not seen the newest write of a node or an allocation gets another look, most urgent first
        and only so many per second. Until its turn it is tracked like the rest.
        """
        for blocked in evaluations:
            self._add(blocked)
            if blocked.ticket.snapshot_index < newest_write and blocked.id in self._known:
                entry = (-blocked.ticket.priority, blocked.ticket.create_index, blocked.id)
                heapq.heappush(self._restoring, entry)
        if self._restoring:
            self._restore_at = now

    # ------------------------------------------------------------------ coming in

    def block(self, blocked: Blocked) -> list[Blocked]:
        """Track an evaluation; returns it if it must go back at once, because it may have missed its news."""
        if not self.is_enabled or blocked.id in self._duplicates:
            return []
        if not self._add(blocked):
            return []
        if self._missed_news(blocked):
            self._remove(blocked.id)
            return [blocked]
        return []

    def _add(self, blocked: Blocked) -> bool:
        """Track it unless a newer one of the same owner is; false if it became the duplicate."""
        known_id = self._owners.get(blocked.owner)
        if known_id is not None and known_id != blocked.id:
            known = self._known[known_id]
            if known.age > blocked.age:
                self._duplicates[blocked.id] = blocked
                return False
            self._remove(known_id)
            self._duplicates[known_id] = known
        self._remove(blocked.id)
        self._insert(blocked)
        return True

    def _insert(self, blocked: Blocked) -> None:
        self._known[blocked.id] = blocked
        self._owners[blocked.owner] = blocked.id
        bucket = self._buckets.get(blocked.ruled_out)
        if bucket is None:
            bucket = self._buckets[blocked.ruled_out] = _Bucket(blocked.ruled_out)
            for name, concerned in self._open.items():
                if name not in blocked.ruled_out:
                    concerned[blocked.ruled_out] = bucket
        bucket.by_quota.setdefault(blocked.quota, {})[blocked.id] = blocked
        bucket.count += 1
        self._escaped += blocked.escaped
        if blocked.is_failed:
            self._failed.add(blocked.id)
        if blocked.ticket.type in PER_NODE_TYPES and blocked.node_id:
            self._by_node.setdefault(blocked.node_id, set()).add(blocked.id)
        for name in blocked.resources:
            self._by_resource.setdefault(name, set()).add(blocked.id)

    def _remove(self, evaluation_id: str) -> Blocked | None:
        blocked = self._known.pop(evaluation_id, None)
        if blocked is None:
            return None
        del self._owners[blocked.owner]
        bucket = self._buckets[blocked.ruled_out]
        alike = bucket.by_quota[blocked.quota]
        del alike[evaluation_id]
        if not alike:
            del bucket.by_quota[blocked.quota]
        bucket.count -= 1
        if not bucket.count:
            self._drop_bucket(bucket)
        self._escaped -= blocked.escaped
        self._failed.discard(evaluation_id)
        _drop(self._by_node, blocked.node_id, evaluation_id)
        for name in blocked.resources:
            _drop(self._by_resource, name, evaluation_id)
        return blocked

    def _drop_bucket(self, bucket: _Bucket) -> None:
        del self._buckets[bucket.ruled_out]
        for concerned in self._open.values():
            concerned.pop(bucket.ruled_out, None)

    def _missed_news(self, blocked: Blocked) -> bool:
        seen = blocked.ticket.snapshot_index
        if blocked.quota:
            return _index(self._quota_news, blocked.quota) > seen
        if blocked.resources:
            return any(_index(self._resource_news, name) > seen for name in blocked.resources)
        if blocked.escaped:
            every = (self._class_news, self._quota_news, self._resource_news)
            return any(news.newest > seen for kind in every for news in kind.values())
        return any(news.newest > seen for name, news in self._class_news.items() if name not in blocked.ruled_out)

    # ------------------------------------------------------------------ news

    def unblock(self, node_class: str, index: int, now: float, *, quota: str = "") -> list[Blocked]:
        """There may be room on nodes of this class. With a quota given, whoever waits for another one stays."""
        if not self.is_enabled:
            return []
        _note(self._class_news, node_class, index, now)
        if quota:
            _note(self._quota_news, quota, index, now)
        concerned = self._concerned(node_class)
        return self._release([one.id for bucket in concerned.values() for one in _waiting_for(bucket, quota)])

    def unblock_quota(self, quota: str, index: int, now: float) -> list[Blocked]:
        """A quota was raised or freed."""
        if not self.is_enabled or not quota:
            return []
        _note(self._quota_news, quota, index, now)
        alike = (bucket.by_quota.get(quota, {}) for bucket in self._buckets.values())
        return self._release([evaluation_id for part in alike for evaluation_id in part])

    def unblock_node(self, node_id: str) -> list[Blocked]:
        """There may be room on this node for the system jobs that found none there."""
        return self._release(self._by_node.get(node_id, ()))

    def unblock_resources(self, names: Collection[str], index: int, now: float) -> list[Blocked]:
        """Things outside nodes have come up."""
        if not self.is_enabled:
            return []
        for name in names:
            _note(self._resource_news, name, index, now)
        wanted = {found for name in names for found in self._by_resource.get(name, ())}
        return self._release(found for found in wanted if self._known[found].escaped)

    def unblock_failed(self) -> list[Blocked]:
        """Those that lost a race too often, rather than lack room, try again."""
        return self._release(self._failed)

    def unblock_all(self, index: int, now: float) -> list[Blocked]:
        """The rules of placement themselves have changed."""
        if not self.is_enabled:
            return []
        _note(self._class_news, ANY_CLASS, index, now)
        return self._release(self._known)

    def _concerned(self, node_class: str) -> dict[frozenset[str], _Bucket]:
        """The buckets open to a class; looked for when the class is first heard of, kept up to date from then on."""
        concerned = self._open.get(node_class)
        if concerned is None:
            concerned = {key: bucket for key, bucket in self._buckets.items() if node_class not in key}
            self._open[node_class] = concerned
        return concerned

    def _release(self, evaluation_ids: Iterable[str]) -> list[Blocked]:
        released = [blocked for found in list(evaluation_ids) if (blocked := self._remove(found)) is not None]
        released.sort(key=lambda one: (-one.ticket.priority, one.ticket.create_index, one.id))
        return released

    # ------------------------------------------------------------------ leaving

    def forget(self, evaluation_id: str) -> None:
        """The stored evaluation has ended."""
        self._remove(evaluation_id)
        self._duplicates.pop(evaluation_id, None)

    def untrack(self, namespace: str, job_id: str) -> None:
        """A later evaluation placed everything: nothing of this job waits any more. For jobs without system type."""
        known = self._owners.get((namespace, job_id, ""))
        if known is not None:
            self._remove(known)

    def take_duplicates(self, limit: int) -> list[Blocked]:
        """Evaluations whose job has a newer blocked one, to be stored as cancelled."""
        return [self._duplicates.pop(key) for key in list(self._duplicates)[:limit]]

    def give_back_duplicates(self, duplicates: Iterable[Blocked]) -> None:
        """They could not be stored: keep them for the next time."""
        if self.is_enabled:
            self._duplicates.update((one.id, one) for one in duplicates)

    # ------------------------------------------------------------------ time

    def wake_at(self) -> float:
        return min(self._restore_at, self._failed_at, self._prune_at)

    def wake(self, now: float) -> list[Blocked]:
        """Whatever is due happens; returns what goes back to the broker."""
        released: list[Blocked] = []
        if now >= self._restore_at:
            released += self._release(self._next_restored())
            self._restore_at = now + RESTORED_STEP_S if self._restoring else math.inf
        if now >= self._failed_at:
            self._failed_at = now + UNBLOCK_FAILED_EVERY_S
            released += self.unblock_failed()
        if now >= self._prune_at:
            self._prune_at = now + PRUNE_EVERY_S
            self._prune(now - REMEMBER_S)
        return released

    def _next_restored(self) -> Iterator[str]:
        left = max(1, round(RESTORED_PER_S * RESTORED_STEP_S))
        while self._restoring and left:
            evaluation_id = heapq.heappop(self._restoring)[-1]
            if evaluation_id in self._known:
                left -= 1
                yield evaluation_id

    def _prune(self, before: float) -> None:
        for kind in (self._class_news, self._quota_news, self._resource_news):
            for name in [name for name, news in kind.items() if news.at < before]:
                del kind[name]
        for name in [name for name in self._open if name not in self._class_news]:
            del self._open[name]

    # ------------------------------------------------------------------ looking

    def knows(self, evaluation_id: str) -> bool:
        return evaluation_id in self._known

    @property
    def has_per_node(self) -> bool:
        """Whether news of single nodes matters to anybody."""
        return bool(self._by_node)

    def has_duplicates(self) -> bool:
        return bool(self._duplicates)

    def statistics(self) -> BlockedStatistics:
        with_quota = sum(
            len(alike) for bucket in self._buckets.values() for quota, alike in bucket.by_quota.items() if quota
        )
        return BlockedStatistics(len(self._known), self._escaped, with_quota, len(self._restoring))


def _waiting_for(bucket: _Bucket, quota: str) -> Iterator[Blocked]:
    if not quota:
        for alike in bucket.by_quota.values():
            yield from alike.values()
        return
    for name in {"", quota}:
        yield from bucket.by_quota.get(name, {}).values()


def _note(kind: dict[str, _News], name: str, index: int, now: float) -> None:
    known = kind.get(name)
    kind[name] = _News(max(index, known.newest if known else 0), now)


def _index(kind: dict[str, _News], name: str) -> int:
    news = kind.get(name)
    return news.newest if news else 0


def _drop(index: dict[str, set[str]], name: str, evaluation_id: str) -> None:
    members = index.get(name)
    if members is not None:
        members.discard(evaluation_id)
        if not members:
            del index[name]
