"""Users that exist for one task only: numbers out of a range that the operator keeps free for that.

For drivers whose tasks need a user of their own and name none. A number belongs to its task until the task is over for
good, restarts and restarts of the agent included; then it is the last of the free ones to be used again, so that files
which somebody forgot do not at once belong to another task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedsched.client.journal_records import StoredAlloc
from fedsched.model.errors import Unavailable

HOOK = "dynamic_user"
UID = "uid"

Key = tuple[str, str]
"""Allocation and task."""


class DynamicUsers:
    """The numbers of one host. `exists` tells of users that the host itself knows: those are never given away."""

    def __init__(self, low: int = 80_000, high: int = 89_999, *, exists: Callable[[int], bool] = lambda uid: False):
        self._low = low
        self._high = high
        self._exists = exists
        self._next = low
        self._by_task: dict[Key, int] = {}
        self._taken: set[int] = set()

    def claim(self, key: Key, uid: int) -> None:
        """A task of an earlier agent has this one, whatever the range is by now."""
        self._by_task[key] = uid
        self._taken.add(uid)

    def take(self, key: Key) -> int:
        """The task's number: the one it has, or one that nobody has. `Unavailable` if there is none."""
        if key in self._by_task:
            return self._by_task[key]
        for _ in range(self._high - self._low + 1):
            uid = self._next
            self._next = uid + 1 if uid < self._high else self._low
            if uid not in self._taken and not self._exists(uid):
                self.claim(key, uid)
                return uid
        raise Unavailable(
            f"all users from {self._low} to {self._high} are taken by tasks of this host",
            hint="widen client.users.dynamic_user_min and dynamic_user_max",
        )

    def free(self, key: Key) -> None:
        """The task is over for good. Unknown ones are fine."""
        uid = self._by_task.pop(key, None)
        if uid is not None:
            self._taken.discard(uid)


def claim_stored(users: DynamicUsers, stored: Iterable[StoredAlloc]) -> None:
    """Before anything starts: what tasks of the last agent have, nobody else is given."""
    for one in stored:
        for task, (local, _) in one.tasks.items():
            uid = local.hooks.get(HOOK, {}).get(UID, "")
            if uid.isdecimal() and not local.is_stopped:
                users.claim((one.alloc.id, task), int(uid))
