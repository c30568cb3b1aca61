"""Gets images for tasks: one pull for all that want the same image, and removal some time after the last use.

A pull belongs to the coordinator and not to the task that asked first: it goes on while anybody waits for it, and is
cancelled when nobody does, when its time is up, or when it has said nothing for too long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from fedsched.drivers.docker.config import DockerSettings
from fedsched.drivers.docker.engine import Engine
from fedsched.drivers.docker.faults import EngineFault, EngineRefused, Fault
from fedsched.drivers.docker.image_holds import ImageHolds
from fedsched.drivers.docker.image_reference import ImageReference
from fedsched.drivers.docker.pull_progress import PullProgress
from fedsched.drivers.docker.records import RegistryAuth
from fedsched.drivers.driver import DriverError
from fedsched.telemetry.log import Logger

PROGRESS_S: Final = 10.0
"""Between two words about the same pull; an engine says hundreds of them a second."""
LOAD_BYTES: Final = 1 << 20

Tell = Callable[[str], None]


@dataclass(slots=True)
class _Pull:
    """A pull under way, and who waits for it."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)
    tells: dict[str, Tell] = field(default_factory=dict)
    image_id: str = ""
    error: DriverError | None = None

    def tell(self, words: str) -> None:
        for tell in self.tells.values():
            tell(words)


class ImageCoordinator:
    """All images that the driver's tasks use."""

    def __init__(self, engine: Engine, settings: DockerSettings, log: Logger) -> None:
        self._engine = engine
        self._settings = settings
        self._log = log
        self._holds = ImageHolds(settings.image_delay_s, removes=settings.removes_images)
        self._pulls: dict[tuple[str, RegistryAuth | None], _Pull] = {}
        self._nursery: trio.Nursery | None = None
        self._changed = trio.Event()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Pulls and removals, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await self._remove_for_ever()
            finally:
                self._nursery = None

    def hold(self, image_id: str, holder: str) -> None:
        """A task that was found again uses this image."""
        self._holds.hold(image_id, holder)

    def release(self, image_id: str, holder: str) -> None:
        """A task needs its image no more."""
        self._holds.release(image_id, holder, trio.current_time())
        self._changed.set()

    async def local(self, reference: str, holder: str) -> str | None:
        """The id of an image that is here, held; None if it is not."""
        found = await self._engine.image(reference)
        if found is None:
            return None
        self._holds.hold(found.id, holder)
        return found.id

    async def pull(
        self, image: ImageReference, auth: RegistryAuth | None, timeout_s: float, holder: str, tell: Tell
    ) -> str:
        """The id of an image after a pull, held. Shared with everybody who waits for the same."""
        key = (str(image), auth)
        pull = self._pulls.get(key)
        if pull is None:
            if self._nursery is None:
                raise DriverError("the driver does not run", is_recoverable=True)
            pull = self._pulls[key] = _Pull()
            self._nursery.start_soon(self._pull, key, image, pull, timeout_s)
        pull.tells[holder] = tell
        tell(f"Pulling {image}")
        try:
            await pull.done.wait()
        except trio.Cancelled:
            pull.tells.pop(holder, None)
            if not pull.tells:
                pull.scope.cancel()
            raise
        if pull.error is not None:
            raise pull.error
        self._holds.hold(pull.image_id, holder)
        return pull.image_id

    async def load(self, archive: AsyncIterator[bytes], image: ImageReference, timeout_s: float, holder: str) -> str:
        """The id of an image out of an archive, held."""
        progress = PullProgress(str(image))
        try:
            with trio.fail_after(timeout_s):
                async with self._engine.load(archive) as lines:
                    async for line in lines:
                        progress.feed(line)
        except trio.TooSlowError:
            raise EngineFault(Fault.TIMEOUT, f"loading {image} took more than {timeout_s:g} s") from None
        if failure := progress.failure():
            raise failure
        found = await self.local(str(image), holder)
        if found is None:
            raise DriverError(f"the archive was loaded, but holds no image {image}", hint="name the tag that is in it")
        return found

    # pulls

    async def _pull(self, key: tuple[str, Any], image: ImageReference, pull: _Pull, timeout_s: float) -> None:
        try:
            with pull.scope:
                await self._pull_within(image, key[1], pull, timeout_s)
            if pull.scope.cancelled_caught:
                pull.error = DriverError(f"pulling {image} was cancelled: nobody waits for it", is_recoverable=True)
        except DriverError as error:
            pull.error = error
        finally:
            if not pull.image_id and pull.error is None:
                pull.error = DriverError(f"pulling {image} was cut off: the driver stops", is_recoverable=True)
            del self._pulls[key]
            pull.done.set()

    async def _pull_within(
        self, image: ImageReference, auth: RegistryAuth | None, pull: _Pull, timeout_s: float
    ) -> None:
        quiet_s = self._settings.pull_activity_timeout_s
        progress = PullProgress(str(image))
        try:
            with trio.fail_after(timeout_s), trio.CancelScope(deadline=trio.current_time() + quiet_s) as quiet:
                await self._read_pull(image, auth, pull, progress, quiet)
        except trio.TooSlowError:
            raise EngineFault(Fault.TIMEOUT, f"pulling {image} took more than {timeout_s:g} s") from None
        if quiet.cancelled_caught:
            raise EngineFault(Fault.TIMEOUT, f"pulling {image} was given up: no progress for {quiet_s:g} s")
        if failure := progress.failure():
            raise failure
        found = await self._engine.image(str(image))
        if found is None:
            raise DriverError(f"{image} was pulled, but the engine does not have it", is_recoverable=True)
        pull.image_id = found.id

    async def _read_pull(
        self,
        image: ImageReference,
        auth: RegistryAuth | None,
        pull: _Pull,
        progress: PullProgress,
        quiet: trio.CancelScope,
    ) -> None:
        told_at = trio.current_time()
        async with self._engine.pull(image.repository, image.pull_tag, auth) as lines:
            async for line in lines:
                now = trio.current_time()
                quiet.deadline = now + self._settings.pull_activity_timeout_s
                progress.feed(line)
                if now - told_at >= PROGRESS_S:
                    told_at = now
                    pull.tell(progress.words())

    # removal

    async def _remove_for_ever(self) -> None:
        while True:
            self._changed = trio.Event()
            with trio.move_on_at(self._holds.wake_at()):
                await self._changed.wait()
            for image_id in self._holds.wake(trio.current_time()):
                await self._remove(image_id)

    async def _remove(self, image_id: str) -> None:
        if self._holds.is_held(image_id):
            return
        try:
            await self._engine.remove_image(image_id)
        except EngineRefused as error:
            if error.status not in (404, 409):
                self._log.warn("image_not_removed", image=image_id, error=str(error))
        except EngineFault as error:
            self._log.warn("image_not_removed", image=image_id, error=str(error))
        else:
            self._log.info("image_removed", image=image_id)


async def read_archive(fd: int) -> AsyncIterator[bytes]:
    """The pieces of a file; closes it."""
    async with aclosing(trio.wrap_file(open(fd, "rb", buffering=0))) as file:  # noqa: ASYNC230
        while piece := await file.read(LOAD_BYTES):
            yield piece
