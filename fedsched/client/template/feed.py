"""Fetches what templates depend on, and watches it with queries that wait at servers.

A query that fails is repeated, ever more slowly. A server's refusals are counted, and after a number of them in a row
the data is given up. Servers that cannot be reached are waited for: as long as a task has been rendered once, it goes
on with what it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import trio
from msgspec import structs

from fedsched.model.errors import Busy, DeadlineExceeded, FedschedError, Unavailable
from fedsched.rpc.caller import Caller
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.paging import ListRequest
from fedsched.rpc.methods.service import SERVICE_GET, SERVICE_LIST, ServiceGetRequest
from fedsched.rpc.methods.variable import VAR_OF_TASK, VarOfTaskRequest
from fedsched.template.data import DataKind, Dependency

if TYPE_CHECKING:
    from fedsched.client.context import TaskContext

PATIENCE_S: Final = 20.0
"""How much longer than its waiting time a query may take."""
PAGE: Final = 1000
WEATHER: Final = (Unavailable, Busy, DeadlineExceeded, trio.TooSlowError)
NEVER: Final = "not_for_task"
"""The code of a refusal that trying again does not change: the task may not see it."""


class DataFeed:
    """What is known of the data that the templates of one task use."""

    def __init__(self, task: TaskContext) -> None:
        self._task = task
        self._settings = task.parts.settings.template
        self._indexes: dict[Dependency, int] = {}
        self._news: set[Dependency] = set()
        self._changed = trio.Event()
        self.values: dict[Dependency, Any] = {}
        """By what was asked for; a variable that is not there is None."""
        self.failure = ""
        """Why the data was given up; empty while it was not."""

    async def wait_changed(self) -> None:
        """Wait until something differs from before, or was given up."""
        while not self._news and not self.failure:
            event = self._changed
            await event.wait()

    def take_news(self) -> set[Dependency]:
        """What has changed since this was last asked."""
        news, self._news = self._news, set()
        return news

    def forget(self, dependency: Dependency) -> None:
        """Nobody watches it any more: what is known of it would be old when it is used again."""
        self.values.pop(dependency, None)
        self._indexes.pop(dependency, None)

    async def watch(self, dependency: Dependency) -> None:
        """Keep one thing fresh until cancelled, or given up."""
        settings = self._settings
        dice = self._task.parts.env.rng("template-retry")
        failures = 0
        pause_s = settings.retry_first_s
        while True:
            try:
                await self._fetch(dependency)
            except (FedschedError, trio.TooSlowError) as error:
                if dependency not in self.values or not isinstance(error, WEATHER):
                    failures += 1
                if failures >= settings.retry_attempts > 0 or getattr(error, "code", "") == NEVER:
                    self._give_up(dependency, failures, str(error) or "no answer")
                    return
                await trio.sleep(pause_s * dice.uniform(0.75, 1.0))
                pause_s = min(pause_s * 2, settings.retry_max_s)
            else:
                failures, pause_s = 0, settings.retry_first_s

    async def _fetch(self, dependency: Dependency) -> None:
        """Ask once: at once for what is not known yet, else when it differs or the waiting time is up."""
        index = self._indexes.get(dependency, 0)
        wait_s = self._settings.block_query_wait_s if index else 0.0
        caller = await self._task.parts.servers.caller()
        with trio.fail_after(wait_s * 17 / 16 + PATIENCE_S):
            namespace = self._task.alloc.alloc.namespace
            meta = CallMeta(namespace=namespace, min_index=index, max_wait_s=wait_s)
            value, new_index = await self._ask(caller, dependency, meta)
        # An index that went back means another history: wait for news of that one.
        self._indexes[dependency] = max(1, new_index if new_index >= index else 0)
        if dependency not in self.values or self.values[dependency] != value:
            self.values[dependency] = value
            self._news.add(dependency)
            self._wake()

    async def _ask(self, caller: Caller, dependency: Dependency, meta: CallMeta) -> tuple[Any, int]:
        match dependency.kind:
            case DataKind.SERVICE:
                wanted = ServiceGetRequest(name=dependency.key, choose=dependency.choose)
                found, reply_meta = await caller.call(SERVICE_GET, wanted, meta)
                return _without_indexes(found.services), reply_meta.index
            case DataKind.SERVICES:
                listed, reply_meta = await caller.call(SERVICE_LIST, ListRequest(per_page=PAGE), meta)
                names = [(one.service_name, one.tags) for inside in listed.namespaces for one in inside.services]
                return names, reply_meta.index
        node = self._task.parts.node()
        request = VarOfTaskRequest(
            node_id=node.id,
            secret_id=self._task.parts.secret_id,
            alloc_id=self._task.alloc.alloc.id,
            task=self._task.name,
            path=dependency.key,
            is_list=dependency.kind is DataKind.VARIABLES,
        )
        reply, reply_meta = await caller.call(VAR_OF_TASK, request, meta)
        return (list(reply.listed) if request.is_list else reply.variable), reply_meta.index

    def _give_up(self, dependency: Dependency, failures: int, why: str) -> None:
        self.failure = f"{dependency}: given up after {max(1, failures)} attempts: {why}"
        self._wake()

    def _wake(self) -> None:
        event, self._changed = self._changed, trio.Event()
        event.set()


def _without_indexes(services: tuple[Any, ...]) -> list[Any]:
    """Registrations by their content alone: entering the same again is no change."""
    return [structs.replace(one, create_index=0, modify_index=0) for one in services]
