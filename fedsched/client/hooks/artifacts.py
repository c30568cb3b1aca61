"""Artifacts: what a task needs from elsewhere is in its directory before it starts.

Up to three at a time. What is done is remembered, so that a retry fetches only what is missing, and a restart of the
task or of the agent fetches nothing again. What went into memory (`secrets`) is remembered only as long as the agent
runs: it may be gone when the next one starts the task.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Final

import trio

from fedsched.client.fetch.limits import FetchFailed
from fedsched.client.fetch.runner import Fetch, fetch, remove_leftovers
from fedsched.client.fetch.sources import read_source
from fedsched.client.hooks.hook import NO_RESULT, HookFailed, HookResult, TaskHook
from fedsched.client.task_paths import client_path
from fedsched.client.users import task_owner
from fedsched.model.task import TaskArtifact
from fedsched.model.task_state import TaskEvent

AT_ONCE: Final = 3
DOWNLOADING: Final = "Downloading Artifacts"
FAILED: Final = "Failed Artifact Download"


class ArtifactsHook(TaskHook):
    """Fetches a task's artifacts."""

    name = "artifacts"
    _done: set[str]

    @property
    def is_idle(self) -> bool:
        return not self.task.task.artifacts

    async def prestart(self, state: Mapping[str, str]) -> HookResult:
        artifacts = self.task.task.artifacts
        if not artifacts or self.task.task_id:
            return NO_RESULT
        self._done = {*getattr(self, "_done", ()), *state}
        every = [self._wanted(artifact) for artifact in artifacts]
        wanted = [one for one in every if _key(one) not in self._done]
        if wanted:
            await trio.to_thread.run_sync(remove_leftovers, self.task.dirs)
            self.task.actions.emit(TaskEvent(type=DOWNLOADING))
            await self._fetch_all(wanted)
        lasting = {_key(one): "done" for one in every if not one.destination.startswith(f"{self.task.name}/secrets")}
        return HookResult(state=lasting, is_done=len(lasting) == len(every))

    async def _fetch_all(self, wanted: list[Fetch]) -> None:
        failures: list[tuple[Fetch, FetchFailed]] = []
        places = trio.CapacityLimiter(AT_ONCE)

        async def one(item: Fetch) -> None:
            async with places:
                try:
                    await fetch(item, self.task.parts.settings.artifact)
                except FetchFailed as error:
                    failures.append((item, error))
                else:
                    self._done.add(_key(item))

        async with trio.open_nursery() as nursery:
            for item in wanted:
                nursery.start_soon(one, item)
        if failures:
            item, error = failures[0]
            more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            self.task.parts.log.warn("artifact_failed", task=self.task.name, source=item.source.shown, error=str(error))
            raise _failed(
                f"artifact {item.source.shown[:200]!r}: {error}{more}",
                is_recoverable=all(failure.is_recoverable for _, failure in failures),
            )

    def _wanted(self, artifact: TaskArtifact) -> Fetch:
        environment = self.task.environment()
        options = {key: environment.text(value) for key, value in artifact.getter_options.items()}
        try:
            source = read_source(environment.text(artifact.getter_source), options)
        except FetchFailed as error:
            raise _failed(f"artifact: {error}", is_recoverable=False) from None
        mode = artifact.getter_mode or "any"
        destination = client_path(self.task, artifact.relative_dest)
        if mode == "file" and artifact.relative_dest.endswith("/"):
            destination += source.file_name
        return Fetch(
            source=source,
            dirs=self.task.dirs,
            destination=destination,
            file_base=self.task.name,
            mode=mode,
            headers={key: environment.text(value) for key, value in artifact.getter_headers.items()},
            insecure=artifact.getter_insecure,
            owner=task_owner(self.task) if artifact.chown else None,
        )


def _key(item: Fetch) -> str:
    """What makes an artifact the same one; a digest, because headers may be secret."""
    said = [item.source.scheme, item.source.location, item.source.part, sorted(item.source.options.items())]
    text = json.dumps([*said, item.destination, item.mode, sorted(item.headers.items())])
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


def _failed(message: str, *, is_recoverable: bool) -> HookFailed:
    return HookFailed(message, is_recoverable=is_recoverable, event=FAILED)
